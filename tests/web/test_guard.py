"""Browsers are told to be strict, and foreign hosts are refused."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

import postroom
import postroom.web
from postroom.web.application import HERE
from postroom.web.guard import host_of
from tests.web.visits import PATHS, Visit


@pytest.mark.parametrize("path", [*PATHS, "/none", "/keys?at=x", "/api/chart", "/static/site.js"])
def test_each_answer_has_a_strict_policy(visit: Visit, path: str) -> None:
    headers = visit.client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert ("no-store" in headers["cache-control"]) != path.startswith("/static/")


def test_scripts_come_with_their_licences() -> None:
    names = {each.name for each in (HERE / "static").iterdir()}
    assert {"htmx.min.js", "htmx.LICENSE", "uPlot.iife.min.js", "uPlot.LICENSE"} <= names


def test_templates_mark_no_text_as_safe() -> None:
    for template in (HERE / "templates").iterdir():
        text = template.read_text()
        assert not re.search(r"\|\s*safe|autoescape false", text), template.name


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:7480", 200), ("LOCALHOST", 200), ("[::1]:80", 200), ("evil.example", 421),
     ("localhost.evil.example", 421), ("", 421), ("evil.example:7480", 421)],
)  # fmt: skip
def test_a_name_that_leads_here_by_chance_gets_nothing(host: str, status: int) -> None:
    with postroom.open(":memory:") as db:
        client = TestClient(postroom.web.app(db, hosts=["localhost", "[::1]"]))
        assert client.get("/", headers={"host": host}).status_code == status
        assert client.get("/api/overview", headers={"host": host}).status_code == status


def test_ports_do_not_belong_to_names_of_hosts() -> None:
    assert host_of("a.example:1") == host_of("A.example") == "a.example"
    assert host_of("[::1]:1") == "[::1]"


@pytest.mark.parametrize("path", ["/static/../application.py", "/static/%2e%2e/application.py"])
def test_files_beside_the_static_ones_are_not_served(visit: Visit, path: str) -> None:
    assert visit.client.get(path).status_code == 404

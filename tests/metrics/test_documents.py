"""The table of metrics, the dashboard and the alerts tell of what is exposed, and nothing else."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import postroom
from postroom.metrics.client_figures import certificates, clients
from postroom.metrics.collector import points_of
from postroom.metrics.process_figures import process
from postroom.metrics.table import METRICS, Metric, Point
from postroom.server.cluster.security import Security
from tests.metrics.scraping import exposed
from tests.server.cluster.certificates import Authority

ROOT = Path(__file__).parents[2]
OPERATE = ROOT / "docs" / "operate"
NAME = re.compile(r"\bpostroom_\w+")
SUFFIX = re.compile(r"_(bucket|count|sum)$")
TOLD_BY_OTHERS = {"postroom_up", "postroom_sample_age_seconds"}
OF_PEERS = {
    "postroom_peer_entries_behind", "postroom_peer_silent_seconds",
    "postroom_peer_clock_offset_seconds",
}  # fmt: skip
"""Metrics that need other nodes; ``test_nodes.py`` sees them."""


def names_in(text: str) -> set[str]:
    """Return the names of metrics in a text, those of histograms without the suffix."""
    found = set()
    for name in NAME.findall(text):
        short = SUFFIX.sub("", name)
        is_histogram = short in METRICS and METRICS[short].kind == "histogram"
        found.add(short if is_histogram else name)
    return found


def points_of_all_sources(folder: Path) -> Iterator[Point]:
    """Yield what an embedded store, its process and a server of clients tell."""
    with postroom.open(folder / "data") as db:
        db.create_queue("work", max_attempts=1)
        with db.begin() as tx:
            tx.enqueue("work", b"v", kind="mail")
        db.queue("work").claim(1)[0].reject()
        driver: Any = db.sender
        yield from points_of(driver)
    yield from process()
    load = SimpleNamespace(requests=0, bytes=0, unread_bytes=0, refused=0, denied=0)
    sessions = type("Sessions", (list,), {"admission": load})()
    security = Security(Authority(folder).node("127.0.0.1"))
    served: Any = SimpleNamespace(connections=(), sessions=sessions, security=security)
    yield from clients(served)
    yield from certificates(served)


def test_each_metric_of_the_table_is_told_with_its_labels(tmp_path: Path) -> None:
    told: dict[str, set[int]] = {}
    for each in points_of_all_sources(tmp_path):
        told.setdefault(each.name, set()).add(len(each.labels))
    assert set(told) == set(METRICS) - TOLD_BY_OTHERS - OF_PEERS
    assert {name: {len(METRICS[name].labels)} for name in told} == told


def test_the_text_of_a_store_has_the_metrics_of_the_table_and_no_others(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data") as db:
        text = exposed(db)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert kinds == {each.name: each.kind for each in METRICS.values()}


def test_the_page_of_metrics_is_made_from_the_present_table() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "tools" / "metrics_page.py"))["page"]()
    stored = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert stored == made, "run: python docs/tools/metrics_page.py > docs/reference/metrics.md"
    assert {name for name in METRICS if f"| `{name}` |" in stored} == set(METRICS)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda each: each.name)
def test_the_name_of_a_metric_follows_the_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"postroom_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent)(_|$)", metric.name)
    assert not {"key", "id", "payload", "inbox"} & set(metric.labels)
    if metric.kind == "histogram":
        assert metric.name.endswith("_seconds")


@pytest.mark.parametrize("name", ["dashboard.json", "alerts.yml", "metrics.md"])
def test_a_document_names_metrics_of_the_table_only(name: str) -> None:
    found = names_in((OPERATE / name).read_text())
    assert found
    assert found <= set(METRICS)


def test_panels_of_the_dashboard_lie_beside_each_other() -> None:
    panels = json.loads((OPERATE / "dashboard.json").read_text())["panels"]
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(panels) == len({each["id"] for each in panels})
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)
    assert all(each["targets"] for each in panels if each["type"] != "row")


def test_each_alert_says_what_to_do() -> None:
    text = (OPERATE / "alerts.yml").read_text()
    alerts = re.findall(r"- alert: (Postroom\w+)$", text, re.MULTILINE)
    told = re.findall(
        r"^          (?:summary|description): \".*\\.\"$".replace("\\\\", "\\"), text, re.MULTILINE
    )
    assert len(told) == 2 * len(alerts) > 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("command", [["check", "rules"], ["test", "rules"]], ids=" ".join)
def test_promtool_accepts_the_alerts(command: list[str]) -> None:
    file = OPERATE / "alerts.yml" if command[0] == "check" else Path(__file__).parent / "alerts.yml"
    checked = subprocess.run(
        ["promtool", *command, str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_no_fault_in_what_is_exposed(tmp_path: Path) -> None:
    with postroom.open(tmp_path / "data") as db:
        db.create_queue("work")
        text = exposed(db)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")

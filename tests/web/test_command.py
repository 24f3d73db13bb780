"""``postroom web``: it serves the pages of a folder or a cluster, and ends at SIGTERM."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

import postroom
from postroom.cli.application import app
from tests.gateway.processes import WAIT_SECONDS, free_address, running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with postroom.open(tmp_path / "store") as db:
        db.put(b"key", b"value")
    return tmp_path / "store"


def page(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}") as answer:
        found: str = answer.read().decode()
        return found


def test_the_pages_of_a_folder_are_served_until_sigterm(folder: Path) -> None:
    address = free_address()
    with running("web", "--path", str(folder), "--listen", address, "--payloads") as process:
        assert re.search(r"<pre[^>]*>value</pre>", page(address, "/key?key=key"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    with postroom.open(folder) as db:
        assert db.get(b"key") == b"value"


def test_the_command_line_works_beside_the_pages_of_a_folder(folder: Path) -> None:
    address, path = free_address(), ["--path", str(folder)]
    with running("web", *path, "--listen", address, "--payloads"):
        assert CliRunner().invoke(app, ["put", *path, "key", "changed"]).exit_code == 0
        assert "changed" in page(address, "/key?key=key")
        assert CliRunner().invoke(app, ["get", *path, "key"]).stdout == "changed\n"


def test_pages_of_an_application_that_serves_its_store_use_its_socket(folder: Path) -> None:
    with postroom.open(folder, serve="unix:") as db:
        db.put(b"key", b"of the application")
        address = free_address()
        with running("web", "--path", str(folder), "--listen", address, "--payloads"):
            assert "of the application" in page(address, "/key?key=key")


def test_the_state_of_a_connected_store_has_a_page(folder: Path) -> None:
    with postroom.open(folder, serve="unix:"):
        address = free_address()
        with running("web", "--path", str(folder), "--listen", address):
            for path in ("/api/overview", "/api/cluster"):
                assert json.loads(page(address, path))["status"]["node_id"] == 1


def test_a_folder_whose_name_is_too_long_for_a_socket_has_pages_nevertheless(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 40)
    with postroom.open(folder) as db:
        db.put(b"key", b"value")
    address = free_address()
    with running("web", "--path", str(folder), "--listen", address):
        assert 'key_hex=6b6579"' in page(address, "/keys")


def test_tokens_of_the_command_have_the_rights_of_the_store(folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("none secret-of-mara mara\nnone another\n")
    tokens.chmod(0o600)
    with postroom.open(folder) as db:
        db.access.grant("mara", "read", b"key")
    address = free_address()
    with running("web", "--path", str(folder), "--listen", address, "--token-file", str(tokens)):
        statuses = []
        for token, key in (("secret-of-mara", "key"), ("secret-of-mara", "a"), ("another", "key")):
            request = urllib.request.Request(f"http://{address}/api/key?key={key}")
            request.add_header("Authorization", f"Bearer {token}")
            try:
                with urllib.request.urlopen(request) as answer:
                    statuses.append(answer.status)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
                error.close()
        assert statuses == [200, 403, 403]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--listen", "0.0.0.0:7480"], "--listen-certificate"),
        (["--listen", "example.org:7480"], "--token-file"),
        (["--listen", "7480"], "HOST:PORT"),
    ],
)
def test_pages_are_not_opened_to_other_machines_by_chance(
    folder: Path, arguments: list[str], word: str
) -> None:
    result = CliRunner().invoke(app, ["web", "--path", str(folder), *arguments])
    assert result.exit_code == 2, result.output
    assert word in result.stderr


def test_a_folder_without_a_store_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["web", "--path", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "there is no store" in result.stderr

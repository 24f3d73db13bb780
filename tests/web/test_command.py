"""``postroom web``: it serves the pages of a folder or a cluster, and ends at SIGTERM."""

from __future__ import annotations

import re
import signal
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


def test_the_pages_of_a_folder_are_served_until_sigterm(folder: Path) -> None:
    address = free_address()
    with running("web", "--path", str(folder), "--listen", address, "--payloads") as process:
        with urllib.request.urlopen(f"http://{address}/key?key=key") as answer:
            assert re.search(r"<pre[^>]*>value</pre>", answer.read().decode())
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    with postroom.open(folder) as db:
        assert db.get(b"key") == b"value"


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

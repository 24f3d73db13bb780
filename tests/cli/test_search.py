"""The command ``search``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import postroom
from postroom.cli.application import app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with postroom.open(str(path), codec="json") as db:
        index = db.create_search_index("wines", b"wine/", fields=["text"])
        with db.begin() as tx:
            index.put(tx, b"wine/\x01", {"text": "red wine"})
            index.put(tx, b"wine/2", {"text": "white wine, wine", "no": "red"})
    return path


def search(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["search", "--path", str(path), *arguments])


def test_search_prints_scores_and_keys(path: Path) -> None:
    found = search(path, "wine")
    assert found.exit_code == 0, found.output
    assert [line.split("\t")[1] for line in found.stdout.splitlines()] == ["wine/2", r"wine/\x01"]
    assert search(path, "wine", "RED").stdout.split("\t")[1] == "wine/\\x01\n"
    assert search(path, '"wine white"').stdout == ""
    (line,) = search(path, "--json", "--limit", "1", "--consistent", "whit*").stdout.splitlines()
    assert json.loads(line)["key"] == "wine/2"
    assert json.loads(line)["score"] > 0


def test_search_says_what_is_missing(path: Path) -> None:
    with postroom.open(str(path)) as db:
        db.create_search_index("beers", b"beer/")
    several = search(path, "wine")
    assert several.exit_code == 1
    assert "--index beers or wines" in several.stderr
    assert search(path, "--index", "beers", "wine").stdout == ""
    assert "no search index 'x'" in search(path, "--index", "x", "wine").stderr
    with postroom.open(str(path)) as db:
        assert db.drop_search_index("beers")
        assert db.drop_search_index("wines")
    assert "there is no search index" in search(path, "wine").stderr


def test_words_must_be_words(path: Path) -> None:
    nothing = search(path, "--", "-")
    assert nothing.exit_code != 0
    assert "no word" in nothing.output

"""Refusals of the command line: in words of the command line, as usage errors where they are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.commands import NOBODY, failed_with, invoke


def test_a_cluster_that_does_not_answer_is_told_in_options() -> None:
    result = invoke("get", "--connect", NOBODY, "--insecure", "--timeout", "0.3", "a")
    assert failed_with(result, 1, "connection refused", "--timeout", "serve --path DIR")
    assert "connect_timeout" not in result.stderr


def test_a_timeout_that_is_given_is_the_time_that_a_command_waits_for_a_leader() -> None:
    before = time.monotonic()
    result = invoke("get", "--connect", NOBODY, "--insecure", "--timeout", "5.5", "a")
    assert failed_with(result, 1, "within 5.5 s")
    assert time.monotonic() - before >= 5.5


def test_dead_letters_are_either_replayed_or_discarded() -> None:
    result = invoke("dead-letters", "--path", "x", "--replay", "all", "--discard", "all")
    assert failed_with(result, 2, "--replay or --discard, not both")


def test_an_id_that_is_none_is_a_usage_error_without_words_of_python(tmp_path: object) -> None:
    path = str(tmp_path)
    assert invoke("put", "--path", path, "a", "b").exit_code == 0
    result = invoke("cancel", "--path", path, "zz")
    assert failed_with(result, 2, "'zz'", "postroom scheduled")
    assert "fromhex" not in result.stderr


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (("dead-letters", "--replay", "zz"), "'postroom dead-letters' lists them"),
        (("forget-position", "zz"), "'postroom status' shows them"),
        (("bury", "inbox", "zz"), "'postroom peek --json' prints the ids"),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else None,
)
def test_an_unknown_name_is_refused_with_the_command_that_shows_the_known_ones(
    tmp_path: Path, command: tuple[str, ...], advice: str
) -> None:
    path = str(tmp_path)
    assert invoke("put", "--path", path, "a", "b").exit_code == 0
    assert failed_with(invoke(*command, "--path", path), 1, "'zz'", "nothing was changed", advice)


def test_a_folder_that_may_not_be_read_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    result = invoke("get", "--path", str(tmp_path), "a")
    assert failed_with(result, 1, "Permission denied; nothing was changed: check its owner")
    assert "Errno" not in result.stderr


def test_an_error_of_the_system_is_told_without_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "data/x")

    monkeypatch.setattr("postroom.open", full)
    result = invoke("put", "--path", str(tmp_path), "a", "b")
    assert result.stderr == "postroom: No space left on device: 'data/x'\n"

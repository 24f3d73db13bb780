"""A program that is interrupted (Ctrl-C) while one of its threads writes can go on, and end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.errors import CommitUnknown, Unavailable

PATIENCE_SECONDS = 60


def interrupt(db: Any, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The next turn is left in the midst of a part of it."""
    node, real = db._core._sender.node, getattr(db._core._sender.node, part)

    def interrupted(*given: Any) -> Any:
        if threading.current_thread().name == "postroom":  # that of upkeep is never interrupted
            return real(*given)
        monkeypatch.setattr(node, part, real)
        real(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(node, part, interrupted)


@pytest.mark.parametrize("part", ["prepare", "write", "finish"])
def test_whoever_is_interrupted_in_a_turn_leaves_a_store_that_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    db = postroom.open(tmp_path / "store")
    db.put(b"before", b"1")
    interrupt(db, monkeypatch, part)
    with pytest.raises(KeyboardInterrupt):
        db.put(b"half-way", b"2")
    with pytest.raises(Unavailable, match="open it again"):
        db.put(b"after", b"3")
    closing = threading.Thread(target=db.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    with postroom.open(tmp_path / "store") as again:
        assert again.get(b"before") == b"1"
        assert again.get(b"half-way") in {None, b"2"}
        assert again.get(b"after") is None
        again.put(b"after", b"4")


@pytest.mark.parametrize("part", ["prepare", "write"])
def test_others_are_told_when_the_turn_of_their_commits_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    with postroom.open(tmp_path / "store") as db, ThreadPoolExecutor(8) as pool:
        db.put(b"before", b"1")
        interrupt(db, monkeypatch, part)
        ends = [pool.submit(db.put, b"%d" % number, b"2") for number in range(8)]
        told = [type(end.exception(PATIENCE_SECONDS)) for end in ends]
    assert told.count(KeyboardInterrupt) == 1
    assert set(told) <= {KeyboardInterrupt, CommitUnknown, Unavailable}

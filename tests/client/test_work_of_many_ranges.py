"""A page of a scan costs the same, however many ranges the store has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.client.routing.range_cache import RangeCache

RANGES = 60
STEPS_A_PAGE = 12
"""The most ranges that a client looks at or learns of for one page."""


class Steps:
    """The number of ranges that clients have looked at or learned of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        pieces, learn = RangeCache.pieces, RangeCache._learn

        def counted(cache: RangeCache, *args: Any) -> Any:
            for piece in pieces(cache, *args):
                self.number += 1
                yield piece

        def learned(cache: RangeCache, *args: Any, **kwargs: Any) -> bool:
            self.number += 1
            return learn(cache, *args, **kwargs)

        monkeypatch.setattr(RangeCache, "pieces", counted)
        monkeypatch.setattr(RangeCache, "_learn", learned)


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "remote"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_takes_a_step_for_each_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, remote: bool, reverse: bool
) -> None:
    address = f"unix:{tmp_path}/store"
    with postroom.open(":memory:", serve=address) as store:
        for number in range(RANGES):
            store.put(b"%03d" % number, b"value")
        for number in range(1, RANGES):
            store.split(b"%03d" % number)
        db = postroom.connect(address) if remote else store
        before = list(db.scan(reverse=reverse))
        steps = Steps(monkeypatch)
        assert list(db.scan(reverse=reverse)) == before
        assert len(before) == RANGES
        assert steps.number <= STEPS_A_PAGE * RANGES
        db.close()


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "remote"])
def test_the_records_of_all_ranges_take_a_step_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    address = f"unix:{tmp_path}/store"
    with postroom.open(":memory:", serve=address) as store:
        for number in range(RANGES):
            store.put(b"%03d" % number, b"value")
        for number in range(1, RANGES):
            store.split(b"%03d" % number)
        db = postroom.connect(address) if remote else store
        steps = Steps(monkeypatch)
        found = b"".join(page.keys for page in db.bulk.columns(at=db.now()))
        assert found == b"".join(b"%03d" % number for number in range(RANGES))
        assert steps.number <= 2 * STEPS_A_PAGE * RANGES
        db.close()

"""Sums of prefixes are exact, whatever ranges their keys are in, and while these split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)

import pytest

import postroom

KEYS = [b"shop/%d/%d" % (shop, item) for shop in range(2) for item in range(4)]
CUTS = (b"shop/0", b"shop/1")
SPLITS = (b"shop", b"shop/0/2", b"shop/1/", b"shop/1/3", b"s", b"shop/0/0")


@pytest.fixture(params=["embedded", "remote"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[postroom.Database]:
    """Return a store, or a client of it."""
    address = f"unix:{tmp_path / 'socket'}"
    with postroom.open(":memory:", serve=address) as store:
        if request.param == "embedded":
            yield store
        else:
            with postroom.connect(address) as client:
                yield client


def add(db: postroom.Database, seed: int) -> Counter[bytes]:
    """Add amounts to keys in 60 transactions; return the sums by prefix."""
    random, sums = Random(seed), Counter[bytes]()
    for _ in range(60):
        key, amount = random.choice(KEYS), random.randint(-9, 9)
        with db.begin() as tx:
            tx.put(b"%d" % seed, b"anchor")
            tx.enqueue_update(postroom.Accounting(key, {"n": amount}))
        parts = key.split(b"/")
        sums.update({b"/".join(parts[:length]): amount for length in range(1, len(parts) + 1)})
    return sums


@pytest.mark.parametrize(
    ("cuts", "splits"), [(CUTS, ()), ((), SPLITS), (CUTS, SPLITS)], ids=["before", "during", "both"]
)
def test_sums_of_prefixes_are_exact_over_ranges_that_split(
    db: postroom.Database, cuts: tuple[bytes, ...], splits: tuple[bytes, ...]
) -> None:
    for cut in cuts:
        db.split(cut)
    with ThreadPoolExecutor(3) as pool:
        adding = [pool.submit(add, db, seed) for seed in range(3)]
        for split in splits:
            db.split(split)
    db.drain()
    expected = Counter[bytes]()
    for each in adding:
        expected.update(each.result())
    assert {key: db.accounting(key)["n"] for key in expected} == dict(expected)
    assert db.status().counters.conserved()

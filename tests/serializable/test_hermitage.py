"""Hermitage: Martin Kleppmann's collection of anomalies, for keys and for inboxes.

https://github.com/ept/hermitage, with its names. Each schedule interleaves a few transactions as
the original does. The committed ones must have one order that explains all that they saw
(:mod:`.oracle`). The transactions named in the table are refused, and no others.

Three kinds of things are read and written, as the same schedule:

========  ===============  ==================================  =======================
kind      read             write                               read everything
========  ===============  ==================================  =======================
keys      ``get``          ``put``                             ``scan``
reaped    ``reap_queue``   ``enqueue_message``, to an inbox    ``reap_queue`` of all
          of an empty      that is empty at first
          inbox
peeked    ``peek``         ``enqueue_message`` to it, where    ``peek`` of all
                           a message is already
========  ===============  ==================================  =======================

On the embedded store, and on three nodes; in one range, and with each two names in two ranges.
:data:`SCHEDULES` says what each line means.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

import postroom
from tests.cluster.harness import cluster
from tests.serializable.histories import Session, SpreadSession
from tests.serializable.oracle import State

Step = tuple[str, str, str]

SCHEDULES: Final[dict[str, tuple[str, str]]] = {
    # name: (steps, transactions that are refused).
    # r x: read x; w x: write x; d x: delete x, or consume its message.
    # Operations on all are r * (a predicate), u * (update) and d *; w+ x: write something new.
    "G0: dirty write": ("1w x|2w x|1w y|1c|2w y|2c", ""),
    "G1a: aborted read": ("1w x|2r x|1a|2r x|2c", ""),
    "G1b: intermediate read": ("1w x|2r x|1w x|1c|2w z|2c", "2"),
    "G1c: circular information flow": ("1w x|2w y|1r y|2r x|1c|2c", "2"),
    "OTV: observed transaction vanishes": ("1w x|1w y|2w x|1c|3r x|2w y|3r y|2c|3r x|3w z|3c", "3"),
    "PMP: predicate many preceders": ("1r *|2w+ z|2c|1r *|1w y|1c", "1"),
    "PMP for write predicates": ("1u *|2r *|2d x|1c|2c", "2"),
    "P4: lost update": ("1r x|2r x|1w x|2w x|1c|2c", "2"),
    "G-single: read skew": ("1r x|2r x|2r y|2w x|2w y|2c|1r y|1w z|1c", "1"),
    "G-single with a predicate": ("1r *|2w x|2c|1r *|1w z|1c", "1"),
    "G-single with a write predicate": ("1r x|2r *|2w x|2w y|2c|1d y|1c", "1"),
    "G-single with interleaved writes": ("1r x|2w x|1d y|2w y|1c|2c", ""),
    "G2-item: write skew": ("1r x|1r y|2r x|2r y|1w x|2w y|1c|2c", "2"),
    "G2: anti-dependency cycles": ("1r *|2r *|1w+ z|2w+ v|1c|2c", "2"),
    "G2-two-edges": ("1r *|2w x|2c|3r *|3w v|3c|1w z|1c", "1"),
}

NAMES: Final = ("x", "y", "z", "v")
KINDS: Final = {
    "keys": State({"x": "10", "y": "20"}),
    "reaped": State(),
    "peeked": State({}, {"x": ["10"], "y": ["20"]}),
}

REFUSED: Final = {
    # These find a message in each inbox that they read, so what they read is no emptiness.
    ("reaped", "OTV: observed transaction vanishes"): "",
}


def plain(kind: str, schedule: str) -> Iterator[Step]:
    """Yield the steps of a schedule, as a session takes them: who, what, target."""
    for line in schedule.split("|"):
        who, action, target = line[0], line[1:].partition(" ")[0], line.partition(" ")[2]
        for each in NAMES if target == "*" and kind != "keys" else (target,):
            yield from ((f"t{who}", what, each) for what in _meaning(kind, action, target))


def _meaning(kind: str, action: str, target: str) -> list[str]:
    if action in "ca":
        return [{"c": "commit", "a": "rollback"}[action]]
    everything = target == "*"
    if kind == "keys":
        reads = ["scan" if everything else "get"]
        return {
            "r": reads, "w": ["put"], "w+": ["put"], "d": [*reads, "delete"], "u": [*reads, "put"],
        }[action]  # fmt: skip
    read = "peek" if kind == "peeked" else "reap"
    return {"r": [read], "w": ["send"], "w+": ["send"], "d": [read, "reap"], "u": [read, "send"]}[
        action
    ]


@pytest.fixture(scope="module", params=["embedded", "three nodes"])
def db(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[postroom.Database]:
    with _opened(request.param, tmp_path_factory) as db:
        yield db


@pytest.fixture(scope="module", params=["embedded", "three nodes"])
def spread_db(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[postroom.Database]:
    """Return a store with a range for each name; on three nodes, each leads some of them."""
    with _opened(request.param, tmp_path_factory) as db:
        SpreadSession.spread(db)
        for number, each in enumerate(db.ranges() if request.param == "three nodes" else []):
            db.move_lease(each.id, number % 3 + 1)
        yield db


@contextmanager
def _opened(where: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[postroom.Database]:
    if where == "embedded":
        with postroom.open(":memory:") as db:
            yield db
    else:
        with cluster(tmp_path_factory.mktemp("nodes")) as nodes, nodes.connect() as db:
            yield db


_numbers = itertools.count()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(db: postroom.Database, name: str, kind: str) -> None:
    run(Session(db, f"{kind}{next(_numbers)}", KINDS[kind]), name, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_over_ranges(spread_db: postroom.Database, name: str, kind: str) -> None:
    run(SpreadSession(spread_db, f"{kind}{next(_numbers)}", KINDS[kind]), name, kind)


def run(session: Session, name: str, kind: str) -> None:
    """Take the steps of a schedule, and judge what came of them."""
    schedule, refused = SCHEDULES[name]
    for number, (who, what, target) in enumerate(plain(kind, schedule)):
        session.step(who, what, "x" if target == "*" else target, _value(what, number))
    session.judge()
    wanted = REFUSED.get((kind, name), refused)
    assert session.failed == {f"t{who}" for who in wanted}


def _value(what: str, number: int) -> str:
    return f"{number}" if what in ("put", "send") else ""

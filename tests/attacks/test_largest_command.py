"""The size of a command, which bounds what a replica applies in one turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import postroom
from benchmarks import largest_command
from postroom.limits import COMMAND_BYTES_MAX
from postroom.ranges.calls import Proposal, encode
from postroom.ranges.replica import Replica
from tests.attacks.hostile import Target

KEYS = [b"%c%c" % (first, second) for first in range(65, 105) for second in range(65, 105)]
"""The shortest keys that are different."""


def _deletes(db: postroom.Database) -> None:
    db.delete_range(b"", None)


def _puts(db: postroom.Database) -> None:
    with db.begin() as tx:
        for key in KEYS:
            tx.put(key, b"")


def _sends(db: postroom.Database) -> None:
    with db.begin() as tx:
        for key in KEYS:
            tx.enqueue_message(key, b"")


@pytest.mark.parametrize("act", [_deletes, _puts, _sends])
def test_the_bytes_of_a_command_bound_its_raw_writes(
    target: Target, monkeypatch: pytest.MonkeyPatch, act: Callable[[postroom.Database], None]
) -> None:
    """Applying as many as were measured takes less than 50 ms."""
    _puts(target.store.db)
    commands, start = list[Proposal](), Replica.start

    def counted(replica: Replica, proposal: Proposal) -> None:
        commands.append(proposal)
        start(replica, proposal)

    monkeypatch.setattr(Replica, "start", counted)
    monkeypatch.setattr("postroom.ranges.calls.Freeing.add", lambda *_: None)
    act(target.store.db)
    largest = max(commands, key=lambda proposal: len(proposal.command.writes)).command
    assert len(largest.writes) >= len(KEYS)
    bytes_a_write = len(encode(largest)) / len(largest.writes)
    assert COMMAND_BYTES_MAX / bytes_a_write <= 1.25 * largest_command.RAW_WRITES

"""A group of one: no waiting, no traces in the log, one turn for a proposal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from postroom.kv.keys import raft_log_prefix
from postroom.kv.memory import MemoryEngine
from postroom.raft.group import RaftGroup
from postroom.raft.interface import NoPeers
from postroom.raft.proposals import ProposalOutcome
from tests.raft.cluster import APPLIED, GROUP_ID, HISTORY, HistoryMachine
from tests.raft.scripted import ScriptedPeers


def test_a_group_of_one_leads_in_its_first_turn() -> None:
    peers = ScriptedPeers((1,))
    assert peers.group.is_leader
    assert (peers.group.term, peers.group.leader, peers.group.applied_index) == (1, 1, 1)


def test_a_proposal_made_before_the_first_turn_is_applied_in_it() -> None:
    engine = MemoryEngine()
    peers = ScriptedPeers((1,), engine)
    engine.close()
    again = ScriptedPeers.__new__(ScriptedPeers)
    fresh = MemoryEngine(engine.disk)
    told: list[ProposalOutcome] = []
    again.__dict__.update(peers.__dict__, engine=fresh)
    ScriptedPeers.__init__(again, (1,), fresh)
    again.group.propose(b"x", None, told.append)
    again.turn()
    assert told == [ProposalOutcome.APPLIED]
    assert again.group.applied_index == 2


def test_entry_and_effect_are_one_write() -> None:
    peers = ScriptedPeers((1,))
    peers.propose(b"x")
    writes = peers.stage()
    index = peers.group.applied_index.to_bytes(8, "big")
    assert writes == {HISTORY + index: b"x", APPLIED: index + (1).to_bytes(8, "big")}
    assert peers.outcomes == []
    peers.consensus.release()
    assert peers.outcomes == [ProposalOutcome.APPLIED]


def test_an_idle_group_of_one_is_quiet() -> None:
    """A group of one that has nothing to do needs no turn, ever."""
    peers = ScriptedPeers((1,))
    assert peers.consensus.next_deadline() is None
    assert peers.stage() == {}
    peers.consensus.release()
    peers.now += 1000.0
    assert peers.turn() == []
    assert peers.group.is_leader


def test_a_group_of_one_goes_on_after_a_restart() -> None:
    peers = ScriptedPeers((1,))
    for number in range(5):
        peers.propose(b"%d" % number)
        peers.turn()
    peers.engine.disk.crash(peers.consensus._random)
    again = ScriptedPeers((1,), MemoryEngine(peers.engine.disk))
    assert (again.group.term, again.group.applied_index) == (1, 6)
    assert again.group.has_applied_own_term
    assert again.machine.applied_now == []
    assert list(again.machine.history().values()) == [b"0", b"1", b"2", b"3", b"4"]
    assert again.journal.term_at(6) == 1


def test_a_restart_writes_nothing() -> None:
    peers = ScriptedPeers((1,))
    peers.propose(b"x")
    peers.turn()
    stored = dict(peers.engine.iterate(b"", b"\xff"))
    again = peers
    for _ in range(3):
        again.engine.close()
        again = ScriptedPeers((1,), MemoryEngine(peers.engine.disk))
        assert again.group.is_leader
        assert dict(again.engine.iterate(b"", b"\xff")) == stored
    again.propose(b"y")
    again.turn()
    assert list(again.machine.history().values()) == [b"x", b"y"]


def test_a_member_elected_by_others_enters_a_new_term_when_alone() -> None:
    """It has voted for itself, and holds entries of that term, but another one has led it."""
    peers = ScriptedPeers((1,))
    peers.journal.begin({})
    peers.journal.set_term(4, 1)
    peers.journal.pass_over(peers.journal.last_index, 4)
    peers.journal.end()
    peers.engine.write(peers.journal.writes, sync=True)
    peers.engine.close()
    again = ScriptedPeers((1,), MemoryEngine(peers.engine.disk))
    assert again.group.term == 5


def test_a_struct_is_encoded_only_without_its_context() -> None:
    class Struct(msgspec.Struct, array_like=True):
        number: int

    peers = ScriptedPeers((1,))
    seen: list[tuple[bytes, object]] = []
    peers.machine.apply = (  # type: ignore[method-assign]
        lambda entries, staged: seen.extend(entry[2:] for entry in entries)
    )
    peers.group.propose(Struct(5), "context", peers.outcomes.append)
    peers.group.propose(Struct(5), None, peers.outcomes.append)
    peers.turn()
    assert seen == [(b"", "context"), (msgspec.msgpack.encode(Struct(5)), None)]


def test_many_groups_wake_only_for_themselves() -> None:
    peers = ScriptedPeers((1,))
    groups = [peers.consensus.create(8 + n, (1,), peers.machine) for n in range(20)]
    peers.turn()
    turns: list[int] = []
    for group in groups:
        original = group.stage
        group.stage = (  # type: ignore[method-assign]
            lambda now, original=original, group=group: (
                turns.append(group.group_id) or original(now)
            )
        )
    groups[3].propose(b"x", None, peers.outcomes.append)
    peers.turn()
    assert turns == [11]


def test_a_node_alone_needs_no_network() -> None:
    alone = NoPeers()
    alone.send(2, b"")
    assert (list(alone.receive()), alone.connected(2)) == ([], False)


# --- engines that replay entries


class _Replaying(MemoryEngine):
    """Entries are kept apart from the state, so they are written even if they are applied."""

    replays = True


def test_one_proposal_takes_a_short_way_to_the_same_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = ScriptedPeers((1,), _Replaying())
    short.propose(b"x")
    assert short.group.stage_alone({}, [])
    short, long = ScriptedPeers((1,), _Replaying()), ScriptedPeers((1,), _Replaying())
    for number in range(3):
        for peers in (short, long):
            peers.propose(b"%d" % number)
        written = short.stage()
        with monkeypatch.context() as patch:
            patch.setattr(RaftGroup, "stage_alone", lambda group, writes, alone: False)
            assert long.stage() == written
        assert len(written) == 3, "an entry, its effect, and how far the state has come"
        assert short.consensus.needs_sync
        for peers in (short, long):
            peers.consensus.release()
    assert short.outcomes == long.outcomes == [ProposalOutcome.APPLIED] * 3
    assert short.group.last_index == long.group.last_index == 4


@pytest.mark.parametrize("proposals", [0, 2])
def test_the_short_way_takes_exactly_one_proposal(proposals: int) -> None:
    peers = ScriptedPeers((1,), _Replaying())
    for _ in range(proposals):
        peers.propose(b"x")
    assert not peers.group.stage_alone({}, [])
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.APPLIED] * proposals


def test_a_failure_on_the_short_way_leaves_no_trace_in_the_turn() -> None:
    peers = ScriptedPeers((1,), _Replaying())
    other = peers.consensus.create(8, (1,), HistoryMachine(MemoryEngine()))
    peers.turn()
    told: list[bool] = []
    peers.group.on_leadership = lambda leads, term: told.append(leads)
    peers.machine.fails_on = b"bad"
    peers.propose(b"bad")
    other.propose(b"fine", None, peers.outcomes.append)
    written = peers.stage()
    peers.consensus.release()
    assert set(peers.outcomes) == {ProposalOutcome.SUPERSEDED, ProposalOutcome.APPLIED}
    assert told == [False]
    assert isinstance(peers.group.stopped, ArithmeticError)
    assert b"fine" in written.values()
    assert not [key for key in written if key.startswith(raft_log_prefix(GROUP_ID))]
    assert all(b"bad" not in (value or b"") for value in written.values())


def test_a_proposal_made_during_an_application_is_applied() -> None:
    """An observer of what is applied may ask for something more."""
    peers = ScriptedPeers((1,), _Replaying())
    apply = peers.machine.apply

    def apply_and_propose(*args: Any) -> None:
        peers.machine.apply = apply  # type: ignore[method-assign]
        apply(*args)
        peers.propose(b"more")

    peers.machine.apply = apply_and_propose  # type: ignore[method-assign]
    peers.propose(b"x")
    peers.turn()
    peers.turn()
    assert peers.outcomes == [ProposalOutcome.APPLIED] * 2

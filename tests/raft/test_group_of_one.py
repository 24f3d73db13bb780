"""A group of one: no waiting, no traces in the log, one turn for a proposal."""

from __future__ import annotations

import msgspec

from postroom.kv.memory import MemoryEngine
from postroom.raft.outcome import Outcome
from postroom.raft.transport import NoPeers
from tests.raft.cluster import APPLIED, HISTORY
from tests.raft.puppet import Puppets


def test_it_leads_in_its_first_turn() -> None:
    puppets = Puppets((1,))
    assert puppets.group.is_leader
    assert (puppets.group.term, puppets.group.leader, puppets.group.applied_index) == (1, 1, 1)


def test_a_proposal_made_before_the_first_turn_is_applied_in_it() -> None:
    engine = MemoryEngine()
    puppets = Puppets((1,), engine)
    engine.close()
    again = Puppets.__new__(Puppets)
    fresh = MemoryEngine(engine.disk)
    told: list[Outcome] = []
    again.__dict__.update(puppets.__dict__, engine=fresh)
    Puppets.__init__(again, (1,), fresh)
    again.group.propose(b"x", None, told.append)
    again.turn()
    assert told == [Outcome.APPLIED]
    assert again.group.applied_index == 2


def test_entry_and_effect_are_one_write() -> None:
    puppets = Puppets((1,))
    puppets.propose(b"x")
    writes = puppets.stage()
    index = puppets.group.applied_index.to_bytes(8, "big")
    assert writes == {HISTORY + index: b"x", APPLIED: index}
    assert puppets.outcomes == []
    puppets.consensus.release()
    assert puppets.outcomes == [Outcome.APPLIED]


def test_it_is_quiet() -> None:
    """A group of one that has nothing to do needs no turn, ever."""
    puppets = Puppets((1,))
    assert puppets.consensus.next_deadline() is None
    assert puppets.stage() == {}
    puppets.consensus.release()
    puppets.now += 1000.0
    assert puppets.turn() == []
    assert puppets.group.is_leader


def test_it_goes_on_after_a_restart() -> None:
    puppets = Puppets((1,))
    for number in range(5):
        puppets.propose(b"%d" % number)
        puppets.turn()
    puppets.engine.disk.crash(puppets.consensus._random)
    again = Puppets((1,), MemoryEngine(puppets.engine.disk))
    assert (again.group.term, again.group.applied_index) == (1, 6)
    assert again.group.has_applied_own_term
    assert again.machine.applied_now == []
    assert list(again.machine.history().values()) == [b"0", b"1", b"2", b"3", b"4"]
    assert again.journal.term_at(6) == 1


def test_a_restart_writes_nothing() -> None:
    puppets = Puppets((1,))
    puppets.propose(b"x")
    puppets.turn()
    stored = dict(puppets.engine.iterate(b"", b"\xff"))
    again = puppets
    for _ in range(3):
        again.engine.close()
        again = Puppets((1,), MemoryEngine(puppets.engine.disk))
        assert again.group.is_leader
        assert dict(again.engine.iterate(b"", b"\xff")) == stored
    again.propose(b"y")
    again.turn()
    assert list(again.machine.history().values()) == [b"x", b"y"]


def test_who_was_not_elected_alone_enters_a_new_term() -> None:
    """It has voted for itself, and holds entries of that term, but another one has led it."""
    puppets = Puppets((1,))
    puppets.journal.begin({})
    puppets.journal.set_term(4, 1)
    puppets.journal.pass_over(puppets.journal.last_index, 4)
    puppets.journal.end()
    puppets.engine.write(puppets.journal.writes, sync=True)
    puppets.engine.close()
    again = Puppets((1,), MemoryEngine(puppets.engine.disk))
    assert again.group.term == 5


def test_a_struct_is_encoded_only_without_its_context() -> None:
    class Struct(msgspec.Struct, array_like=True):
        number: int

    puppets = Puppets((1,))
    seen: list[tuple[bytes, object]] = []
    puppets.machine.apply = (  # type: ignore[method-assign]
        lambda index, term, command, context, staged: seen.append((command, context))
    )
    puppets.group.propose(Struct(5), "context", puppets.outcomes.append)
    puppets.group.propose(Struct(5), None, puppets.outcomes.append)
    puppets.turn()
    assert seen == [(b"", "context"), (msgspec.msgpack.encode(Struct(5)), None)]


def test_many_groups_wake_only_for_themselves() -> None:
    puppets = Puppets((1,))
    groups = [puppets.consensus.create(8 + n, (1,), puppets.machine) for n in range(20)]
    puppets.turn()
    turns: list[int] = []
    for group in groups:
        original = group.stage
        group.stage = (  # type: ignore[method-assign]
            lambda now, original=original, group=group: (
                turns.append(group.group_id) or original(now)
            )
        )
    groups[3].propose(b"x", None, puppets.outcomes.append)
    puppets.turn()
    assert turns == [11]


def test_a_node_alone_needs_no_network() -> None:
    alone = NoPeers()
    alone.send(2, b"")
    assert (list(alone.receive()), alone.connected(2)) == ([], False)

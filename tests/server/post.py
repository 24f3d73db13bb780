"""Three nodes with ranges whose transactions send to each other, while things break and split."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import msgspec

from postroom.errors import CommitUnknown, Unavailable
from postroom.kv import keys
from postroom.kv.engine import Engine
from postroom.messaging import due as times
from postroom.messaging.counters import read_counters
from postroom.messaging.handover import marks
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.outgoing import key_of
from postroom.messaging.requests import (
    Counters,
    Deliverable,
    EnqueueMessage,
    EnqueueUpdate,
    Executable,
    ReapMessages,
)
from postroom.raft.interface import NetworkFaults
from postroom.ranges.checks import prefixes
from postroom.ranges.descriptor import RangeDescriptor, read_descriptor
from postroom.ranges.requests import (
    Accounting,
    Committed,
    CommitTransaction,
    DeleteRange,
    Get,
    Increment,
    Put,
    ReadAccounting,
)
from postroom.ranges.split.requests import NewRangeId, PrepareSplit
from postroom.server.node import Node
from tests.messaging.one_range import Asked
from tests.server.hosting import MEMBERS, ThreeNodes

CUTS: Final = (b"k", b"p/5")
POSTED: Final = b"p/9/x"
"""The key of additions, whose prefixes lie in two ranges."""
SPLITS: Final = (b"d", b"n", b"pd", b"t")
"""The keys at which ranges are split."""
KEYS: Final = (b"ad", b"db", b"kg", b"na", b"pd", b"tb")
"""The recipients: two in each range. All of them but the last one have the same lane."""
_FAULTS: Final = (
    NetworkFaults(),
    NetworkFaults(lost_share=0.1, doubled_share=0.1, delay_seconds_max=0.02),
    NetworkFaults(lost_share=0.02, doubled_share=0.5, delay_seconds_max=0.2),
)


class Post:
    """Clients that send, and a look at what arrives.

    Args:
        seed: the seed of the network, and of the story.

    Attributes:
        three: the nodes.
        sent: the ids of the messages to each key, in the order of their commits.
        seen: the ids of those that have arrived, in this order.
        added: how often each counter was incremented.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.three = ThreeNodes(*CUTS, seed=seed)
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)
        self.seen: dict[bytes, list[bytes]] = defaultdict(list)
        self.added: Counter[bytes] = Counter()
        self.posted = 0
        self.written: dict[bytes, bytes] = {}
        self._writes = seed % 2 == 0
        self._inboxes: dict[bytes, set[bytes]] = {}
        self._for_later: set[bytes] = set()
        self._numbers = 0

    def close(self) -> None:
        """Close the nodes."""
        self.three.close()

    # --- transactions

    def commit(self, range_id: int, *writes: Any) -> Committed:
        """Commit a transaction in a range; return its answer."""
        return self.commit_at(self.start_of(range_id), *writes)

    def commit_at(self, anchor: bytes, *writes: Any) -> Committed:
        """Commit a transaction in the range that contains a key; return its answer."""
        self._numbers += 1
        while True:
            range_id = self.range_of(anchor)
            now = self._awaited_leader(range_id).clock.reading()
            request: CommitTransaction[Any] = CommitTransaction(
                b"a client" + self._numbers.to_bytes(8, "big"), now, 60.0, 0,
                anchor, [], [], list(writes),
            )  # fmt: skip
            try:
                answer: Committed = self.ask(range_id, request)
            except (Unavailable, CommitUnknown):
                self.pass_time(0.01)  # the next try tells what has become of it
                continue
            return answer

    def ask(self, range_id: int, request: Any) -> Any:
        """Return the answer of the leaseholder of a range, or raise its error."""
        return self.three.ask(self._awaited_leader(range_id).node_id, request)

    def read(self, key: bytes, request: Any) -> Any:
        """Return the answer of the range of a key, however often the lease moves."""
        while True:
            try:
                return self.ask(self.range_of(key), request)
            except (Unavailable, CommitUnknown):
                self.pass_time(0.01)

    # --- ranges

    def range_ids(self) -> list[int]:
        """Return the ids of the ranges that any node has."""
        found = {id_ for node in self.three.nodes.values() for id_ in node.replicas.hosted}
        return sorted(found)

    def descriptors(self) -> list[RangeDescriptor]:
        """Return the newest descriptors that nodes have."""
        return [
            max(
                (
                    node.replicas.by_id(range_id).bounds.descriptor
                    for node in self.three.nodes.values()
                    if range_id in node.replicas.hosted
                ),
                key=lambda each: each.generation,
            )
            for range_id in self.range_ids()
        ]

    def range_of(self, key: bytes) -> int:
        """Return the id of the range that contains a key."""
        found = [each for each in self.descriptors() if contains(each, key)]
        return max(found, key=lambda each: each.generation).range_id

    def start_of(self, range_id: int) -> bytes:
        """Return the first key of a range."""
        return next(each.start for each in self.descriptors() if each.range_id == range_id)

    def split(self, key: bytes) -> None:
        """Have the range that contains a key split there, whatever comes of it."""
        right_id = self.read(b"", NewRangeId())
        leader = self.leader(self.range_of(key))
        if leader is not None:
            leader.replicas.submit(Asked(PrepareSplit(key, right_id)))

    def _awaited_leader(self, range_id: int) -> Node:
        self.three.until(lambda: self.leader(range_id))
        leader = self.leader(range_id)
        assert leader is not None
        return leader

    def send(self, range_id: int, *recipients: bytes, milliseconds: int = 0) -> None:
        """Send a message to each recipient, in one transaction, at once or for later."""
        due = times.after(milliseconds) if milliseconds else 0
        writes = [EnqueueMessage(key, b"m", None, due) for key in recipients]
        stamp = self.commit(range_id, *writes).timestamp
        for ordinal, key in enumerate(recipients, 1):
            id_ = keys.u64(stamp) + keys.u64(range_id) + keys.u32(ordinal)
            self.sent[key].append(id_)
            if due:
                self._for_later.add(id_)

    def add(self, range_id: int, *targets: bytes) -> None:
        """Defer an increment of each key, in one transaction."""
        self.commit(range_id, *(EnqueueUpdate(Increment(key)) for key in targets))
        self.added.update(targets)

    def post(self, range_id: int) -> None:
        """Defer an addition to a key and its prefixes."""
        self.commit(range_id, EnqueueUpdate(Accounting(POSTED, {"n": 1})))
        self.posted += 1

    def write(self, key: bytes) -> None:
        """Have the first range defer a write of a key."""
        value = b"%d" % self._numbers
        self.commit(1, EnqueueUpdate(Put(key, value)))
        self.written[key] = value

    def delete(self, start: bytes, end: bytes) -> None:
        """Have the first range defer the deletion of a span."""
        self.commit(1, EnqueueUpdate(DeleteRange(start, end)))
        self.written = {key: each for key, each in self.written.items() if not start <= key < end}

    def reap(self, key: bytes) -> None:
        """Consume everything in the inbox of a key."""
        self.look()
        ids = sorted(self._inboxes.get(key, ()))
        if ids:
            self.commit_at(key, ReapMessages(key, ids))
            self._inboxes[key] -= set(ids)

    def pass_time(self, seconds: float) -> None:
        """Take turns for a while."""
        end = self.three.clock.seconds + seconds
        self.three.until(lambda: self.three.clock.seconds >= end, seconds + 1.0)

    # --- a story

    def play(self, steps: int) -> None:
        """Do random things, let everything arrive, and check it all."""
        acts = [
            (8, self._send), (1, self._schedule), (4, self._update), (8, self._wait),
            (2, self._reap), (3, self._move_lease), (1, self._crash), (2, self._open),
            (2, self._break_network), (1, self._split),
        ]  # fmt: skip
        for _ in range(steps):
            (act,) = self.random.choices([act for _, act in acts], [each for each, _ in acts])
            act()
            self.look()
        self.arrive()

    def _send(self) -> None:
        keys_to = self.random.choices(KEYS, k=self.random.randint(1, 4))
        self.send(self.random.choice(self.range_ids()), *keys_to)

    def _schedule(self) -> None:
        range_id = self.random.choice(self.range_ids())
        milliseconds = self.random.choice([50, 1000])
        self.send(range_id, self.random.choice(KEYS), milliseconds=milliseconds)

    def _update(self) -> None:
        if self.random.random() < 0.3:
            self.post(self.random.choice(self.range_ids()))
        elif not self._writes:
            self._add()
        elif self.random.random() < 0.6:
            self.write(self.random.choice(KEYS) + b"/written")
        else:
            self.delete(*sorted(self.random.sample([b"", *CUTS, *KEYS, b"\xff"], 2)))

    def _add(self) -> None:
        targets = [each + b"/sum" for each in self.random.choices(KEYS, k=2)]
        self.add(self.random.choice(self.range_ids()), *targets)

    def _wait(self) -> None:
        self.pass_time(self.random.choice([0.003, 0.01, 0.05, 0.3]))

    def _reap(self) -> None:
        self.reap(self.random.choice(KEYS))

    def _move_lease(self) -> None:
        range_id = self.random.choice(self.range_ids())
        leader = self.leader(range_id)
        if leader is not None:
            leader.replicas.hosted[range_id].hand_over(self.random.choice(list(self.three.nodes)))

    def _crash(self) -> None:
        if len(self.three.nodes) == len(MEMBERS):
            self.three.network.heal()
            self.three.crash(self.random.choice(MEMBERS))

    def _open(self) -> None:
        for node_id in set(MEMBERS) - set(self.three.nodes):
            self.three.open(node_id)

    def _break_network(self) -> None:
        faults = self.random.choice(_FAULTS)
        for name in ("lost_share", "doubled_share", "delay_seconds_min", "delay_seconds_max"):
            setattr(self.three.faults, name, getattr(faults, name))
        self.three.network.heal()
        if self.random.random() < 0.3 and len(self.three.nodes) == len(MEMBERS):
            alone = self.random.choice(MEMBERS)
            self.three.network.partition([each for each in MEMBERS if each != alone])

    def _split(self) -> None:
        self.split(self.random.choice(SPLITS))

    def arrive(self) -> None:
        """Let the faults end, and everything arrive; check that nothing is missing."""
        self._open()
        self.three.network.heal()
        self.three.faults.lost_share = 0.0
        self.three.until(lambda: self.is_quiet() and not self.is_calling(), 60.0)
        self.look()
        for key, sent in self.sent.items():
            assert sorted(self.seen[key]) == sorted(sent), f"messages to {key!r} are lost"
        for key, number in self.added.items():
            value = self.read(key, Get(key)).value
            assert int.from_bytes(value, "big") == number, f"{key!r} is {value!r}"
        for key in (each + b"/written" for each in KEYS):
            assert self.read(key, Get(key)).value == self.written.get(key), key
        for prefix in prefixes(POSTED):
            sums = self.read(prefix, ReadAccounting(prefix))
            assert sums.get("n", 0) == self.posted, prefix
        every = [counters for _, counters, _ in self.states()]
        assert sum(each.received for each in every) == sum(each.handed for each in every)

    # --- checks

    def is_quiet(self) -> bool:
        """Return whether nothing is left in any outbox."""
        states = list(self.states())
        return len(states) == len(self.range_ids()) and not any(
            counters.pending for _, counters, _ in states
        )

    def is_calling(self) -> bool:
        """Return whether a call has no answer yet."""
        return any(len(node.calls) for node in self.three.nodes.values())

    def leader(self, range_id: int) -> Node | None:
        """Return the node that leads a range, and has applied what was committed before."""
        groups = {
            node.replicas.hosted[range_id].group: node
            for node in self.three.nodes.values()
            if range_id in node.replicas.hosted
        }
        newest = max((group.term for group in groups), default=0)
        return next(
            (
                node
                for group, node in groups.items()
                if group.is_leader and group.term == newest and group.has_applied_own_term
            ),
            None,
        )

    def states(self) -> Iterator[tuple[int, Counters, Engine]]:
        """Yield each range that is led, with its counters and the state of its leader."""
        for range_id in self.range_ids():
            leader = self.leader(range_id)
            if leader is not None:
                yield range_id, read_counters(leader.engine, range_id), leader.engine

    def look(self) -> None:
        """Check that no message is there twice, none has overtaken another, and all are counted."""
        states = {range_id: (counters, engine) for range_id, counters, engine in self.states()}
        for range_id, (counters, engine) in states.items():
            assert counters.conserved(), counters
            assert counters.outgoing_messages == len(list(outgoing(engine, range_id, False)))
            assert counters.outgoing_updates == len(list(outgoing(engine, range_id, True)))
            for key in KEYS:
                if contains(read_descriptor(engine, range_id), key):
                    self._look_at(key, engine)
        if len(states) == len(self.range_ids()):
            self._check_transit(states)

    def _look_at(self, key: bytes, engine: Engine) -> None:
        prefix, seen = keys.inbox_prefix(key), self.seen[key]
        inbox = {raw[len(prefix) :] for raw, _ in engine.iterate(prefix, keys.after_prefix(prefix))}
        for id_ in sorted(inbox - self._inboxes.get(key, set())):
            assert id_ not in seen, f"{id_.hex()} came to {key!r} twice"
            assert id_ in self.sent[key], f"{id_.hex()} was never sent to {key!r}"
            if id_ not in self._for_later:
                before = {each for each in seen if each[8:16] == id_[8:16]} - self._for_later
                assert max(before, default=b"") < id_, f"{id_.hex()} to {key!r} was overtaken"
            seen.append(id_)
        self._inboxes[key] = inbox

    def _check_transit(self, states: dict[int, tuple[Counters, Engine]]) -> None:
        """Check that what was received and not handed is what marks say to be in two places."""
        known = 0
        described = [read_descriptor(engine, id_) for id_, (_, engine) in states.items()]
        if any(sum(contains(each, key) for each in described) != 1 for key in KEYS):
            return  # a leader has not applied a split yet that others have
        for range_id, (_, engine) in states.items():
            for has_updates in (False, True):
                for position, entry in outgoing(engine, range_id, has_updates):
                    key = key_of(entry)
                    channel = Channel(range_id, has_updates, 0 if has_updates else lane_of(key))
                    recipient = next(each.range_id for each in described if contains(each, key))
                    stored = states[recipient][1].get(marks.record_key(recipient, channel))
                    known += position <= marks.mark_of(marks.decode(stored), key)
        received = sum(counters.received for counters, _ in states.values())
        handed = sum(counters.handed for counters, _ in states.values())
        assert received - handed == known, (received, handed, known)


def outgoing(engine: Engine, range_id: int, has_updates: bool) -> Iterator[tuple[bytes, Any]]:
    """Yield the positions of outgoing entries, and the entries."""
    kind = keys.EXECUTABLE if has_updates else keys.DELIVERABLE
    prefix = keys.outbox_prefix(range_id, kind, keys.OUTGOING)
    decoder = msgspec.msgpack.Decoder(Executable if has_updates else Deliverable)
    for raw, stored in engine.iterate(prefix, keys.after_prefix(prefix)):
        yield raw[len(prefix) :], decoder.decode(stored)


def contains(descriptor: RangeDescriptor, key: bytes) -> bool:
    """Return whether a range contains a key."""
    return descriptor.start <= key and (descriptor.end is None or key < descriptor.end)

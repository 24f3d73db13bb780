"""Ranges that hand over messages to each other, on a network that loses, doubles and delays.

::

    range 1 ── service ── send ──▶ Network: batches and answers, in no order, as often as it likes
    range 2 ◀── deliver ───────────────┘

Each range has an engine of its own, and evaluators, proposals and a sending service as in the
store. All share a clock. A range can split, and take over its right neighbour: the entries of its
keys move between engines, and the marks follow by the functions of the store.
"""

from __future__ import annotations

import random  # noqa: TID251 - makes an instance, seeded
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from postroom.errors import Unavailable
from postroom.kv import keys
from postroom.kv.engine import WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging import due as times
from postroom.messaging.handover import marks
from postroom.messaging.handover.channels import Channel, lane_of
from postroom.messaging.handover.marks import Marks
from postroom.messaging.handover.outgoing import key_of
from postroom.messaging.handover.requests import HandOver
from postroom.messaging.handover.sending import SendingService
from postroom.messaging.requests import (
    Counters,
    DeliverDue,
    EnqueueMessage,
    EnqueueUpdate,
    ExecuteDue,
    InboxIndexEntry,
    ReapMessages,
)
from postroom.ranges.accounting import read_metrics
from postroom.ranges.carrier import Recipient
from postroom.ranges.checks import prefixes
from postroom.ranges.descriptor import RangeDescriptor, descriptor_key, encode_descriptor
from postroom.ranges.requests import (
    Accounting,
    CommitTransaction,
    DeleteRange,
    Get,
    Increment,
    Put,
    ReadAccounting,
)
from tests.messaging.one_range import Notice, OneRange

Answered: TypeAlias = Callable[[Marks | Exception], None]


class Member:
    """One range, its keys and its sending service."""

    def __init__(self, ranges: Ranges, range_id: int, start: bytes, end: bytes | None) -> None:
        self.range_id = range_id
        descriptor = RangeDescriptor(range_id, start, end)
        engine = MemoryEngine(MemoryDisk())
        engine.write({descriptor_key(range_id): encode_descriptor(descriptor)}, sync=True)
        first = ranges.members[0].store if ranges.members else None
        self.store = OneRange(engine=engine, range_id=range_id, beside=first)
        self.bounds = self.store.replica.bounds
        self.service = SendingService(
            range_id, self.store.messaging.outboxes, self.store.engine, ranges.network,
            self.store.upkeep, Notice(), self.store.monotonic, lambda: 5.0,
            self.store.replica.memory.held,
        )  # fmt: skip
        self._running: Coroutine[Any, Any, None] = self.service.run()

    def step(self) -> None:
        """Let the service work on, and the range do what it asks for."""
        self._running.send(None)
        self.store.settle()

    def outcome(self, request: Any) -> Any:
        """Return the answer to a request, or raise its error."""
        result, error = self.store.ask(request, urgent=False).answers[0]
        if error is not None:
            raise error
        return result

    def end_at(self, end: bytes | None) -> None:
        """Let the range end at another key."""
        before = self.bounds.descriptor
        self.bounds.take(RangeDescriptor(self.range_id, before.start, end, before.generation + 1))

    def lead_anew(self) -> None:
        """Let another node lead for a moment: what is in memory is forgotten."""
        self.store.lead()
        self._running.close()
        self._running = self.service.run()

    def close(self) -> None:
        """End the services."""
        self._running.close()
        self.store.close()

    def counters(self) -> Counters:
        """Return the counters, as applied."""
        return self.store.messaging.conservation.applied

    def outgoing(self, has_updates: bool) -> list[tuple[bytes, Any]]:
        """Return the positions of outgoing entries, and the entries."""
        outboxes = self.store.messaging.outboxes
        outgoing = (outboxes.executable if has_updates else outboxes.deliverable).outgoing
        pairs = self.store.engine.iterate(outgoing.prefix, keys.after_prefix(outgoing.prefix))
        return [(raw[len(outgoing.prefix) :], outgoing.decode(stored)) for raw, stored in pairs]

    def marks_of(self, channel: Channel) -> Marks:
        """Return the marks of a channel."""
        return marks.decode(self.store.engine.get(marks.record_key(self.range_id, channel)))


@dataclass
class Network:
    """The carrier of all ranges: it keeps what is sent until the script delivers it.

    Attributes:
        batches: what was sent, and may be delivered as often as the script wants.
        answers: the answers that have not arrived.
    """

    ranges: Ranges
    version: int = 0
    batches: list[tuple[int, HandOver, Answered]] = field(default_factory=list)
    answers: list[tuple[Answered, Marks | Exception]] = field(default_factory=list)

    def recipient_of(self, key: bytes) -> Recipient:
        """Return the range that owns a key."""
        member = self.ranges.owner(key)
        return Recipient(member.range_id, member.bounds.start, member.bounds.end)

    def carry(self, recipient: Recipient, request: Any, answered: Answered) -> None:
        """Keep a batch until the script delivers it."""
        self.batches.append((recipient.range_id, request, answered))

    def deliver(self, number: int) -> None:
        """Deliver a batch; its answer is on its way then."""
        range_id, request, answered = self.batches[number]
        member = self.ranges.by_id.get(range_id) or self.ranges.owner(request.start)
        result, error = member.store.ask(request, urgent=False).answers[0]
        told = result if error is None else Unavailable(str(error))
        self.answers.append((answered, told))


class Ranges:
    """The ranges of a store, in the order of their keys, and what was sent and seen.

    Args:
        cuts: the first keys of the ranges but the first one.
    """

    def __init__(self, *cuts: bytes) -> None:
        self.members: list[Member] = []
        self.by_id: dict[int, Member] = {}
        self.network = Network(self)
        self._numbers = 0
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)
        self.seen: dict[bytes, list[bytes]] = defaultdict(list)
        self.added: Counter[bytes] = Counter()
        self.posted: Counter[bytes] = Counter()
        self.written: dict[bytes, bytes] = {}
        self._for_later: set[bytes] = set()
        self._inboxes: dict[bytes, set[bytes]] = {}
        self._retired: list[Counters] = []
        for start, end in zip((b"", *cuts), (*cuts, None), strict=True):
            self._add(len(self.members), start, end)

    def _add(self, index: int, start: bytes, end: bytes | None) -> Member:
        range_id = len(self.by_id) + len(self._retired) + 1
        member = Member(self, range_id, start, end)
        self.members.insert(index, member)
        self.by_id[range_id] = member
        return member

    def owner(self, key: bytes) -> Member:
        """Return the range that owns a key."""
        starts = [member.bounds.start for member in self.members]
        return self.members[bisect_right(starts, key) - 1]

    def close(self) -> None:
        """End all services."""
        for member in self.by_id.values():
            member.close()

    # --- transactions

    def commit(self, member: Member, *writes: Any) -> Any:
        """Commit a transaction in a range; return its answer."""
        self._numbers += 1
        request: CommitTransaction[Any] = CommitTransaction(
            b"a client" + self._numbers.to_bytes(8, "big"), self.now(), 60.0, 0,
            member.bounds.start, [], [], list(writes),
        )  # fmt: skip
        result, error = member.store.ask(request).answers[0]
        if error is not None:
            raise error
        return result

    def now(self) -> int:
        """Return a timestamp of the clock."""
        return self.members[0].store.clock.reading()

    def send(self, member: Member, *recipients: bytes, milliseconds: int = 0) -> None:
        """Send a message to each recipient, in one transaction, at once or for later."""
        due = times.after(milliseconds) if milliseconds else 0
        committed = self.commit(
            member, *(EnqueueMessage(key, b"m", None, due) for key in recipients)
        )
        sender = committed.timestamp.to_bytes(8, "big") + keys.u64(member.range_id)
        for ordinal, key in enumerate(recipients, 1):
            id_ = sender + keys.u32(ordinal)
            self.sent[key].append(id_)
            if due:
                self._for_later.add(id_)

    def add(self, member: Member, *targets: bytes) -> None:
        """Defer an increment of each key, in one transaction."""
        self.commit(member, *(EnqueueUpdate(Increment(key)) for key in targets))
        self.added.update(targets)

    def post(self, member: Member, key: bytes) -> None:
        """Defer an addition to a key and its prefixes."""
        self.commit(member, EnqueueUpdate(Accounting(key, {"n": 1})))
        self.posted[key] += 1

    def write(self, key: bytes) -> None:
        """Have the first range defer a write of a key."""
        value = b"%d" % self._numbers
        self.commit(self.members[0], EnqueueUpdate(Put(key, value)))
        self.written[key] = value

    def delete(self, start: bytes, end: bytes | None) -> None:
        """Have the first range defer the deletion of a span."""
        self.commit(self.members[0], EnqueueUpdate(DeleteRange(start, end)))
        for key in list(self.written):
            if start <= key and (end is None or key < end):
                del self.written[key]

    def pass_time(self, seconds: float) -> None:
        """Let time pass; what is due is delivered, or goes out."""
        first = self.members[0].store
        (first if first._beside is None else first._beside).seconds += seconds
        for member in list(self.by_id.values()):
            for request in (DeliverDue(100), ExecuteDue(100)):
                member.store.ask(request, urgent=False)

    def reap(self, key: bytes) -> None:
        """Consume everything in the inbox of a key."""
        self.look()
        member = self.owner(key)
        prefix = keys.inbox_prefix(key)
        found = member.store.engine.iterate(prefix, keys.after_prefix(prefix))
        ids = [raw[len(prefix) :] for raw, _ in found]
        if ids:
            self.commit(member, ReapMessages(key, ids))

    def deliver_all(self) -> None:
        """Let each batch arrive once, and each answer."""
        network = self.network
        for number in range(len(network.batches)):
            network.deliver(number)
        network.batches.clear()
        while network.answers:
            answered, told = network.answers.pop(0)
            answered(told)

    def deliver_to(self, range_id: int) -> None:
        """Let the batches for a range arrive, and their answers; the others are lost."""
        network = self.network
        network.batches = [each for each in network.batches if each[0] == range_id]
        self.deliver_all()

    # --- ranges that change

    def split(self, member: Member, key: bytes) -> None:
        """Let a range split at a key; the right half gets the marks of its keys."""
        right = self._add(self.members.index(member) + 1, key, member.bounds.end)
        self._move(member, right, key, member.bounds.end)
        for place, known in _all_marks(member):
            _put(right, place, self.marks_for_right(known, key, member.bounds.end))
            _put(member, place, marks.within(known, member.bounds.start, key))
        member.end_at(key)
        self._changed(member, right)

    def marks_for_right(self, known: Marks, start: bytes, end: bytes | None) -> Marks:
        """Return the marks of the right half of a range."""
        return marks.within(known, start, end)

    def take_over(self, member: Member) -> None:
        """Let a range take over the keys of its right neighbour, whose outbox is empty."""
        right = self.members[self.members.index(member) + 1]
        assert not right.counters().pending
        self._move(right, member, right.bounds.start, right.bounds.end)
        places = dict(_all_marks(right)) | dict(_all_marks(member))
        for place in places:
            before = marks.decode(_get(member, place))
            _put(member, place, marks.joined(before, marks.decode(_get(right, place))))
        member.end_at(right.bounds.end)
        self.members.remove(right)
        del self.by_id[right.range_id]
        self._retired.append(right.counters())
        right.close()
        self._changed(member)

    def _move(self, source: Member, target: Member, start: bytes, end: bytes | None) -> None:
        """Move what belongs to a span of keys from one engine to the other."""
        moved: WriteSet = {}
        for span in (keys.mail_span(start, end), keys.data_span(start, end)):
            moved.update(source.store.engine.iterate(*span))
        target.store.engine.write(moved, sync=True)
        source.store.engine.write(dict.fromkeys(moved), sync=True)

    def _changed(self, *members: Member) -> None:
        self.network.version += 1
        for member in members:
            member.lead_anew()

    # --- checks

    def look(self) -> None:
        """Check that no message is there twice, none has overtaken another, and all are counted."""
        for key in self.sent:
            self._look_at(key)
        for member in self.members:
            counters = member.counters()
            assert counters.conserved(), counters
            assert counters.outgoing_messages == len(member.outgoing(False))
            assert counters.outgoing_updates == len(member.outgoing(True))
        self._check_transit()

    def _look_at(self, key: bytes) -> None:
        member, seen = self.owner(key), self.seen[key]
        prefix = keys.inbox_prefix(key)
        inbox = [raw[len(prefix) :] for raw, _ in member.store.engine.iterate(
            prefix, keys.after_prefix(prefix)
        )]  # fmt: skip
        stored = member.store.engine.get(keys.mail_key(key))
        counted = msgspec.msgpack.decode(stored, type=InboxIndexEntry).messages if stored else 0
        assert counted == len(inbox), f"the inbox of {key!r} has {len(inbox)}, counted {counted}"
        here = self._inboxes.get(key, set())
        for id_ in inbox:
            if id_ in here:
                continue
            assert id_ not in seen, f"{id_.hex()} came to {key!r} twice"
            assert id_ in self.sent[key], f"{id_.hex()} was never sent to {key!r}"
            if id_ not in self._for_later:
                before = {each for each in seen if each[8:16] == id_[8:16]} - self._for_later
                assert max(before, default=b"") < id_, f"{id_.hex()} to {key!r} was overtaken"
            seen.append(id_)
        self._inboxes[key] = set(inbox)

    def _check_transit(self) -> None:
        """Check that what was received and not handed is what marks say to be in two places."""
        known = 0
        for member in self.members:
            for has_updates in (False, True):
                for position, entry in member.outgoing(has_updates):
                    key = key_of(entry)
                    lane = 0 if has_updates else lane_of(key)
                    channel = Channel(member.range_id, has_updates, lane)
                    known += position <= marks.mark_of(self.owner(key).marks_of(channel), key)
        every = [member.counters() for member in self.members] + self._retired
        received, handed = sum(each.received for each in every), sum(each.handed for each in every)
        assert received - handed == known, (received, handed, known)

    def check_end(self) -> None:
        """Check that everything has arrived, once all was delivered."""
        self.look()
        for key, sent in self.sent.items():
            assert sorted(self.seen[key]) == sorted(sent), f"messages to {key!r} are lost"
        for key, number in self.added.items():
            found, _ = self.owner(key).store.ask(Get(key)).answers[0]
            assert int.from_bytes(found.value, "big") == number, f"{key!r} is {found}"
        self._check_sums()
        for key in WRITTEN:
            found, _ = self.owner(key).store.ask(Get(key)).answers[0]
            assert found.value == self.written.get(key), f"{key!r} is {found}"
        assert not any(member.counters().pending for member in self.members)

    def _check_sums(self) -> None:
        """Check the sums of all prefixes, and what was posted to each."""
        sums = Counter[bytes]()
        for key, number in self.posted.items():
            sums.update(dict.fromkeys(prefixes(key), number))
        for prefix, number in sums.items():
            store = self.owner(prefix).store
            assert store.ask(ReadAccounting(prefix)).answers[0][0] == {"n": number}, prefix
            posted = read_metrics(store.engine.get(keys.posted_key(prefix)))
            assert posted.get("n", 0) == self.posted[prefix], prefix


def _all_marks(member: Member) -> list[tuple[bytes, Marks]]:
    prefix = keys.range_prefix(member.range_id) + keys.MARKS
    pairs = member.store.engine.iterate(prefix, keys.after_prefix(prefix))
    return [(raw[len(prefix) :], marks.decode(stored)) for raw, stored in pairs]


def _get(member: Member, place: bytes) -> bytes | None:
    return member.store.engine.get(keys.range_prefix(member.range_id) + keys.MARKS + place)


def _put(member: Member, place: bytes, known: Marks) -> None:
    key = keys.range_prefix(member.range_id) + keys.MARKS + place
    member.store.engine.write({key: marks.encode(known)}, sync=True)


KEYS: Final = (b"ad", b"db", b"kg", b"na", b"pd", b"tb")
"""The recipients. All of them but the last one have the same lane."""
CUTS: Final = (b"d", b"k", b"n", b"p", b"t", b"t/5")
POSTED: Final = (b"a/1", b"t/3/1", b"t/9/1")
"""The keys of additions: the prefixes of the last one may lie in two ranges."""
WRITTEN: Final = tuple(key + b"/written" for key in KEYS)


class Story:
    """A random story of ranges, by a seed.

    Args:
        seed: the seed.
        ranges: the number of ranges at the beginning.
    """

    def __init__(self, seed: int, ranges: int = 2) -> None:
        self.random = random.Random(seed)
        self.ranges = Ranges(*((b"n",) if ranges == 2 else (b"k", b"p")))
        self._writes = seed % 3 == 0
        self._old: list[tuple[Channel, list[tuple[bytes, Any]]]] = []

    def play(self, steps: int) -> None:
        """Do random things, then let everything arrive, and check it all."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (6, self._send), (1, self._schedule), (3, self._update), (8, self._step),
            (8, self._deliver), (8, self._answer),
            (2, self._lose), (2, self._reap), (2, self._sleep), (2, self._split),
            (3, self._take_over), (2, self._be_deposed), (3, self._send_what_was_believed),
        ]  # fmt: skip
        try:
            for _ in range(steps):
                (act,) = self.random.choices([act for _, act in acts], [each for each, _ in acts])
                act()
                self.ranges.look()
            self._finish()
            self.ranges.check_end()
        finally:
            self.ranges.close()

    def _member(self) -> Member:
        return self.random.choice(self.ranges.members)

    def _send(self) -> None:
        self.ranges.send(self._member(), *self.random.choices(KEYS, k=self.random.randint(1, 3)))

    def _schedule(self) -> None:
        milliseconds = self.random.choice([50, 3000])
        self.ranges.send(self._member(), self.random.choice(KEYS), milliseconds=milliseconds)

    def _update(self) -> None:
        if self.random.random() < 0.3:
            self.ranges.post(self._member(), self.random.choice(POSTED))
        elif not self._writes:
            self._add()
        elif self.random.random() < 0.6:
            self.ranges.write(self.random.choice(WRITTEN))
        else:
            start, end = sorted(self.random.sample([b"", *CUTS, *WRITTEN, b"\xff"], 2))
            self.ranges.delete(start, end)

    def _add(self) -> None:
        targets = [each + b"/sum" for each in self.random.choices(KEYS, k=2)]
        self.ranges.add(self._member(), *targets)

    def _step(self) -> None:
        self._member().step()

    def _deliver(self) -> None:
        network = self.ranges.network
        if network.batches:
            network.deliver(self.random.randrange(len(network.batches)))

    def _answer(self) -> None:
        answers = self.ranges.network.answers
        if answers:
            answered, told = answers.pop(self.random.randrange(len(answers)))
            answered(told)

    def _lose(self) -> None:
        network = self.ranges.network
        for sent in (network.batches, network.answers):
            if sent:
                sent.pop(self.random.randrange(len(sent)))

    def _reap(self) -> None:
        self.ranges.reap(self.random.choice(KEYS))

    def _sleep(self) -> None:
        self.ranges.pass_time(self.random.choice([0.01, 0.1, 6.0]))

    def _split(self) -> None:
        member = self._member()
        inside = [cut for cut in CUTS if cut != member.bounds.start and member.bounds.contains(cut)]
        if inside and len(self.ranges.members) < 4:
            self.ranges.split(member, self.random.choice(inside))

    def _take_over(self) -> None:
        members = self.ranges.members
        if len(members) > 2 or (len(members) > 1 and self.random.random() < 0.3):
            index = self.random.randrange(len(members) - 1)
            right = members[index + 1]
            self.ranges.pass_time(3.0)
            if not right.counters().pending:
                self.ranges.take_over(members[index])

    def _be_deposed(self) -> None:
        """Remember what a leaseholder believes to be outgoing."""
        member = self._member()
        if self.random.random() < 0.3:
            member.lead_anew()
        for has_updates in (False, True):
            by_lane: dict[int, list[tuple[bytes, Any]]] = defaultdict(list)
            for position, entry in member.outgoing(has_updates):
                by_lane[0 if has_updates else lane_of(key_of(entry))].append((position, entry))
            for lane, entries in by_lane.items():
                self._old.append((Channel(member.range_id, has_updates, lane), entries))

    def _send_what_was_believed(self) -> None:
        """Let a deposed leaseholder send a prefix of what it believes in, for any span."""
        if not self._old:
            return
        channel, entries = self.random.choice(self._old)
        start, end = sorted(self.random.sample([b"", *CUTS, b"\xff"], 2))
        inside = [each for each in entries if start <= key_of(each[1]) < end]
        batch = tuple(inside[: self.random.randint(1, len(inside))]) if inside else ()
        if batch:
            what = {"updates" if channel.has_updates else "messages": batch}
            until = None if end == b"\xff" else end
            request = msgspec.structs.replace(HandOver(channel, start, until), **what)
            owner = self.ranges.owner(start)
            self.ranges.network.batches.append((owner.range_id, request, lambda _: None))

    def _finish(self) -> None:
        """Let all batches and answers arrive until nothing is outgoing."""
        network = self.ranges.network
        for _ in range(60):
            self.ranges.pass_time(6.0)
            network.batches.clear()
            for member in self.ranges.members:
                member.step()
            for number in range(len(network.batches)):
                network.deliver(number)
            while network.answers:
                answered, told = network.answers.pop(0)
                answered(told)
            self.ranges.look()
            if not any(member.counters().pending for member in self.ranges.members):
                return

"""Random stories of transactions over several ranges, and the judgement of what came of them.

A story is made from a seed. Clients read and write in two or three ranges whose clocks go their own
ways; requests are lost, doubled and late; leases move while proposals are under way. In the end all
clients learn the outcomes of their commits. Then, by the timestamps of the commits:

* each key has exactly the versions that committed transactions have written, each once;
* a transaction has read what was there right before its own timestamp;
* it has seen whatever was acknowledged before it began;
* nothing is left behind: no record, no call that waits, no run.
"""

from __future__ import annotations

import random  # noqa: TID251 - makes an instance, seeded
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from postroom.errors import CommitUnknown, Error, TransactionConflict, Unavailable
from postroom.kv import keys, versions
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.requests import CommitTransaction, Get, Put
from postroom.ranges.transactions.requests import Refresh
from tests.messaging.one_range import Asked
from tests.ranges.transactions.participant import transaction_id
from tests.ranges.transactions.several import Leaseholder, Several

KEYS: Final = (b"a", b"b", b"n", b"o", b"x", b"y")
CUTS: Final = (b"m", b"w")
SECONDS_AHEAD: Final = (0.0, 0.0, 2.0, 7200.0, -7200.0)

RESENT_MAX: Final = 40

Steps = Generator[Any, Any, None]


class Wrong(AssertionError):
    """An error: a story has an end that it must not have."""


@dataclass(eq=False)
class Told:
    """A transaction, and what its client knows of it.

    Attributes:
        id: its id, which is also the value that it writes.
        before: the transactions that were acknowledged before it began.
        seen: the values that it has read, by key.
        at: the timestamp of its reads.
        writes: the keys that it writes.
        timestamp: that of its commit, or of its reads if it writes nothing; 0: it has failed.
        is_unknown: whether its client was told that nobody knows the outcome.
    """

    id: bytes
    before: frozenset[Told]
    seen: dict[bytes, bytes | None] = field(default_factory=dict)
    at: int = 0
    writes: tuple[bytes, ...] = ()
    timestamp: int = 0
    is_unknown: bool = False
    request: CommitTransaction[Any] | None = None


class Rules:
    """The rules that a client keeps; mutations break them."""

    moves_up = True
    looks_up_to_now = True


class Client:
    """A client, which runs one transaction after the other."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._running: Steps | None = None
        self.asked: Asked | None = None
        self._resent = 0
        self._is_unknown = False

    def go_on(self) -> None:
        """Take the answer, if one has come, and send the next request."""
        story = self._story
        if self._running is None:
            if not story.ends:
                self._running = story.transaction()
                self._ask(next(self._running))
            return
        assert self.asked is not None
        if not self.asked.answers:
            return
        answer, error = self.asked.answers[0]
        may_resend = isinstance(error, CommitUnknown | Unavailable) and self._resent < RESENT_MAX
        self._resent += 1
        self._is_unknown = self._is_unknown or isinstance(error, CommitUnknown)
        if may_resend and (story.ends or story.random.random() < 0.9):
            self._ask(self.asked.request)
            return
        if self._is_unknown and isinstance(error, Unavailable):
            error = CommitUnknown("an earlier try may have committed")
        self._resent, self._is_unknown = 0, False
        try:
            if error is None:
                self._ask(self._running.send(answer))
            else:
                self._ask(self._running.throw(error))
        except StopIteration:
            self._running = self.asked = None

    @property
    def is_idle(self) -> bool:
        return self._running is None

    def _ask(self, request: Any) -> None:
        self.asked = Asked(request)
        key = request.anchor if isinstance(request, CommitTransaction) else key_of(request)
        member = self._story.store.owner(key)
        member.replica.submit(self.asked)
        member.settle()


def key_of(request: Any) -> bytes:
    """Return the key of a read."""
    key: bytes = request.keys[0] if isinstance(request, Refresh) else request.key
    return key


class Story:
    """A story by a seed; see the module."""

    def __init__(self, seed: int, rules: type[Rules] = Rules) -> None:
        self.random = rand = random.Random(seed)
        self.rules = rules
        cuts = CUTS[: rand.randint(1, 2)]
        ahead = tuple(rand.choice(SECONDS_AHEAD) for _ in range(len(cuts) + 1))
        self.store = Several(*cuts, ahead_seconds=ahead)
        for member in self.store.members:
            member.stands = rand.random() < 0.2
        self.keys = rand.sample(KEYS, rand.randint(2, len(KEYS)))
        self.clients = [Client(self) for _ in range(rand.randint(2, 4))]
        self.all: list[Told] = []
        self.acknowledged: set[Told] = set()
        self.ends = False
        self._late: list[tuple[int, bytes]] = []

    # --- transactions

    def transaction(self) -> Steps:
        """Run a transaction: read some keys, then write some."""
        told = Told(transaction_id(), frozenset(self.acknowledged))
        contacts: dict[int, int] = {}
        reads = self.random.sample(self.keys, self.random.randint(0, min(3, len(self.keys))))
        written = self.random.sample(self.keys, self.random.randint(0, min(3, len(self.keys))))
        if not reads and not written:
            reads = self.keys[:1]
        try:
            for key in reads:
                yield from self._read(told, key, contacts)
            if written:
                yield from self._commit(told, tuple(written))
            else:
                told.timestamp = told.at
                self.acknowledged.add(told)
        except Error as error:
            told.timestamp, told.is_unknown = 0, isinstance(error, CommitUnknown)
        self.all.append(told)

    def _read(self, told: Told, key: bytes, contacts: dict[int, int]) -> Steps:
        member = self.store.owner(key)
        if not told.at:
            found = yield Get(key)
            told.at = found.timestamp
            contacts[member.range_id] = told.at
        else:
            until = 0
            if not self.rules.looks_up_to_now:
                until = contacts.setdefault(member.range_id, max(told.at, member.clock.now()))
                until = max(until, told.at)
            later = yield Refresh([key], [], told.at, until)
            if later and self.rules.moves_up:
                for earlier in told.seen:
                    if (yield Refresh([earlier], [], told.at, later)):
                        raise TransactionConflict("it has changed")
                told.at = later
            found = yield Get(key, told.at)
        told.seen[key] = found.value

    def _commit(self, told: Told, written: tuple[bytes, ...]) -> Steps:
        told.writes = written
        writes = [Put(key, told.id) for key in written]
        began = self.store.owner(written[0]).clock.reading() - self.random.randint(0, 50)
        told.request = CommitTransaction(
            told.id, began=began, seconds_max=60.0, read_timestamp=told.at, anchor=written[0],
            reads=list(told.seen), spans=[], writes=writes,
        )  # fmt: skip
        committed = yield told.request
        told.timestamp = committed.timestamp
        self.acknowledged.add(told)

    # --- events

    def play(self, steps: int = 250) -> None:
        """Do random things, then let everything end, and judge it."""
        acts: list[tuple[int, Callable[[], None]]] = [
            (10, self._go_on), (8, self._step), (8, self._deliver), (8, self._answer),
            (2, self._lose), (2, self._double), (2, self._pass_time), (1, self._take_over),
            (1, self._hold), (3, self._let_go), (1, self._apply_late),
        ]  # fmt: skip
        weights, each = [weight for weight, _ in acts], [act for _, act in acts]
        for _ in range(steps):
            self.random.choices(each, weights)[0]()
        self.end()
        self.judge()

    def _member(self) -> Leaseholder:
        return self.random.choice(self.store.members)

    def _go_on(self) -> None:
        self.random.choice(self.clients).go_on()

    def _step(self) -> None:
        member = self._member()
        member.service.step()
        member.settle()

    def _deliver(self) -> None:
        packets = self.store.network.packets
        if packets:
            self.store.network.deliver(packets.pop(self.random.randrange(len(packets))))

    def _answer(self) -> None:
        answers = self.store.network.answers
        if answers:
            packet = answers.pop(self.random.randrange(len(answers)))
            packet.answered(packet.answer)

    def _lose(self) -> None:
        for sent in (self.store.network.packets, self.store.network.answers):
            if sent and self.random.random() < 0.3:
                sent.pop(self.random.randrange(len(sent)))

    def _double(self) -> None:
        for sent in (self.store.network.packets, self.store.network.answers):
            if sent:
                sent.append(self.random.choice(sent))

    def _pass_time(self) -> None:
        seconds = self.random.choice([0.0, 0.01, 0.6, 2.5])
        for member in self.store.members:
            member.pass_time(seconds)

    def _hold(self) -> None:
        self._member().group.holds = True

    def _let_go(self) -> None:
        member = self._member()
        member.group.holds = False
        member.settle()

    def _take_over(self) -> None:
        """Let another node take over; a proposal under way is applied, or comes too late."""
        member = self._member()
        for proposal, _ in list(member.group.proposed):
            command = msgspec.msgpack.encode(proposal.command)
            member.group.end(ProposalOutcome.UNKNOWN)
            if self.random.random() < 0.5:
                member.group.find()
            else:
                member.group._forgotten.clear()
                self._late.append((member.range_id, command))
        member.group.holds = True  # it proposes nothing any more
        self.store.take_over(member.range_id, ahead_seconds=self.random.choice(SECONDS_AHEAD))

    def _apply_late(self) -> None:
        """Let the command of a deposed leaseholder come in, which is void."""
        if self._late:
            range_id, command = self._late.pop()
            self.store.members[range_id - 1].group._apply(command, None)

    def end(self) -> None:
        """Let all clients learn how their transactions have ended."""
        self.ends = True
        for _ in range(80):
            for member in self.store.members:
                member.group.holds = False
                member.settle()
            self.store.settle()
            for client in self.clients:
                client.go_on()
            if all(client.is_idle for client in self.clients):
                break
            self.store.pass_time(0.1)
        else:
            raise Wrong("a client waits for ever")
        for _ in range(8):
            self.store.pass_time(0.7)

    # --- judgement

    def judge(self) -> None:
        """Check the story."""
        histories = {key: self._history(key) for key in KEYS}
        found = {id_: timestamp for each in histories.values() for timestamp, id_ in each}
        for told in self.all:
            if told.is_unknown:
                told.timestamp = found.get(told.id, 0)
        committed = [told for told in self.all if told.timestamp]
        by_id = {told.id: told for told in committed}
        for key, history in histories.items():
            expected = sorted((told.timestamp, told.id) for told in committed if key in told.writes)
            if history != expected:
                raise Wrong(f"{key!r} has the versions {history}, not {expected}")
        for told in committed:
            for key, value in told.seen.items():
                self._judge_read(told, key, value, histories[key], by_id)
        self._judge_remains()

    def _judge_remains(self) -> None:
        """Check that nothing is left behind."""
        if self.store.records():
            raise Wrong("a prepared record is left")
        for member in self.store.members:
            sizes = member.replica.sizes()
            if sizes["calls that wait for intents"] or member.service.coordinator.runs:
                raise Wrong("something waits for ever")
            if member.replica.usual_parts.committer.second_rounds:
                raise Wrong("a second round is left")

    def _judge_read(
        self,
        told: Told,
        key: bytes,
        value: bytes | None,
        history: list[tuple[int, bytes]],
        by_id: dict[bytes, Told],
    ) -> None:
        last = told.timestamp - 1 if told.writes else told.timestamp
        there = max((each for each in history if each[0] <= last), default=(0, None))
        if there[1] != value:
            raise Wrong(f"{told.id!r} at {told.timestamp} read {value!r} of {key!r}, not {there}")
        seen_at = by_id[value].timestamp if value is not None else 0
        for done in told.before:
            if key in done.writes and done.timestamp > seen_at:
                raise Wrong(f"{told.id!r} has not seen {done.id!r}, acknowledged before it began")

    def _history(self, key: bytes) -> list[tuple[int, bytes]]:
        """Return the timestamps and values of all versions of a key."""
        engine, head = self.store.owner(key).engine, keys.head_key(key)
        newest = engine.get(head)
        stored = [] if newest is None else [newest]
        older = engine.iterate(head[:-1] + keys.HISTORY, head[:-1] + keys.INBOX)
        stored += [each for _, each in older]
        found = [
            (int.from_bytes(each[1:9], "big"), versions.payload(each) or b"") for each in stored
        ]
        return sorted(found)

"""Several ranges with transactions over them, on a network that does what a script says.

::

    client ── commit ──▶ range 1 ── service ── carry ──▶ Network: packets, answers; delivered,
                                                         doubled, lost, or left lying
    each range: an engine, a clock and a lease of its own

The clocks of the ranges may be hours apart. Seconds pass for all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from postroom.errors import Unavailable
from postroom.kv.memory import MemoryEngine
from postroom.ranges.calls import Call, NotLeaseholder
from postroom.ranges.carrier import Recipient
from postroom.ranges.requests import CommitTransaction, Get
from postroom.ranges.transactions.service import TransactionService
from tests.messaging.one_range import Asked
from tests.ranges.transactions.participant import Participant, answer_of, transaction_id

Answered = Callable[[Any], None]


@dataclass
class Packet:
    """A request on its way, or its answer."""

    recipient: int
    request: Any
    answered: Answered
    answer: Any = None


class _Carried(Call):
    """The call of a request that a network carries."""

    def __init__(self, request: Any, done: Answered) -> None:
        super().__init__(request)
        self._done = done

    def complete(self, result: Any, error: BaseException | None) -> None:
        self._done(result if error is None else error)


class _Notice:
    """A wake-up that counts how often it was set."""

    number = 0

    def set(self, *, urgent: bool = False) -> None:
        """Count: the script takes steps."""
        del urgent
        self.number += 1

    async def wait(self, timeout_seconds: float) -> None:
        raise NotImplementedError


class Leaseholder(Participant):
    """A range with the service for its transactions."""

    service: TransactionService
    notice: _Notice


@dataclass
class Network:
    """The carrier of all ranges: what is sent lies here until the script delivers it.

    Attributes:
        packets: the requests.
        answers: the answers.
        unknown: the ids of the ranges that the sender does not know.
    """

    store: Several
    version: int = 0
    unknown: set[int] = field(default_factory=set)
    packets: list[Packet] = field(default_factory=list)
    answers: list[Packet] = field(default_factory=list)

    def recipient_of(self, key: bytes) -> Recipient:
        known = [each for each in self.store.members if each.range_id not in self.unknown]
        spans = [
            (each.range_id, each.replica.bounds.start, each.replica.bounds.end) for each in known
        ]
        for range_id, start, end in spans:
            if start <= key and (end is None or key < end):
                return Recipient(range_id, start, end)
        before = [end for _, _, end in spans if end is not None and end <= key]
        after = [start for _, start, _ in spans if start > key]
        return Recipient(0, max(before, default=b""), min(after, default=None))

    def carry(self, recipient: Recipient, request: Any, answered: Answered) -> None:
        if recipient.range_id:
            self.packets.append(Packet(recipient.range_id, request, answered))
        else:
            answered(NotLeaseholder(None))

    def deliver(self, packet: Packet) -> None:
        """Deliver a request; its answer is on its way when the range has made it."""
        member = self.store.members[packet.recipient - 1]

        def done(answer: Any) -> None:
            told = Unavailable(str(answer)) if isinstance(answer, _MOVED) else answer
            self.answers.append(Packet(packet.recipient, packet.request, packet.answered, told))

        member.replica.submit(_Carried(packet.request, done))
        member.settle()


_MOVED: tuple[type, ...] = ()


class Several:
    """The ranges of a store.

    Args:
        cuts: the first keys of all ranges but the first one.
        ahead_seconds: how far the clock of each is ahead of the others.
    """

    def __init__(self, *cuts: bytes, ahead_seconds: tuple[float, ...] = ()) -> None:
        self.network = Network(self)
        self.members: list[Leaseholder] = []
        for number, (start, end) in enumerate(zip((b"", *cuts), (*cuts, None), strict=True)):
            ahead = ahead_seconds[number] if ahead_seconds else 0.0
            member = Leaseholder(start, end, ahead_seconds=ahead, range_id=number + 1)
            self.members.append(self._served(member))

    def _served(self, member: Leaseholder) -> Leaseholder:
        member.notice = _Notice()
        member.service = TransactionService(
            member.replica, self.network, member.monotonic, member.notice
        )
        member.service.begin_lease(member.engine)
        return member

    def owner(self, key: bytes) -> Leaseholder:
        """Return the range of a key."""
        return next(each for each in self.members if each.replica.bounds.contains(key))

    # --- acts of a script

    def commit(self, *writes: Any, **fields: Any) -> Asked:
        """Send a commit to the range of its first key; return it."""
        said: dict[str, Any] = {"read_timestamp": 0, "reads": [], "spans": [], "id_": None} | fields
        anchor = said.pop("anchor", None) or writes[0].anchor()
        began = said.pop("began", 0) or self.owner(anchor).clock.reading()
        id_ = said.pop("id_") or transaction_id()
        request: CommitTransaction[Any] = CommitTransaction(
            id_, began=began, seconds_max=60.0, anchor=anchor, writes=list(writes), **said
        )
        return self.send(request)

    def send(self, request: CommitTransaction[Any]) -> Asked:
        """Send a commit, or send it once more."""
        asked = Asked(request)
        member = self.owner(request.anchor)
        member.replica.submit(asked)
        member.settle()
        return asked

    def step(self) -> None:
        """Let all services take a step."""
        for member in self.members:
            member.service.step()
            member.settle()

    def settle(self, *, rounds: int = 50) -> None:
        """Deliver everything until nothing is on its way; no time passes."""
        network = self.network
        for _ in range(rounds):
            self.step()
            self.step()
            if not network.packets and not network.answers:
                return
            self.deliver_requests()
            self.deliver_answers()

    def deliver_requests(self, kind: type | None = None) -> None:
        """Deliver the requests that are on their way, all of them or those of one kind."""
        network = self.network
        packets, network.packets = network.packets, []
        for packet in packets:
            if kind is None or type(packet.request) is kind:
                network.deliver(packet)
            else:
                network.packets.append(packet)

    def deliver_answers(self) -> None:
        network = self.network
        answers, network.answers = network.answers, []
        for packet in answers:
            packet.answered(packet.answer)

    def pass_time(self, seconds: float) -> None:
        """Let time pass for all, and what is due happen."""
        for member in self.members:
            member.pass_time(seconds)
        self.settle()

    def take_over(self, number: int, *, ahead_seconds: float = 0.0) -> Leaseholder:
        """Let another node take over a range, whose clock may go another way."""
        before = self.members[number - 1]
        member = before.taken_over(ahead_seconds=ahead_seconds)
        assert isinstance(member, Leaseholder)
        self.members[number - 1] = self._served(member)
        for each in self.members:
            if each is not member:
                each.pass_time(2 * member.lease_seconds)
        return member

    # --- looking

    def value(self, key: bytes) -> bytes | None:
        """Return the newest value of a key, which is known once everything has settled."""
        asked = self.owner(key).ask(Get(key))
        if not asked.answers:
            self.settle()
        found: bytes | None = answer_of(asked).value
        return found

    def records(self) -> int:
        """Return the number of prepared records in all ranges."""
        return sum(member.records() for member in self.members)

    def entries(self) -> list[int]:
        """Return the number of log entries of each range."""
        return [member.group._index for member in self.members]

    @staticmethod
    def engine_of(member: Participant) -> MemoryEngine:
        return member.engine

"""One replica with all evaluators, on a group that does what a script says.

::

    call ─▶ replica ─ evaluate ─▶ proposal ─▶ ScriptedGroup: applied at once, or held until told
      ◀───────────── answer ◀──── ended ◀────────┘           applied, refused, or nobody knows

No node, no threads, and of the services only the one that writes down attempts: the script delivers
and executes. The clock is moved by hand. Held proposals are as good as under way to the other
replicas.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Generator
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from postroom.kv import keys
from postroom.kv.clock import HybridLogicalClock
from postroom.kv.engine import Budget, WriteSet
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.messaging.queues.claiming import QueueEnvironment
from postroom.messaging.queues.definition_requests import QueueDefinition
from postroom.messaging.queues.definitions import NUMBER_RECORD, VERSION_KEY, Definitions
from postroom.messaging.queues.news import DefinitionNews
from postroom.messaging.setup import Messaging
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.calls import Call, LeasedWrites, Proposal
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.replica import Replica
from postroom.server.assembly import NodeOptions

RANGE_ID: Final = 1
EPOCH_MILLISECONDS: Final = 1_700_000_000_000
LEASE_SECONDS: Final = 3600.0


class Asked(Call):
    """A call, and what came of it."""

    def __init__(self, request: Any, *, urgent: bool = True) -> None:
        super().__init__(request, urgent=urgent)
        self.answers: list[tuple[Any, BaseException | None]] = []

    def complete(self, result: Any, error: BaseException | None) -> None:
        self.answers.append((result, error))


class ScriptedGroup:
    """A group of three of which only this member is there; what becomes of a proposal is said."""

    is_leader = has_applied_own_term = True
    entries_received_at = float("-inf")
    learners: tuple[int, ...] = ()
    is_about_to_lead = False
    members = (1, 2, 3)
    leader = 1

    def __init__(self, replica: Replica, engine: MemoryEngine) -> None:
        self.holds = False
        self.proposed: list[tuple[Proposal, Any]] = []
        self._forgotten: list[LeasedWrites] = []
        self._replica = replica
        self._engine = engine
        self._index = 0

    def propose(self, command: object, proposal: Proposal, ended: Any) -> None:
        self.proposed.append((proposal, ended))

    def end(self, outcome: ProposalOutcome) -> None:
        """End the first proposal with an outcome."""
        proposal, ended = self.proposed.pop(0)
        if outcome is ProposalOutcome.APPLIED:
            self._apply(b"", proposal)
        elif outcome is ProposalOutcome.UNKNOWN:
            self._forgotten.append(proposal.command)
        ended(outcome)

    def find(self) -> None:
        """Apply the command that nobody knew to be in the log."""
        self._apply(msgspec.msgpack.encode(self._forgotten.pop()), None)

    def _apply(self, command: bytes, proposal: Proposal | None) -> None:
        staged: WriteSet = {}
        self._index += 1
        self._replica.state.apply([(self._index, 1, command, proposal)], staged)
        self._engine.write(staged, sync=True)


class _WakeUp:
    def set(self, *, urgent: bool = False) -> None:
        """Do nothing: the script delivers."""

    async def wait(self, timeout_seconds: float) -> None:
        raise NotImplementedError


class _Step:
    """A wait until the service is stepped again."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Notice(_WakeUp):
    """A wake-up for which a service waits until it is stepped again."""

    async def wait(self, timeout_seconds: float = math.inf) -> None:
        await _Step()


class OneRange:
    """The replica, its clocks and its group. Also its host.

    Args:
        is_general_only: whether all proposals are made in the general way.
        engine: its engine, which may have records already.
        range_id: the id of the range.
        beside: the range whose clock this one shares.
    """

    node_id = 1
    lease_seconds = LEASE_SECONDS
    values_bytes = Budget().values_bytes

    def __init__(
        self,
        *,
        is_general_only: bool | None = None,
        engine: MemoryEngine | None = None,
        range_id: int = RANGE_ID,
        beside: OneRange | None = None,
    ) -> None:
        if is_general_only is None:
            is_general_only = NodeOptions().is_general_only
        self._service: Coroutine[None, None, None] | None = None
        self._beside = beside
        self.seconds = 0.0
        self.engine = engine or MemoryEngine(MemoryDisk())
        if beside is None:
            clock = HybridLogicalClock(self._wall_milliseconds, self.monotonic, 0, lambda _: True)
        else:
            clock = beside.clock
        self.clock = clock
        self.replica = replica = Replica(range_id, self.node_id, self.engine, clock, self, Notice())
        self.news = DefinitionNews(self.engine)
        environment = QueueEnvironment(
            bounds=replica.bounds,
            monotonic=self.monotonic, reading=clock.reading, by_wall=clock.by_wall,
            seconds_until=clock.seconds_until, chance=lambda: 0.5,
            check_age=replica.check_age, wake_tokens=replica.wake,
            holders=replica.holders, reader=replica.protections.reader,
            may_purge=replica.positions.limit, kept=lambda: 0, wake_up=_WakeUp(),
            news=self.news,
            forgets_strangers=False, rouse=lambda: None,
        )  # fmt: skip
        self.messaging = messaging = Messaging(
            replica, _WakeUp(), _WakeUp(), Notice(), environment,
            is_general_only=is_general_only,
        )  # fmt: skip
        self._attempts = messaging.attempts
        self.group = ScriptedGroup(self.replica, self.engine)
        self.replica.group = self.group  # type: ignore[assignment]
        self.lead()

    def _wall_milliseconds(self) -> int:
        return EPOCH_MILLISECONDS + round(self.seconds * 1000)

    # --- acts of a script

    def lead(self) -> None:
        """Let another node lead for a moment, so that memory begins afresh."""
        self.replica.on_leadership(False, 1)
        self.replica.on_leadership(True, 2)
        self.settle()

    def is_embedded(self, embedded: bool) -> None:
        """Let its clients end with its process, from now on, or not."""
        self._attempts.is_embedded = embedded

    def ask(self, request: Any, *, urgent: bool = True) -> Asked:
        asked = Asked(request, urgent=urgent)
        self.replica.submit(asked)
        self.settle()
        return asked

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.settle()

    def end(self, outcome: ProposalOutcome) -> None:
        """End the first proposal, and take turns."""
        self.group.end(outcome)
        self.settle()

    def close(self) -> None:
        """End the service of the range."""
        if self._service is not None:
            self._service.close()

    def settle(self) -> None:
        """Take turns until there is nothing to do; the script tells when held work goes on."""
        self.replica.release_expired()
        while True:
            self.replica.turn()
            assert not self.replica.reads.only_commits or self.replica.has_only_commits()
            if self.group.proposed and not self.group.holds:
                self.group.end(ProposalOutcome.APPLIED)
            elif not self.replica.wants_turn():
                if self._service is not None:
                    self._service.send(None)
                if not self.replica.wants_turn():
                    return

    def hear(self, name: str, definition: QueueDefinition | None) -> None:
        """Let its node hear how a queue is defined now; ``None``: it was dropped."""
        version = Definitions(ROOT_ID).version(self.engine) + 1
        records: WriteSet = {
            keys.queue_definitions_prefix(ROOT_ID) + name.encode(): None,
            VERSION_KEY: msgspec.msgpack.encode((version, [name])),
        }
        if definition is not None:
            records = {
                key: msgspec.msgpack.encode(definition) if value is None else value
                for key, value in records.items()
            }
            records[keys.record_key(ROOT_ID, NUMBER_RECORD)] = keys.u32(definition.number)
        self.engine.write(records, sync=True)
        self.news.observe(records[VERSION_KEY])
        if self.news.has_news:
            self.news.written()

    async def upkeep(self, request: Any) -> Any:
        """Send a request of a service."""
        asked = Asked(request, urgent=False)
        self.replica.submit(asked)
        while not asked.answers:
            await _Step()
        answer, error = asked.answers[0]
        if error is not None:
            raise error
        return answer

    # --- a host

    def monotonic(self) -> float:
        return self.seconds if self._beside is None else self._beside.monotonic()

    def may_rest(self) -> bool:
        return False

    def on_serving(self, serves: bool) -> None:
        """Run the service on the leaseholder."""
        if self._service is not None:
            self._service.close()
        self._service = self._attempts.run(self.upkeep) if serves else None

    def wake(self, *, urgent: bool) -> None:
        """Do nothing: the script settles anyway."""

    def hear_clocks(self) -> bool:
        return False

    def on_late_leases(self) -> None:
        """Do nothing: there is no other node."""

    def on_damage(self, error: BaseException) -> bool:
        raise error


def node_of(replica: Replica, **more: Any) -> Any:
    """Return what rules for nodes ask of a node with one replica."""
    hosted = {ROOT_ID: SimpleNamespace(replica=replica)}
    return SimpleNamespace(replicas=SimpleNamespace(hosted=hosted), **more)

"""A simulated machine of a cluster: a disk, clocks, a network card, and at times a node.

A turn of the node is taken in parts, each at its own moment, and anything may happen between them::

    idle ── prepare ──▶ prepared ── write ──▶ written ── finish ──▶ idle
              │ what may leave early has left: the power may fail before it is written

Its reads and writes take time (:mod:`.metered`): while it evaluates something large, nothing else
happens on it. A machine may also be slow (its turns take longer), asleep, or down. Nothing happens
on one that sleeps until it wakes up, then everything that has come meanwhile does, in its order.
The power may fail at any write, wherever in the code that is: then the node is forgotten as it
stands, and every stream to it breaks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Protocol

from postroom.errors import Unavailable
from postroom.kv.memory import MemoryDisk
from postroom.raft.interface import Transport
from postroom.server.assembly import NodeOptions
from postroom.server.node import UPKEEP_SECONDS, Node
from tests.sim.agenda import Agenda
from tests.sim.clock import MachineClock
from tests.sim.cluster.metered import MeteredEngine
from tests.sim.cluster.network import End, Network
from tests.sim.disks import SEGMENT_BYTES, open_storage
from tests.sim.turn import Part, PowerFailure, Turn

PART_SECONDS = 0.00005
SYNC_SECONDS = 0.0002
BUSY_SECONDS_MIN = 0.0005
"""The shortest time that counts: a shorter one is part of the turn."""


class Overseer(Protocol):
    """The observer of machines from outside the world: see :mod:`.overseer`."""

    def opened(self, machine: Machine) -> None:
        """Note that a node has been put together, and has not begun yet."""

    def acted(self, machine: Machine) -> None:
        """Look at a machine whose node has done something."""

    def written(self, machine: Machine) -> None:
        """Note that the staged writes of its node are written."""

    def sends(self, machine: Machine, to: int, frame: bytes) -> None:
        """Look at a frame that its node sends to another one."""

    def crashed(self, machine: Machine) -> None:
        """Look at a machine whose node has ended; the disk holds what is left."""


class Session(Protocol):
    """The work of a node for one stream of a client."""

    def receive(self, data: bytes) -> None:
        """Receive something from the client."""

    def close(self) -> None:
        """Note that the stream is over."""

    def check(self) -> None:
        """Return whether what has come, and is not read yet, will be."""


class Machine:
    """A simulated machine of a cluster.

    Attributes:
        name: its place in the network.
        node: the node that runs; ``None`` while the machine is down.
        lives: how often a node was started here.
        turns: how many of its turns were begun.
        slowness: how much longer turns take.
        disk_slowness: how much longer writes take.
        in_parts: whether anything may happen between the parts of a turn.
        asleep_until: nothing happens here before that moment.
        held_up: streams of clients from which the node does not read what has come.
        is_homeless: its disk is empty, and it is not a node of the cluster.
        power_has_failed: whether its disk may have lost something that was not synced.
        segment_bytes: of the log.
        transport: what carries frames to other nodes.
        on_crash: called when the process has ended by a fault.
        on_open: called when a node has been started.
        on_end: called when no node runs any more.
    """

    def __init__(
        self,
        name: str,
        agenda: Agenda,
        network: Network,
        clock: MachineClock,
        randomness: Random,
        options: NodeOptions,
    ) -> None:
        self.name = name
        self.disk = MemoryDisk()
        self.clock = clock
        self.random = randomness
        self.options = options
        self.node: Node | None = None
        self.lives = self.turns = 0
        self.slowness = self.disk_slowness = 1.0
        self.in_parts = True
        self.asleep_until = 0.0
        self.held_up: dict[Session, None] = {}
        self.is_homeless = self.power_has_failed = False
        self.segment_bytes = SEGMENT_BYTES
        self.peers: Callable[[int], Machine | None] = lambda _: None
        self.begin_session: Callable[[Machine, End], Session]
        self.overseer: Overseer
        self.transport: Transport = _Transport(self, network)
        self.on_crash: Callable[[Machine], object] = lambda _: None
        self.on_open: Callable[[], object] = lambda: None
        self.on_end: Callable[[], object] = lambda: None
        self._agenda = agenda
        self._sessions: dict[End, Session] = {}
        self._arrived: list[tuple[int, bytes]] = []
        self._deferred: deque[Callable[[], object]] = deque()
        self._turn = Turn()
        self._planned: float | None = None

    @property
    def node_id(self) -> int:
        """Return the number of the node that lives here."""
        return self.options.node_id

    @property
    def is_in_turn(self) -> bool:
        """Return whether a turn has begun, and has not ended."""
        return self._turn.is_under_way

    # --- being up and down

    def open(self) -> bool:
        """Start a node on what the disk holds; false if the power, or the disk, fails meanwhile."""
        assert self.node is None
        if self.is_homeless:
            return False
        self._turn, self._planned, self._arrived = Turn(), None, []
        with self._powered():
            try:
                storage = open_storage(
                    self.disk, self.random, self.segment_bytes, engine=MeteredEngine
                )
            except Unavailable:
                return False
            try:
                node = Node(storage, self.clock, self.random, self.transport, self.options)
            except Unavailable:
                storage.close()
                return False
            node.on_wake = self._on_wake
            self.node = node
            self.lives += 1
            self.overseer.opened(self)
            try:
                node.start()
            except Unavailable:
                self.node = None
                self.overseer.crashed(self)
            else:
                self.overseer.written(self)
                self._after_act()
                self.on_open()
        return self.node is not None

    def close(self) -> None:
        """Stop the node in good order, as the drivers do."""
        node = self.node
        assert node is not None
        with self._powered():
            while self._turn.is_under_way:
                self._take_part(node)
            while node.wants_turn():
                node.turn()
                if node.failed is None:
                    self.overseer.written(self)
            self.node = None
            node.close()
        self._end_sessions()
        self.overseer.crashed(self)

    def crash(self, *, power: bool) -> None:
        """End the process; with ``power`` the disk forgets some of what was not synced."""
        node, self.node = self.node, None
        self.power_has_failed = self.power_has_failed or power
        self.disk.crash(self.random if power else None)
        if node is not None:
            for hosted in node.replicas.hosted.values():
                hosted.services.stop()
            node.tasks.stop()
        self._end_sessions()
        self.overseer.crashed(self)
        self.on_crash(self)

    def reopen(self) -> bool:
        """Close the node if there still is one, then open what the disk holds."""
        if self.node is not None:
            self.close()
        return self.open()

    def serves(self) -> bool:
        """Return whether a node is up that has not failed."""
        return self.node is not None and self.node.failed is None

    def repair_disk(self) -> None:
        """Give the disk room, and let it do what it is told from now on."""
        self.disk.at_write = None
        self.disk.capacity_bytes = None
        self.disk.write_faults.clear()

    @contextmanager
    def _powered(self) -> Iterator[None]:
        try:
            yield
        except PowerFailure as failure:
            self.crash(power=failure.power)

    # --- input

    def when_awake(self, act: Callable[[], object]) -> None:
        """Do something now, or as soon as the machine is awake again, in the order given."""
        if self._agenda.now < self.asleep_until or self._deferred:
            self._deferred.append(act)
            if len(self._deferred) == 1:
                self._agenda.at(self.asleep_until, self._catch_up)
        else:
            act()

    def wake_up(self) -> None:
        """Wake the machine up."""
        self.asleep_until = self._agenda.now
        self._catch_up()

    def _catch_up(self) -> None:
        """Do what was put off, until the machine is asleep again."""
        while self._deferred and self._agenda.now >= self.asleep_until:
            self._deferred.popleft()()
        if self._deferred:
            self._agenda.at(self.asleep_until, self._catch_up)

    def arrive(self, sender: int, to: int, frame: bytes) -> None:
        """Take a frame of another node."""
        self.when_awake(lambda: self._take_frame(sender, to, frame))

    def _take_frame(self, sender: int, to: int, frame: bytes) -> None:
        if self.node is not None and to == self.node_id:
            self._arrived.append((sender, frame))
            if not self.node.consensus.may_wait(sender, frame):
                self._plan(self._agenda.now)

    def taken_frames(self) -> list[tuple[int, bytes]]:
        """Return what has come since the last call, for the transport."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def accept(self, end: End) -> None:
        """Take a stream that a client has opened."""
        end.on_bytes = lambda data: self.when_awake(lambda: self._receive(end, data))
        end.on_broken = lambda: self.when_awake(lambda: self._end_session(end))
        self.when_awake(lambda: self._accept(end))

    def _accept(self, end: End) -> None:
        if self.node is None:
            end.close()
        elif end.is_open:
            self._sessions[end] = self.begin_session(self, end)

    def _receive(self, end: End, data: bytes) -> None:
        session = self._sessions.get(end)
        if session is not None:
            self.act(lambda: session.receive(data))

    def _end_session(self, end: End) -> None:
        session = self._sessions.pop(end, None)
        if session is not None and self.node is not None:
            self.act(session.close)

    def _end_sessions(self) -> None:
        for end in list(self._sessions):
            end.close()
        self._sessions = {}
        self.held_up = {}
        self.on_end()

    def act(self, act: Callable[[], object]) -> None:
        """Do something in the node's process."""
        if self.node is not None:
            try:  # here and in turns not by _powered: this is passed a million times
                act()
                self._after_act()
            except PowerFailure as failure:
                self.crash(power=failure.power)

    # --- turns

    def _after_act(self) -> None:
        self._take_time()
        due = self._due()
        if due is not None:
            self._plan(due)

    def _take_time(self) -> None:
        """Let the overseer look, and much work take a while: until then nothing happens here.

        Reads of the overseer take no time.
        """
        state = None if self.node is None else self.node.engine.state
        if not isinstance(state, MeteredEngine):
            self.overseer.acted(self)
            return
        seconds = state.spent() * self.slowness
        self.overseer.acted(self)
        state.spent()
        if seconds > BUSY_SECONDS_MIN:
            self.asleep_until = max(self.asleep_until, self._agenda.now + seconds)

    def _due(self) -> float | None:
        node = self.node
        if node is None or node.failed is not None or self._turn.is_under_way:
            return None
        if node.wants_turn():
            return self._agenda.now
        deadline = node.next_deadline()
        return None if deadline is None else self.clock.moment(deadline)

    def _on_wake(self, urgent: bool) -> None:
        hurry = urgent or (self.node is not None and self.node.hurries())
        self._plan(self._agenda.now + (0.0 if hurry else UPKEEP_SECONDS))

    def _plan(self, moment: float) -> None:
        """Plan a turn for ``moment``, unless one is under way or begins before."""
        moment = max(moment, self._agenda.now) + PART_SECONDS * self.slowness
        if self._planned is None or moment < self._planned:
            self._planned = moment
            life = self.lives
            self._agenda.at(moment, lambda: self.when_awake(lambda: self._begin(life, moment)))

    def _begin(self, life: int, planned: float) -> None:
        if life == self.lives and planned == self._planned:
            self._planned = None
            if not self._turn.is_under_way:  # else its end will see what there is to do
                self.take_part()

    def take_part(self) -> None:
        """Do the next part of a turn, and plan the one after that."""
        node = self.node
        if node is None:
            return
        try:
            self._take_part(node)
            while not self.in_parts and self._turn.is_under_way:
                self._take_part(node)
        except PowerFailure as failure:
            self.crash(power=failure.power)
        if self.node is None:
            return
        if not self._turn.is_under_way:
            self._after_act()
            if self._arrived:
                self._plan(self._agenda.now)
        else:
            self._take_time()
            stands = self.lives, self.turns, self._turn.part
            seconds = self._part_seconds(node)
            self._agenda.after(seconds, lambda: self.when_awake(lambda: self._go_on(*stands)))

    def _go_on(self, *stood: object) -> None:
        """Take the next part, unless somebody else has done so."""
        if stood == (self.lives, self.turns, self._turn.part):
            self.take_part()

    def end_turn(self) -> None:
        """Do what is left of the turn that is under way."""
        while self.node is not None and self._turn.is_under_way:
            self.take_part()

    def _part_seconds(self, node: Node) -> float:
        turn = self._turn
        if turn.part is Part.PREPARED and turn.staged and node.consensus.needs_sync:
            return SYNC_SECONDS * self.disk_slowness * (0.5 + self.random.random())
        return PART_SECONDS * self.slowness * self.random.random()

    def _take_part(self, node: Node) -> None:
        if not self._turn.is_under_way:
            self.turns += 1
        part = self._turn.take_part(node)
        if part is Part.WRITTEN and self._turn.error is None and node.failed is None:
            self.overseer.written(self)


class _Transport:
    """A :class:`postroom.raft.interface.Transport` over the simulated network."""

    def __init__(self, machine: Machine, network: Network) -> None:
        self._machine = machine
        self._network = network

    def send(self, to: int, frame: bytes) -> None:
        """Hand ``frame`` to the network."""
        machine, sender = self._machine, self._machine.node_id
        machine.overseer.sends(machine, to, frame)
        peer = machine.peers(to)
        if peer is not None:
            self._network.carry(machine.name, peer.name, lambda: peer.arrive(sender, to, frame))

    def receive(self) -> Iterable[tuple[int, bytes]]:
        """Return the frames that have arrived by now."""
        return self._machine.taken_frames()

    def connected(self, node: int) -> bool:
        """Return a hint whether that node is up, and its link works."""
        peer = self._machine.peers(node)
        return (
            peer is not None
            and peer.node is not None
            and not self._network.is_cut(self._machine.name, peer.name)
        )

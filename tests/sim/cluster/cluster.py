"""A world with a cluster in it: machines, a network, and clients, repeatable from one seed.

::

    client ── router ══ stream ══▶ session ── node ── turn ──▶ disk     machine 1
       ▲        ║                              │ frames
    resumed     ╠══════ stream ══▶ session ── node ── turn ──▶ disk     machine 2
     by what    ║                              │
    it awaits   ╚══════ stream ══▶ session ── node ── turn ──▶ disk     machine 3

Everything but the machines' hardware, the network and the order of events is the product's own
code. Every event goes into a digest: two runs that are alike have the same one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random  # noqa: TID251 - made from the seed
from typing import TypeVar

import msgspec

from postroom.client.database import CoreDatabase
from postroom.errors import CommitUnknown, Unavailable
from postroom.kv.engine import WriteSet
from postroom.ranges.nodes import NodeDescriptor, Nodes
from postroom.server.assembly import NodeOptions
from postroom.server.cluster.formation import become_writes, first_members, found_writes
from postroom.server.cluster.sessions import Sessions
from tests.sim.clock import MachineClock
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.network import End, Network
from tests.sim.cluster.overseer import Overseer
from tests.sim.cluster.process import Process, SessionShell
from tests.sim.disks import open_storage
from tests.sim.tasks import Tasks

T = TypeVar("T")


def address_of(name: str) -> str:
    """Return the address of a machine."""
    return f"{name.replace(' ', '-')}:7400"


def founders(addresses: list[str]) -> Nodes:
    """Return the record of the nodes as a new cluster has it."""
    descriptors = [
        NodeDescriptor(node_id, address, b"store %10d" % node_id)
        for node_id, address in enumerate(addresses, 1)
    ]
    return Nodes(b"cluster".ljust(16), len(addresses) + 1, tuple(descriptors))


def settle(machine: Machine, writes: WriteSet, node_id: int) -> None:
    """Make the fresh disk of a machine that of a node."""
    engine = open_storage(machine.disk, machine.random, machine.segment_bytes)
    engine.write(writes, sync=True)
    members = first_members(engine)
    engine.close()
    machine.options = msgspec.structs.replace(machine.options, node_id=node_id, members=members)


class Cluster(Tasks):
    """A simulated cluster: machines, a network, and an agenda."""

    def __init__(
        self, seed: int, options: list[NodeOptions], clocks: list[tuple[float, float, float]]
    ) -> None:
        super().__init__(Random(f"cluster {seed}"))
        self.seed = seed
        self.network = Network(self.agenda, Random(f"network {seed}"))
        self.overseer = Overseer(self.note)
        self._processes: list[Process] = []
        self._sessions: dict[tuple[str, int], Sessions] = {}
        names = [f"machine {number}" for number in range(1, len(options) + 1)]
        self.addresses = [address_of(name) for name in names]
        self._founders = founders(self.addresses)
        self.machines: list[Machine] = []
        self._machines_made = 0
        for each, clock in zip(options, clocks, strict=True):
            machine = self.add_machine(each, MachineClock(self.agenda, *clock))
            self._found(machine, self._machines_made)
        self.overseer.machines = self.machines

    def _found(self, machine: Machine, number: int) -> None:
        """Make a fresh disk that of one of the first nodes."""
        first = self._founders
        settle(machine, become_writes(number, first) if number > 1 else found_writes(first), number)

    def add_machine(self, options: NodeOptions, clock: MachineClock) -> Machine:
        """Add one more machine, with an empty disk, at an address of its own."""
        self._machines_made += 1
        name = f"machine {self._machines_made}"
        randomness = Random(f"{name} {self.seed}")
        machine = Machine(name, self.agenda, self.network, clock, randomness, options)
        machine.peers = self.machine_of
        machine.overseer = self.overseer
        machine.begin_session = self._begin_session
        self.machines.append(machine)
        if address_of(name) not in self.addresses:
            self.addresses.append(address_of(name))
        return machine

    def _begin_session(self, machine: Machine, end: End) -> SessionShell:
        """Begin a session of a node, which lives as long as the node."""
        life = machine.name, machine.lives
        if life not in self._sessions:
            assert machine.node is not None
            self._sessions[life] = sessions = Sessions(machine.node)
            machine.node.on_nodes = sessions.tell_nodes
        return SessionShell(self._sessions[life], machine, end, self.agenda)

    # --- machines

    def machine_of(self, node_id: int) -> Machine | None:
        """Return the machine of a node."""
        return next((each for each in self.machines if each.node_id == node_id), None)

    def at_address(self, address: str) -> Machine | None:
        """Return the machine that has an address."""
        return next((each for each in self.machines if address_of(each.name) == address), None)

    def leader(self) -> Machine | None:
        """Return the machine that leads in the highest term, as far as it knows."""
        leading = [
            machine
            for machine in self.machines
            if machine.node is not None and machine.node.root.replica.group.is_leader
        ]
        return max(leading, key=lambda each: each.node.root.replica.group.term, default=None)  # type: ignore[union-attr]

    # --- clients

    def database(self, process: str) -> CoreDatabase:
        """Return the database that the clients of one process share."""
        sender = Process(self, process, Random(f"{process} {self.seed}"))
        self._processes.append(sender)
        return self._database_of(sender, lambda: 0)

    def forget_dead(self) -> None:
        """Let no more be held for clients that have died: their sessions see to that."""

    @property
    def places(self) -> list[str]:
        """Return the names of the processes in which clients live."""
        return [process.name for process in self._processes if not process.is_dead]

    def readings(self) -> list[int]:
        """Return what clients take for the time."""
        return [process.reading() for process in self._processes if not process.is_dead]

    def run(self, awaitable: Awaitable[T], what: str = "it is done", seconds: float = 60.0) -> T:
        """Return the result of ``awaitable``."""

        task = self.spawn_awaiting(what, awaitable)
        self.run_until(lambda: task.done, what, seconds)
        result: T = task.result
        return result

    def run_until(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Let things happen until ``condition`` holds."""
        self.agenda.run_until(condition, what, seconds)

    def retry(self, call: Callable[[], Awaitable[T]], database: CoreDatabase, what: str) -> T:
        """Return the result of ``call``, once the store is there to answer it."""

        async def call_until_it_answers() -> T:
            while True:
                try:
                    return await call()
                except (Unavailable, CommitUnknown):
                    await database._sender.sleep(0.05)

        return self.run(call_until_it_answers(), what)

    # --- the digest

    def digest(self) -> str:
        """Return a name for everything that has happened, and for what the disks hold."""
        contents = (each.disk.content.iterate(b"", b"\xff") for each in self.machines)
        return self._digest.name(*contents)

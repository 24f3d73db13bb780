"""A node as a process: its folder, its joining of the cluster, its server, and its end.

::

    bind ─▶ open folder ─▶ listen ─▶ join (.joining) ─▶ node ─▶ ready ······ SIGTERM
                                                                               │
               close ◀─ finish what is under way ◀─ give lease and lead away ◀─┘

A node that cannot have its address makes no folder.

Everything runs on one event loop: the server (:mod:`.native_server`), the node's turns, the streams
to the others, and the services beside it.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251 - passed in, as an instance
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from postroom.errors import AccessDenied, Error, Invalid, Retryable, Unavailable
from postroom.kv.clock import TimeSource
from postroom.kv.engine import Engine
from postroom.kv.engine_folder import EngineName
from postroom.limits import DISK_RESERVE_BYTES, MEMORY_BYTES
from postroom.log_once import LogOnce, shown
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.nodes import AdmitNode, Nodes, secret_key
from postroom.ranges.settings import FOUNDING, founding_settings
from postroom.server.assembly import NodeOptions
from postroom.server.asyncio_driver import AsyncioDriver
from postroom.server.cluster import formation
from postroom.server.cluster.admission import Connections, raise_descriptor_limit
from postroom.server.cluster.dialing import PROTOCOL_VERSION, Dialer, Introduction
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.joining import Joining, KeyBinding, store_at
from postroom.server.cluster.leaderless import Leaderless
from postroom.server.cluster.native_server import NativeServer
from postroom.server.cluster.nodes_service import JoinRequest, NodesService, StreamCaller, Verdict
from postroom.server.cluster.peers import Peers
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions
from postroom.server.membership import has_joined
from postroom.server.node import Node
from postroom.server.opening import open_storage
from postroom.server.services import Pending

LEASE_SECONDS: Final = 1.0
"""The time for which the others wait for a leaseholder that has died."""

LOOK_SECONDS: Final = 0.2
STOP_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of a node's start.

    Attributes:
        folder: the folder of its data.
        listen: the address to listen at, ``host:port``.
        address: the address at which the others and clients reach it.
        first_addresses: the first nodes', the same list on each of them.
        security: decides which callers may talk to it.
        lease_seconds: how long the others wait for it if it dies while it leads.
        disk_reserve_bytes: writes are refused when less is free.
        engine: the engine of its folder; ``None``: the one that wrote it, or the first installed.
        log_segment_bytes: the length of new segments of the log; ``None``: the default.
        memory_bytes: the budget for the parts of the store that are kept in memory.
        first_words: see ``NodeOptions``.
        slow_seconds: see ``NodeOptions``.
    """

    folder: Path
    listen: str
    address: str
    first_addresses: tuple[str, ...]
    security: Security
    lease_seconds: float = LEASE_SECONDS
    disk_reserve_bytes: int = DISK_RESERVE_BYTES
    engine: EngineName | None = None
    log_segment_bytes: int | None = None
    memory_bytes: int = MEMORY_BYTES
    first_words: Mapping[str, float] = field(default_factory=dict)
    slow_seconds: float | None = None


class CompanionService(Protocol):
    """A service beside a node, on its event loop, such as a gateway for other programs."""

    async def start(self) -> None:
        """Begin to serve. The node listens, but may not have joined its cluster yet.

        Raises:
            Error: it cannot start; the node ends.
        """

    async def stop(self) -> None:
        """End in a few seconds at most. Called in any case, also if ``start`` has failed.

        A node that has joined its cluster still serves meanwhile.
        """


class ServedNode:
    """A node as a process; see the module.

    Args:
        settings: the settings of its start.
        clock: the machine's.
        randomness: for ids, time-outs and pauses.

    Attributes:
        is_serving: whether it knows who leads, and does not stop: clients can be served.
        companions: the services beside it, which it starts and stops; add them before ``run``.
    """

    def __init__(
        self, settings: NodeSettings, clock: TimeSource, randomness: random.Random
    ) -> None:
        self._settings = settings
        self._security = settings.security
        self._clock = clock
        self._random = randomness
        raise_descriptor_limit()  # before the engine counts how many files it may have open
        self._nodes_service = NodesService(self._security, self._hello)
        self._server = NativeServer(settings.listen, self._security, self._nodes_service)
        self._engine = self._bind_and_open()
        self._joining = Joining(
            self._engine,
            settings.address,
            settings.first_addresses,
            self._security,
            randomness,
            founding_settings(settings.first_words),
        )
        self._dialer = Dialer(self._security)
        self._said = LogOnce()
        self._driver: AsyncioDriver | None = None
        self._peers: Peers | None = None
        self._sessions: Sessions | None = None
        self._background: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self._failure: Error | None = None
        self._has_served = False
        self.is_serving = False
        self.companions: list[CompanionService] = []
        self._started: list[CompanionService] = []

    def _bind_and_open(self) -> Engine:
        """Take the address, and only then open the folder, or make it."""
        settings = self._settings
        self._server.bind()
        try:
            return open_storage(
                settings.folder,
                self._random,
                engine_name=settings.engine,
                segment_bytes=settings.log_segment_bytes,
                memory_bytes=settings.memory_bytes,
            )
        except BaseException:
            self._server.stop()
            raise

    @property
    def driver(self) -> AsyncioDriver | None:
        """Return the driver of the node; ``None``: it has not joined yet."""
        return self._driver

    @property
    def security(self) -> Security:
        """Return the proofs that it asks of callers, with the dates of its certificates."""
        return self._security

    @property
    def sessions(self) -> Sessions | None:
        """Return the streams of clients; ``None``: it has not joined yet."""
        return self._sessions

    @property
    def connections(self) -> Connections:
        """Return the connections that have come in."""
        return self._server.connections

    @property
    def node(self) -> Node:
        """Return the node, once it has joined."""
        assert self._driver is not None
        return self._driver.node

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until :meth:`stop` is called.

        Args:
            on_ready: called once the node knows the leader, and counts in its group: clients can be
                served.

        Raises:
            Error: it cannot start, or cannot go on.
        """
        try:
            await self._joining.open()
            self._server.open()
            await self._start_companions()
            if not await self._unless_over(self._joining.find()):
                return
            self._start_node()
            self._spawn(self._watch(on_ready))
            await self._over.wait()
            await self._drain()
        finally:
            await self._close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Hand over, finish, and end ``run``."""
        self._over.set()

    async def _unless_over(self, coroutine: Any) -> bool:
        """Run ``coroutine`` to its end; return false if the node is stopped before."""
        task = asyncio.create_task(coroutine)
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait((task, over), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            return False
        task.result()
        return True

    def _hello(self) -> SelfDescription:
        return self._joining.hello(None if self._driver is None else self.node.nodes)

    def _known_nodes(self) -> Nodes | None:
        return self._joining.hello(self.node.nodes).nodes

    # --- the node

    def _start_node(self) -> None:
        joining, settings = self._joining, self._settings
        record, known = joining.record, joining.known_nodes()
        assert record is not None
        introduction = Introduction(
            PROTOCOL_VERSION, record.cluster_id, record.node_id, joining.store_id, settings.address
        )
        self._peers = peers = Peers(introduction, self._dialer, self._random, self._clock.monotonic)
        options = NodeOptions(
            node_id=record.node_id,
            members=formation.first_members(self._engine),
            lease_seconds=settings.lease_seconds,
            disk_reserve_bytes=settings.disk_reserve_bytes,
            memory_bytes=settings.memory_bytes,
            first_words={**settings.first_words},
            founding={**FOUNDING},
            slow_seconds=settings.slow_seconds,
        )
        node = Node(self._engine, self._clock, self._random, peers, options)
        node.load_splitting.processor_seconds = time.thread_time
        self._driver = AsyncioDriver(node, self._random, is_embedded=False)
        peers.follow(known)
        peers.on_frame = node.on_frame
        peers.has_leader = lambda: node.leader() is not None
        peers.fingerprint = self._security.fingerprint
        peers.secret = lambda: self._engine.get(secret_key(ROOT_ID)) or b""
        node.on_malformed = peers.distrust
        node.link_error = peers.connection_error
        sessions = self._sessions = Sessions(node)

        def nodes_changed() -> None:
            peers.follow(node.nodes or known)
            sessions.tell_nodes()

        node.on_nodes = nodes_changed
        self._driver.start()
        self._nodes_service.peers = peers
        self._nodes_service.admit = self._admit
        self._server.sessions = sessions
        own = None if known is None else known.by_id(node.node_id)
        if own is not None and own.address != settings.address:
            self._spawn(joining.tell_address(self._known_nodes))
        self._spawn(self._look_around())
        if not self._security.insecure:
            self._spawn(
                KeyBinding(self._driver, peers, joining, self._security, self._random).run()
            )

    async def _admit(self, application: JoinRequest, caller: StreamCaller) -> Verdict:
        assert self._driver is not None
        request = AdmitNode(
            application.store_id,
            application.address,
            application.node_id,
            caller.fingerprint,
            application.next_fingerprint,
            self._security.vouches(application.token, caller.common_name),
        )
        try:
            if self.node.leader() == self.node.node_id:
                refused = await self._not_there(application, caller)
                if refused is not None:
                    return refused
            return Verdict(admission=await self._driver.send(request, STOP_SECONDS))
        except NotLeaseholder as error:
            nodes = self.node.nodes
            leader = nodes.by_id(int(error.leader)) if nodes and error.leader else None
            return Verdict(elsewhere="" if leader is None else leader.address)
        except (AccessDenied, Invalid) as error:
            self._said.log(
                _log, (application.address, caller.fingerprint), self._clock.monotonic(),
                "%s is refused as node at %s: %s", caller.where, application.address, error,
            )  # fmt: skip
            return Verdict(refusal=str(error))
        except (Retryable, Error) as error:
            _log.info("cannot admit %s now: %s", shown(application.address), shown(error))
            return Verdict()

    async def _not_there(self, application: JoinRequest, caller: StreamCaller) -> Verdict | None:
        """Return a verdict unless the applicant is really at its address, or ``None`` if it is.

        Otherwise a wrong --advertise would take the place of the node that is really there.
        """
        found = await store_at(self._security, application.address)
        if found is None:
            self._said.log(
                _log, application.address, self._clock.monotonic(),
                "cannot admit %s: it cannot be reached from here", application.address,
            )  # fmt: skip
            return Verdict()
        if found == (application.store_id, caller.fingerprint):
            return None
        return Verdict(
            refusal=f"another node is at {application.address} than the one that asks to be let "
            "in, or it has another key there; nothing was changed: correct its --advertise"
        )

    # --- while it serves

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run ``coroutine`` in the background; when it fails, the node does."""
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._ended)
        self._background.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Error):
            self._fail(error)
        elif error is not None:
            _log.error("the node cannot go on", exc_info=error)
            self._fail(Error(f"the node cannot go on: {error}"))

    async def _watch(self, on_ready: Callable[[], None]) -> None:
        """Keep ``is_serving`` true to the facts, and notice when the node cannot go on."""
        assert self._peers is not None
        leaderless = Leaderless(self._known_nodes, self._peers.connection_error)
        while True:
            if self.node.failed is not None:
                self._fail(self.node.failed)
                return
            if self._is_removed():
                _log.warning("node %d has been removed from the cluster", self.node.node_id)
                self.stop()
                return
            leaderless.look(self.node)
            wall_seconds = self._clock.wall_milliseconds() / 1000
            self.node.certificate = self._security.expiry.look(wall_seconds)
            if self._sessions is not None:
                self._sessions.look()
                if self._security.has_changed():
                    self._sessions.look_at_access()
            can_serve = self.node.leader() is not None and self.node.nodes is not None
            self.is_serving = can_serve and not self._over.is_set()
            if self.is_serving and not self._has_served and self._has_joined():
                self._has_served = True
                on_ready()
            await asyncio.sleep(LOOK_SECONDS if self._has_served else LOOK_SECONDS / 10)

    def _has_joined(self) -> bool:
        """Return whether this node counts, in all ranges.

        Operators wait for that to replace the next one.
        """
        node = self.node
        nodes = node.nodes
        return (
            nodes is not None
            and node.replicas.have_every_key
            and all(has_joined(node.node_id, group, nodes) for group in node.groups())
        )

    async def _look_around(self) -> None:
        """Ask the others whenever no node leads, or none talks to this one: it may be removed."""
        peers = self._peers
        assert peers is not None
        while True:
            try:
                await self._joining.look_around(self._known_nodes, self._is_in_touch, peers.met)
            except Invalid as removed:
                if not self._has_served:
                    raise
                _log.warning("%s", removed)
                self.stop()
                return
            while self._is_in_touch():
                await asyncio.sleep(LOOK_SECONDS)

    def _is_in_touch(self) -> bool:
        leader = self.node.leader()
        return leader == self.node.node_id or (
            leader is not None and self._nodes_service.hears_others
        )

    def _is_removed(self) -> bool:
        """Return whether the cluster goes on without this node, for good."""
        nodes, node_id = self.node.nodes, self.node.node_id
        mine = None if nodes is None else nodes.by_id(node_id)
        if nodes is None or (mine is not None and not mine.retired):
            return False
        return not self.node.has_member(node_id)

    def _fail(self, error: Error) -> None:
        self._failure = error
        self._over.set()

    # --- the services beside it

    async def _start_companions(self) -> None:
        for service in self.companions:
            self._started.append(service)
            await service.start()

    async def _stop_companions(self) -> None:
        while self._started:
            await self._started.pop().stop()

    # --- the end

    async def _drain(self) -> None:
        """Let others take over, and tell clients to go there."""
        self.is_serving = False
        await self._stop_companions()
        if self._failure is None:
            await _awaited(self.node.hand_over())
        if self._sessions is not None:
            self._sessions.end_all(Unavailable("this node stops; nothing was changed: ask another"))
        await asyncio.sleep(0)  # the last output is sent

    async def _close(self) -> None:
        try:
            await self._stop_companions()
        finally:
            await self._close_node()

    async def _close_node(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._peers is not None:
            self._peers.close()
        await self._server.close()
        if self._driver is not None:
            await self._driver.close()
        else:
            self._engine.close()


async def _awaited(pending: Pending) -> None:
    if pending.done:
        return
    done = asyncio.get_running_loop().create_future()

    def ended() -> None:
        if not done.done():
            done.set_result(None)

    pending.callback = ended
    await done

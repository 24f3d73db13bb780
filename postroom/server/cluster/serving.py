"""A node as a process: its folder, its place in the cluster, its server, and its end.

::

    open folder ─▶ listen ─▶ find its place (.place) ─▶ node ─▶ ready ······· SIGTERM
                                                                                │
            close ◀─ finish what is under way ◀─ give lease and lead away ◀─────┘

Everything runs on one event loop: gRPC's server, the node's turns, the streams to the others.
"""

from __future__ import annotations

import asyncio
import logging
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from postroom.errors import Error, Invalid, Retryable, Unavailable
from postroom.kv.clock import Clock
from postroom.kv.engine import Engine
from postroom.kv.leveldb import LevelDBEngine
from postroom.limits import DISK_RESERVE_BYTES
from postroom.ranges.calls import NotLeaseholder
from postroom.ranges.nodes import AdmitNode, Nodes
from postroom.server.cluster import formation
from postroom.server.cluster.formation import Hello
from postroom.server.cluster.leaderless import Leaderless
from postroom.server.cluster.nodes_service import Application, NodesService, Verdict
from postroom.server.cluster.peers import (
    CHANNEL_OPTIONS,
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
    Introduction,
    Peers,
)
from postroom.server.cluster.place import Place, store_at
from postroom.server.cluster.security import Security
from postroom.server.cluster.sessions import Sessions
from postroom.server.cluster.store_service import SERVICE as STORE_SERVICE
from postroom.server.cluster.store_service import StoreService
from postroom.server.drivers import AsyncioDriver
from postroom.server.node import Node, NodeOptions
from postroom.server.tasks import Pending

LEASE_SECONDS: Final = 1.0
"""How long the others wait for a leaseholder that has died."""

LOOK_SECONDS: Final = 0.2
STOP_SECONDS: Final = 2.0

SERVER_OPTIONS: Final = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a node is started.

    Attributes:
        folder: its data.
        listen: where it listens, ``host:port``.
        address: where the others and clients reach it.
        first_addresses: the first nodes', the same list on each of them.
        security: who may talk to it.
        lease_seconds: how long the others wait for it if it dies while it leads.
        disk_reserve_bytes: writes are refused when less is free.
    """

    folder: Path
    listen: str
    address: str
    first_addresses: tuple[str, ...]
    security: Security
    lease_seconds: float = LEASE_SECONDS
    disk_reserve_bytes: int = DISK_RESERVE_BYTES


class ServedNode:
    """See the module.

    Args:
        settings: how it is started.
        clock: the machine's.
        randomness: for ids, time-outs and pauses.
    """

    def __init__(self, settings: Settings, clock: Clock, randomness: random.Random) -> None:
        self._settings = settings
        self._security = settings.security
        self._clock = clock
        self._random = randomness
        self._engine: Engine = LevelDBEngine.open(settings.folder)
        self._place = Place(
            self._engine, settings.address, settings.first_addresses, self._security, randomness
        )
        self._nodes_service = NodesService(self._security, self._hello)
        self._health = health.aio.HealthServicer()
        self._server = aio.server(options=SERVER_OPTIONS)
        self._driver: AsyncioDriver | None = None
        self._peers: Peers | None = None
        self._sessions: Sessions | None = None
        self._for_clients = _ForClients()
        self._background: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()
        self._failure: Error | None = None
        self._has_served = False

    @property
    def node(self) -> Node:
        """The node, once it has its place."""
        assert self._driver is not None
        return self._driver.node

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until :meth:`stop` is called.

        Args:
            on_ready: called once the node knows who leads, so that clients can be served.

        Raises:
            Error: it cannot start, or cannot go on.
        """
        try:
            await self._place.open()
            await self._listen()
            await self._set_health(serving=False)
            if not await self._unless_over(self._place.find()):
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
        """Run ``coroutine`` to its end; false if the node is stopped before."""
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

    def _hello(self) -> Hello:
        return self._place.hello(None if self._driver is None else self.node.nodes)

    def _known_nodes(self) -> Nodes | None:
        return self._place.hello(self.node.nodes).nodes

    # --- the node

    async def _listen(self) -> None:
        self._server.add_generic_rpc_handlers((self._nodes_service.handler(), self._for_clients))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        try:
            port = self._security.add_port(self._server, self._settings.listen)
        except RuntimeError:
            port = 0
        if not port:
            raise Invalid(
                f"cannot listen at {self._settings.listen}: is the address one of this machine's, "
                "and is no other program there?"
            )
        await self._server.start()

    def _start_node(self) -> None:
        place, settings = self._place, self._settings
        record, known = place.record, place.known_nodes()
        assert record is not None
        introduction = Introduction(
            PROTOCOL_VERSION, record.cluster_id, record.node_id, place.store_id, settings.address
        )
        self._peers = peers = Peers(
            introduction,
            lambda address: self._security.open_channel(address, CHANNEL_OPTIONS),
            self._random,
            self._clock.monotonic,
        )
        options = NodeOptions(
            node_id=record.node_id,
            members=formation.first_members(self._engine),
            lease_seconds=settings.lease_seconds,
            disk_reserve_bytes=settings.disk_reserve_bytes,
        )
        node = Node(self._engine, self._clock, self._random, peers, options)
        self._driver = AsyncioDriver(node, self._random)
        peers.follow(known)
        peers.on_frames = lambda: node.wake(urgent=True)
        node.on_malformed = peers.distrust
        sessions = self._sessions = Sessions(node)

        def nodes_changed() -> None:
            peers.follow(node.nodes or known)
            sessions.tell_nodes()

        node.on_nodes = nodes_changed
        self._driver.start()
        self._nodes_service.peers = peers
        self._nodes_service.admit = self._admit
        service = StoreService(sessions, self._security.check_client)
        self._for_clients.service_handler = service.handler()
        own = None if known is None else known.by_id(node.node_id)
        if own is not None and own.address != settings.address:
            self._spawn(place.tell_address(self._known_nodes))
        self._spawn(self._look_around())

    async def _admit(self, application: Application) -> Verdict:
        assert self._driver is not None
        request = AdmitNode(application.store_id, application.address, application.node_id)
        try:
            if self.node.leader() == self.node.node_id:
                refused = await self._not_there(application)
                if refused is not None:
                    return refused
            return Verdict(admission=await self._driver.send(request, STOP_SECONDS))
        except NotLeaseholder as error:
            nodes = self.node.nodes
            leader = nodes.by_id(int(error.leader)) if nodes and error.leader else None
            return Verdict(elsewhere="" if leader is None else leader.address)
        except Invalid as error:
            return Verdict(refusal=str(error))
        except (Retryable, Error) as error:
            _log.info("cannot admit %s now: %s", application.address, error)
            return Verdict()

    async def _not_there(self, application: Application) -> Verdict | None:
        """Else a wrong --advertise would take the place of the node that is really there."""
        found = await store_at(self._security, application.address)
        if found is None:
            _log.warning("cannot admit %s: it cannot be reached from here", application.address)
            return Verdict()
        if found == application.store_id:
            return None
        return Verdict(
            refusal=f"another node is at {application.address} than the one that asks to be let "
            "in; nothing was changed: correct its --advertise"
        )

    # --- while it serves

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Something that goes on beside; when it fails, the node does."""
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
        """Tells whoever asks for the node's health, and notices when it cannot go on."""
        assert self._peers is not None
        serving, leaderless = False, Leaderless(self._known_nodes, self._peers.trouble)
        while True:
            if self.node.failed is not None:
                self._fail(self.node.failed)
                return
            if self._is_removed():
                _log.warning("node %d has been removed from the cluster", self.node.node_id)
                self.stop()
                return
            leaderless.look(self.node)
            if self._sessions is not None:
                self._sessions.look()
            can_serve = self.node.leader() is not None and self.node.nodes is not None
            if can_serve != serving:
                serving = can_serve
                await self._set_health(serving=serving)
            if serving and not self._has_served:
                self._has_served = True
                on_ready()
            await asyncio.sleep(LOOK_SECONDS if self._has_served else LOOK_SECONDS / 10)

    async def _look_around(self) -> None:
        """Whenever nobody leads, or nobody talks to this node: it may be removed, and not know."""
        peers = self._peers
        assert peers is not None
        while True:
            try:
                await self._place.look_around(self._known_nodes, self._is_in_touch, peers.met)
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
        """Whether the cluster goes on without this node, for good."""
        nodes, group = self.node.nodes, self.node.replica.group
        mine = None if nodes is None else nodes.by_id(self.node.node_id)
        if nodes is None or (mine is not None and not mine.retired):
            return False
        return self.node.node_id not in (*group.members, *group.learners)

    def _fail(self, error: Error) -> None:
        self._failure = error
        self._over.set()

    async def _set_health(self, *, serving: bool) -> None:
        kinds = health_pb2.HealthCheckResponse
        status = kinds.SERVING if serving else kinds.NOT_SERVING
        for service in ("", STORE_SERVICE):
            await self._health.set(service, status)

    # --- the end

    async def _drain(self) -> None:
        """Others take over, and clients are told to go there."""
        await self._set_health(serving=False)
        if self._failure is None:
            await _awaited(self.node.hand_over())
        if self._sessions is not None:
            self._sessions.end_all(Unavailable("this node stops; nothing was changed: ask another"))
        await asyncio.sleep(0)  # what is left to say is said

    async def _close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._peers is not None:
            self._peers.close()
        await self._nodes_service.close()
        await self._server.stop(0.2)
        if self._driver is not None:
            await self._driver.close()
        else:
            self._engine.close()


class _ForClients(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC is not typed
    """The service for clients, which there is only once there is a node."""

    def __init__(self) -> None:
        self.service_handler: grpc.GenericRpcHandler | None = None

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method, if it is the service's."""
        if self.service_handler is not None:
            return self.service_handler.service(handler_call_details)
        if handler_call_details.method.startswith(f"/{STORE_SERVICE}/"):
            return grpc.stream_stream_rpc_method_handler(_not_yet)
        return None


async def _not_yet(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is in no cluster yet")


async def _awaited(pending: Pending) -> None:
    if pending.done:
        return
    done = asyncio.get_running_loop().create_future()

    def ended() -> None:
        if not done.done():
            done.set_result(None)

    pending.callback = ended
    await done

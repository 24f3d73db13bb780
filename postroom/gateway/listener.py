"""The gateway as a server: its port, health and reflection, and its end.

::

    start ──▶ listens, healthy ······ stop ──▶ not healthy ─▶ calls end ─▶ connections are closed

Health and reflection are the standard services (``grpc.health.v1``, ``grpc.reflection.v1alpha``).
They ask for no token.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from postroom.errors import AccessDenied, Error
from postroom.gateway.callers import Callers, Connect, Roles, StoreConnections
from postroom.gateway.limits import HEADERS_BYTES_MAX, Limits
from postroom.gateway.service import DEFINITION, Service

STOP_SECONDS: Final = 2.0
"""The time that calls have to finish when the gateway stops."""
PING_MILLISECONDS: Final = 10_000
PING_ANSWER_MILLISECONDS: Final = 5_000
PINGS_APART_MILLISECONDS: Final = 1_000
HANDSHAKE_MILLISECONDS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ListenerTLS:
    """The certificate of a gateway, and the authority of its clients.

    Attributes:
        certificate: the gateway's certificate, PEM; it names its host.
        key: the key of that certificate, PEM.
        client_ca: the authority of clients' certificates, PEM; ``None``: they show none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> Any:
        """Return them as gRPC takes them.

        Raises:
            AccessDenied: a file cannot be read.
        """
        try:
            ca = None if self.client_ca is None else self.client_ca.read_bytes()
            pair = self.key.read_bytes(), self.certificate.read_bytes()
        except OSError as error:
            raise AccessDenied(
                f"cannot read {error.filename}: {error.strerror}; nothing was done"
            ) from error
        return grpc.ssl_server_credentials(
            [pair], root_certificates=ca, require_client_auth=ca is not None
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a gateway.

    Attributes:
        listen: the address to listen at, ``host:port``.
        tls: its certificate; ``None``: anybody may come, without TLS.
        roles: checks the proofs of callers; ``None``: only the nodes do.
        is_open: whether the store takes everybody, so that tokens mean nothing.
        nodes_check: whether nodes check all rights of callers, and not the gateway.
        limits: what it takes on.
    """

    listen: str
    tls: ListenerTLS | None
    roles: Roles | None = None
    is_open: bool = False
    nodes_check: bool = False
    limits: Limits = field(default_factory=Limits)


class Gateway:
    """A gateway; see the module.

    Args:
        settings: its settings.
        connect: connects to the store with a token.

    Attributes:
        port: the port that it listens at.

    Raises:
        AccessDenied: a file of a certificate cannot be read.
    """

    def __init__(self, settings: Settings, connect: Connect) -> None:
        self._settings = settings
        self._credentials = None if settings.tls is None else settings.tls.credentials()
        limits = settings.limits
        self._connections = StoreConnections(connect, limits)
        callers = Callers(
            settings.roles,
            is_secure=settings.tls is not None,
            is_open=settings.is_open,
            nodes_check=settings.nodes_check,
        )
        self.service = Service(callers, self._connections, limits)
        self._health = health.aio.HealthServicer()
        self._server: Any = None
        self._background: list[asyncio.Task[None]] = []
        self.port = 0

    async def start(self) -> None:
        """Listen, and take calls.

        Raises:
            Error: the address is taken, or none of this machine; or a certificate does not fit.
        """
        limits, credentials = self._settings.limits, self._credentials
        self._server = server = grpc.aio.server(
            options=_options(limits), maximum_concurrent_rpcs=2 * limits.calls_max
        )
        unregistered = _Unregistered(server)
        server.add_generic_rpc_handlers((self.service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, unregistered)
        names = (DEFINITION.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, unregistered)
        listen = self._settings.listen
        try:
            if credentials is None:
                self.port = server.add_insecure_port(listen)
            else:
                self.port = server.add_secure_port(listen, credentials)
        except RuntimeError:  # it names no reason
            self.port = 0
        if not self.port:
            fits = "" if credentials is None else " Does the certificate belong to its key?"
            raise Error(
                f"cannot listen at {listen}: is the address one of this machine's, and is no other "
                f"program there?{fits}"
            )
        await server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._background = [
            asyncio.create_task(self._connections.close_idle()),
            asyncio.create_task(self.service.open_calls.end_late()),
        ]

    async def _set_health(self, state: Any) -> None:
        for name in ("", DEFINITION.full_name):
            await self._health.set(name, state)

    async def stop(self) -> None:
        """Take no more calls, let those under way finish, and close all connections."""
        self.service.deliveries.stops = True
        if self._background:
            await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        if self._server is not None:
            await self._server.stop(STOP_SECONDS)
        for task in self._background:
            task.cancel()
        await self.service.deliveries.close()
        await self._connections.close()


class _Unregistered:
    """A registrar that adds services to a gRPC server without registering their methods.

    For each registered method the server waits for the next call in a task of its own, and looks at
    all of these tasks at each call. With twenty methods that is a quarter of the work of a call.

    Args:
        server: the gRPC server.
    """

    def __init__(self, server: Any) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: the generic handlers find the methods, too."""


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", limits.response_bytes_max + (1 << 20)),
        ("grpc.max_concurrent_streams", limits.streams_per_connection_max),
        ("grpc.max_metadata_size", HEADERS_BYTES_MAX),
        ("grpc.so_reuseport", 0),
        # A client that has vanished without a word is noticed within these times.
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", PING_ANSWER_MILLISECONDS),
        ("grpc.http2.min_ping_interval_without_data_ms", PINGS_APART_MILLISECONDS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
    ]

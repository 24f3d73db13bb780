"""The command gateway, and the gateway of 'postroom serve --grpc': gRPC for other languages."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import postroom
import postroom.aio
from postroom.cli.options import StoreOptions, on_a_store
from postroom.databases.asynchronous import connect_on_behalf
from postroom.errors import AccessDenied, Error, Invalid, how_to_install
from postroom.gateway import prepare_environment
from postroom.protocol.streams import OnBehalf
from postroom.ranges.contract import Role

if TYPE_CHECKING:
    from postroom.gateway.callers import Connect, Roles, ShownProofs
    from postroom.gateway.listener import Gateway, ListenerTLS
    from postroom.server.cluster.serving import NodeSettings

HIGHEST_PORT = 65535
COLLECTED_AFTER = 20_000
"""The number of new objects after which Python looks for circles in a gateway."""

_log = logging.getLogger(__name__)

Listen = Annotated[
    str,
    typer.Option("--listen", metavar="HOST:PORT", help="Listen for gRPC here.", show_default=False),
]
ListenCertificate = Annotated[
    Path | None,
    typer.Option("--listen-certificate", metavar="FILE", help="The gateway's certificate, PEM."),
]
ListenKey = Annotated[
    Path | None,
    typer.Option("--listen-key", metavar="FILE", help="The key of the gateway's certificate, PEM."),
]
ListenCa = Annotated[
    Path | None,
    typer.Option(
        "--listen-ca",
        metavar="FILE",
        help="The authority of certificates that clients must show, PEM.",
    ),
]
ListenInsecure = Annotated[
    bool, typer.Option("--listen-insecure", help="Let clients come without TLS.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Clients must show a token in it: one a line, or 'ROLE TOKEN [NAME]' "
        "(none, read, write, admin).",
    ),
]
RoleFile = Annotated[
    Path | None,
    typer.Option(
        "--role-file",
        metavar="FILE",
        help='Without tokens: "ROLE NAME" a line, by the common names of certificates; * is all.',
    ),
]


@on_a_store
def gateway(
    store: StoreOptions,
    listen: Listen,
    listen_tls_certificate: ListenCertificate = None,
    listen_tls_key: ListenKey = None,
    listen_tls_ca: ListenCa = None,
    listen_insecure: ListenInsecure = False,
    token_file: TokenFile = None,
    role_file: RoleFile = None,
) -> None:
    """Offer the store to programs in other languages, over gRPC, until SIGTERM.

    Clients come by TLS with the files of --tls-..., unless --listen-... says otherwise.
    The gateway shows the nodes the token of each client.
    Standard error says "ready" and the address once it takes calls.
    """
    prepare()
    from postroom.gateway.listener import (  # noqa: PLC0415 - slow to load
        Gateway,
        ListenerTLS,
        Settings,
    )

    listen = checked_address(listen, "--listen")
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if token_file and role_file:
        raise typer.BadParameter("give --token-file or --role-file, not both")
    tls = None
    if not listen_insecure:
        given = (listen_tls_certificate, listen_tls_key, listen_tls_ca)
        certificate, key, ca = given if any(given) else _files_of(store)
        if (certificate is None or key is None) and (any(given) or not store.insecure):
            raise typer.BadParameter(
                "give --listen-certificate and --listen-key; or --listen-insecure, to let "
                "clients come without TLS"
            )
        if certificate is not None and key is not None:
            tls = ListenerTLS(certificate, key, ca)
            if ca is None and token_file is None:
                raise typer.BadParameter(
                    "give --listen-ca, so that clients must show a certificate, or "
                    "--token-file, so that they must show a token"
                )
    elif listen_tls_certificate or listen_tls_key or listen_tls_ca:
        raise typer.BadParameter("--listen-insecure goes without --listen-...")
    roles = _roles(token_file, role_file)
    check_free(listen)
    is_open = roles is None and (store.insecure or store.path is not None)
    settings = Settings(listen, tls, roles, is_open=is_open)
    connect = _connect(store)
    asyncio.run(_run(lambda: Gateway(settings, connect), listen, connect if store.path else None))


def _files_of(store: StoreOptions) -> tuple[Path | None, Path | None, Path | None]:
    """Return the files with which the gateway connects: certificate, key and authority."""
    if store.tls is None:
        return None, None, None
    files = store.tls.certificate, store.tls.key, store.tls.ca
    certificate, key, ca = (None if each is None else Path(each) for each in files)
    return certificate, key, ca


def _connect(store: StoreOptions) -> Connect:
    opened: list[asyncio.Task[postroom.aio.Database]] = []

    async def connect(proofs: ShownProofs) -> postroom.aio.Database:
        if store.path is not None:
            if proofs.role == Role.NONE.value:
                raise AccessDenied(
                    "granted rights are checked by nodes, and this gateway has the folder open "
                    "itself; nothing was done: start it with --connect"
                )
            # One process has a folder open once: all callers share it.
            if not opened:
                opened.append(asyncio.ensure_future(store.open_async()))
            return await asyncio.shield(opened[0])
        options = store.connection | {"token": proofs.token or store.token}
        return await connect_on_behalf(_on_behalf(proofs), store.addresses, **options)

    return connect


def _on_behalf(proofs: ShownProofs) -> OnBehalf | None:
    """Return the caller for which the gateway talks, if it shows a certificate alone."""
    return OnBehalf(proofs.name, proofs.role) if proofs.name else None


def _roles(token_file: Path | None, role_file: Path | None) -> Roles | None:
    from postroom.server.cluster.access import (  # noqa: PLC0415 - slow to load
        Tokens,
        roles_of_certificates,
    )

    if token_file is not None:
        tokens = Tokens(token_file)

        def role_of_token(token: str | None, _: str) -> str:
            role = None if token is None else tokens.role_of(token)
            if role is None:
                raise AccessDenied(
                    "this gateway asks for a token; nothing was done"
                    if token is None
                    else "the token is not known here; nothing was done"
                )
            return role.value

        return role_of_token
    if role_file is None:
        return None
    file = roles_of_certificates(role_file)

    def role_of_name(_: str | None, name: str) -> str:
        role = file.current().of(name)
        if role is None:
            raise AccessDenied(
                f"the certificate of {name[:60]!r} has no role at this gateway; nothing was done: "
                "add it to the file of roles"
            )
        return role.value

    return role_of_name


async def _run(make: Any, listen: str, open_folder: Connect | None) -> None:
    from postroom.gateway.callers import ShownProofs  # noqa: PLC0415 - slow to load

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    made: Gateway = make()
    db = await open_folder(ShownProofs()) if open_folder else None  # a wrong folder is told at once
    try:
        await made.start()
        # Calls make many objects, and few circles. The imported ones are frozen.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER)
        print(f"ready {listen}", file=sys.stderr, flush=True)  # noqa: T201
        await stopped.wait()
    finally:
        await made.stop()
        if db is not None:
            await db.close()


# --- the gateway of a node


class NodeGateway:
    """The gateway of a node, in its process: a companion service of the node.

    Args:
        listen: the address to listen at.
        node: the settings of the node, whose files of TLS, tokens and roles count here too.
        tls: the files of TLS: of the authority, the certificate and its key.
    """

    def __init__(
        self, listen: str, node: NodeSettings, tls: tuple[Path | None, Path | None, Path | None]
    ) -> None:
        self._listen = listen
        self._node = node
        self._files = tls
        self._gateway: Gateway | None = None

    async def start(self) -> None:
        """Take calls. They are answered once the node serves.

        Raises:
            Error: it cannot listen.
        """
        from postroom.gateway.listener import (  # noqa: PLC0415 - slow to load
            Gateway,
            Settings,
        )

        security = self._node.security
        roles = None if security.insecure else self._role_of
        settings = Settings(
            self._listen, self._tls(), roles, is_open=security.insecure, nodes_check=True
        )
        self._gateway = Gateway(settings, self._connect)
        await self._gateway.start()
        _log.info("gRPC for other languages at %s", self._listen)

    def _role_of(self, token: str | None, name: str) -> str:
        return self._node.security.role_of_client(token, name).value

    def _tls(self) -> ListenerTLS | None:
        from postroom.gateway.listener import ListenerTLS  # noqa: PLC0415 - slow to load

        ca, certificate, key = self._files
        if certificate is None or key is None:
            return None
        return ListenerTLS(certificate, key, ca)

    async def _connect(self, proofs: ShownProofs) -> postroom.aio.Database:
        addresses = [self._node.address, *self._node.first_addresses]
        ca, certificate, key = self._files
        return await connect_on_behalf(
            _on_behalf(proofs),
            list(dict.fromkeys(addresses)),
            tls=None if ca is None else postroom.TLS(ca, certificate, key),
            token=proofs.token,
            insecure=ca is None,
        )

    async def stop(self) -> None:
        """End the gateway."""
        if self._gateway is not None:
            await self._gateway.stop()


# --- checks of both forms


def prepare() -> None:
    """Check that the libraries of the gateway are there, and set what they read when loaded.

    Raises:
        Error: they are not.
    """
    for library in ("grpc", "grpc_health", "grpc_reflection", "google.protobuf"):
        try:
            found = find_spec(library)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise Error(f"gRPC for other languages needs more libraries: {how_to_install('grpc')}")
    prepare_environment()


def check_free(address: str) -> None:
    """Check that no other program has ``address``, before a folder is made.

    Raises:
        Invalid: another program has it.
    """
    from postroom.server.cluster.listener import bound  # noqa: PLC0415 - slow to load

    try:
        for each in bound(address):
            each.close()
    except Invalid as refused:
        # gRPC may do with some of the addresses of a name.
        if isinstance(refused.__cause__, OSError) and refused.__cause__.errno == errno.EADDRINUSE:
            raise


def checked_address(text: str, option: str) -> str:
    """Return ``HOST:PORT``, checked."""
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= HIGHEST_PORT:
        raise typer.BadParameter(f"{text!r} is no HOST:PORT", param_hint=option)
    return text.strip()

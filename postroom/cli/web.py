"""The command web: the pages of a store, for browsers."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, Any

import typer

from postroom.cli.gateway import ListenCertificate, ListenKey, TokenFile, checked_address
from postroom.cli.options import StoreOptions, on_a_store
from postroom.errors import Invalid
from postroom.web import app, audit, check_libraries
from postroom.web.limits import CONNECTIONS_MAX, HEAD_BYTES_MAX

IDLE_SECONDS = 5
STOP_SECONDS = 3

_log = logging.getLogger(__name__)

Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Serve the pages here.")]
Host = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="Serve them under this name, too."),
]
Payloads = Annotated[bool, typer.Option("--payloads", help="Show values and payloads.")]
CodecName = Annotated[
    str | None,
    typer.Option("--codec", metavar="CODEC", help="Unpack them with json or msgpack."),
]


@on_a_store
def web(
    store: StoreOptions,
    listen: Listen = "127.0.0.1:7480",
    listen_tls_certificate: ListenCertificate = None,
    listen_tls_key: ListenKey = None,
    token_file: TokenFile = None,
    host: Host = None,
    payloads: Payloads = False,
    codec: CodecName = None,
) -> None:
    """Serve pages for browsers: messages, queues, keys, nodes; until Ctrl-C or SIGTERM.

    Addresses beyond this machine need --listen-certificate, --listen-key and --token-file.
    With --path other commands with the same --path work beside it.
    Standard error says "ready" and the address.
    """
    check_libraries()
    listen = checked_address(listen, "--listen")
    name = listen.rpartition(":")[0].strip("[]")
    is_open = listen_tls_certificate is None or listen_tls_key is None or token_file is None
    if is_open and not _is_loopback(name):
        raise typer.BadParameter(
            f"{name} can be reached from other machines: give --listen-certificate, --listen-key "
            "and --token-file, or listen at 127.0.0.1",
            param_hint="--listen",
        )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    audit.log.setLevel(logging.INFO)
    client_of = None if token_file is None else _client_of(token_file)
    store.check_folder()
    from postroom.server.cluster.listener import bound  # noqa: PLC0415 - slow to load

    sockets = bound(listen)
    try:
        with store.open_for(codec, create=False, serve=_socket_of(store)) as db:
            hosts = {name, f"[{name}]", "localhost", "127.0.0.1", "[::1]", *(host or ())}
            pages = app(db, client_of=client_of, payloads=payloads, hosts=hosts)
            scheme = "http" if listen_tls_key is None else "https"
            files = {"ssl_certfile": listen_tls_certificate, "ssl_keyfile": listen_tls_key}
            _serve(pages, sockets, files, f"ready {scheme}://{listen}/")
    finally:
        for each in sockets:
            each.close()


def _socket_of(store: StoreOptions) -> str | None:
    """Return the socket at which other programs find the store; ``None``: there is none."""
    if store.path is None:
        return None
    from postroom.server.served_store import address_of  # noqa: PLC0415 - slow to load

    try:
        return address_of("unix:", store.path, "")
    except Invalid as error:
        _log.warning("other programs cannot use the store meanwhile: %s", error)
        return None


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _client_of(token_file: Path) -> Callable[[str], tuple[str, str] | None]:
    from postroom.server.cluster.access import Tokens  # noqa: PLC0415 - slow to load

    tokens = Tokens(token_file)

    def client_of(token: str) -> tuple[str, str] | None:
        line = tokens.line_of(token)
        return None if line is None else (line.role.value, line.name)

    return client_of


def _serve(pages: Any, sockets: list[Any], files: dict[str, Any], ready: str) -> None:
    import uvicorn  # noqa: PLC0415 - slow to load

    class PageServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            """Leave signals alone: uvicorn would raise them again before the store is closed."""
            yield

        async def startup(self, sockets: list[Any] | None = None) -> None:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)
            await super().startup(sockets)
            print(ready, file=sys.stderr, flush=True)  # noqa: T201

        def _stop(self) -> None:
            self.should_exit = True

    config = uvicorn.Config(
        pages, log_level="warning", access_log=False, lifespan="off", http="h11",
        server_header=False, proxy_headers=False, limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_SECONDS, h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_graceful_shutdown=STOP_SECONDS,
        **files,
    )  # fmt: skip
    asyncio.run(PageServer(config).serve(sockets=sockets))

"""The options that commands share, and how they get at the store: in a folder, or over the network.

A command that works on a store takes it as its first argument, and is decorated: ``on_a_store``
gives it the options ``--path``, ``--connect`` and what belongs to them, and makes a :class:`Store`
of them.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import postroom
import postroom.aio
from postroom.client.remote.connect import parsed
from postroom.errors import Error

PATH_VARIABLE: Final = "POSTROOM_PATH"
TIMEOUT_SECONDS: Final = 15.0

AsHex = Annotated[
    bool, typer.Option("--hex", help="Keys and values are hexadecimal digits, not text.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Where the store is, as the options say.

    Attributes:
        path: its folder; ``None``: it is reached over the network.
        addresses: of its nodes.
        tls, token, insecure, timeout: as :func:`postroom.connect` takes them.
    """

    path: Path | None = None
    addresses: tuple[str, ...] = ()
    tls: postroom.TLS | None = None
    token: str | None = None
    insecure: bool = False
    timeout: float = TIMEOUT_SECONDS

    def __str__(self) -> str:
        return repr(str(self.path)) if self.path is not None else ",".join(self.addresses)

    def open_or_create(self) -> postroom.Database:
        """The store, made if there is none: for commands that write."""
        return self._connect() if self.path is None else postroom.open(str(self.path))

    def open_existing(self) -> postroom.Database:
        """The store: a mistyped path must not look like an empty one."""
        if self.path is None:
            return self._connect()
        if not self.path.is_dir() or not any(self.path.iterdir()):
            raise Error(
                f"there is no store in {str(self.path)!r}: check --path, or create one with 'put'"
            )
        return postroom.open(str(self.path))

    def _connect(self) -> postroom.Database:
        quiet_grpc()
        return postroom.connect(
            self.addresses, tls=self.tls, token=self.token, insecure=self.insecure,
            timeout=self.timeout,
        )  # fmt: skip

    async def open_async(self) -> postroom.aio.Database:
        """The asyncio form; the store is made if there is none."""
        if self.path is not None:
            return await postroom.aio.open(str(self.path))
        quiet_grpc()
        return await postroom.aio.connect(
            self.addresses, tls=self.tls, token=self.token, insecure=self.insecure,
            timeout=self.timeout,
        )  # fmt: skip


_OPTIONS_OF: Final = {
    "connect(token=...)": "--token",
    "connect(tls=...)": "--tls-ca, --tls-certificate and --tls-key",
    "connect(insecure=True)": "--insecure",
    "TLS(ca=...)": "--tls-ca",
    "TLS(certificate=...)": "--tls-certificate",
}


def in_options(message: str) -> str:
    """An error's message with the options of the command line instead of Python's arguments."""
    for argument, option in _OPTIONS_OF.items():
        message = message.replace(argument, option)
    return message


def quiet_grpc() -> None:
    """What gRPC has to say about a connection is in the error; it need not print it as well."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_Path = Annotated[
    Path | None,
    typer.Option(
        "--path", metavar="DIR", help=f"The store's data folder.  [env var: {PATH_VARIABLE}]"
    ),
]
_Connect = Annotated[
    str | None,
    typer.Option("--connect", metavar="HOST:PORT,...", help="Some nodes of a cluster, instead."),
]
_TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="The authority of the nodes' certificates, PEM."),
]
_TlsCertificate = Annotated[
    Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Your certificate, PEM.")
]
_TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of that certificate, PEM.")
]
_Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TEXT", envvar="POSTROOM_TOKEN", help="If the nodes ask for one."
    ),
]
_Insecure = Annotated[bool, typer.Option("--insecure", help="Connect without TLS.")]
_Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Wait so long for the cluster."),
]


def _store(
    path: _Path = None,
    connect: _Connect = None,
    tls_ca: _TlsCa = None,
    tls_certificate: _TlsCertificate = None,
    tls_key: _TlsKey = None,
    token: _Token = None,
    insecure: _Insecure = False,
    timeout: _Timeout = TIMEOUT_SECONDS,
) -> Store | None:
    """What the options say; ``None``: nothing."""
    if path is not None and connect is not None:
        raise typer.BadParameter("give --path or --connect, not both")
    if connect is None:
        if insecure or tls_ca or tls_certificate or tls_key:
            raise typer.BadParameter("--insecure and --tls-... go with --connect")
        chosen = path or os.environ.get(PATH_VARIABLE)
        return Store(path=Path(chosen)) if chosen else None
    try:
        addresses = tuple(parsed(connect))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--connect") from None
    tls = _tls(tls_ca, tls_certificate, tls_key, insecure=insecure)
    return Store(addresses=addresses, tls=tls, token=token, insecure=insecure, timeout=timeout)


def _tls(
    ca: Path | None, certificate: Path | None, key: Path | None, *, insecure: bool
) -> postroom.TLS | None:
    if insecure:
        if ca or certificate or key:
            raise typer.BadParameter("--insecure is to go without TLS: give no --tls-... with it")
        return None
    if ca is None:
        raise typer.BadParameter(
            "give --tls-ca, --tls-certificate and --tls-key with --connect; or --insecure, if the "
            "nodes were started with that"
        )
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together")
    return postroom.TLS(ca, certificate, key)


_options: Final = inspect.signature(_store, eval_str=True).parameters


def on_a_store(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a function whose first argument is a :class:`Store` a command with its options."""
    return _decorated(command, required=True)


def on_a_store_if_given(command: Callable[..., None]) -> Callable[..., None]:
    """The same; the first argument is ``None`` if the options name no store."""
    return _decorated(command, required=False)


def _decorated(command: Callable[..., None], *, required: bool) -> Callable[..., None]:
    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        store = _store(**{name: arguments.pop(name) for name in _options})
        if store is None and required:
            raise typer.BadParameter("give --path DIR or --connect HOST:PORT,...")
        command(store, **arguments)

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in _options.values()]
    run.__signature__ = inspect.Signature([*named, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*named, *options)}
    return run

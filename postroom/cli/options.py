"""The options that commands share, and how they open the store: in a folder, or over the network.

A command that works on a store takes it as its first argument. The decorator ``on_a_store`` gives
it the options ``--path``, ``--connect`` and their companions, and makes a :class:`StoreOptions` of
them. Each of these has an environment variable as well. An option counts more than a variable: with
``--path`` on the command line, ``POSTROOM_CONNECT`` may stay set. ``on_a_store_with_values`` adds
the notation of keys and values, a :class:`postroom.cli.output.Notation`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

import postroom
import postroom.aio
from postroom.cli.output import AsStored, Notation, as_bytes
from postroom.client.remote.connect import CONNECT_SECONDS, parsed
from postroom.errors import AccessDenied, Error, StoreLocked
from postroom.limits import MEMORY_BYTES, MEMORY_BYTES_MIN, NUMBER_SECONDS_MAX

TIMEOUT_SECONDS: Final = 15.0
TIMEOUT_SECONDS_MIN: Final = 0.1

PATH_VARIABLE: Final = "POSTROOM_PATH"
CONNECT_VARIABLE: Final = "POSTROOM_CONNECT"
TLS_CA_VARIABLE: Final = "POSTROOM_TLS_CA"
TLS_CERTIFICATE_VARIABLE: Final = "POSTROOM_TLS_CERTIFICATE"
TLS_KEY_VARIABLE: Final = "POSTROOM_TLS_KEY"
TOKEN_VARIABLE: Final = "POSTROOM_TOKEN"
INSECURE_VARIABLE: Final = "POSTROOM_INSECURE"
MEMORY_VARIABLE: Final = "POSTROOM_MEMORY"
TIMEOUT_VARIABLE: Final = "POSTROOM_TIMEOUT"

_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)]
Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]
Value = Annotated[
    str, typer.Argument(metavar="VALUE", show_default=False, help="- reads standard input.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Print at most N.")]
LimitIfGiven = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Print at most N.")
]


def _within_ten_years(seconds: float | None) -> float | None:
    """Refuse a moment given in place of a duration; a range in the help would take its room."""
    if seconds is not None and seconds > NUMBER_SECONDS_MAX:
        raise typer.BadParameter("give seconds from now, ten years at most")
    return seconds


Delay = Annotated[
    float | None,
    typer.Option(
        "--delay",
        metavar="SECONDS",
        min=0,
        callback=_within_ten_years,
        help="Take effect SECONDS later.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="Add a header; give it once for each."),
]
Name = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
Kind = Annotated[str, typer.Option("--kind", metavar="TEXT", help="Name the type of the payload.")]
Group = Annotated[
    str | None, typer.Option("--group", metavar="TEXT", help="Put it into the group TEXT.")
]
Priority = Annotated[
    int,
    typer.Option("--priority", metavar="P", help="Order by P, from -128 to 127, lower ones first."),
]
Prefix = Annotated[
    str | None,
    typer.Option("--prefix", metavar="TEXT", help="Take all keys that begin with TEXT."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """The folder or addresses of the store, and how to reach it, from the options.

    Attributes:
        path: its folder; ``None``: it is reached over the network.
        addresses: of its nodes.
        tls, token, insecure, timeout, connect_timeout: as :func:`postroom.connect` takes them.
        patience: the seconds that --timeout allows; ``None``: it is not given.
        memory_bytes: as :func:`postroom.open` takes it.
    """

    path: Path | None = None
    addresses: tuple[str, ...] = ()
    tls: postroom.TLS | None = None
    token: str | None = field(default=None, repr=False)
    insecure: bool = False
    timeout: float = TIMEOUT_SECONDS
    connect_timeout: float = CONNECT_SECONDS
    patience: float | None = None
    memory_bytes: int = MEMORY_BYTES

    def within(self, seconds: float) -> StoreOptions:
        """Return the same store, which must answer each request within ``seconds``."""
        return replace(self, timeout=seconds, connect_timeout=seconds)

    def __str__(self) -> str:
        return repr(str(self.path)) if self.path is not None else ",".join(self.addresses)

    def open_or_create(self) -> postroom.Database:
        """Open the store, or create it if there is none: for commands that write."""
        return self.open_for(AsStored())

    def open_existing(self) -> postroom.Database:
        """Open the store; raise an error if there is none, since the path may be mistyped."""
        self.check_folder()
        return self.open_for(AsStored(), create=False)

    def check_folder(self) -> None:
        """Raise an error if a folder is named, and there is no store in it."""
        if self.path is not None and not self._has_content(self.path):
            raise Error(
                f"there is no store in {str(self.path)!r}: check --path, or create one with 'put'"
            )

    @staticmethod
    def _has_content(path: Path) -> bool:
        try:
            return path.exists() and (not path.is_dir() or any(path.iterdir()))
        except PermissionError as error:
            raise AccessDenied(
                f"{str(path)!r} cannot be read: {error.strerror}; nothing was changed: check its "
                "owner and permissions, and those of the folders above it"
            ) from None

    def open_for(
        self,
        codec: str | postroom.Codec | None,
        *,
        create: bool = True,
        serve: str | None = None,
    ) -> postroom.Database:
        """Open the store for an application, or create it if there is none.

        Args:
            codec: see :func:`postroom.open`.
            create: see :func:`postroom.open`.
            serve: the socket for other programs, if this process opens a folder.
        """
        if self.path is not None:
            try:
                return postroom.open(
                    str(self.path), codec=codec, create=create, memory_bytes=self.memory_bytes,
                    serve=serve,
                )  # fmt: skip
            except StoreLocked as locked:
                if not locked.address:
                    raise
                return postroom.connect(locked.address, codec=codec)
        return postroom.connect(self.addresses, codec=codec, **self.connection)

    async def open_async(self, codec: str | None = None) -> postroom.aio.Database:
        """Open the store in its asyncio form, or create it if there is none."""
        if self.path is not None:
            try:
                return await postroom.aio.open(
                    str(self.path), codec=codec, memory_bytes=self.memory_bytes
                )
            except StoreLocked as locked:
                if not locked.address:
                    raise
                return await postroom.aio.connect(locked.address, codec=codec)
        return await postroom.aio.connect(self.addresses, codec=codec, **self.connection)

    @property
    def connection(self) -> dict[str, Any]:
        """Return the arguments with which the nodes are reached."""
        return {
            "tls": self.tls, "token": self.token, "insecure": self.insecure,
            "timeout": self.timeout, "connect_timeout": self.connect_timeout,
        }  # fmt: skip


_OPTIONS_OF: Final = {
    "connect(tls=...), connect(token=...) or TLS(certificate=...)": (
        "--tls-ca, --tls-certificate and --tls-key, or --token"
    ),
    "connect(token=...)": "--token",
    "connect(tls=...)": "--tls-ca, --tls-certificate and --tls-key",
    "connect(insecure=True)": "--insecure",
    "TLS(ca=...)": "--tls-ca",
    "TLS(certificate=...)": "--tls-certificate",
    "connect_timeout=": "--timeout",
    "make it with create_queue()": "make it with 'postroom queue create'",
    "queues() for those there are": "'postroom queue list' for those there are",
    "update() changes settings": "'postroom queue update' changes settings",
    "postroom.connect('127.0.0.1:7400', insecure=True)": "--connect 127.0.0.1:7400 --insecure",
    "those of scheduled()": "those that 'postroom scheduled' prints",
    "those of dead_letters()": "those that 'postroom dead-letters' prints",
}


def with_option_names(message: str) -> str:
    """Return an error's message with options of the command line in place of Python's arguments."""
    for argument, option in _OPTIONS_OF.items():
        message = message.replace(argument, option)
    return message


def _option(flag: str, metavar: str | None, text: str, variable: str, **more: Any) -> Any:
    """Return an option that may stand in the environment instead, as its help tells."""
    told = rf"{text}  \[env var: {variable}]"  # escaped: brackets are markup in help
    return typer.Option(flag, metavar=metavar, help=told, **more)


_Path = Annotated[str | None, _option("--path", "DIR", "The store's data folder.", PATH_VARIABLE)]
_Connect = Annotated[
    str | None,
    _option(
        "--connect", "HOST:PORT,...", "Addresses of a cluster's nodes, instead.", CONNECT_VARIABLE
    ),
]
_TlsCa = Annotated[
    Path | None,
    _option("--tls-ca", "FILE", "The authority of the nodes' certificates, PEM.", TLS_CA_VARIABLE),
]
_TlsCertificate = Annotated[
    Path | None,
    _option("--tls-certificate", "FILE", "Your certificate, PEM.", TLS_CERTIFICATE_VARIABLE),
]
_TlsKey = Annotated[
    Path | None,
    _option("--tls-key", "FILE", "The key of that certificate, PEM.", TLS_KEY_VARIABLE),
]
_Token = Annotated[
    str | None, _option("--token", "TEXT", "Your token, if the nodes ask for one.", TOKEN_VARIABLE)
]
_Insecure = Annotated[bool, _option("--insecure", None, "Connect without TLS.", INSECURE_VARIABLE)]
_Timeout = Annotated[
    float | None,
    _option(
        "--timeout", "SECONDS", "Wait at most SECONDS for the cluster.", TIMEOUT_VARIABLE,
        min=TIMEOUT_SECONDS_MIN, show_default=f"{TIMEOUT_SECONDS:g}",
    ),
]  # fmt: skip
_Memory = Annotated[
    str | None,
    _option(
        "--memory", "SIZE", "With --path: the budget of memory.", MEMORY_VARIABLE,
        show_default=f"{MEMORY_BYTES >> 20}MiB",
    ),
]  # fmt: skip


def _store(
    path: _Path = None,
    connect: _Connect = None,
    tls_ca: _TlsCa = None,
    tls_certificate: _TlsCertificate = None,
    tls_key: _TlsKey = None,
    token: _Token = None,
    insecure: _Insecure = False,
    timeout: _Timeout = None,
    memory: _Memory = None,
) -> StoreOptions | None:
    """Return the store of the options, else that of the environment, else ``None``."""
    if path is not None and connect is not None:
        raise typer.BadParameter("give --path or --connect, not both")
    if connect is None and (insecure or tls_ca or tls_certificate or tls_key):
        connect = os.environ.get(CONNECT_VARIABLE) or None
        if path is not None or connect is None:
            raise typer.BadParameter("--insecure and --tls-... go with --connect")
    if path is None and connect is None:
        path, connect = _store_in_environment()
    if connect is None:
        return (
            None if path is None else StoreOptions(path=_folder(path), memory_bytes=_memory(memory))
        )
    if memory is not None:
        raise typer.BadParameter("--memory goes with --path: 'postroom serve' has one for nodes")
    try:
        addresses = tuple(parsed(connect))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--connect") from None
    seconds = _timeout_in_environment() if timeout is None else timeout
    return StoreOptions(
        addresses=addresses,
        tls=_tls(tls_ca, tls_certificate, tls_key, insecure=insecure),
        token=token or os.environ.get(TOKEN_VARIABLE) or None,
        insecure=insecure or (tls_ca is None and _insecure_in_environment()),
        timeout=TIMEOUT_SECONDS if seconds is None else seconds,
        connect_timeout=CONNECT_SECONDS if seconds is None else seconds,
        patience=seconds,
    )


def _memory(memory: str | None) -> int:
    if memory is not None:
        return as_bytes(memory, MEMORY_BYTES_MIN, "--memory")
    said = os.environ.get(MEMORY_VARIABLE)
    return as_bytes(said, MEMORY_BYTES_MIN, MEMORY_VARIABLE) if said else MEMORY_BYTES


def _folder(path: str) -> Path:
    if not path:
        raise typer.BadParameter("give the name of a folder", param_hint="--path")
    return Path(path)


def _store_in_environment() -> tuple[str | None, str | None]:
    path, connect = os.environ.get(PATH_VARIABLE), os.environ.get(CONNECT_VARIABLE)
    if path and connect:
        raise typer.BadParameter(
            f"{PATH_VARIABLE} and {CONNECT_VARIABLE} are both set: give --path or --connect"
        )
    return path or None, connect or None


def _insecure_in_environment() -> bool:
    said = os.environ.get(INSECURE_VARIABLE, "").lower()
    if said in _YES | _NO:
        return said in _YES
    raise typer.BadParameter(f"{said!r} is neither 1 nor 0", param_hint=INSECURE_VARIABLE)


def _timeout_in_environment() -> float | None:
    said = os.environ.get(TIMEOUT_VARIABLE)
    if not said:
        return None
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not seconds >= TIMEOUT_SECONDS_MIN:
        raise typer.BadParameter(
            f"{said!r} is no number of seconds of {TIMEOUT_SECONDS_MIN} or more",
            param_hint=TIMEOUT_VARIABLE,
        )
    return seconds


def _tls(
    ca: Path | None, certificate: Path | None, key: Path | None, *, insecure: bool
) -> postroom.TLS | None:
    """Return the TLS settings, where an option counts more than the environment."""
    if insecure:
        if ca or certificate or key:
            raise typer.BadParameter("--insecure means no TLS: give no --tls-... with it")
        return None
    told_in_options = bool(ca or certificate or key)
    ca = ca or _file_in_environment(TLS_CA_VARIABLE)
    certificate = certificate or _file_in_environment(TLS_CERTIFICATE_VARIABLE)
    key = key or _file_in_environment(TLS_KEY_VARIABLE)
    if not told_in_options and _insecure_in_environment():
        if ca or certificate or key:
            raise typer.BadParameter(
                f"{INSECURE_VARIABLE} is set, and POSTROOM_TLS_... too: unset one, or give options"
            )
        return None
    if ca is None:
        raise typer.BadParameter(
            "give --tls-ca, --tls-certificate and --tls-key with --connect; or --insecure, if the "
            "nodes were started with that"
        )
    if (certificate is None) != (key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together")
    return postroom.TLS(ca, certificate, key)


def _file_in_environment(variable: str) -> Path | None:
    name = os.environ.get(variable)
    return Path(name) if name else None


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Return what the values ``NAME=VALUE`` of an option give."""
    found = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found


def headers_of(given: list[str] | None) -> dict[str, str] | None:
    """Return the headers that the options ``--header`` give."""
    return pairs(given, "--header") or None


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Turn an argument that Python refuses into a usage error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


# --- how keys and values are written

_AsHex = Annotated[bool, typer.Option("--hex", help="Write keys and values as hexadecimal digits.")]
_HexKey = Annotated[bool, typer.Option("--hex-key", help="Write keys as hexadecimal digits.")]
_HexValue = Annotated[bool, typer.Option("--hex-value", help="Write values as hexadecimal digits.")]
_AsInt = Annotated[bool, typer.Option("--int", help="Write values as 64-bit integers.")]


def _notation(
    as_hex: _AsHex = False,
    hex_key: _HexKey = False,
    hex_value: _HexValue = False,
    as_int: _AsInt = False,
    as_json: AsJson = False,
) -> Notation:
    """Return the notation that the options ask for."""
    if as_int and (as_hex or hex_value):
        raise typer.BadParameter("--int and --hex both choose how values are written: give one")
    return Notation(
        hex_keys=as_hex or hex_key,
        hex_values=as_hex or hex_value,
        integers=as_int,
        as_json=as_json,
    )


# --- commands

Maker: TypeAlias = Callable[..., Any]
"""A function that makes one argument of a command of the options that are its parameters."""


def on_a_store(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first argument is a :class:`StoreOptions`."""
    return with_options(command, required_store)


def on_a_store_with_values(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function with a :class:`StoreOptions` and a :class:`Notation`."""
    return with_options(command, required_store, _notation)


def on_a_store_if_given(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose first argument is ``None`` if no store is named."""
    return with_options(command, _store)


def required_store(**options: Any) -> StoreOptions:
    """Return the store that the options name."""
    store = _store(**options)
    if store is None:
        raise typer.BadParameter("give --path DIR or --connect HOST:PORT,...")
    return store


def with_options(command: Callable[..., None], *makers: Maker) -> Callable[..., None]:
    """Give a command the options of ``makers``, which make its first arguments."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        made = [
            maker(**{name: arguments.pop(name) for name in _parameters(maker)}) for maker in makers
        ]
        command(*made, **arguments)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[len(makers) :]
    options = [each for maker in reversed(makers) for each in _parameters(maker).values()]
    known = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *options)]
    run.__signature__ = inspect.Signature(known)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in known}
    run.__doc__ = flowing(command)
    return run


def flowing(command: Callable[..., None]) -> str:
    """Return the docstring of a command as its help: a line for each paragraph.

    Help keeps the ends of lines, and divides long lines where the terminal ends.
    """
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(each.split("\n")) for each in paragraphs)


def _parameters(maker: Maker) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_store if maker is required_store else maker, eval_str=True).parameters

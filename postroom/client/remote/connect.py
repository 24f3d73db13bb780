"""``connect``: the database of a remote cluster, with everything that an embedded one can do."""

from __future__ import annotations

import functools
import random  # noqa: TID251 - here instances are made, to be passed in
from collections.abc import Iterable, Sequence
from typing import Any, Final

from postroom.client import arguments
from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import Codec, resolve
from postroom.client.remote.nodes import cluster_status
from postroom.client.remote.sender import AsyncioSender, ThreadSender
from postroom.client.remote.tls_files import TLS
from postroom.errors import Invalid, Unavailable
from postroom.limits import REQUEST_SECONDS
from postroom.protocol.addresses import is_unix, path_in
from postroom.protocol.failures import DeadlineExceeded
from postroom.protocol.streams import OnBehalf
from postroom.ranges.requests import Now

CONNECT_SECONDS: Final = 5.0
_HIGHEST_PORT: Final = 65_535


def connect(  # noqa: PLR0913 - each argument is an option
    addresses: str | Sequence[str],
    *,
    tls: TLS | None = None,
    token: str | None = None,
    insecure: bool = False,
    codec: str | Codec | None = None,
    timeout: float = REQUEST_SECONDS,
    connect_timeout: float = CONNECT_SECONDS,
) -> blocking.CoreDatabase:
    """Connect to a cluster. Many threads may use the database at once.

    Args:
        addresses: those of some nodes, ``"host:port,host:port"`` or a list; the others are learned.
            One that can be reached is enough. Or ``"unix:PATH"``, the socket of a store that
            another program has opened with ``serve``; it needs no TLS.
        tls: how to recognise the nodes, and to be recognised.
        token: by which the nodes know this client, if they ask for one.
        insecure: whether to connect without TLS: anybody who can reach the network can then read
            and change everything.
        codec: ``None`` for bytes, ``"msgpack"``, ``"json"``, or an object with ``encode`` and
            ``decode``.
        timeout: seconds after which a request that was not answered is given up, with
            ``Unavailable`` if nothing happened, with ``CommitUnknown`` if it may have. Until then
            it waits for elections and restarts of nodes.
        connect_timeout: seconds within which a node that leads must have answered first;
            ``timeout`` at most.

    Returns:
        The database.

    Raises:
        AccessDenied: the nodes do not let this client in, or are not who they should be.
        Unavailable: no node that leads could be reached; the error says what each address said.

    Examples:
        >>> postroom.connect("127.0.0.1:1", insecure=True, connect_timeout=0.2)
        Traceback (most recent call last):
            ...
        postroom.errors.Unavailable: ...
    """
    nodes = _checked(addresses, tls, token, timeout, insecure=insecure)
    patience = _patience(connect_timeout, timeout)
    values = resolve(codec)
    randomness = _randomness()
    sender = ThreadSender(lambda: AsyncioSender(nodes, tls, token, randomness, timeout), randomness)
    sender.start(functools.partial(_reach, *patience))
    status = functools.partial(cluster_status, addresses=nodes)
    return blocking.CoreDatabase(
        sender, asynchronous.CoreDatabase(sender, values, status, sender.close)
    )


async def connect_async(  # noqa: PLR0913 - each argument is an option
    addresses: str | Sequence[str],
    *,
    tls: TLS | None = None,
    token: str | None = None,
    insecure: bool = False,
    codec: str | Codec | None = None,
    timeout: float = REQUEST_SECONDS,
    connect_timeout: float = CONNECT_SECONDS,
) -> asynchronous.CoreDatabase:
    """Connect to a cluster, in the asyncio form of :func:`connect`, on the calling event loop.

    Args:
        addresses: see :func:`postroom.connect`.
        tls: see :func:`postroom.connect`.
        token: see :func:`postroom.connect`.
        insecure: see :func:`postroom.connect`.
        codec: see :func:`postroom.connect`.
        timeout: see :func:`postroom.connect`.
        connect_timeout: see :func:`postroom.connect`.

    Returns:
        The database.
    """
    return await connect_on_behalf(
        None, addresses, tls=tls, token=token, insecure=insecure, codec=codec, timeout=timeout,
        connect_timeout=connect_timeout,
    )  # fmt: skip


async def connect_on_behalf(  # noqa: PLR0913 - each argument is an option
    on_behalf: OnBehalf | None,
    addresses: str | Sequence[str],
    *,
    tls: TLS | None = None,
    token: str | None = None,
    insecure: bool = False,
    codec: str | Codec | None = None,
    timeout: float = REQUEST_SECONDS,
    connect_timeout: float = CONNECT_SECONDS,
) -> asynchronous.CoreDatabase:
    """Connect to a cluster on behalf of another client; ``None``: for itself.

    The other arguments are those of :func:`connect_async`.
    """
    nodes = _checked(addresses, tls, token, timeout, insecure=insecure)
    patience = _patience(connect_timeout, timeout)
    values = resolve(codec)
    sender = AsyncioSender(nodes, tls, token, _randomness(), timeout, on_behalf)
    try:
        await _reach(*patience, sender)
    except BaseException:
        sender.abort()
        await sender.close()
        raise
    status = functools.partial(cluster_status, addresses=nodes)
    return asynchronous.CoreDatabase(sender, values, status, sender.close)


def _patience(connect_timeout: float, timeout: float) -> tuple[float, str]:
    """Return how many seconds to wait for a leader, and the argument that says so."""
    seconds = _seconds(connect_timeout, "connect_timeout")
    return (timeout, "timeout=") if timeout < seconds else (seconds, "connect_timeout=")


async def _reach(patience: float, argument: str, sender: AsyncioSender) -> None:
    """Wait until a leader answers; from then on the time is known.

    Args:
        patience: seconds to wait.
        argument: the argument of ``connect`` that says so.
        sender: the client's sender.

    Raises:
        AccessDenied: every node hangs up.
        Unavailable: none has answered within ``patience`` seconds.
    """
    asked: Any = sender.send(Now(), patience)
    try:
        await asked
    except DeadlineExceeded:
        if asked.refused is not None:
            raise asked.refused from None
        if sender.router.addresses.hung_up():
            raise sender.router.addresses.unwelcome() from None
        raise Unavailable(
            f"no node that leads has answered within {patience:g} s "
            f"({sender.router.addresses.connection_errors()}); see that the nodes run there "
            "('postroom serve --path DIR --listen HOST:PORT'), or wait for longer with "
            f"{argument}"
        ) from None


def _checked(
    addresses: str | Sequence[str],
    tls: TLS | None,
    token: str | None,
    timeout: float,
    *,
    insecure: bool,
) -> list[str]:
    found = parsed(addresses)
    is_local = all(map(is_unix, found))
    if is_local and (tls is not None or token is not None):
        raise Invalid(
            "a socket in the file system takes no tls= and no token=: its permissions tell who may "
            "connect"
        )
    if tls is None and not (insecure or is_local):
        raise Invalid(
            "connect() wants tls=postroom.TLS(ca=...); only where nobody else can reach the "
            "network, say insecure=True instead"
        )
    if tls is not None and insecure:
        raise Invalid("connect() takes either tls= or insecure=True, not both")
    if tls is not None and not isinstance(tls, TLS):
        raise TypeError(f"tls is a postroom.TLS, not {type(tls).__name__}")
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token is text, not {type(token).__name__}")
    _seconds(timeout, "timeout")
    return found


def _seconds(given: float, name: str) -> float:
    if not arguments.number(given, name) > 0:
        raise ValueError(f"{name} is a number of seconds above 0, not {given}")
    return given


def parsed(addresses: str | Sequence[str]) -> list[str]:
    """Return the addresses one by one, checked."""
    given: object = addresses
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        name = type(given).__name__
        raise TypeError(f'addresses are text, "host:port,host:port", or a list, not {name}')
    if isinstance(addresses, str):
        each = [addresses] if is_unix(addresses) else addresses.split(",")
    else:
        each = list(addresses)
    found = [_address(address) for address in each if address != ""]
    if not found:
        raise ValueError('give at least one address, "host:port"')
    return found


def _address(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f'an address is text, "host:port", not {type(given).__name__}')
    if is_unix(given):
        path_in(given)
        return given
    address = given.strip()
    scheme, is_url, rest = address.partition("://")
    if is_url:
        raise ValueError(f"{given!r} is no address: give {rest!r}, without '{scheme}://'")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= _HIGHEST_PORT:
        raise ValueError(f'{given!r} is no address: give "host:port"')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(
            f'{given!r} is no address: give "host:port", with an IPv6 address in brackets: '
            f'"[{host}]:{port}"'
        )
    return address


def _randomness() -> random.Random:
    """Return a generator seeded by the operating system: ids must differ between processes."""
    return random.Random(random.SystemRandom().randbytes(32))

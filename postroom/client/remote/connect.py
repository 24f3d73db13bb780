"""``connect``: the database of a cluster elsewhere, with all that an embedded one can do."""

from __future__ import annotations

import random  # noqa: TID251 - here instances are made, to be passed in
from collections.abc import Iterable, Sequence
from typing import Final

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.codec import Codec, resolve
from postroom.client.remote.connection import TLS, check_tls, check_token
from postroom.client.remote.router import REQUEST_SECONDS
from postroom.client.remote.sender import AsyncioSender, ThreadSender
from postroom.client.remote.status import StatusReader
from postroom.errors import Invalid
from postroom.ranges.requests import Now

_HIGHEST_PORT: Final = 65_535


def connect(
    addresses: str | Sequence[str],
    *,
    tls: TLS | None = None,
    token: str | None = None,
    insecure: bool = False,
    codec: str | Codec | None = None,
    timeout: float = REQUEST_SECONDS,
) -> blocking.Database:
    """Connects to a cluster. The database may be used from many threads at once.

    Args:
        addresses: of some nodes, ``"host:port,host:port"`` or a list; the others are learned. One
            that can be reached is enough.
        tls: how to recognise the nodes, and be recognised.
        token: what the nodes know this client by, if they ask for one.
        insecure: without TLS: whoever can reach the network can read and change everything.
        codec: ``None`` for bytes, ``"msgpack"``, ``"json"``, or an object with ``encode`` and
            ``decode``.
        timeout: seconds after which a request that was not answered is given up, with
            ``Unavailable`` if nothing happened, with ``CommitUnknown`` if it may have. Elections
            and restarts of nodes are waited for until then.

    Raises:
        AccessDenied: the nodes do not let this client in, or are not who they should be.
        Unavailable: none could be reached that leads.
    """
    nodes = _checked(addresses, tls, token, timeout, insecure=insecure)
    values = resolve(codec)
    randomness = _randomness()
    sender = ThreadSender(lambda: AsyncioSender(nodes, tls, token, randomness, timeout), randomness)
    sender.start(_reach)
    status = StatusReader(sender, nodes)
    return blocking.Database(sender, asynchronous.Database(sender, values, status, sender.close))


async def connect_async(
    addresses: str | Sequence[str],
    *,
    tls: TLS | None = None,
    token: str | None = None,
    insecure: bool = False,
    codec: str | Codec | None = None,
    timeout: float = REQUEST_SECONDS,
) -> asynchronous.Database:
    """The asyncio form of :func:`connect`, on the calling event loop."""
    nodes = _checked(addresses, tls, token, timeout, insecure=insecure)
    values = resolve(codec)
    sender = AsyncioSender(nodes, tls, token, _randomness(), timeout)
    try:
        await _reach(sender)
    except BaseException:
        sender.abort()
        await sender.close()
        raise
    return asynchronous.Database(sender, values, StatusReader(sender, nodes), sender.close)


async def _reach(sender: AsyncioSender) -> None:
    """A leader answers; from then on the time is known."""
    await sender.send(Now())


def _checked(
    addresses: str | Sequence[str],
    tls: TLS | None,
    token: str | None,
    timeout: float,
    *,
    insecure: bool,
) -> list[str]:
    if tls is None and not insecure:
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
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout is a number of seconds, not {type(timeout).__name__}")
    if not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout}")
    check_token(token)
    if tls is not None:
        check_tls(tls)
    return parsed(addresses)


def parsed(addresses: str | Sequence[str]) -> list[str]:
    """The addresses one by one, checked."""
    given: object = addresses
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        name = type(given).__name__
        raise TypeError(f'addresses are text, "host:port,host:port", or a list, not {name}')
    each = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = [_address(address) for address in each if address != ""]
    if not found:
        raise ValueError('give at least one address, "host:port"')
    return found


def _address(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f'an address is text, "host:port", not {type(given).__name__}')
    address = given.strip()
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
    """Seeded by the operating system: ids must differ between processes."""
    return random.Random(random.SystemRandom().randbytes(32))


__all__ = ["TLS", "connect", "connect_async", "parsed"]

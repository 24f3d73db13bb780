"""What was asked for: the options of a source, checked, with a word for each mistake.

Spark hands on options as text, and names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from postroom.client.bulk import PART_BYTES
from postroom.errors import Invalid

TABLES: Final = (
    "data", "inbox", "reaped", "outbox", "queue", "archive", "dead_letters", "accounting",
    "changes", "counters", "inbox_index", "places", "beside",
)  # fmt: skip
FORMATS: Final = ("json", "msgpack")
PROTECT_SECONDS: Final = 600.0
"""How long a data frame that is not used stays readable, at least."""

_KNOWN: Final = frozenset({
    "connect", "path", "insecure", "tls_ca", "tls_certificate", "tls_key", "token", "table", "at",
    "since", "start", "prefix", "queue", "format", "part_bytes", "protect_for", "max_rows",
    "max_bytes", "fail_on_data_loss",
})  # fmt: skip


@dataclass(frozen=True)
class Store:
    """Which store, and how it is reached. It is the key of a process's connections.

    Attributes:
        connect: addresses of nodes; empty: the folder at ``path``.
        path: a folder that the driver opens.
        insecure: without TLS.
        tls: files of the authority's certificate, and of this client's own and its key.
        token: what the nodes know this client by.
    """

    connect: str = ""
    path: str = ""
    insecure: bool = False
    tls: tuple[str, str | None, str | None] | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Options:
    """What a source is asked for.

    Attributes:
        store: which one.
        table: which of ``TABLES``.
        at: the timestamp of the data frame; 0: when it is made.
        since: of ``changes`` and ``reaped``: those after this timestamp; ``None``: all that can
            be read.
        start: of a stream: ``earliest``, ``now``, or a timestamp.
        prefix: of keys; empty: all.
        queue: name of the queue; empty: all of them.
        format: of values; empty: they are bytes.
        part_bytes: about how much a task reads.
        protect_for: seconds for which a data frame that is not used stays readable.
        max_rows, max_bytes: of a batch of a stream, about; 0: no limit.
        fail_on_data_loss: whether a stream ends when changes that it has not seen are collected.
    """

    store: Store
    table: str
    at: int
    since: int | None
    start: str
    prefix: bytes
    queue: str
    format: str
    part_bytes: int
    protect_for: float
    max_rows: int
    max_bytes: int
    fail_on_data_loss: bool


def parse(given: Mapping[str, str]) -> Options:
    """The options of a source.

    Raises:
        Invalid: one is unknown, missing or impossible.
    """
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise Invalid(f"there is no option {unknown[0]!r}: options are {', '.join(sorted(_KNOWN))}")
    since = options.get("since")
    return Options(
        store=_store(options),
        table=_one_of("table", options.get("table", "data"), TABLES),
        at=_number("at", options.get("at"), 0),
        since=None if since in {None, "earliest"} else _number("since", since, 0),
        start=_start(options.get("start", "now")),
        prefix=options.get("prefix", "").encode(),
        queue=options.get("queue", ""),
        format=_one_of("format", options.get("format", ""), ("", *FORMATS)),
        part_bytes=_number("part_bytes", options.get("part_bytes"), PART_BYTES, 1),
        protect_for=float(_number("protect_for", options.get("protect_for"), int(PROTECT_SECONDS))),
        max_rows=_number("max_rows", options.get("max_rows"), 0),
        max_bytes=_number("max_bytes", options.get("max_bytes"), 0),
        fail_on_data_loss=_boolean(options, "fail_on_data_loss", default=True),
    )


def _store(options: Mapping[str, str]) -> Store:
    connect, path = options.get("connect", ""), options.get("path", "")
    if bool(connect) == bool(path):
        raise Invalid(
            'give one of connect="host:port,..." (a cluster) and path="folder" (a store that '
            "nobody has open, which the driver opens)"
        )
    ca = options.get("tls_ca")
    tls = None if ca is None else (ca, options.get("tls_certificate"), options.get("tls_key"))
    insecure = _boolean(options, "insecure", default=bool(path))
    if connect and (tls is None) != insecure:
        raise Invalid(
            "give either tls_ca= (a file, with tls_certificate= and tls_key= if the nodes want "
            "them), or insecure=true, only where nobody else can reach the network"
        )
    return Store(connect, path, insecure, tls, options.get("token"))


def _start(given: str) -> str:
    if given not in {"now", "earliest"}:
        return str(_number("start", given, 0))
    return given


def _one_of(name: str, given: str, allowed: tuple[str, ...]) -> str:
    if given not in allowed:
        raise Invalid(f"{name} is one of {', '.join(filter(None, allowed))}, not {given!r}")
    return given


def _number(name: str, given: str | None, default: int, least: int = 0) -> int:
    if given is None:
        return default
    given = given.removeprefix("Timestamp(").removesuffix(")")  # as Spark writes one of ours
    if not given.isdecimal() or int(given) < least:
        raise Invalid(f"{name} is a whole number from {least} on, not {given!r}")
    return int(given)


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = options.get(name)
    if given is None:
        return default
    if given.lower() not in {"true", "false"}:
        raise Invalid(f"{name} is true or false, not {given!r}")
    return given.lower() == "true"

"""The options of a source and of a sink, checked, with a message for each mistake.

Spark hands on options as text, and names in lower case.

The options of a table of Spark's catalog are kept in the metadata of its first column::

    CREATE TABLE shop USING postroom OPTIONS (path 'data/shop');
    SELECT * FROM shop;

Spark hands them to a source when the table is made, and to none that reads it. It keeps the schema
that the source names, with metadata, and hands that to each reader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StructField, StructType

from postroom.client.bulk import PART_BYTES
from postroom.errors import Invalid
from postroom.kv.clock import from_datetime
from postroom.limits import (
    POSITION_NAME_CHARACTERS_MAX,
    POSITION_SECONDS,
    POSITION_SECONDS_MAX,
    STAGED_QUERY_BYTES_MAX,
)
from postroom.pipeline.tables import SCHEMAS
from postroom.pipeline.typed_values import FAILFAST, PERMISSIVE

FORMATS: Final = ("json", "msgpack")
_OF_TABLE: Final = "option."
_OF_SPARK: Final = frozenset({
    "collation", "comment", "external", "is_managed_location", "owner", "provider",
})  # fmt: skip
"""Properties that Spark gives a table of its own accord."""
_OF_OTHER_CLOCKS: Final = range(10**7, 10**16)
"""Dates as 20260131, and seconds, milli- or microseconds since 1970: stores tell larger numbers."""
PROTECT_SECONDS: Final = 600.0
"""The least time for which a data frame that is not used stays readable."""

_OF_STORE: Final = (
    "connect", "path", "insecure", "tls_ca", "tls_certificate", "tls_key", "token",
)  # fmt: skip
_KNOWN: Final = frozenset({
    *_OF_STORE, "table", "at", "since", "start", "prefix", "queue", "format", "part_bytes",
    "protect_for", "max_rows", "max_bytes", "fail_on_data_loss", "mode", "name",
})  # fmt: skip


@dataclass(frozen=True)
class StoreAddress:
    """The addresses or the folder of a store; it is the key of a process's connections.

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
class SourceOptions:
    """The options of a source.

    Attributes:
        store: which one.
        table: one of ``SCHEMAS``.
        at: the timestamp of the data frame; 0: when it is made.
        since: of ``changes`` and ``reaped``: those after this timestamp; ``None``: all that can
            be read.
        start: of a stream: ``earliest``, ``now``, or a timestamp.
        prefix: of keys; empty: all.
        queue: name of the queue; empty: all of them.
        format: of values; empty: they are bytes.
        mode: ``failfast`` or ``permissive``: what becomes of values that cannot be decoded.
        part_bytes: about how much a task reads.
        protect_for: seconds for which a data frame that is not used stays readable.
        name: of a stream; empty: it has none.
        position_for: seconds for which the position of a stream with a name stays readable.
        max_rows, max_bytes: of a batch of a stream, about; 0: no limit.
        fail_on_data_loss: whether a stream ends when changes that it has not seen are collected.
    """

    store: StoreAddress
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
    mode: str = FAILFAST
    name: str = ""
    position_for: float = POSITION_SECONDS


def plain(given: Mapping[str, str]) -> dict[str, str]:
    """Return options by their own names.

    The options of a table (``CREATE TABLE ... USING postroom OPTIONS (...)``) come twice: by their
    names, and beginning with ``option.``. ``path`` comes as ``location`` besides, as a URI.
    """
    options = {name.lower(): value for name, value in given.items()}
    of_table = [name for name in options if name.startswith(_OF_TABLE)]
    for name in of_table:
        options.setdefault(name.removeprefix(_OF_TABLE), options.pop(name))
    if of_table or is_of_catalog(options):
        options = {name: each for name, each in options.items() if name not in _OF_SPARK}
    location = options.pop("location", "")
    if options.get("connect") and (of_table or location):
        options.pop("path", None)  # the path of a table without a folder of its own
    elif location:
        options.setdefault("path", location)
    # the form in which Spark writes a folder of a table
    if options.get("path", "").startswith("file:"):
        options["path"] = unquote(urlsplit(options["path"]).path)
    return options


def is_of_catalog(given: Mapping[str, str]) -> bool:
    """Return whether Spark makes a table of its catalog with these options."""
    return "provider" in given


def names_store(given: Mapping[str, str]) -> bool:
    """Return whether options name a store."""
    options = plain(given)
    return bool(options.get("connect") or options.get("path"))


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Return the options of a source.

    Raises:
        Invalid: one is unknown, missing or impossible.
    """
    options = plain(given)
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise Invalid(f"there is no option {unknown[0]!r}: options are {', '.join(sorted(_KNOWN))}")
    since = options.get("since")
    name, position_for, protect_for = _protection(options)
    return SourceOptions(
        store=_store(options),
        table=_one_of("table", options.get("table", "data"), tuple(SCHEMAS)),
        at=_timestamp_of("at", options.get("at")),
        since=None if since in {None, "earliest"} else _timestamp_of("since", since),
        start=_start(options.get("start", "now")),
        prefix=options.get("prefix", "").encode(),
        queue=options.get("queue", ""),
        format=_one_of("format", options.get("format", ""), ("", *FORMATS)),
        part_bytes=_number("part_bytes", options.get("part_bytes"), PART_BYTES, 1),
        protect_for=protect_for,
        max_rows=_number("max_rows", options.get("max_rows"), 0),
        max_bytes=_number("max_bytes", options.get("max_bytes"), 0),
        fail_on_data_loss=_boolean(options, "fail_on_data_loss", default=True),
        mode=_mode(options),
        name=name,
        position_for=position_for,
    )


def _protection(options: Mapping[str, str]) -> tuple[str, float, float]:
    """Return the name of a stream, and for how long its position and a data frame are protected."""
    name, given = options.get("name", ""), options.get("protect_for")
    if not name:
        return "", 0.0, float(_number("protect_for", given, int(PROTECT_SECONDS)))
    if len(name) > POSITION_NAME_CHARACTERS_MAX:
        raise Invalid(f"name has {POSITION_NAME_CHARACTERS_MAX} characters at most")
    seconds = float(_number("protect_for", given, int(POSITION_SECONDS)))
    if seconds > POSITION_SECONDS_MAX:
        raise Invalid(
            f"protect_for is {POSITION_SECONDS_MAX:g} seconds (a week) at most for a stream with a "
            f"name, not {given}"
        )
    return name, seconds, PROTECT_SECONDS


def _mode(options: Mapping[str, str]) -> str:
    mode = _one_of("mode", options.get("mode", FAILFAST).lower(), (FAILFAST, PERMISSIVE))
    if mode == PERMISSIVE and not options.get("format"):
        raise Invalid("mode=permissive is about values that are decoded: give format= too")
    return mode


def _store(options: Mapping[str, str]) -> StoreAddress:
    connect, path = options.get("connect", ""), options.get("path", "")
    if not options:
        raise Invalid(
            "there is no option connect= or path=, which says which store it is: give one. Spark "
            "keeps the options of a table (CREATE TABLE t USING postroom OPTIONS (...)) if no "
            "columns are given with them; else each query has to, SELECT ... FROM t WITH (path "
            "'folder')"
        )
    if bool(connect) == bool(path):
        raise Invalid(
            'give one of connect="host:port,..." (a cluster) and path="folder" (a store that '
            "no process has open, which the driver opens)"
        )
    ca = options.get("tls_ca")
    tls = None if ca is None else (ca, options.get("tls_certificate"), options.get("tls_key"))
    insecure = _boolean(options, "insecure", default=bool(path))
    if connect and (tls is None) != insecure:
        raise Invalid(
            "give either tls_ca= (a file, with tls_certificate= and tls_key= if the nodes want "
            "them), or insecure=true, only where no stranger can reach the network"
        )
    return StoreAddress(connect, path, insecure, tls, options.get("token"))


def _start(given: str) -> str:
    if given not in {"now", "earliest"}:
        return str(_timestamp_of("start", given))
    return given


def _one_of(name: str, given: str, allowed: tuple[str, ...]) -> str:
    if given not in allowed:
        raise Invalid(f"{name} is one of {', '.join(filter(None, allowed))}, not {given!r}")
    return given


def _timestamp_of(name: str, given: str | None) -> int:
    """Return a timestamp: one of the store, or that of a moment in ISO 8601 with its offset."""
    if given is None:
        return 0
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        moment = None
    if moment is None or given.isdecimal():
        return _timestamp(name, given.removeprefix("Timestamp(").removesuffix(")"))  # Spark's unit
    if moment.tzinfo is None:
        raise Invalid(
            f"{name} is {given!r}, which has no time zone: give an aware datetime, or "
            f"{moment.replace(tzinfo=UTC).isoformat()!r} for UTC"
        )
    return from_datetime(moment)


def _timestamp(name: str, given: str) -> int:
    """Return a timestamp of the store, which is given as text."""
    if not given.isdecimal() or int(given) in _OF_OTHER_CLOCKS:
        raise Invalid(
            f"{name} is {given!r}, which is no timestamp: give one that db.now() or a commit told "
            "(a whole number), an aware datetime, or text in ISO 8601 with an offset, as "
            "'2026-01-31T12:00:00+00:00'"
        )
    return int(given)


def _number(name: str, given: str | None, default: int, least: int = 0) -> int:
    if given is None:
        return default
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


# --- tables of Spark's catalog --------------------------------------------------------------------


METADATA: Final = "postroom.options"
_SECRET: Final = "token"
"""The option that is not kept: everybody who sees the table's schema could read it."""


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a schema that keeps the options of a table."""
    kept = {name: value for name, value in plain(options).items() if name != _SECRET}
    first, *others = schema.fields
    known = StructField(first.name, first.dataType, first.nullable, {METADATA: kept})
    return StructType([known, *others])


def options_in(schema: StructType) -> dict[str, str]:
    """Return the options that a schema keeps; empty: it is of no table, or has other columns."""
    found: dict[str, str] = {}
    for each in schema.fields:
        found |= each.metadata.get(METADATA, {})
    return found


# --- sinks ----------------------------------------------------------------------------------------


MODES: Final = ("put", "delete", "increment", "message", "queue")
LOAD: Final = "load"
_CHECKPOINT: Final = "checkpointlocation"
_OF_SINK: Final = ("mode", "queue", "format", "load", "prefix", "query", "batch", _CHECKPOINT)


@dataclass(frozen=True)
class SinkOptions:
    """The options of a sink.

    Attributes:
        mode: one of ``MODES``, or ``LOAD``; empty: the column ``mode`` says it of each row.
        queue: the queue of messages whose row names none; empty: there is none.
        format: ``json`` or ``msgpack``: the value is packed from the columns without a meaning of
            their own; empty: it is the column ``value``.
        load: the name of a bulk load, by which it can be resumed; empty: it cannot be.
        prefix: the prefix of all keys of a bulk load.
        sink: the name of the sink of a stream, made of its checkpoint location; empty: not known.
        query: the query that a data frame is a batch of. A batch is written once, however often it
            is given. Empty: a data frame stands for itself.
        batch: the number of that batch; higher than those before.
    """

    mode: str = ""
    queue: str = ""
    format: str = ""
    load: str = ""
    prefix: bytes = b""
    sink: bytes = b""
    query: bytes = b""
    batch: int = 0


def is_sink(given: Mapping[str, str]) -> bool:
    """Return whether these are options of a sink for sure."""
    options = {name.lower(): value for name, value in given.items()}
    mode = options.get("mode", FAILFAST).lower()
    return mode not in {FAILFAST, PERMISSIVE} or any(
        name in options for name in ("batch", _CHECKPOINT)
    )


def store_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that say which store it is."""
    return {name: value for name, value in plain(given).items() if name in _OF_STORE}


def parse_sink(given: Mapping[str, str], columns: list[str]) -> SinkOptions:
    """Parse the options of a sink.

    Args:
        given: all options.
        columns: the columns of the rows.

    Raises:
        Invalid: one is unknown, missing or impossible.
    """
    options = plain(given)
    known = {*_OF_STORE, *_OF_SINK}
    unknown = sorted(set(options) - known)
    if unknown:
        raise Invalid(
            f"a sink has no option {unknown[0]!r}: options are {', '.join(sorted(known))}; nothing "
            "was written"
        )
    format_ = _one_of("format", options.get("format", ""), ("", *FORMATS))
    mode = _sink_mode(options, columns)
    for name in ("load", "prefix"):
        if options.get(name) and mode != LOAD:
            raise Invalid(f"{name}= belongs to mode=load, not to mode={mode or 'a column'}")
    query, batch = _batch(options, mode)
    checkpoint = options.get(_CHECKPOINT, "")
    return SinkOptions(
        mode, options.get("queue", ""), format_, options.get("load", ""),
        options.get("prefix", "").encode(),
        hashlib.sha256(checkpoint.encode()).digest() if checkpoint else b"", query, batch,
    )  # fmt: skip


def _batch(options: Mapping[str, str], mode: str) -> tuple[bytes, int]:
    """Return the name and the number of a batch."""
    query, batch = options.get("query", "").encode(), options.get("batch")
    if not query and batch is None:
        return b"", 0
    if mode == LOAD:
        raise Invalid("query= and batch= are not for mode=load, which load= gives a name")
    if not query or batch is None:
        raise Invalid(
            "query= and batch= belong together: a name for all batches of one program, and the "
            "number of this one"
        )
    if len(query) > STAGED_QUERY_BYTES_MAX:
        raise Invalid(f"query= has {STAGED_QUERY_BYTES_MAX} bytes at most, not {len(query)}")
    if not batch.isdecimal() or int(batch) >= 1 << 63:
        raise Invalid(f"batch is a whole number from 0 on, not {batch!r}")
    return query, int(batch)


def _sink_mode(options: Mapping[str, str], columns: list[str]) -> str:
    mode = _one_of("mode", options.get("mode", ""), ("", *MODES, LOAD))
    if mode and "mode" in columns:
        raise Invalid(
            f"there are an option mode={mode} and a column mode: leave out the option, or drop the "
            "column"
        )
    return mode or ("" if "mode" in columns else "put")

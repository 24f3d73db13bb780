"""The options of a sink, checked, with a message for each mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from postroom.errors import Invalid
from postroom.limits import STAGED_QUERY_BYTES_MAX
from postroom.pipeline.decoding import FAILFAST, PERMISSIVE
from postroom.pipeline.options import plain

MODES: Final = ("put", "delete", "increment", "message", "queue")
LOAD: Final = "load"
FORMATS: Final = ("json", "msgpack")
OF_STORE: Final = (
    "connect", "path", "insecure", "tls_ca", "tls_certificate", "tls_key", "token",
)  # fmt: skip
OF_SINK: Final = ("mode", "queue", "format", "load", "prefix", "query", "batch")
_OF_SPARK: Final = ("checkpointlocation",)


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
        name in options for name in ("batch", *_OF_SPARK)
    )


def of_store(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that say which store it is."""
    return {name: value for name, value in plain(given).items() if name in OF_STORE}


def parse(given: Mapping[str, str], columns: list[str]) -> SinkOptions:
    """Parse the options of a sink.

    Args:
        given: all options.
        columns: the columns of the rows.

    Raises:
        Invalid: one is unknown, missing or impossible.
    """
    options = plain(given)
    known = {*OF_STORE, *OF_SINK, *_OF_SPARK}
    unknown = sorted(set(options) - known)
    if unknown:
        raise Invalid(
            f"a sink has no option {unknown[0]!r}: options are {', '.join(sorted(known))}; nothing "
            "was written"
        )
    format_ = options.get("format", "")
    if format_ not in {"", *FORMATS}:
        raise Invalid(f"format is one of {', '.join(FORMATS)}, not {format_!r}")
    mode = _mode(options, columns)
    for name in ("load", "prefix"):
        if options.get(name) and mode != LOAD:
            raise Invalid(f"{name}= belongs to mode=load, not to mode={mode or 'a column'}")
    query, batch = _batch(options, mode)
    checkpoint = options.get("checkpointlocation", "")
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
            "query= and batch= belong together: the name of whoever writes batch after batch, and "
            "the number of this one"
        )
    if len(query) > STAGED_QUERY_BYTES_MAX:
        raise Invalid(f"query= has {STAGED_QUERY_BYTES_MAX} bytes at most, not {len(query)}")
    if not batch.isdecimal() or int(batch) >= 1 << 63:
        raise Invalid(f"batch is a whole number from 0 on, not {batch!r}")
    return query, int(batch)


def _mode(options: Mapping[str, str], columns: list[str]) -> str:
    mode = options.get("mode", "")
    if mode not in {"", *MODES, LOAD}:
        raise Invalid(f"mode is one of {', '.join((*MODES, LOAD))}, not {mode!r}")
    if mode and "mode" in columns:
        raise Invalid(
            f"there are an option mode={mode} and a column mode: leave out the option, or drop the "
            "column"
        )
    return mode or ("" if "mode" in columns else "put")

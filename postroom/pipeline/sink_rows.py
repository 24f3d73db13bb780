"""Writes made of the rows of Spark, with a message for each row that cannot be written.

The columns:

==============  ====================  ==========================================================
column          for mode              what it is
==============  ====================  ==========================================================
``mode``        (instead of option)   ``put``, ``delete``, ``increment``, ``message``, ``queue``
``key``         all                   bytes, or text; of ``queue`` it may be null: that of the id
``value``       put, message, queue   bytes, or text; not with ``format=``
``by``          increment             whole number; without the column 1
``headers``     message, queue        map of text to text, bytes, numbers or bools, or null
``deliver_at``  message, queue        timestamp, or null: at once
``queue``       queue                 text; null: the option ``queue=``
``kind``        queue                 text, or null
``id``          queue                 bytes, or text; null: made up
``priority``    queue                 whole number, or null: 0
``group``       queue                 text, or null: none
==============  ====================  ==========================================================

With ``format=json`` or ``msgpack`` every other column is a field of the value. Without it there are
no others. The columns are checked before a row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from postroom.client import arguments
from postroom.client.codec import Packing, resolve
from postroom.errors import Error, Invalid
from postroom.limits import KEY_BYTES_MAX, VALUE_BYTES_MAX
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.messaging.requests import EnqueueMessage
from postroom.pipeline.options import LOAD, MODES, SinkOptions
from postroom.pipeline.typed_values import Convert, encoder
from postroom.ranges.requests import Delete, Increment, Put

_BYTES: Final = ("binary", "string")
_NUMBER: Final = ("byte", "short", "integer", "long")
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "mode": ("string",), "key": _BYTES, "value": _BYTES, "by": _NUMBER, "headers": ("map",),
    "deliver_at": ("timestamp",), "queue": ("string",), "kind": ("string",), "id": _BYTES,
    "priority": _NUMBER, "group": ("string",),
}  # fmt: skip
_COLUMNS: Final[dict[str, frozenset[str]]] = {
    "put": frozenset({"key", "value"}),
    LOAD: frozenset({"key", "value"}),
    "delete": frozenset({"key"}),
    "increment": frozenset({"key", "by"}),
    "message": frozenset({"key", "value", "headers", "deliver_at"}),
    "queue": frozenset(_TYPES) - {"mode", "by"},
    "": frozenset(_TYPES),
}
_WITHOUT_VALUE: Final = ("delete", "increment")

Row: TypeAlias = dict[str, Any]


def check(columns: dict[str, str], options: SinkOptions) -> None:
    """Check that rows with these columns can be written.

    Args:
        columns: names, and types as Spark calls them (``typeName``).
        options: the options of the sink.

    Raises:
        Invalid: a column is missing, has no meaning, or is of another type.
    """
    mode, allowed = options.mode, _COLUMNS[options.mode]
    said = f"mode={mode}" if mode else "a column mode"
    for name, type_ in columns.items():
        if name not in allowed and not (options.format and mode not in _WITHOUT_VALUE):
            raise Invalid(
                f"the column {name!r} means nothing with {said}; nothing was written: drop it, or "
                "give format=json or msgpack, which makes it a field of the value"
            )
        if name in allowed and type_ not in _TYPES[name]:
            raise Invalid(
                f"the column {name!r} is of the type {type_}, and should be "
                f"{' or '.join(_TYPES[name])}; nothing was written: cast it"
            )
    if options.format and "value" in columns:
        raise Invalid(
            "with format= the value is packed from columns, and there is a column 'value' besides; "
            "nothing was written: leave out format=, or rename the column"
        )
    _check_missing(columns, options, said)


def is_field(name: str, options: SinkOptions) -> bool:
    """Return whether a column is a field of the value."""
    return bool(options.format) and name not in _COLUMNS[options.mode]


def _check_missing(columns: dict[str, str], options: SinkOptions, said: str) -> None:
    mode = options.mode
    if "key" not in columns and mode != "queue":
        raise Invalid(f"there is no column 'key', which {said} needs; nothing was written: add it")
    if not options.format and "value" not in columns and mode not in {"", *_WITHOUT_VALUE}:
        raise Invalid(
            f"there is no column 'value', which {said} needs; nothing was written: add it, or give "
            "format=json or msgpack, which packs the other columns"
        )
    if mode == "queue" and not options.queue and "queue" not in columns:
        raise Invalid("mode=queue needs the option queue=, or a column 'queue'")


class RowMaker:
    """A maker of writes from Arrow batches.

    Args:
        options: the options of the sink.
        make_up_id: a function that returns an id that no other message has.
        partition: the number that errors name.

    Attributes:
        rows: the number of rows that became writes.
    """

    def __init__(
        self, options: SinkOptions, make_up_id: Callable[[], bytes], partition: int
    ) -> None:
        self._options = options
        self._make_up_id = make_up_id
        self._partition = partition
        self._codec: Packing = resolve(options.format or None)
        self._schema: pa.Schema | None = None
        self._encoders: dict[str, Convert] = {}
        self.rows = 0
        self._makers: dict[str, Callable[[Row], Any]] = {
            "put": self._put,
            "delete": lambda row: Delete(_key(row)),
            "increment": _increment,
            "message": self._message,
            "queue": self._enqueue,
        }

    def writes(self, batch: pa.RecordBatch) -> list[Any]:
        """Return the writes of the rows of a batch.

        Raises:
            Invalid: a row cannot be written; the message has its column and number.
        """
        options = self._options
        self._learn(batch.schema)
        if options.mode == "put" and not options.format:
            return list(map(Put, *self.pairs(batch)))
        made = self._made(batch, self._write)
        self.rows += len(made)
        return made

    def pairs(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        """Return the keys and values of a batch."""
        self._learn(batch.schema)
        if self._options.format:
            puts = self._made(batch, self._put)
            found = [put.key for put in puts], [put.value for put in puts]
        else:
            found = (
                self._bytes(batch, "key", KEY_BYTES_MAX),
                self._bytes(batch, "value", VALUE_BYTES_MAX),
            )
        self.rows += batch.num_rows
        return found

    def _learn(self, schema: pa.Schema) -> None:
        """Prepare the encoders of the fields of the value; a task has one schema."""
        if self._options.format and schema is not self._schema:
            self._schema = schema
            self._encoders = {
                field.name: encoder(field.name, field.type, self._options.format)
                for field in schema
                if field.name not in _COLUMNS[self._options.mode]
            }

    def _bytes(self, batch: pa.RecordBatch, name: str, bytes_max: int) -> list[bytes]:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            index = pc.index(pc.is_null(column), value=True).as_py()
            raise self._refused(index, _null(name))
        largest = pc.max(pc.binary_length(column)).as_py()
        if largest is not None and largest > bytes_max:
            sizes = pc.binary_length(column)
            index = pc.index(pc.greater(sizes, bytes_max), value=True).as_py()
            raise self._refused(index, f"{name!r} has {largest} bytes, the limit is {bytes_max}")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.binary())
        found: list[bytes] = column.to_pylist()
        return found

    def _made(self, batch: pa.RecordBatch, make: Callable[[Row], Any]) -> list[Any]:
        found = []
        for index, row in enumerate(_as_dicts(batch)):
            try:
                found.append(make(row))
            except (Error, TypeError, ValueError, KeyError) as error:
                raise self._refused(index, str(error)) from error
        return found

    def _refused(self, index: int, why: str) -> Invalid:
        return Invalid(
            f"row {self.rows + index} of partition {self._partition} cannot be written: {why}; "
            "nothing of the batch takes effect: correct the row, or filter it out"
        )

    # --- one row

    def _write(self, row: Row) -> Any:
        mode = self._options.mode or row.pop("mode", None)
        maker = self._makers.get(mode)
        if maker is None:
            raise Invalid(f"the column 'mode' is {mode!r}: one of {', '.join(MODES)}")
        return maker(row)

    def _payload(self, row: Row) -> Any:
        if not self._options.format:
            return _required(row, "value")
        return {name: encode(row[name]) for name, encode in self._encoders.items()}

    def _put(self, row: Row) -> Put:
        key = _key(row)
        return Put(key, arguments.value(self._payload(row), self._codec, key))

    def _message(self, row: Row) -> EnqueueMessage:
        key = _key(row)
        headers, size = _headers(row, key)
        payload = arguments.message(self._payload(row), self._codec, key, size)
        return EnqueueMessage(key, payload, headers, _due(row))

    def _enqueue(self, row: Row) -> EnqueueInQueue:
        queue = arguments.queue_name(row.get("queue") or self._options.queue)
        given = row.get("id")
        id_ = self._make_up_id() if given is None else arguments.message_id(given)
        key = id_ if row.get("key") is None else _key(row)
        headers, size = _headers(row, key)
        payload = arguments.message(self._payload(row), self._codec, key, size)
        kind, priority = row.get("kind") or "", row.get("priority") or 0
        return EnqueueInQueue(
            queue, key, arguments.kind(kind), id_, payload, headers, arguments.priority(priority),
            _due(row), arguments.group(row.get("group")), given is None,
        )  # fmt: skip


def _as_dicts(batch: pa.RecordBatch) -> Iterator[Row]:
    names = batch.schema.names
    columns = [column.to_pylist() for column in batch.columns]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _null(name: str) -> str:
    hint = {
        "value": "write an empty one, or delete the key with mode=delete",
        "key": "every row has one",
    }.get(name, "give one")
    return f"{name!r} is null: {hint}"


def _required(row: Row, name: str) -> Any:
    found = row.get(name)
    if found is None:
        raise Invalid(_null(name))
    return found.encode() if isinstance(found, str) else found


def _key(row: Row) -> bytes:
    return arguments.key(_required(row, "key"))


def _increment(row: Row) -> Increment:
    key = _key(row)
    return Increment(key, arguments.integer(_required(row, "by") if "by" in row else 1))


def _headers(row: Row, key: bytes) -> tuple[dict[str, Any] | None, int]:
    pairs = row.get("headers")
    if pairs is None:
        return None, 0
    return arguments.headers(dict(pairs), key)


def _due(row: Row) -> int:
    moment = row.get("deliver_at")
    return 0 if moment is None else arguments.due(moment, "deliver_at")

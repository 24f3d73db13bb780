"""Values that a codec packed, as columns of any type: on the executors, batch by batch.

``mode=failfast`` (the default) ends the task at the first value that cannot be decoded.
``mode=permissive`` makes it null, and keeps its bytes in the column :data:`CORRUPT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from postroom.client.codec import resolve
from postroom.errors import WrongType, shorten
from postroom.pipeline.typed_values import NotThatType, decoder

CORRUPT: Final = "_corrupt_record"
"""The column of values that cannot be decoded, in their stored form."""
FAILFAST: Final = "failfast"
PERMISSIVE: Final = "permissive"
_NAMES: Final = {"json": "JSON", "msgpack": "MessagePack"}


class Decode:
    """The decoder of the column of values of a table.

    Args:
        format_: ``json`` or ``msgpack``.
        field: the column, with its type.
        permissive: whether values that cannot be decoded are kept apart.

    Raises:
        Invalid: values of this type cannot be decoded.
    """

    def __init__(self, format_: str, field: pa.Field, *, permissive: bool) -> None:
        self._format = format_
        self._codec = resolve(format_)
        self._convert = decoder(field.name, field.type, format_)
        self._field = field
        self._permissive = permissive

    def columns(
        self, values: pa.Array, keys: pa.Array, integers: Sequence[bool]
    ) -> tuple[pa.Array, pa.Array]:
        """Return the decoded values, and the bytes of those that cannot be decoded.

        Args:
            values: as they are stored; null where there is none.
            keys: where they are stored.
            integers: whether ``increment`` stored it.

        Raises:
            WrongType: a value cannot be decoded, or is not of the type of the column.
        """
        found: list[object] = []
        corrupt: list[bytes | None] = []
        for value, key, integer in zip(values.to_pylist(), keys.to_pylist(), integers, strict=True):
            try:
                found.append(self._decoded(value, key, integer=integer))
                corrupt.append(None)
            except WrongType:
                if not self._permissive:
                    raise
                found.append(None)
                corrupt.append(value)
        return pa.array(found, self._field.type), pa.array(corrupt, pa.binary())

    def _decoded(self, value: bytes | None, key: bytes, *, integer: bool) -> object:
        if value is None:
            return None
        try:
            unpacked = self._codec.decode(value, key, integer=integer)
        except WrongType as error:
            shown = "an integer of increment" if integer else shorten(value)
            raise WrongType(
                f"the value at {shorten(key)}, {shown}, is no {_NAMES[self._format]}; give "
                "the format= that it was written with, read fewer keys (prefix=), or give "
                f"mode=permissive, which keeps such values in the column {CORRUPT}"
            ) from error
        try:
            converted: object = self._convert(unpacked)
            pa.scalar(converted, self._field.type)  # it may be too large for the type
        except (NotThatType, pa.ArrowException, OverflowError) as error:
            raise WrongType(
                f"the value at {shorten(key)} does not fit the type {self._field.type} of the "
                f"column {self._field.name!r}: {error}; correct the type, or give mode=permissive, "
                f"which keeps such values in the column {CORRUPT}"
            ) from error
        return converted


def decode_for(format_: str, schema: pa.Schema, name: str, mode: str) -> Decode | None:
    """Return the decoder of the column ``name`` of a schema; ``None``: its values stay bytes."""
    if not format_ or name not in schema.names:
        return None
    return Decode(format_, schema.field(name), permissive=mode == PERMISSIVE)

"""Values that a codec packed, as columns of any type: on the executors, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from postroom.client.codec import Packing, resolve
from postroom.errors import WrongType, shorten

Decode = Packing


def decode_for(format_: str) -> Decode | None:
    """What unpacks values of a format; ``None``: they stay bytes."""
    return resolve(format_) if format_ else None


def decoded(
    values: pa.Array, keys: pa.Array, integers: Sequence[bool], field: pa.Field, decode: Decode
) -> pa.Array:
    """Values as what they say. An integer that ``increment`` stored is one.

    Raises:
        WrongType: one cannot be unpacked, or is nothing of the column's type.
    """
    names = keys.to_pylist()
    found: list[Any] = [
        None if value is None else decode.decode(value, name, integer=integer)
        for value, name, integer in zip(values.to_pylist(), names, integers, strict=True)
    ]
    try:
        return pa.array(found, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise WrongType(
            f"values from {shorten(names[0])} on do not fit the type {field.type} of the column "
            f"{field.name!r}: {error}"
        ) from error

"""Values of columns ⇄ JSON or MessagePack, directed by the type of the column.

One table says both ways, for the sink, the source, the job ``load`` and messages:

====================  ===============================  ===================================
type of Spark         JSON                             MessagePack
====================  ===============================  ===================================
boolean, text         as they are                      as they are
whole numbers         number                           integer
float, double         number; ``"NaN"``,               float
                      ``"Infinity"``, ``"-Infinity"``
decimal               text, ``"12.30"``                text
binary                text in Base64                   binary
date                  text, ``"2013-01-31"``           text
timestamp             text with an offset,             text
                      ``"2013-01-31T12:00:00+00:00"``
timestamp_ntz         text without an offset           text
array                 array                            array
struct                object by names                  map by names
map                   object; keys are text, numbers   map; keys are text or whole numbers
                      or booleans, written as text
null                  ``null``                         nil
====================  ===============================  ===================================

Any other type (intervals, variant, maps with other keys) is refused before a row is read, by the
name of its column. Reading accepts exactly the forms that are written.

Executors decode whole columns, batch by batch (:class:`Decode`). ``mode=failfast`` (the default)
ends the task at the first value that cannot be decoded. ``mode=permissive`` makes it null, and
keeps its bytes in the column :data:`CORRUPT`.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final, TypeAlias

import pyarrow as pa

from postroom.client.codec import resolve
from postroom.errors import Invalid, WrongType, shorten

Convert: TypeAlias = Callable[[Any], Any]
"""A function that converts a value that is not null."""

_NOT_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class NotThatType(ValueError):
    """A stored value is not of the type of its column."""


def encoder(name: str, type_: pa.DataType, format_: str) -> Convert:
    """Return a function that makes what JSON or MessagePack packs of a value of a column.

    Args:
        name: of the column, for errors.
        type_: as Arrow has it.
        format_: ``json`` or ``msgpack``.

    Raises:
        Invalid: values of this type cannot be packed.
    """
    return _nullable(_encoder(name, type_, format_ == "json"))


def decoder(name: str, type_: pa.DataType, format_: str) -> Convert:
    """Return a function that makes a value of a column of what JSON or MessagePack has unpacked.

    It raises ``NotThatType`` for what :func:`encoder` would not have made.

    Args:
        name: of the column, for errors.
        type_: as Arrow has it.
        format_: ``json`` or ``msgpack``.

    Raises:
        Invalid: values of this type cannot be unpacked.
    """
    return _nullable(_decoder(name, type_, format_ == "json"))


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def refused(name: str, type_: object) -> Invalid:
    """Return the error for a column whose type has no form."""
    return Invalid(
        f"the column {name!r} is of the type {type_}, which has no form in JSON and MessagePack; "
        "nothing was done: cast it, to text for example"
    )


# --- encoding -------------------------------------------------------------------------------------


def _encoder(name: str, type_: pa.DataType, is_json: bool) -> Convert:
    scalar = _scalar(type_, _ENCODERS, is_json)
    if scalar is not None:
        return scalar
    if _is_list(type_):
        element = _nullable(_encoder(f"{name}[]", type_.value_type, is_json))
        return lambda values: [element(each) for each in values]
    if pa.types.is_map(type_):
        return _map_encoder(name, type_, is_json)
    if pa.types.is_struct(type_):
        fields = [
            (field.name, _nullable(_encoder(f"{name}.{field.name}", field.type, is_json)))
            for field in type_
        ]
        return lambda values: {field: convert(values[field]) for field, convert in fields}
    raise refused(name, type_)


def _map_encoder(name: str, type_: pa.MapType, is_json: bool) -> Convert:
    _check_keys(name, type_, is_json)
    item = _nullable(_encoder(f"{name}{{}}", type_.item_type, is_json))
    if not is_json:
        return lambda pairs: {key: item(each) for key, each in _pairs(pairs)}
    return lambda pairs: {_key_text(key): item(each) for key, each in _pairs(pairs)}


def _check_keys(name: str, type_: pa.MapType, is_json: bool) -> None:
    known = _is_text(type_.key_type) or pa.types.is_integer(type_.key_type)
    if not known and not (is_json and pa.types.is_boolean(type_.key_type)):
        raise refused(name, type_)


def _pairs(given: Any) -> Any:
    """Return the pairs of a map, as Arrow or as Spark hands it on."""
    return given.items() if isinstance(given, dict) else given


def _key_text(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)


def _same(value: Any) -> Any:
    return value


def _float_to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- decoding -------------------------------------------------------------------------------------


def _decoder(name: str, type_: pa.DataType, is_json: bool) -> Convert:
    scalar = _scalar(type_, _DECODERS, is_json)
    if scalar is not None:
        return scalar
    if pa.types.is_timestamp(type_):
        return _parsed(_moment_with_offset if type_.tz else _moment_without_offset)
    if _is_list(type_):
        element, is_list = (
            _nullable(_decoder(f"{name}[]", type_.value_type, is_json)),
            _exactly(list),
        )
        return lambda values: [element(each) for each in is_list(values)]
    if pa.types.is_map(type_):
        return _map_decoder(name, type_, is_json)
    if pa.types.is_struct(type_):
        return _struct_decoder(name, type_, is_json)
    raise refused(name, type_)


def _map_decoder(name: str, type_: pa.MapType, is_json: bool) -> Convert:
    _check_keys(name, type_, is_json)
    item = _nullable(_decoder(f"{name}{{}}", type_.item_type, is_json))
    key = _key_from_text(type_.key_type) if is_json else _decoder(name, type_.key_type, is_json)
    is_map = _exactly(dict)
    return lambda found: [(key(each), item(value)) for each, value in is_map(found).items()]


def _key_from_text(type_: pa.DataType) -> Convert:
    if pa.types.is_integer(type_):
        return _parsed(int)
    if pa.types.is_boolean(type_):
        return _parsed({"true": True, "false": False}.__getitem__)
    return _exactly(str)


def _struct_decoder(name: str, type_: pa.StructType, is_json: bool) -> Convert:
    """Return the decoder of a struct; fields that are not there are null, others are left out."""
    fields = [
        (field.name, _nullable(_decoder(f"{name}.{field.name}", field.type, is_json)))
        for field in type_
    ]
    is_map = _exactly(dict)
    return lambda found: {field: convert(is_map(found).get(field)) for field, convert in fields}


def _exactly(kind: type) -> Convert:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise NotThatType(f"it is {type(value).__name__}, not {kind.__name__}")
        return value

    return check


def _parsed(parse: Callable[[str], Any]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise NotThatType(f"it is {type(value).__name__}, not text")
        try:
            return parse(value)
        except (ValueError, KeyError, ArithmeticError) as error:
            raise NotThatType(f"{value[:40]!r} is not of the type of the column") from error

    return convert


def _float_from(value: Any) -> float:
    if type(value) in {int, float}:
        return float(value)
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise NotThatType(f"it is {type(value).__name__}, not a number")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error


def _moment_with_offset(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it has no offset")
    return moment


def _moment_without_offset(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        raise ValueError("it has an offset")
    return moment


# --- types ----------------------------------------------------------------------------------------


def _is_binary(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


_Scalars: TypeAlias = tuple[tuple[Callable[[pa.DataType], bool], Convert, Convert], ...]
"""The test of a type, and the converters of its values for JSON and for MessagePack."""

_iso: Final = methodcaller("isoformat")
_from_iso: Final = _parsed(datetime.date.fromisoformat)
_from_decimal: Final = _parsed(decimal.Decimal)

_ENCODERS: Final[_Scalars] = (
    (pa.types.is_boolean, _same, _same),
    (pa.types.is_integer, _same, _same),
    (_is_text, _same, _same),
    (pa.types.is_null, _same, _same),
    (pa.types.is_floating, _float_to_json, _same),
    (pa.types.is_decimal, str, str),
    (_is_binary, _to_base64, _same),
    (pa.types.is_date, _iso, _iso),
    (pa.types.is_timestamp, _iso, _iso),
)
_DECODERS: Final[_Scalars] = (
    (pa.types.is_boolean, _exactly(bool), _exactly(bool)),
    (pa.types.is_integer, _exactly(int), _exactly(int)),
    (_is_text, _exactly(str), _exactly(str)),
    (pa.types.is_null, _exactly(type(None)), _exactly(type(None))),
    (pa.types.is_floating, _float_from, _float_from),
    (pa.types.is_decimal, _from_decimal, _from_decimal),
    (_is_binary, _parsed(_from_base64), _exactly(bytes)),
    (pa.types.is_date, _from_iso, _from_iso),
)


def _scalar(type_: pa.DataType, table: _Scalars, is_json: bool) -> Convert | None:
    """Return the converter of a type that has no others inside; ``None``: it has."""
    for is_one, to_json, to_messagepack in table:
        if is_one(type_):
            return to_json if is_json else to_messagepack
    return None


# --- columns of values ----------------------------------------------------------------------------


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

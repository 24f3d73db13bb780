"""The memory of a decoded request, estimated from its type and the lengths of its lists.

In MessagePack an empty list is one byte, in memory it is 56 and the 8 that point to it. The
requests that a client may keep under way are therefore not counted in bytes of its frames, but by
weight::

    weight = bytes of the request in its frame     (keys and values are copied)
           + other memory of its objects           (:func:`weight_of`)

A weight is an estimate, within a few bytes an object.
"""

from __future__ import annotations

import functools
import types
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

_POINTER_BYTES: Final = 8
_BYTES: Final = 40
"""Bytes of an object of bytes or text, without its contents."""
_NUMBER: Final = 32
_LIST: Final = 64
_TUPLE: Final = 40
_ENTRY: Final = 104
"""Bytes of an entry of a dictionary, with room for more."""
_STRUCT: Final = 24
_PLAIN: Final[dict[Any, int]] = {
    bytes: _BYTES, str: _BYTES, msgspec.Raw: _BYTES, int: _NUMBER, float: _NUMBER
}  # fmt: skip


class _Shape(NamedTuple):
    """The memory of instances of a class: always, and for each element of their lists.

    Attributes:
        always: bytes that each instance takes.
        lists: the name of each such field, and the bytes that an element takes; 0: each is weighed.
        parts: names of fields that are weighed themselves.
    """

    always: int
    lists: tuple[tuple[str, int], ...]
    parts: tuple[str, ...]


def weight_of(value: Any) -> int:
    """Estimate the bytes that the objects of a request take, without the bytes in them."""
    kind: Any = type(value)
    always, lists, parts = _shape(kind)
    for name, each in lists:
        elements = getattr(value, name)
        if elements:
            always += len(elements) * each if each else sum(map(weight_of, elements))
    for name in parts:
        always += weight_of(getattr(value, name))
    return always


def weight_of_element(type_: Any) -> int:
    """Return the least bytes that an element of this type takes in a list, without its contents."""
    return _POINTER_BYTES + _least(type_)


@functools.cache
def _shape(kind: Any) -> _Shape:
    if not issubclass(kind, msgspec.Struct):
        return _Shape(_least(kind), (), ())
    lists, parts = [], []
    for field in msgspec.structs.fields(kind):
        type_ = _plain(field.type)
        origin, of = get_origin(type_), get_args(type_)
        if origin is dict:
            lists.append((field.name, _ENTRY + sum(map(_least, of))))
        elif origin is list or of[1:] == (...,):
            lists.append((field.name, 0 if _is_open(of[0]) else weight_of_element(of[0])))
        elif _is_open(type_):
            parts.append(field.name)
    return _Shape(_least(kind), tuple(lists), tuple(parts))


def _is_open(type_: Any) -> bool:
    """Return whether only a value tells how much memory it takes."""
    type_ = _plain(type_)
    if isinstance(type_, TypeVar) or get_origin(type_) in {Union, types.UnionType}:
        return True
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


@functools.cache
def _least(type_: Any) -> int:
    """Return the least bytes that a value of this type takes."""
    type_ = _plain(type_)
    origin, of = get_origin(type_), get_args(type_)
    if origin is tuple and of[1:] != (...,):
        return _TUPLE + sum(map(weight_of_element, of))
    if origin in {list, tuple, dict}:
        return _LIST
    if origin in {Union, types.UnionType}:
        return min(map(_least, of))
    kind = origin or type_
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _STRUCT + sum(weight_of_element(each.type) for each in msgspec.structs.fields(kind))
    return _PLAIN.get(kind, 0)


def _plain(type_: Any) -> Any:
    """Return a type without its annotation, and without ``None``."""
    if get_origin(type_) is Annotated:
        type_ = get_args(type_)[0]
    if get_origin(type_) in {Union, types.UnionType}:
        others = [each for each in get_args(type_) if each is not type(None)]
        if len(others) == 1:
            return _plain(others[0])
    return type_

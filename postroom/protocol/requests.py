"""The requests of the protocol: all that the listed modules define, and tables by their types.

A request is added by its class in one of these modules; its class tells everything about it
(:mod:`postroom.ranges.contract`), and the tables here follow. Answers have no kind of their own on
the wire: they are decoded by the type of the request that they answer.

*Revisions.* A node tells in its Welcome which revision of requests it understands.
Requests are added over time, and clients and nodes are upgraded one after the other. A node that
is asked an unknown request can only end the stream: it cannot even read the frame. A client
therefore sends no node a request from after the node's revision, and tells its caller that.

A new request has the next revision as its ``since`` (:mod:`postroom.ranges.contract`). All that are
added before a release have the same one.

*Weights.* The memory of a decoded request is estimated from its type and the lengths of its lists.
In MessagePack an empty list is one byte, in memory it is 56 and the 8 that point to it. The
requests that a client may keep under way are therefore not counted in bytes of its frames, but by
weight::

    weight = bytes of the request in its frame     (keys and values are copied)
           + other memory of its objects           (:func:`weight_of`)

A weight is an estimate, within a few bytes an object.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from postroom.errors import VersionMismatch
from postroom.messaging import bulk_requests as bulk_messages
from postroom.messaging import history_requests as histories
from postroom.messaging import requests as messages
from postroom.messaging import trail_requests
from postroom.messaging.handover import requests as handovers
from postroom.messaging.ingest import requests as ingests
from postroom.messaging.queues import claim_requests as queue_claims
from postroom.messaging.queues import definition_requests as queue_definitions
from postroom.messaging.queues import maintenance as queue_services
from postroom.messaging.queues import queries as queue_queries
from postroom.messaging.queues import requests as queues
from postroom.protocol.failures import Failure, WireError
from postroom.ranges import (
    access,
    audit,
    lease_moves,
    listing,
    nodes,
    protection_news,
    protections,
    settings,
    whole_protections,
)
from postroom.ranges import partitions as bulk_keys
from postroom.ranges import requests as keys
from postroom.ranges.contract import Request, Role, Write
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.split import requests as splits
from postroom.ranges.transactions import requests as transactions

MODULES: Final[tuple[ModuleType, ...]] = (
    keys,
    bulk_keys,
    listing,
    lease_moves,
    splits,
    protections,
    protection_news,
    whole_protections,
    nodes,
    access,
    audit,
    settings,
    transactions,
    messages,
    bulk_messages,
    handovers,
    ingests,
    queue_definitions,
    queues,
    queue_claims,
    queue_queries,
    queue_services,
    histories,
    trail_requests,
)
"""The modules that define requests."""


class Requests:
    """The requests that some modules define, in their order.

    Args:
        modules: the modules.

    Attributes:
        all: the classes of all requests.
        writes: the classes of those that a transaction may have.
        asked: the classes of those that a client may send, alone.
        write: the type of any write, for decoders.
        request: the type of any request that a client may send, for decoders.
        answers: the type of the answer to each request that a client may send.
    """

    def __init__(self, modules: Iterable[ModuleType] = MODULES) -> None:
        self.all = tuple(kind for module in modules for kind in _defined_in(module))
        self.writes = tuple(kind for kind in self.all if issubclass(kind, Write))
        self.asked = tuple(
            kind for kind in self.all if kind.role is not None and not issubclass(kind, Write)
        )
        write: Any = any_of(self.writes)
        self.write = write
        self.request: Any = any_of(
            CommitTransaction[write] if kind is CommitTransaction else kind for kind in self.asked
        )
        self.answers: dict[type[Request], Any] = {kind: kind.answer for kind in self.asked}

    def allowed(self, role: Role) -> frozenset[type[Request]]:
        """Return the classes of the requests that clients of a role may send."""
        return frozenset(
            kind for kind in self.asked if kind.role is not None and role.includes(kind.role)
        )


def name_of(kind: type[Request]) -> str:
    """Return the name of a class of requests on the wire."""
    return str(kind.__struct_config__.tag)


def _defined_in(module: ModuleType) -> Iterator[type[Request]]:
    for kind in vars(module).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, Request)
            and kind.__module__ == module.__name__
        ):
            yield kind


def any_of(types: Iterable[Any]) -> Any:
    """Return the union of some types, for decoders."""
    return functools.reduce(operator.or_, types)


# --- those of this version ------------------------------------------------------------------------

REQUESTS: Final = Requests()
"""The requests of this version."""


class _ResultDecoders(dict[type, Callable[[msgspec.Raw], Any]]):
    """The decoders of answers, each made when it is first needed."""

    def __missing__(self, kind: type) -> Callable[[msgspec.Raw], Any]:
        decode = self[kind] = msgspec.msgpack.Decoder(REQUESTS.answers[kind]).decode
        return decode


RESULT_DECODERS: Final = _ResultDecoders()
"""The decoders of answers. They raise ``MALFORMED`` for bytes that are no such answer."""

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_result(kind: type, result: msgspec.Raw) -> Any:
    """Decode the answer to a request of the type ``kind``.

    Raises:
        WireError: the bytes are no such answer.
    """
    try:
        return RESULT_DECODERS[kind](result)
    except MALFORMED as error:
        raise not_an_answer(kind, error) from error


def not_an_answer(kind: type, error: Exception) -> WireError:
    """Return the error for a result that is no answer to a request of the type ``kind``."""
    return WireError(f"not an answer to {kind.__name__}: {error}")


# --- revisions ------------------------------------------------------------------------------------


FIRST_REVISION: Final = 1
RANGES_REVISION: Final = 2
"""The first revision whose clients know that a store may have several ranges."""
REVISION: Final = max(RANGES_REVISION, *(kind.since for kind in REQUESTS.all))
"""The revision of this version: that of its newest request."""


def refusal(request: Request, revision: int) -> Failure | None:
    """Return the failure of a request that a node of this revision does not know, or ``None``."""
    for each in request.contained():
        if each.since > revision:
            return (
                VersionMismatch.__name__,
                (
                    f"the node that leads runs an earlier version of Postroom, which does not know "
                    f"{name_of(type(each))!r}; nothing was changed: upgrade all nodes, then try "
                    "again"
                ),
                None,
            )
    return None


# --- weights --------------------------------------------------------------------------------------


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
        weighed: names of fields that are weighed themselves.
    """

    always: int
    lists: tuple[tuple[str, int], ...]
    weighed: tuple[str, ...]


def weight_of(value: Any) -> int:
    """Estimate the bytes that the objects of a request take, without the bytes in them."""
    kind: Any = type(value)
    always, lists, weighed = _shape(kind)
    for name, each in lists:
        elements = getattr(value, name)
        if elements:
            always += len(elements) * each if each else sum(map(weight_of, elements))
    for name in weighed:
        always += weight_of(getattr(value, name))
    return always


def weight_of_element(type_: Any) -> int:
    """Return the least bytes that an element of this type takes in a list, without its contents."""
    return _POINTER_BYTES + _least(type_)


@functools.cache
def _shape(kind: Any) -> _Shape:
    if not issubclass(kind, msgspec.Struct):
        return _Shape(_least(kind), (), ())
    lists, weighed = [], []
    for field in msgspec.structs.fields(kind):
        type_ = _plain(field.type)
        origin, of = get_origin(type_), get_args(type_)
        if origin is dict:
            lists.append((field.name, _ENTRY + sum(map(_least, of))))
        elif origin is list or of[1:] == (...,):
            lists.append((field.name, 0 if _is_open(of[0]) else weight_of_element(of[0])))
        elif _is_open(type_):
            weighed.append(field.name)
    return _Shape(_least(kind), tuple(lists), tuple(weighed))


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

"""The decoding of a client's frame in stretches, between which others have their turns.

A frame has 32 MiB at most. It has four million keys, or a commit of some hundred thousand writes.
Decoded as a whole, it keeps a node from everything else for a tenth of a second, and takes many
times its bytes. A generator therefore goes over a frame of more than ``FRAME_STRETCH_BYTES``, and
the rest of any frame whose first requests have used up a turn. It yields after each piece::

    frame  [1, clock, [[7, ["commit", id, ..., [k, k, k, k, ...], [], [w, w, w, ...]]]], [], false]
                                              └─ run ─┘└─ run ─      └ run ┘└ run ─
           skipped over, item by item         decoded by msgspec as lists of their own, and joined

Items are skipped over by msgpack's unpacker, which makes nothing of them, and can be fed in pieces.
A large item of unknown make is thereby passed in bounded stretches. The type of a request says
where its lists are, and what their elements are. A request without the elements of its lists is
small; it is decoded as a whole, and gets its lists. The result, or the refusal, is as if the frame
were decoded at once (:func:`.frames.from_client`), with one difference: the requests before a
malformed one have come out already.

Invariants:

* A piece that msgspec decodes at once, or skips, has ``FRAME_STRETCH_BYTES`` at most, or consists
  of few keys and values, which are copied only.
* A request that is refused takes no memory, apart from elements decoded before. A request
  that this client may not ask for (:mod:`.frames`) is known by its tag, and one that takes too
  much memory by the lengths of its lists (:class:`DecodingBudget`).
* The requests that have been decoded are taken before more are decoded.

A request with a larger part that cannot be divided (headers, say, which have a limit of their own)
becomes :class:`NotDecoded`; the other requests of its frame are served. Its other parts must be
sound all the same, or the whole frame is refused: only the inside of the large part is not looked
at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin

import msgpack
import msgspec

from postroom import limits
from postroom.errors import ValueTooLarge
from postroom.limits import REQUESTS_PER_FRAME_MAX
from postroom.protocol.decoding import ARRAYS, MAPS, BudgetExceeded, DecodingBudget, PackedWalk
from postroom.protocol.failures import WireError, failure_from
from postroom.protocol.frames import (
    Ask,
    NotDecoded,
    Numbered,
    Permitted,
    array_header,
    decode_number,
    from_client,
)
from postroom.protocol.requests import REQUESTS, name_of, weight_of, weight_of_element

_ASK_FIELDS: Final = len(msgspec.structs.fields(Ask)) + 1
"""Elements of an ``Ask``, its kind included."""
_FIELDS: Final = 64
"""Fields of a request: as many as there are in any version, and more."""
_RUN_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the keys, or values, that are copied at a time, if all are as long as they may be."""
_STRUCTS_RUN: Final = 32
_ANY_LENGTH: Final = 1 << 32

Stretches = Generator[None, None, Any]


class _Refused(Exception):
    """The finding that a request is too large to be decoded.

    Attributes:
        stand_in: takes the place of a field that is too large, to let the rest of its request be
            decoded. A list has its place already.
        is_in_place: whether the rest can be decoded.
    """

    def __init__(self, why: str, stand_in: bytes = b"", *, is_in_place: bool = False) -> None:
        super().__init__(why)
        self.stand_in = memoryview(stand_in)
        self.is_in_place = is_in_place or bool(stand_in)


@dataclass(frozen=True, slots=True)
class _Element:
    """The elements of a list.

    Attributes:
        decode: decodes a list of them.
        run: how many are decoded at a time.
        is_bytes: they are copied only, however long.
        divide: decodes a large one; ``None``: none is large.
        weight: the least memory that one takes, without its bytes.
        is_open: whether each is weighed when it is decoded.
    """

    decode: Callable[[bytes], list[Any]]
    run: int
    is_bytes: bool = False
    divide: Callable[[memoryview, DecodingBudget], Stretches] | None = None
    weight: int = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class _List:
    """A field that is a list, or a tuple of any length."""

    name: str
    kind: type
    element: _Element
    length_max: int


@dataclass(frozen=True, slots=True)
class _RequestShape:
    """A type of request: its number of fields, tag included, and the lists among them by index."""

    fields: int
    lists: dict[int, _List]


_MALFORMED: Final = (
    msgspec.MsgspecError, msgpack.UnpackException, ValueError, RecursionError
)  # fmt: skip
_EMPTY_LIST: Final = memoryview(b"\x90")
_EMPTY_MAP: Final = b"\x80"


def is_large(frame: bytes) -> bool:
    """Return whether ``frame`` is to be decoded in stretches."""
    return len(frame) > limits.FRAME_STRETCH_BYTES


def ask_in_stretches(
    frame: bytes,
    permitted: Permitted,
    room: DecodingBudget,
    on_head: Callable[[Ask[Any]], None],
    first: int = 0,
) -> Generator[list[Numbered], None, None]:
    """Yield the requests of a frame, a few at a time; an empty list is the end of a stretch.

    Args:
        frame: the frame that has come in, which must be an ``Ask``.
        permitted: the requests that the client may ask for.
        room: for requests that are large.
        on_head: told the ``Ask`` without its requests, before these come.
        first: how many of the requests are passed over.

    Raises:
        WireError: the frame is no ``Ask``.
    """
    try:
        ask, packed = yield from _empty(_head(memoryview(frame)))
        on_head(ask)
        yield from _requests(packed, permitted, room, first)
    except _MALFORMED as error:
        raise WireError(f"not a frame of this protocol: {error}") from error


def _head(packed: memoryview) -> Generator[None, None, tuple[Ask[Any], memoryview]]:
    walk = PackedWalk(packed)
    length = yield from walk.array()
    begin, end = yield from walk.skip(min(length, 2))
    parts, requests = [packed[begin:end]], _EMPTY_LIST
    if length > 2:
        if not walk.next_is(*ARRAYS):
            raise WireError("not a frame of this protocol: no requests")
        begin = walk.at
        count = yield from walk.array()
        if count > REQUESTS_PER_FRAME_MAX:
            raise WireError(f"not a frame of this protocol: {count} requests")
        yield from walk.skip(count)
        requests = packed[begin : walk.at]
        parts.append(_EMPTY_LIST)
    for _ in range(3, min(length, _ASK_FIELDS)):
        begin, end = yield from walk.skip(1)
        if end - begin > limits.FRAME_STRETCH_BYTES:
            raise WireError("not a frame of this protocol: too much beside its requests")
        parts.append(packed[begin:end])
    yield from walk.skip(max(length - _ASK_FIELDS, 0))
    if walk.at != len(packed):
        raise WireError("not a frame of this protocol: something follows it")
    ask = from_client(b"".join((array_header(min(length, _ASK_FIELDS)), *parts)))
    if type(ask) is not Ask:
        raise WireError("not a frame of this protocol: it is too long for what it is")
    return ask, requests


def _requests(
    packed: memoryview, permitted: Permitted, room: DecodingBudget, first: int
) -> Generator[list[Numbered], None, None]:
    walk = PackedWalk(packed)
    left = (yield from _empty(walk.array())) - first
    yield from _empty(walk.skip(first))
    while left:
        run = min(left, _STRUCTS_RUN)
        left -= run
        begin, end = yield from _empty(walk.skip(run))
        if end - begin <= limits.FRAME_STRETCH_BYTES:
            yield permitted.decode_run(run, packed[begin:end])
            continue
        part, inner = packed[begin:end], PackedWalk(packed[begin:end])
        for _ in range(run):
            begin, end = yield from _empty(inner.skip(1))
            if end - begin <= limits.FRAME_STRETCH_BYTES:
                yield permitted.decode_run(1, part[begin:end])
            else:
                yield [(yield from _empty(_large(part[begin:end], permitted, room)))]


def _empty(stretches: Generator[None, None, Any]) -> Generator[list[Numbered], None, Any]:
    """Yield an empty list for each stretch, and return what ``stretches`` returns."""
    while True:
        try:
            next(stretches)
        except StopIteration as stop:
            return stop.value
        yield []


def _large(
    packed: memoryview, permitted: Permitted, room: DecodingBudget
) -> Generator[None, None, Numbered]:
    """Decode a large request, and return its number, the request, and its weight."""
    walk = PackedWalk(packed)
    if (yield from walk.array()) != 2:
        raise WireError("not a frame of this protocol: a request is a number and an array")
    begin, end = yield from walk.skip(1)
    number = decode_number(packed[begin:end])
    room.begin(len(packed))
    try:
        request = yield from _request(packed[end:], _REQUESTS, permitted, room)
    except _Refused as refused:
        request = NotDecoded(failure_from(ValueTooLarge(
            f"the request is too large: {refused}; nothing was done: ask for less at a time"
        )))  # fmt: skip
    except BudgetExceeded as no:
        request = NotDecoded(no.failure)
    return number, request, room.taken


def _elements(
    walk: PackedWalk, each: _List, room: DecodingBudget
) -> Generator[None, None, list[Any]]:
    """Decode the elements of the array that comes next."""
    element, length_max = each.element, each.length_max
    left = yield from walk.array()
    if left > length_max:
        raise WireError(f"not a frame of this protocol: {left} of what may be {length_max}")
    if left > limits.REQUEST_ITEMS_MAX:
        yield from walk.skip(left)
        raise _Refused(
            f"a list of {left}; one request may have {limits.REQUEST_ITEMS_MAX} of anything",
            is_in_place=True,
        )
    room.check(left * element.weight)
    found: list[Any] = []
    refused: _Refused | None = None
    while left:
        run = min(left, element.run)
        left -= run
        begin, end = yield from walk.skip(run)
        packed = walk.packed[begin:end]
        if element.is_bytes or end - begin <= limits.FRAME_STRETCH_BYTES:
            _decode(element, run, packed, room, found)
        else:
            refused = (yield from _large_elements(packed, run, element, room, found)) or refused
    if refused is not None:
        raise refused
    return found


def _decode(
    element: _Element, count: int, packed: memoryview, room: DecodingBudget, found: list[Any]
) -> None:
    """Decode ``count`` elements, which are small, and weigh them."""
    room.take(count * element.weight + len(packed))
    decoded = element.decode(b"".join((array_header(count), packed)))
    if element.is_open:
        room.take(max(sum(map(weight_of, decoded)) - count * element.weight, 0))
    found += decoded


def _large_elements(
    packed: memoryview, count: int, element: _Element, room: DecodingBudget, found: list[Any]
) -> Generator[None, None, _Refused | None]:
    """Decode the elements of a large run, one by one.

    Returns:
        Why one of them is refused, or ``None``.
    """
    refused = None
    walk = PackedWalk(packed)
    for _ in range(count):
        begin, end = (0, len(packed)) if count == 1 else (yield from walk.skip(1))
        if end - begin <= limits.FRAME_STRETCH_BYTES:
            _decode(element, 1, packed[begin:end], room, found)
            continue
        try:
            found.append((yield from _divided(packed[begin:end], element, room)))
        except _Refused as error:
            refused = error
    return refused


def _divided(packed: memoryview, element: _Element, room: DecodingBudget) -> Stretches:
    if element.divide is None:
        raise _Refused(
            f"{len(packed)} bytes in a list where nothing is that long", is_in_place=True
        )
    return element.divide(packed, room)


def _write(packed: memoryview, room: DecodingBudget) -> Stretches:
    """Decode a large write."""
    return _request(packed, _WRITES, None, room)


def _request(
    packed: memoryview,
    kinds: _Kinds,
    permitted: Permitted | None,
    room: DecodingBudget,
) -> Stretches:
    """Decode a request whose lists may be long, or a write, which needs no permission."""
    walk = PackedWalk(packed)
    length = yield from walk.array()
    if not 0 < length <= _FIELDS:
        raise WireError(f"not a frame of this protocol: a request of {length} fields")
    begin, end = yield from walk.skip(1)
    tag, parts = _decode_tag(packed[begin:end]), [packed[begin:end]]
    kind, failure = kinds.shape(tag), None if permitted is None else permitted.denied(tag)
    if kind is None:
        raise WireError("not a frame of this protocol: nothing that can be asked")
    if failure is not None:
        return NotDecoded(failure)
    found: list[tuple[_List, list[Any]]] = []
    refused: list[_Refused] = []
    for index in range(1, min(length, kind.fields)):
        each = kind.lists.get(index)
        try:
            if each is not None and walk.next_is(*ARRAYS):
                parts.append(_EMPTY_LIST)
                found.append((each, (yield from _elements(walk, each, room))))
            else:
                parts.append((yield from _field(walk, may_be_divided=True)))
                room.take(len(parts[-1]))
        except _Refused as error:
            refused.append(error)
            parts += [error.stand_in] if error.stand_in else []
    if refused and not all(error.is_in_place for error in refused):
        raise refused[0]
    # Fields of a later version are ignored.
    request = kinds.decode(b"".join((array_header(len(parts)), *parts)))
    room.take(weight_of(request))
    if refused:  # its other fields are sound
        raise refused[0]
    for each, elements in found:
        value = elements if each.kind is list else each.kind(elements)
        msgspec.structs.force_setattr(request, each.name, value)
    return request


def _field(walk: PackedWalk, *, may_be_divided: bool) -> Generator[None, None, memoryview]:
    """Go over a field that is no list.

    It may be long if it is a value, or a deferred update, which has one.
    """
    is_array, is_map = walk.next_is(*ARRAYS), walk.next_is(*MAPS)
    begin, end = yield from walk.skip(1)
    packed = walk.packed[begin:end]
    if not (is_array or is_map) or end - begin <= limits.FRAME_STRETCH_BYTES:
        return packed
    if is_map:
        raise _Refused(
            f"{end - begin} bytes in one map; for headers the limit is "
            f"{limits.HEADERS_BYTES_MAX} bytes, for metrics the limit is {limits.METRICS_MAX}",
            _EMPTY_MAP,
        )
    if not may_be_divided:
        raise _Refused(f"{end - begin} bytes in a field that cannot be divided")
    yield from _fields(packed)
    return packed


def _fields(packed: memoryview) -> Generator[None, None, None]:
    """Go over an array. Each of its items must be small, or a value."""
    walk = PackedWalk(packed)
    length = yield from walk.array()
    parts, refused = [], None
    for _ in range(min(length, _FIELDS)):
        try:
            parts.append((yield from _field(walk, may_be_divided=False)))
        except _Refused as error:
            if not error.stand_in:
                raise
            refused = error
            parts.append(error.stand_in)
    if walk.at != len(packed):
        raise _Refused(f"{length} fields")
    if refused is not None:
        raise _Refused(str(refused), b"".join((array_header(length), *parts)))


# --- the requests that have lists -----------------------------------------------------------------


def _element_of(type_: Any) -> _Element:
    decode, weight = msgspec.msgpack.Decoder(list[type_]).decode, weight_of_element(type_)
    if type_ == REQUESTS.write:
        return _Element(decode, _STRUCTS_RUN, divide=_write, weight=weight, is_open=True)
    plain, length_max = _bounded(type_, limits.KEY_BYTES_MAX)
    if plain is not bytes:
        return _Element(decode, _STRUCTS_RUN, weight=weight)
    run = min(max(_RUN_BYTES // length_max, 4), 256)
    return _Element(decode, run, is_bytes=True, weight=weight)


class _Kinds:
    """The types of a union, by their tags. The fields of one are looked at when it first comes.

    A look at those of all takes longer than most programs run.

    Args:
        union: the union.

    Attributes:
        types: the types, by their tags.
    """

    def __init__(self, union: Any) -> None:
        self.types = {name_of(get_origin(each) or each): each for each in get_args(union)}
        self._union = union
        self._shapes: dict[str, _RequestShape] = {}

    def shape(self, tag: str) -> _RequestShape | None:
        """Return the shape of the requests with a tag; ``None``: there are none."""
        shape = self._shapes.get(tag)
        if shape is None and tag in self.types:
            shape = self._shapes[tag] = _shape_of(self.types[tag])
        return shape

    @functools.cached_property
    def decode(self) -> Callable[[bytes], Any]:
        """Return the function that decodes one of them."""
        return msgspec.msgpack.Decoder(self._union).decode


def _shape_of(request: Any) -> _RequestShape:
    fields, lists = msgspec.structs.fields(request), {}
    for index, field in enumerate(fields, 1):
        type_, length_max = _bounded(field.type, _ANY_LENGTH)
        kind, of = get_origin(type_), get_args(type_)
        if kind is list or (kind is tuple and of[1:] == (...,)):
            lists[index] = _List(field.name, kind, _element_of(of[0]), length_max)
    return _RequestShape(len(fields) + 1, lists)


def _bounded(type_: Any, length_max: int) -> tuple[Any, int]:
    """Return a type without its annotation, and the length that the annotation allows."""
    if get_origin(type_) is not Annotated:
        return type_, length_max
    type_, meta = get_args(type_)[:2]
    return type_, meta.max_length or length_max


_decode_tag: Final = msgspec.msgpack.Decoder(str).decode
_REQUESTS: Final = _Kinds(REQUESTS.request)
_WRITES: Final = _Kinds(REQUESTS.write)

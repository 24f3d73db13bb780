"""A large frame of a client's is decoded in stretches, so that others have their turns between.

A frame has 32 MiB at most. That is four million keys, or a commit of some hundred thousand writes:
decoded as a whole, it keeps a node from everything else for a tenth of a second. So a frame of more
than ``FRAME_STRETCH_BYTES`` is gone over by a generator, which yields after each such piece::

    frame  [1, clock, [[7, ["commit", id, ..., [k, k, k, k, ...], [], [w, w, w, ...]]]], [], false]
                                              └─ run ─┘└─ run ─      └ run ┘└ run ─
           skipped over, item by item         decoded by msgspec as lists of their own, and joined

Items are skipped over by msgpack's unpacker, which makes nothing of them, and can be fed in pieces:
so also an item that is large, and of unknown make, is passed in bounded stretches. Where the lists
of a request are, and what they consist of, its type says. What is left of a request without the
elements of its lists is small; it is decoded as a whole, and gets its lists. So what comes out, and
what is refused, is as if the frame were decoded at once (:func:`.frames.from_client`).

Invariants:

* What msgspec decodes at once, or skips, has ``FRAME_STRETCH_BYTES`` at most, or consists of few
  keys and values, which are copied only.
* Nothing is made in memory of what is not wanted.

What cannot be divided, and is larger, is no sound request (headers, say, which have a limit of
their own). It becomes :class:`TooMuch`; the other requests of its frame are served. What it says
besides must be sound all the same, or the frame is none: only what is inside of what is too large
is not looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Annotated, Any, Final, get_args, get_origin

import msgpack
import msgspec

from postroom import limits
from postroom.errors import ValueTooLarge
from postroom.limits import REQUESTS_PER_FRAME_MAX
from postroom.protocol.failures import Failure, WireError, failure_from
from postroom.protocol.frames import Ask, Number, from_client
from postroom.protocol.requests import ClientRequest, WriteRequest

_FIELDS: Final = 64
"""Of a request: as many as there are in any version, and more."""
_RUN_BYTES: Final = 2 * 1024 * 1024
"""Of keys, or values, that are copied at a time, if all are as long as they may be."""
_STRUCTS_RUN: Final = 32
_ANY_LENGTH: Final = 1 << 32

Stretches = Generator[None, None, Any]


class TooMuch(msgspec.Struct, frozen=True):
    """Stands for a request that is refused because of its size.

    Attributes:
        failure: what its client is told.
    """

    failure: Failure


class _Refused(Exception):
    """A request is too large to be decoded.

    Attributes:
        stand_in: what takes the place of a field that is too large, so that the rest of its request
            can be decoded; of a list, that is there already.
        is_in_place: whether the rest can be.
    """

    def __init__(self, why: str, stand_in: bytes = b"", *, is_in_place: bool = False) -> None:
        super().__init__(why)
        self.stand_in = memoryview(stand_in)
        self.is_in_place = is_in_place or bool(stand_in)


@dataclass(frozen=True, slots=True)
class _Element:
    """What a list consists of.

    Attributes:
        decode: a list of it.
        run: how many are decoded at a time.
        is_bytes: they are copied only, however long.
        divide: how a large one is decoded; ``None``: none is large.
    """

    decode: Callable[[bytes], list[Any]]
    run: int
    is_bytes: bool = False
    divide: Callable[[memoryview], Stretches] | None = None


@dataclass(frozen=True, slots=True)
class _List:
    """A field that is a list, or a tuple of any length."""

    name: str
    kind: type
    element: _Element
    length_max: int


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of request: how many fields it has with its tag, and the lists among them by place."""

    fields: int
    lists: dict[int, _List]


class _Walk:
    """Goes over MessagePack item by item, and stops for a moment after each stretch.

    Args:
        packed: what is gone over.
    """

    __slots__ = ("_fed", "_left_at", "_skip", "_unpacker", "packed")

    def __init__(self, packed: memoryview) -> None:
        self.packed = packed
        self._unpacker = msgpack.Unpacker(max_buffer_size=len(packed))
        self._skip = self._unpacker.skip
        self._fed = 0
        self._left_at = 0

    @property
    def at(self) -> int:
        """Where the next item begins, if the last one has been gone over."""
        at: int = self._unpacker.tell()
        return at

    def next_is(self, *kinds: range | int) -> bool:
        """Whether the next item begins with one of these bytes."""
        first = self.packed[self.at : self.at + 1]
        return bool(first) and any(
            first[0] in kind if isinstance(kind, range) else first[0] == kind for kind in kinds
        )

    def array(self) -> Generator[None, None, int]:
        """Go over the header of an array; its length."""
        while True:
            try:
                length: int = self._unpacker.read_array_header()
            except msgpack.OutOfData:
                yield from self._feed()
            else:
                return length

    def skip(self, count: int) -> Generator[None, None, tuple[int, int]]:
        """Go over so many items; where they began, and where they end."""
        begin = self.at
        skips = starmap(self._skip, repeat((), count))
        while True:
            try:
                deque(skips, maxlen=0)
            except msgpack.OutOfData:
                yield from self._feed()
                yield from self._finish()
            else:
                return begin, self.at

    def _finish(self) -> Generator[None, None, None]:
        """Go on with an item that was there in part."""
        while True:
            try:
                self._skip()
            except msgpack.OutOfData:
                yield from self._feed()
            else:
                return

    def _feed(self) -> Generator[None, None, None]:
        """What was there has been gone over. (The body of a long value has not: it is passed at
        once as soon as all of it is there.)
        """
        if self._fed >= len(self.packed):
            raise WireError("not a frame of this protocol: it ends early")
        if self.at != self._left_at:
            yield
        self._left_at = self.at
        end = self._fed + limits.FRAME_STRETCH_BYTES
        self._unpacker.feed(self.packed[self._fed : end])
        self._fed = end


_EMPTY_LIST: Final = memoryview(b"\x90")
_EMPTY_MAP: Final = b"\x80"
_ARRAYS: Final = (range(0x90, 0xA0), 0xDC, 0xDD)
_MAPS: Final = (range(0x80, 0x90), 0xDE, 0xDF)


def is_large(frame: bytes) -> bool:
    """Whether ``frame`` is to be decoded in stretches."""
    return len(frame) > limits.FRAME_STRETCH_BYTES


def ask_in_stretches(frame: bytes) -> Generator[None, None, Ask]:
    """A large frame of a client's, which must be an ``Ask``.

    A request that is too large to be decoded is :class:`TooMuch`.

    Raises:
        WireError: it is none.
    """
    try:
        return (yield from _ask(memoryview(frame)))
    except (msgspec.MsgspecError, msgpack.UnpackException, ValueError, RecursionError) as error:
        raise WireError(f"not a frame of this protocol: {error}") from error


def _ask(packed: memoryview) -> Generator[None, None, Ask]:
    walk = _Walk(packed)
    length = yield from walk.array()
    begin, end = yield from walk.skip(min(length, 2))
    parts = [packed[begin:end]]
    requests: list[Any] = []
    if length > 2:
        if not walk.next_is(*_ARRAYS):
            raise WireError("not a frame of this protocol: no requests")
        requests = yield from _elements(walk, _PAIRS, REQUESTS_PER_FRAME_MAX)
        parts.append(_EMPTY_LIST)
    for _ in range(3, min(length, 5)):
        begin, end = yield from walk.skip(1)
        if end - begin > limits.FRAME_STRETCH_BYTES:
            raise WireError("not a frame of this protocol: too much is withdrawn")
        parts.append(packed[begin:end])
    yield from walk.skip(max(length - 5, 0))
    if walk.at != len(packed):
        raise WireError("not a frame of this protocol: something follows it")
    ask = from_client(b"".join((_array_header(min(length, 5)), *parts)))
    if type(ask) is not Ask:
        raise WireError("not a frame of this protocol: it is too long for what it is")
    msgspec.structs.force_setattr(ask, "requests", requests)
    return ask


def _elements(walk: _Walk, element: _Element, length_max: int) -> Generator[None, None, list[Any]]:
    """The elements of the array that comes next."""
    left = yield from walk.array()
    if left > length_max:
        raise WireError(f"not a frame of this protocol: {left} of what may be {length_max}")
    if left > limits.REQUEST_ITEMS_MAX:
        yield from walk.skip(left)
        raise _Refused(
            f"a list of {left}; one request may have {limits.REQUEST_ITEMS_MAX} of anything",
            is_in_place=True,
        )
    found: list[Any] = []
    refused: _Refused | None = None
    while left:
        run = min(left, element.run)
        left -= run
        begin, end = yield from walk.skip(run)
        packed = walk.packed[begin:end]
        if element.is_bytes or end - begin <= limits.FRAME_STRETCH_BYTES:
            found += element.decode(b"".join((_array_header(run), packed)))
        else:
            refused = (yield from _large_elements(packed, run, element, found)) or refused
    if refused is not None:
        raise refused
    return found


def _large_elements(
    packed: memoryview, count: int, element: _Element, found: list[Any]
) -> Generator[None, None, _Refused | None]:
    """The same of a run that is large: one by one. Answers why one of them is refused, if so."""
    refused = None
    walk = _Walk(packed)
    for _ in range(count):
        begin, end = (0, len(packed)) if count == 1 else (yield from walk.skip(1))
        if end - begin <= limits.FRAME_STRETCH_BYTES:
            found += element.decode(b"".join((b"\x91", packed[begin:end])))
            continue
        try:
            found.append((yield from _divided(packed[begin:end], element)))
        except _Refused as error:
            refused = error
    return refused


def _divided(packed: memoryview, element: _Element) -> Stretches:
    if element.divide is None:
        raise _Refused(
            f"{len(packed)} bytes in a list where nothing is that long", is_in_place=True
        )
    return element.divide(packed)


def _pair(packed: memoryview) -> Generator[None, None, tuple[int, Any]]:
    """A large request, and its number."""
    walk = _Walk(packed)
    if (yield from walk.array()) != 2:
        raise WireError("not a frame of this protocol: a request is a number and an array")
    begin, end = yield from walk.skip(1)
    number = _decode_number(packed[begin:end])
    try:
        return number, (yield from _request(packed[end:], _REQUESTS, _decode_request))
    except _Refused as refused:
        return number, TooMuch(failure_from(ValueTooLarge(
            f"the request is too large: {refused}; nothing was done: ask for less at a time"
        )))  # fmt: skip


def _write(packed: memoryview) -> Stretches:
    """A large write."""
    return _request(packed, _WRITES, _decode_write)


def _request(
    packed: memoryview, kinds: dict[str, _Kind], decode: Callable[[bytes], Any]
) -> Stretches:
    """A request, or a write, whose lists may be long."""
    walk = _Walk(packed)
    length = yield from walk.array()
    if not 0 < length <= _FIELDS:
        raise WireError(f"not a frame of this protocol: a request of {length} fields")
    begin, end = yield from walk.skip(1)
    kind, parts = kinds.get(_decode_tag(packed[begin:end])), [packed[begin:end]]
    if kind is None:
        raise WireError("not a frame of this protocol: nothing that can be asked")
    found: list[tuple[_List, list[Any]]] = []
    refused: list[_Refused] = []
    for place in range(1, min(length, kind.fields)):
        each = kind.lists.get(place)
        try:
            if each is not None and walk.next_is(*_ARRAYS):
                parts.append(_EMPTY_LIST)
                found.append((each, (yield from _elements(walk, each.element, each.length_max))))
            else:
                parts.append((yield from _field(walk, may_be_divided=True)))
        except _Refused as error:
            refused.append(error)
            parts += [error.stand_in] if error.stand_in else []
    if refused and not all(error.is_in_place for error in refused):
        raise refused[0]
    # What a later version says besides is not for us.
    request = decode(b"".join((_array_header(len(parts)), *parts)))
    if refused:  # what it says besides is sound
        raise refused[0]
    for each, elements in found:
        value = elements if each.kind is list else each.kind(elements)
        msgspec.structs.force_setattr(request, each.name, value)
    return request


def _field(walk: _Walk, *, may_be_divided: bool) -> Generator[None, None, memoryview]:
    """A field that is no list: a value, or an update that is deferred and has one, may be long."""
    is_array, is_map = walk.next_is(*_ARRAYS), walk.next_is(*_MAPS)
    begin, end = yield from walk.skip(1)
    packed = walk.packed[begin:end]
    if not (is_array or is_map) or end - begin <= limits.FRAME_STRETCH_BYTES:
        return packed
    if is_map:
        raise _Refused(
            f"{end - begin} bytes in one map; of headers the limit is "
            f"{limits.HEADERS_BYTES_MAX} bytes, of metrics the limit is {limits.METRICS_MAX}",
            _EMPTY_MAP,
        )
    if not may_be_divided:
        raise _Refused(f"{end - begin} bytes in a field that cannot be divided")
    yield from _fields(packed)
    return packed


def _fields(packed: memoryview) -> Generator[None, None, None]:
    """Go over an array; all that is in it must be small, or a value."""
    walk = _Walk(packed)
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
        raise _Refused(str(refused), b"".join((_array_header(length), *parts)))


def _array_header(length: int) -> bytes:
    """With which an array begins, in MessagePack."""
    if length < 1 << 4:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


# --- which requests have lists --------------------------------------------------------------------


def _element_of(type_: Any) -> _Element:
    decode = msgspec.msgpack.Decoder(list[type_]).decode
    if type_ is WriteRequest:
        return _Element(decode, _STRUCTS_RUN, divide=_write)
    plain, length_max = _bounded(type_, limits.KEY_BYTES_MAX)
    if plain is not bytes:
        return _Element(decode, _STRUCTS_RUN)
    return _Element(decode, min(max(_RUN_BYTES // length_max, 4), 256), is_bytes=True)


def _kinds(union: Any) -> dict[str, _Kind]:
    return {
        (get_origin(each) or each).__struct_config__.tag: _kind_of(each) for each in get_args(union)
    }


def _kind_of(request: Any) -> _Kind:
    fields, lists = msgspec.structs.fields(request), {}
    for place, field in enumerate(fields, 1):
        type_, length_max = _bounded(field.type, _ANY_LENGTH)
        kind, of = get_origin(type_), get_args(type_)
        if kind is list or (kind is tuple and of[1:] == (...,)):
            lists[place] = _List(field.name, kind, _element_of(of[0]), length_max)
    return _Kind(len(fields) + 1, lists)


def _bounded(type_: Any, length_max: int) -> tuple[Any, int]:
    """A type, and the length that its annotation allows."""
    if get_origin(type_) is not Annotated:
        return type_, length_max
    type_, meta = get_args(type_)[:2]
    return type_, meta.max_length or length_max


_decode_number: Final = msgspec.msgpack.Decoder(Number).decode
_decode_tag: Final = msgspec.msgpack.Decoder(str).decode
_decode_request: Final = msgspec.msgpack.Decoder(ClientRequest).decode
_decode_write: Final = msgspec.msgpack.Decoder(WriteRequest).decode
_PAIRS: Final = _Element(
    msgspec.msgpack.Decoder(list[tuple[Number, ClientRequest]]).decode, _STRUCTS_RUN, divide=_pair
)
_REQUESTS: Final = _kinds(ClientRequest)
_WRITES: Final = _kinds(WriteRequest)

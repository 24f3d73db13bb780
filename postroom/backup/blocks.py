"""The files of a backup: entries in the order of their names, in packed blocks.

::

    file     "postroom backup 1\\n", then blocks until it ends
    block    size packed (4), size unpacked (4), zlib(MessagePack)
    unpacked [[names, ends], [values, ends], gone]

Numbers have the most significant byte first; ends have 4 bytes, the least significant first. A
name or value lies between the end before it and its own. ``gone`` has a byte for each entry, which
is 1 if the entry has been deleted since the backup before; it is empty if none has. A file with
another first line has another format.
"""

from __future__ import annotations

import operator
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final

import msgspec

from postroom.errors import Invalid
from postroom.limits import BACKUP_BLOCK_BYTES_MAX, BACKUP_BLOCK_ROWS_MAX
from postroom.messaging.bulk_requests import BYTES, PackedColumn, pack, unpack

HEADING: Final = b"postroom backup 1\n"
_LEVEL: Final = 1
"""The least work: others wait for this processor."""
_sizes: Final = struct.Struct(">II")

Entries = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Names in rising order, and the value of each; ``None``: it is gone."""


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Entries as a file has them."""

    names: PackedColumn
    stored: PackedColumn
    gone: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Block).decode


def packed(block: Block) -> bytes:
    """Return the bytes of a block in a file."""
    plain = _encode(block)
    small = zlib.compress(plain, _LEVEL)
    return _sizes.pack(len(small), len(plain)) + small


def block_of(entries: Entries) -> Block:
    """Return entries as a block."""
    names, stored = entries
    gone = bytes(value is None for value in stored) if None in stored else b""
    values = (value or b"" for value in stored)
    return Block(pack(BYTES, names), pack(BYTES, values), gone)


def read_blocks(file: BinaryIO, path: object) -> Iterator[Entries]:
    """Iterate over the entries of a file, a block at a time.

    Args:
        file: the file, at its beginning.
        path: its path, for people.

    Raises:
        Invalid: it is damaged, or of another format.
    """
    if file.read(len(HEADING)) != HEADING:
        raise damaged(path, "it does not begin like a file of a backup")
    last = b""
    while sizes := file.read(_sizes.size):
        if len(sizes) < _sizes.size:
            raise damaged(path, "it ends within a block")
        small, plain = _sizes.unpack(sizes)
        if max(small, plain) > BACKUP_BLOCK_BYTES_MAX:
            raise damaged(path, f"it has a block of {max(small, plain)} bytes")
        try:
            names, stored = _unpacked(file.read(small), small, plain)
            if names[0] <= last:
                raise ValueError("its names do not rise from block to block")
        except (zlib.error, ValueError, msgspec.MsgspecError) as error:
            raise damaged(path, str(error)) from error
        last = names[-1]
        yield names, stored


def _unpacked(content: bytes, small: int, plain: int) -> Entries:
    """Return the entries of a block; ``ValueError``: it is damaged."""
    unzip = zlib.decompressobj()
    found = unzip.decompress(content, plain + 1)
    if len(content) < small or len(found) != plain or not unzip.eof:
        raise ValueError("a block has not the size that it tells")
    block = _decode(found)
    names, stored = _column(block.names), _column(block.stored)
    if not names or len(names) != len(stored) or len(block.gone) not in {0, len(names)}:
        raise ValueError("a block has not one value for each name")
    if not _is_ordered(operator.lt, names):
        raise ValueError("the names of a block do not rise")
    if not block.gone:
        return names, stored
    return names, [None if gone else value for value, gone in zip(stored, block.gone, strict=True)]


def _column(column: PackedColumn) -> list[bytes]:
    ends = memoryview(column.ends)
    if len(ends) % 4 or len(ends) > 4 * BACKUP_BLOCK_ROWS_MAX:
        raise ValueError("a block has too many entries, or half of one")
    found = array("I", b"\x00" * 4 + column.ends)
    if sys.byteorder == "big":  # pragma: no cover - no such machine runs the tests
        found.byteswap()
    if not _is_ordered(operator.le, found) or found[-1] != len(column.data):
        raise ValueError("the ends in a block do not fit its bytes")
    values: list[bytes] = unpack(BYTES, column)
    return values


def _is_ordered(is_before: Callable[[Any, Any], bool], values: Sequence[Any]) -> bool:
    return all(map(is_before, values, islice(values, 1, None)))


def damaged(path: object, what: str) -> Invalid:
    """Return the error for a file that is not as a backup writes it."""
    return Invalid(
        f"{path} is damaged: {what}; nothing of it was used: get the backup from where it is sound"
    )

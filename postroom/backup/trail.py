"""The trail in a backup: what has become of each entry since the backup before, and when.

An increment has only the last values, its trail the earlier ones too::

    part-00001       b = 3          over the image of the backup before: that of this backup
    trail-00001      b 10:04 = 1    up to 10:05, over the same image: that of 10:05
                     b 10:07 = 3

Names are those of :mod:`postroom.messaging.trail`.
"""

from __future__ import annotations

from collections.abc import Iterator

from postroom.backup.blocks import Entries, damaged
from postroom.messaging.trail import parted, value_in


def after(entries: Entries, timestamp: int) -> Entries:
    """Return the entries of a page of the trail that are later than a timestamp, as files do."""
    stamp = timestamp.to_bytes(8, "big")
    later = [
        (name, value_in(stored or b""))
        for name, stored in zip(*entries, strict=True)
        if name[-8:] > stamp
    ]
    return [name for name, _ in later], [value for _, value in later]


def as_of(blocks: Iterator[Entries], timestamp: int, path: object) -> Iterator[Entries]:
    """Iterate over the newest value of each entry up to a timestamp, in pieces.

    Args:
        blocks: the entries of a file.
        timestamp: the timestamp.
        path: the path of the file, for people.

    Raises:
        Invalid: the file is damaged.
    """
    found: dict[bytes, bytes | None] = {}
    for names, stored in blocks:
        for name, value in zip(names, stored, strict=True):
            entry, when = _parted(name, path)
            if when <= timestamp:
                found[entry] = value
        last = dict([found.popitem()]) if found else {}
        if found:
            yield [*found], [*found.values()]
        found = last  # it may go on in the next block
    if found:
        yield [*found], [*found.values()]


def _parted(name: bytes, path: object) -> tuple[bytes, int]:
    try:
        return parted(name)
    except ValueError as error:
        raise damaged(path, str(error)) from error

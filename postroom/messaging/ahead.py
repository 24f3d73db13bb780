"""What lies ahead of a reaper: messages that were read along with those that it was given.

Who empties an inbox asks for the next messages, and the next, and each time the engine would be
asked for a few of them. A reap that goes on where the one before it has ended reads more than was
asked for, and those after it are given what was read::

    given before        begin
    ... 1  2  3  4   │    5  6  7  8  9 ... 400
                      └─── from here to the last of them, exactly these are there ───┘

Invariant: from ``begin`` to the last message of a stretch, the applied state holds exactly its
messages. Who writes into inboxes keeps it so, as with the claims: what arrives among them cuts the
stretch off, and if one of them is taken out it is forgotten. That is done when it is evaluated, and
once more when it is applied, since somebody may have read in between. A leaseholder begins with
nothing.

What is claimed is not known here: a stretch is used from ``begin`` on, and only if nothing that is
claimed lies behind that.

Left out: inboxes that are held up (:mod:`.holds`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from postroom.limits import READ_AHEAD_BYTES_MAX, READ_AHEAD_INBOXES_MAX
from postroom.messaging.requests import MESSAGE_ID_BYTES

MESSAGES: Final = 400
"""So many are read at once, if less are asked for."""

Stored = list[tuple[bytes, bytes]]
"""Messages: ids, and what is stored of them."""

_id: Final = itemgetter(0)


@dataclass(slots=True)
class _Stretch:
    """The messages from ``begin`` on, without the first ``given`` of ``messages``."""

    begin: bytes
    messages: Stored
    given: int = 0


class Ahead:
    """The stretches of one range, by inbox: of those that were reaped last. Its length is how many
    messages it holds.
    """

    def __init__(self) -> None:
        self._stretches: dict[bytes, _Stretch] = {}

    def __len__(self) -> int:
        return sum(len(each.messages) - each.given for each in self._stretches.values())

    def clear(self) -> None:
        """Forget everything."""
        self._stretches.clear()

    def find(
        self, key: bytes, start: bytes, asked: int, bytes_max: int
    ) -> tuple[Stored, bytes] | None:
        """The first messages from ``start`` on, up to a number and a size (but one at least), and
        the id of the one that comes right after them; ``None``: that is not known here.
        """
        stretch = self._stretches.get(key)
        if stretch is None or start < stretch.begin or asked < 1:
            return None
        messages, given = stretch.messages, stretch.given
        if given + asked >= len(messages) or start > messages[given][0]:
            return None
        found, following = messages[given : given + asked], messages[given + asked][0]
        if sum([len(stored) for _, stored in found]) > bytes_max:
            size = 0
            for number, (id_, stored) in enumerate(found):
                size += len(stored)
                if size > bytes_max and number:
                    return found[:number], id_
        return found, following

    def give(self, key: bytes, number: int) -> None:
        """So many of those that were found are given."""
        stretch = self._stretches[key]
        stretch.given += number
        stretch.begin = stretch.messages[stretch.given - 1][0] + b"\x00"

    def forget(self, key: bytes) -> None:
        """Of an inbox."""
        self._stretches.pop(key, None)

    def read(
        self,
        key: bytes,
        start: bytes,
        given: Stored,
        beyond: tuple[bytes, bytes],
        entries: Iterator[tuple[bytes, bytes]],
    ) -> int:
        """A reap from ``start`` on is ``given`` what the engine was asked for.

        Args:
            key: whose inbox.
            start: nothing lies between it and the first of them.
            given: they follow each other.
            beyond: what comes right after them: its engine key and what is stored.
            entries: what comes after that, likewise.

        Returns:
            How many more were read: only if it goes on where the reap before has ended.
        """
        before = self._stretches.pop(key, None)
        messages: Stored = []
        if before is not None and start >= before.begin:
            size, number = 0, len(given)
            room = max(MESSAGES // number * number + 1 - number, 0)
            for raw, stored in islice(chain((beyond,), entries), room):
                size += len(stored)
                if size > READ_AHEAD_BYTES_MAX:
                    break
                messages.append((raw[-MESSAGE_ID_BYTES:], stored))
        self._stretches[key] = _Stretch(given[-1][0] + b"\x00", messages)
        if len(self._stretches) > READ_AHEAD_INBOXES_MAX:
            del self._stretches[next(iter(self._stretches))]
        return len(messages)

    def arrives(self, first: Mapping[bytes, bytes]) -> None:
        """Messages arrive: by inbox, the least of their ids."""
        for key, id_ in first.items() if self._stretches else ():
            stretch = self._stretches.get(key)
            if stretch is not None:
                # If the least is before ``begin``, others may be anywhere in the stretch.
                left = bisect_left(stretch.messages, id_, key=_id)
                del stretch.messages[left:]
                stretch.given = min(stretch.given, left)

    def gone(self, key: bytes, ids: list[bytes]) -> None:
        """Messages are taken out of an inbox; those that were given, as a rule."""
        stretch = self._stretches.get(key)
        if stretch is not None and max(ids) >= stretch.begin:
            del self._stretches[key]

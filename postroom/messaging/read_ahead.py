"""The messages that were read ahead for the next reaps of an inbox.

A client that empties an inbox reaps again and again, and each time the engine would be asked for a
few messages. A reap that goes on where the one before it has ended reads more than was asked for.
The reaps after it are given those messages::

    given before        begin
    ... 1  2  3  4   │    5  6  7  8  9 ... 400
                      └─── from here to the last of them, exactly these are there ───┘

Invariant: from ``begin`` to the last message of a stretch, the applied state holds exactly its
messages. Every write to inboxes keeps it true, as with the claims. Messages that arrive among them
cut the stretch off. A stretch is forgotten if one of its messages is taken out. Both happen at
evaluation, and once more at application, since a reap may have read in between. A leaseholder
begins with nothing.

Claims are not known here: a stretch is used from ``begin`` on, and only if nothing behind that is
claimed.

Inboxes that are held up (:mod:`.index`) are left out.
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
"""The number of messages that are read at once, if fewer are asked for."""

Stored = list[tuple[bytes, bytes]]
"""The ids of messages, and their stored forms."""

_id: Final = itemgetter(0)


@dataclass(slots=True)
class _Stretch:
    """A stretch: the messages from ``begin`` on, without the first ``given`` of ``messages``."""

    begin: bytes
    messages: Stored
    given: int = 0


class ReadAhead:
    """The stretches of one range, by inbox, for the inboxes reaped last.

    Its length is how many messages it holds.
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
        """Return the first messages from ``start`` on, and the id of the next one after them.

        These are at most ``asked`` messages of ``bytes_max`` bytes, but at least one. `None` means
        that they are not known here.
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
        """Note that a reap was given the first messages of a stretch."""
        stretch = self._stretches[key]
        stretch.given += number
        stretch.begin = stretch.messages[stretch.given - 1][0] + b"\x00"

    def forget(self, key: bytes) -> None:
        """Forget the stretch of an inbox."""
        self._stretches.pop(key, None)

    def read(
        self,
        key: bytes,
        start: bytes,
        given: Stored,
        beyond: tuple[bytes, bytes],
        entries: Iterator[tuple[bytes, bytes]],
    ) -> int:
        """Read ahead after a reap that was ``given`` messages from ``start`` on.

        Args:
            key: the key of the inbox.
            start: the id from which the messages given begin; nothing lies between.
            given: the messages given, which follow each other.
            beyond: the entry right after them: its engine key and its stored form.
            entries: the entries after that.

        Returns:
            How many more were read: only if the reap goes on where the one before has ended.
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
        """Cut stretches off where messages arrive: by inbox, the least of their ids."""
        for key, id_ in first.items() if self._stretches else ():
            stretch = self._stretches.get(key)
            if stretch is not None:
                # If the least is before ``begin``, others may be anywhere in the stretch.
                left = bisect_left(stretch.messages, id_, key=_id)
                del stretch.messages[left:]
                stretch.given = min(stretch.given, left)

    def gone(self, key: bytes, ids: list[bytes]) -> None:
        """Forget a stretch of which messages are taken out that were not given to a reap."""
        stretch = self._stretches.get(key)
        if stretch is not None and max(ids) >= stretch.begin:
            del self._stretches[key]

"""The outgoing entries of an outbox: what is on its way to other ranges, irrevocably.

::

    commit ─┬─ for a key of this range ──▶ inbox, or carried out
            ├─ for another range ────────▶ outgoing ── handed over ──▶ gone
            └─ for later ──▶ waiting ── due ──▶ one of the two

An entry is stored under its position (:mod:`.positions`), which lies above all earlier ones. It
leaves when its receiver has answered that it has taken it (:mod:`.receiving`).

A message never overtakes another one of its sender and key. A message for a key of the range is
therefore delivered at once only if no outgoing entry is for that key. There may be such entries
after the range has taken over the keys of a neighbour. Then later ones join them, and all are
handed over to the range itself, which has a mark for them like any other receiver. An update for
keys here and elsewhere goes out, too, and its parts are handed over (:mod:`.parts`).

Updates that were handed over to the range do not join: they come before all that is outgoing. Else
two groups of updates could change places for ever: one outgoing, one received and waiting.

These keys are counted in memory, from the beginning of a lease on. If very many entries were
outgoing then, all entries join until those are gone. Updates are counted together, since an update
may concern many keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from postroom import limits
from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.messaging.counters import Conservation
from postroom.messaging.handover.parts import first_key, has_keys, is_within, part_within
from postroom.messaging.handover.positions import position_of
from postroom.messaging.handover.pressure import check_room
from postroom.messaging.requests import Deliverable, Executable
from postroom.ranges.bounds import Bounds
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.requests import DeleteRange, Increment

COUNTED_AT_ONCE: Final = 100_000
"""The number of outgoing entries whose keys are counted when a lease begins."""
UPDATES: Final = b""
"""The name under which all updates are counted."""

_encode = msgspec.msgpack.encode


class Outgoing:
    """The outgoing entries of one outbox.

    Args:
        prefix: the key prefix of its entries; their positions follow.
        counter: the name of the counter of its entries.
        decode: see below.
        conservation: the range's counters.
        bounds: the bounds of the range.

    Attributes:
        decode: a function that decodes a stored entry.
        has_stored: whether entries were stored that the sending service has not heard of.
    """

    def __init__(
        self,
        prefix: bytes,
        counter: str,
        decode: Callable[[bytes], Any],
        conservation: Conservation,
        bounds: Bounds,
    ) -> None:
        self.prefix = prefix
        self.has_stored = False
        self._counter = counter
        self.decode = decode
        self._conservation = conservation
        self._bounds = bounds
        self._own: Counter[bytes] = Counter()
        self._uncounted, self._counted_after = 0, b""

    def restart(self, stored: Reader) -> None:
        """Count the entries for keys of the range, with a new lease or with new keys."""
        self._own.clear()
        self._uncounted, self._counted_after = 0, b""
        number = self.number
        if not number:
            return
        span = keys.KeySpan(self.prefix, keys.after_prefix(self.prefix))
        if number > COUNTED_AT_ONCE:
            self._uncounted = number
            self._counted_after, _ = next(stored.iterate(*span, reverse=True))
            return
        for _, each in islice(stored.iterate(*span), number):
            name = self._own_name(self.decode(each))
            if name is not None:
                self._own[name] += 1

    @property
    def number(self) -> int:
        """Return the number of entries, as applied."""
        number: int = getattr(self._conservation.applied, self._counter)
        return number

    def is_empty(self, view: View) -> bool:
        """Return whether there is no entry."""
        if not self.number:
            return True
        entries = view.iterate(self.prefix, keys.after_prefix(self.prefix))
        return next(entries, None) is None

    # --- entries that go out

    def may_go_out(self) -> bool:
        """Return whether there may be a key whose messages, or updates, go out."""
        return not self._bounds.is_whole or self._conservation.applied.outgoing_bytes > 0

    def goes_out(self, key: bytes) -> bool:
        """Return whether a message for a key goes out, and is not delivered here at once."""
        start, end = self._bounds.start, self._bounds.end
        is_here = start <= key and (end is None or key < end)
        return not is_here or self._uncounted > 0 or key in self._own

    def joins(self, key: bytes) -> bool:
        """Return whether outgoing messages for a key of the range would be overtaken."""
        return self._uncounted > 0 or key in self._own

    def update_goes_out(
        self, scratch: Container[object], update: Any, *, is_received: bool = False
    ) -> bool:
        """Return whether an update goes out, and is not carried out here at once.

        Args:
            scratch: the memory of the proposal. An update joins those that go out with it.
            update: the update.
            is_received: whether it was handed over to this range.
        """
        if type(update) is Increment:  # mostly
            start, end = self._bounds.start, self._bounds.end
            is_here = start <= update.key and (end is None or update.key < end)
        elif has_keys(update):
            is_here = self._owns(update)
        else:
            return False
        if not is_here or is_received:
            return not is_here
        return self._uncounted > 0 or UPDATES in self._own or self in scratch

    def _owns(self, update: Any) -> bool:
        """Return whether the range contains all keys of an update."""
        if type(update) is DeleteRange:
            return self._bounds.contains_span(update.start, update.end)
        return is_within(update, self._bounds.start, self._bounds.end)

    def has_own_from(self, key: bytes) -> bool:
        """Return whether entries go out that are for keys of the range from ``key`` on."""
        return self._uncounted > 0 or any(each >= key for each in self._own)

    def check_room(self, part: int = 1, most: int = limits.OUTGOING_MAX) -> None:
        """Check that there is room for one more entry; see :func:`check_room`.

        Raises:
            OutboxFull: too much is on its way already.
        """
        check_room(self._conservation.applied, part, most)

    def store(self, ctx: Evaluation, id_: bytes, entry: Deliverable | Executable) -> bytes:
        """Store an entry that goes out, and return its position."""
        position = position_of(ctx.stamp, id_)
        key = self.prefix + position
        ctx.writes[key] = stored = _encode(entry)
        size = len(key) + len(stored)
        ctx.grow(size)
        ctx.count(self._counter)
        ctx.count("outgoing_bytes", size)
        self.has_stored = True
        name = self._own_name(entry)
        if name is not None:
            ctx.scratch[self] = True
            ctx.after.append(lambda: self._own.update((name,)))
        return position

    def drop(self, ctx: Evaluation, positions: Sequence[bytes]) -> int:
        """Delete the entries at positions that receivers have answered for.

        Return how many there were.
        """
        dropped = 0
        for position in positions:
            ctx.steps += 1
            key = self.prefix + position
            stored = ctx.get(key)
            if stored is None:
                continue
            ctx.writes[key] = None
            ctx.grow(len(key))
            ctx.count("outgoing_bytes", -len(key) - len(stored))
            self._forget(ctx, key, self.decode(stored))
            dropped += 1
        ctx.count(self._counter, -dropped)
        ctx.count("handed", dropped)
        return dropped

    def _forget(self, ctx: Evaluation, key: bytes, entry: Deliverable | Executable) -> None:
        """Count an entry no longer, once the proposal is applied."""
        if self._uncounted and key <= self._counted_after:
            ctx.after.append(self._one_less)
            return
        name = self._own_name(entry)
        if name is not None:
            ctx.after.append(lambda: self._one_less_of(name))

    def _one_less(self) -> None:
        self._uncounted = max(self._uncounted - 1, 0)

    def _one_less_of(self, name: bytes) -> None:
        self._own[name] -= 1
        if self._own[name] <= 0:
            del self._own[name]

    def _own_name(self, entry: Deliverable | Executable) -> bytes | None:
        """Return the name under which an entry is counted; `None`: only other ranges get it."""
        if isinstance(entry, Deliverable):
            return entry.key if self._bounds.contains(entry.key) else None
        is_own = part_within(entry.request, self._bounds.start, self._bounds.end) is not None
        return UPDATES if is_own else None


def key_of(entry: Deliverable | Executable) -> bytes:
    """Return the first key of an outgoing entry."""
    return entry.key if isinstance(entry, Deliverable) else first_key(entry.request)

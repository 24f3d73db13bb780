"""The bounds of a range: which keys, and which engine keys, belong to a replica.

Several ranges lie in one engine. The metadata of each has a prefix of its own (``02``, ``03``).
COMMIT records, the index of inboxes, the data and staged rows (``04`` to ``07``) of all ranges are
in the same spaces, each under its user key::

    04  │      range 1      │ range 3 │       range 2        │      a replica reads and writes
    05  │      range 1      │ range 3 │       range 2        │      one piece of each space
    06  │      range 1      │ range 3 │       range 2        │
    07  │      range 1      │ range 3 │       range 2        │
        b""                 f         m                      end

Two rules keep a range within its piece:

* A request is refused if a key or a span that it concerns lies elsewhere (:meth:`.Bounds.refusal`).
  An evaluator may rely on the keys and spans of its request.
* An evaluator or a service that goes through a space of its own accord takes the span from here.

A replica has one :class:`Bounds`, which all of its parts share. It changes when a descriptor is
applied (:mod:`.descriptor`). A range that contains every key asks nothing of this (``is_whole``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from postroom.errors import Invalid, Unavailable
from postroom.kv import keys
from postroom.ranges.contract import KeySet, RangeIds

if TYPE_CHECKING:
    from postroom.ranges.calls import Call
    from postroom.ranges.contract import Concern, Request
    from postroom.ranges.descriptor import RangeDescriptor


class WrongRange(Unavailable):
    """No range that was asked contains all that a request concerns; nothing happened here.

    A router asks another range, so that no user sees this.

    Attributes:
        descriptors: the descriptors that are known where it was asked.
    """

    def __init__(self, *descriptors: RangeDescriptor) -> None:
        super().__init__(
            "the keys of the request belong to other ranges than the one that was asked; nothing "
            "was changed: try again",
            retry_after=0.05,
        )
        self.descriptors = descriptors


class Bounds:
    """The bounds of one replica, which change with its descriptor; see the module.

    Attributes:
        descriptor: the descriptor.
        start, end: the bounds of its keys; ``end=None`` is unbounded.
        is_whole: whether it contains every key.
        records, mail, data: the spans of engine keys of its COMMIT records, of its part of the
            index of inboxes, and of its data.
        staged: those of its staged rows.
    """

    __slots__ = ("data", "descriptor", "end", "is_whole", "mail", "records", "staged", "start")

    def __init__(self, descriptor: RangeDescriptor) -> None:
        self.take(descriptor)

    def take(self, descriptor: RangeDescriptor) -> None:
        """Take the bounds of another descriptor of the range.

        The descriptor changes last: a thread that reads it first never sees it with older bounds.
        """
        self.start, self.end = start, end = descriptor.start, descriptor.end
        self.is_whole = not start and end is None
        self.records = keys.transaction_span(start, end)
        self.mail, self.data = keys.mail_span(start, end), keys.data_span(start, end)
        self.staged = keys.staged_spans(start, end)
        self.descriptor = descriptor

    @property
    def spans(self) -> tuple[keys.KeySpan, ...]:
        """Return the spans of all engine keys beside the metadata, in order."""
        return self.records, self.mail, self.data, *self.staged

    def contains(self, key: bytes) -> bool:
        """Return whether the range contains a user key."""
        return self.start <= key and (self.end is None or key < self.end)

    def contains_keys(self, several: Sequence[bytes]) -> bool:
        """Return whether the range contains all of one or more user keys."""
        end = self.end
        if len(several) == 1:
            return self.start <= several[0] and (end is None or several[0] < end)
        return self.start <= min(several) and (end is None or max(several) < end)

    def contains_span(self, start: bytes, end: bytes | None) -> bool:
        """Return whether the range contains all keys in ``[start, end)``."""
        if end is not None and end <= start:
            return True
        return self.start <= start and (self.end is None or (end is not None and end <= self.end))

    def contains_engine_key(self, raw: bytes) -> bool:
        """Return whether an engine key of the spaces ``04`` to ``07`` belongs to it."""
        return any(span.lower <= raw < span.upper for span in self.spans)

    def clip(self, start: bytes, end: bytes | None) -> tuple[bytes, bytes | None]:
        """Return the part of a span of user keys that the range contains."""
        if self.end is not None and (end is None or end > self.end):
            end = self.end
        return max(start, self.start), end

    def refusal(self, request: Request) -> WrongRange | None:
        """Return the error for a request that concerns keys of other ranges; ``None``: none."""
        single = request.single_keys()
        if single is None:
            is_within = all(map(self.contains_all, request.participants()))
        else:
            is_within = self.contains_keys(single)
        return None if is_within else WrongRange(self.descriptor)

    def refusal_of(self, call: Call) -> WrongRange | None:
        """Return the error for a call, as :meth:`.refusal` does.

        The call remembers the descriptor that contains it. The stages that it passes need not ask
        if that is the present one.
        """
        if call.within is self.descriptor:
            return None
        wrong = self.refusal(call.request)
        if wrong is None:
            call.within = self.descriptor
        return wrong

    def check(self, request: Request) -> None:
        """Check that the range contains all that a request concerns.

        Raises:
            WrongRange: it does not.
        """
        wrong = self.refusal(request)
        if wrong is not None:
            raise wrong

    def contains_all(self, concern: Concern) -> bool:
        """Return whether the range contains all that is named by keys, spans or ids of ranges."""
        if isinstance(concern, KeySet):
            first, end = self.start, self.end
            for key in concern.keys:
                if key < first or (end is not None and key >= end):
                    return False
            for span in concern.spans:  # noqa: SIM110 - a generator takes longer
                if not self.contains_span(*span):
                    return False
            return True
        return not isinstance(concern, RangeIds) or {*concern.ids} <= {self.descriptor.range_id}


def no_such_range(*range_ids: int) -> Invalid:
    """Return the error for ranges that do not exist."""
    return Invalid(
        f"there is no range {', '.join(map(str, range_ids))}; nothing was changed: 'postroom range "
        "list' and db.ranges() show all ranges"
    )

"""The answers of several ranges about a queue, as one answer.

Numbers of messages are added up. The worst counts of all else that each range knows for itself: the
greatest lateness, the oldest message, the one that is held for longest.

A page of messages is merged in the order of one range, by the tokens of its messages. A range that
has more tells where its page ends. Messages of other ranges behind that come with a later page.
Messages of several ranges may have the same token: these come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from postroom.messaging.queues.queries import (
    HeldMessage,
    ListQueueMessages,
    QueuePage,
    QueueStats,
    QueueTotals,
    ToldResult,
)

_SUMS: Final = (*QueueTotals.__struct_fields__, "retried", "failures", "results")
PART_MESSAGES_MIN: Final = 100
"""The messages of a page that each range is asked for, however many ranges there are."""


def shared_page(request: ListQueueMessages, parts: int) -> ListQueueMessages:
    """Return the request for the page of one of several ranges."""
    most = request.messages_max
    return msgspec.structs.replace(
        request,
        messages_max=min(max(most // parts, PART_MESSAGES_MIN), most),
        bytes_max=max(request.bytes_max // parts, 1),
        with_tokens=True,
    )


def joined_pages(pages: Sequence[QueuePage]) -> QueuePage:
    """Return a page of the messages of all ranges, in the order of their tokens."""
    end = min([page.next for page in pages if page.next], default=b"")
    every = sorted(
        (found for page in pages for found in zip(page.tokens, page.messages, strict=True)),
        key=itemgetter(0),
    )
    found = [each for each in every if not end or each[0] <= end]
    return QueuePage([message for _, message in found], end, [token for token, _ in found])


def summed_stats(every: Sequence[QueueStats]) -> QueueStats:
    """Return the statistics of a queue over all ranges."""
    sums = {name: sum(getattr(each, name) for each in every) for name in _SUMS}
    troubled = max(every, key=lambda each: (bool(each.trouble), each.failures))
    return QueueStats(
        **sums,
        consumers=max(each.consumers for each in every),
        oldest=min((each.oldest for each in every if each.oldest), default=0),
        lateness_p50=_greatest(each.lateness_p50 for each in every),
        lateness_p99=_greatest(each.lateness_p99 for each in every),
        oldest_age=_greatest(each.oldest_age for each in every),
        trouble=troubled.trouble,
        longest_held=_longest(each.longest_held for each in every),
    )


def known_result(every: Sequence[ToldResult]) -> ToldResult:
    """Return what a range knows: of a message that is there, else the newest result."""
    known = [each for each in every if each.outcome != "unknown"]
    return next(
        (each for each in known if not each.seq),
        max(known, key=attrgetter("seq"), default=every[0]),
    )


def _greatest(numbers: Iterable[float | None]) -> Any:
    return max((each for each in numbers if each is not None), default=None)


def _longest(held: Iterable[HeldMessage | None]) -> HeldMessage | None:
    return max((each for each in held if each), key=lambda each: each.seconds, default=None)

"""The gaps of an archive: each run finds its own, and joins them to those of earlier runs.

The store tells since when it keeps something, but not what it had. A gap is a time in which
something *may* have ended without being archived: the run before is longer ago than
``purge_after``, or the queue was dropped. If the counter of a queue shows that nothing has ended,
there is no gap.

The list does not grow with the number of runs. Gaps of one queue that touch are one, and each queue
has a limited number. Beyond it, the two with the shortest time between them become one, which
claims a larger gap, never a smaller one. The list does not grow with the number of dropped queues
either: the older half of very many gaps is listed under "other queues", without their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from postroom.client.queues.messages import QueueInfo
from postroom.client.sync import CoreDatabase
from postroom.errors import Invalid
from postroom.kv.clock import from_seconds
from postroom.pipeline.jobs.archive.manifest import ArchiveManifest, Gap, Known

KEPT_SECONDS_MIN: Final = 75.0
"""The time for which done messages stay readable, however short ``purge_after`` is."""
OF_ONE_MAX: Final = 50
"""The number of gaps of a queue, or of the inboxes, that are told apart."""
OF_ALL_MAX: Final = 1_000
"""The number of gaps that are listed in all."""


def acknowledged_counts(db: CoreDatabase) -> dict[str, int]:
    """Return how many messages of each queue were ever acknowledged."""
    found = {}
    for info in db.queues():
        if info.damaged:
            continue
        try:
            found[info.name] = db.queue(info.name).stats().acknowledged
        except Invalid:  # the queue was dropped just now
            continue
    return found


def kept_for(info: QueueInfo) -> float:
    """Return for how many seconds done messages stay readable; negative: for ever."""
    return -1.0 if info.settings.archive else max(info.settings.purge_after, KEPT_SECONDS_MIN)


def queue_gaps(
    db: CoreDatabase,
    before: ArchiveManifest,
    infos: Iterable[QueueInfo],
    damaged: Container[str],
    at: int,
) -> Iterator[Gap]:
    """Yield what queues may have lost before it was read.

    Args:
        db: the store, as it is when all was read.
        before: the archive as it was.
        infos: the queues that were read; ``at``: up to which timestamp.
        damaged: those that could not be: what they lose is found out when they can, or are gone.
    """
    now = int(db.now())
    read = {each.name: int(each.created_at) for each in infos}
    there = {
        each.name: read.get(each.name) if each.damaged else int(each.created_at)
        for each in db.queues()
    }
    for name, known in before.queues.items():
        if name not in damaged and read.get(name) != known.created_at:
            yield Gap(name, known.until, min(read.get(name, at), at), is_queue=True, dropped=True)
    counted: Mapping[str, int] | None = None
    for info in infos:
        created_at = int(info.created_at)
        after = before.until(info.name, created_at) or created_at
        if after >= at:  # it was made after all that is read had happened
            continue
        if there.get(info.name) != created_at:
            yield Gap(info.name, after, at, is_queue=True, dropped=True)
            continue
        is_known = before.until(info.name, created_at) > 0
        then = before.queues[info.name] if is_known else Known(created_at, 0, 0)
        lost = _purged_until(then, info, now, at)
        if before.number and after < lost:
            counted = acknowledged_counts(db) if counted is None else counted
            if counted.get(info.name) != then.acknowledged:
                yield Gap(info.name, after, lost, is_queue=True)


def _purged_until(then: Known, info: QueueInfo, now: int, at: int) -> int:
    """Return up to when done messages may have been purged; 0: nothing was.

    The queue may have had its current settings for a moment only.
    """
    seconds = [each for each in (then.kept, kept_for(info)) if each >= 0]
    # More may have been purged while it was read.
    return min(now - from_seconds(min(seconds)), at) if seconds else 0


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """Return the gaps in fewer ones, those that end last at the end."""
    of_one: dict[tuple[str, bool, bool], list[Gap]] = defaultdict(list)
    for gap in sorted(gaps, key=lambda each: (each.after, each.until)):
        few = of_one[gap.what, gap.is_queue, gap.dropped]
        if few and gap.after <= few[-1].until:
            few[-1] = _both(few[-1], gap)
        else:
            few.append(gap)
    for few in of_one.values():
        while len(few) > OF_ONE_MAX:
            between = [other.after - one.until for one, other in pairwise(few)]
            first = between.index(min(between))
            few[first : first + 2] = [_both(few[first], few[first + 1])]
    found = sorted((gap for few in of_one.values() for gap in few), key=lambda each: each.until)
    if len(found) <= OF_ALL_MAX:
        return found
    older, rest = found[: len(found) // 2], found[len(found) // 2 :]
    return merged([*map(_without_name, older), *rest])


def _without_name(gap: Gap) -> Gap:
    return msgspec.structs.replace(gap, what="") if gap.is_queue else gap


def _both(one: Gap, other: Gap) -> Gap:
    return msgspec.structs.replace(one, until=max(one.until, other.until))

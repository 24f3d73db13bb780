"""The changes of several ranges, in one order of commits, as one range tells them.

::

    all ranges wait ── one has changes up to T ──▶ all are asked up to T ──▶ one answer

A range that is asked up to a timestamp answers once nothing more will be committed there before it.
The changes of all ranges are complete up to the least timestamp that one of them tells. Later ones
are left out, and asked for again.

One timestamp therefore tells how far a watch has come, whatever ranges split meanwhile, and nothing
is kept between two answers. A watch that waits in a range which splits is answered with nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from postroom.ranges import feed
from postroom.ranges.requests import CommittedChange, CommittedChanges, ScanChanges


def awaits_change(request: Any) -> bool:
    """Return whether the first range that answers a request lets all be asked."""
    return type(request) is ScanChanges and request.wait


def asked_until(request: ScanChanges, until: int) -> ScanChanges:
    """Return the request for the changes up to a timestamp, without a wait."""
    return msgspec.structs.replace(request, wait=False, until=until)


def nothing_new(request: ScanChanges) -> CommittedChanges:
    """Return the answer that has no changes, and tells no progress."""
    return CommittedChanges([], request.after)


def in_one_order(answers: Iterable[CommittedChanges]) -> CommittedChanges:
    """Return the changes of several ranges in the order of commits, as many as one answer has."""
    told = list(answers)
    until = complete_until(told)
    return feed.in_order(up_to([change for each in told for change in each.changes], until), until)


def complete_until(answers: Iterable[CommittedChanges]) -> int:
    """Return the timestamp up to which all ranges have told their changes."""
    return min(each.until for each in answers)


def up_to(changes: list[CommittedChange], until: int) -> list[CommittedChange]:
    """Leave out the changes after a timestamp: they come with the next answer."""
    return [change for change in changes if change.timestamp <= until]

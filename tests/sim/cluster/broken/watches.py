"""Mutations of watches of several ranges: each change once, in one order, up to a timestamp."""

from __future__ import annotations

from typing import Any

from postroom.client.routing import changes
from postroom.ranges.feed import ChangeFeed
from postroom.ranges.requests import ScanChanges
from postroom.ranges.transactions.intents import IntentTable
from tests.sim.cluster.broken import Patch


def farthest_range_tells_for_all() -> Patch:
    """Go on from where the farthest range has come, though others have told less."""
    return changes, "complete_until", lambda answers: max(each.until for each in answers)


def changes_stay_that_come_again() -> Patch:
    """Tell changes after the timestamp up to which all ranges have answered."""
    return changes, "up_to", lambda found, until: found


def commits_under_way_are_passed_by() -> Patch:
    """Answer that changes are complete up to a timestamp below which a commit is under way."""
    ends = ChangeFeed._ends

    def early(self: ChangeFeed, view: Any, request: ScanChanges) -> tuple[int, int]:
        if request.until:
            until = min(request.until, view.now)
            return until, until
        return ends(self, view, request)

    return ChangeFeed, "_ends", early


def prepared_writes_are_passed_by() -> Patch:
    """Answer that changes are complete above what is prepared, and may yet commit below."""
    return IntentTable, "limit", lambda self, timestamp: timestamp


def resolved_writes_are_in_no_order() -> Patch:
    """Keep the changes of a commit below others as if they came after them."""
    return IntentTable, "takes_disorder", lambda self: False

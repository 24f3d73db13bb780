"""Lists and scans in many pages, and requests in many turns, with anything in between.

A simulated client asks for little: with the sizes of the product it would be one page, evaluated in
one turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final
from unittest.mock import patch

from postroom import limits
from postroom.client import pages
from postroom.messaging.queues import dividing


@contextmanager
def drawn_page_sizes(randomness: Random) -> Iterator[None]:
    """Let pages have other sizes meanwhile, or those of the product."""
    pairs = randomness.choice([1, 2, 5, pages.PAIRS_PER_PAGE])
    list_bytes = randomness.choice([1, 100, 400, pages.LIST_BYTES_PER_PAGE])
    turns = _turns(randomness)
    copied = randomness.choice([1, 3, 3, dividing.COPIED_AT_ONCE])
    with (
        patch.multiple(limits, **turns, REQUEST_SECONDS=limits.REQUEST_SECONDS),
        patch.multiple(limits, STAGED_STEP_ROWS_MAX=5, STAGED_DELETED_AT_ONCE_MAX=2),
        patch.multiple(dividing, COPIED_AT_ONCE=copied, KEPT_UP_AT_ONCE=copied),
        patch.object(pages, "PAIRS_PER_PAGE", pairs),
        patch.object(pages, "LIST_BYTES_PER_PAGE", list_bytes),
    ):
        yield


VISITS_MAX: Final = 12
"""Keys that a step of a deferred ``DeleteRange`` looks at, at least, in turns of any size.

Deleted keys stay until they are garbage. With a key a step, hundreds of deferred deletions of one
span would take tens of thousands of entries, which show nothing more.
"""


def _turns(randomness: Random) -> dict[str, int]:
    """Return how much is done at a time: sometimes next to nothing."""
    drawn = {
        "TURN_STEPS_MAX": randomness.choice([1, 2, 7, 40]),
        "DELIVERED_AT_ONCE_MAX": randomness.choice([1, 2]),
        "EXECUTED_AT_ONCE_MAX": randomness.choice([1, 2]),
        "DELETED_AT_ONCE_MAX": randomness.choice([1, 2, 5]),
        "EXPANSION_METRICS_MAX": randomness.choice([1, 4]),
        "GARBAGE_LIST_KEYS_MAX": randomness.choice([1, 2]),
    }
    chosen = {name: each for name, each in drawn.items() if randomness.random() < 0.5}
    if "TURN_STEPS_MAX" in chosen:
        chosen["COMPLETED_AT_ONCE_MAX"] = chosen["TURN_STEPS_MAX"]
        chosen["DELETION_VISITS_MAX"] = max(chosen["TURN_STEPS_MAX"], VISITS_MAX)
    return chosen

"""The part of the store's audit log that tells what visitors did, and what they were refused.

An action that was done is told at once. Failed ones, and looks, actions and tokens that were
refused, cost no write each. They are counted, and told once a minute, with the next answer. All of
them are in the log of the process, too.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Literal

from postroom.errors import Error
from postroom.web.limits import (
    AUDIT_SECONDS,
    AUDITED_CHARACTERS_MAX,
    AUDITED_MAX,
    AUDITED_PER_VISITOR_MAX,
)
from postroom.web.store import NotKnown, OpenStore

log = logging.getLogger("postroom.web.actions")

Word = Literal["done", "failed", "refused"]
OTHERS: Final = "other actions"
OTHER_VISITORS: Final = "other visitors"


class AuditLog:
    """The audit log, for the pages.

    Args:
        store: the store.
        monotonic: returns the time in seconds.
    """

    def __init__(self, store: OpenStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._counted: Counter[tuple[str, Word, str]] = Counter()
        self._of_visitor: Counter[str] = Counter()
        self._told_at = monotonic() - AUDIT_SECONDS

    async def done(self, by: str, what: str) -> str:
        """Tell that an action was done; return why that could not be told, or nothing."""
        log.info("%s: done: %s", by, what)
        return await self._tell([(by, "done", what, 1)])

    def not_done(self, by: str, word: Word, what: str, why: Exception) -> None:
        """Count what has failed, or was refused."""
        told = f"{what}; {str(why).partition(';')[0]}"[:AUDITED_CHARACTERS_MAX]
        log.warning("%s: %s: %s", by, word, told)
        if (by, word, told) not in self._counted:
            if self._of_visitor[by] >= AUDITED_PER_VISITOR_MAX:
                told = OTHERS
            elif len(self._counted) >= AUDITED_MAX:
                by, told = OTHER_VISITORS, OTHERS
        self._of_visitor[by] += (by, word, told) not in self._counted
        self._counted[by, word, told] += 1

    def is_due(self) -> bool:
        """Return whether it is time to tell what was counted."""
        return bool(self._counted) and self._monotonic() - self._told_at >= AUDIT_SECONDS

    async def tell(self) -> None:
        """Tell what was counted; keep it for the next time, if that is impossible."""
        self._told_at = self._monotonic()
        told = list(islice(self._counted.items(), AUDITED_MAX))
        for action, _ in told:
            del self._counted[action]
        self._of_visitor = Counter(by for by, _, _ in self._counted)
        if await self._tell([(*action, times) for action, times in told]):
            for action, times in told:
                self._of_visitor[action[0]] += action not in self._counted
                self._counted[action] += times

    async def _tell(self, actions: Sequence[tuple[str, Word, str, int]]) -> str:
        try:
            await self._store.act(lambda db: db.access.note(actions))
        except (NotKnown, Error) as error:
            log.error("the audit log was not told: %s", error)
            return str(error)
        return ""

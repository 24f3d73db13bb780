"""The call ``backup`` of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postroom.backup.progress import Progress, silent
from postroom.backup.taking import BackupOrder, BackupResult, take


class BackupCalls:
    """The call of a database that backs it up; for asyncio."""

    async def backup(
        self: Any,
        folder: str | Path,
        *,
        since: str | Path | None = None,
        rate: int | None = None,
        trail: bool | None = None,
        progress: Progress | None = None,
    ) -> BackupResult:
        """Back up the store as it is now, while it is in use.

        The backup has values, inboxes, outboxes, dead letters, sums, queues, schedules, counters
        and grants, at one timestamp. It does not have older versions. ``postroom restore`` makes a
        store of it.

        Args:
            folder: a new folder, or one with the files of a backup that was killed.
            since: the folder of an earlier backup, beside it: only what has changed is written.
            rate: the bytes to read in a second at most.
            trail: whether to keep a trail of all changes from now on, and to take what it has since
                the backup before. A restore then reaches any time between the two. ``None``: leave
                it as it is.
            progress: a function that is told how far it is.

        Returns:
            The backup that is there now. If the folder has one already, that one.

        Raises:
            Invalid: the folder has something else in it, or ``since`` is no sound backup of this
                store; or a trail is wanted, and the store has several ranges.
            Unavailable: the device is full, or leaders change too often. There is no backup.
        """
        is_blocking = hasattr(self.sender, "run")
        elsewhere = _here if is_blocking else asyncio.to_thread
        order = BackupOrder(folder, since, rate, trail, progress or silent)
        return await take(self, order, elsewhere)


async def _here(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function in this thread, which may wait for the device."""
    return function(*given)

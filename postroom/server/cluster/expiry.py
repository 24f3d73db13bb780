"""The warning in time that a certificate of this node expires, which otherwise only others notice.

Certificates are read when the node starts, and the dates read then count.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from postroom.counted import counted

WARNING_TIME: Final = timedelta(days=14)
AGAIN_BEFORE: Final = timedelta(days=1)
AGAIN_AFTER: Final = timedelta(hours=1)

_log = logging.getLogger(__name__)


class Expiry:
    """The dates of one node's certificates; see the module.

    Args:
        dates: when each certificate expires, by its name.
    """

    def __init__(self, dates: Mapping[str, datetime]) -> None:
        self._dates = dates
        self._said_at: dict[str, datetime] = {}

    def look(self, wall_seconds: float) -> str:
        """Return the present fault of the certificates, or an empty text. Log it now and then."""
        now = datetime.fromtimestamp(wall_seconds, UTC)
        return "; ".join(filter(None, [self._look_at(name, now) for name in self._dates]))

    def _look_at(self, name: str, now: datetime) -> str:
        expiry = self._dates[name]
        left = expiry - now
        if left > WARNING_TIME:
            return ""
        is_over = left <= timedelta()
        until = f"on {expiry:%Y-%m-%d at %H:%M} UTC"
        said = f"{name} expired {until}" if is_over else f"{name} expires {until}"
        before = self._said_at.get(name)
        again = AGAIN_AFTER if is_over else AGAIN_BEFORE
        if before is None or not timedelta() <= now - before < again or before < expiry <= now:
            self._said_at[name] = now
            if is_over:
                _log.error(
                    "%s: nodes and clients refuse new connections; renew it, and start the node "
                    "again", said,
                )  # fmt: skip
            else:
                days = counted(left.days, "day")
                _log.warning("%s, in %s: renew it, and start the node again", said, days)
        return said

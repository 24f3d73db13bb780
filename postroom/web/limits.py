"""The limits of the pages, with their units last."""

from __future__ import annotations

from typing import Final

CONNECTIONS_MAX: Final = 200
"""The most connections of ``postroom web``. Further ones are refused with 503."""

HEAD_BYTES_MAX: Final = 16 * 1024
"""The most bytes of the head of a request to ``postroom web``."""

READ_SECONDS_MAX: Final = 1.8
"""The time after which a part of a page is told as unknown: a page is there within 2 s."""

ACTION_SECONDS_MAX: Final = 20.0

GRANTS_SECONDS: Final = 1.0
"""The time after which the grants of the store are read again."""

AUDIT_SECONDS: Final = 60.0
"""The time for which refusals and failures are counted, before the audit log is told."""

AUDITED_MAX: Final = 64
"""The most different ones of that time; others are counted together."""

AUDITED_PER_VISITOR_MAX: Final = 8
"""The most different ones of one visitor among these."""

AUDITED_CHARACTERS_MAX: Final = 400
"""The most characters of such an action, and of the reason."""

CHOSEN_CHARACTERS_MAX: Final = 200
"""The most characters of the ids of chosen messages in the audit log."""

READS_AT_ONCE_MAX: Final = 8
"""The most reads of the store that are under way at once, for all visitors together."""

ROWS_MAX: Final = 100
"""The most rows of one list. The next page goes on after the last of them."""

QUEUES_SUMMED_MAX: Final = 100
"""The most queues whose numbers are asked for in one page."""

SHOWN_BYTES_MAX: Final = 4096
"""The most bytes of a value or payload that are shown."""

NAME_BYTES_MAX: Final = 64
"""The most bytes of a key or an id that are shown in a list."""

BODY_BYTES_MAX: Final = 64 * 1024
"""The most bytes of the form or the JSON of an action."""

CHOSEN_MAX: Final = 1000
"""The most messages that one action concerns."""

SESSIONS_MAX: Final = 1000
"""The most visitors that are logged in. The one who came first has to log in again."""

SESSION_SECONDS_MAX: Final = 12 * 3600.0

SAMPLES_MAX: Final = 720
"""The most points of a chart."""

SAMPLE_SECONDS: Final = 5.0
"""The least time between two points of a chart: 720 of them are an hour."""

SERIES_MAX: Final = 101
"""The most charts whose points are kept: the store's, and those of the last queues looked at."""

SCAN_PAGES_MAX: Final = 2
"""The most requests for the rows of one page of keys: each looks at some thousand entries."""

VERSIONS_MAX: Final = 20
"""The most versions of a key that are shown."""

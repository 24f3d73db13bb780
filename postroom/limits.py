"""Every limit, in one place, with its unit last. DESIGN section 5 fixes the first group."""

from __future__ import annotations

from typing import Final

KEY_BYTES_MAX: Final = 8 * 1024
VALUE_BYTES_MAX: Final = 1024 * 1024
MESSAGE_BYTES_MAX: Final = 1024 * 1024
TRANSACTION_BYTES_MAX: Final = 16 * 1024 * 1024
TRANSACTION_SECONDS_MAX: Final = 60.0
REAPED_BYTES_DEFAULT: Final = TRANSACTION_BYTES_MAX // 2
"""A reap that names no number of bytes takes no more: its transaction must be able to commit it."""

CLOCK_OFFSET_SECONDS_MAX: Final = 0.5
"""How far the clocks of two nodes may stand apart (``max_offset``)."""

GC_TTL_SECONDS: Final = 60.0
"""How long a version that was overwritten can still be read."""

SYNC_INTERVAL_SECONDS: Final = 0.05
"""With ``durability="interval"``: how much a loss of power may cost."""

PROPOSAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""No more requests join a proposal that has grown past this."""

DISK_RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Writes are refused before the device is fuller than this: a full disk would stop the store."""

LOG_SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""Of a segment of the log. Two are in use as a rule, more while followers lag."""

LOG_SEGMENT_BYTES_MIN: Final = 64 * 1024

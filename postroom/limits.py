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

PEEKED_MESSAGES_MAX: Final = 10_000
"""Of one inbox, by one ``peek`` of a transaction: the commit looks at each of them once more."""

CLOCK_OFFSET_SECONDS_MAX: Final = 0.5
"""How far the clocks of two nodes may stand apart (``max_offset``)."""

GC_TTL_SECONDS: Final = 60.0
"""How long a version that was overwritten can still be read."""

SYNC_INTERVAL_SECONDS: Final = 0.05
"""With ``durability="interval"``: how much a loss of power may cost."""

PROPOSAL_BYTES_MAX: Final = 8 * 1024 * 1024
"""No more requests join a proposal that has grown past this."""

UPKEEP_BYTES: Final = 2 * 1024 * 1024
"""Of that, what deliveries, updates and the collection of garbage have for themselves."""

FEED_BYTES_MAX: Final = 16 * 1024 * 1024
"""What is kept of the last changes for those who watch them."""

CACHE_BYTES_MAX: Final = 8 * 1024 * 1024
"""What each of the two generations of a cache of engine values may hold."""

DISK_RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Writes are refused before the device is fuller than this: a full disk would stop the store."""

HELLO_SECONDS: Final = 5.0
"""Who connects must have agreed on TLS, and said who it is, in this time."""
CONNECTIONS_MAX: Final = 10_000
"""Of a node, or fewer, so that descriptors are left for storage (``DESCRIPTORS_RESERVED``)."""
CONNECTIONS_PENDING_MAX: Final = 1_000
CONNECTIONS_PENDING_PER_HOST_MAX: Final = 128
"""Connections that have not said who they are. Of those, the oldest is dropped for a newer one."""
DESCRIPTORS_RESERVED: Final = 256
"""File descriptors that connections leave to storage, to the log, and to the node's own calls."""
LOG_SEGMENT_BYTES: Final = 64 * 1024 * 1024
"""Of a segment of the log. Two are in use as a rule, more while followers lag."""

LOG_SEGMENT_BYTES_MIN: Final = 64 * 1024

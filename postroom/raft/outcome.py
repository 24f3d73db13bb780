"""How proposals end."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """How a proposal ended. Every proposal ends, exactly once."""

    APPLIED = "applied"
    """It is committed and applied here, durably."""

    SUPERSEDED = "superseded"
    """It certainly never takes effect, on any replica."""

    UNKNOWN = "unknown"
    """It may or may not take effect, now or later."""

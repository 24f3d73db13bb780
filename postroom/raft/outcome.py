"""The outcomes of proposals."""

from __future__ import annotations

import enum


class ProposalOutcome(enum.Enum):
    """The way in which a proposal ended. Every proposal ends, exactly once."""

    APPLIED = "applied"
    """The proposal is committed and applied here, durably."""

    SUPERSEDED = "superseded"
    """The proposal certainly never takes effect, on any replica."""

    UNKNOWN = "unknown"
    """The proposal may or may not take effect, now or later."""

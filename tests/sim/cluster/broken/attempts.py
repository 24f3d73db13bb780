"""Mutations of messages that were tried in vain."""

from __future__ import annotations

from typing import Any

from postroom.messaging import attempts
from postroom.messaging.attempts import UNTRIED, Attempts
from postroom.messaging.inbox import Inboxes
from tests.sim.cluster.broken import Patch


def attempts_are_forgotten() -> Patch:
    """Take each attempt for the first one."""
    return attempts, "_trial", lambda message: UNTRIED


def postponed_comes_at_once() -> Patch:
    """Let postponed messages come back before their time."""
    return Attempts, "_due", lambda self, ctx, seconds, failed: ctx.timestamp + 1


def lost_attempts_kill_nobody() -> Patch:
    """Let the last attempt be lost as often as it likes."""
    noted = Attempts._noted

    def never_the_last(self: Attempts, request: Any, message: Any) -> Any:
        return noted(self, request, message)[0], False

    return Attempts, "_noted", never_the_last


def holds_up_nobody() -> Patch:
    """Let messages behind a postponed one come, though they should wait for it."""
    return Inboxes, "hold_up", lambda self, ctx, key, waiting: None

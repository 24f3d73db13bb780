"""Lines in the log for dead letters, each with the command that revives the message.

A worker tells the messages that die of its functions. A message may also end the process of its
worker, attempt after attempt, or its lease runs out each time. Only the leaseholder sees that it
dies, and tells it here.
"""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING, Final

from postroom.counted import counted
from postroom.kv.clock import LOGICAL_BITS
from postroom.log_once import LogOnce

if TYPE_CHECKING:  # clients load no state machine
    from postroom.ranges.evaluation import Evaluation

_log: Final = logging.getLogger("postroom.dead_letters")


def reviving_queue_message(queue: str, id_: str | bytes) -> str:
    """Return the command that revives a dead message; the call, if a shell cannot take its id."""
    if isinstance(id_, bytes) or not (id_.isprintable() and queue.isprintable()):
        return f"db.queue({queue!r}).replay({id_!r})"
    dashes = " --" if queue.startswith("-") or id_.startswith("-") else ""
    return f"postroom queue replay{dashes} {shlex.quote(queue)} {shlex.quote(id_)}"


def reviving_letter(letter_id: str) -> str:
    """Return the command that revives a dead letter of an inbox."""
    return f"postroom dead-letters --replay {letter_id}"


class DeathLog:
    """The log of messages that died without a worker that could tell it."""

    def __init__(self) -> None:
        self._said = LogOnce()

    def died(self, ctx: Evaluation, what: str, attempts: int, reason: str, revive: str) -> None:
        """Log a death once it is applied.

        Args:
            ctx: the evaluation that buries the message.
            what: names the message.
            attempts: how many have failed.
            reason: why the last one has.
            revive: how it is revived.
        """
        now = (ctx.timestamp >> LOGICAL_BITS) / 1000
        ctx.after.append(
            lambda: self._said.log(
                _log, (what, now), now, "%s is dead after %s: %s; %s",
                what, counted(attempts, "attempt"), reason, revive,
            )
        )  # fmt: skip


__all__ = ["DeathLog", "reviving_letter", "reviving_queue_message"]

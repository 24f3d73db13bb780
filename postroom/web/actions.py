"""The actions: what a visitor may change. Each is one call of the store, for chosen messages.

The audit log tells each action, refused ones too: who, what, for which messages (:mod:`.audit`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import postroom.aio
from postroom.web.asked import BadRequest
from postroom.web.limits import CHOSEN_CHARACTERS_MAX, CHOSEN_MAX


@dataclass(frozen=True)
class Chosen:
    """The part of the store that an action concerns.

    Attributes:
        ids: the ids of messages: as the store tells them; of a queue, ``HEX`` or ``HEX:KIND``.
        queue: the name of the queue; empty: inboxes.
    """

    ids: list[str]
    queue: str = ""

    def told(self, name: str) -> str:
        """Return an action with its messages, for the audit log."""
        where = f" in the queue {self.queue[:60]!r}" if self.queue else ""
        ids = ", ".join(self.ids)[:CHOSEN_CHARACTERS_MAX]
        return f"{name}{where}: {ids}" if ids else f"{name}{where}"

    def check(self, action: Action) -> None:
        """Check that an action can be done.

        Raises:
            BadRequest: nothing was done.
        """
        if action.of_messages and not self.ids:
            raise BadRequest("no message was chosen; nothing was done")
        if len(self.ids) > CHOSEN_MAX:
            raise BadRequest(f"choose {CHOSEN_MAX} messages at most; nothing was done")
        if action.of_queue and not self.queue:
            raise BadRequest("no queue was named; nothing was done")

    def by_kind(self) -> dict[str, list[bytes]]:
        """Return the ids of messages of a queue, by their kinds.

        Raises:
            BadRequest: an id is malformed; nothing was done.
        """
        found: dict[str, list[bytes]] = defaultdict(list)
        for each in self.ids:
            message_id, _, kind = each.partition(":")
            try:
                found[kind].append(bytes.fromhex(message_id))
            except ValueError:
                raise BadRequest("an id is no hexadecimal number; nothing was done") from None
        return found


Act = Callable[[postroom.aio.Database, Chosen], Awaitable[int]]


@dataclass(frozen=True)
class Action:
    """An action.

    Attributes:
        act: does it; returns how many messages it concerned.
        done: tells how many messages it concerned, for people.
        of_messages: whether messages must be chosen.
        of_queue: whether it concerns a queue.
    """

    act: Act
    done: str
    of_messages: bool = True
    of_queue: bool = False


async def _replay(db: postroom.aio.Database, chosen: Chosen) -> int:
    return await db.replay(chosen.ids)


async def _discard(db: postroom.aio.Database, chosen: Chosen) -> int:
    return await db.discard(chosen.ids)


async def _cancel(db: postroom.aio.Database, chosen: Chosen) -> int:
    return await db.cancel(chosen.ids)


async def _pause(db: postroom.aio.Database, chosen: Chosen) -> int:
    await db.queue(chosen.queue).pause()
    return 1


async def _resume(db: postroom.aio.Database, chosen: Chosen) -> int:
    await db.queue(chosen.queue).resume()
    return 1


async def _replay_in_queue(db: postroom.aio.Database, chosen: Chosen) -> int:
    queue = db.queue(chosen.queue)
    return sum([await queue.replay(ids, kind=kind) for kind, ids in chosen.by_kind().items()])


async def _cancel_in_queue(db: postroom.aio.Database, chosen: Chosen) -> int:
    queue = db.queue(chosen.queue)
    return sum([await queue.cancel(ids, kind=kind) for kind, ids in chosen.by_kind().items()])


ACTIONS: Final = {
    "replay": Action(_replay, "{} dead letters are tried again."),
    "discard": Action(_discard, "{} dead letters were given up for good."),
    "cancel": Action(_cancel, "{} messages and updates were cancelled."),
    "queue-replay": Action(
        _replay_in_queue, "{} messages of the queue are tried again.", of_queue=True
    ),
    "queue-cancel": Action(
        _cancel_in_queue, "{} messages of the queue were cancelled.", of_queue=True
    ),
    "queue-pause": Action(_pause, "The queue is paused.", of_messages=False, of_queue=True),
    "queue-resume": Action(_resume, "The queue goes on.", of_messages=False, of_queue=True),
}

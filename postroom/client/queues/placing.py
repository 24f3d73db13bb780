"""The placing of messages: the ranges of their homes, for calls about several of them.

::

    attempts ── at_homes ─▶ ids replaced by homes ── in_ranges ─▶ the attempts of each range

The home of a message whose id alone is known is asked for at the range of the id. It is asked for
only if the store may have several ranges: in one range the request finds it. After its commit, a
message takes a moment to its home.

Each range has a transaction of its own, unless the caller has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from postroom.client.sender import Sender
from postroom.limits import QUEUE_IDS_MAX
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.messaging.queues.queries import FindHomes, FoundHome, ReadQueueMessage
from postroom.messaging.queues.requests import Attempt

T = TypeVar("T")

ARRIVAL_SECONDS: Final = 2.0
"""The time for which a message is waited for that may be on its way to its home, in seconds."""
ARRIVAL_PAUSE_SECONDS: Final = 0.01


def may_have_several_ranges(sender: Sender) -> bool:
    """Return whether the store may have several ranges, of which a remote client has not heard."""
    return sender.range_of is not None or sender.ranges.are_several


def in_ranges(sender: Sender, every: Iterable[T], home: Callable[[T], bytes]) -> list[list[T]]:
    """Return things by the ranges of their homes, each in the order that was given."""
    things = list(every)
    if len(things) < 2 or not sender.ranges.are_several:
        return [things] if things else []
    found: dict[int, list[T]] = {}
    for each in things:
        found.setdefault(sender.range_id(home(each)), []).append(each)
    return [*found.values()]


def home_of_attempt(attempt: Attempt) -> bytes:
    """Return the home of the message of an attempt, or its id if the home is not known."""
    return attempt.id if attempt.by_id else attempt.home


def home_of_message(message: StoredQueueMessage) -> bytes:
    """Return the home of a message."""
    return message.locator[0]


async def at_homes(sender: Sender, queue: str, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return attempts with ids replaced by the homes of their messages.

    An id without a message stays as it is. One that messages of several kinds have becomes several
    attempts, unless it names a kind.
    """
    by_id = [each for each in attempts if each.by_id]
    if not by_id or not may_have_several_ranges(sender):
        return list(attempts)
    found = await homes(sender, queue, [each.id for each in by_id])
    placed: dict[bytes, list[FoundHome]] = {}
    for each in found:
        placed.setdefault(each.id, []).append(each)
    return [one for each in attempts for one in _placed(each, placed.get(each.id, ()))]


def _placed(attempt: Attempt, found: Iterable[FoundHome]) -> list[Attempt]:
    """Return the attempts that an attempt stands for."""
    if not attempt.by_id:
        return [attempt]
    is_of_one = attempt.of_kind or attempt.kind
    of_kind = [each for each in found if not is_of_one or each.kind == attempt.kind]
    return [
        msgspec.structs.replace(attempt, home=each.home, kind=each.kind, by_id=False, of_kind=False)
        for each in of_kind
    ] or [attempt]


async def homes(
    sender: Sender, queue: str, ids: Sequence[bytes], kind: str | None = None
) -> list[FoundHome]:
    """Return the homes of the messages with some ids, of any kind (``None``) or of one.

    Messages that are on their way are waited for.
    """
    found: list[FoundHome] = await sender.send(FindHomes(queue, [*dict.fromkeys(ids)], kind))
    range_id, give_up = sender.range_id, sender.monotonic() + ARRIVAL_SECONDS
    on_way = [each for each in found if range_id(each.home) != range_id(each.id)]
    while on_way:
        arrived: list[FoundHome] = await sender.send(
            FindHomes(queue, [], None, tuple(on_way[:QUEUE_IDS_MAX]))
        )
        on_way = [each for each in on_way if each not in arrived]
        if sender.monotonic() > give_up:
            break
        if on_way:
            await sender.sleep(ARRIVAL_PAUSE_SECONDS)
    return found


async def stored_by_id(
    sender: Sender, queue: str, id_: bytes, kind: str | None, *, gone: bool = False
) -> list[StoredQueueMessage]:
    """Return the messages with an id, of any kind (``None``) or of one.

    Args:
        sender: the client's sender.
        queue: the name of the queue.
        id_: the id.
        kind: the kind.
        gone: whether those are told, too, that exist only for readers of the past.
    """
    request = ReadQueueMessage(queue, id_, kind, gone)
    requests = [request]
    if may_have_several_ranges(sender):
        requests = [
            msgspec.structs.replace(request, kind=each.kind, home=each.home)
            for each in await homes(sender, queue, [id_], kind)
        ]
    found = list[StoredQueueMessage]()
    for each in requests:
        found += await sender.send(each)
    return found

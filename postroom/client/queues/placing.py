"""The placing of messages: the ranges of their homes, for calls about several of them.

::

    attempts ── at_homes ─▶ ids replaced by homes ── in_ranges ─▶ the attempts of each range

The home of a message whose id alone is known is asked for at the range of the id. It is asked for
only if the store has several ranges: in one range the request finds it.

Each range has a transaction of its own, unless the caller has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from postroom.client.sender import Sender
from postroom.limits import KEY_BYTES_MAX
from postroom.messaging.queues.queries import FindHomes, FoundHome, ReadQueueMessage
from postroom.messaging.queues.requests import Attempt, StoredQueueMessage

T = TypeVar("T")

_LAST_KEY: Final = b"\xff" * KEY_BYTES_MAX
_UNKNOWN: Final = 0


def has_several_ranges(sender: Sender) -> bool:
    """Return whether the store has several ranges, as far as the client knows."""
    first = sender.range_id(b"")
    return first == _UNKNOWN or first != sender.range_id(_LAST_KEY)


def in_ranges(sender: Sender, every: Iterable[T], home: Callable[[T], bytes]) -> list[list[T]]:
    """Return things by the ranges of their homes, each in the order that was given."""
    found: dict[int, list[T]] = {}
    for each in every:
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
    if not by_id or not has_several_ranges(sender):
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
    """Return the homes of the messages with some ids, of any kind (``None``) or of one."""
    found: list[FoundHome] = await sender.send(FindHomes(queue, [*dict.fromkeys(ids)], kind))
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
    if has_several_ranges(sender):
        requests = [
            msgspec.structs.replace(request, kind=each.kind, home=each.home)
            for each in await homes(sender, queue, [id_], kind)
        ]
    found = list[StoredQueueMessage]()
    for each in requests:
        found += await sender.send(each)
    return found

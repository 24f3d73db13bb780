"""The results of tasks, as clients wait for them and as workers keep them.

The node pushes a result to those who wait. A client that has lost its node asks the next one, until
its own patience is over.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Final, NamedTuple

import msgspec

from postroom.client import arguments
from postroom.client.codec import Packing
from postroom.client.commits import BACKOFF_SECONDS_FIRST
from postroom.client.queues.messages import shown_id
from postroom.client.queues.placing import (
    ARRIVAL_SECONDS,
    homes,
    may_have_several_ranges,
)
from postroom.client.sender import Sender, has_stopped
from postroom.errors import Invalid, Retryable, TaskFailed, ValueTooLarge
from postroom.limits import (
    RESULT_BYTES_MAX,
    RETRY_BACKOFF_SECONDS_MAX,
    TRACEBACK_CHARACTERS_MAX,
)
from postroom.messaging.queues.queries import GroupResult, ReadResult, ToldResult
from postroom.messaging.queues.requests import TaskFailure
from postroom.protocol.failures import DeadlineExceeded

_PENDING: Final = ToldResult("pending")


class TaskResult(NamedTuple):
    """The returned value of the task of a message.

    Attributes:
        id: the id of the message.
        kind: its kind.
        value: what was returned.
    """

    id: str | bytes
    kind: str
    value: Any


def result_in_group(stored: GroupResult, codec: Packing) -> TaskResult:
    """Return a stored result of a group in the form for applications."""
    return TaskResult(shown_id(stored.id), stored.kind, _unpacked(stored.value, codec, stored.id))


def _unpacked(value: bytes | None, codec: Packing, id_: bytes) -> Any:
    return None if value is None else codec.decode(value, id_)


async def result_of(sender: Sender, codec: Packing, request: ReadResult, patience: float) -> Any:
    """Return what the task of a message has returned.

    Args:
        sender: the client's sender.
        codec: unpacks the result.
        request: the request for the result; it waits if ``patience`` is not 0.
        patience: seconds to wait.

    Raises:
        TaskFailed: the message is dead, or was cancelled.
        TimeoutError: it is not over yet.
        Invalid: there is no such message, or it has no result.
    """
    told = await _told(sender, request, patience)
    what = f"the message {shown_id(request.id)!r} of the queue {request.queue!r}"
    match told.outcome:
        case "returned":
            return _unpacked(told.value, codec, request.id)
        case "failed":
            raise _failed(what, told.failure or TaskFailure("", ""))
        case "pending":
            raise TimeoutError(
                f"{what} is not done yet; nothing was changed: wait longer, or look whether a "
                "worker runs ('postroom queue show' tells who holds what)"
            )
        case "none":
            raise Invalid(
                f"{what} is done, and no result of it is kept: its task keeps results for "
                "keep_result=SECONDS, and they are gone after that"
            )
        case _:
            raise Invalid(
                f"there is no message {shown_id(request.id)!r} of the kind {request.kind!r} in the "
                f"queue {request.queue!r}, and no result of one: name its kind, or keep results "
                "for longer (keep_result=SECONDS)"
            )


def _failed(what: str, failure: TaskFailure) -> TaskFailed:
    told = f"{failure.type}: {failure.reason}" if failure.type else failure.reason
    return TaskFailed(
        f"{what} has failed: {told}; replay the message, or enqueue another one",
        type=failure.type, reason=failure.reason, traceback=failure.traceback,
    )  # fmt: skip


async def _told(sender: Sender, request: ReadResult, patience: float) -> ToldResult:
    """Return the answer of the store; it is asked again if a node was lost meanwhile.

    If the store has several ranges, a message may be on its way to its own.
    """
    begun, pause = sender.monotonic(), BACKOFF_SECONDS_FIRST
    give_up = begun + patience
    while True:
        left = max(give_up - sender.monotonic(), 0.0)
        if patience and not left:
            return _PENDING
        try:
            told = await _answer(sender, request, left or None)
        except DeadlineExceeded:
            return _PENDING
        except Retryable as error:
            if left <= pause or has_stopped(sender, error):
                raise
            await sender.sleep(pause * sender.random.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_BACKOFF_SECONDS_MAX)
        else:
            is_late = sender.monotonic() > begun + ARRIVAL_SECONDS
            if told.outcome != "unknown" or left <= pause or is_late:
                return told
            if not sender.ranges.are_several:
                return told
            await sender.sleep(pause)
            pause = min(2 * pause, RETRY_BACKOFF_SECONDS_MAX)


async def _answer(sender: Sender, request: ReadResult, patience: float | None) -> ToldResult:
    """Return the answer of the range in which the message lies, or has lain."""
    told: ToldResult = await sender.send(request, patience)
    if told.outcome == "unknown" and may_have_several_ranges(sender):
        found = await homes(sender, request.queue, [request.id], request.kind)
        where = {"home": found[0].home} if found else {"everywhere": True, "wait": False}
        told = await sender.send(msgspec.structs.replace(request, **where), patience)
    return told


def packed_result(returned: Any, codec: Packing) -> bytes | None:
    """Return what a task has returned, packed; ``None`` if that is ``None``.

    Raises:
        TypeError: the codec cannot pack it.
        ValueTooLarge: it takes more than ``RESULT_BYTES_MAX`` bytes.
    """
    if returned is None:
        return None
    packed = arguments.packed(returned, codec, b"the result")
    if len(packed) > RESULT_BYTES_MAX:
        raise ValueTooLarge(
            f"the result has {len(packed)} bytes, the limit is {RESULT_BYTES_MAX}; nothing was "
            "changed: let the task put it under a key, and return the key"
        )
    return packed


def failure_of(error: BaseException, reason: str, calls: TracebackType | None) -> TaskFailure:
    """Return an exception as it is kept with its message: as text, the end of a long one.

    Args:
        error: the exception.
        reason: its text.
        calls: its traceback, from the function of the task on.
    """
    try:
        lines = "".join(traceback.format_exception(type(error), error, calls))
    except Exception as other:  # its text may be code of the user's that fails
        lines = f"the traceback cannot be told ({type(other).__name__})"
    text = lines[-TRACEBACK_CHARACTERS_MAX:].encode("utf-8", "backslashreplace").decode()
    name = arguments.shortened(type(error).__name__)
    return TaskFailure(name, reason, text[-TRACEBACK_CHARACTERS_MAX:])

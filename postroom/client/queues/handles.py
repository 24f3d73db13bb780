"""Handles of enqueued messages: their ids, what the commit has made of them, and their results."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from postroom.client import arguments
from postroom.client.codec import Packing
from postroom.client.functions import Plain
from postroom.client.queues.results import result_of
from postroom.client.sender import Sender
from postroom.errors import Invalid
from postroom.messaging.queues.queries import ReadResult

PLAIN_CALL: Final = (
    "tx.enqueue(...) and task.enqueue(tx, ...) are plain calls, also with asyncio: they only "
    "gather what the commit sends; leave out the 'await'"
)


class EnqueueHandle(Plain, msgspec.Struct, eq=False, gc=False):
    """The result of ``tx.enqueue``: the id, and after the commit the outcome.

    Attributes:
        queue: the name of the queue.
        id: the id, given or made up.
        kind: the kind of the message.
        plain_call: the text of the error if it is awaited.
    """

    queue: str
    id: str | bytes
    kind: str
    _sender: Sender
    _codec: Packing
    _outcome: str | None = None

    plain_call: ClassVar[str] = PLAIN_CALL

    @property
    def inserted(self) -> bool | None:
        """Return whether a new message was inserted; false: this kind and id existed already.

        ``None``: the transaction has not committed.
        """
        return None if self._outcome is None else self._outcome == "inserted"

    @property
    def replaced(self) -> bool | None:
        """Return whether it replaced a message that was not fired yet.

        ``None``: the transaction has not committed.
        """
        return None if self._outcome is None else self._outcome == "replaced"

    def committed(self, answer: str | None) -> None:
        """Note the store's answer: ``None``: inserted; else ``ignored`` or ``replaced``.

        For layers on top.

        Args:
            answer: the answer.
        """
        self._outcome = answer or "inserted"

    async def result(self, wait: float | None = None) -> Any:
        """Return what the task of the message has returned; its worker keeps results.

        Args:
            wait: seconds to wait until the message is over; ``None``: not at all.

        Raises:
            TaskFailed: the message is dead, or was cancelled.
            TimeoutError: it is not over yet.
            Invalid: no result is kept, or the transaction of the handle has not committed.
        """
        if self._outcome is None:
            raise Invalid(
                f"the message {self.id!r} of the queue {self.queue!r} has no result: the "
                "transaction that enqueues it has not committed; ask after its commit"
            )
        patience, id_ = arguments.wait(wait), arguments.message_id(self.id)
        request = ReadResult(self.queue, id_, self.kind, wait=patience > 0)
        return await result_of(self._sender, self._codec, request, patience)

    def __repr__(self) -> str:
        return (
            f"EnqueueHandle(queue={self.queue!r}, id={self.id!r}, kind={self.kind!r}, "
            f"inserted={self.inserted})"
        )

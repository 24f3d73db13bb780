"""A sender that answers as a test says, without a store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from random import Random  # noqa: TID251 (seeded)
from typing import Any, TypeVar

from postroom.client.sender import TransactionIds
from postroom.kv.clock import from_seconds
from postroom.messaging.queues.claim_requests import StoredQueueMessage
from postroom.ranges.requests import Committed, CommitTransaction

T = TypeVar("T")
NOW = 1_700_000_000_000 << 16


class _There:
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class FakeSender:
    """A sender that keeps what it was asked.

    Attributes:
        asked: requests, in order; of commits, what they write.
        answers: what is told next, errors included; commits beyond those answer ``None``s.
        seconds: the monotonic clock, which pauses move.
    """

    def __init__(self) -> None:
        self.random = Random(1)
        self.next_id = TransactionIds(b"a client")
        self.patience_seconds = 0.0
        self.range_of: Callable[[bytes], int] | None = None
        self.asked: list[Any] = []
        self.answers: deque[Any] = deque()
        self.seconds = 0.0

    def send(self, request: Any, timeout_seconds: float | None = None) -> Any:
        del timeout_seconds
        is_commit = type(request) is CommitTransaction
        self.asked.append(request.writes if is_commit else request)
        if self.answers:
            return _There(self.answers.popleft())
        assert is_commit, f"no answer was given for {request}"
        return _There(Committed(self.reading(), [None] * len(request.writes)))

    def try_get(self, key: bytes) -> None:
        """Return no answer at once, since everything is asked for."""

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def now(self) -> int:
        return self.reading()

    def reading(self) -> int:
        return NOW + from_seconds(self.seconds)

    @property
    def ranges(self) -> FakeSender:
        return self

    @property
    def are_several(self) -> bool:
        return False

    def range_id(self, _: bytes) -> int:
        return 1

    def monotonic(self) -> float:
        return self.seconds

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("it would wait")


def stored(name: str = "m", *, payload: bytes = b"", seconds: float = 30.0, **more: Any) -> Any:
    """Return a message that is leased for ``seconds`` from the beginning of the test."""
    facts: dict[str, Any] = {
        "key": name.encode(), "kind": "", "id": name.encode(), "payload": payload, "headers": None,
        "priority": 0, "group": "", "created_at": NOW, "first_scheduled": NOW, "scheduled": NOW,
        "epoch": 0, "leased_until": NOW + from_seconds(seconds), "last_error": "",
        "state": "leased", "lasts": round(seconds * 1000),
    }  # fmt: skip
    return StoredQueueMessage(**{**facts, **more})

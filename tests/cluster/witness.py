"""A client whose requests and answers are all seen by the history that judges them at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from functools import partial
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Any

from postroom.client.codec import resolve
from postroom.client.database import CoreDatabase
from postroom.client.remote.nodes import cluster_status
from postroom.client.remote.sender import AsyncioSender
from postroom.protocol.failures import DeadlineExceeded
from postroom.ranges.requests import Now
from tests.sim.history import History

REQUEST_SECONDS = 10.0


class _Heard:
    """An answer that the history hears of before whoever awaits it does."""

    def __init__(self, request: Any, answer: Awaitable[Any], history: History) -> None:
        self._request = request
        self._answer = answer
        self._history = history

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            result = yield from self._answer.__await__()
        except DeadlineExceeded:
            raise
        except Exception as error:
            self._history.answered(self._request, None, error)
            raise
        self._history.answered(self._request, result, None)
        return result


class WitnessedSender(AsyncioSender):
    """The sender that ``connect`` uses, with a witness."""

    def __init__(self, addresses: Sequence[str], randomness: Random, history: History) -> None:
        super().__init__(addresses, None, None, randomness, REQUEST_SECONDS)
        self._history = history

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        self._history.sent(request)
        return _Heard(request, super().send(request, timeout_seconds), self._history)

    async def abandon(self) -> None:
        """End the client as if its process had been killed."""
        self.abort()
        await self._streams.closed()


async def connect(addresses: Sequence[str], randomness: Random, history: History) -> CoreDatabase:
    """Connect as ``connect`` does, on the running event loop."""
    sender = WitnessedSender(addresses, randomness, history)
    try:
        await sender.send(Now())
    except BaseException:
        await sender.abandon()
        raise
    return CoreDatabase(
        sender, resolve(None), partial(cluster_status, addresses=addresses), sender.close
    )

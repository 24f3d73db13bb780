"""A store whose answers get lost, and programs that end in the middle of things."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any

from postroom.client import sync as blocking
from postroom.errors import CommitUnknown, Unavailable


class Killed(BaseException):
    """The process ends here."""


class Faults:
    """Faults of a client's requests, by their number from now on.

    Attributes:
        plan: request (from 0) to its fault: ``refused``: it is not done; ``lost``: it is done,
            and not answered; ``killed before`` and ``killed after``: so is the client.
    """

    def __init__(self, db: blocking.CoreDatabase) -> None:
        self.plan: dict[int, str] = {}
        self._sent = 0
        sender: Any = _Sender(db.sender, self)
        self.db = blocking.CoreDatabase(sender, db.core.through(sender))

    def next(self, **plan: str) -> None:
        """Plan faults from now on: ``n2="lost"`` is the fault of the third request."""
        self.plan = {int(name[1:]): what for name, what in plan.items()}
        self._sent = 0

    def take(self) -> str:
        what = self.plan.pop(self._sent, "")
        self._sent += 1
        return what


class _Sender:
    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, request: Any, timeout_seconds: float | None = None) -> Awaitable[Any]:
        what = self._faults.take()
        sent = what not in {"refused", "killed before"}
        return _Answer(what, self._inner.send(request, timeout_seconds) if sent else None)


class _Answer:
    """An answer that need not be awaited, as that of a real sender."""

    def __init__(self, what: str, answer: Awaitable[Any] | None) -> None:
        self._what = what
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, Any]:
        if self._answer is not None:
            answer = yield from self._answer.__await__()
        if not self._what:
            return answer
        raise {"refused": Unavailable("nobody leads"), "lost": CommitUnknown("no answer")}.get(
            self._what, Killed()
        )

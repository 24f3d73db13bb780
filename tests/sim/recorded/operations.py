"""The acts and answers of clients as plain data, simulated ones or those of real processes.

An operation is *invoked* at one moment and *returns* at a later one, or never. How it ended::

    OK        it took place, between the two moments, with this result
    FAILED    it did not take place, and never will
    UNKNOWN   it may take place at any moment after it was invoked, or never

Moments are of one clock that all clients share. The checkers beside this module take lists of these
records and know neither who made them nor what for: :mod:`.registers` judges single keys,
:mod:`.appends` transactions. Both kinds of record consist of bytes, numbers, strings and tuples, so
that a process can write them down and another one judge them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from postroom.errors import CommitUnknown, Error

T = TypeVar("T")


class Outcome(enum.Enum):
    """The outcome of an operation: see the module."""

    UNKNOWN = "unknown"
    OK = "ok"
    FAILED = "failed"


@dataclass
class Operation:
    """An operation on one key.

    Attributes:
        action: ``get``, ``put``, ``delete`` or ``conditional_put``.
        value: what it writes, if it writes.
        expected: what a ``conditional_put`` wants to find.
        result: what a ``get`` found.
    """

    process: str
    action: str
    key: bytes
    value: bytes | None = None
    expected: bytes | None = None
    invoked_at: float = 0.0
    returned_at: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN
    result: bytes | None = None

    def __str__(self) -> str:
        told = {
            "get": f"-> {self.result!r}",
            "put": f"{self.value!r}",
            "delete": "",
            "conditional_put": f"{self.value!r} if {self.expected!r}",
        }[self.action]
        return (
            f"{self.process}: {self.action} {self.key!r} {told} ({self.outcome.value}), "
            f"{self.invoked_at:.6f} to {self.returned_at:.6f}"
        )


Read = tuple[str, bytes, tuple[bytes, ...]]
Append = tuple[str, bytes, bytes]


@dataclass
class Transaction:
    """A transaction on several lists.

    Attributes:
        actions: in order, ``("read", key, elements)`` or ``("append", key, element)``. Of one whose
            outcome is unknown they are all that it would have done, if it has happened.
    """

    process: str
    actions: list[Read | Append] = field(default_factory=list)
    invoked_at: float = 0.0
    returned_at: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN

    def __str__(self) -> str:
        actions = ", ".join(f"{what} {key!r} {about!r}" for what, key, about in self.actions)
        return (
            f"{self.process} ({self.outcome.value}), {self.invoked_at:.6f} to "
            f"{self.returned_at:.6f}: {actions}"
        )


@dataclass
class Record:
    """All of it. ``moment`` is the clock that all clients share."""

    moment: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)

    async def operate(self, operation: Operation, awaitable: Awaitable[T]) -> T:
        """Return the result of ``awaitable``, which is written down as ``operation``."""
        self.operations.append(operation)
        result = await self._recorded(operation, awaitable)
        if operation.action == "get":
            operation.result = result  # type: ignore[assignment]
        return result

    async def transact(self, transaction: Transaction, awaitable: Awaitable[T]) -> T:
        """Return the result of ``awaitable``, which fills in the actions of ``transaction``."""
        self.transactions.append(transaction)
        return await self._recorded(transaction, awaitable)

    async def _recorded(self, entry: Operation | Transaction, awaitable: Awaitable[Any]) -> Any:
        entry.invoked_at = self.moment()
        try:
            result = await awaitable
        except CommitUnknown:
            entry.returned_at = math.inf
            raise
        except Error:
            entry.outcome, entry.returned_at = Outcome.FAILED, self.moment()
            raise
        entry.outcome, entry.returned_at = Outcome.OK, self.moment()
        return result


class Anomaly(AssertionError):
    """An observation of clients that the promises do not allow."""

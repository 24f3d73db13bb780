"""Messages that were tried in vain, as a transaction gathers them for its commit.

A message that is postponed or buried is not consumed, though the transaction may have reaped it.
The last call about a message counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from postroom.client import arguments
from postroom.client.reaping import Reaping
from postroom.client.values import Message
from postroom.messaging.requests import MESSAGE_ID_BYTES, BuryMessages, PostponeMessages

ANY_ATTEMPTS: Final = -1
"""The number of attempts of a message if it is not known."""
Messages: TypeAlias = Message | Iterable[Message]


class _Postponed(NamedTuple):
    key: bytes
    seconds: float | None
    reason: str
    hold: bool
    attempts_max: int

    def request(self, tries: list[tuple[bytes, int]]) -> PostponeMessages:
        """Return the request for these messages and their attempts."""
        return PostponeMessages(
            self.key, tries, self.seconds, self.reason, self.hold, self.attempts_max
        )


class _Buried(NamedTuple):
    key: bytes
    reason: str

    def request(self, tries: list[tuple[bytes, int]]) -> BuryMessages:
        """Return the request for these messages and their attempts."""
        return BuryMessages(self.key, tries, self.reason)


class Postponing:
    """The messages that a transaction postpones or buries.

    Args:
        reaping: what the transaction has reaped.
        grow: counts bytes towards the limit of the transaction.
    """

    __slots__ = ("_grow", "_reaping", "_said")

    def __init__(self, reaping: Reaping, grow: Callable[[int], None]) -> None:
        self._reaping = reaping
        self._grow = grow
        self._said: dict[tuple[bytes, bytes], tuple[_Postponed | _Buried, int]] = {}

    def postpone(
        self,
        messages: Messages,
        delay: Any,
        reason: str | None,
        *,
        hold: bool,
        max_attempts: int | None,
    ) -> None:
        """Gather messages to be postponed; see :meth:`.InboxWrites.postpone`."""
        seconds, why = arguments.seconds(delay, "delay"), arguments.reason(reason)
        most = None if max_attempts is None else arguments.count(max_attempts, "max_attempts")
        for key, id_, attempts in _named(messages):
            of_reap = self._reaping.taken(key).get(id_, 0)
            attempts_max = of_reap if most is None else most
            self._say(_Postponed(key, seconds, why, bool(hold), attempts_max), id_, attempts)

    def bury(self, messages: Messages, reason: str | None) -> None:
        """Gather messages to be buried; see :meth:`.InboxWrites.bury`."""
        why = arguments.reason(reason)
        for key, id_, attempts in _named(messages):
            self._say(_Buried(key, why), id_, attempts)

    def _say(self, what: _Postponed | _Buried, id_: bytes, attempts: int) -> None:
        self._grow(MESSAGE_ID_BYTES + len(what.key) + len(what.reason))
        self._said[what.key, id_] = what, attempts

    def includes(self, key: bytes, id_: bytes) -> bool:
        """Return whether a message is postponed or buried."""
        return (key, id_) in self._said

    def requests(self) -> list[Any]:
        """Return the requests of the commit."""
        tries: dict[_Postponed | _Buried, list[tuple[bytes, int]]] = {}
        for (_, id_), (what, attempts) in self._said.items():
            tries.setdefault(what, []).append((id_, attempts))
        return [what.request(each) for what, each in tries.items()]


def _named(messages: Messages) -> list[tuple[bytes, bytes, int]]:
    """Return key, id and attempts of each message."""
    given = [messages] if isinstance(messages, Message) else list(messages)
    for each in given:
        if not isinstance(each, Message):
            raise TypeError(f"expected messages of inboxes, not {type(each).__name__}")
    return [(each.key, each._id, each.attempts) for each in given]


class InboxWrites:
    """The calls of a transaction, of either form, about messages that were tried in vain."""

    __slots__ = ()

    @property
    def postponing(self) -> Postponing:
        """Return what is gathered.

        For layers on top.
        """
        raise NotImplementedError

    def postpone(
        self,
        messages: Messages,
        delay: Any = None,
        reason: str | None = None,
        *,
        hold: bool = False,
        max_attempts: int | None = None,
    ) -> None:
        """Let messages that were tried in vain come again later, when the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        They leave their inbox, and come back to the places that they had in it. ``scheduled`` lists
        them meanwhile, and ``cancel`` takes them back. It counts as an attempt.

        Args:
            messages: one, or several: reaped by this transaction, or seen by another one.
            delay: seconds, or a ``timedelta``; ``None``: a second, doubled with each attempt, five
                minutes at most, varied by up to a tenth. 0: at once.
            reason: why; kept as ``last_error``, up to 1000 characters.
            hold: whether messages behind them in the inbox wait for them. Otherwise they pass.
            max_attempts: after this many attempts a message becomes a dead letter instead;
                ``None``: the number given to ``reap_queue``.

        Raises:
            TransactionTooLarge, TransactionClosed: nothing was changed. The commit raises
                ``TransactionConflict`` if another transaction has consumed or tried one of them.
        """
        self.postponing.postpone(messages, delay, reason, hold=hold, max_attempts=max_attempts)

    def bury(self, messages: Messages, reason: str | None = None) -> None:
        """Make messages dead letters when the transaction commits.

        A plain call, also with asyncio: it is not awaited.

        Args:
            messages: see :meth:`postpone`.
            reason: why; kept with them, up to 1000 characters.

        Raises:
            TransactionTooLarge, TransactionClosed: see :meth:`postpone`.
        """
        self.postponing.bury(messages, reason)


__all__ = ["ANY_ATTEMPTS", "InboxWrites", "Messages", "Postponing"]

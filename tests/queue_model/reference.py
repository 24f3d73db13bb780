"""A queue in pure Python, which keeps the store's promises without any of its ways.

Messages are rows with a state. The pages about queues alone say what time does to them, and what a
request may do. Moments that chance decides (back-off is varied by a tenth) are adopted
from the store, once they were found to be within their bounds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from postroom.kv.clock import from_seconds
from postroom.messaging.queues.claim_requests import ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import QueueSettings

AGEING: Final = from_seconds(60)
BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 3600.0


class Wrong(AssertionError):
    """The store does something else than a queue does."""


def require(condition: object, complaint: str) -> None:
    """Raise ``Wrong`` unless the condition holds."""
    if not condition:
        raise Wrong(complaint)


@dataclass
class Message:
    """A message as it should be. Moments are timestamps.

    Attributes:
        number: those that were enqueued before have lower ones.
        due, first: when it is fired next, and was to be fired at first.
        not_before: in an ordered group, until when it is put off.
        until: of one that is held, when its lease ends; ``fired_at``: names the attempt.
        ended: when it was done, or died.
        returns: whether its transaction has ended without a commit: it goes back, uncounted.
    """

    number: int
    id: bytes
    kind: str
    payload: bytes
    headers: dict[str, Any] | None
    priority: int
    group: str
    due: int
    first: int
    state: str = "ready"
    epoch: int = 0
    has_failed: bool = False
    not_before: int = 0
    until: int = 0
    fired_at: int = 0
    ended: int = 0
    returns: bool = False

    @property
    def name(self) -> tuple[str, bytes]:
        """Return the name by which it is unique."""
        return self.kind, self.id


def takes(selection: ClaimSelection, message: Message) -> bool:
    """Return whether a consumer with this selection takes the message."""
    if selection.kinds is not None and message.kind not in selection.kinds:
        return False
    if message.id < selection.start or (selection.end is not None and message.id >= selection.end):
        return False
    headers = message.headers or {}
    return all(headers.get(name, takes) == value for name, value in (selection.where or {}).items())


class Reference:
    """A queue in pure Python. All moments are given: it has no clock.

    Args:
        settings: of the queue.
        slack: how late the store may be, or its clock differ, in timestamp units.
        lenient: whether leases may end at any time: their holders may be taken for gone.
    """

    def __init__(self, settings: QueueSettings, slack: int, *, lenient: bool = False) -> None:
        self.settings = settings
        self.slack = slack
        self.lenient = lenient
        self.paused = False
        self.messages: dict[tuple[str, bytes], Message] = {}
        self._number = 0

    # --- looking

    def of(self, *states: str) -> list[Message]:
        """Return the messages in these states."""
        return [each for each in self.messages.values() if each.state in states]

    def in_order(self, message: Message) -> bool:
        """Return whether the message is in a group that keeps order."""
        return self.settings.order == "group" and message.group != ""

    def rank(self, message: Message) -> tuple[int, int]:
        """Return its rank in its group."""
        if self.in_order(message):
            return message.first, message.number
        return message.due + AGEING * message.priority, message.number

    def ready_at(self, message: Message) -> int:
        """Return the time at which a scheduled message becomes ready."""
        return min(message.first, message.due) if self.in_order(message) else message.due

    def candidates(self, selection: ClaimSelection, now: int) -> list[Message]:
        """Return what a claim may be given first: the next message of each group."""
        if self.paused or self._room() <= 0:
            return []
        first: dict[str, Message] = {}
        heads: dict[str, Message] = {}
        for each in self.of("ready"):
            if self.in_order(each):
                head = heads.get(each.group)
                if head is None or self.rank(each) < self.rank(head):
                    heads[each.group] = each
            elif takes(selection, each) and self._group_has_room(each.group):
                other = first.get(each.group)
                if other is None or self.rank(each) < self.rank(other):
                    first[each.group] = each
        for group, head in heads.items():
            is_free = not any(each.group == group for each in self.of("leased"))
            if is_free and head.not_before <= now and takes(selection, head):
                first[group] = head
        return list(first.values())

    def is_next(self, message: Message, candidate: Message) -> bool:
        """Return whether a message is a candidate, or is due at the time of one."""
        differs = abs(self.rank(message)[0] - self.rank(candidate)[0])
        is_close = message.group == candidate.group and differs <= self.slack
        return message.name == candidate.name or is_close

    def _room(self) -> float:
        most = self.settings.max_concurrency
        return float("inf") if most is None else most - len(self.of("leased"))

    def _group_has_room(self, group: str) -> bool:
        most = self.settings.group_max_concurrency
        if most is None or not group:
            return True
        return sum(each.group == group for each in self.of("leased")) < most

    # --- requests

    def enqueue(self, message: Message, now: int) -> str | None:
        """Return what an enqueue answers, or ``"error"``."""
        known = self.messages.get(message.name)
        if known is None or self._is_gone(known, now):
            self._number += 1
            message.number = self._number
            message.state = "scheduled" if message.due > now else "ready"
            self.messages[message.name] = message
            return None
        if self.settings.on_duplicate == "error":
            return "error"
        is_new = known.state in {"scheduled", "ready"} and not (known.epoch or known.has_failed)
        if self.settings.on_duplicate == "ignore" or not is_new:
            return "ignored"
        known.payload, known.headers = message.payload, message.headers
        known.priority, known.group = message.priority, message.group
        known.first = message.first
        self._schedule(known, message.due, now, is_new=True)
        return "replaced"

    def _is_gone(self, message: Message, now: int) -> bool:
        if message.state == "done":
            return message.ended + self._kept() <= now
        return message.state == "gone"

    def is_unclear(self, kind: str, id_: bytes, now: int) -> bool:
        """Return whether a message may be purged, or given back, just now."""
        known = self.messages.get((kind, id_))
        if known is None:
            return False
        if known.state == "leased" and known.returns:
            return True
        return known.state == "done" and abs(known.ended + self._kept() - now) <= self.slack

    def _kept(self) -> int:
        return from_seconds(self.settings.purge_after)

    def _schedule(self, message: Message, due: int, now: int, *, is_new: bool = False) -> None:
        stays = self.in_order(message) and message.state in {"ready", "leased"} and not is_new
        message.due = due
        message.not_before = due if self.in_order(message) and due > now else 0
        is_later = not stays and self.ready_at(message) > now
        message.state = "scheduled" if is_later else "ready"

    def lease(self, message: Message, until: int, fired_at: int) -> None:
        """Lease the message."""
        message.state, message.until, message.fired_at = "leased", until, fired_at
        message.returns = False

    def finish(self, message: Message, now: int) -> None:
        """Mark the message as done."""
        message.state, message.ended = "done", now

    def cancel(self, message: Message) -> None:
        """Delete the message."""
        message.state = "gone"

    def fail(self, message: Message, due: int, now: int) -> None:
        """Fail the attempt that holds the message."""
        message.epoch += 1
        message.has_failed = True
        most = self.settings.max_attempts
        if most is not None and message.epoch >= most:
            self.bury(message, now)
        else:
            self._schedule(message, due, now)

    def bury(self, message: Message, now: int) -> None:
        """Mark the message as dead."""
        message.state, message.ended, message.has_failed = "dead", now, True

    def give_back(self, message: Message) -> None:
        """Give the message back, as if it had not been handed out."""
        message.state = "ready"

    def return_soon(self, message: Message) -> None:
        """Give the message back; a store whose nodes are killed may need a while."""
        if self.lenient:
            message.returns = True
        else:
            self.give_back(message)

    def reschedule(self, message: Message, due: int, epoch: int | None, now: int) -> bool:
        """Return whether it was not held, and lives."""
        if message.state not in {"scheduled", "ready"}:
            return False
        message.epoch = message.epoch if epoch is None else epoch
        self._schedule(message, max(due, now), now)
        return True

    def replay(self, message: Message, now: int) -> bool:
        """Return whether it was dead."""
        if message.state != "dead":
            return False
        message.epoch, message.has_failed = 0, False
        message.due, message.not_before, message.state = now, 0, "ready"
        return True

    # --- effects of time

    def copy(self) -> Reference:
        """Return another one that is the same."""
        other = copy.copy(self)
        other.messages = {name: copy.copy(each) for name, each in self.messages.items()}
        return other

    def at(self, now: int) -> Reference:
        """Return what it is once all that is due by then is ready."""
        later = self.copy()
        for message in later.of("scheduled"):
            if later.ready_at(message) <= now:
                message.state = "ready"
        return later

    def backoff(self, epoch: int, base: float) -> tuple[float, float]:
        """Return the least and the most that a message with this epoch waits after a failure."""
        least = self.settings.min_backoff or 0.0
        most = self.settings.max_backoff
        most = max(BACKOFF_SECONDS_MAX if most is None else most, least)
        wait = min(max(base * 2.0**epoch, least), most)
        return min(max(0.9 * wait, least), most), min(max(1.1 * wait, least), most)

    def compare(self, found: Iterable[StoredQueueMessage], now: int) -> None:
        """Adopt what the store has, once it is found to be what time may have made of it.

        Args:
            found: all messages but those that are gone.
            now: when they were read.
        """
        there = {(each.kind, each.id): each for each in found}
        for name in there:
            require(name in self.messages, f"{name} comes from nowhere")
        for name, message in self.messages.items():
            self._compare(message, there.get(name), now)

    def _compare(self, message: Message, told: StoredQueueMessage | None, now: int) -> None:
        state = "gone" if told is None else told.state
        allowed = self._states(message, now - self.slack, now + self.slack)
        require(state in allowed, f"{message} is {state} at {now}, not {sorted(allowed)}")
        if told is None:
            message.state = "gone"
            return
        if message.state == "leased" and state != "leased":
            self._expire(message, told, now)
        if message.returns and message.state == state == "dead":
            message.epoch -= told.epoch == message.epoch - 1  # it was given back, and then buried
        require(told.epoch == message.epoch, f"{message} has the epoch {told.epoch}")
        require(told.payload == message.payload, f"{message} says {told.payload!r}")
        group = told.group, told.priority
        require(group == (message.group, message.priority), f"{message} is of {group}")
        if state in {"scheduled", "ready"}:
            differs = max(
                abs(told.scheduled - message.due), abs(told.first_scheduled - message.first)
            )
            require(differs <= self.slack, f"{message} is due at another time: {told}")
            message.due, message.first = told.scheduled, told.first_scheduled
            message.not_before = message.not_before and message.due
        message.state = state

    def _states(self, message: Message, early: int, late: int) -> set[str]:
        """Return the states in which a message may be by now."""
        before, moment = message.state, 0
        after = {before}
        if before == "scheduled":
            moment, after = self.ready_at(message), {"ready"}
        elif before == "leased":
            most = self.settings.max_attempts
            dies = most is not None and message.epoch + 1 >= most
            moment, after = message.until, {"dead"} if dies else {"scheduled", "ready"}
            if self.lenient:
                return {before, *after, *({"ready"} if message.returns else ())}
        elif before == "ready" and self.ready_at(message) > early:
            return {"ready", "scheduled"}  # the request may have come just before the store
        elif before == "done":
            moment, after = message.ended + self._kept(), {"gone"}
        if moment <= early:
            return after
        return {before, *after} if moment <= late else {before}

    def _expire(self, message: Message, told: StoredQueueMessage, now: int) -> None:
        """End a lease that has ended at some time between its end and now."""
        if message.returns and told.epoch == message.epoch:
            self.give_back(message)
            return
        least, most = self.backoff(message.epoch, self.settings.ack_wait)
        ended = message.until
        self.fail(message, told.scheduled, now)
        if message.state == "dead":
            return
        if self.lenient:
            return
        is_within = ended + from_seconds(least) - self.slack <= told.scheduled
        is_within &= told.scheduled <= now + from_seconds(most) + self.slack
        require(is_within, f"{message} waits for another time than its back-off: {told}")

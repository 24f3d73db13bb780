"""Random histories of one queue: requests, their answers, and those that a reference has.

Before and after each step all messages are read, and must be what the reference has, or what time
may have made of that. Each step is judged by itself, and a history may go on for as long as it
likes. One seed is one history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - made from the seed
from typing import Any, Final

import msgspec

from postroom.errors import ConditionFailed, LeaseLost
from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.messaging import due as times
from postroom.messaging.queues import firing
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueSettings,
    UpdateQueue,
)
from postroom.messaging.queues.requests import (
    Acknowledge,
    Attempt,
    CancelMessages,
    EnqueueInQueue,
    Extend,
    RejectMessages,
    ReplayMessages,
    Reschedule,
)
from postroom.ranges.requests import Put, ReleaseLocks
from tests.messaging.queues.harness import Q
from tests.queue_model.reference import Message, Reference, Wrong, require, takes
from tests.queue_model.systems import System, everything

IDS: Final = [b"%d" % number for number in range(8)]
KINDS: Final = ("", "a", "b")
GROUPS: Final = ("", "", "g", "h", "i")
ATTEMPTS_KEPT: Final = 20


class Unclear(Exception):
    """An error for a request of which nobody knows what came of it."""


def drawn_settings(chance: Random) -> QueueSettings:
    """Return random settings of a queue."""
    return QueueSettings(
        ack_wait=chance.choice([1.0, 3.0, 10.0]),
        min_backoff=chance.choice([None, 0, 0.5]),
        max_backoff=chance.choice([None, 0.5, 4.0]),
        max_attempts=chance.choice([None, 1, 2, 3]),
        purge_after=chance.choice([0, 5.0, 86400.0]),
        batch_size=chance.choice([1, 2, 10]),
        cache_size=chance.choice([1, 2, 3, 5, 100]),
        poller_interval=86400.0,
        max_concurrency=chance.choice([None, None, 1, 3]),
        order=chance.choice(["none", "group"]),
        on_duplicate=chance.choice(["ignore", "error", "replace", "replace"]),
        group_max_concurrency=chance.choice([None, None, 1, 2]),
    )


class History:
    """A random history of one queue, which is judged after each step.

    Args:
        system: what it is played on.
        chance: decides all of it.
    """

    def __init__(self, system: System, chance: Random) -> None:
        self.system = system
        self.chance = chance
        self.steps: list[str] = []
        self.settings = drawn_settings(chance)
        self.attempts: list[StoredQueueMessage] = []
        self._made_up = 0
        self._create()

    def _create(self) -> None:
        self._commit(CreateQueue(Q, self.settings))
        self.reference = Reference(self.settings, self.system.slack, lenient=self.system.is_lenient)

    def run(self, steps: int) -> int:
        """Take so many steps; return how many were taken.

        Raises:
            Wrong: the store did something else than a queue does.
        """
        weighted: list[tuple[int, Callable[[], None]]] = [
            (6, self.enqueue), (8, self.claim), (4, self.settle), (2, self.settle_by_id),
            (1, self.extend), (2, self.cancel), (3, self.reschedule), (2, self.replay),
            (5, self.pass_time), (1, self.pause), (1, self.update), (1, self.disturb),
            (2, self.claim_along), (2, self.claim_after_a_jump), (2, self.claim_in_transaction),
        ]  # fmt: skip
        acts = [act for weight, act in weighted for _ in range(weight)]
        try:
            for _ in range(steps):
                if self.chance.random() < 0.01:
                    self.drop()
                self.chance.choice(acts)()
                self.adopt()
                self.system.check()
        except Unclear:
            pass
        except (Wrong, AssertionError) as error:
            told = "\n  ".join(self.steps[-25:])
            raise Wrong(f"{error}\n{self.settings}\n  {told}") from error
        return len(self.steps)

    # --- asking

    def note(self, step: str) -> None:
        """Note a step."""
        self.steps.append(step)

    def adopt(self) -> None:
        """Compare the store with the reference."""
        found = everything(self.system)
        self.reference.compare(found, self.system.now())

    def _ask(self, request: Any, *expected: type[Exception]) -> Any:
        (answer,) = self.system.send(request)
        if isinstance(answer, Exception) and not isinstance(answer, expected):
            if self.system.is_lenient:
                raise Unclear from answer
            raise answer
        return answer

    def _commit(self, *writes: Any) -> Any:
        """Return the answers of the writes, or the error with which they failed."""
        committed = self._ask(self.system.transaction(*writes), LeaseLost, ConditionFailed)
        if isinstance(committed, Exception):
            return committed
        return committed.answers or [None] * len(writes)

    # --- enqueueing

    def enqueue(self) -> None:
        """Enqueue some messages, in one transaction."""
        now = self.system.now()
        some = [self._drawn(now) for _ in range(self.chance.choice([1, 1, 2, 3]))]
        self._enqueue(some, now)

    def _enqueue(self, some: list[EnqueueInQueue], now: int) -> None:
        if any(self.reference.is_unclear(each.kind, each.id, now) for each in some):
            return  # it is not known whether its id is free
        self.note(f"enqueue {[shown(each) for each in some]}")
        answers = self._commit(*some)
        after = self.reference.copy()
        expected = [after.enqueue(message_of(each, now), now) for each in some]
        if "error" in expected:
            require(isinstance(answers, ConditionFailed), f"{answers}, not an error")
            return
        require(answers == expected, f"{answers}, not {expected}")
        self.reference = after

    def _drawn(self, now: int) -> EnqueueInQueue:
        chance = self.chance
        self._made_up += 1
        is_unique = chance.random() < 0.4
        id_ = b"made up %d" % self._made_up if is_unique else chance.choice(IDS)
        due = chance.choice([0, 0, 0, drawn_due(chance, now, [0.5, 2, 5, 20])])
        headers = chance.choice([None, None, {"x": chance.randint(0, 1)}])
        return EnqueueInQueue(
            Q, id_, chance.choice(KINDS), id_, b"payload %d" % self._made_up, headers,
            chance.choice([0, 0, -1, 1]), due, chance.choice(GROUPS), is_unique,
        )  # fmt: skip

    # --- claiming

    def _claim_request(self) -> ClaimQueue:
        chance = self.chance
        selection = chance.choice([
            ClaimSelection(), ClaimSelection(),
            ClaimSelection(kinds=("a",)), ClaimSelection(kinds=("a", "b")),
            ClaimSelection(where={"x": 1}), ClaimSelection(start=b"3", end=b"m"),
        ])  # fmt: skip
        consumer = self.system.consumer + chance.randint(1, 3).to_bytes(8, "big")
        return ClaimQueue(
            Q, consumer, chance.choice([1, 1, 2, 5]), selection,
            seconds=chance.choice([0.0, 0.0, 2.0]),
        )  # fmt: skip

    def _sure(self, request: ClaimQueue, now: int) -> list[Message]:
        """Return the candidates of a claim, whether the store is late or early."""
        early, late = now - self.system.slack, now + self.system.slack
        then = {one.name for one in self.reference.at(late).candidates(request.selection, late)}
        found = self.reference.candidates(request.selection, early)
        return [each for each in found if each.name in then]

    def claim(self) -> None:
        """Claim without waiting."""
        request = self._claim_request()
        self.note(f"claim {shown(request)}")
        now = self.system.now()
        answer = self._ask(request)
        self._judge(request, answer.messages, self._sure(request, now))

    def claim_after_a_jump(self) -> None:
        """Claim without waiting after a jump of the clock, before the store had a turn.

        A write comes along.
        """
        request = self._claim_request()
        seconds = self.chance.choice([0.3, 1.0, 3.0])
        self.note(f"jump {seconds}, and claim {shown(request)}")
        before = self.system.now()
        self.system.jump(seconds)
        answer, other = self.system.send(request, self.system.transaction(Put(b"k", b"v")))
        if isinstance(answer, Exception) or isinstance(other, Exception):
            raise Unclear from answer
        now = before + from_seconds(seconds)
        reference, self.reference = self.reference, self.reference.at(now - self.system.slack)
        wanted = self._sure(request, now)
        self.reference = reference
        self._judge(request, answer.messages, wanted)

    def claim_along(self) -> None:
        """Claim along with a write that ends, or moves, a message."""
        request, now = self._claim_request(), self.system.now()
        some = self.reference.of("ready", "scheduled")
        if not some:
            return
        chosen = self.chance.choice(some)
        self.note(f"cancel {chosen.name}, and claim {shown(request)}")
        wanted = self._sure(request, now)
        write = CancelMessages(Q, [by_id(chosen)])
        answer, committed = self.system.send(request, self.system.transaction(write))
        if isinstance(answer, Exception) or isinstance(committed, Exception):
            raise Unclear
        if chosen.id in {each.id for each in answer.messages if each.kind == chosen.kind}:
            self._judge(request, answer.messages, wanted)
            self.reference.cancel(chosen)
            return
        self.reference.cancel(chosen)
        after = self._sure(request, now)
        names = {each.name for each in after}
        self._judge(request, answer.messages, [each for each in wanted if each.name in names])

    def claim_in_transaction(self) -> None:
        """Claim in a transaction, which then commits, or ends without a commit."""
        id_ = self.system.consumer + self.chance.randbytes(8)
        request = msgspec.structs.replace(
            self._claim_request(), consumer=id_, transaction_id=id_, seconds=60.0
        )
        commits = self.chance.random() < 0.5
        self.note(f"{'commit' if commits else 'roll back'} with {shown(request)}")
        wanted = self._sure(request, self.system.now())
        given = self._ask(request).messages
        self._judge(request, given, wanted)
        attempts = [attempt_of(each) for each in given]
        if commits and attempts:
            transaction = self.system.transaction(Acknowledge(Q, attempts))
            committed = self._ask(msgspec.structs.replace(transaction, transaction_id=id_))
            require(committed.answers in ([], [len(given)]), f"{committed.answers} of {attempts}")
        else:
            self._ask(ReleaseLocks(id_))
        for each in given:
            message = self.reference.messages[each.kind, each.id]
            if commits:
                self.reference.finish(message, self.system.now())
            else:
                self.reference.return_soon(message)

    def _judge(
        self, request: ClaimQueue, given: list[StoredQueueMessage], wanted: list[Message]
    ) -> None:
        """Check that a claim was given eligible messages, and one at least if there was any."""
        require(given or not wanted, f"a claim is given nothing, not one of {wanted}")
        require(len(given) <= request.messages_max, "a claim is given too much")
        now = self.system.now()
        for each in given:
            message = self.reference.messages.get((each.kind, each.id))
            require(message is not None, f"{each} comes from nowhere")
            assert message is not None
            late = now + self.system.slack
            ends = any(one.until <= late for one in self.reference.of("leased"))
            if not (self.system.is_lenient or ends):
                could = self._candidates(request, now)
                is_one = any(self.reference.is_next(message, one) for one in could)
                require(is_one, f"a claim is given {each}, not one of {could}")
                require(each.epoch == message.epoch, f"{each} has another epoch than {message}")
            require(takes(request.selection, message), f"{request} does not take {each}")
            length = from_seconds(request.seconds or self.settings.ack_wait)
            differs = abs(each.leased_until - each.fired_at - length)
            require(differs <= self.system.slack, f"{each} is held for another time")
            if each.epoch != message.epoch:  # an attempt before it has ended meanwhile
                message.due, message.epoch, message.has_failed = each.scheduled, each.epoch, True
            self.reference.lease(message, each.leased_until, each.fired_at)
            self.attempts.append(each)
        del self.attempts[:-ATTEMPTS_KEPT]

    def _candidates(self, request: ClaimQueue, now: int) -> list[Message]:
        """Return the candidates of a claim at each moment that the store may take for ``now``.

        A message that becomes due between two moments is the next one until another one is due.
        """
        early, late = now - self.system.slack, now + self.system.slack
        due = {self.reference.ready_at(each) for each in self.reference.of("scheduled")}
        moments = {early, late, *(each for each in due if early < each < late)}
        return [
            each
            for moment in sorted(moments)
            for each in self.reference.at(moment).candidates(request.selection, max(moment, now))
        ]

    # --- settling

    def _attempt(self) -> tuple[Attempt, Message | None] | None:
        """Choose one of the last attempts, with its message if it holds that yet."""
        if not self.attempts:
            return None
        told = self.chance.choice(self.attempts)
        attempt = attempt_of(told)
        message = self.reference.messages.get((told.kind, told.id))
        holds = message is not None and message.state == "leased"
        holds = holds and message is not None and message.fired_at == told.fired_at
        return attempt, message if holds else None

    def settle(self) -> None:
        """Acknowledge or reject an attempt."""
        found = self._attempt()
        if found is None:
            return
        attempt, message = found
        delay = self.chance.choice([0.0, 0.0, 1.0, 5.0])
        kind = self.chance.choice(["done", "done", "failed", "failed", "dead", "back"])
        writes = {
            "done": Acknowledge(Q, [attempt]),
            "failed": RejectMessages(Q, [attempt], delay, reason="failed"),
            "dead": RejectMessages(Q, [attempt], dead=True, reason="dead"),
            "back": RejectMessages(Q, [attempt], uncounted=True),
        }
        self.note(f"{kind} {attempt} after {delay}")
        answers = self._commit(writes[kind])
        now = self.system.now()
        if message is None:
            require(isinstance(answers, LeaseLost), f"{attempt} does not hold its message")
            return
        if isinstance(answers, LeaseLost) and self._may_have_ended(message, now):
            return
        require(answers == [1], f"{answers} of {attempt}")
        if kind == "done":
            self.reference.finish(message, now)
        elif kind == "failed":
            self.reference.fail(message, now + from_seconds(delay), now)
        elif kind == "dead":
            message.epoch += 1
            self.reference.bury(message, now)
        else:
            self.reference.give_back(message)

    def _may_have_ended(self, message: Message, now: int) -> bool:
        return self.system.is_lenient or message.until <= now + self.system.slack

    def settle_by_id(self) -> None:
        """Acknowledge a message, or bury it, whoever holds it."""
        message = self._any()
        if message is None:
            return
        is_done = self.chance.random() < 0.5
        self.note(f"{'acknowledge' if is_done else 'bury'} {message.name}")
        write = (
            Acknowledge(Q, [by_id(message)])
            if is_done
            else RejectMessages(Q, [by_id(message)], dead=True)
        )
        states = {"ready", "scheduled", "leased"} | ({"dead"} if is_done else set())
        answers, now = self._commit(write), self.system.now()
        require(answers == [int(message.state in states)], f"{answers} of {message}")
        if message.state not in states:
            return
        if is_done:
            self.reference.finish(message, now)
            return
        message.epoch += message.state == "leased"
        self.reference.bury(message, now)

    def extend(self) -> None:
        """Hold a message for longer, or shorter."""
        found = self._attempt()
        if found is None:
            return
        attempt, message = found
        seconds = self.chance.choice([0.5, 5.0])
        self.note(f"extend {attempt} by {seconds}")
        answers = self._commit(Extend(Q, [attempt], seconds))
        if message is None:
            require(isinstance(answers, LeaseLost), f"{attempt} does not hold its message")
        elif isinstance(answers, LeaseLost):
            require(self._may_have_ended(message, self.system.now()), f"{attempt} holds it")
        else:
            message.until = answers[0]

    # --- by id

    def _any(self) -> Message | None:
        some = list(self.reference.messages.values())
        return self.chance.choice(some) if some else None

    def cancel(self) -> None:
        """Delete a message that is not done."""
        message = self._any()
        if message is None:
            return
        self.note(f"cancel {message.name}")
        answers = self._commit(CancelMessages(Q, [by_id(message)]))
        lives = message.state not in {"done", "gone"}
        require(answers == [int(lives)], f"{answers} of {message}")
        if lives:
            self.reference.cancel(message)

    def reschedule(self) -> None:
        """Reschedule a message that nobody holds."""
        message = self._any()
        if message is None or (self.system.is_lenient and message.state == "leased"):
            return  # its lease may end just now
        now = self.system.now()
        due = self.chance.choice([0, drawn_due(self.chance, now, [0.5, 3, 30])])
        epoch = self.chance.choice([None, None, 0, 1])
        self.note(f"reschedule {message.name} to {due}, {epoch}")
        answers = self._commit(Reschedule(Q, [by_id(message)], due, epoch))
        moved = self.reference.reschedule(message, timestamp_of(due, now), epoch, now)
        require(answers == [int(moved)], f"{answers} of {message}")

    def replay(self) -> None:
        """Replay a dead message."""
        dead = self.reference.of("dead")
        message = self.chance.choice(dead) if dead else self._any()
        if message is None:
            return
        self.note(f"replay {message.name}")
        answers = self._commit(ReplayMessages(Q, [by_id(message)]))
        replayed = self.reference.replay(message, self.system.now())
        require(answers == [int(replayed)], f"{answers} of {message}")

    # --- the queue

    def pass_time(self) -> None:
        """Move the clock on."""
        seconds = self.chance.choice([0.001, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0])
        self.note(f"pass {seconds}")
        self.system.advance(seconds)

    def pause(self) -> None:
        """Fire nothing any more, or again."""
        paused = not self.reference.paused
        self.note(f"paused: {paused}")
        self._commit(UpdateQueue(Q, {}, paused))
        self.reference.paused = paused

    def update(self) -> None:
        """Change a setting, but for the order."""
        drawn = drawn_settings(self.chance)
        name = self.chance.choice([
            "ack_wait", "max_attempts", "batch_size", "cache_size", "max_concurrency",
            "on_duplicate", "group_max_concurrency",
        ])  # fmt: skip
        self.note(f"update {name} to {getattr(drawn, name)}")
        self._commit(UpdateQueue(Q, {name: getattr(drawn, name)}))
        values = {each: getattr(self.settings, each) for each in QueueSettings.__struct_fields__}
        self.settings = QueueSettings(**{**values, name: getattr(drawn, name)})
        self.reference.settings = self.settings

    def drop(self) -> None:
        """Drop the queue, and create another one of the same name."""
        self.note("drop")
        self._commit(DropQueue(Q))
        self.settings = drawn_settings(self.chance)
        self.attempts.clear()
        self._create()

    def disturb(self) -> None:
        """Restart the store, or let another node lead."""
        self.note("disturb")
        self.system.disturb()


def shown(request: Any) -> str:
    """Return a request as text, without its constant fields."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    left_out = ("queue", "bytes_max", "consumer", "key", "payload", "transaction_id")
    said = (
        f"{name}={shown(value) if name == 'selection' else value!r}"
        for name, value in fields.items()
        if value not in (None, 0, "", b"", False) and name not in left_out
    )
    return f"({', '.join(said)})"


def attempt_of(told: StoredQueueMessage) -> Attempt:
    """Return the name of the attempt for which a message was claimed."""
    return Attempt(*told.locator, told.epoch, fired_at=told.fired_at)


def by_id(message: Message) -> Attempt:
    """Return the attempt that names a message by its id, whoever holds it."""
    return Attempt(b"", message.kind, message.id, -1, by_id=True, of_kind=True)


def drawn_due(chance: Random, now: int, seconds: list[float]) -> int:
    """Return a due time, of any kind, in so many seconds."""
    length = chance.choice(seconds)
    moment = now + from_seconds(length)
    return chance.choice([moment, times.at(moment), times.after(round(length * 1000))])


def timestamp_of(due: int, now: int) -> int:
    """Return the time that a request asks for as a timestamp."""
    if due & times.LENGTH and not due & times.MOMENT:
        due = now + ((due & ~times.LENGTH) << LOGICAL_BITS)
    return max(times.shown(due), now)


def message_of(request: EnqueueInQueue, now: int) -> Message:
    """Return the message that an enqueue makes."""
    due = timestamp_of(request.due, now)
    return Message(
        0, request.id, request.kind, request.payload, request.headers, request.priority,
        request.group, due, due,
    )  # fmt: skip


@contextmanager
def small_steps(chance: Random) -> Iterator[None]:
    """Let proposals hold few messages, so that each of them is one of many."""
    before = firing.READ_AT_ONCE, firing.FIRED_AT_ONCE
    firing.READ_AT_ONCE = chance.choice([1, 2, 5, 2000])  # type: ignore[misc]
    try:
        yield
    finally:
        firing.READ_AT_ONCE, firing.FIRED_AT_ONCE = before  # type: ignore[misc]

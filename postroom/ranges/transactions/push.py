"""Pushes: a range asks the anchor of a transaction whether that has committed.

::

    a call meets an intent ──▶ Pusher ── Push ──▶ the anchor's range
    a record is older than 2 s ──▶┘                 │
      ┌──────────── committed at T ◀────────────────┤ COMMIT record of this ballot
      ├──────────── pending, above what was asked ◀─┤ in the coordinator's memory
      └──────────── dead ◀──────────────────────────┘ neither of both, or wounded now
      ▼
    Resolve, in the range itself · or readers go on, and writers wait

A reader is content if the transaction can only commit above its timestamp: the anchor's clock
passes that. A writer waits for the end. If its own transaction is the older one, the other is
*wounded*: transactions that wait for each other in a circle of ranges therefore have an end.

A coordinator that hangs does not keep others waiting: a run that has taken too long is wounded by
the first push that comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from postroom.errors import TransactionConflict
from postroom.kv import keys
from postroom.limits import LOCK_WAIT_SECONDS_MAX
from postroom.ranges.calls import Call
from postroom.ranges.carrier import Carrier
from postroom.ranges.evaluation import Blocked, View
from postroom.ranges.ports import Registry
from postroom.ranges.requests import CommitTransaction
from postroom.ranges.transactions.coordinator import Coordinator
from postroom.ranges.transactions.intents import AT_THE_END, NO_AGE, Intent, IntentTable
from postroom.ranges.transactions.records import decided_in, is_of_several
from postroom.ranges.transactions.requests import Push, Standing

LOOKED_AFTER_SECONDS: Final = 2.0
"""The age at which a participant asks after a record, though nobody waits for it."""
PAUSE_SECONDS_FIRST: Final = 0.02
PAUSE_SECONDS_LAST: Final = 0.5


class Pushes:
    """The evaluator of ``Push``.

    Args:
        pass_over: a function that lets the clock pass a timestamp.
        monotonic: a function that returns seconds that never go back.

    Attributes:
        coordinator: the runs of the range; ``None``: it has none.
    """

    def __init__(self, pass_over: Callable[[int], None], monotonic: Callable[[], float]) -> None:
        self._pass_over = pass_over
        self._monotonic = monotonic
        self.coordinator: Coordinator | None = None

    def register(self, registry: Registry) -> None:
        """Register the evaluator."""
        registry.reads[Push] = self.push

    def push(self, view: View, request: Push) -> Standing:
        """Evaluate ``Push``.

        Raises:
            Blocked: the commit is under evaluation, or under way.
        """
        record = view.get(keys.transaction_key(request.key, request.transaction_id))
        if view.before:
            raise Blocked
        if record is not None:
            is_it = is_of_several(record) and decided_in(record).ballot == request.ballot
            return Standing(int.from_bytes(record[:8], "big") if is_it else 0)
        coordinator = self.coordinator
        run = coordinator.runs.get(request.transaction_id) if coordinator is not None else None
        if coordinator is None or run is None or run.ballot != request.ballot:
            return Standing()
        own_age = run.request.began, request.transaction_id
        is_older = request.began and (request.began, request.waiting) < own_age
        if not run.is_decided and (is_older or run.ends_at <= self._monotonic()):
            coordinator.wound(run)
            return Standing()
        self._pass_over(request.above)
        return Standing(is_pending=True)


class _Inquiry:
    """The pushes of one intent.

    Attributes:
        ask_at: when to ask, or to ask again.
        pause: the pause after the next answer that ends nothing.
        above, age: what was asked.
        ends: whether the end of the intent is under way.
    """

    __slots__ = ("above", "age", "ask_at", "ends", "pause")

    def __init__(self) -> None:
        self.ask_at = 0.0
        self.pause = PAUSE_SECONDS_FIRST
        self.above, self.age = 0, NO_AGE
        self.ends = False


class Pusher:
    """The pusher of one range; see the module.

    Args:
        intents: the intents of the range.
        carrier: the way to other ranges.
        monotonic: a function that returns seconds that never go back.
        wake: a function that has ``step`` called soon.
        end: a function that ends an intent: committed at a timestamp, or dead (0).
        refuse: a function that ends a commit that waits, with an error.
    """

    def __init__(
        self,
        intents: IntentTable,
        carrier: Carrier,
        monotonic: Callable[[], float],
        wake: Callable[[], None],
        end: Callable[[Intent, int], None],
        refuse: Callable[[Call, Exception], None],
    ) -> None:
        self._intents = intents
        self._carrier = carrier
        self._monotonic = monotonic
        self._wake = wake
        self._end = end
        self._refuse = refuse
        self._inquiries: dict[Intent, _Inquiry] = {}
        self._answers: list[tuple[Intent, _Inquiry, int, Any]] = []

    def restart(self) -> None:
        """Begin under a new lease, or end with the old one."""
        self._inquiries.clear()
        self._answers.clear()

    def step(self) -> float:
        """Do what there is to do; return in how many seconds there is more at the latest."""
        self._take_answers()
        self._forget_ended()
        now = self._monotonic()
        pause = LOOKED_AFTER_SECONDS if self._intents.by_transaction else math.inf
        for intent in list(self._intents.met):
            if intent.waiting:
                self._refuse_late(intent, now)
                pause = min(pause, self._ask(intent, now))
        for intent in list(self._intents.by_transaction.values()):
            if intent.since + LOOKED_AFTER_SECONDS > now:
                break  # those after it are younger
            pause = min(pause, self._ask(intent, now))
        return pause

    def _ask(self, intent: Intent, now: float) -> float:
        """Ask after an intent, if it is time; return when it will be."""
        inquiry = self._inquiries.get(intent)
        if inquiry is None:
            inquiry = self._inquiries[intent] = _Inquiry()
        above = max((met.at for met in intent.waiting.values() if met.at < AT_THE_END), default=0)
        ages = [met.age for met in intent.waiting.values() if met.age != NO_AGE]
        age = min(ages, default=NO_AGE)
        is_new = above > inquiry.above or age not in (NO_AGE, inquiry.age)
        if not inquiry.ends and (inquiry.ask_at <= now or is_new):
            inquiry.above, inquiry.age = above, age
            inquiry.ask_at = now + PAUSE_SECONDS_LAST
            request = Push(intent.anchor, intent.transaction_id, intent.ballot, above, *age)
            answered = partial(self._answered, intent, inquiry, above)
            self._carrier.carry(self._carrier.recipient_of(intent.anchor), request, answered)
        return max(inquiry.ask_at - now, 0.0) or PAUSE_SECONDS_FIRST

    def _answered(self, intent: Intent, inquiry: _Inquiry, above: int, answer: Any) -> None:
        self._answers.append((intent, inquiry, above, answer))
        self._wake()

    def _take_answers(self) -> None:
        answers, self._answers = self._answers, []
        for intent, inquiry, above, answer in answers:
            if self._inquiries.get(intent) is not inquiry or inquiry.ends:
                continue
            if not isinstance(answer, Standing):
                self._pause(inquiry)
            elif answer.is_pending:
                self._pause(inquiry)
                self._intents.raised(intent, above + 1)  # a later question has its own answer
            else:
                inquiry.ends = True
                is_its = intent.timestamp <= answer.timestamp
                self._end(intent, answer.timestamp if is_its else 0)

    def _pause(self, inquiry: _Inquiry) -> None:
        inquiry.ask_at = self._monotonic() + inquiry.pause
        inquiry.pause = min(2 * inquiry.pause, PAUSE_SECONDS_LAST)

    def ended(self, intent: Intent, error: BaseException | None) -> None:
        """Hear that the end of an intent is applied, or was refused."""
        inquiry = self._inquiries.get(intent)
        if error is not None and inquiry is not None:
            inquiry.ends = False
            self._pause(inquiry)

    def _forget_ended(self) -> None:
        known = self._intents.by_transaction
        for intent in [
            each for each in self._inquiries if known.get(each.transaction_id) is not each
        ]:
            del self._inquiries[intent]

    def _refuse_late(self, intent: Intent, now: float) -> None:
        late = [
            call
            for call, met in intent.waiting.items()
            if now - met.since > LOCK_WAIT_SECONDS_MAX and type(call.request) is CommitTransaction
        ]
        for call in late:
            del intent.waiting[call]
            self._refuse(call, _too_late())


def _too_late() -> TransactionConflict:
    return TransactionConflict(
        "another transaction over several ranges has read or writes what this one writes, and did "
        f"not end within {LOCK_WAIT_SECONDS_MAX:g} s; nothing was changed: try again (run() does)"
    )

"""The resolver: it tells the ranges of a transaction how that has ended.

::

    COMMIT record, list of spans ── Resolve(T) ──▶ each span, until it has answered
                                 ── all have ────▶ ForgetCommits: the lists go, many in a proposal
    a run is over ───────────────── Resolve(0) ──▶ each part, once

A participant that does not hear of it asks (:mod:`.push`). Only what has committed is therefore
told until it is heard: the COMMIT record must stay that long. The lists are read again under each
lease.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from postroom.kv import keys
from postroom.kv.engine import Reader
from postroom.ranges.bounds import Bounds
from postroom.ranges.calls import Call
from postroom.ranges.carrier import Carrier, Recipient
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.ports import Registry
from postroom.ranges.transactions.coordinator import CommitRun
from postroom.ranges.transactions.records import (
    UnresolvedCommit,
    decode_unresolved,
    record_key_of,
)
from postroom.ranges.transactions.requests import Ballot, ForgetCommits, Resolve

TOLD_AGAIN_SECONDS: Final = 1.0
"""The time after which a range is told again that has not answered."""
FORGOTTEN_AT_ONCE: Final = 512
FORGOTTEN_AFTER_SECONDS: Final = 0.5
"""The time for which commits of which all have heard are gathered, to be forgotten together."""

Span: TypeAlias = tuple[bytes, bytes | None]


class ForgottenCommits:
    """The evaluator of ``ForgetCommits``.

    Args:
        range_id: the id of the range.
    """

    def __init__(self, range_id: int) -> None:
        self._prefix = keys.unresolved_prefix(range_id)

    def register(self, registry: Registry) -> None:
        """Register the evaluator."""
        registry.commands[ForgetCommits] = self.forget

    def forget(self, ctx: Evaluation, request: ForgetCommits) -> None:
        """Evaluate ``ForgetCommits``: the COMMIT records may go once they are old enough."""
        for name in request.names:
            ctx.steps += 1
            if ctx.get_once(self._prefix + name) is not None:
                ctx.writes[self._prefix + name] = None
                ctx.garbage.append(record_key_of(name))


class _Telling:
    """The spans of a commit that have not answered, and when each is told again."""

    __slots__ = ("commit", "spans", "transaction_id")

    def __init__(self, transaction_id: bytes, commit: UnresolvedCommit) -> None:
        self.transaction_id = transaction_id
        self.commit = commit
        self.spans: dict[Span, float] = dict.fromkeys(commit.spans, 0.0)


class _Forgetting(Call):
    """A request of the resolver to its own range."""

    __slots__ = ("_ended",)

    def __init__(
        self, request: Any, ended: Callable[[BaseException | None], None], *, urgent: bool
    ) -> None:
        super().__init__(request, urgent=urgent)
        self._ended = ended

    def complete(self, result: Any, error: BaseException | None) -> None:
        del result
        self._ended(error)


class Resolver:
    """The resolver of one range; see the module.

    Args:
        range_id: the id of the range.
        bounds: the bounds of the range.
        carrier: the way to other ranges.
        monotonic: a function that returns seconds that never go back.
        wake: a function that has ``step`` called soon.
        submit: a function that has the range take a call.

    Attributes:
        hurries: a function that returns whether commits are to be forgotten at once.
        carried_out: a function that takes the name of a commit that all have carried out.
    """

    def __init__(
        self,
        range_id: int,
        bounds: Bounds,
        carrier: Carrier,
        monotonic: Callable[[], float],
        wake: Callable[[], None],
        submit: Callable[[Call], None],
    ) -> None:
        self._prefix = keys.unresolved_prefix(range_id)
        self._bounds = bounds
        self._carrier = carrier
        self._monotonic = monotonic
        self._wake = wake
        self._submit = submit
        self.hurries: Callable[[], bool] = lambda: False
        self.carried_out: Callable[[bytes], None] = lambda _: None
        self._tellings: dict[bytes, _Telling] = {}
        self._answers: list[tuple[bytes, Span, Any]] = []
        self._dead: list[tuple[bytes, Ballot, list[Recipient]]] = []
        self._heard: dict[bytes, None] = {}
        self._forgets_at = 0.0
        self._forgets = False

    def __len__(self) -> int:
        return len(self._tellings)

    def restart(self, stored: Reader) -> None:
        """Begin from what is stored, under a new lease."""
        self.end()
        for raw, packed in stored.iterate(self._prefix, keys.after_prefix(self._prefix)):
            self.tell(raw[len(self._prefix) :], decode_unresolved(packed))

    def end(self) -> None:
        """Forget everything: this replica serves no longer."""
        self._tellings.clear()
        self._answers.clear()
        self._dead.clear()
        self._heard.clear()
        self._forgets = False

    def tell(self, name: bytes, commit: UnresolvedCommit) -> None:
        """Tell the spans of a commit of it."""
        self._tellings[name] = _Telling(name[-16:], commit)
        self._wake()

    def died(self, run: CommitRun) -> None:
        """Tell the parts of a run that it is over."""
        recipients = [each.part.recipient for each in run.asked]
        self._dead.append((run.request.transaction_id, run.ballot, recipients))
        self._wake()

    def step(self) -> float:
        """Do what there is to do; return in how many seconds there is more at the latest."""
        self._take_answers()
        dead, self._dead = self._dead, []
        for transaction_id, ballot, recipients in dead:
            for recipient in recipients:
                self._carry(recipient, transaction_id, ballot, 0, lambda _: None)
        now, pause = self._monotonic(), math.inf
        for name, telling in list(self._tellings.items()):
            pause = min(pause, self._tell(name, telling, now))
        return min(pause, self._forget(now))

    def _tell(self, name: bytes, telling: _Telling, now: float) -> float:
        """Tell those that have not answered; return when to tell them again."""
        pause, commit = TOLD_AGAIN_SECONDS, telling.commit
        for span, told_at in list(telling.spans.items()):
            if told_at > now:
                pause = min(pause, told_at - now)
                continue
            del telling.spans[span]
            for recipient, piece in self._pieces(span):
                telling.spans[piece] = now + TOLD_AGAIN_SECONDS
                answered = partial(self._answered, name, piece)
                self._carry(
                    recipient._replace(start=piece[0], end=piece[1]), telling.transaction_id,
                    commit.ballot, commit.timestamp, answered,
                )  # fmt: skip
        return pause

    def _pieces(self, span: Span) -> list[tuple[Recipient, Span]]:
        """Cut a span at the ends of ranges, as they are now."""
        pieces: list[tuple[Recipient, Span]] = []
        start: bytes | None = span[0]
        while start is not None:
            recipient = self._carrier.recipient_of(start)
            end = recipient.end
            is_last = end is None or (span[1] is not None and span[1] <= end)
            pieces.append((recipient, (start, span[1] if is_last else end)))
            start = None if is_last else end
        return pieces

    def _carry(
        self,
        recipient: Recipient,
        transaction_id: bytes,
        ballot: Ballot,
        timestamp: int,
        answered: Callable[[Any], None],
    ) -> None:
        request = Resolve(transaction_id, ballot, timestamp, recipient.start, recipient.end)
        self._carrier.carry(recipient, request, answered)

    def _answered(self, name: bytes, span: Span, answer: Any) -> None:
        self._answers.append((name, span, answer))
        self._wake()

    def _take_answers(self) -> None:
        answers, self._answers = self._answers, []
        for name, span, answer in answers:
            telling = self._tellings.get(name)
            if telling is None or isinstance(answer, BaseException):
                continue
            telling.spans.pop(span, None)
            if not telling.spans:
                del self._tellings[name]
                self.carried_out(name)
                if not self._heard:
                    self._forgets_at = self._monotonic() + FORGOTTEN_AFTER_SECONDS
                self._heard[name] = None

    def _forget(self, now: float) -> float:
        """Forget commits of which all have heard, many at once."""
        if not self._heard or self._forgets:
            return math.inf
        is_time = self._forgets_at <= now or len(self._heard) >= FORGOTTEN_AT_ONCE
        if not (is_time or self.hurries()):
            return self._forgets_at - now
        names = list(self._heard)[:FORGOTTEN_AT_ONCE]
        self._forgets = True
        self._submit(
            _Forgetting(ForgetCommits(names), partial(self._forgotten, names), urgent=False)
        )
        return math.inf

    def _forgotten(self, names: list[bytes], error: BaseException | None) -> None:
        self._forgets = False
        if error is None:
            for name in names:
                self._heard.pop(name, None)
        self._forgets_at = self._monotonic() + FORGOTTEN_AFTER_SECONDS
        self._wake()

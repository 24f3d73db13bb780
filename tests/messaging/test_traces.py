"""The work of messaging's evaluators, told line by line on one replica (:mod:`.one_range`).

Lines are ``who: what -> answer``. ``who`` is ``range``, a client (``c1``), or a transaction of a
client (``c1.t2``). The writes of a transaction are gathered; ``commit`` sends them. A client that
has to wait is told so, and ``answer`` asks again. ``pytest --rewrite`` writes the answers.

``range: hold`` keeps what is proposed from now on under way, until ``apply``, ``refuse`` or
``forget`` say what becomes of it (``find``: it was in the log all the same). ``range: go_on``
applies it, and what comes later at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from postroom.errors import Error
from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS, from_seconds
from postroom.messaging import requests as messaging
from postroom.messaging.requests import Delivered, Moved, Peeked, ReapedMessages
from postroom.raft.proposals import ProposalOutcome
from postroom.ranges.requests import (
    UNBOUNDED,
    Committed,
    CommitTransaction,
    GetForUpdate,
    Increment,
    Put,
    ReleaseLocks,
    Value,
)
from tests.messaging.one_range import EPOCH_MILLISECONDS, Asked, OneRange

FOLDER = Path(__file__).parent / "traces"
ARROW = " -> "
Action = Callable[..., str | None]

_delivered = msgspec.msgpack.Decoder(Delivered)


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_a_trace(name: str, request: pytest.FixtureRequest) -> None:
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    trace = Trace()
    played = "".join(f"{trace.play(line)}\n" for line in expected.splitlines())
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == expected or request.config.getoption("--rewrite")


class Transaction:
    """The writes that a transaction has gathered."""

    def __init__(self, name: str, began: int) -> None:
        client, _, own = name.partition(".")
        self.id = client.encode().ljust(8) + own.encode().ljust(8)
        self.began = began
        self.seconds_max = 60.0
        self.writes: list[Any] = []
        self.reaped: dict[bytes, dict[bytes, None]] = {}
        self.asked: Asked | None = None
        self.commits: CommitTransaction[Any] | None = None


class Trace:
    """A range, and the transactions that were begun."""

    def __init__(self) -> None:
        self._range = OneRange()
        self._transactions: dict[str, Transaction] = {}
        self._upkeep: Asked | None = None

    def play(self, line: str) -> str:
        """Return the line, with its answer."""
        told = line.partition(ARROW)[0].rstrip()
        if not told or told.startswith("#"):
            return line
        who, _, command = told.partition(": ")
        name, *arguments = command.split()
        if who == "range":
            answer = self.RANGE[name](self, *arguments)
        elif name == "silent":
            self._range.replica.release_client(who.encode().ljust(8))
            self._range.settle()
            answer = None
        else:
            if who not in self._transactions:
                self._transactions[who] = Transaction(who, self._range.clock.now())
            answer = self.TRANSACTION[name](self, self._transactions[who], *arguments)
        return told + ARROW + (answer or "ok")

    # --- the range

    def _pass(self, seconds: str) -> None:
        self._range.pass_time(float(seconds))

    def _lead(self) -> None:
        self._range.lead()

    def _hold(self) -> None:
        self._range.group.holds = True

    def _go_on(self) -> None:
        self._range.group.holds = False
        self._range.settle()

    def _apply(self) -> None:
        self._range.end(ProposalOutcome.APPLIED)

    def _refuse(self) -> None:
        self._range.end(ProposalOutcome.SUPERSEDED)

    def _forget(self) -> None:
        self._range.end(ProposalOutcome.UNKNOWN)

    def _find(self) -> None:
        self._range.group.find()

    def _deliver(self, most: str = "100") -> str:
        self._upkeep = self._range.ask(messaging.DeliverDue(int(most)), urgent=False)
        return _answer(self._upkeep)

    def _execute(self, most: str = "100") -> str:
        self._upkeep = self._range.ask(messaging.ExecuteDue(int(most)), urgent=False)
        return _answer(self._upkeep)

    def _moved(self) -> str:
        assert self._upkeep is not None
        return _answer(self._upkeep)

    def _peek(self, key: str) -> str:
        return _answer(self._range.ask(messaging.Peek(key.encode(), 100)))

    def _get(self, key: str) -> str:
        head = self._range.engine.get(keys.head_key(key.encode()))
        return "nothing" if head is None else _number(head[9:])

    def _counters(self) -> str:
        counters, _ = self._range.ask(messaging.ReadCounters()).answers[0]
        assert counters.conserved()
        names = ("enqueued", "delivered", "executed", "pending", "dead", "reaped")
        return ", ".join(f"{getattr(counters, each)} {each}" for each in names)

    def _dead(self) -> str:
        letters, _ = self._range.ask(messaging.ListDeadLetters(100)).answers[0]
        told = []
        for letter in letters:
            message = letter.record.message
            attempts = message.trial.attempts
            told.append(f"{message.value.decode()} after {attempts}: {letter.record.reason}")
        return "; ".join(told) or "nobody"

    def _mail(self) -> str:
        inboxes, _ = self._range.ask(messaging.ListInboxes(b"", None, 100)).answers[0]
        told = [
            f"{each.key.decode()} {each.messages}{', held up' * each.held_up}" for each in inboxes
        ]
        return "; ".join(told) or "none"

    def _new_process(self) -> None:
        """Start an embedded store's process anew; its memory begins afresh some time later."""
        self._range.is_embedded(True)
        self._range.pass_time(1.0)
        self._range.lead()

    def _outbox(self, which: str) -> str:
        prefix = keys.outbox_prefix(1, getattr(keys, which.upper()), keys.WAITING)
        entries = self._range.engine.iterate(prefix, keys.after_prefix(prefix))
        due = [_seconds(int.from_bytes(key[len(prefix) :][:8], "big")) for key, _ in entries]
        return f"due at {' '.join(due)}" if due else "empty"

    def _sizes(self) -> str:
        """Return what is kept in memory, without cancelled deadlines, which may stay a while."""
        sizes = self._range.replica.sizes()
        kept = [f"{size} {name}" for name, size in sizes.items() if size and name != "deadlines"]
        return ", ".join(kept) or "nothing kept"

    RANGE: Final[dict[str, Action]] = {
        "pass": _pass,  # seconds
        "lead": _lead,  # anew
        "hold": _hold,
        "go_on": _go_on,
        "apply": _apply,
        "refuse": _refuse,
        "forget": _forget,
        "find": _find,
        "deliver": _deliver,  # [NUMBER]
        "execute": _execute,  # [NUMBER]
        "answer": _moved,  # for the last of these two
        "peek": _peek,
        "get": _get,
        "counters": _counters,
        "dead": _dead,
        "mail": _mail,
        "new_process": _new_process,
        "outbox": _outbox,  # deliverable, executable
        "sizes": _sizes,
    }

    # --- a transaction

    def _begin(self, tx: Transaction, seconds: str) -> None:
        tx.seconds_max = float(seconds)

    def _send(self, tx: Transaction, key: str, value: str, *later: str) -> None:
        message = messaging.EnqueueMessage(key.encode(), value.encode(), None, self._due(later))
        tx.writes.append(message)

    def _defer(self, tx: Transaction, key: str, by: str, *later: str) -> None:
        update = Increment(key.encode(), int(by))
        tx.writes.append(messaging.EnqueueUpdate(update, self._due(later)))

    def _due(self, later: tuple[str, ...]) -> int:
        if not later:
            return 0
        assert later[0] == "in"
        return self._range.clock.reading() + from_seconds(float(later[1]))

    def _put(self, tx: Transaction, key: str, value: str) -> None:
        tx.writes.append(Put(key.encode(), value.encode()))

    def _lock(self, tx: Transaction, key: str) -> str:
        return self._ask(tx, GetForUpdate(key.encode(), 0, tx.id, tx.seconds_max))

    def _reap(self, tx: Transaction, key: str, most: str = "100", *more: str) -> str:
        attempts_max = int(more[more.index("of") + 1]) if "of" in more else 0
        return self._ask(tx, messaging.ReapQueue(
            key.encode(), int(most), UNBOUNDED, tx.id, tx.seconds_max, "wait" in more, attempts_max
        ))  # fmt: skip

    def _tried(self, tx: Transaction, key: str) -> list[tuple[bytes, int]]:
        """Return the messages that it has reaped, with attempts, and do not consume them."""
        ids, tx.reaped[key.encode()] = list(tx.reaped[key.encode()]), {}
        prefix = keys.inbox_prefix(key.encode())
        stored = [_delivered.decode(self._range.engine.get(prefix + id_) or b"") for id_ in ids]
        attempts = [0 if each.trial is None else each.trial.attempts for each in stored]
        return list(zip(ids, attempts, strict=True))

    def _postpone(self, tx: Transaction, key: str, seconds: str, *more: str) -> None:
        attempts_max = int(more[more.index("of") + 1]) if "of" in more else 0
        tx.writes.append(messaging.PostponeMessages(
            key.encode(), self._tried(tx, key), None if seconds == "backoff" else float(seconds),
            "no", "hold" in more, attempts_max,
        ))  # fmt: skip

    def _bury(self, tx: Transaction, key: str) -> None:
        tx.writes.append(messaging.BuryMessages(key.encode(), self._tried(tx, key), "no use"))

    def _cancel(self, tx: Transaction) -> str:
        assert tx.asked is not None
        waited = self._range.replica.cancel(tx.asked)
        self._range.settle()
        return "cancelled" if waited else "too late"

    def _rollback(self, tx: Transaction) -> str:
        return self._ask(tx, ReleaseLocks(tx.id))

    def _commit(self, tx: Transaction) -> str:
        if tx.commits is None:
            reaps = [messaging.ReapMessages(key, list(ids)) for key, ids in tx.reaped.items()]
            reaps = [each for each in reaps if each.ids]
            writes = [*tx.writes, *reaps]
            tx.commits = CommitTransaction(
                tx.id, tx.began, tx.seconds_max, 0, b"anchor", [], [], writes
            )
        return self._ask(tx, tx.commits)

    def _ask(self, tx: Transaction, request: Any) -> str:
        tx.asked = self._range.ask(request)
        return self._answered(tx)

    def _answered(self, tx: Transaction) -> str:
        assert tx.asked is not None
        for answer, _ in tx.asked.answers:
            if type(answer) is ReapedMessages:
                ids = dict.fromkeys(id_ for id_, _ in answer.messages)
                tx.reaped.setdefault(tx.asked.request.key, {}).update(ids)
        return _answer(tx.asked)

    TRANSACTION: Final[dict[str, Action]] = {
        "begin": _begin,  # seconds: the time that it has
        "send": _send,  # key value [in SECONDS]
        "defer": _defer,  # key by [in SECONDS]: an increment
        "put": _put,
        "lock": _lock,
        "reap": _reap,  # key [NUMBER [wait] [of ATTEMPTS]]
        "postpone": _postpone,  # messages that it reaped: key SECONDS|backoff [hold] [of ATTEMPTS]
        "bury": _bury,  # messages that it reaped: key
        "answer": _answered,  # to what it has asked last
        "cancel": _cancel,
        "rollback": _rollback,
        "commit": _commit,  # the same one when it is done again
    }


def _answer(asked: Asked) -> str:
    if not asked.answers:
        return "waits"
    ((result, error),) = asked.answers
    if error is not None:
        assert isinstance(error, Error), error
        return type(error).__name__
    return _shown(result)


def _shown(result: Any) -> str:
    told = "ok"
    match result:
        case Committed():
            told = "committed"
        case Value(value=value):
            told = "nothing" if value is None else value.decode()
        case Moved(messages=messages, more=more, next_due=due):
            then = f", next at {_seconds(due)}" if due else ""
            told = f"{messages} moved{', more' if more else ''}{then}"
        case ReapedMessages(messages=messages) | Peeked(messages=messages):
            told = " ".join(_named(_delivered.decode(stored)) for _, stored in messages)
            told = told or "nothing"
        case _:
            assert result is None
    return told


def _named(message: Delivered) -> str:
    """Return a message with its failed attempts, and whether another one was begun."""
    value, trial = message.value.decode(), message.trial
    return value if trial is None else f"{value}({trial.attempts}{'+' * trial.begun})"


def _seconds(timestamp: int) -> str:
    return f"{((timestamp >> LOGICAL_BITS) - EPOCH_MILLISECONDS) / 1000:g}"


def _number(stored: bytes) -> str:
    return str(int.from_bytes(stored, "big", signed=True)) if len(stored) == 8 else stored.decode()

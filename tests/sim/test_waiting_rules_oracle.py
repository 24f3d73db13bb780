"""The rules of waiting, which agree with a judge who was told everything that has happened.

A few calls ask for locks and for messages, in lines, with a table of locks and with claims, all of
the store's own making. Now and then something is forgotten, as a fault of the store would. No call
is woken, a call that has given up stays in line, or a transaction that has nothing is kept. The
judge never looks at any of these. He has the list of what has happened, and asks of each who waits
whether what he waits for is there. The rules (:mod:`.waiting_rules`) must complain exactly if the
judge does.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random  # noqa: TID251 - handed in by Hypothesis, or seeded
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.kv import keys
from postroom.kv.memory import SortedMap
from postroom.messaging.claims import Arrival, Claims
from postroom.messaging.queues.claim_requests import ClaimQueue
from postroom.messaging.requests import InboxIndexEntry, ReapQueue
from postroom.ranges.calls import Call
from postroom.ranges.locks import LockTable
from postroom.ranges.memory import Holders
from postroom.ranges.requests import GetForUpdate
from postroom.ranges.waiting import Waiting
from tests.messaging.one_range import node_of
from tests.sim.checkers import Broken
from tests.sim.waiting_rules import check_lines, check_sizes

TRANSACTIONS = tuple(b"%d" % number * 16 for number in range(1, 5))
LOCKED = (b"a", b"b")
INBOX = b"inbox"
MESSAGES = tuple(keys.u64(number) + bytes(12) for number in range(1, 4))


class Event(NamedTuple):
    """An event of those who wait.

    Attributes:
        what: ``lock``, ``free`` (of all that ``who`` holds), ``come`` and ``go`` of messages,
            ``claim``, ``hold up``; of those who wait ``ask``, ``later`` (somebody will look again),
            ``give up``, ``answered``; and ``keep``: who holds something is noted.
        who: a transaction.
        of: a key, or a message.
    """

    what: str
    who: bytes = b""
    of: bytes = b""
    forgotten: bool = False


class Judge:
    """A judge who was told all events."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def is_right(self) -> bool:
        """Return whether all waits are in order.

        No client waits in vain, none that gave up stands in line, and none without holdings is
        kept.
        """
        return not any(map(self._is_wronged, (*LOCKED, INBOX))) and all(
            map(self._has, TRANSACTIONS)
        )

    def _last(self, who: bytes, *kinds: str) -> int:
        """Return when the last of such happened to ``who``; -1: never."""
        return max(
            (at for at, each in enumerate(self.events) if each.who == who and each.what in kinds),
            default=-1,
        )

    def _line(self, of: bytes) -> list[bytes]:
        """Return the line in order; those who gave up stand in it if that was forgotten."""
        asked = []
        for who in TRANSACTIONS:
            at = self._last(who, "ask")
            if at < 0 or self.events[at].of != of or self._last(who, "answered") > at:
                continue
            gave_up = self._last(who, "give up")
            if gave_up < at or self.events[gave_up].forgotten:
                asked.append((at, who))
        return [who for _, who in sorted(asked)]

    def _is_wronged(self, of: bytes) -> bool:
        line = self._line(of)
        if not line:
            return False
        if any(self._last(who, "give up") > self._last(who, "ask") for who in line):
            return True
        if self._last(line[0], "later") > self._last(line[0], "ask"):
            return False
        return self._has_free() if of == INBOX else not self._is_locked(of)

    def _freed_since(self, at: int) -> bool:
        return self._last(self.events[at].who, "free") > at

    def _is_locked(self, of: bytes) -> bool:
        return any(
            each.what == "lock" and each.of == of and not self._freed_since(at)
            for at, each in enumerate(self.events)
        )

    def _has_free(self) -> bool:
        """Return whether a free message is there, before the one that holds up the inbox."""
        held_up = [each.of for each in self.events if each.what == "hold up"]
        there = {
            each
            for each in MESSAGES
            if [event.what for event in self.events if event.of == each and event.what in _MOVES][
                -1:
            ]
            == ["come"]
        }
        taken = {
            each.of
            for at, each in enumerate(self.events)
            if each.what == "claim" and not self._freed_since(at)
        }
        return any(each < ((held_up or [b""])[-1] or b"\xff" * 20) for each in there - taken)

    def _has(self, who: bytes) -> bool:
        """Return whether ``who`` has something, if it is noted that it has."""
        if self._last(who, "keep") < 0 or self._last(who, "keep") < self._forgotten(who):
            return True
        since = self._last(who, "free")
        return any(
            each.who == who and each.what in {"lock", "claim"} for each in self.events[since + 1 :]
        )

    def _forgotten(self, who: bytes) -> int:
        """Return when it was last noted that it has nothing."""
        return max(
            (
                at
                for at, each in enumerate(self.events)
                if each.who == who and each.what == "free" and not each.forgotten
            ),
            default=-1,
        )


_MOVES = ("come", "go")


class Stage:
    """Lines, locks and claims of a replica, and what is stored."""

    def __init__(self) -> None:
        self.waiting = Waiting(lambda _: None)
        self.locks, self.claims = LockTable(Waiting(lambda _: None)), Claims()
        self.holders = Holders(lambda: 0.0, lambda _: None)
        self.stored: dict[bytes, bytes] = {}
        self.held = b""
        self.calls: dict[bytes, Call] = {}
        reads = {
            ReapQueue: SimpleNamespace(_claims=self.claims),
            GetForUpdate: SimpleNamespace(_locks=self.locks, _holders=self.holders),
            ClaimQueue: SimpleNamespace(_claiming={}),
        }
        self.replica = SimpleNamespace(
            proposal=None, waiting_for=self.waiting.lines, waiting=self.waiting,
            stored=SortedMap(),
            registry=SimpleNamespace(
                reads={kind: _Evaluator(owner) for kind, owner in reads.items()}
            ),
        )  # fmt: skip

    def sizes(self) -> dict[str, int]:
        return {
            "locks": len(self.locks), "claims": len(self.claims), "queue claims": 0,
            "holders": len(self.holders), "timers": 0, "deadlines": self.holders.entries,
        }  # fmt: skip

    def happens(self, event: Event) -> None:
        getattr(self, "_" + event.what.replace(" ", "_"))(event)

    def _lock(self, event: Event) -> None:
        assert self.locks.acquire(event.of, event.who) is None

    def _keep(self, event: Event) -> None:
        self.holders.hold(event.who, 60.0)

    def _free(self, event: Event) -> None:
        self.locks.release(event.who)
        self.claims.release(event.who)
        if not event.forgotten:
            self.holders.release(event.who)

    def _come(self, event: Event) -> None:
        self.stored[keys.inbox_prefix(INBOX) + event.of] = b""

    def _go(self, event: Event) -> None:
        self.stored.pop(keys.inbox_prefix(INBOX) + event.of, None)

    def _claim(self, event: Event) -> None:
        self.claims.claim(INBOX, event.who, [(event.of, b"")])

    def _hold_up(self, event: Event) -> None:
        self.held = event.of

    def _ask(self, event: Event) -> None:
        call = self.calls[event.who] = Call(None)
        self.waiting.park(call, Arrival(INBOX) if event.of == INBOX else event.of)

    def _later(self, event: Event) -> None:
        self.waiting.look_later(self.calls[event.who])

    def _give_up(self, event: Event) -> None:
        call = self.calls[event.who]
        call.cancelled = True
        if not event.forgotten:
            self.waiting.leave(call)

    def _answered(self, event: Event) -> None:
        self.waiting.leave(self.calls[event.who])

    def accepts(self) -> bool:
        pairs = dict(self.stored)
        if pairs or self.held:
            mail = InboxIndexEntry(len(pairs), min(pairs, default=b"")[-20:], self.held)
            pairs[keys.mail_key(INBOX)] = msgspec.msgpack.encode(mail)
        self.replica.stored = SortedMap().updated(dict(pairs))
        node = node_of(cast("Any", self.replica), sizes=self.sizes)
        try:
            check_lines(node)
            check_sizes(node)
        except Broken:
            return False
        return True


class _Evaluator:
    """A substitute for a method of ``owner``."""

    def __init__(self, owner: object) -> None:
        self.__self__ = owner


# --- histories


class Drawing:
    """A drawing of what can happen next."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self._locked: dict[bytes, bytes] = {}
        self._claimed: dict[bytes, bytes] = {}
        self._waits: set[bytes] = set()

    def draw(self) -> Iterator[Event]:
        kinds = (self._lock, self._claim, self._free, self._move, self._ask, self._ask, self._end)
        return self.chance.choice(kinds)(self.chance.choice(TRANSACTIONS))

    def _lock(self, who: bytes) -> Iterator[Event]:
        return self._take("lock", who, self.chance.choice(LOCKED), self._locked)

    def _claim(self, who: bytes) -> Iterator[Event]:
        return self._take("claim", who, self.chance.choice(MESSAGES), self._claimed)

    def _take(self, what: str, who: bytes, of: bytes, taken: dict[bytes, bytes]) -> Iterator[Event]:
        if of not in taken:
            taken[of] = who
            yield Event(what, who, of)
            yield Event("keep", who)

    def _free(self, who: bytes) -> Iterator[Event]:
        for taken in (self._locked, self._claimed):
            for each in [each for each, by in taken.items() if by == who]:
                del taken[each]
        yield Event("free", who, forgotten=self.chance.random() < 0.1)

    def _move(self, _: bytes) -> Iterator[Event]:
        what = self.chance.choice(["come", "come", "go", "hold up"])
        of = self.chance.choice(MESSAGES)
        yield Event(what, of=self.chance.choice([b"", of]) if what == "hold up" else of)

    def _ask(self, who: bytes) -> Iterator[Event]:
        if who not in self._waits:
            self._waits.add(who)
            # Mostly for what cannot be had: whoever is handed it at once does not wait.
            of = self.chance.choice([*self._locked, *self._locked, INBOX, *LOCKED[:1]])
            yield Event("ask", who, of)
            if self.chance.random() < 0.2:
                yield Event("later", who)

    def _end(self, who: bytes) -> Iterator[Event]:
        if who in self._waits:
            forgotten = self.chance.random() < 0.15
            what = "give up" if forgotten else self.chance.choice(["answered", "give up"])
            if not forgotten:
                self._waits.remove(who)
            yield Event(what, who, forgotten=forgotten)


def judged(chance: Random) -> bool:
    """Judge one history, after each event; return whether it was right to the end."""
    stage, events, drawing, right = Stage(), list[Event](), Drawing(chance), True
    for _ in range(chance.randint(1, 12)):
        for event in drawing.draw():
            events.append(event)
            stage.happens(event)
        right = Judge(events).is_right()
        told = "\n".join(map(str, events))
        assert stage.accepts() == right, f"right: {right}\n{told}"
    return right


@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_the_rules_of_waiting_agree_with_the_judge(chance: Random) -> None:
    judged(chance)


@pytest.mark.parametrize("seed", range(2))
def test_the_rules_of_waiting_agree_with_the_judge_on_many(seed: int) -> None:
    """The comparison runs without Hypothesis, which is slower.

    In half of these histories a client waits in vain, or something stays.
    """
    right = sum(judged(Random(f"waits {seed} {number}")) for number in range(1000))
    assert 200 < right < 800

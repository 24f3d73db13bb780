"""An observer of a leaseholder's grants, which agrees with a judge of the whole history.

A small history is made up as a list of events, each with the time of both clocks. A lock is
granted, messages arrive, are handed out, are gone, transactions end or vanish, timestamps are
protected, an old one cannot be read. The observer (:mod:`.grants`) sees one after the other, and
keeps a list of who holds what. The judge keeps nothing: of each event it asks whether there is an
earlier one that forbids it, and none in between that has ended that. Both must find the same event
to be the first wrong one, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random  # noqa: TID251 - handed in by Hypothesis, or seeded
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.errors import SnapshotTooOld
from postroom.kv import keys
from postroom.kv.clock import from_seconds
from postroom.messaging.requests import InboxIndexEntry, Peek, ReapedMessages, ReapQueue
from postroom.ranges.evaluation import MustWait
from postroom.ranges.requests import (
    Get,
    GetForUpdate,
    GetMany,
    Lock,
    Protect,
    ReverseScan,
    Scan,
    Unprotect,
)
from postroom.ranges.transactions.one_range import RECORD_SECONDS
from tests.sim.checkers import Broken
from tests.sim.grants import Grants

TRANSACTIONS = (b"1" * 16, b"2" * 16, b"3" * 16)
LOCKED = (b"a", b"b")
INBOX = b"inbox"
MESSAGES = tuple(keys.u64(number) + bytes(12) for number in range(1, 6))
LATEST = b"\xff" * 21


class Event(NamedTuple):
    """An event, with its time: ``wall`` and ``monotonic`` in seconds.

    Attributes:
        what: its kind.
        who: a transaction.
        key: what is locked.
        seconds: how long the transaction lasts.
        messages: those that are handed out, or chosen; or one that arrives, or is gone, or holds up
            the inbox.
        more: whether there are more, as it is told.
        changed: what is handed out is not what was sent.
        number: of the request; of a timestamp.
    """

    what: str
    wall: float
    monotonic: float
    who: bytes = b""
    key: bytes = b""
    seconds: float = 0
    messages: tuple[bytes, ...] = ()
    more: bool = False
    changed: bool = False
    number: int = 0


# --- the judge


class Judge:
    """A judge of each event of a history, which looks at all that were before."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events

    def first_wrong(self) -> int | None:
        """Return which event must not be; ``None``: all may."""
        wrong: dict[str, Callable[[int], bool]] = {
            "lock": self._locks_what_is_locked,
            "hand out": self._hands_out_wrongly,
            "too old": self._forgets,
        }
        for at, event in enumerate(self.events):
            if event.what in wrong and wrong[event.what](at):
                return at
        return None

    def _between(self, after: int, before: int, *kinds: str) -> Iterator[Event]:
        return (each for each in self.events[after + 1 : before] if each.what in kinds)

    def _ended(self, since: int, at: int) -> bool:
        """Return whether what was granted has been given back."""
        who = self.events[since].who
        return any(
            each.what == "lease" or each.who == who
            for each in self._between(since, at, "lease", "release")
        )

    def _over(self, since: int, at: int) -> bool:
        """Return whether the time of its transaction has passed, by either clock.

        There is no moment at which it took something for longer.
        """
        who, now = self.events[since].who, self.events[at]
        granted = [
            each
            for took, each in enumerate(self.events[:at])
            if each.who == who
            and (each.what == "lock" or (each.what == "hand out" and each.messages))
            and not self._ended(took, at)
        ]
        return all(now.wall - each.wall >= each.seconds for each in granted) or all(
            now.monotonic - each.monotonic >= each.seconds for each in granted
        )

    def _locks_what_is_locked(self, at: int) -> bool:
        event = self.events[at]
        return any(
            other.what == "lock"
            and other.key == event.key
            and other.who != event.who
            and not any(each.key == event.key for each in self._between(since, at, "lock"))
            and not self._ended(since, at)
            and not self._over(since, at)
            for since, other in enumerate(self.events[:at])
        )

    # --- messages

    def is_there(self, message: bytes, at: int) -> bool:
        return any(
            each.what == "arrive"
            and message in each.messages
            and not any(message in gone.messages for gone in self._between(since, at, "gone"))
            for since, each in enumerate(self.events[:at])
        )

    def handed_out(self, message: bytes, at: int) -> int | None:
        """Return when it was handed out to its holder."""
        for since in reversed(range(at)):
            each = self.events[since]
            if each.what == "hand out" and message in each.messages:
                return None if self._ended(since, at) else since
        return None

    def in_doubt(self, message: bytes, at: int) -> bool:
        """Return whether a message may be free, or not.

        Its holder has vanished, or it was chosen to be handed out, and it was not given since.
        """
        for since, each in enumerate(self.events[:at]):
            if any(
                later.what == "lease" or message in later.messages
                for later in self._between(since, at, "lease", "hand out")
            ):
                continue
            if each.what == "choose" and message in each.messages:
                return True
            if each.what == "vanish":
                holder = self.handed_out(message, since)
                if holder is not None and self.events[holder].who == each.who:
                    return True
        return False

    def held_up_by(self, at: int) -> bytes:
        """Return the message behind which no message is handed out; empty: there is none."""
        for each in reversed(self.events[:at]):
            if each.what == "hold up":
                return b"".join(each.messages)
        return b""

    def _is_late(self, at: int) -> bool:
        """Return whether its messages were chosen before."""
        number = self.events[at].number
        return any(
            each.what == "choose"
            and each.number == number
            and not any(
                other.what == "lease" or other.number == number
                for other in self._between(since, at, "lease", "hand out")
            )
            for since, each in enumerate(self.events[:at])
        )

    def _hands_out_wrongly(self, at: int) -> bool:
        event = self.events[at]
        if event.changed and event.messages:
            return True
        if list(event.messages) != sorted(set(event.messages)):
            return True
        if not all(self._may_be_handed_out(message, at) for message in event.messages):
            return True
        return not self._is_late(at) and self._passes_over(at)

    def _may_be_handed_out(self, message: bytes, at: int) -> bool:
        since = self.handed_out(message, at)
        if not self.is_there(message, at) or since is None:
            return self.is_there(message, at)
        is_another = self.events[since].who != self.events[at].who
        return is_another and (self._over(since, at) or self.in_doubt(message, at))

    def _passes_over(self, at: int) -> bool:
        """Return whether it comes before a message that was free, or that holds it up."""
        event, held_up = self.events[at], self.held_up_by(at) or LATEST
        if any(message > held_up for message in event.messages):
            return True
        end = event.messages[-1] if event.more and event.messages else LATEST
        return any(
            self.is_there(message, at)
            and message not in event.messages
            and message < min(end, held_up)
            and self.handed_out(message, at) is None
            and not self.in_doubt(message, at)
            for message in MESSAGES
        )

    # --- timestamps

    def _forgets(self, at: int) -> bool:
        event, count = self.events[at], 0
        for each in self.events[:at]:
            if each.what == "lease":
                count = 0
            elif each.number == event.number and each.what == "protect":
                count += 1
            elif each.number == event.number and each.what == "unprotect":
                count = max(count - 1, 0)
        return count > 0 or event.wall - event.number < RECORD_SECONDS


# --- histories


def drawn_history(chance: Random) -> list[Event]:
    """Draw a history that is mostly as it must be."""
    events: list[Event] = []
    wall = monotonic = 100.0
    for number in range(chance.randint(3, 18)):
        passed = chance.choice([0, 0, 0, 0, 1, 4, 6, 80])
        wall += passed if chance.random() < 0.8 else 0
        monotonic += passed if chance.random() < 0.8 else 0
        draw = chance.choice(DRAWN)
        events.append(draw(chance, events, Event("", wall, monotonic, number=number)))
    return events


def _lock(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(
        what="lock", who=chance.choice(TRANSACTIONS), key=chance.choice(LOCKED),
        seconds=chance.choice([1, 5, 10]),
    )  # fmt: skip


def _release(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="release", who=chance.choice(TRANSACTIONS))


def _vanish(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="vanish", who=chance.choice(TRANSACTIONS))


def _lease(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="lease" if chance.random() < 0.6 else "")


def _arrive(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="arrive", messages=(chance.choice(MESSAGES),))


def _gone(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="gone", messages=(chance.choice(MESSAGES),))


def _hold_up(chance: Random, _: list[Event], event: Event) -> Event:
    held = chance.choice([(), (chance.choice(MESSAGES),)])
    return event._replace(what="hold up", messages=held)


def _hand_out(chance: Random, events: list[Event], event: Event) -> Event:
    chosen = [each for each in events if each.what == "choose"]
    if chosen and chance.random() < 0.4:
        late = chance.choice(chosen)
        messages = late.messages[: chance.choice([9, 9, 0])]
        event = event._replace(who=late.who, messages=messages, number=late.number, seconds=5)
    else:
        event = _told(chance, events, event)._replace(seconds=chance.choice([1, 5, 10]))
    if chance.random() < 0.2:
        event = _told_wrongly(chance, event)
    return event._replace(what="hand out")


def _told(chance: Random, events: list[Event], event: Event) -> Event:
    """Return an event that tells of the oldest free messages."""
    judge, at = Judge(events), len(events)
    held_up, most = judge.held_up_by(at) or LATEST, chance.choice([1, 2, 9])
    free = [
        each
        for each in MESSAGES
        if each < held_up
        and judge.is_there(each, at)
        and (
            judge.handed_out(each, at) is None
            or (judge.in_doubt(each, at) and chance.random() < 0.5)
        )
    ]
    return event._replace(
        who=chance.choice(TRANSACTIONS), messages=tuple(free[:most]), more=len(free) > most
    )


def _told_wrongly(chance: Random, event: Event) -> Event:
    messages = list(event.messages)
    match chance.randrange(6):
        case 0 if messages:
            messages.pop(chance.randrange(len(messages)))
        case 1:
            messages = sorted({*messages, chance.choice(MESSAGES)})
        case 2:
            messages.append(chance.choice(MESSAGES))
        case 3 if messages:
            messages.append(messages[-1])
        case 4:
            return event._replace(more=not event.more)
        case _:
            return event._replace(changed=True)
    return event._replace(messages=tuple(messages))


def _choose(chance: Random, events: list[Event], event: Event) -> Event:
    told = _told(chance, events, event)
    return told._replace(what="choose")


def _protect(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="protect", number=chance.choice([60, 100]))


def _unprotect(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="unprotect", number=chance.choice([60, 100]))


def _too_old(chance: Random, _: list[Event], event: Event) -> Event:
    return event._replace(what="too old", number=chance.choice([60, 100]))


DRAWN = (
    *[_lock] * 3, *[_release] * 2, *[_vanish] * 2, _lease, *[_arrive] * 5, _gone, _hold_up,
    *[_hand_out] * 6, *[_choose] * 2, _protect, _unprotect, _too_old,
)  # fmt: skip


# --- the observer's view


class Stage:
    """A node whose evaluators answer what the history says."""

    def __init__(self) -> None:
        self.event = Event("", 0, 0)
        self.disk: dict[bytes, bytes] = {}
        self.held = b""
        self.requests: dict[int, ReapQueue] = {}
        kinds = (
            GetForUpdate,
            Lock,
            ReapQueue,
            Protect,
            Unprotect,
            Get,
            GetMany,
            Scan,
            ReverseScan,
            Peek,
        )
        self.registry = SimpleNamespace(reads=dict.fromkeys(kinds, self._answer))
        keeper = SimpleNamespace(
            begin_lease=lambda _: None, release=lambda _: [], vanished=lambda *_: None
        )
        self.memory = SimpleNamespace(keeper=keeper)
        node = SimpleNamespace(node_id=1, failed=None, monotonic=lambda: self.event.monotonic)
        hosted = SimpleNamespace(
            services=SimpleNamespace(_running=[]),
            replica=SimpleNamespace(registry=self.registry, memory=self.memory),
        )
        self.grants = Grants(cast("Any", node), cast("Any", hosted))

    @property
    def now(self) -> int:
        return from_seconds(self.event.wall)

    def get(self, key: bytes) -> bytes | None:
        if key != keys.mail_key(INBOX) or not (self.disk or self.held):
            return None
        oldest = min(self.disk, default=b"")[-20:]
        return msgspec.msgpack.encode(InboxIndexEntry(len(self.disk), oldest, self.held))

    def iterate(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(pair for pair in self.disk.items() if lower <= pair[0] < upper))

    def _answer(self, _: Any, request: Any) -> Any:
        event = self.event
        given = [(id_, b"other" if event.changed else id_) for id_ in event.messages]
        match event.what:
            case "choose":
                raise MustWait(SimpleNamespace(reaped=ReapedMessages(given, more=event.more)))
            case "hand out":
                return ReapedMessages(given, more=event.more)
            case "protect":
                return request.timestamp
            case "too old":
                raise SnapshotTooOld("collected")
        return None

    def accepts(self, event: Event) -> bool:
        self.event = event
        raw = [keys.inbox_prefix(INBOX) + id_ for id_ in event.messages]
        match event.what:
            case "arrive":
                self.disk |= dict(zip(raw, event.messages, strict=True))
            case "gone":
                for each in raw:
                    self.disk.pop(each, None)
            case "hold up":
                self.held = b"".join(event.messages)
            case "lease":
                self.memory.keeper.begin_lease(self)
            case "release":
                self.memory.keeper.release(event.who)
            case "vanish":
                self.memory.keeper.vanished(event.who, "its time is over")
            case "":
                pass
            case _:
                return self._is_answered(self._request())
        return True

    def _request(self) -> Any:
        event = self.event
        match event.what:
            case "lock":
                return GetForUpdate(event.key, 0, event.who, event.seconds)
            case "choose" | "hand out":
                made = ReapQueue(INBOX, 9, 1 << 30, event.who, event.seconds or 5)
                if event.what == "choose":
                    self.requests[event.number] = made
                return self.requests.get(event.number, made)
            case "protect":
                return Protect(from_seconds(event.number))
            case "unprotect":
                return Unprotect(from_seconds(event.number))
        return Get(b"k", from_seconds(event.number))

    def _is_answered(self, request: Any) -> bool:
        try:
            self.registry.reads[type(request)](self, request)
        except (MustWait, SnapshotTooOld):
            pass
        except Broken:
            with pytest.raises(Broken):
                self.grants.look()
            return False
        self.grants.look()
        return True


def first_refused(events: list[Event]) -> int | None:
    stage = Stage()
    return next((at for at, event in enumerate(events) if not stage.accepts(event)), None)


def judged(chance: Random) -> bool:
    """Judge one history; return whether it was right."""
    events = drawn_history(chance)
    wrong, refused = Judge(events).first_wrong(), first_refused(events)
    told = "\n".join(f"{at} {event}" for at, event in enumerate(events))
    assert refused == wrong, f"refused: {refused}, wrong: {wrong}\n{told}"
    return wrong is None


@settings(max_examples=100)
@given(st.randoms(use_true_random=False))
def test_the_checker_of_grants_agrees_with_the_judge(chance: Random) -> None:
    judged(chance)


@pytest.mark.parametrize("seed", range(2))
def test_the_checker_of_grants_agrees_with_the_judge_on_many(seed: int) -> None:
    """The same without Hypothesis, which is slower; a third of these histories are wrong."""
    right = sum(judged(Random(f"history {seed} {number}")) for number in range(1000))
    assert 300 < right < 850

"""Random histories of a queue in several ranges: a claim gets what is ready, wherever it lies.

A model tells which messages are ready. Claims that wait and others take some of them. Meanwhile
ranges split, leases of ranges lapse, the store is restarted, and the queue is made anew. A message
that is due becomes ready though nobody claims.
"""

from __future__ import annotations

import datetime
import itertools
from dataclasses import dataclass
from random import Random  # noqa: TID251 (seeded)
from typing import Any, Final

import pytest

from tests.client.hand_driver import HandClock
from tests.client.stores import Store
from tests.server.splitting import split
from tests.sim.checkers import require

Q: Final = "work"
STEPS: Final = 100
RANGES_MAX: Final = 12
ACK_WAIT: Final = 20.0
MAX_BACKOFF: Final = 2.0
SLACK_SECONDS: Final = 0.02
"""The time within which a message is ready that is due."""
JUMP_SECONDS: Final = 3.0
"""The seconds by which timestamps may go ahead with a restart; lengths of time end earlier then."""


@dataclass(eq=False)
class Message:
    """A message, as the model knows it.

    Attributes:
        due: when it is ready at the latest; 0: at once.
        held: the message that was claimed; ``None``: it was not, or has gone back.
        until: when its lease ends, or its last one has ended.
    """

    id: str
    key: bytes
    kind: str
    due: float = 0.0
    held: Any = None
    until: float = 0.0


class History:
    """A random history.

    Args:
        seed: its seed.
        remote: whether the client talks to a node as a remote one does.
    """

    def __init__(self, seed: int, *, remote: bool) -> None:
        self.random = Random(seed)
        self.store = Store(remote=remote)
        self.messages: dict[str, Message] = {}
        self.cuts: set[bytes] = set()
        self._numbers = itertools.count(1)
        self.create()

    @property
    def now(self) -> float:
        return self.store.clock.seconds

    def create(self) -> None:
        self.queue = self.store.db.create_queue(Q, ack_wait=ACK_WAIT, max_backoff=MAX_BACKOFF)

    def key(self) -> bytes:
        return b"%02d" % self.random.randrange(40)

    # --- the model

    def ready(self, slack: float, **selection: Any) -> list[Message]:
        """Return the messages that are ready; those that may be, with a negative slack."""
        start, end, kinds = (selection.get(each) for each in ("start", "end", "kinds"))
        return [
            each
            for each in self.messages.values()
            if self._has_come(each, slack)
            and (kinds is None or each.kind in kinds)
            and each.key >= (start or b"")
            and (end is None or each.key < end)
        ]

    def _has_come(self, message: Message, slack: float) -> bool:
        if message.until:
            backoff = MAX_BACKOFF if slack > 0 else 0.0
            return message.until + backoff + slack <= self.now
        return not message.due or message.due + slack <= self.now

    def _took(self, held: Any) -> None:
        message = self.messages[held.id]
        message.held, message.until, message.due = held, self.now + ACK_WAIT, 0.0

    def _one_held(self) -> Message | None:
        every = [each for each in self.messages.values() if each.held and each.until > self.now + 1]
        return self.random.choice(every) if every else None

    # --- steps

    def enqueue(self) -> None:
        message = Message(f"m{next(self._numbers)}", self.key(), self.random.choice(["", "mail"]))
        later: Any = self.random.choice([0, 0, 0, 1, 5, 15])
        message.due = self.now + later if later else 0.0
        if later and self.random.random() < 0.5:
            wall = self.store.clock.wall_milliseconds() / 1000 + later
            later = datetime.datetime.fromtimestamp(wall, datetime.UTC)
        with self.store.db.begin() as tx:
            tx.enqueue(Q, b"", id=message.id, key=message.key, kind=message.kind, deliver_at=later)
        self.messages[message.id] = message

    def claim(self, wait: float = 0.0) -> None:
        """Claim, and check that it gets what is ready."""
        most, cut = self.random.choice([1, 3, 10]), self.key()
        selection: dict[str, Any] = self.random.choice(
            [{}, {}, {"kinds": ["mail"]}, {"kinds": ["fax"]}, {"start": cut}, {"end": cut}]
        )
        surely = self.ready(SLACK_SECONDS, **selection)
        found = self.queue.claim(most, wait=wait, **selection)
        maybe = {each.id for each in self.ready(-JUMP_SECONDS, **selection)}
        require({each.id for each in found} <= maybe, f"some of {found} were not ready")
        least = min(len(surely), 1 if wait else most)
        require(len(found) >= least, f"{len(found)} of {most} came, and {surely} were ready")
        for each in found:
            self._took(each)

    def wait(self) -> None:
        self.claim(0.5)

    def acknowledge(self) -> None:
        if (message := self._one_held()) is not None:
            message.held.acknowledge()
            del self.messages[message.id]

    def reject(self) -> None:
        if (message := self._one_held()) is not None:
            delay = self.random.choice([0, 0, 2])
            message.held.reject(delay=delay)
            message.held, message.until = None, 0.0
            message.due = self.now + delay if delay else 0.0

    def roll_back(self) -> None:
        """Claim in a transaction that does not commit."""
        tx = self.store.db.begin(timeout=60)
        for each in tx.claim(Q, 3):
            message = self.messages[each.id]
            message.held, message.until, message.due = None, 0.0, 0.0
        tx.rollback()

    def pass_time(self) -> None:
        self.store.advance(self.random.choice([0.001, 0.3, 1.0, 12.0, 25.0]))
        surely, ready = self.ready(SLACK_SECONDS), self.queue.stats().ready
        require(ready >= len(surely), f"{ready} are ready, and should be {surely}")

    def split(self) -> None:
        key = self.key()
        if key not in self.cuts and len(self.cuts) < RANGES_MAX:
            self.cuts.add(key)
            split(self.store, key)

    def restart(self) -> None:
        self.random.choice([self.store.restart, self.store.kill])()
        self.store.advance(SLACK_SECONDS)

    def make_anew(self) -> None:
        self.queue.drop()
        self.store.advance(2.0)
        self.messages.clear()
        self.create()

    def step(self) -> None:
        """Take a step."""
        if (chance := self.random.random()) < 0.02:
            self.restart()
        elif chance < 0.025:
            self.make_anew()
        else:
            acts = [self.enqueue] * 8 + [self.claim] * 10 + [self.acknowledge] * 4
            acts += [self.wait, self.roll_back] * 2 + [self.reject, self.pass_time] * 3
            self.random.choice([*acts, self.split])()


@pytest.fixture(autouse=True)
def _clock_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock move on while it is read, as clocks do."""
    readings = itertools.count()
    monkeypatch.setattr(HandClock, "monotonic", lambda clock: clock.seconds + next(readings) * 1e-9)


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_claims_get_what_is_ready_in_any_range(seed: int, *, remote: bool) -> None:
    history = History(seed, remote=remote)
    for _ in range(STEPS):
        history.step()

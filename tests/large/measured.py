"""A node on a disk whose turns are measured: in steps of work, and in processor time.

Steps are counted, so they are the same in each run; but somebody has to have thought of counting
them. Processor time leaves nothing out. It is that of the thread which takes the turn, so what
others do on the machine hardly adds to it. The little that they add (caches and cores are shared)
is taken into account twice. The bound is as much wider as a piece of work is slower that always
does the same. A turn that took too long is tried again, since chance does not strike the same place
in each of three attempts::

    attempt ── longest turn ≤ 50 ms · slowness? ── yes ─▶ bounded
       ▲                                  no │
       └─────────── up to three times ───────┘  else: it was not by chance

A write of many keys, which a driver hands to a thread (:mod:`postroom.server.asyncio_driver`),
keeps nobody waiting, and is not measured.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from postroom.server.asyncio_driver import _is_large
from tests.attacks.hostile import Attacker, Target
from tests.kv.on_disk import INSTALLED, OnDisk
from tests.sim import checkers

_log = logging.getLogger(__name__)

TURN_SECONDS_MAX: Final = 0.05
ATTEMPTS: Final = 3
CONTROL_SECONDS: Final = 0.0166
"""The time that :func:`_control` takes on the machine whose numbers are in the docs."""
BLOCK: Final = 10_000
LOOKED_AT_MEMORY: Final = 16
"""One turn of so many is followed by a look at how much memory there is."""


class MeasuredTarget(Target):
    """A node on a disk whose turns are measured.

    Attributes:
        longest_seconds: of the turns, or of what a session does at once, since :meth:`bounded`.
        memory_bytes: the most that was seen since then; what is mapped from files is not counted.
    """

    def __init__(self, folder: Path) -> None:
        self.longest_seconds = 0.0
        self.memory_bytes = 0
        self._spent = 0.0
        super().__init__(open_engine=lambda: OnDisk(INSTALLED[0]).open(folder))
        self._process = psutil.Process()
        node = self.store.node
        write, finish = node.write, node.finish

        def written(staged: Any) -> Any:
            if _is_large(staged):
                return write(staged)
            with self._measuring():
                return write(staged)

        def finished(error: Any) -> None:
            with self._measuring():
                finish(error)
            self.longest_seconds = max(self.longest_seconds, self._spent)
            self._spent = 0.0

        node.write = written  # type: ignore[method-assign]
        node.finish = finished  # type: ignore[method-assign]

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        began = time.thread_time()
        try:
            yield
        finally:
            self._spent += time.thread_time() - began

    @contextmanager
    def counting(self) -> Iterator[None]:
        if self._counting:
            yield
            return
        with super().counting(), self._measuring():
            yield

    def turn(self) -> None:
        self._spend()
        super().turn()
        if self.turns % LOOKED_AT_MEMORY == 0:
            self._look_at_memory()

    def _spend(self) -> None:
        """Leave the work of a session by itself out of the turn."""
        self.longest_seconds = max(self.longest_seconds, self._spent)
        self._spent = 0.0

    def _look_at_memory(self) -> None:
        memory = self._process.memory_info()
        self.memory_bytes = max(self.memory_bytes, memory.rss - memory.shared)

    def check_disk(self) -> None:
        checkers.check(self.store.engine.inner)  # type: ignore[arg-type]

    def bounded(
        self,
        act: Callable[[], Any],
        *,
        more_bytes_max: int | None = None,
        attempts: int = ATTEMPTS,
        times: float = 1.0,
    ) -> Any:
        """Return what ``act`` answers; its turns must be short.

        Args:
            act: may be repeated.
            more_bytes_max: how much more memory it may take meanwhile.
            attempts: how often it may be tried until its turns are.
            times: as long may they be, of what is wanted: for what can be tried only once.
        """
        took = []
        for _ in range(attempts):
            self.longest = 0
            self._spent = self.longest_seconds = 0.0
            self.memory_bytes = 0
            # The collector would go through all earlier objects in one of the turns.
            gc.collect()
            gc.freeze()
            self._look_at_memory()
            before = self.memory_bytes
            answer = act()
            self._spend()
            self._look_at_memory()
            self.check_turns()
            if more_bytes_max is not None:
                more = self.memory_bytes - before
                assert more <= more_bytes_max, f"{more / 2**20:.0f} MiB more"
            most = times * TURN_SECONDS_MAX * max(1.0, _slowness())
            took.append(f"{self.longest_seconds * 1000:.1f} of {most * 1000:.0f} ms")
            if self.longest_seconds <= most:
                _log.info("the longest turn took %s, %d steps", took[-1], self.longest)
                return answer
        raise AssertionError(f"the longest turn took {', then '.join(took)}")


def _control() -> float:
    """Make some ten thousand small objects, look them up, and free them, as long turns do."""
    began, made = time.thread_time(), {}
    for number in range(40_000):
        key = b"%012d" % (number * 7919 % 40_000)
        made[key] = (key, number)
    found = [made[b"%012d" % number] for number in range(0, 40_000, 2)]
    made.clear()
    found.clear()
    return time.thread_time() - began


def _slowness() -> float:
    """Return how much slower the machine is now than it can be.

    It is the longest of several pieces of work, since the longest of several turns is judged by it.
    """
    return max(_control() for _ in range(9)) / CONTROL_SECONDS


class Served:
    """Another client, who reads meanwhile.

    Attributes:
        answers: what it was told, by the number of its question.
    """

    def __init__(self, target: Target, request: Any) -> None:
        self._target = target
        self._attacker = Attacker(target, b"reader", "ipv4:10.0.0.2:1")
        self._request = request
        self.answers = self._attacker.answers

    def until(self, asker: Attacker, number: int) -> int:
        """Take turns, each with a question, until an answer comes; return how many came."""
        before = len(self.answers)
        while not asker.has(number):
            self._target.turn()
            asker.read()
            self._attacker.ask(self._request)
            self._attacker.read()
        return len(self.answers) - before


def in_order_of_age(count: int) -> list[bytes]:
    """Return keys of inboxes, in another order than their own."""
    blocks = count // BLOCK
    numbers = (number * 77 % blocks for number in range(blocks))
    return [b"%04d/%04d" % (number, each) for number in numbers for each in range(BLOCK)]


def fill_inboxes(target: Target, count: int) -> None:
    """Fill so many inboxes, with a message each."""
    filled = in_order_of_age(count)
    for first in range(0, count, BLOCK):
        with target.store.db.begin() as tx:
            for each in filled[first : first + BLOCK]:
                tx.enqueue_message(each, b"")
    target.store.db.drain()

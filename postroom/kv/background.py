"""The work beside the turns: writing the state, and compacting where much was deleted.

*The writer of the state* is a thread, or the caller itself.

::

    turn:    evaluate │ prepare a batch │ log, synced │ evaluate │ log, synced │ ...
    thread:                             └── write it into the state ──┘ (the next may begin)

The engine writes a batch without the interpreter's lock, so a thread can do it while the log is
synced and the next turns are evaluated. Only one batch is under way: who has the next one waits.
A batch of small turns does not come here, see :mod:`.gathering`.

Filling the batch needs the interpreter for each key. The turn does it, unless the batch is so large
that everybody would wait for that. Then the thread does it in slices. It pauses between them, since
a thread that never pauses gives the interpreter away after 5 ms only.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from postroom.kv import keys
from postroom.kv.engine import BlockDamaged, Engine, EngineFailed, WriteSet

Work = Callable[[], None]

LOOKS_AGAIN_SECONDS: Final = 1.0
"""The time after which a waiter looks whether its batch was begun.

An interrupt can leave it half-way.
"""


PAUSE_SECONDS: Final = 0.0001


class StateWriter(Protocol):
    """The writer of batches of the state, which does what a turn need not wait for."""

    def start(self, work: Work) -> None:
        """Carry out ``work``, now or later. To be called by one thread at a time.

        The work that was started before has been finished. If ``work`` raises, this method does, or
        the next :meth:`finish`.
        """

    def finish(self) -> None:
        """Wait until what was started is done, if anything was. By one thread at a time.

        Raises:
            Exception: what the work has raised.
        """

    def pause(self) -> None:
        """Let others have the interpreter for a moment, in the middle of work."""

    def later(self, work: Work) -> None:
        """Do work that nobody waits for; it raises nothing."""

    def close(self) -> None:
        """Finish what is under way. Idempotent; what it raises is left to those who write next."""


class InlineStateWriter:
    """A writer that does everything at once, without a thread."""

    def start(self, work: Work) -> None:
        """Carry out ``work``."""
        work()

    def finish(self) -> None:
        """Wait until the work that was started is done."""

    def pause(self) -> None:
        """Do nothing: no others run beside the work."""

    def later(self, work: Work) -> None:
        """Do work that nobody waits for."""
        work()

    def close(self) -> None:
        """Close it."""


class StateWriterThread:
    """A thread that writes the state; it is made when it is first needed.

    A lock that is held stands for "nothing to be told"; releasing it wakes who waits for it. (A
    condition would do the same with twice as many changes of threads for each batch.)
    """

    def __init__(self) -> None:
        self._work: Work | None = None
        """The work that is under way; only the thread says that there is none."""
        self._wanted, self._done = threading.Lock(), threading.Lock()
        self._wanted.acquire()
        self._done.acquire()
        self._is_awaited = threading.Event()
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._others: list[threading.Thread] = []

    def start(self, work: Work) -> None:
        """Carry out ``work`` in the thread, or here if the system has no thread to give."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="postroom state", daemon=True)
            if not _starts(self._thread):
                self._thread = None
                work()
                return
        self._is_awaited.clear()
        self._work = work
        _wake(self._wanted)  # a long wait may have done so already

    def finish(self) -> None:
        """Wait until the work that was started is done."""
        self._wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def pause(self) -> None:
        """Let others have the interpreter for a moment, unless one of them waits for the work."""
        self._is_awaited.wait(PAUSE_SECONDS)

    def later(self, work: Work) -> None:
        """Do work in a thread of its own, for it may take long; or here, if there is none."""
        self._others = [each for each in self._others if each.is_alive()]
        thread = threading.Thread(target=work, name="postroom log", daemon=True)
        self._others.append(thread)
        if not _starts(thread):
            self._others.remove(thread)
            work()

    def close(self) -> None:
        """Close it."""
        if self._thread is not None:
            self._wait()
            self._is_closed = True
            _wake(self._wanted)
            if self._thread.is_alive():  # else an interrupt has kept it from being started
                self._thread.join()
            self._thread = None
        for thread in self._others:
            if thread.is_alive():
                thread.join()

    def _wait(self) -> None:
        while self._work is not None:
            self._is_awaited.set()
            if not self._done.acquire(timeout=LOOKS_AGAIN_SECONDS):
                _wake(self._wanted)  # an interrupt has kept ``start`` from it

    def _run(self) -> None:
        while not self._is_closed:
            self._wanted.acquire()
            work = self._work
            if work is None:
                continue
            try:
                work()
            except BaseException as error:  # ``finish`` raises it
                self._error = error
            self._work = work = None
            _wake(self._done)


def _starts(thread: threading.Thread) -> bool:
    """Start ``thread``; false if the system has none to give."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _wake(lock: threading.Lock) -> None:
    """Release ``lock``, unless that was done already. Only one thread does so with each lock."""
    if lock.locked():
        lock.release()


STRIDE: Final = 64
"""One deletion of so many is noted."""
SAMPLES_KEPT: Final = 8192
"""The number of samples beyond which one key of twice as many is kept, and so on."""
SAMPLES_MIN: Final = 128
"""The fewest samples that are looked at."""
SPAN_SAMPLES_MIN: Final = 32
"""A span of fewer is left alone: a scan steps over what they stand for in a millisecond."""
BYTES_A_DELETION: Final = 512
PART_BYTES: Final = 32 * 1024 * 1024
SETTLE_SECONDS: Final = 5.0
"""The time after which a span of deletions is compacted: they often go on for a while."""
PAUSE_FACTOR: Final = 4.0
"""The pause after a compaction, as a multiple of the time that it took."""

_log = logging.getLogger(__name__)


class DeletedSpan(NamedTuple):
    """A span of engine keys, and about how much was deleted in it."""

    lower: bytes
    upper: bytes
    deletions: int


class Tombstones:
    """A sample of what was deleted, as engine keys. Filled by one thread, taken by another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: list[bytes] = []
        self._stride = STRIDE
        self._skip = 0

    def __len__(self) -> int:
        """Return how many deletions the sample stands for."""
        return len(self._samples) * self._stride

    @property
    def is_ripe(self) -> bool:
        """Return whether there are enough of them to be looked at."""
        return len(self._samples) >= SAMPLES_MIN

    def wrote(self, writes: WriteSet) -> None:
        """Note what ``writes`` deletes."""
        if all(writes.values()):  # quicker than a look at each
            return
        deleted = [key for key, value in writes.items() if value is None]
        with self._lock:
            sample = deleted[self._skip :: self._stride]
            self._skip = (self._skip - len(deleted)) % self._stride
            self._samples += [key for key in sample if key[:1] != keys.TRANSACTION]
            while len(self._samples) > SAMPLES_KEPT:
                del self._samples[::2]
                self._stride *= 2

    def take(self, bytes_of: Callable[[bytes, bytes], int]) -> list[DeletedSpan]:
        """Take the sample away; return the spans in it that are worth being compacted.

        Args:
            bytes_of: about how many bytes a span takes on the device.
        """
        with self._lock:
            samples, stride = self._samples, self._stride
            self._samples, self._stride, self._skip = [], STRIDE, 0
        samples.sort()
        return _dense(samples, stride, bytes_of)


@dataclass(eq=False)
class Compaction:
    """The compaction, in the background, of spans where much was deleted.

    LevelDB and RocksDB write down what is deleted, and step over it (*tombstones*) until compaction
    has taken it to the last level. By themselves they compact where much is written. They may never
    come by again where much was deleted once, and each scan there steps over all of it. Deletions
    are therefore sampled, and a span of many tombstones and little else is compacted::

        batch ─▶ every 64th deletion ─▶ enough of them, 5 s old ─▶ thread ─▶ compact, in parts

    The collector's deletions count as all others do; so do those of replicas that only follow. The
    newest state of the sample is in memory only: what was deleted just before a process ends waits
    for further deletions.

    The work has bounds:

    * A span is compacted only if it has at most ``BYTES_A_DELETION`` for each deletion in it.
      Rewriting thus costs no more than that for each key that was deleted, whatever a client
      deletes. Spans of few deletions are left alone.
    * Each deletion counts once. The same span is compacted again only if as much was deleted again.
    * At most a fifth of the time is spent on it. One part is under way at a time, of
      ``PART_BYTES``; closing waits for no further part.

    COMMIT records do not count: nobody scans them.

    Attributes:
        engine: what is compacted.
        tombstones: what is deleted in it.
        writer: has a thread for it.
        monotonic: seconds that never go back.
        runs: the number of times that it has compacted.
        seconds: the time that these took.
    """

    engine: Engine
    tombstones: Tombstones
    writer: StateWriter
    monotonic: Callable[[], float]
    runs: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    _ripe_since: float | None = field(default=None, init=False)
    _not_before: float = field(default=0.0, init=False)
    _is_under_way: bool = field(default=False, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def look(self) -> None:
        """Begin, if it is time to. To be called with each turn."""
        if not self.tombstones.is_ripe or self._is_under_way or self._is_stopped:
            return
        now = self.monotonic()
        if self._ripe_since is None:
            self._ripe_since = now
        if now >= max(self._ripe_since + SETTLE_SECONDS, self._not_before):
            self._ripe_since = None
            self._is_under_way = True
            self.writer.later(self._run)

    def stop(self) -> None:
        """Begin nothing more; what is under way ends with its part."""
        self._is_stopped = True

    def _run(self) -> None:
        begun = self.monotonic()
        try:
            for span in self.tombstones.take(self.engine.approximate_bytes):
                if self._is_stopped:
                    break
                _log.debug("compacting about %d deletions", span.deletions)
                self.engine.compact(span.lower, span.upper)
        except (EngineFailed, BlockDamaged, RuntimeError) as error:
            # The next reader or writer there finds out as well, and is told.
            _log.info("compacting was given up: %s", error)
        finally:
            ended = self.monotonic()
            self.runs += 1
            self.seconds += ended - begun
            self._not_before = ended + PAUSE_FACTOR * (ended - begun)
            self._is_under_way = False


def _dense(
    samples: list[bytes], stride: int, bytes_of: Callable[[bytes, bytes], int]
) -> list[DeletedSpan]:
    """Return the parts of a sorted sample that have little but deletions between them."""
    if len(samples) < SPAN_SAMPLES_MIN:
        return []
    deletions = len(samples) * stride
    size = bytes_of(samples[0], samples[-1])
    if size <= min(deletions * BYTES_A_DELETION, PART_BYTES):
        return [DeletedSpan(samples[0], samples[-1], deletions)]
    half = len(samples) // 2
    # The key in the middle is in both: what lies before it belongs to the first one.
    return [
        *_dense(samples[: half + 1], stride, bytes_of), *_dense(samples[half:], stride, bytes_of)
    ]  # fmt: skip

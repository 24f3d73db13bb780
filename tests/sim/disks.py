"""A simulated disk as a node uses it, and as one sees it from outside.

A batch of the state is written before the record of the turn that hands it over, or any number of
turns later, as chance will have it. The power may fail at each write. The state may be there
without the record therefore, and the record without the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from postroom.errors import StoreCorrupted, Unavailable
from postroom.kv import keys
from postroom.kv.background import Work
from postroom.kv.engine import EngineFailed, WriteSet
from postroom.kv.log_device import MemoryDevice, MemoryFile
from postroom.kv.log_reader import FIRST_RECORD_AT, LOG_ID_BYTES, NEW_SUFFIX, POINTER_AT, read_log
from postroom.kv.marker import MARKER_KEY, decode_marker
from postroom.kv.memory import MemoryDisk, MemoryEngine, SortedMap
from postroom.kv.storage import Storage
from postroom.server.node import Node
from postroom.server.opening import stopped_by

SEGMENT_BYTES: Final = 64 * 1024
"""Room for a dozen turns, so that segments are left and used again all the time."""


GATHERED_KEYS_MAX: Final = 24
"""A few turns, so that a crash finds the state behind the log, or level with it."""


class ChosenMoment:
    """A :class:`postroom.kv.background.StateWriter` in one thread."""

    def __init__(self, randomness: Random) -> None:
        self._random = randomness
        self._started: Work | None = None

    def start(self, work: Work) -> None:
        """Start the work at once, or when it has to be done."""
        if self._random.random() < 0.5:
            work()
        else:
            self._started = work

    def finish(self) -> None:
        """Do the work that was started."""
        work, self._started = self._started, None
        if work is not None:
            work()

    def pause(self) -> None:
        """Return at once, since no other thread waits for the interpreter."""

    def later(self, work: Work) -> None:
        """Do the work at once: nobody can tell."""
        work()

    def close(self) -> None:
        """Close the writer as the protocol says."""
        with suppress(EngineFailed):
            self.finish()


def open_storage(
    disk: MemoryDisk,
    randomness: Random,
    segment_bytes: int = SEGMENT_BYTES,
    engine: Callable[[MemoryDisk], MemoryEngine] = MemoryEngine,
) -> Storage:
    """Open ``disk`` as a node does, with its state in an ``engine``.

    Raises:
        Unavailable: a write failed.
    """
    state = engine(disk)
    try:
        return Storage.open(
            state, disk.log, lambda: randomness.randbytes(LOG_ID_BYTES),
            segment_bytes=segment_bytes, writer=ChosenMoment(randomness),
            gathered_keys_max=GATHERED_KEYS_MAX,
        )  # fmt: skip
    except (OSError, EngineFailed) as error:
        state.close()
        raise stopped_by(EngineFailed(str(error))) from error
    except Unavailable:
        state.close()
        raise


def write_gathered(node: Node) -> None:
    """Write what ``node`` has in memory and in its log into its state, too.

    Raises:
        EngineFailed: the state takes nothing any more, and the node is about to stop.
    """
    assert isinstance(node.engine, Storage)
    node.engine.applied.flush()


# --- from outside ---------------------------------------------------------------------------------


class _FrozenFile:
    """The content that a file has now."""

    def __init__(self, file: MemoryFile) -> None:
        self.size = file.size
        self._content = file.read(0, file.size)

    def write(self, offset: int, data: bytes, *, sync: bool) -> None:
        raise AssertionError("only looked at")

    def sync(self) -> None:
        raise AssertionError("only looked at")

    def read(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]

    def close(self) -> None: ...


class _Frozen:
    """A :class:`postroom.kv.log_device.Device` to be looked at."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device

    def names(self) -> list[str]:
        return [name for name in self._device.names() if not name.endswith(NEW_SUFFIX)]

    def open(self, name: str) -> _FrozenFile:
        return _FrozenFile(self._device.files[name])

    def marked(self) -> int:
        return self._device.marked()

    def create(self, name: str, size: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def mark(self, sequence: int) -> None: ...
    def close(self) -> None: ...


def logged(disk: MemoryDisk) -> WriteSet:
    """Return what the log of ``disk`` holds: notes, and every entry that can still be read."""
    stored = disk.content.get(MARKER_KEY)
    frozen = _Frozen(disk.log)
    if stored is None or not frozen.names():
        return {}
    content: WriteSet = {}
    for records in read_log(frozen, decode_marker(stored)[0], 0).records:
        for record in records:
            content.update(record.writes)
    return {key: value for key, value in content.items() if value is not None}


def content(disk: MemoryDisk) -> SortedMap:
    """Return all that a node finds that is started now: the state as it is, and the log."""
    return disk.content.updated(logged(disk))


def copied(disk: MemoryDisk) -> MemoryDisk:
    """Return a copy of the disk as a process finds it that is started now."""
    copy = MemoryDisk()
    copy.append(disk.content, sync=True)
    for name, file in disk.log.files.items():
        copy.log.files[name] = made = MemoryFile(copy.log, file.size)
        made.durable[:] = file.read(0, file.size)
    copy.log.mark(disk.log.marked())
    return copy


def check_damage(disk: MemoryDisk, randomness: Random) -> str:
    """Damage one segment of a copy: that is noticed, or nothing that is wanted was hit.

    To be called after a process has ended, and not after a loss of power: see the page of the log.

    Returns:
        What was done, if it was noticed.
    """
    copy = copied(disk)
    name = randomness.choice(sorted(copy.log.files))
    file = copy.log.files[name]
    what = randomness.choice(["flip", "zero", "cut", "lose"])
    at = randomness.randrange(0, file.size, 16)
    match what:
        case "flip":
            file.durable[at] ^= 1 << randomness.randrange(8)
        case "zero":
            file.durable[at:] = bytes(file.size - at)
        case "cut":
            file.size = at
            del file.durable[at:]
        case "lose":
            del copy.log.files[name]
    try:
        found = _all_that_is_logged(copy)
    except StoreCorrupted:
        return what
    wanted = _all_that_is_logged(copied(disk))
    if what == "flip" and POINTER_AT <= at < FIRST_RECORD_AT:
        # Reading begins earlier, and finds entries as well that are wanted no more.
        found = {key: value for key, value in found.items() if key in wanted}
    possible = [wanted, *map(_all_that_is_logged, _without_unmarked_records(disk))]
    assert found in possible, f"{what} at {at} of {name}: {set(wanted) ^ set(found)}"
    return ""


def _without_unmarked_records(disk: MemoryDisk) -> Iterator[MemoryDisk]:
    """Yield copies that end at a record which the mark does not reach, or at the one before.

    The write of such a record failed, or nobody was told that it is durable.
    """
    stored = disk.content.get(MARKER_KEY)
    assert stored is not None
    log = read_log(_Frozen(disk.log), decode_marker(stored)[0], 0)
    copy = copied(disk)
    for segment, records in reversed(list(zip(log.segments, log.records, strict=True))):
        for at, record in reversed(list(enumerate(records))):
            if record.sequence <= disk.log.marked():
                return
            begin = records[at - 1].end if at else FIRST_RECORD_AT
            file = copy.log.files[segment.name]
            file.durable[begin:] = bytes(file.size - begin)
            yield copied(copy)


def _all_that_is_logged(disk: MemoryDisk) -> dict[bytes, bytes]:
    storage = open_storage(disk, Random(1))
    return dict(storage.iterate(b"", keys.RANGE))

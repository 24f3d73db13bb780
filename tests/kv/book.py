"""A storage, and what it must hold: the log and the state, with groups that keep entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random  # noqa: TID251 - made from a seed

from postroom.kv import keys
from postroom.kv.background import InlineStateWriter, StateWriter
from postroom.kv.engine import WriteSet
from postroom.kv.log_device import Device
from postroom.kv.log_writer import RetainedLog
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.kv.storage import Storage

SEGMENT_BYTES = 64 * 1024
NOTE = keys.store_key("note")
STATE = keys.head_key(b"state")


def entry(group: int, index: int) -> bytes:
    return keys.raft_log_prefix(group) + b"l" + keys.u64(index)


def value(index: int, size: int = 100) -> bytes:
    return keys.u64(1) + bytes([index % 256]) * size


class Groups:
    """The memory of groups."""

    def __init__(self) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.bases: dict[int, int] = {}

    def __call__(self) -> Iterable[RetainedLog]:
        for group, entries in self.entries.items():
            base, last = self.bases.get(group, 0), max(entries, default=0)

            def values(
                first: int, last: int, entries: dict[int, bytes] = entries, base: int = base
            ) -> Iterable[tuple[int, bytes]]:
                return [(i, v) for i, v in entries.items() if first <= i <= last and i > base]

            yield RetainedLog(keys.raft_log_prefix(group) + b"l", base, 1, max(last, base), values)


class Book:
    """A storage, and what it must hold."""

    def __init__(
        self,
        device: Callable[[MemoryDisk], Device] | None = None,
        segment: int = SEGMENT_BYTES,
        gathered: int = 0,
        writer: Callable[[], StateWriter] = InlineStateWriter,
    ) -> None:
        self.disk = MemoryDisk()
        self.segment = segment
        self.gathered = gathered
        self.writer = writer
        self.device = device or (lambda disk: disk.log)
        self.groups = Groups()
        self.open()

    def open(self) -> None:
        engine = MemoryEngine(self.disk)
        try:
            self.storage = Storage.open(
                engine, self.device(self.disk), lambda: b"i" * 16, segment_bytes=self.segment,
                gathered_keys_max=self.gathered, writer=self.writer(),
            )  # fmt: skip
        except BaseException:
            engine.close()
            raise
        self.found = {
            key: found
            for key, found in self.storage.iterate(keys.RAFT_LOG, keys.RANGE)
            if key[9:10] == b"l"
        }
        self.note = self.storage.get(NOTE)
        self.storage.serve(self.groups)

    def reopen(self, *, power: Random | None = None) -> None:
        self.disk.crash(power)
        self.open()

    def add(self, group: int, index: int, size: int = 100, *, sync: bool = True) -> None:
        self.groups.entries.setdefault(group, {})[index] = value(index, size)
        writes: WriteSet = {entry(group, index): value(index, size), NOTE: keys.u64(index)}
        self.storage.write_turn({**writes, STATE: keys.u64(index)}, sync=sync)

    def apply(self, group: int, index: int) -> None:
        """Let the state include the entries up to ``index``, which are not needed elsewhere."""
        self.groups.bases[group] = index
        held = self.groups.entries[group]
        for each in [each for each in held if each <= index]:
            del held[each]

    def check(self) -> None:
        """Check that all that is kept was found, and the newest note."""
        for group, entries in self.groups.entries.items():
            for index, stored in entries.items():
                assert self.found.get(entry(group, index)) == stored, f"{index} of {group}"

    @property
    def segments(self) -> int:
        return len(self.disk.log.files)

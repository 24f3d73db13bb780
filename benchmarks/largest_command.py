"""The cost of the largest transaction for a replica that applies it, stretch by stretch.

``python -m benchmarks.largest_command`` prints processor time. Other programs on the machine do not
add to it (but for the caches and cores that they share). The command overwrites 575,000 keys of 8
bytes: two raw writes for each, and 32 MiB, the limit of a command.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from postroom.kv import keys
from postroom.kv.engine import WriteSet, join
from postroom.kv.gathering import Gathering
from postroom.kv.memory import MemoryDisk, MemoryEngine
from postroom.ranges.calls import LeasedWrites, decode_in_parts, encode

RAW_WRITES = 1_150_000
T = TypeVar("T")


def measured(name: str, act: Callable[[], T]) -> T:
    """Call ``act``, and print the processor time that it took."""
    began = time.thread_time()
    result = act()
    print(f"{name:<48} {(time.thread_time() - began) * 1000:6.1f} ms")
    return result


def packed_command() -> bytes:
    """Return the command, as it is replicated."""
    writes: WriteSet = {}
    for number in range(RAW_WRITES // 2):
        head = keys.head_key(b"%08d" % number)
        writes[head] = keys.u64(number) + b"\x02"
        writes[head + keys.u64(number)] = bytes(9)
    return encode(LeasedWrites(1, writes))


def decoded(packed: bytes) -> LeasedWrites:
    """Return the command, decoded over turns; print the longest turn."""
    longest, going_on = 0.0, decode_in_parts(memoryview(packed))
    while True:
        began = time.thread_time()
        try:
            next(going_on)
        except StopIteration as stop:
            command: LeasedWrites = stop.value
            print(f"{'decoding it, the longest turn of it':<48} {longest * 1000:6.1f} ms")
            return command
        longest = max(longest, time.thread_time() - began)


def main() -> None:
    """Print the table."""
    packed = packed_command()
    print(f"{RAW_WRITES:,} raw writes, {len(packed) / 2**20:.1f} MiB")
    kept: list[Any] = [decoded(packed), {b"%d" % number: b"" for number in range(20)}]
    measured(
        "applying it: its writes join those of the turn", lambda: join(kept[1], kept[0].writes)
    )
    measured("freeing the command", lambda: kept.pop(0) and None)
    gathering = Gathering(MemoryEngine(MemoryDisk()), 256, lambda _: None)
    gathering.add({b"before": b""})
    measured("handing them to the state (a thread, in parts)", lambda: gathering.add(kept.pop()))


if __name__ == "__main__":
    main()

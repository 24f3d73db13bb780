"""Tuples as FoundationDB's own Python binding packs them, recorded; and how they were recorded.

``foundationdb_tuples.txt`` has a line for each: the packed bytes in hexadecimal, the tuple as JSON.
With the package ``foundationdb`` installed, ``python -m tests.kv.foundationdb`` writes it anew.
"""

from __future__ import annotations

import importlib
import json
import struct
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from typing import Any, Final

VECTORS: Final = Path(__file__).with_name("foundationdb_tuples.txt")
RECORDED: Final = 600

EDGES: Final[tuple[int, ...]] = tuple(
    sign * ((1 << bits) + near)
    for bits in (0, 7, 8, 15, 16, 31, 32, 55, 56, 63, 64, 65, 71, 72, 128, 1024, 2032)
    for near in (-2, -1, 0, 1)
    for sign in (1, -1)
)
_FLOATS: Final = (0.0, -0.0, 1.5, -1.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"))


def drawn(chance: Random, depth: int = 2) -> tuple[Any, ...]:
    """Draw any tuple that both libraries can pack."""
    return tuple(_part(chance, depth) for _ in range(chance.randint(0, 4)))


def _part(chance: Random, depth: int) -> Any:
    return chance.choice(_DRAWN if depth else _DRAWN[:-1])(chance, depth)


def _bytes(chance: Random, _: int) -> bytes:
    return bytes(chance.choices([0, 0, 1, 97, 254, 255], k=chance.randint(0, 5)))


def _text(chance: Random, _: int) -> str:
    return "".join(chance.choices(["\0", "a", "é", "\uffff", "\U00010000"], k=3))


def _integer(chance: Random, _: int) -> int:
    size = chance.choice([1, 8, 16, 33, 62, 63, 64, 65, 100, 2040])
    return chance.choice([*EDGES, chance.getrandbits(size), -chance.getrandbits(size)])


def _float(chance: Random, _: int) -> float:
    drawn: float = struct.unpack(">d", chance.randbytes(8))[0]
    return chance.choice([*_FLOATS, drawn])


def _nested(chance: Random, depth: int) -> tuple[Any, ...]:
    return tuple(_part(chance, depth - 1) for _ in range(chance.randint(0, 3)))


_DRAWN: Final[tuple[Callable[[Random, int], Any], ...]] = (
    lambda chance, _: chance.choice([None, False, True]),
    lambda chance, _: uuid.UUID(bytes=chance.randbytes(16)),
    _bytes,
    _text,
    _integer,
    _integer,
    _float,
    _nested,
)

_KINDS: Final[dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]]] = {
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    str: ("text", str, str),
    int: ("integer", str, int),
    float: (
        "float",
        lambda part: struct.pack(">d", part).hex(),
        lambda told: struct.unpack(">d", bytes.fromhex(told))[0],
    ),
    uuid.UUID: ("uuid", lambda part: part.hex, uuid.UUID),
}


def to_json(part: Any) -> Any:
    """Return a part as JSON can tell it."""
    if isinstance(part, tuple):
        return [to_json(each) for each in part]
    if part is None or isinstance(part, bool):
        return part
    name, tell, _ = _KINDS[type(part)]
    return {name: tell(part)}


def of_json(told: Any) -> Any:
    """Return the part that JSON tells."""
    if isinstance(told, list):
        return tuple(of_json(each) for each in told)
    if isinstance(told, dict):
        for name, _, part in _KINDS.values():
            if name in told:
                return part(told[name])
    return told


def recorded() -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield each tuple, with the bytes that it is packed into."""
    for line in VECTORS.read_text().splitlines():
        packed, _, told = line.partition(" ")
        yield of_json(json.loads(told)), bytes.fromhex(packed)


def main() -> int:
    """Write the file."""
    layer = importlib.import_module("fdb.tuple")
    chance = Random("tuples of FoundationDB")
    tuples = [(edge,) for edge in EDGES] + [drawn(chance) for _ in range(RECORDED)]
    VECTORS.write_text(
        "".join(f"{layer.pack(each).hex()} {json.dumps(to_json(each))}\n" for each in tuples)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

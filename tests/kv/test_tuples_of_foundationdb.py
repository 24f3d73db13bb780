"""Keys have the bytes, and so the order, that FoundationDB's tuple layer gives them."""

from __future__ import annotations

import importlib
from random import Random  # noqa: TID251 - seeded
from types import ModuleType

import pytest

from postroom.kv.tuples import key, unpack
from tests.kv import foundationdb

SHORT_FORMS = [b"\x1c" + b"\xff" * 8, b"\x0c" + bytes(8)]
"""The two integers whose magnitude is 2^64 - 1, without their length."""


def test_recorded_tuples() -> None:
    vectors = list(foundationdb.recorded())
    assert len(vectors) > foundationdb.RECORDED
    for parts, packed in vectors:
        assert key(*parts) == packed, f"{parts} is packed otherwise"
        assert repr(unpack(packed)) == repr(parts)


@pytest.mark.parametrize("short", SHORT_FORMS, ids=["positive", "negative"])
def test_an_integer_of_eight_bytes_without_its_length_is_no_key(short: bytes) -> None:
    with pytest.raises(ValueError, match="without its length"):
        unpack(short)


def test_the_package_itself_if_it_is_there() -> None:
    layer = _layer()
    chance = Random("more tuples")
    drawn = [foundationdb.drawn(chance) for _ in range(20_000)]
    for parts in drawn:
        packed = layer.pack(parts)
        assert key(*parts) == packed, f"{parts} is packed otherwise"
        assert repr(layer.unpack(packed)) == repr(unpack(packed))


def _layer() -> ModuleType:
    """The pure part of the package ``foundationdb``, which needs no library of its own."""
    try:
        return importlib.import_module("fdb.tuple")
    except ImportError:
        pytest.skip("the package foundationdb is not installed")

"""Keys have the bytes, and so the order, that FoundationDB's tuple layer gives them."""

from __future__ import annotations

import importlib
from random import Random  # noqa: TID251 - seeded
from types import ModuleType

import pytest

from postroom.kv.tuples import key, unpack
from tests.kv import foundationdb

OLD_FORMS = [(2**64 - 1, b"\x1c" + b"\xff" * 8), (1 - 2**64, b"\x0c" + bytes(8))]
"""As these two integers were packed once."""


def test_recorded_tuples() -> None:
    vectors = list(foundationdb.recorded())
    assert len(vectors) > foundationdb.RECORDED
    for parts, packed in vectors:
        assert key(*parts) == packed, f"{parts} is packed otherwise"
        assert repr(unpack(packed)) == repr(parts)


@pytest.mark.parametrize(("number", "old"), OLD_FORMS, ids=["positive", "negative"])
def test_the_form_of_before_is_understood_and_sorts_in_the_same_place(
    number: int, old: bytes
) -> None:
    assert unpack(old) == (number,)
    assert unpack(old + key("more")) == (number, "more")
    assert key(number - 1) < old < key(number + 1)
    assert key(number - 1) < key(number) < key(number + 1)


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

"""The digest of a run knows events by what they hold."""

from __future__ import annotations

import msgspec
import pytest

from tests.sim.digest import Digest


def _name(*events: object) -> str:
    digest = Digest()
    for each in events:
        digest.note(each)
    return digest.name()


def test_packed_headers_are_told_by_what_they_hold() -> None:
    one, same, other = (msgspec.Raw(packed) for packed in (b"\x80", b"\x80", b"\xc0"))
    assert _name(("answer", one)) == _name(("answer", same)) != _name(("answer", other))


def test_an_object_that_is_known_by_its_address_only_is_an_error() -> None:
    with pytest.raises(AssertionError, match="told by its address"):
        _name(("answer", object()))


def test_the_order_of_events_counts() -> None:
    assert _name("a", "b") != _name("b", "a")

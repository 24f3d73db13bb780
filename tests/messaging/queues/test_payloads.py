"""A small payload is fired without a look at its body, and is always what the body says."""

from __future__ import annotations

import msgspec
import pytest

from postroom.messaging.queues import firing, records
from postroom.messaging.queues.records import PAYLOAD_KEPT_BYTES
from postroom.ranges.checks import unpacked
from tests.messaging.queues.harness import Queues

SMALL, LARGE = bytes(PAYLOAD_KEPT_BYTES), bytes(PAYLOAD_KEPT_BYTES + 1)


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    queues.create(on_duplicate="replace", ack_wait=20.0)
    return queues


def bodies_read(patched: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list of the ids of messages whose bodies are read when they are fired."""
    read: list[bytes] = []
    fired = firing.leased_message

    def seen(reader: object, manager: object, entry: records.Entry, *when: int) -> object:
        if entry.payload is None:
            read.append(entry.id)
        return fired(reader, manager, entry, *when)  # type: ignore[arg-type]

    patched.setattr(firing, "leased_message", seen)
    return read


def test_only_small_ones_are_kept(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    read = bodies_read(monkeypatch)
    queues.enqueue(SMALL, id=b"small")
    queues.enqueue(LARGE, id=b"large")
    queues.enqueue(b"x", id=b"headed", headers={"a": 1})
    queues.enqueue(b"later", id=b"later", after=5)
    queues.store.restart()
    queues.pass_time(6)
    found = {message.id: message for message in queues.claim(9)}
    assert sorted(read) == [b"headed", b"large"]
    assert found[b"small"].payload == SMALL
    assert found[b"large"].payload == LARGE
    assert unpacked(found[b"headed"].headers) == {"a": 1}
    assert found[b"later"].payload == b"later"
    told = {id_: msgspec.structs.replace(each, lasts=0) for id_, each in found.items()}
    assert told == {message.id: message for message in queues.list("leased")}


def test_a_holding_has_none_and_what_is_fired_again_is_read(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.enqueue(b"small", id=b"m")
    (message,) = queues.claim()
    layout = queues.manager().layout
    (stored,) = (v for k, v in queues.stored().items() if k.startswith(layout.leased))
    assert b"small" not in stored
    read = bodies_read(monkeypatch)
    queues.reject(message, delay=0.0)
    assert queues.payloads() == [b"small"]
    assert read == [b"m"]


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("new", [b"new", LARGE])
def test_one_that_was_replaced_says_the_new_thing(queues: Queues, new: bytes, after: int) -> None:
    queues.enqueue(b"old", id=b"m", after=after)
    assert queues.enqueue(new, id=b"m") == ["replaced"]
    assert queues.payloads() == [new]


@pytest.mark.parametrize("end", ["replay", "reschedule"])
def test_one_that_goes_round_says_the_same(queues: Queues, end: str) -> None:
    queues.enqueue(b"small", id=b"m", after=5)
    if end == "replay":
        queues.pass_time(6)
        queues.reject(*queues.claim(), dead=True)
        queues.replay(b"m")
    else:
        queues.reschedule(b"m")
    assert queues.payloads() == [b"small"]


def test_entries_of_before_are_read_with_their_bodies(queues: Queues) -> None:
    queues.enqueue(b"small", id=b"m")
    layout = queues.manager().layout
    ((key, stored),) = ((k, v) for k, v in queues.stored().items() if k.startswith(layout.ready))
    fields = msgspec.msgpack.decode(stored)
    assert fields.pop() == b"small"
    queues.store.engine.inner.write({key: msgspec.msgpack.encode(fields)}, sync=True)
    queues.store.restart()
    assert queues.payloads() == [b"small"]

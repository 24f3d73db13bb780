"""Codecs: values and payloads as objects; keys stay bytes."""

from __future__ import annotations

from typing import Any

import pytest

import postroom
from postroom.errors import ConditionFailed, WrongType
from tests.client.stores import Store

OBJECT = {"name": "Ada", "tags": ["x", None, True], "n": 1.5, "deep": {"é": []}}


class Upper:
    """An object as a codec: text in capital letters."""

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"only text, not {type(value).__name__}")
        return value.upper().encode()

    def decode(self, data: bytes, /) -> Any:
        return data.decode()


@pytest.fixture(params=["msgpack", "json"])
def codec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_values_come_back_as_they_went_in(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db:
        db.put(b"a", OBJECT)
        db.put(b"null", None)
        before = db.now()
        db.conditional_put(b"a", [1], OBJECT)
        assert db.get(b"a", at=before) == OBJECT
        assert db.get(b"a") == [1]
        assert db.get(b"null") is None
        assert db.get_many([b"a", b"absent"]) == [[1], None]
        assert list(db.scan()) == [(b"a", [1]), (b"null", None)]
        with db.snapshot() as snapshot:
            assert snapshot.get(b"a") == [1]
        changes = db.watch(b"a", after=before)
        assert next(changes).value == [1]
        changes.close()


def test_a_transaction_sees_objects_too(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db, db.begin() as tx:
        tx.put(b"a", OBJECT)
        assert tx.get(b"a") == tx.get_for_update(b"a") == tx.get_many([b"a"])[0] == OBJECT
        assert list(tx.scan()) == [(b"a", OBJECT)]
        tx.conditional_put(b"a", {}, OBJECT)


def test_messages_and_updates_carry_objects(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db:
        with db.begin() as tx:
            tx.enqueue_message(b"k", OBJECT, headers={"plain": b"bytes"})
            tx.enqueue_update(postroom.Put(b"a", OBJECT))  # type: ignore[arg-type]
        db.drain()
        assert db.get(b"a") == OBJECT
        (message,) = db.peek(b"k")
        assert (message.value, message.headers) == (OBJECT, {"plain": b"bytes"})
        with db.begin() as tx:
            assert tx.reap_queue(b"k")[0].value == OBJECT


def test_a_failed_condition_carries_an_object(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db:
        db.put(b"a", OBJECT)
        with pytest.raises(ConditionFailed) as failed:
            db.conditional_put(b"a", 1, None)
        assert failed.value.actual == OBJECT
        with pytest.raises(ConditionFailed) as failed, db.begin() as tx:
            tx.conditional_put(b"a", 1, 2)
        assert failed.value.actual == OBJECT


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0])
def test_a_value_that_cannot_be_packed_is_a_type_error(codec: str, value: Any) -> None:
    store = Store(codec=codec)
    before = store.dump()
    with pytest.raises(TypeError):
        store.db.put(b"a", value)
    with pytest.raises(TypeError), store.db.begin() as tx:
        tx.enqueue_message(b"a", value)
    assert store.dump() == before


def test_a_number_that_is_too_long_for_message_pack_is_a_type_error() -> None:
    with (
        postroom.open(":memory:", codec="msgpack") as db,
        pytest.raises(TypeError, match="MessagePack cannot pack this value"),
    ):
        db.put(b"a", 2**64)


def test_a_loop_is_a_type_error(codec: str) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with postroom.open(":memory:", codec=codec) as db, pytest.raises(TypeError):
        db.put(b"a", loop)


def test_bytes_that_cannot_be_unpacked_are_a_wrong_type(codec: str) -> None:
    store = Store()
    store.db.put(b"a", b"\xc1")
    with store.db.begin() as tx:
        tx.enqueue_message(b"k", b"\xc1")
    other = store.with_codec(codec)
    for read in (
        lambda: other.get(b"a"),
        lambda: other.get_many([b"a"]),
        lambda: list(other.scan()),
        lambda: other.peek(b"k"),
        lambda: other.begin().get(b"a"),
    ):
        with pytest.raises(WrongType, match=r"cannot unpack.*xc1.*another codec"):
            read()


def test_a_reap_that_cannot_be_unpacked_holds_nothing(codec: str) -> None:
    store = Store()
    with store.db.begin() as tx:
        tx.enqueue_message(b"k", b"\xc1")
    with pytest.raises(WrongType), store.with_codec(codec).begin() as tx:
        tx.reap_queue(b"k")
    with store.db.begin() as tx:
        assert tx.reap_queue(b"k")[0].value == b"\xc1"


def test_integers_stay_integers(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db:
        assert db.increment(b"n", 5) == 5
        assert db.run(lambda tx: tx.increment(b"n")) == 6
        assert db.get(b"n") == 6


def test_any_object_with_encode_and_decode_is_a_codec() -> None:
    with postroom.open(":memory:", codec=Upper()) as db:
        db.put(b"a", "text")
        assert db.get(b"a") == "TEXT"
        with pytest.raises(TypeError, match="only text, not bytes"):
            db.put(b"a", b"bytes")


def test_a_codec_must_return_bytes() -> None:
    class Wrong(Upper):
        def encode(self, value: Any, /) -> bytes:
            return bytearray(b"x")  # type: ignore[return-value]

    with (
        postroom.open(":memory:", codec=Wrong()) as db,
        pytest.raises(TypeError, match="bytearray, not bytes"),
    ):
        db.put(b"a", "x")


def test_a_codec_is_known_or_an_object() -> None:
    with pytest.raises(ValueError, match=r"no codec is called 'xml': use \"msgpack\", \"json\""):
        postroom.open(":memory:", codec="xml")
    with pytest.raises(TypeError, match="encode"):
        postroom.open(":memory:", codec=42)  # type: ignore[arg-type]


def test_keys_stay_bytes(codec: str) -> None:
    with postroom.open(":memory:", codec=codec) as db, pytest.raises(TypeError, match="keys are"):
        db.put("a", 1)  # type: ignore[arg-type]

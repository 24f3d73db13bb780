"""Refusals that a new user meets: they name the argument, and tell nothing of Python's inside."""

from __future__ import annotations

import datetime
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

import postroom
from tests.client.stores import Store


@pytest.mark.parametrize("call", ["cancel", "replay", "discard"])
@pytest.mark.parametrize("wrong", ["zz", "ab c", "é"])
def test_an_id_that_is_none_is_shown_as_it_was_given(store: Store, call: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="nothing was changed") as refused:
        getattr(store.db, call)([wrong])
    assert repr(wrong) in str(refused.value)
    assert "fromhex" not in str(refused.value)


def test_watch_names_the_argument_that_is_wrong(store: Store) -> None:
    wrong: Any = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(TypeError, match=r"^after is a Timestamp, not datetime"):
        store.db.watch(b"a", after=wrong)
    with pytest.raises(TypeError, match=r"^at is a Timestamp, not datetime"):
        store.db.get(b"a", at=wrong)


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_a_number_of_seconds_that_is_none_is_said_to_be_none(store: Store, seconds: float) -> None:
    with store.db.begin() as tx, pytest.raises(ValueError, match="a number of seconds") as refused:
        tx.enqueue_message(b"a", b"m", deliver_at=seconds)
    assert "e+" not in str(refused.value)


def test_a_length_that_no_moment_has_room_for_is_refused_in_words(store: Store) -> None:
    far = datetime.timedelta.max
    with store.db.begin() as tx, pytest.raises(ValueError, match="years from now") as refused:
        tx.enqueue_message(b"a", b"m", deliver_at=far)
    assert "e+" not in str(refused.value)


async def counted(tx: postroom.Transaction) -> AsyncIterator[int]:
    yield 1


def test_an_asynchronous_generator_is_named_in_words(store: Store) -> None:
    with pytest.raises(TypeError, match="returned an asynchronous generator"):
        store.db.run(counted)


@pytest.mark.parametrize("address", ["http://127.0.0.1:7400", "https://db:7400", "tcp://a:7400"])
def test_a_url_is_no_address_and_the_error_shows_the_address(address: str) -> None:
    with pytest.raises(ValueError, match="is no address") as refused:
        postroom.connect(address, insecure=True)
    assert repr(address.partition("//")[2]) in str(refused.value)
    assert "[http" not in str(refused.value)

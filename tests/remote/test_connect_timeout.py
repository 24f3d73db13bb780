"""``connect`` says within five seconds what each address said."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import postroom
import postroom.aio


@pytest.fixture
def refusing() -> Iterator[str]:
    """Yield an address that refuses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address that takes connections, and says nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_refused_port_is_named_with_what_it_said(refusing: str) -> None:
    with pytest.raises(postroom.Unavailable) as told:
        postroom.connect(refusing, insecure=True, connect_timeout=0.3)
    assert "within 0.3 s" in str(told.value)
    assert refusing in str(told.value)
    assert "refused" in str(told.value)
    assert "postroom serve" in str(told.value)


def test_the_argument_that_ended_the_wait_is_named(refusing: str) -> None:
    for given, named in (
        ({"timeout": 0.2}, "timeout="),
        ({"connect_timeout": 0.2}, "connect_timeout="),
    ):
        with pytest.raises(postroom.Unavailable, match=f"wait for longer with {named}"):
            postroom.connect(refusing, insecure=True, **given)


def test_each_address_is_named(refusing: str, silent: str) -> None:
    with pytest.raises(postroom.Unavailable) as told:
        postroom.connect([refusing, silent], insecure=True, connect_timeout=0.3)
    assert refusing in str(told.value)
    assert "refused" in str(told.value)


def test_connecting_in_asyncio_ends_in_time_too(refusing: str) -> None:
    async def main() -> None:
        with pytest.raises(postroom.Unavailable, match="refused"):
            await postroom.aio.connect(refusing, insecure=True, connect_timeout=0.3)

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "1", True])
def test_a_connect_timeout_is_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="connect_timeout"):
        postroom.connect("127.0.0.1:1", insecure=True, connect_timeout=seconds)


def test_connecting_may_take_five_seconds_by_default() -> None:
    for connect in (postroom.connect, postroom.aio.connect):
        assert inspect.signature(connect).parameters["connect_timeout"].default == 5

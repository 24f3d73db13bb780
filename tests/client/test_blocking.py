"""Synchronous forms are made of asynchronous ones: what they answer, and what is seen of them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest

import postroom
from postroom.client.blocking import (
    blocking,
    iterating,
    iterating_own,
    owning,
)


class Asynchronous:
    def __init__(self) -> None:
        self.closed = 0

    async def double(self, number: int, *, times: int = 2) -> int:
        """Return the double."""
        if number < 0:
            raise ValueError("no")
        return number * times

    async def count(self, end: int) -> AsyncIterator[int]:
        try:
            for number in range(end):
                yield number
        finally:
            self.closed += 1


class Sender:
    """A sender that runs what never waits."""

    def run(self, coroutine: Any) -> Any:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")


def own(sender: Any, number: int) -> str:
    assert isinstance(sender, Sender)
    return f"own {number}"


class Synchronous:
    def __init__(self) -> None:
        self._blocking, self._core = Sender(), Asynchronous()

    double = blocking(Asynchronous.double)
    own_double = owning(Asynchronous.double, own)
    count = iterating(Asynchronous.count)
    own_count = iterating_own(Asynchronous.count, own)


def test_results_arguments_and_errors_are_those_of_the_coroutine() -> None:
    form = Synchronous()
    assert (form.double(2), form.double(2, times=5), form.own_double(3)) == (4, 10, "own 6")
    with pytest.raises(ValueError, match="no"):
        form.double(-1)
    with pytest.raises(TypeError):
        form.double()  # type: ignore[call-arg]


def test_an_iterator_is_closed_with_the_loop() -> None:
    form = Synchronous()
    assert list(form.own_count(2)) == ["own 0", "own 1"]
    numbers = form.count(10)
    assert next(numbers) == 0
    assert form._core.closed == 1
    del numbers
    assert form._core.closed == 2


def test_blocking_methods_have_the_documentation_of_their_coroutines() -> None:
    assert Synchronous.double.__doc__ == "Return the double."
    for method in (postroom.Database.put, postroom.Queue.claim, postroom.Transaction.reap_queue):
        assert "self" in inspect.signature(method).parameters
        assert inspect.getdoc(method)
        assert not inspect.iscoroutinefunction(method)


def test_help_tells_of_plain_iterators() -> None:
    assert inspect.signature(Synchronous.count).return_annotation == "Iterator[int]"
    for method, items in (
        (postroom.Database.watch, "Change"),
        (postroom.Transaction.scan, "tuple[bytes, Any]"),
        (postroom.Snapshot.scan, "tuple[bytes, Any]"),
        (postroom.Queue.receive, "QueueMessage"),
        (postroom.Queue.archive, "QueueMessage"),
    ):
        told = inspect.signature(method)
        assert told.return_annotation == f"Iterator[{items}]"
        assert "self" in told.parameters

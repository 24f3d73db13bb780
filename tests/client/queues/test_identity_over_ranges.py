"""Fifty clients enqueue one id at once in ten ranges: one message comes of it, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from postroom.client.queues.messages import QueueMessage
from postroom.errors import ConditionFailed, Error
from tests.client.stores import Store
from tests.server.hosting import cut

CLIENTS = 50
CUTS = [b"%d" % number for number in range(1, 10)]


class Clients:
    """The clients of a store with ten ranges."""

    def __init__(self) -> None:
        self.store = Store()
        cut(self.store.node, *CUTS)
        self.store.driver.settle()
        self.outcomes: list[str | None] = []
        self.errors: list[Error] = []

    def make(self, **settings: Any) -> None:
        self.run(self.store.core.create_queue("q", **settings))

    def run(self, coroutine: Any) -> Any:
        return self.store.driver.run(coroutine)

    async def _enqueue(self, number: int, **said: Any) -> None:
        try:
            async with self.store.core.begin() as tx:
                handle = tx.enqueue("q", b"%d" % number, id="same", kind="k", **said)
        except Error as error:
            self.errors.append(error)
        else:
            self.outcomes.append(handle._outcome)

    def enqueue_at_once(self, said: Callable[[int], dict[str, Any]]) -> None:
        """Have all clients commit in the same turns, each with options of its own."""
        for number in range(CLIENTS):
            self.store.driver.later(self._enqueue(number, **said(number)))
        self.store.advance(2.0)
        assert len(self.outcomes) + len(self.errors) == CLIENTS
        self.run(self.store.core.drain())

    def messages(self) -> list[QueueMessage]:
        """Return all messages that consumers can be given."""
        found: list[QueueMessage] = self.run(self.store.core.queue("q").claim(CLIENTS))
        return found

    def live(self) -> int:
        stats = self.run(self.store.core.queue("q").stats())
        return int(stats.ready + stats.scheduled + stats.leased)


def by_key(number: int) -> dict[str, Any]:
    return {"key": b"%d/key" % (number % 10)}


def by_group(number: int) -> dict[str, Any]:
    return {"group": f"{number % 10}/group", "key": b"%d/key" % (number * 7 % 10)}


def mixed(number: int) -> dict[str, Any]:
    return by_group(number) if number % 2 else by_key(number)


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.store.db.close()


@pytest.mark.parametrize("said", [by_key, by_group, mixed])
def test_one_of_fifty_clients_inserts_and_the_others_are_ignored(
    clients: Clients, said: Callable[[int], dict[str, Any]]
) -> None:
    clients.make()
    clients.enqueue_at_once(said)
    assert not clients.errors
    assert sorted(clients.outcomes, key=str) == ["ignored"] * (CLIENTS - 1) + ["inserted"]
    assert clients.live() == len(clients.messages()) == 1


@pytest.mark.parametrize("said", [by_key, by_group, mixed])
def test_one_of_fifty_clients_inserts_and_the_others_fail_if_the_queue_says_so(
    clients: Clients, said: Callable[[int], dict[str, Any]]
) -> None:
    clients.make(on_duplicate="error")
    clients.enqueue_at_once(said)
    assert clients.outcomes == ["inserted"]
    assert {type(error) for error in clients.errors} == {ConditionFailed}
    assert clients.live() == len(clients.messages()) == 1


@pytest.mark.parametrize("said", [by_key, by_group, mixed])
def test_the_last_of_fifty_clients_replaces_the_message_of_the_others(
    clients: Clients, said: Callable[[int], dict[str, Any]]
) -> None:
    clients.make(on_duplicate="replace")
    clients.enqueue_at_once(said)
    assert not clients.errors
    assert sorted(clients.outcomes, key=str) == ["inserted"] + ["replaced"] * (CLIENTS - 1)
    assert clients.live() == 1
    (message,) = clients.messages()
    assert message.id == "same"


def test_an_id_that_is_purged_can_be_used_again_with_another_key(clients: Clients) -> None:
    clients.make(purge_after=5.0)
    for first, second in (("1", "8"), ("8", "3"), ("3", "3")):
        clients.outcomes.clear()
        clients.run(clients._enqueue(0, key=first.encode()))
        clients.store.advance(1.0)
        (message,) = clients.messages()
        clients.run(clients.store.core.queue("q").acknowledge(message))
        clients.run(clients._enqueue(1, key=second.encode()))
        clients.store.advance(100.0)
        assert clients.outcomes == ["inserted", "ignored"]
        assert clients.live() == 0

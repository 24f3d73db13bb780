"""The output of ``status`` and ``queue show`` for a message that is held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import postroom
from tests.cli.commands import lines, records
from tests.remote.servers import Server


@pytest.fixture
def address() -> Iterator[str]:
    """Yield the address of a node with a message that a consumer holds."""
    with Server() as server, postroom.connect(server.address, insecure=True) as db:
        q = db.create_queue("orders", ack_wait=600)
        with db.begin() as tx:
            tx.enqueue("orders", b"", id="order 17", kind="invoice")
        (message,) = q.claim(1)
        yield server.address
        message.acknowledge()


def test_a_queue_is_shown_with_the_message_that_is_held_for_longest(address: str) -> None:
    shown = "\n".join(lines("queue", "show", "orders", "--connect", address, "--insecure"))
    assert "order 17 by " in shown
    assert "HeldMessage" not in shown
    (record,) = records("queue", "show", "orders", "--connect", address, "--insecure")
    held = record["stats"]["longest_held"]
    assert (held["id"], held["kind"]) == ("order 17", "invoice")
    assert held["since"].startswith("20")


def test_the_status_tells_the_message_that_is_held_for_longest(address: str) -> None:
    text = " ".join(lines("status", "--connect", address, "--insecure"))
    assert "held for longest is the message 'order 17' of the queue 'orders'" in text
    *_, whole = records("status", "--connect", address, "--insecure")
    assert whole["queues"][0]["longest_held"]["id"] == "order 17"

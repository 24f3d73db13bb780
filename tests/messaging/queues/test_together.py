"""What is claimed in the very proposal in which a message ends, or gets another place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from postroom.kv.clock import from_seconds
from postroom.messaging.queues.requests import CancelMessages, RejectMessages, Reschedule
from tests.messaging.queues.harness import Q, Queues, by_id

CASES: list[tuple[str, Callable[[Queues], Any], list[bytes]]] = [
    ("cancelled", lambda _: CancelMessages(Q, [by_id(b"m")]), [b"n"]),
    ("buried", lambda _: RejectMessages(Q, [by_id(b"m")], dead=True), [b"n"]),
    ("later", lambda q: Reschedule(Q, [by_id(b"m")], q.now() + from_seconds(60)), [b"n"]),
    ("other payload", lambda q: q.message(b"new", id=b"m", group="g"), [b"n", b"new"]),
]


@pytest.mark.parametrize("order", ["none", "group"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_who_claims_along_with_it_finds_it_so(
    case: tuple[str, Callable[[Queues], Any], list[bytes]], order: str
) -> None:
    name, write, expected = case
    if order == "group":
        expected = [] if name == "later" else expected[:1]
    queues = Queues()
    queues.create(on_duplicate="replace", order=order)
    queues.enqueue(b"m", id=b"m", group="g")
    queues.enqueue(b"n", id=b"n", group="g")
    driver = queues.store.driver
    request = queues.claim_request(9)
    transaction = queues.transaction(write(queues))

    async def both() -> list[bytes]:
        claimed, committed = driver.send(request), driver.send(transaction)
        await committed
        return [each.payload for each in (await claimed).messages]

    assert driver.run(both()) == expected
    assert queues.counts()["enqueued"] == 2

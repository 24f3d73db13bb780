"""Random histories of a queue are what a queue in pure Python says. ``make soak`` plays more."""

from __future__ import annotations

import pytest

from postroom.kv.clock import from_seconds
from postroom.messaging.queues.claim_requests import ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.definition_requests import QueueSettings
from tests.queue_model import dividing
from tests.queue_model.__main__ import play
from tests.queue_model.reference import Message, Reference, Wrong

HISTORIES = 12


@pytest.mark.parametrize("first", range(0, 60, HISTORIES))
def test_a_store_does_what_the_reference_does(first: int) -> None:
    for seed in range(first, first + HISTORIES):
        play(seed)


@pytest.mark.parametrize("seed", [*range(3), 1000, 1286])
def test_three_nodes_do_what_the_reference_does_though_some_are_killed(seed: int) -> None:
    assert play(seed, nodes=3) > 20


@pytest.mark.parametrize("first", range(0, 36, HISTORIES))
def test_a_queue_that_is_divided_does_what_the_reference_does(first: int) -> None:
    played = [dividing.play(seed) for seed in range(first, first + HISTORIES)]
    assert sum(copied for copied, _ in played) > 20
    assert sum(is_split for _, is_split in played) > 2


def test_a_message_is_a_candidate_until_one_before_it_is_due() -> None:
    """The reference took only what is next 4 s before a claim, and what is next 4 s after it."""
    assert play(6747) > 20


# --- the reference itself


def reference(**settings: object) -> Reference:
    return Reference(QueueSettings(**settings), from_seconds(0.003))  # type: ignore[arg-type]


def message(id_: bytes, due: int, group: str = "") -> Message:
    return Message(0, id_, "", b"", None, 0, group, due, due)


def told(of: Message, state: str, **more: object) -> StoredQueueMessage:
    values = {
        "leased_until": 0, "fired_at": 0, "epoch": of.epoch, "scheduled": of.due, **more
    }  # fmt: skip
    return StoredQueueMessage(
        key=of.id, kind="", id=of.id, payload=b"", headers=None, priority=0, group=of.group,
        created_at=1, first_scheduled=of.first, last_error="", state=state, **values,
    )  # type: ignore[arg-type]  # fmt: skip


def test_the_head_of_an_ordered_group_is_its_only_candidate() -> None:
    queue = reference(order="group")
    for number, each in enumerate((b"1", b"2")):
        queue.enqueue(message(each, 10 + number, "g"), 20)
    assert [each.id for each in queue.candidates(ClaimSelection(), 20)] == [b"1"]
    queue.reschedule(queue.messages["", b"1"], 1 << 40, None, 20)
    assert queue.candidates(ClaimSelection(), 20) == []


def test_messages_that_are_lost_or_made_up_or_late_are_found() -> None:
    queue, one = reference(), message(b"1", 10)
    queue.enqueue(one, 10)
    for found in ([], [told(one, "ready"), told(message(b"2", 10), "ready")]):
        with pytest.raises(Wrong):
            queue.copy().compare(found, 10)
    with pytest.raises(Wrong, match="is leased"):
        queue.copy().compare([told(one, "leased")], 10)
    queue.compare([told(one, "ready")], 10)
    queue.lease(one, from_seconds(5), 10)
    with pytest.raises(Wrong, match="is leased"):
        queue.compare([told(one, "leased", fired_at=10)], from_seconds(6))


def test_a_seed_is_one_history() -> None:
    assert play(1) == play(1)

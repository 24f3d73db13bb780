"""A step of the queues that comes to more than a command holds is made in smaller ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroom.limits import UPKEEP_BYTES
from postroom.messaging.queues.range_steps import RangeSteps
from postroom.ranges import proposer
from tests.messaging.queues.harness import Q, Queues

MESSAGES = 200
COMMAND_BYTES = 40_000
"""All of them are more than that, in each of these ways."""
KEY = b"k" * 100


def _counted(queues: Queues, name: str = Q) -> dict[str, int]:
    return {each: number for each, number in queues.counts(name).items() if each != "fired"}


def _scheduled(queues: Queues) -> dict[str, int]:
    """Enqueue messages that become due at the same moment."""
    queues.enqueue(*[bytes(300)] * MESSAGES, key=KEY, after=50.0)
    return {"enqueued": MESSAGES, "ready": MESSAGES}


def _leased(queues: Queues) -> dict[str, int]:
    """Claim messages that are not acknowledged in time."""
    queues.enqueue(*[bytes(300)] * MESSAGES, key=KEY)
    assert len(queues.claim(MESSAGES)) == MESSAGES
    return {"enqueued": MESSAGES, "ready": MESSAGES, "expired": MESSAGES}


def _done(queues: Queues) -> dict[str, int]:
    """Acknowledge messages that are to be purged: one list of all that one proposal has ended."""
    queues.enqueue(*[bytes(300)] * MESSAGES, key=KEY)
    queues.acknowledge(*queues.claim(MESSAGES))
    return {"enqueued": MESSAGES, "acknowledged": MESSAGES, "purged": MESSAGES}


def _queue(**settings: object) -> Queues:
    queues = Queues()
    queues.create(**{
        "ack_wait": 20.0, "max_backoff": 1.0, "purge_after": 50.0, "batch_size": MESSAGES,
        **settings,
    })  # fmt: skip
    return queues


@pytest.mark.parametrize(
    ("begin", "order"),
    [(_scheduled, "none"), (_scheduled, "group"), (_leased, "none"), (_done, "none")],
)
def test_work_that_is_too_large_for_a_command_is_done_in_parts(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[Queues], dict[str, int]], order: str
) -> None:
    queues = _queue(order=order)
    expected = begin(queues)
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", COMMAND_BYTES)
    queues.pass_time(120)
    assert _counted(queues) == expected
    assert queues.stats().trouble == ""
    assert not any(each.failures for each in queues.store.node.root.services.status())


def test_each_waiting_consumer_gets_some_of_the_due_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = _queue(ack_wait=900.0)
    queues.enqueue(*[bytes(300)] * MESSAGES, key=KEY, after=50.0)
    claims = [
        queues.start(queues.claim_request(10, wait=True, consumer=queues.consumer(number)))
        for number in range(20)
    ]
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", COMMAND_BYTES)
    queues.pass_time(60)
    got = sum(len(each.result().messages) for each in claims)
    assert all(each.result().messages for each in claims)
    assert _counted(queues) == {"enqueued": MESSAGES, "ready": MESSAGES - got, "leased": got}
    assert queues.stats().trouble == ""


@pytest.mark.parametrize("begin", [_done, _leased])
def test_a_dropped_queue_is_emptied_in_parts(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[Queues], dict[str, int]]
) -> None:
    queues = _queue()
    begin(queues)
    queues.enqueue(*[bytes(300)] * MESSAGES, key=KEY)
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", COMMAND_BYTES)
    queues.drop()
    queues.pass_time(20)
    assert queues.stored() == {}


def test_a_queue_of_which_no_part_is_small_enough_is_left_alone_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = _queue()
    names = ["before", "other"]
    for name in names:
        queues.create(name)
        queues.enqueue(*[b""] * MESSAGES, name=name, after=50.0)
    queues.enqueue(b"", key=bytes(8000), after=50.0)
    monkeypatch.setattr(proposer, "COMMAND_BYTES_MAX", 8000)
    queues.pass_time(120)
    for name in names:
        assert _counted(queues, name) == {"enqueued": MESSAGES, "ready": MESSAGES}
        assert queues.stats(name).trouble == ""
    assert _counted(queues) == {"enqueued": 1, "scheduled": 1}
    assert queues.stats().trouble.startswith("TransactionTooLarge")
    service = next(
        each for each in queues.store.node.root.services.status() if each.name == "queues"
    )
    assert service.running
    monkeypatch.undo()
    queues.pass_time(5)
    assert _counted(queues) == {"enqueued": 1, "ready": 1}


def test_the_bytes_of_a_claim_include_the_keys_of_its_messages() -> None:
    queues = Queues()
    queues.create(batch_size=1000)
    for _ in range(4):
        queues.enqueue(*[b""] * 250, key=bytes(8000))
    given = queues.claim(1000)
    assert 0 < sum(len(each.key) for each in given) < UPKEEP_BYTES + 10_000
    assert len(queues.claim(1000)) > 0


def test_messages_given_to_clients_do_not_count_as_a_step_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If they did, the queue with the largest claim would be left alone for too large a step."""
    queues = _queue()
    claim = queues.start(queues.claim_request(10, wait=True))
    queues.pass_time(5)
    sizes: list[int] = []
    monkeypatch.setattr(RangeSteps, "_grew", lambda _, manager, size: sizes.append(size))
    queues.enqueue(bytes(300))
    assert claim.result().messages
    assert not any(sizes)

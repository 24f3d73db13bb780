"""Limits of whole queues in several ranges: slots are conserved, and go where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pytest

from postroom.kv import keys
from postroom.kv.clock import LOGICAL_BITS
from postroom.messaging.queues.claim_requests import ClaimQueue, ClaimSelection, StoredQueueMessage
from postroom.messaging.queues.crossing import AnyCrossing, GrantSlots, ReturnSlots, decode
from postroom.messaging.queues.definition_requests import DropQueue, UpdateQueue
from postroom.messaging.queues.maintenance import AskForSlots, LeaveSlots, OwnedSlots
from postroom.messaging.queues.requests import Acknowledge, Attempt
from postroom.messaging.queues.slot_sums import SlotSums, slot_sums
from postroom.messaging.queues.slots import pool_key, read_slots
from postroom.messaging.requests import Deliverable
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.requests import CommitTransaction
from tests.client.stores import Store
from tests.messaging.one_range import Asked
from tests.server.splitting import ask, hosted, split
from tests.server.test_queues_of_ranges import KEYS, Q, commit, counted, create, enqueue, ranges

NUMBER: Final = 1
CLIENT: Final = b"the client's id"
A, N, Z = KEYS


def request(store: Store, key: bytes, number: int = 10, **options: Any) -> ClaimQueue:
    replica = store.node.replicas.by_key(key)
    assert replica is not None
    homes = (replica.bounds.start, replica.bounds.end)
    consumer = store.driver.next_id()[:16]
    return ClaimQueue(Q, consumer, number, ClaimSelection(), homes=homes, **options)


def claim(store: Store, key: bytes, number: int = 10) -> list[StoredQueueMessage]:
    found: list[StoredQueueMessage] = ask(store, request(store, key, number)).messages
    return found


def wait(store: Store, key: bytes, number: int = 10) -> Asked:
    """Have a claim wait for messages."""
    call = Asked(request(store, key, number, wait=True))
    store.node.replicas.submit(call)
    return call


def acknowledge(store: Store, messages: list[StoredQueueMessage]) -> None:
    for each in messages:
        attempt = Attempt(each.locator[0], each.kind, each.id, each.epoch, each.fired_at)
        commit(store, Acknowledge(Q, [attempt]), anchor=each.locator[0])


def fill(store: Store, key: bytes, number: int = 10) -> None:
    for each in range(number):
        enqueue(store, key, b"%d" % each)


def owned(store: Store) -> list[int]:
    """Return how many slots each range owns."""
    engine = store.node.engine
    return [read_slots(engine, each, NUMBER, "concurrency").owned for each in ranges(store)]


def sums(store: Store) -> SlotSums:
    """Return the sums of the slots; they are conserved."""
    engine, found = store.node.engine, []
    for range_id in store.node.replicas.hosted:
        prefix = keys.record_key(range_id, "")
        found += [
            (raw[len(prefix) :], stored)
            for raw, stored in engine.iterate(prefix, keys.after_prefix(prefix))
        ]
    every = slot_sums(found, [])
    limits = every.get((NUMBER, "concurrency"), SlotSums())
    assert limits.conserved, limits
    return limits


def test_a_limit_holds_over_all_ranges(store: Store) -> None:
    create(store, max_concurrency=7)
    for key in KEYS:
        fill(store, key)
    held = [claim(store, key) for key in KEYS for _ in range(2)]
    assert sum(map(len, held)) == 7
    store.advance(5.0)
    assert sum(counted(store, "leased")) == 7
    assert sums(store).limit == 7


def test_claims_that_wait_for_all_ranges_get_messages(store: Store) -> None:
    queue = store.db.create_queue(Q, max_concurrency=2, max_rate=50.0, ack_wait=3600.0)
    waiting = [
        Asked(ClaimQueue(Q, CLIENT + bytes([each]), 1, ClaimSelection(), wait=True, at_node=True))
        for each in range(3)
    ]
    for each in waiting:
        store.node.replicas.submit(each)
    store.advance(1.0)
    for key in KEYS:
        enqueue(store, key)
    store.advance(1.5)
    assert [bool(each.answers) for each in waiting].count(True) == 2
    assert all(each.answers[0][1] is None for each in waiting if each.answers)
    assert sum(counted(store, "leased")) == 2
    assert queue.stats().leased == 2


def test_slots_follow_the_demand_within_a_second(store: Store) -> None:
    create(store, max_concurrency=7)
    fill(store, Z)
    held = claim(store, Z)
    assert len(held) == 7
    fill(store, A)
    waiting = [wait(store, A, 1) for _ in range(7)]
    acknowledge(store, held)
    store.advance(1.0)
    assert sum(bool(each.answers) for each in waiting) == 7
    assert counted(store, "leased") == [7, 0, 0]
    sums(store)


def test_each_range_with_demand_gets_slots(store: Store) -> None:
    create(store, max_concurrency=2, ack_wait=3600.0)
    for key in KEYS:
        fill(store, key, 40)
    done = dict.fromkeys(KEYS, 0)
    waiting = {key: [wait(store, key, 1) for _ in range(2)] for key in KEYS}
    for _ in range(80):
        store.advance(0.1)
        for key in KEYS:
            for call in [each for each in waiting[key] if each.answers]:
                waiting[key].remove(call)
                found = call.answers[0][0].messages
                assert found
                acknowledge(store, found)
                done[key] += len(found)
                waiting[key].append(wait(store, key, 1))
        assert sum(counted(store, "leased")) <= 2
    assert min(done.values()) >= 3, done
    sums(store)


def test_slots_that_nobody_needs_go_back_within_five_seconds(store: Store) -> None:
    create(store, max_concurrency=7)
    fill(store, Z, 7)
    acknowledge(store, claim(store, Z))
    assert owned(store) == [0, 0, 7]
    store.advance(5.0)
    assert owned(store) == [0, 0, 0]
    assert sums(store).pool == 7
    before = [hosted(store, each).replica.state.applied_index() for each in ranges(store)]
    store.advance(10.0)
    after = [hosted(store, each).replica.state.applied_index() for each in ranges(store)]
    assert before == after


def test_a_lower_limit_fires_nothing_before_enough_has_ended(store: Store) -> None:
    create(store, max_concurrency=7)
    for key in KEYS:
        fill(store, key)
    held = [each for key in KEYS for each in claim(store, key, 3 if key != Z else 1)]
    assert len(held) == 7
    waiting = [wait(store, key) for key in KEYS]
    for _ in range(2):
        commit(store, UpdateQueue(Q, {"max_concurrency": 3}))
        store.advance(1.0)
    for number in (6, 5, 4, 3):
        acknowledge(store, [held.pop()])
        store.advance(1.0)
        assert sum(counted(store, "leased")) == number
    acknowledge(store, [held.pop()])
    store.advance(1.0)
    assert sum(counted(store, "leased")) == 3
    assert sum(bool(each.answers) for each in waiting) == 1
    sums(store)


def test_a_range_that_asks_in_the_proposal_of_another_limit_gets_none(store: Store) -> None:
    create(store, max_concurrency=7)
    root = hosted(store, 1).replica
    id_, now = store.driver.next_id(), store.node.clock.reading()
    update = UpdateQueue(Q, {"max_concurrency": 3})
    calls = [
        Asked(CommitTransaction(id_, now, 60.0, 0, b"", [], [], [update])),
        Asked(AskForSlots(Q, NUMBER, "concurrency", 3, b"w", 0, 7)),
    ]
    for each in calls:
        root.submit(each)
    store.driver.settle()
    store.advance(0.02)
    assert [each.answers[0][1] for each in calls] == [None, None]
    assert sums(store).limit == 3


def test_a_higher_limit_and_none_let_more_be_fired(store: Store) -> None:
    create(store, max_concurrency=1)
    for key in KEYS:
        fill(store, key)
    waiting = [wait(store, key, 1) for key in KEYS for _ in range(3)]
    store.advance(1.0)
    assert sum(counted(store, "leased")) == 1
    commit(store, UpdateQueue(Q, {"max_concurrency": 4}))
    store.advance(1.5)
    assert sum(counted(store, "leased")) == 4
    commit(store, UpdateQueue(Q, {"max_concurrency": None}))
    store.advance(1.0)
    assert counted(store, "leased") == [3, 3, 3]
    store.advance(5.0)
    assert store.node.engine.get(pool_key(NUMBER, "concurrency")) is None
    assert all(each.answers for each in waiting)


def test_a_first_limit_counts_what_is_held_already(store: Store) -> None:
    create(store)
    for key in KEYS:
        fill(store, key)
    held = [each for key in KEYS for each in claim(store, key, 2)]
    commit(store, UpdateQueue(Q, {"max_concurrency": 3}))
    store.advance(1.0)
    assert sums(store).pool == -3
    waiting = [wait(store, key) for key in KEYS]
    for number in (5, 4, 3):
        acknowledge(store, [held.pop()])
        store.advance(1.0)
        assert sum(counted(store, "leased")) == number
    assert not any(each.answers for each in waiting)
    acknowledge(store, held[:2])
    store.advance(1.5)
    assert sum(counted(store, "leased")) == 3
    sums(store)


def test_a_queue_made_anew_has_all_of_its_slots(store: Store) -> None:
    create(store, max_concurrency=2)
    fill(store, Z)
    claim(store, Z)
    commit(store, DropQueue(Q))
    store.advance(3.0)
    prefix = b"slots "
    for range_id in ranges(store):
        lower = keys.record_key(range_id, prefix.decode())
        assert [*store.node.engine.iterate(lower, keys.after_prefix(lower))] == []
    assert store.node.engine.get(pool_key(NUMBER, "concurrency")) is None
    create(store, max_concurrency=2)
    fill(store, A)
    assert len(claim(store, A)) == 2


def test_halves_of_a_split_share_the_slots() -> None:
    store = Store()
    create(store, max_concurrency=7)
    for key in (A, b"p", Z):
        fill(store, key)
    held = claim(store, A, 3)
    held += claim(store, Z, 7)
    assert len(held) == 7
    for key in (b"m", b"w", b"t"):
        split(store, key)
        assert sum(counted(store, "leased")) == 7
        assert sums(store).limit == 7
    waiting = [wait(store, key) for key in (A, b"p", Z)]
    store.advance(2.0)
    assert not any(each.answers for each in waiting)
    acknowledge(store, held)
    store.advance(2.0)
    assert all(each.answers for each in waiting)
    assert sum(len(each.answers[0][0].messages) for each in waiting) <= 7
    sums(store)
    store.db.close()


def test_a_new_lease_knows_its_slots(store: Store) -> None:
    create(store, max_concurrency=3)
    fill(store, Z)
    claim(store, Z)
    for each in ranges(store):
        hosted(store, each).replica.begin_anew()
    store.advance(1.0)
    fill(store, A)
    assert claim(store, A) == []
    assert sum(counted(store, "leased")) == 3
    sums(store)


def fired_in(store: Store, seconds: float, demand: Sequence[bytes]) -> list[int]:
    """Claim one message after the other in ranges; return when they were fired, in microseconds."""
    fired: list[int] = []
    waiting = {key: wait(store, key, 1) for key in demand}
    for _ in range(int(seconds / 0.02)):
        store.advance(0.02)
        for key, call in waiting.items():
            if call.answers:
                (message,) = call.answers[0][0].messages
                fired.append(message.fired_at * 1000 >> LOGICAL_BITS)
                waiting[key] = wait(store, key, 1)
    return fired


def most_in_a_second(fired: list[int]) -> int:
    return max(sum(at <= each < at + 990_000 for each in fired) for at in fired)


@pytest.mark.parametrize("rate", [2.0, 5.0, 9.0])
def test_a_second_sees_no_more_messages_than_the_rate(store: Store, rate: float) -> None:
    create(store, max_rate=rate, ack_wait=3600.0)
    for key in KEYS:
        fill(store, key, 100)
    fired: list[int] = []
    for demand in (KEYS, [A], [Z], [A, Z], KEYS):
        before = len(fired)
        fired += fired_in(store, 6.0, demand)
        assert len(fired) - before >= 0.5 * 6.0 * rate
    assert most_in_a_second(fired) <= rate


def test_ranges_do_not_keep_from_each_other_the_slots_of_two_limits(store: Store) -> None:
    create(store, max_rate=2.0, max_concurrency=1, ack_wait=3600.0)
    for key in KEYS:
        fill(store, key, 20)
    waiting = {key: wait(store, key, 1) for key in KEYS}
    done = 0
    for _ in range(300):
        store.advance(0.1)
        for key, call in waiting.items():
            if call.answers:
                found = call.answers[0][0].messages
                acknowledge(store, found)
                done += len(found)
                waiting[key] = wait(store, key, 1)
    assert done >= 20, f"of 60 that the rate allows, {done} were fired"


def forge(store: Store, key: bytes, change: AnyCrossing) -> None:
    """Have the last range send a change that it never made."""
    last = hosted(store, ranges(store)[2])
    queues, commands = last.messaging.queues, last.replica.registry.commands
    known = commands[LeaveSlots]

    def leave(ctx: Evaluation, _: LeaveSlots) -> OwnedSlots:
        queues.departures.send(ctx, key, change)
        return OwnedSlots(0, 0, 0)

    commands[LeaveSlots] = leave
    last.replica.submit(Asked(LeaveSlots(Q, NUMBER, "concurrency", 0)))
    store.advance(0.5)
    commands[LeaveSlots] = known


def test_slots_that_cannot_be_there_are_refused(store: Store) -> None:
    create(store, max_concurrency=3)
    fill(store, Z, 1)
    claim(store, Z)
    forge(store, b"", ReturnSlots(Q, NUMBER, "concurrency", 3))
    forge(store, N, GrantSlots(Q, NUMBER, "concurrency", 3, 4))
    assert sums(store).pool == 2
    dead = [each.reason for each in store.db.dead_letters()]
    assert len(dead) == 2
    assert all("nothing was changed" in each for each in dead)


def test_slots_that_were_on_their_way_do_not_matter_in_a_restored_store() -> None:
    store = Store()
    create(store, max_concurrency=3)
    root = hosted(store, 1)
    queues, commands = root.messaging.queues, root.replica.registry.commands

    def take(ctx: Evaluation, _: LeaveSlots) -> OwnedSlots:
        for change in (
            GrantSlots(Q, NUMBER, "concurrency", 3, 1),
            ReturnSlots(Q, NUMBER, "concurrency", 1),
        ):
            packed = msgspec.msgpack.encode(change)
            queues.take_change(ctx, Deliverable(b"", packed, None, b"", b"", is_of_queue=True))
        return OwnedSlots(0, 0, 0)

    commands[LeaveSlots] = take
    call = Asked(LeaveSlots(Q, NUMBER, "concurrency", 0))
    root.replica.submit(call)
    store.advance(0.1)
    assert call.answers[0][1] is None
    assert sums(store) == SlotSums()
    store.db.close()


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_a_store_that_is_opened_again_knows_its_slots(store: Store, ends: str) -> None:
    create(store, max_concurrency=3, ack_wait=20.0)
    fill(store, Z, 2)
    assert len(claim(store, Z)) == 2
    store.restart() if ends == "closed" else store.kill()
    fill(store, A)
    waiting = [wait(store, A, 1) for _ in range(3)]
    store.advance(1.0)
    assert counted(store, "leased") == [1, 0, 2]
    store.advance(30.0)
    assert sum(bool(each.answers) for each in waiting) == 3
    sums(store)


@pytest.mark.parametrize("slots", [0, -1, 1_000_000_001])
@pytest.mark.parametrize("kind", ["return_slots", "take_slots"])
def test_a_message_with_an_impossible_number_of_slots_cannot_be_read(slots: int, kind: str) -> None:
    packed = msgspec.msgpack.encode([kind, Q, NUMBER, "concurrency", slots])
    with pytest.raises(msgspec.DecodeError):
        decode(packed)


def test_a_rate_lets_a_message_be_fired_at_once_after_a_rest(store: Store) -> None:
    create(store, max_rate=5.0)
    store.advance(2.0)
    fill(store, Z, 1)
    call = wait(store, Z)
    store.advance(0.1)
    assert call.answers
    store.advance(10.0)
    fill(store, A, 1)
    call = wait(store, A)
    store.advance(0.1)
    assert call.answers

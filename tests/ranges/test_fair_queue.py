"""The queue of calls: each client has its turn, and nothing that several threads append is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.ranges.admission import FairQueue
from postroom.ranges.calls import Call

OWNERS = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"))


class Asked(Call):
    __slots__ = ("owner", "principal")


def call(owner: object, request: object = None, principal: str = "") -> Asked:
    made = Asked(request)
    made.owner, made.principal = owner, principal
    return made


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Let threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_each_has_its_turn() -> None:
    queue = FairQueue()
    for owner, request in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("b", 2)):
        queue.append(call(owner, request))
    taken = [queue.popleft() for _ in range(len(queue))]
    order = [f"{each.owner}{each.request}" for each in taken]
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert not queue


def test_a_fair_queue_taken_at_once_has_the_order_of_one_by_one() -> None:
    """Calls that arrive meanwhile are taken, too: those of the same owner, then of others."""
    queue = FairQueue()
    for request in (1, 2, 3, 4):
        queue.append(call("a", request))
    order = []
    for taken in queue.taken():
        order.append(f"{taken.owner}{taken.request}")
        if order == ["a1", "a2"]:
            for late in (call("a", 5), call("b", 1), call("b", 2)):
                queue.append(late)
    assert order == ["a1", "a2", "a3", "b1", "a4", "b2", "a5"]
    assert not queue
    assert not queue.by_owner


@pytest.mark.usefixtures("eager_switches")
def test_a_fair_queue_keeps_all_requests_that_threads_append_at_once() -> None:
    """Threads of an embedded store waited for ever for what was not in the queue any more."""
    queue, each = FairQueue(), 5000
    begin = threading.Barrier(5)

    def append() -> None:
        begin.wait()
        for _ in range(each):
            queue.append(call(None))

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    begin.wait()
    taken = 0
    while any(thread.is_alive() for thread in threads) or queue:
        while queue:
            queue.popleft()
            taken += 1
    assert taken == 4 * each
    assert len(queue) == 0


def test_a_principal_with_many_clients_has_as_many_turns_as_one_with_one() -> None:
    queue = FairQueue()
    for request in (1, 2):
        for client in range(20):
            queue.append(call(f"many{client}", request, "many"))
    for request in (1, 2, 3):
        queue.append(call("one", request, "one"))
    queue.append(call("other", 1, "other"))
    taken = [queue.popleft() for _ in range(len(queue))]
    assert [each.principal for each in taken[:7]] == [
        "many", "one", "other", "many", "one", "many", "one",
    ]  # fmt: skip
    many = [f"{each.owner}/{each.request}" for each in taken if each.principal == "many"]
    assert many == [f"many{client}/{request}" for request in (1, 2) for client in range(20)]
    assert (len(queue), queue.by_owner, bool(queue._rounds)) == (0, {}, False)


@given(st.lists(st.tuples(st.sampled_from(["append", "appendleft", "pop", "taken"]), OWNERS)))
def test_a_queue_keeps_what_it_is_given_in_the_order_of_each_client(
    moves: list[tuple[str, tuple[str, str]]],
) -> None:
    queue, model = FairQueue(), dict[str, list[Call]]()
    for number, (what, (principal, owner)) in enumerate(moves):
        if what.startswith("append"):
            made, line = (
                call(principal + owner, number, principal),
                model.setdefault(principal + owner, []),
            )
            getattr(queue, what)(made)
            line.insert(0 if what == "appendleft" else len(line), made)
        elif len(queue):
            taken = [queue.popleft()] if what == "pop" else list(islice(queue.taken(), 3))
            for each in taken:
                assert model[str(each.owner)].pop(0) is each
        assert len(queue) == sum(map(len, model.values()))
        assert bool(queue.by_owner or queue.arrived) == bool(len(queue))
    while queue:
        assert queue.popleft()
    assert not queue._rounds

"""The rules of queues on a disk, which agree with a judge of the queues that were written there.

A queue is made up as a list of what is in it: entries in their places, holdings with their settled
messages, lists of ended messages, bodies, states, counters. It is right, or one or two things are
changed. The judge looks at this list, and asks of each message where it is. The rules
(:mod:`.queue_rules`) see raw keys only, and must complain exactly if the judge does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from random import Random  # noqa: TID251 - handed in by Hypothesis, or seeded
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.kv import keys
from postroom.messaging.queues import records
from postroom.messaging.queues.definition_requests import QueueDefinition, QueueSettings
from postroom.messaging.queues.queries import QueueCounts
from postroom.messaging.queues.records import Body, Ended, Entry, Holding, MessageState
from tests.sim.queue_rules import complaints

LAYOUT = records.QueueLayout(1, 1)
NOW = 20
LIVE = ("scheduled", "ready", "leased")
replace = msgspec.structs.replace


@dataclass
class Held:
    """A holding; ``until``: as its key says; ``over``: lists of numbers of its entries."""

    holding: Holding
    until: int
    over: list[list[int]] = field(default_factory=list)

    def left(self) -> list[Entry]:
        """Return those that are leased yet."""
        return [
            entry
            for number, entry in enumerate(self.holding.entries)
            if not any(number in numbers for numbers in self.over)
        ]


@dataclass
class Queue:
    """The content of a queue."""

    most: int | None = None
    ordered: bool = False
    counted: dict[str, int] = field(default_factory=Counter)
    placed: list[tuple[str, bytes, Entry]] = field(default_factory=list)
    """The state of each placed message, the key at which it is, and its entry."""
    held: list[Held] = field(default_factory=list)
    ended: list[tuple[str, list[Ended]]] = field(default_factory=list)
    bodies: dict[tuple[Any, ...], Body] = field(default_factory=dict)
    states: dict[tuple[Any, ...], MessageState] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    """Marks of a holding that is not there."""


# --- the judge


def is_right(queue: Queue) -> bool:
    leased = [entry for each in queue.held for entry in each.left()]
    in_parts = [(part, entry) for part, _, entry in queue.placed]
    in_parts += [("leased", entry) for entry in leased]
    return (
        _counts(queue, in_parts)
        and _each_is_in_one_place(queue, in_parts)
        and all(_says_what_it_should(queue, part, entry) for part, entry in in_parts)
        and all(key == _key(part, entry, queue) for part, key, entry in queue.placed)
        and all(map(_is_sound, queue.held))
        and not queue.lost
        and _keeps_limits(queue, leased)
    )


def _counts(queue: Queue, in_parts: list[tuple[str, Entry]]) -> bool:
    counted = queue.counted
    there = dict.fromkeys((*LIVE, "dead"), 0) | Counter(part for part, _ in in_parts)
    done = [each for part, listed in queue.ended for each in listed if part == "done"]
    there["done"] = sum(each.status == records.DONE for each in done)
    there["archived"] = sum(len(listed) for part, listed in queue.ended if part == "archived")
    ended = ("dead", "acknowledged", "cancelled", "moved")
    return (
        all(counted.get(name, 0) == number for name, number in there.items())
        and all(number >= 0 for number in counted.values())
        and counted.get("enqueued", 0) == sum(counted.get(name, 0) for name in (*LIVE, *ended))
    )


def _each_is_in_one_place(queue: Queue, in_parts: list[tuple[str, Entry]]) -> bool:
    seqs = [entry.seq for _, entry in in_parts]
    seqs += [each.seq for _, listed in queue.ended for each in listed]
    return not any(one == other for one, other in combinations(seqs, 2))


def _says_what_it_should(queue: Queue, part: str, entry: Entry) -> bool:
    body = queue.bodies.get(entry.locator)
    if body is None or body.seq != entry.seq or entry.payload not in (None, body.payload):
        return False
    state = queue.states.get(entry.locator)
    wanted = records.DEAD if part == "dead" else records.LIVE
    return state is None or (state.status, state.seq) == (wanted, entry.seq)


def _is_sound(held: Held) -> bool:
    over = [number for numbers in held.over for number in numbers]
    return (
        held.until == held.holding.until
        and bool(held.left())
        and all(over.count(number) == 1 for number in over)
        and all(number < len(held.holding.entries) for number in over)
    )


def _keeps_limits(queue: Queue, leased: list[Entry]) -> bool:
    if queue.most is not None and len(leased) > queue.most:
        return False
    for each in queue.held:
        if any(each.holding.since < max(one.due, one.not_before) for one in each.left()):
            return False
    same = any(one.group and one.group == other.group for one, other in combinations(leased, 2))
    return not (queue.ordered and same)


# --- queues


def _key(part: str, entry: Entry, queue: Queue) -> bytes:
    if part == "scheduled":
        return LAYOUT.scheduled_key(entry, ordered=queue.ordered)
    if part == "ready":
        return LAYOUT.ready_key(entry, ordered=queue.ordered)
    return LAYOUT.dead_key(NOW, entry.seq)


def drawn_queue(chance: Random) -> Queue:
    """Return a random sound queue."""
    queue = Queue(ordered=chance.random() < 0.4)
    leased: list[Entry] = []
    for number in range(chance.randint(0, 6)):
        part = chance.choice([*LIVE, "leased", "leased", "dead", "done", "archived", "purged"])
        due = chance.randint(1, 9)
        entry = Entry(
            b"%d" % number, "", b"id", keys.u64(number + 1) + bytes(4), due, due,
            group=chance.choice(["", "a", "b"]), not_before=chance.choice([0, 9]),
            payload=chance.choice([None, b"p"]),
        )  # fmt: skip
        if part == "leased" and queue.ordered and entry.group in {one.group for one in leased}:
            part = "ready"
        queue.bodies[entry.locator] = Body(entry.seq, b"p", None, due, 0, entry.group)
        if part == "leased":
            leased.append(entry)
        else:
            _put(chance, queue, part, entry)
        _count(queue, part)
    while leased:
        taken = [leased.pop() for _ in range(min(len(leased), chance.randint(1, 2)))]
        _hold(chance, queue, taken)
    if chance.random() < 0.3:
        queue.most = queue.counted["leased"] + chance.randint(0, 1)
    return queue


def _put(chance: Random, queue: Queue, part: str, entry: Entry) -> None:
    if part in {"done", "archived"}:
        queue.ended.append((part, [Ended(entry.key, "", b"id", entry.seq)]))
    elif part != "purged":
        queue.placed.append((part, _key(part, entry, queue), entry))
        if part == "dead" or chance.random() < 0.3:
            status = records.DEAD if part == "dead" else records.LIVE
            queue.states[entry.locator] = MessageState(entry.seq, status, 1, entry.due)


def _count(queue: Queue, part: str) -> None:
    queue.counted["enqueued"] += 1
    if part in {"done", "archived", "purged"}:
        queue.counted["acknowledged"] += 1
    if part != "purged":
        queue.counted[part] += 1


def _hold(chance: Random, queue: Queue, taken: list[Entry]) -> None:
    held = Held(Holding(b"c", chance.randint(9, 12), NOW, b"", 1, taken), NOW)
    if chance.random() < 0.4:  # one more was held with them, and is done
        number = len(queue.held) + 50
        over = Entry(b"over", "", b"id", keys.u64(number) + bytes(4), 1, 1)
        taken.append(over)
        held.over.append([len(taken) - 1])
        _put(chance, queue, "done", over)
        _count(queue, "done")
    queue.held.append(held)


# --- faults of queues


def told_wrongly(chance: Random, queue: Queue) -> None:
    chance.choice([_counters, _entries, _entries, _says, _says, _holdings, _holdings, _limits])(
        chance, queue
    )


def _counters(chance: Random, queue: Queue) -> None:
    name = chance.choice([*queue.counted, "ready", "dead", "archived", "moved"])
    queue.counted[name] += chance.choice([-1, 1])
    if chance.random() < 0.5:  # and it is made to fit
        other = chance.choice(["enqueued", "cancelled", *LIVE])
        queue.counted[other] += chance.choice([-1, 1])


def _entries(chance: Random, queue: Queue) -> None:
    if queue.ended and chance.random() < 0.3:
        listed = chance.choice(queue.ended)[1]
        match chance.randrange(3):
            case 0:
                listed.append(listed[-1])
            case 1:
                listed[-1] = replace(listed[-1], status=records.CANCELLED)
            case _:
                queue.ended.pop()
        return
    if not queue.placed:
        return
    at = chance.randrange(len(queue.placed))
    part, key, entry = queue.placed[at]
    match chance.randrange(5):
        case 0:
            del queue.placed[at]
        case 1:
            part = chance.choice(["scheduled", "ready", "dead"])
            queue.placed.append((part, _key(part, entry, queue), entry))
            queue.placed = list({each[1]: each for each in queue.placed}.values())
        case 2:
            queue.placed[at] = part, key, replace(entry, seq=keys.u64(99) + bytes(4))
        case 3:
            queue.placed[at] = part, key, replace(entry, due=entry.due + 1)
        case _:
            queue.placed[at] = part, key, replace(entry, group="other")


def _says(chance: Random, queue: Queue) -> None:
    if not queue.bodies:
        return
    locator = chance.choice([*queue.bodies])
    body = queue.bodies[locator]
    match chance.randrange(4):
        case 0:
            del queue.bodies[locator]
        case 1:
            queue.bodies[locator] = replace(body, seq=keys.u64(98) + bytes(4))
        case 2:
            queue.bodies[locator] = replace(body, payload=b"other")
        case _:
            status = chance.choice([records.LIVE, records.DEAD, records.DONE, records.CANCELLED])
            seq = chance.choice([body.seq, body.seq, keys.u64(97) + bytes(4)])
            queue.states[locator] = MessageState(seq, status, 1, 1)


def _holdings(chance: Random, queue: Queue) -> None:
    if not queue.held:
        queue.lost.append(0)
        return
    held = chance.choice(queue.held)
    entries = held.holding.entries
    match chance.randrange(7):
        case 0 if held.over:
            held.over[0] *= 2
        case 1:
            held.until += 1
        case 2:
            held.over.append([chance.randrange(len(entries) + 1)])
        case 3:
            number = chance.randrange(len(entries))
            held.over.append([number, number])
        case 4:
            entries.append(chance.choice(entries))
        case 5:
            held.holding = replace(held.holding, since=chance.randint(5, 10))
        case _:
            queue.held.remove(held)


def _limits(chance: Random, queue: Queue) -> None:
    queue.ordered = chance.random() < 0.7
    queue.placed = [(part, _key(part, entry, queue), entry) for part, _, entry in queue.placed]
    queue.most = chance.choice([None, 1, 2])


# --- the rules' view


def raw(queue: Queue) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Return the keys of the queue, and those of its messages."""
    encode = msgspec.msgpack.encode
    order = "group" if queue.ordered else "none"
    chosen = QueueSettings(max_concurrency=queue.most, order=order)
    stored = {
        keys.queue_prefix(1, 0) + b"q": encode(QueueDefinition("q", 1, 1, chosen)),
        LAYOUT.counters: encode(QueueCounts(**queue.counted)),
    }
    stored |= {key: encode(entry) for _, key, entry in queue.placed}
    for number, held in enumerate(queue.held):
        key = LAYOUT.holding_key(held.until, b"holding %04d" % number)
        stored[key] = encode(held.holding)
        for at, numbers in enumerate(held.over):
            stored[records.mark_key(key, keys.u64(at))] = encode(numbers)
    for at, number in enumerate(queue.lost):
        key = LAYOUT.holding_key(NOW, b"holding lost")
        stored[records.mark_key(key, keys.u64(at))] = encode([number])
    for at, (part, listed) in enumerate(queue.ended):
        stored[getattr(LAYOUT, part) + keys.u64(at) + bytes(12)] = encode(listed)
    said = {LAYOUT.body_key(*locator): encode(body) for locator, body in queue.bodies.items()}
    said |= {LAYOUT.state_key(*locator): encode(state) for locator, state in queue.states.items()}
    return dict(sorted(stored.items())), said


def judged(chance: Random) -> bool:
    """Judge one queue; return whether it was right."""
    queue = drawn_queue(chance)
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        told_wrongly(chance, queue)
    right, said = is_right(queue), list(complaints(*raw(queue)))
    assert bool(said) != right, f"{said}\n{queue}"
    return right


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_the_rules_of_queues_agree_with_the_judge(chance: Random) -> None:
    judged(chance)


@pytest.mark.parametrize("seed", range(2))
def test_the_rules_of_queues_agree_with_the_judge_on_many(seed: int) -> None:
    """The same without Hypothesis, which is slower; half of these queues are wrong."""
    right = sum(judged(Random(f"queue {seed} {number}")) for number in range(1500))
    assert 500 < right < 1200

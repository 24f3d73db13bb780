"""The sets of the ready cache follow from its groups, whatever happens to it."""

from __future__ import annotations

from bisect import insort
from copy import deepcopy
from random import Random  # noqa: TID251 - made with a seed

import pytest

from postroom.kv import keys
from postroom.messaging.queues.ready import ReadyCache
from postroom.messaging.queues.records import Entry
from tests.messaging.queues.cache_rules import check_cache


def test_a_group_whose_rest_was_cancelled_is_not_forgotten_twice() -> None:
    cache = ReadyCache(1, ordered=False, on_left_out=lambda *_: None)
    entry = Entry(b"k", "", b"1", b"1", 1, 1, group="a")
    cache.begin_round()
    cache.read("a", [(b"a1", entry)], b"a1", has_more=True)
    assert cache.take(None, None) == (b"a1", entry)
    cache.read("a", [], b"", has_more=False)  # the others were cancelled meanwhile
    check_cache(cache)
    assert cache.has_room_for("b")
    cache.read("b", [], b"", has_more=True)
    assert cache.has_room_for("c")
    check_cache(cache)


def test_a_group_whose_entries_of_one_kind_were_taken_as_a_run_goes_on_with_other_kinds() -> None:
    """Others were stored behind the run, so the group stayed, with an empty lane."""
    cache = ReadyCache(3, ordered=False, on_left_out=lambda *_: None)
    placed = [
        (b"a%d" % number, Entry(b"k", kind, b"%d" % number, b"%d" % number, 1, 1, group="a"))
        for number, kind in enumerate(["x", "x", "y", "z"])
    ]
    cache.begin_round()
    cache.read("a", placed[:2], b"a1", has_more=True)
    run = cache.run(10)
    assert [key for key, _, _ in run] == [b"a0", b"a1"]
    cache.take_run(run)
    check_cache(cache)
    cache.read("a", placed[2:], b"a3", has_more=False)
    assert cache.take(None, None) == placed[2]
    assert cache.take(None, None) == placed[3]
    check_cache(cache)


class Stored:
    """The ready messages that a queue has stored, and a cache of them."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.size = chance.randint(1, 5)
        self.cache = ReadyCache(
            self.size, ordered=chance.random() < 0.5, on_left_out=lambda *_: None
        )
        self.cache.nothing_is_stored()
        self.stored: list[tuple[bytes, Entry]] = []
        self.number = 0
        self.groups = [f"g{each}" for each in range(chance.randint(1, 8))] + [""]

    @staticmethod
    def prefix(group: str) -> bytes:
        return keys.escape(group.encode())

    def enqueue(self) -> None:
        self.number += 1
        group = self.chance.choice(self.groups)
        seq = self.number.to_bytes(12, "big")
        rank = self.chance.randint(0, 9).to_bytes(2, "big")
        entry = Entry(b"k", "", seq, seq, 1, 1, group=group)
        insort(self.stored, (self.prefix(group) + rank + seq, entry), key=lambda each: each[0])
        self.cache.offer(self.prefix(group) + rank + seq, entry)

    def enqueue_run(self) -> None:
        group, placed = self.chance.choice(self.groups), []
        for _ in range(self.chance.randint(1, 4)):
            self.number += 1
            seq = self.number.to_bytes(12, "big")
            kind = self.chance.choice(("", "", "kind"))
            rank = self.chance.choice((5, 5, 7)).to_bytes(2, "big")
            entry = Entry(b"k", kind, seq, seq, 1, 1, group=group)
            placed.append((self.prefix(group) + rank + seq, entry))
            insort(self.stored, placed[-1], key=lambda each: each[0])
        self.cache.offer_run(placed)

    def cancel(self) -> None:
        if self.stored:
            key, _ = self.stored.pop(self.chance.randrange(len(self.stored)))
            self.cache.discard(key)

    def take(self) -> None:
        placed = self.cache.take(None, lambda name, _: self.chance.random() < 0.8)
        if placed is not None:
            self.stored.remove(placed)

    def take_run(self) -> None:
        run = self.cache.run(self.chance.randint(1, 4))
        other = deepcopy(self.cache)
        assert [other.take(None, None) for _ in run] == [(key, entry) for key, _, entry in run]
        if run:
            taken = run[: self.chance.randint(1, len(run))]
            self.cache.take_run(taken)
            for key, _, entry in taken:
                self.stored.remove((key, entry))

    def free(self) -> None:
        self.cache.free(self.chance.choice(self.groups))

    def forget(self) -> None:
        self.cache.forget()

    def make_room(self) -> None:
        self.cache.make_room()

    def read_group(self, name: str) -> None:
        known = self.cache.known_up_to(name)
        behind = [
            each for each in self.stored if each[1].group == name and (not known or each[0] > known)
        ]
        up_to = behind[0][0] if behind else b""
        self.cache.read(name, behind[:1], up_to, has_more=len(behind) > 1)

    def drain(self) -> None:
        """Take everything that is stored, as consumers of a queue do that fires on and on."""
        self.cache.free_all()
        for _ in range(20 * len(self.stored) + 100):
            self.read()
            placed = self.cache.take(None, None)
            if placed is not None:
                self.stored.remove(placed)
            check_cache(self.cache)
            if not self.stored and self.cache.is_complete:
                return
        raise AssertionError(f"{len(self.stored)} are never found")

    def read(self) -> None:
        """Read on as firing does, one entry of a group at a time."""
        cache = self.cache
        if cache.is_complete or (len(cache) > cache.size // 2 and not cache.make_room()):
            return
        if cache.knows_what_goes:
            for name in cache.groups_with_more(cache.size - len(cache)):
                self.read_group(name)
            return
        if not cache.cursor:
            cache.cursor = b"\x00"
            cache.begin_round()
        first = next((each for each in self.stored if each[0] >= cache.cursor), None)
        if first is None:
            cache.end_round()
            return
        name = first[1].group
        if not cache.passes(name):
            if not cache.has_room_for(name):
                return
            if cache.known_up_to(name) != b"" and not cache.is_fed(name):
                self.read_group(name)
        cache.cursor = keys.after_prefix(self.prefix(name))


@pytest.mark.parametrize("seed", range(40))
def test_the_sets_of_a_cache_follow_from_its_groups(seed: int) -> None:
    stored = Stored(Random(seed))
    acts = [
        stored.enqueue, stored.enqueue, stored.enqueue, stored.cancel, stored.cancel, stored.take,
        stored.take, stored.enqueue_run, stored.take_run, stored.take_run, stored.read,
        stored.read, stored.free, stored.make_room,
    ]  # fmt: skip
    for _ in range(400):
        act = stored.chance.choice(acts) if stored.chance.random() < 0.99 else stored.forget
        act()
        check_cache(stored.cache)
    stored.drain()
    assert stored.cache.is_complete

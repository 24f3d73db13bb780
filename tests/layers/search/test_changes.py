"""The rules of an index, in a world of dictionaries: deferred updates come in any order.

Transactions change documents one after the other. Their deferred updates are carried out whenever a
random number says so, those of different transactions in any order, and a bulk build runs
meanwhile.
"""

from __future__ import annotations

from collections import Counter
from random import Random  # noqa: TID251 (seeded)

import pytest

from postroom.layers.search import changes
from postroom.layers.search.changes import DocumentChange, Past
from postroom.layers.search.layout import BUILT_GENERATION, Posting, Record

WORDS = ["red", "wine", "white", "cellar"]
KEYS = [b"1", b"2", b"3"]


class World:
    """A store and its outbox.

    Attributes:
        late: what was deferred and waits, of each transaction in its order.
    """

    def __init__(self, randomness: Random, *, building: bool) -> None:
        self.random = randomness
        self.building = building
        self.clock = 1
        self.documents: dict[bytes, Counter[str]] = {}
        self.live: dict[bytes, Record] = {}
        self.built: dict[bytes, Record] = {}
        self.postings: dict[Posting, int] = {}
        self.sums = [0, 0]
        self.late: list[list[tuple[Posting, int]]] = []
        self.to_load: list[tuple[bytes, Record]] = []

    def past(self, key: bytes) -> Past:
        return Past(self.live.get(key), None if self.building else self.built.get(key))

    def change(self) -> None:
        """Change one document in a transaction, perhaps several times."""
        key = self.random.choice(KEYS)
        moment = self.clock = self.clock + 1
        deferred: list[tuple[Posting, int]] = []
        for _ in range(self.random.choice([1, 1, 1, 3])):
            if self.random.random() < 0.3:
                self.documents.pop(key, None)
                words = None
            else:
                words = Counter(self.random.choices(WORDS, k=self.random.randrange(5)))
                self.documents[key] = words
            past = self.past(key)
            change = changes.change(key, past, words, moment, building=self.building)
            deferred += self.write(key, past, change)
        self.clock += 1  # it commits
        self.late.append(deferred)

    def write(self, key: bytes, past: Past, change: DocumentChange) -> list[tuple[Posting, int]]:
        if change.record is None:
            self.live.pop(key, None)
        else:
            self.live[key] = change.record
        if past.built is not None:
            del self.built[key]
        self.sums[0] += change.documents
        self.sums[1] += change.words
        return [(each, 0) for each in change.deletes] + list(change.puts.items())

    def carry_out_some(self) -> None:
        while self.late and self.random.random() < 0.6:
            some = self.random.choice(self.late)
            if some:
                self.carry_out(*some.pop(0))
            else:
                self.late.remove(some)

    def carry_out(self, posting: Posting, frequency: int) -> None:
        if frequency:
            self.postings[posting] = frequency
        else:
            self.postings.pop(posting, None)

    def begin_load(self) -> None:
        """Begin to load all documents as of now."""
        records = [(key, changes.built(words)) for key, words in self.documents.items()]
        self.to_load = [*records, *records]  # tasks run twice
        self.random.shuffle(self.to_load)

    def load_one(self) -> None:
        key, record = self.to_load.pop()
        self.built[key] = record
        for word, (frequency, born) in record.words.items():
            assert born == BUILT_GENERATION
            self.postings[Posting(word, key, born)] = frequency

    def loaded(self) -> None:
        self.building = False
        self.sums[0] += len(self.built)
        self.sums[1] += sum(record.length for record in self.built.values())

    def settle(self, key: bytes) -> None:
        past = self.past(key)
        if past.live is None or (past.built is None and not past.live.deleted):
            return
        self.late.append(self.write(key, past, changes.settle(key, past)))

    # --- checks

    def check_found(self) -> None:
        """Check that each posting with a record finds its word, at any moment."""
        for posting in self.postings:
            record = self.past(posting.key).record
            if not self.building and record is not None and posting.word in record.words:
                assert posting.word in self.documents[posting.key]

    def check_records(self) -> None:
        for key in KEYS:
            record = self.past(key).record
            found = None if record is None else {w: f for w, (f, _) in record.words.items()}
            document = self.documents.get(key)
            assert found == (None if document is None else dict(document))

    def check_at_rest(self) -> None:
        """Check that all updates were carried out."""
        assert not self.built.keys() & self.live.keys()
        assert not any(record.deleted for record in self.live.values())
        for key in KEYS:
            for posting, frequency in self.past(key).postings(key).items():
                assert self.postings[posting] == frequency
        length = sum(sum(words.values()) for words in self.documents.values())
        assert self.sums == [len(self.documents), length]


@pytest.mark.parametrize("part", range(4))
def test_postings_are_complete_in_any_order_of_deferred_updates(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        world = World(Random(seed), building=False)
        for _ in range(40):
            world.change()
            world.carry_out_some()
            world.check_found()
            world.check_records()
        finish(world)


@pytest.mark.parametrize("part", range(4))
def test_a_build_loses_nothing_that_changes_meanwhile(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        randomness = Random(seed)
        world = World(randomness, building=True)
        for key in KEYS:
            if randomness.random() < 0.7:
                world.documents[key] = Counter(randomness.choices(WORDS, k=3))
        for _ in range(randomness.randrange(4)):  # after the definition, before the timestamp
            world.change()
        world.begin_load()
        while world.to_load:
            step(world)
            world.load_one()
        world.loaded()
        left = list(world.live)
        randomness.shuffle(left)
        while left:
            step(world)
            world.check_records()
            world.settle(left.pop())
        step(world)
        finish(world)


def step(world: World) -> None:
    if world.random.random() < 0.5:
        world.change()
    world.carry_out_some()
    world.check_found()


def finish(world: World) -> None:
    while world.late:
        world.carry_out_some()
    world.check_records()
    world.check_at_rest()


def test_unchanged_words_are_not_written_again() -> None:
    past = Past(Record(7, 3, {"wine": (2, 7), "red": (1, 5)}))
    change = changes.change(b"k", past, {"wine": 2, "white": 1}, 9, building=False)
    assert change.record == Record(9, 3, {"wine": (2, 7), "white": (1, 9)})
    assert change.puts == {Posting("white", b"k", 9): 1}
    assert change.deletes == [Posting("red", b"k", 5)]
    assert (change.documents, change.words) == (0, 0)

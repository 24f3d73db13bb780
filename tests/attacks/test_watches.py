"""Watches of others: what a commit costs follows those that are hit, however many there are."""

from __future__ import annotations

import pytest

from postroom.ranges import feed
from postroom.ranges.requests import Put, ScanChanges
from tests.attacks.hostile import Attacker, Target
from tests.work import lines_of

WATCHES = 4000


def watch(target: Target, client: Attacker, count: int) -> None:
    """Wait for changes of so many keys that nobody writes."""
    at = target.store.node.root.replica.last_commit
    for first in range(0, count, 1000):
        keys = [b"watched/%05d" % number for number in range(first, first + 1000)]
        client.ask(*[ScanChanges(key, key + b"\x00", at) for key in keys])
        target.settle()


def cost_of_a_commit(client: Attacker, number: int) -> int:
    request = client.commit(Put(b"other/%d" % number, b"v"))
    return lines_of(client.result, request)


def test_a_commit_does_not_pay_for_watches_of_other_keys(target: Target) -> None:
    """With 9,900 of them it took a hundred times as long."""
    polite = Attacker(target, b"polite", "ipv4:10.0.0.9:1")
    for number in range(5):
        polite.result(polite.commit(Put(b"other", b"%d" % number)))
    alone = min(cost_of_a_commit(polite, number) for number in range(5))
    attackers = [Attacker(target, b"w%d" % number) for number in range(4)]
    for each in attackers:
        watch(target, each, WATCHES // len(attackers))
    assert target.store.node.root.replica.sizes()["parked"] >= WATCHES
    beside = min(cost_of_a_commit(polite, number) for number in range(20))
    assert beside <= 1.2 * alone + 200
    target.check_alive()


def test_a_large_commit_wakes_the_watches_that_it_hits_and_no_others(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes more than is kept of the changes: those that are hit read the versions."""
    monkeypatch.setattr(feed, "CHANGES_MAX", 100)
    attacker, hit = Attacker(target, b"w"), Attacker(target, b"hit", "ipv4:10.0.0.9:1")
    watch(target, attacker, 1000)
    at = target.store.node.root.replica.last_commit
    wide = [ScanChanges(b"none/%03d" % n, b"none/%03d~" % n, at) for n in range(200)]
    attacker.ask(*wide)
    spans = [(b"large/050", b"large/050\x00"), (b"large/0", b"large/1"), (b"a", None)]
    numbers = [hit.ask(ScanChanges(start, end, at)) for start, end in spans]
    target.settle()
    parked = target.store.node.root.replica.sizes()["parked"]
    hit.ask(hit.commit(*[Put(b"large/%03d" % n, b"v") for n in range(200)]))
    target.settle()
    hit.read()
    assert [len(hit.answers[number][0]) for number in numbers] == [1, 100, 200]
    assert attacker.read() == 0
    assert target.store.node.root.replica.sizes()["parked"] == parked - len(spans)
    hit.result(hit.commit(Put(b"watched/00007", b"v")))
    target.settle()
    attacker.read()
    answers = attacker.answers.values()
    assert [len(changes) for changes, _ in answers] == [1], "it goes on from there"
    target.check_alive()

"""Watches of others: what a commit costs follows those that are hit, however many there are."""

from __future__ import annotations

from postroom.ranges.requests import Put, ScanChanges
from tests.attacks.hostile import Attacker, Target
from tests.work import lines_of

WATCHES = 4000


def watch(target: Target, client: Attacker, count: int) -> None:
    """Wait for changes of so many keys that nobody writes."""
    at = target.store.node.replica.last_commit
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
    assert target.store.node.replica.sizes()["parked"] >= WATCHES
    beside = min(cost_of_a_commit(polite, number) for number in range(20))
    assert beside <= 1.2 * alone + 200
    target.check_alive()

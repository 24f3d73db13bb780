"""Made-up ids that are certainly new are not looked for, and one that is there is refused."""

from __future__ import annotations

from itertools import count
from random import Random  # noqa: TID251 - made with a seed
from typing import Any

import pytest

from postroom.errors import Invalid
from postroom.kv.cache import Cache
from postroom.kv.clock import from_milliseconds
from postroom.messaging.queues.definition_requests import CreateQueue, QueueSettings
from postroom.messaging.queues.requests import EnqueueInQueue
from postroom.ranges.requests import CommitTransaction
from tests.messaging.one_range import EPOCH_MILLISECONDS, OneRange
from tests.messaging.queues.harness import Q, Queues

FAMILY = b"0123456789abcdef"


def message(
    number: int, *, is_unique: bool = True, key: int | None = None, group: str = ""
) -> EnqueueInQueue:
    id_ = FAMILY + b"%03d" % number
    at = id_ if key is None else FAMILY + b"%03d" % key
    return EnqueueInQueue(Q, at, "", id_, b"", group=group, is_unique=is_unique)


def test_ids_that_rise_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queues, looked_for, get_once = Queues(), [], Cache.get_once

    def counted(cache: Cache, key: bytes) -> bytes | None:
        looked_for.append(key)
        return get_once(cache, key)

    monkeypatch.setattr(Cache, "get_once", counted)
    queues.create()
    for number in range(20):
        queues.commit(message(number))
    queues.commit(*map(message, range(20, 400)))
    assert len(looked_for) == 2, "the message, and the pointer to it"
    assert queues.counts()["enqueued"] == 400


@pytest.mark.parametrize("seed", range(20))
def test_an_id_is_refused_exactly_if_it_is_there(seed: int) -> None:
    chance, queues = Random(seed), Queues()
    queues.create()
    there: set[int] = set()
    for step in range(60):
        act, number = chance.randrange(10), step + chance.randrange(8)
        if act == 0:
            queues.store.restart()
        elif act == 1:
            queues.commit(message(number, is_unique=False))
            there.add(number)
        elif act == 2:
            other = number + 500
            queues.commit(message(other, is_unique=False, key=number))
        elif act == 3:
            queues.commit(message(number, is_unique=False, group=chance.choice("gh")))
            there.add(number)
        else:
            numbers = sorted({number, *chance.sample(range(step + 8), chance.randrange(3))})
            chance.shuffle(numbers)
            if there.isdisjoint(numbers):
                queues.commit(*map(message, numbers))
                there.update(numbers)
            else:
                with pytest.raises(Invalid, match="no made-up id"):
                    queues.commit(*map(message, numbers))


def test_an_id_that_another_leaseholder_has_enqueued_is_refused() -> None:
    one_range, numbers = OneRange(), count(1)

    def commit(*writes: Any) -> Exception | None:
        id_ = b"a client" + next(numbers).to_bytes(8, "big")
        now = from_milliseconds(EPOCH_MILLISECONDS)
        asked = one_range.ask(CommitTransaction(id_, now, 60.0, 0, b"k", [], [], list(writes)))
        error: Exception | None = asked.answers[0][1]
        return error

    commit(CreateQueue(Q, QueueSettings()))
    assert [commit(message(number)) for number in range(3)] == [None] * 3
    layout = one_range.messaging.queues.in_use(Q).layout  # type: ignore[union-attr]
    other = message(50)
    one_range.engine.write({layout.body_key(other.key, "", other.id): b""}, sync=False)
    one_range.lead()
    assert [commit(message(number)) for number in (48, 49)] == [None] * 2
    assert type(commit(other)) is Invalid

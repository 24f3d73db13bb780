"""A message lies at its home: its group, else its key, else its id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from postroom.kv import keys
from postroom.messaging.queues.requests import Attempt, KeepResult
from tests.messaging.queues.harness import Q, Queues, attempt


def homes(queues: Queues, suffix: bytes = keys.QUEUE_BODY) -> list[bytes]:
    """Return the user keys that have records of messages with a suffix."""
    found = []
    for key in queues.stored():
        if key[:1] == keys.DATA:
            end = key.index(keys.END_OF_KEY, 1) + 2
            if key[end : end + 1] == suffix:
                found.append(keys.user_key(key))
    return found


@pytest.mark.parametrize(
    ("options", "home", "key", "points"),
    [
        ({"id": b"i"}, b"i", b"i", False),
        ({"id": b"i", "key": b"k"}, b"k", b"k", True),
        ({"id": b"i", "group": "g"}, b"g", b"i", True),
        ({"id": b"i", "key": b"k", "group": "g"}, b"g", b"k", True),
        ({"id": b"i", "key": b"g", "group": "g"}, b"g", b"g", True),
        ({"id": b"g", "key": b"k", "group": "g"}, b"g", b"k", False),
        ({"id": b"i", "key": b"", "group": "g"}, b"g", b"", True),
        ({"id": b"i", "group": "\x00" * 256}, b"\x00" * 256, b"i", True),
    ],
)
def test_a_message_lies_at_its_home_and_keeps_its_key(
    options: dict[str, object], home: bytes, key: bytes, points: bool
) -> None:
    queues, id_ = Queues(), options["id"]
    assert isinstance(id_, bytes)
    queues.create(purge_after=0)
    queues.enqueue(b"p", **options)
    assert homes(queues) == [home]
    assert homes(queues, keys.QUEUE_POINTER) == ([id_] if points else [])
    [listed], [found] = queues.list("ready"), queues.get(id_)
    [then] = queues.list(timestamp=queues.now())
    [claimed] = queues.claim()
    told = {(each.key, each.locator[0]) for each in (listed, found, then, claimed)}
    assert told == {(key, home)}
    assert queues.reject(claimed, dead=True) == 1
    [dead] = queues.list("dead")
    assert (dead.key, dead.locator[0]) == (key, home)
    assert queues.replay(id_) == 1
    assert queues.acknowledge(*queues.claim()) == 1
    queues.pass_time(2 * 86_400)
    assert not any(map(homes, [queues] * 3, (keys.QUEUE_BODY, keys.QUEUE_STATE, b"\x08")))


@pytest.mark.parametrize(
    "act",
    [
        lambda queues, message: queues.acknowledge(message),
        lambda queues, message: queues.reject(message, delay=5.0),
        lambda queues, message: queues.extend(message, 60.0),
        lambda queues, message: queues.commit(KeepResult(Q, attempt(message), 60.0, b"r"))[0] or 1,
    ],
)
def test_an_attempt_is_named_by_the_home(act: Callable[..., int]) -> None:
    queues = Queues()
    queues.create()
    queues.enqueue(b"p", id=b"i", key=b"k", group="g")
    [message] = queues.claim()
    assert attempt(message) == Attempt(b"g", "", b"i", 0)
    assert act(queues, message) >= 1


def test_a_message_that_gets_another_group_moves_to_another_home() -> None:
    queues = Queues()
    queues.create(on_duplicate="replace")
    queues.enqueue(b"old", id=b"i", key=b"k")
    queues.reschedule(b"i", due=queues.now() + (3600_000 << 16))
    assert (homes(queues), homes(queues, keys.QUEUE_STATE)) == ([b"k"], [b"k"])
    for group, home in (("g", b"g"), ("i", b"i"), ("h", b"h"), ("", b"k")):
        assert queues.enqueue(group.encode(), id=b"i", key=b"other", group=group) == ["replaced"]
        assert (homes(queues), homes(queues, keys.QUEUE_STATE)) == ([home], [])
        assert homes(queues, keys.QUEUE_POINTER) == ([] if home == b"i" else [b"i"])
        [found] = queues.get(b"i")
        assert (found.key, found.group, found.payload) == (b"k", group, group.encode())
    [message] = queues.claim()
    assert queues.acknowledge(message) == 1

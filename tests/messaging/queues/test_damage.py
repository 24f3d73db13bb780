"""A record that cannot be read stops the queue that it is of, and no other one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import msgspec
import pytest

from postroom.client.queues.messages import info_of
from postroom.errors import Invalid, StoreCorrupted
from postroom.kv import keys
from postroom.kv.engine import BlockDamaged
from postroom.messaging.queues import advance, records
from postroom.messaging.queues.claim_requests import ClaimSelection
from postroom.messaging.queues.definition_requests import (
    CreateQueue,
    DropQueue,
    QueueSettings,
    SetSchedule,
    ToldQueue,
)
from postroom.messaging.queues.manager import Manager
from postroom.messaging.queues.queries import ReadQueues
from postroom.messaging.queues.records import PAYLOAD_KEPT_BYTES
from postroom.messaging.queues.requests import WhenDone
from tests.messaging.queues.harness import ANY, Q, Queues

RANGE_ID = 1
NONE = ClaimSelection(kinds=("none",))
TORN = b"\x93\x01"
"""Three values, of which two are missing."""


def definition_key(name: str) -> bytes:
    return keys.queue_definitions_prefix(RANGE_ID) + name.encode()


class Damaged(Queues):
    """Three queues that have some of everything; what is stored of one is torn."""

    def __init__(self) -> None:
        super().__init__()
        for name in (Q, "other", "third"):
            self.create(name, ack_wait=1000.0, purge_after=50.0)
            self.commit(SetSchedule(name, "tick", "0 0 1 1 *", "UTC", "", b"tick"))
            large = bytes(PAYLOAD_KEPT_BYTES + 1)
            self.enqueue(b"done", b"1", b"2", name=name, group="g")
            self.acknowledge(*self.claim(name=name), name=name)
            first, _ = self.claim(2, name=name)
            self.acknowledge(first, name=name)
            self.enqueue(b"later", name=name, after=30.0, key=b"k")
            self.enqueue(large, name=name, id=b"large")

    def keys_below(self, prefix: bytes) -> list[bytes]:
        return [key for key, _ in self.store.engine.iterate(prefix, keys.after_prefix(prefix))]

    def tear(self, *torn: bytes) -> None:
        self.store.engine.inner.write(dict.fromkeys(torn, TORN), sync=True)

    def told(self) -> dict[str, str]:
        """Return the damage of each queue; empty: it is sound."""
        return {
            each.name: each.damaged if isinstance(each, ToldQueue) else ""
            for each in self.send(ReadQueues())
        }

    def check_that_others_go_on(self) -> None:
        for name in ("other", "third"):
            self.enqueue(b"new", name=name)
            assert b"new" in self.payloads(name=name)

    def left_of(self, number: int) -> list[bytes]:
        """Return what is stored under the number of a dropped queue."""
        queue = keys.u32(number)
        found = []
        for key in self.stored():
            if key[:1] == keys.RANGE:
                found += [key] if key[10:14] == queue else []
            else:
                end = key.index(keys.END_OF_KEY, 1) + 3
                found += [key] if key[end : end + 4] == queue else []
        return found


Where = Callable[[Manager], bytes]

AT_RESTART: dict[str, Where] = {
    "counters": lambda manager: manager.layout.counters,
    "holding": lambda manager: manager.layout.leased,
    "tick": lambda manager: manager.layout.ticks,
    "definition": lambda manager: definition_key(manager.name),
}


@pytest.fixture
def queues() -> Iterator[Damaged]:
    made = Damaged()
    yield made
    made.store.node.close()


def tear_first(queues: Damaged, prefix: bytes) -> None:
    queues.tear(queues.keys_below(prefix)[0])


@pytest.mark.parametrize("record", AT_RESTART)
def test_a_queue_damaged_at_a_new_lease_is_set_aside_and_can_be_dropped(
    queues: Damaged, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    number = queues.manager().definition.number
    tear_first(queues, AT_RESTART[record](queues.manager()))
    with caplog.at_level(logging.ERROR, "postroom.messaging.queues"):
        queues.store.restart()
        queues.check_that_others_go_on()
        for ask in (
            lambda: queues.enqueue(b"1"),
            queues.claim,
            queues.stats,
            queues.list,
            queues.update,
        ):
            with pytest.raises(StoreCorrupted, match=r"'emails' is damaged: .*nothing was changed"):
                ask()
        with pytest.raises(StoreCorrupted, match="restore a backup, or drop"):
            queues.create(ack_wait=1000.0, purge_after=50.0)
    lines = [each.getMessage() for each in caplog.records if "'emails'" in each.getMessage()]
    assert len(lines) == 1
    told = queues.told()
    assert told.pop(Q).startswith("the queue 'emails' is damaged")
    assert told == {"other": "", "third": ""}
    status = next(
        each for each in queues.store.node.root.services.status() if each.name == "queues"
    )
    assert status.failures == 1
    assert "'emails' is damaged" in status.trouble
    queues.drop()
    assert queues.names() == ["other", "third"]
    queues.pass_time(5)
    assert queues.left_of(number) == []
    with pytest.raises(Invalid, match="no queue 'emails'"):
        queues.enqueue(b"1")
    queues.create()
    queues.enqueue(b"anew")
    assert queues.payloads() == [b"anew"]
    queues.check_that_others_go_on()


MET_LATER: dict[str, tuple[Where, ClaimSelection, float]] = {
    "ready": (lambda manager: manager.layout.ready, NONE, 1),
    "scheduled": (lambda manager: manager.layout.scheduled, NONE, 40),
    "done": (lambda manager: manager.layout.done, NONE, 70),
    "body": (lambda manager: manager.layout.body_key(b"large", "", b"large"), ANY, 1),
}
"""Damaged records: where they are, the consumer that meets them, and how long that takes."""


@pytest.mark.parametrize("record", MET_LATER)
def test_damage_that_is_met_later_sets_its_queue_aside(
    queues: Damaged, record: str, caplog: pytest.LogCaptureFixture
) -> None:
    where, selection, seconds = MET_LATER[record]
    number = queues.manager().definition.number
    with caplog.at_level(logging.ERROR, "postroom.messaging.queues"):
        tear_first(queues, where(queues.manager()))
        queues.store.restart()
        waiting = queues.start(queues.claim_request(100, wait=True, selection=selection))
        queues.pass_time(seconds)
        queues.pass_time(2)
    with pytest.raises(StoreCorrupted, match=r"'emails' is damaged: .*cannot be read"):
        waiting.result()
    with pytest.raises(StoreCorrupted, match="'emails' is damaged"):
        queues.enqueue(b"1")
    assert len([each for each in caplog.records if "set aside" in each.getMessage()]) == 1
    queues.check_that_others_go_on()
    queues.drop()
    queues.pass_time(5)
    assert queues.left_of(number) == []


def test_a_text_that_is_none_is_damage_like_any(queues: Damaged) -> None:
    """Decoders tell that in another way."""
    layout, number = queues.manager().layout, queues.manager().definition.number
    parts = (layout.scheduled, layout.ready, layout.leased, layout.done)
    for prefix in (definition_key(Q), *parts):
        key = queues.keys_below(prefix)[0]
        stored = queues.store.engine.get(key)
        assert stored is not None
        broken = stored.replace(b"\xa0", b"\xa1\xff").replace(b"none", b"\xff" * 4)
        assert broken != stored
        queues.store.engine.inner.write({key: broken}, sync=True)
    queues.store.restart()
    assert "its definition cannot be read" in queues.told()[Q]
    queues.check_that_others_go_on()
    queues.drop()
    queues.pass_time(5)
    assert queues.left_of(number) == []


def test_headers_that_nothing_can_read_are_damage(queues: Damaged) -> None:
    queues.enqueue(b"x", id=b"deep", headers={"h": 1})
    key = queues.manager().layout.body_key(b"deep", "", b"deep")
    stored = queues.store.engine.get(key)
    assert stored is not None
    deep = stored.replace(b"\xa1h\x01", b"\xa1h" + b"\x91" * 10_000 + b"\x01")
    queues.store.engine.inner.write({key: deep}, sync=True)
    queues.store.restart()
    with pytest.raises(StoreCorrupted, match="'emails' is damaged: a stored body"):
        queues.get(b"deep")
    with pytest.raises(StoreCorrupted, match="'emails' is damaged: a stored body"):
        queues.claim(100)
    queues.check_that_others_go_on()


@pytest.mark.parametrize("told", ["zz", ""])
def test_an_entry_in_another_group_than_it_tells_is_damage(queues: Damaged, told: str) -> None:
    """Reading goes on behind the group that it tells: it would go past others, or never end."""
    queues.enqueue(b"x", id=b"x", group="gg")
    ready = queues.manager().layout.group_prefix("gg")
    (key,) = queues.keys_below(ready)
    stored = queues.store.engine.get(key)
    assert stored is not None
    entry = msgspec.structs.replace(records.entries.decode(stored), group=told)
    queues.store.engine.inner.write({key: records.encode(entry)}, sync=True)
    queues.store.restart()
    waiting = queues.start(queues.claim_request(100, wait=True, selection=NONE))
    queues.pass_time(1)
    assert waiting.done
    with pytest.raises(StoreCorrupted, match=f"it tells the group {told!r}"):
        waiting.result()
    queues.check_that_others_go_on()


def test_a_queue_whose_definition_is_torn_in_use_can_be_dropped(queues: Damaged) -> None:
    """It can be dropped, too, while another definition is damaged, whose number is unknown."""
    number = queues.manager().definition.number
    queues.tear(definition_key("third"))
    queues.store.restart()
    queues.tear(definition_key(Q))
    queues.drop()
    with pytest.raises(Invalid, match="no queue 'emails'"):
        queues.enqueue(b"1")
    queues.pass_time(5)
    assert queues.left_of(number) == []
    assert queues.payloads(name="other")


def test_clients_see_which_queue_is_damaged(queues: Damaged) -> None:
    queues.tear(definition_key(Q), queues.manager("other").layout.counters)
    queues.store.restart()
    first, other, third = queues.store.db.queues()
    assert (first.name, other.name, third.name, third.damaged) == (Q, "other", "third", "")
    assert "its definition cannot be read" in first.damaged
    assert other.settings == third.settings
    with pytest.raises(StoreCorrupted, match="drop the queue") as caught:
        queues.store.db.queue("other").stats()
    assert str(caught.value) == other.damaged
    told = queues.send(ReadQueues())
    over_the_wire = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=list[ToldQueue])
    assert [info_of(each) for each in over_the_wire] == [first, other, third]
    queues.store.db.queue("other").drop()
    assert [each.name for each in queues.store.db.queues()] == [Q, "third"]


def test_a_request_that_meets_it_is_refused_and_its_queue_goes_on(queues: Damaged) -> None:
    queues.tear(queues.manager().layout.body_key(b"large", "", b"large"))
    queues.store.restart()
    for ask in (lambda: queues.get(b"large"), lambda: queues.cancel(b"large"), queues.list):
        with pytest.raises(StoreCorrupted, match="'emails' is damaged: a stored body of 2 bytes"):
            ask()
    queues.enqueue(b"new")
    assert queues.told()[Q] == ""


def test_a_block_that_the_engine_cannot_read_is_no_damage_of_a_queue(
    queues: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes the way of disks that are damaged: another node may have it whole."""

    def fail(*_: object) -> None:
        raise BlockDamaged("a block of the disk")

    monkeypatch.setattr(Manager, "restart", fail)
    with pytest.raises(BlockDamaged):
        queues.range_queues.restart(queues.store.engine)
    with pytest.raises(BlockDamaged):
        queues.range_queues._directory.known("other")


def test_messages_die_at_home_if_the_queue_that_they_would_move_to_is_damaged(
    queues: Damaged,
) -> None:
    queues.create("mortal", max_attempts=1, dead_letter_queue="other")
    queues.create("mortal too", max_attempts=1, dead_letter_queue="third")
    queues.enqueue(b"followed", name="mortal too", group="g")
    queues.commit(WhenDone("mortal too", "g", queues.message(b"follower", "other")))
    tear_first(queues, queues.manager("other").layout.counters)
    queues.store.restart()
    queues.enqueue(b"dies", name="mortal")
    for name in ("mortal", "mortal too"):
        (message,) = queues.claim(name=name, seconds=1.0)
        queues.pass_time(3)
        assert [each.id for each in queues.list("dead", name)] == [message.id]
        assert queues.stats(name).failures == 0


def test_an_acknowledgement_whose_follower_goes_to_a_damaged_queue_is_refused(
    queues: Damaged,
) -> None:
    queues.enqueue(b"last", name="third", group="h")
    queues.commit(WhenDone("third", "h", queues.message(b"follower")))
    last = next(each for each in queues.claim(100, name="third") if each.payload == b"last")
    tear_first(queues, queues.manager().layout.counters)
    queues.store.restart()
    with pytest.raises(StoreCorrupted, match="'emails' is damaged"):
        queues.acknowledge(last, name="third")
    assert queues.stats("third").leased == 3


def test_the_last_dropped_of_several_damaged_queues_takes_all_remains_along(
    queues: Damaged,
) -> None:
    numbers = [queues.manager(name).definition.number for name in (Q, "other")]
    queues.tear(definition_key(Q), definition_key("other"))
    queues.store.restart()
    queues.drop()
    queues.pass_time(3)
    assert all(map(queues.left_of, numbers))
    queues.drop("other")
    queues.pass_time(3)
    assert not any(map(queues.left_of, numbers))
    assert queues.names() == ["third"]
    assert queues.payloads(name="third")


def test_a_definition_under_another_name_is_damage(queues: Damaged) -> None:
    stored = queues.store.engine.get(definition_key("other"))
    assert stored is not None
    queues.store.engine.inner.write({definition_key(Q): stored}, sync=True)
    queues.store.restart()
    assert "it is that of 'other'" in queues.told()[Q]
    queues.drop()
    queues.check_that_others_go_on()


def test_in_one_transaction_a_damaged_queue_is_dropped_made_anew_and_used(queues: Damaged) -> None:
    for torn in (queues.manager().layout.counters, definition_key(Q)):
        number = queues.store.engine.get(definition_key(Q))
        assert number is not None
        tear_first(queues, torn)
        queues.store.restart()
        queues.commit(DropQueue(Q), CreateQueue(Q, QueueSettings()), queues.message(b"anew"))
        assert queues.payloads() == [b"anew"]
        queues.store.restart()
        queues.check_that_others_go_on()


def test_a_dropped_queue_is_emptied_to_the_end_whoever_leads(
    queues: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All keys are looked through in many steps, and the node ends in between."""
    monkeypatch.setattr(advance, "LOOKED_AT_ONCE", 3)
    db = queues.store.db
    for number in range(20):
        db.put(b"value %d" % number, b"v")
    number = queues.manager().definition.number
    layout = queues.manager().layout
    queues.tear(*queues.keys_below(layout.whole))
    queues.store.restart()
    queues.drop()
    for _ in range(30):
        queues.store.kill()
        queues.pass_time(0.004)
    queues.store.restart()
    queues.pass_time(5)
    assert queues.left_of(number) == []
    assert [db.get(b"value %d" % number) for number in range(20)] == [b"v"] * 20
    queues.check_that_others_go_on()

"""Queues of a range that splits, told line by line: what each half has of each kind of entry.

Lines are ``command -> answer``. ``pytest --rewrite`` writes the answers. Nothing is divided but by
``step``, which copies two records. After each line, the copies must be the halves of what is
copied, and the counters of each range must agree with what is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from postroom.errors import Error, Unavailable
from postroom.kv import keys
from postroom.messaging import images
from postroom.messaging.image_entries import COUNTERS_NAME
from postroom.messaging.queues.claim_requests import EVERY_HOME, StoredQueueMessage
from postroom.messaging.queues.definition_requests import DropQueue, SetSchedule
from postroom.messaging.queues.dividing import COPIED_BYTES, _Index
from postroom.messaging.queues.queries import ListQueueMessages, ReadQueueStats
from postroom.messaging.queues.range_steps import RangeSteps
from postroom.messaging.queues.records import index_in_use
from postroom.messaging.queues.requests import Acknowledge, CancelMessages, KeepResult
from postroom.ranges.contract import ROOT_ID
from postroom.ranges.evaluation import Evaluation
from postroom.ranges.split.requests import CancelSplit, DivideSome, PrepareSplit, Split
from postroom.ranges.split.service import SplitService
from postroom.ranges.state import RIGHT_HALF_RECORD
from postroom.server.hosted_range import HostedRange
from tests.messaging.one_range import Asked
from tests.messaging.queues.division import check_copies, divisible, division_of, shown_index
from tests.messaging.queues.harness import Q, Queues, attempt, by_id
from tests.server.splitting import new_id, upkeep

FOLDER: Final = Path(__file__).parent / "divisions"
ARROW: Final = " -> "
ALL: Final = 1 << 30
SCRIPTS: Final = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let ranges with queues split, by hand, two records a step."""

    async def rest(service: SplitService) -> None:
        while True:
            await service.wake_up.wait()

    monkeypatch.setattr(SplitService, "run", rest)
    with divisible(2):
        yield


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_half_has_what_belongs_to_its_keys(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = FOLDER / f"{name}.txt"
    expected = path.read_text()
    stage = Stage()
    empty = RangeSteps._empty_some

    def empty_some(steps: RangeSteps, ctx: Evaluation, _: int, now: float) -> bool:
        if not stage.emptied_max:
            return False
        most = stage.emptied_max
        stage.emptied_max = most if most == ALL else 0
        return empty(steps, ctx, most, now)

    monkeypatch.setattr(RangeSteps, "_empty_some", empty_some)
    played = "".join(f"{stage.play(line)}\n" for line in expected.splitlines())
    stage.store.node.close()
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert played == expected or request.config.getoption("--rewrite")


class Stage:
    """A store with a queue."""

    def __init__(self) -> None:
        self.queues = Queues()
        self.store = self.queues.store
        self.cut = b""
        self.emptied_max = ALL
        self.is_dropped = False
        self.held: dict[str, StoredQueueMessage] = {}

    def play(self, line: str) -> str:
        """Return the line, with its answer."""
        told = line.partition(ARROW)[0].rstrip()
        if not told or told.startswith("#"):
            return line
        name, *arguments = told.split()
        try:
            answer = self.COMMANDS[name](self, *arguments)
        except Error as error:
            answer = type(error).__name__
        self.check()
        return told if answer is None else told + ARROW + answer

    def check(self) -> None:
        """Check the copies, and the counters of each range."""
        engine = self.store.node.engine
        for range_id, hosted in self.ranges.items():
            check_copies(engine, range_id)
            counting = images.Counting(engine.get)
            bounds = hosted.replica.bounds
            for span in (*images.spans_of_range(range_id), bounds.mail, bounds.data):
                for _, entry in images.walk(engine, span):
                    if entry is not None:
                        counting.add(*entry)
            assert self.is_dropped or not counting.end().wrong

    @property
    def ranges(self) -> dict[int, HostedRange]:
        """Return the ranges of the node."""
        return self.store.node.replicas.hosted

    # --- queues

    def create(self, *settings: str) -> None:
        told = dict(each.split("=") for each in settings)
        self.queues.create(**{name: _value(each) for name, each in told.items()})

    def enqueue(self, *names: str) -> str:
        """Enqueue messages, each ``id@group+seconds``."""
        return " ".join(self._enqueue(name) for name in names)

    def _enqueue(self, name: str) -> str:
        told, _, seconds = name.partition("+")
        id_, _, group = told.partition("@")
        message = self.queues.message(b"", id=id_.encode(), group=group, after=float(seconds or 0))
        self.queues.anchor = message.home
        return self.queues.commit(message)[0] or "new"

    def claim(self, number: str, half: str = "") -> str:
        """Claim messages, of one half if the store is split."""
        homes = {"left": (b"", self.cut), "right": (self.cut, None)}.get(half, EVERY_HOME)
        found = self.queues.claim(int(number), homes=homes, seconds=60.0)
        self.held |= {each.id.decode(): each for each in found}
        return " ".join(each.id.decode() for each in found) or "nothing"

    def acknowledge(self, *ids: str) -> str:
        return str(self.queues.acknowledge(*self._held(*ids)))

    def reject(self, *ids: str) -> str:
        return str(self.queues.reject(*self._held(*ids), delay=30.0))

    def bury(self, *ids: str) -> str:
        return str(self.queues.reject(*self._held(*ids), dead=True))

    def _held(self, *ids: str) -> list[StoredQueueMessage]:
        """Return messages that are held, in whose range a transaction is to be."""
        held = [self.held[each] for each in ids]
        self.queues.anchor = held[0].locator[0]
        return held

    def cancel(self, *ids: str) -> str:
        self.queues.anchor = ids[0].encode()
        write = CancelMessages(Q, [by_id(each.encode()) for each in ids])
        return str(self.queues.commit(write)[0])

    def replay(self, *ids: str) -> str:
        self.queues.anchor = ids[0].encode()
        return str(self.queues.replay(*(each.encode() for each in ids)))

    def keep(self, id_: str) -> None:
        """Acknowledge a message with a result."""
        name = attempt(*self._held(id_))
        self.queues.commit(KeepResult(Q, name, 60.0, b"result"), Acknowledge(Q, [name]))

    def follow(self, group: str, id_: str) -> None:
        self.queues.when_done(group, self.queues.message(b"", id=id_.encode()))

    def repeat(self, name: str) -> None:
        self.queues.commit(SetSchedule(Q, name, "0 0 1 1 *"))

    def drop(self, part: str) -> None:
        """Drop the queue, and have ``half`` of it emptied, or the ``rest``."""
        if part == "rest":
            self.emptied_max = ALL
            self.store.advance(1.0)
            return
        self.emptied_max, self.is_dropped = 2, True
        self.queues.commit(DropQueue(Q))

    def pass_time(self, seconds: str) -> None:
        self.queues.pass_time(float(seconds))

    # --- splits

    def prepare(self, key: str) -> None:
        self.cut = key.encode()
        self.queues.send(PrepareSplit(self.cut, new_id(self.store)))

    def step(self) -> str:
        return "more" if upkeep(self.store, self.ranges[ROOT_ID], DivideSome()) else "all"

    def divide(self) -> None:
        while self.step() == "more":
            self.check()

    def split(self) -> None:
        upkeep(self.store, self.ranges[ROOT_ID], Split())
        self.store.advance(1.0)

    def give_up(self) -> str:
        return str(self.queues.send(CancelSplit(self.cut)))

    def lead(self) -> None:
        """Begin anew, as another leader does."""
        self.store.kill()

    # --- looks

    def show(self) -> str:
        """Tell what the ranges have, and what is copied."""
        engine, said = self.store.node.engine, []
        for range_id in self.ranges:
            index = _Index(range_id, index_in_use(engine, range_id))
            said.append(f"{range_id}: {shown_index(engine, index)}")
            division = division_of(engine, range_id)
            if division is not None:
                said.append(f"stays: {shown_index(engine, index.other)}")
                said.append(f"goes: {shown_index(engine, _Index(division.right_id))}")
        return " | ".join(said)

    def count(self) -> str:
        """Tell the counters of each range that are not zero."""
        said = []
        for range_id, hosted in self.ranges.items():
            stats = upkeep(self.store, hosted, ReadQueueStats(Q))
            names = ("enqueued", "ready", "scheduled", "leased", "dead", "acknowledged", "fired")
            told = [f"{name} {getattr(stats, name)}" for name in names if getattr(stats, name)]
            said.append(f"{range_id}: {', '.join(told)}")
        return " | ".join(said)

    def list_messages(self, state: str) -> str:
        """List messages of each range as readers see them."""
        said = []
        for range_id, hosted in self.ranges.items():
            page = upkeep(self.store, hosted, ListQueueMessages(Q, state))
            ids = " ".join(each.id.decode() for each in page.messages)
            said.append(f"{range_id}: {ids or 'nothing'}")
        return " | ".join(said)

    COMMANDS: Final[dict[str, Callable[..., str | None]]] = {
        "create": create, "enqueue": enqueue, "claim": claim, "acknowledge": acknowledge,
        "reject": reject, "bury": bury, "cancel": cancel, "replay": replay, "keep": keep,
        "follow": follow, "repeat": repeat, "drop": drop, "pass": pass_time,
        "prepare": prepare, "step": step, "divide": divide, "split": split, "give_up": give_up,
        "lead": lead, "show": show, "count": count, "list": list_messages,
    }  # fmt: skip


# --- more than the scripts tell


def divided(*names: str, **settings: Any) -> Stage:
    """Return a store with a queue that is divided at ``m``."""
    stage = Stage()
    stage.queues.create(**settings)
    stage.enqueue(*names)
    stage.prepare("m")
    stage.divide()
    return stage


def test_a_claim_that_waits_goes_on_to_wait_while_its_range_is_split() -> None:
    stage = divided()
    stage.enqueue("taken")
    stage.claim("1")
    waits = Asked(stage.queues.claim_request(wait=True, homes=(b"", b"m")))
    stage.ranges[ROOT_ID].replica.submit(waits)
    stage.divide()
    stage.split()
    assert not waits.answers
    stage.enqueue("a")
    ((claimed, _),) = waits.answers
    assert [each.id for each in claimed.messages] == [b"a"]
    stage.store.node.close()


def test_messages_that_are_to_be_given_back_are_given_back_before_the_split() -> None:
    stage = divided("a", "z")
    stage.claim("2")
    manager = stage.queues.manager()
    attempts = [each.attempt for each in manager.leases.all()]
    manager.to_give_back |= dict.fromkeys(attempts)
    with pytest.raises(Unavailable):
        stage.split()
    manager.give_back_later(attempts, None)
    stage.store.advance(0.1)
    stage.split()
    assert stage.show() == "1: ready a | 2: ready z"
    stage.store.node.close()


def test_a_lease_lasts_over_a_split_although_the_clock_is_set_ahead() -> None:
    stage = divided("a", "z")
    stage.claim("2")
    stage.store.clock.epoch_milliseconds += 86_400_000
    stage.split()
    stage.store.advance(30.0)
    assert stage.show() == "1: leased (a) | 2: leased (z)"
    stage.store.advance(40.0)
    assert "leased" not in stage.show()
    stage.store.node.close()


def test_a_queue_that_fails_does_not_keep_its_range_from_a_split() -> None:
    stage = divided("a", "z")
    stage.claim("2")
    manager = stage.queues.manager()
    manager.to_give_back |= dict.fromkeys(each.attempt for each in manager.leases.all())
    manager.trouble.failed(ValueError("it fails"), stage.store.clock.monotonic())
    stage.split()
    assert len(stage.ranges) == 2
    stage.store.node.close()


def image(stage: Stage) -> dict[bytes, bytes]:
    """Return the image of the metadata of a store with one range."""
    (span,) = images.spans_of_range(ROOT_ID)
    engine = stage.store.node.engine
    return dict(entry for _, entry in images.walk(engine, span) if entry is not None)


def test_an_image_tells_nothing_of_a_division() -> None:
    stage = Stage()
    stage.queues.create()
    stage.enqueue("a", "b@g", "y", "z")
    stage.claim("2")
    before = image(stage)
    stage.prepare("m")
    stage.divide()
    assert image(stage) == before
    assert stage.give_up() == "True"
    assert image(stage) == before
    stage.store.node.close()


def test_the_image_of_a_left_half_has_the_names_of_any_image() -> None:
    stage = divided("a", "b")
    before = image(stage)
    stage.split()
    after = image(stage)
    assert after.keys() - {COUNTERS_NAME} == before.keys()
    while stage.step() == "more":
        assert image(stage) == after
    engine = stage.store.node.engine
    assert next(engine.iterate(*_Index(ROOT_ID).records), None) is None
    assert engine.get(keys.record_key(ROOT_ID, RIGHT_HALF_RECORD)) is None
    stage.store.node.close()


def test_a_range_splits_again_when_the_rest_is_deleted() -> None:
    stage = divided("a", "b", "y", "z")
    stage.split()
    stage.prepare("b")
    with pytest.raises(Unavailable, match="not prepared yet"):
        stage.split()
    while stage.step() == "more":
        stage.check()
    stage.split()
    assert stage.show() == "1: ready a | 2: ready y z | 3: ready b"
    stage.store.node.close()


def test_a_step_in_the_proposal_that_prepares_the_split_divides_nothing_yet() -> None:
    stage = Stage()
    stage.create()
    stage.enqueue("a", "b", "y", "z")
    root = stage.ranges[ROOT_ID]
    preparing = Asked(PrepareSplit(b"m", new_id(stage.store)))
    step = Asked(DivideSome(), urgent=False)
    for call in (preparing, step):
        root.replica.submit(call)
    stage.store.advance(0.01)
    assert (preparing.answers[0][1], step.answers) == (None, [(True, None)])
    assert division_of(stage.store.node.engine, ROOT_ID) is None
    stage.check()
    stage.divide()
    stage.split()
    assert stage.show() == "1: ready a b | 2: ready y z"
    stage.store.node.close()


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("together", [2, 3, 4])
def test_several_steps_of_one_proposal_copy_each_record_once(before: int, together: int) -> None:
    stage = Stage()
    stage.create()
    stage.enqueue("a", "b", "c", "y", "z", "d+500", "e+500", "x+500")
    stage.claim("1")
    stage.prepare("m")
    for _ in range(before):
        stage.step()
    steps = [Asked(DivideSome(), urgent=False) for _ in range(together)]
    for step in steps:
        stage.ranges[ROOT_ID].replica.submit(step)
    stage.store.advance(0.01)
    stage.check()
    stage.divide()
    stage.split()
    assert stage.show() == "1: scheduled d e; ready b c; leased (a) | 2: scheduled x; ready y z"
    stage.store.node.close()


def test_a_step_copies_a_bounded_number_of_bytes() -> None:
    stage = Stage()
    stage.queues.create()
    messages = (stage.queues.message(b"p" * 500, id=b"%0500d" % each) for each in range(900))
    stage.queues.commit(*messages)
    stage.prepare("m")
    with divisible():
        sizes = [0]
        while stage.step() == "more":
            sizes.append(check_copies(stage.store.node.engine))
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    assert max(steps) * 1000 <= COPIED_BYTES, steps
    stage.store.node.close()


def test_a_range_without_queues_has_no_division() -> None:
    stage = Stage()
    stage.prepare("m")
    assert stage.step() == "all"
    assert division_of(stage.store.node.engine, ROOT_ID) is None
    stage.split()
    assert index_in_use(stage.store.node.engine, ROOT_ID) == keys.QUEUES
    stage.store.node.close()


def test_a_queue_that_is_made_after_the_division_is_divided_before_the_split() -> None:
    stage = Stage()
    stage.prepare("m")
    stage.divide()
    stage.queues.create()
    stage.enqueue("a", "z")
    with pytest.raises(Unavailable, match="not divided yet"):
        stage.split()
    stage.divide()
    stage.split()
    assert stage.show() == "1: ready a | 2: ready z"
    stage.store.node.close()


def test_a_record_that_nobody_can_read_stays() -> None:
    stage = Stage()
    stage.queues.create()
    stage.enqueue("a", "z")
    engine = stage.store.node.engine
    index = _Index(ROOT_ID)
    _, (raw, _) = engine.iterate(*index.records)
    engine.write({raw: b"\xc1"}, sync=False)
    stage.prepare("m")
    while stage.step() == "more":
        pass
    assert engine.get(index.other.twin(raw)) == b"\xc1"
    stage.split()
    assert stage.count() == "1: enqueued 2, ready 2 | 2: "
    stage.store.node.close()


def _value(told: str) -> Any:
    return float(told) if told.replace(".", "").isdigit() else told == "yes" or told

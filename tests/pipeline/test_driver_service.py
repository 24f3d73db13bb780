"""The service in the driver: folders are opened once, timestamps held for as long as is needed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

import postroom
from postroom.client.remote.sender import ThreadSender
from postroom.errors import AccessDenied, Invalid, StoreLocked, Unavailable
from postroom.pipeline.driver_service import WHOLE_AT_ONCE, DriverLink, DriverService
from postroom.pipeline.options import StoreAddress
from tests.pipeline.readers import rows, source


class Driver:
    """A service, and what it is told of time and of Spark."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.busy = False
        self.service = DriverService(lambda: self.busy, lambda: self.seconds)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.service.close()


def test_a_folder_is_opened_once_and_served_until_the_end(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with postroom.open(folder) as db:
        db.put(b"a", b"1")
    line = driver.service.line
    first = source(line, path=folder)
    assert rows(first, "key", "value") == [{"key": b"a", "value": b"1"}]
    again = line.address(StoreAddress(path=str(tmp_path / "." / "shop"), insecure=True))
    assert again.connect == first.store.connect
    with pytest.raises(StoreLocked):
        postroom.open(folder)
    driver.service.close()
    with postroom.open(folder) as db:
        assert db.get(b"a") == b"1"


def test_a_folder_that_its_application_serves_is_read_there(driver: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with postroom.open(folder, serve="unix:") as db:
        db.put(b"a", b"1")
        line = driver.service.line
        assert rows(source(line, path=folder), "key") == [{"key": b"a"}]
        reached = line.address(StoreAddress(path=str(folder), insecure=True))
        assert reached.connect == f"unix:{folder}/socket"


def test_a_read_of_few_rows_asks_twice_here_and_four_times_the_store(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question is a part of what a small read takes."""
    with postroom.open(tmp_path / "shop") as db:
        for number in range(50):
            db.put(b"k%02d" % number, b"%d" % number)
    service, line = driver.service, driver.service.line
    source(line, path=tmp_path / "shop")  # the folder is open, and this process connected
    asked: list[str] = []
    answer, send = service.answer, ThreadSender.send

    def answered(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question["do"])
        return answer(question)

    def sent(of: ThreadSender, request: Any, timeout_seconds: float | None = None) -> Any:
        asked.append(type(request).__name__)
        return send(of, request, timeout_seconds)

    monkeypatch.setattr(service, "answer", answered)
    monkeypatch.setattr(ThreadSender, "send", sent)
    few = [GreaterThanOrEqual(("key",), b"k10"), LessThan(("key",), b"k20")]
    assert len(rows(source(line, path=tmp_path / "shop"), filters=few)) == 10
    assert asked.count("hold") == 2
    of_store = [each for each in asked if each not in {"hold", "Unprotect"}]
    assert of_store == ["Protect", "ReadPartitions", "Protect", "ScanRecords"]


def test_a_folder_that_somebody_has_open_or_that_is_none_is_refused(
    driver: Driver, tmp_path: Path
) -> None:
    with postroom.open(tmp_path / "shop"), pytest.raises(StoreLocked):
        source(driver.service.line, path=tmp_path / "shop")
    with pytest.raises(Invalid):
        source(driver.service.line, path=tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_protection_used_while_the_service_looks_is_not_given_back(
    served: str, db: postroom.Database
) -> None:
    db.put(b"a", b"1")
    seconds = 0.0
    used: list[Any] = []

    def is_busy() -> bool:
        for made in used:
            rows(made)
        return False

    service = DriverService(is_busy, lambda: seconds)
    try:
        made = source(service.line, connect=served, insecure="true", protect_for=60)
        used.append(made)
        seconds = 61.0
        service.release_unused()
        assert service.protected == [made.at]
        used.clear()
        seconds = 200.0
        service.release_unused()
        assert service.protected == []
    finally:
        service.close()


def test_a_timestamp_in_the_future_is_refused_with_a_word(
    driver: Driver, served: str, db: postroom.Database
) -> None:
    with pytest.raises((Invalid, ValueError), match="in the future"):
        source(driver.service.line, connect=served, insecure="true", at=int(db.now()) + (1 << 40))
    with pytest.raises((Invalid, ValueError), match="no timestamp"):
        source(driver.service.line, connect=served, insecure="true", at=1 << 70)


def test_a_timestamp_is_held_while_it_is_used_or_spark_has_work(
    driver: Driver, served: str, db: postroom.Database
) -> None:
    db.put(b"a", b"1")
    made = source(driver.service.line, connect=served, insecure="true", protect_for=60)
    assert driver.service.protected == [made.at]
    driver.seconds = 50.0
    rows(made)  # it is used
    driver.seconds = 100.0
    driver.service.release_unused()
    assert driver.service.protected == [made.at]
    driver.busy = True
    driver.seconds = 1000.0
    driver.service.release_unused()
    assert driver.service.protected == [made.at]
    driver.busy = False
    driver.service.release_unused()
    assert driver.service.protected == []
    rows(made)  # a reader that comes back in time has it held again
    assert driver.service.protected == [made.at]


def test_few_are_held_as_a_whole(driver: Driver, served: str, db: postroom.Database) -> None:
    made = []
    for number in range(WHOLE_AT_ONCE + 2):
        driver.seconds = float(number)
        db.put(b"a", b"%d" % number)
        made.append(
            source(driver.service.line, connect=served, insecure="true", table="accounting")
        )
    assert driver.service.protected == [each.at for each in made[2:]]
    assert rows(made[-1]) == []


def test_a_driver_that_gets_no_more_gives_up_what_it_needs_least(
    driver: Driver, served: str, db: postroom.Database
) -> None:
    """Another client has many timestamps as a whole, too."""
    options = {"connect": served, "insecure": "true", "table": "accounting"}
    with ExitStack() as others:
        for number in range(8):
            db.put(b"a", b"%d" % number)
            others.enter_context(db.hold(whole=True))
        made = []
        for number in range(6):  # it is given 4 of them
            driver.seconds = float(number)
            db.put(b"b", b"%d" % number)
            made.append(source(driver.service.line, **options))
        assert driver.service.protected == [each.at for each in made[2:]]
        assert rows(made[-1]) == []
        driver.busy = True
        with pytest.raises(Invalid, match="for others"):
            source(driver.service.line, **options)


def test_a_caller_without_the_secret_is_refused(driver: Driver, tmp_path: Path) -> None:
    line = replace(driver.service.line, secret="guessed")
    with pytest.raises(AccessDenied):
        line.address(StoreAddress(path=str(tmp_path), insecure=True))


@pytest.mark.parametrize(
    "said",
    [
        b"", b"\n", b"no json\n", b"[]\n", b'{"do": 1}\n', b"{" * 100_000, b"\xff\n",
        b"[" * 60_000 + b"\n",
    ],
)  # fmt: skip
def test_nonsense_is_hung_up_on_and_hurts_nobody(
    driver: Driver,
    served: str,
    db: postroom.Database,
    said: bytes,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with socket.create_connection(("127.0.0.1", driver.service.line.port), 10) as stranger:
        try:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            answer = stranger.recv(1000)
        except OSError:  # it was hung up before all was said
            answer = b""
    assert answer == b"" or json.loads(answer)["error"] == "AccessDenied"
    db.put(b"a", b"1")
    assert rows(source(driver.service.line, connect=served, insecure="true"), "key")
    assert "Traceback" not in capfd.readouterr().err


def test_a_known_secret_with_nonsense_is_hung_up_on(driver: Driver) -> None:
    questions: list[dict[str, Any]] = [{}, {"do": "hold"}, {"do": "address", "path": 7}]
    for question in questions:
        with pytest.raises(Unavailable):
            driver.service.line._ask(question)


def test_a_driver_that_has_gone_is_named(tmp_path: Path) -> None:
    driver = Driver()
    driver.service.close()
    with pytest.raises(Unavailable, match="registered"):
        source(driver.service.line, path=tmp_path)
    with pytest.raises(Unavailable):
        DriverLink(1, "").address(StoreAddress(path="x", insecure=True))


def test_a_late_question_opens_no_store(served: str, db: postroom.Database, tmp_path: Path) -> None:
    """A planner's question is read when the session ends: no session would close the store."""
    with postroom.open(tmp_path / "shop"):
        pass
    service = Driver().service
    service.close()
    store = asdict(StoreAddress(path=str(tmp_path / "shop"), insecure=True))
    of_node = asdict(StoreAddress(connect=served, insecure=True))
    asked: list[dict[str, Any]] = [
        {"do": "address", "path": str(tmp_path / "shop")},
        *({"do": "hold", "store": each, "at": 0, "seconds": 60, "whole": False}
          for each in (store, of_node)),
    ]  # fmt: skip
    for each in asked:
        answer = service.answer({**each, "secret": service.line.secret})
        assert answer["error"] == "Unavailable", answer
        assert "ended" in answer["message"]
    assert service.protected == []
    with postroom.open(tmp_path / "shop"):  # it is not locked
        pass


def test_the_protections_of_a_driver_end_with_it(served: str, db: postroom.Database) -> None:
    driver = Driver()
    db.put(b"a", b"1")
    made = source(driver.service.line, connect=served, insecure="true", table="accounting")
    driver.service.close()
    with pytest.raises(postroom.SnapshotTooOld):
        list(db.bulk.scan("accounting", at=made.at))

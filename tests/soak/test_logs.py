"""The logs of a soak: a service that has failed and begun again is told."""

from __future__ import annotations

import logging

import pytest

from postroom.server.services import NodeTasks, Services
from tests.soak.logs import SHOWN_MAX, Logs, unexplained

_MOMENT = "2026-11-27 02:29:08,123"
_TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in <module>',
    "ValueError: no",
]


def test_a_service_that_fails_and_begins_again_is_told() -> None:
    async def fail() -> None:
        raise ValueError("a mistake of the test")

    tasks = NodeTasks(lambda: 0.0, lambda _: None)
    with Logs() as logs:
        Services(tasks, {"collector": fail}).start()
        tasks.run()
    tasks.stop()
    (told,) = logs.verdicts()
    assert "the log of clients" in told
    assert "the collector has failed 1 time, and begins again" in told
    assert "ValueError: a mistake of the test" in told


@pytest.mark.parametrize(
    "lines",
    [
        [f"{_MOMENT} ERROR postroom.server.services: the feed has failed once"],
        [f"{_MOMENT} CRITICAL postroom.server.services: a task of the node has stopped"],
        [f"{_MOMENT} WARNING postroom.server.node: a record", *_TRACEBACK],
        ["Exception in thread Thread-1:", *_TRACEBACK],
    ],
)
def test_an_error_or_a_traceback_is_a_failure(lines: list[str]) -> None:
    info = f"{_MOMENT} INFO postroom.server.node: this node leads"
    (told,) = unexplained([info, *lines, info])
    assert told.endswith("\n".join(lines))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["ready 127.0.0.1:7400", f"{_MOMENT} WARNING postroom.raft.group: ERROR is a word"],
        [f"{_MOMENT} WARNING postroom.worker: a task has failed", *_TRACEBACK],
        [f"{_MOMENT} ERROR postroom.server.disk_guard: the device is full, and more"],
    ],
)
def test_a_record_that_the_faults_of_a_soak_explain_is_no_failure(lines: list[str]) -> None:
    assert unexplained(lines) == []


def test_a_log_of_many_failures_is_cut() -> None:
    with Logs() as logs:
        for _ in range(10 * SHOWN_MAX):
            logging.getLogger("postroom").error("a failure of the test")
    *shown, last = logs.verdicts()
    assert len(shown) == SHOWN_MAX
    assert last == f"the log of clients has {10 * SHOWN_MAX} failures"

"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from postroom.server import opening

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


opening.LOG_SEGMENT_BYTES = 1024 * 1024  # hundreds of stores are made: 64 MiB each take their time


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs of tests would inherit that


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what golden scripts answer into them"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the collector while tests are collected, and let it never look at them: they stay.

    Looking for garbage takes a quarter of the time. Among fewer objects it is found earlier, too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one worker begin with the tests of Spark, which take longest.

    It is the only one to start a session: the others take tests from the end of its list.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        of_spark = [item for item in items if "pipeline" in item.path.parts]
        others = [item for item in items if "pipeline" not in item.path.parts]
        first = len(items) * (workers - 1) // workers
        items[:] = others[:first] + of_spark + others[first:]

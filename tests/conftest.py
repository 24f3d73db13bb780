"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from postroom.server import opening

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


opening.LOG_SEGMENT_BYTES = 1024 * 1024  # hundreds of stores are made: 64 MiB each take their time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what golden scripts answer into them"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: looking for garbage in it is a quarter of the time this takes."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()

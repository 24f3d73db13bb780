"""Tests of the sizes that the limits allow; ``make large`` runs them."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.large.measured import MeasuredTarget, fill_inboxes

KEYS = 1_000_000
INBOXES = 2_000_000

Opened = Callable[[Path | None], MeasuredTarget]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("POSTROOM_LARGE"):
        return
    skipped = pytest.mark.skip(reason="takes minutes: make large runs it")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skipped)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Yield a function that opens a target: a new one, or on a copy of a folder."""
    with ExitStack() as stack:

        def open_(template: Path | None) -> MeasuredTarget:
            folder = tmp_path / "store"
            if template is not None:
                shutil.copytree(template, folder)
            target = MeasuredTarget(folder)
            stack.callback(target.store.db.close)
            stack.callback(gc.unfreeze)  # see MeasuredTarget.bounded
            return target

        yield open_
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


@pytest.fixture(scope="session")
def a_million_keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of a million keys."""
    folder = tmp_path_factory.mktemp("keys") / "store"
    target = MeasuredTarget(folder)
    target.fill(KEYS)
    target.store.db.close()
    return folder


@pytest.fixture(scope="session")
def two_million_inboxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store of two million inboxes, with a message each."""
    folder = tmp_path_factory.mktemp("inboxes") / "store"
    target = MeasuredTarget(folder)
    fill_inboxes(target, INBOXES)
    target.store.db.close()
    return folder

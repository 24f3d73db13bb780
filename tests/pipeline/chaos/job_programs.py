"""The jobs, as works of the program that is killed: they say each step, and take their time.

A job knows nothing of it: it is told to tell its progress, and the archive has places where its
tests stop it besides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP = "step"
STEP_SECONDS = 0.2
"""The length of each step, in which the program may be killed."""


def _step(*told: object) -> None:
    print(STEP, *told, flush=True)  # noqa: T201
    time.sleep(STEP_SECONDS)  # noqa: TID251 - as work that takes its time


def archive(work: Any) -> None:
    """Archive history of the store into files."""
    from postroom.pipeline import jobs  # noqa: PLC0415 - after the session's environment is set

    folder = str(Path(work.told.folder) / "archive")
    jobs.archive(
        work.spark, work.store, folder, keep=0.0, grace=0.0, files_max=1, progress=_step,
        failpoint=_step,
    )  # fmt: skip


def export(work: Any) -> None:
    """Export the store into a folder."""
    from postroom.pipeline import jobs  # noqa: PLC0415

    jobs.export(work.spark, work.store, str(Path(work.told.folder) / "export"), progress=_step)


def restore(work: Any) -> None:
    """Restore a folder into the store."""
    from postroom.pipeline import jobs  # noqa: PLC0415

    jobs.restore(work.spark, work.store, str(Path(work.told.folder) / "export"), progress=_step)


def load(work: Any) -> None:
    """Load files into the store: each row counts under ``f/``."""
    from postroom.pipeline import jobs  # noqa: PLC0415

    options = jobs.LoadOptions("chaos", mode="increment", key="f/{id}", schema="id string")
    files = [str(Path(work.told.folder) / "rows.json")]
    _step("begun")
    jobs.load(work.spark, work.store, files, options, progress=_step)


def index(work: Any) -> None:
    """Load documents into a search index."""
    from postroom.pipeline import jobs  # noqa: PLC0415

    _step("begun")
    jobs.index(work.spark, work.store, "chaos", prefix=b"d/", progress=_step)


JOBS: dict[str, Callable[[Any], None]] = {
    "archive": archive,
    "export": export,
    "restore": restore,
    "load-files": load,
    "index": index,
}

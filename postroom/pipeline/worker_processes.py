"""Settings that are made once in each of Spark's Python processes.

Spark keeps these processes, and collects garbage in each after every task and every question of a
planner. The collector then visits every imported object (Spark, Arrow, NumPy, Postroom: 70,000), to
find that all of them are needed. Each visit takes 13 ms of a processor, while the next task of
this process waits. After the imports, the collector is told to ignore these objects
(``gc.freeze``). Later ones are collected.

An error of Postroom is a sentence that says what to do. Spark would print the calls that led to it
first. It is told to leave them out, for these errors only.
"""

from __future__ import annotations

import gc
import sys
from typing import IO, Any, Final

from postroom.errors import Error

_SPARK: Final = "pyspark."
"""The beginning of the names of Spark's programs: the daemon, and the runner of streams."""

_frozen = False


def freeze_imports() -> None:
    """Keep what this process has imported out of garbage collection.

    It does something once, and nothing outside of Spark's own processes: a driver's garbage is its
    program's business.
    """
    global _frozen  # noqa: PLW0603 - once for the process
    if not _frozen and _is_of_spark():
        gc.collect()  # present garbage shall not stay
        gc.freeze()
        _tell_errors_in_a_sentence()
        _frozen = True


def _tell_errors_in_a_sentence() -> None:
    """Have Spark hand on errors of Postroom without a traceback, in this process."""
    from pyspark import util  # noqa: PLC0415 - only Spark's processes come here

    handle = util.handle_worker_exception

    def handle_plainly(
        e: BaseException, outfile: IO[Any], hide_traceback: bool | None = None
    ) -> None:
        if isinstance(e, UnboundLocalError) and isinstance(e.__context__, Error):
            e = e.__context__  # Spark stops a reader of streams that could not be made
        handle(e, outfile, True if isinstance(e, Error) else hide_traceback)

    for module in list(sys.modules.values()):  # these modules have imported it by its name
        if getattr(module, "__dict__", {}).get("handle_worker_exception") is handle:
            module.handle_worker_exception = handle_plainly  # type: ignore[attr-defined]


def _is_of_spark() -> bool:
    run_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(run_as, "name", "").startswith(_SPARK)


__all__ = ["freeze_imports"]

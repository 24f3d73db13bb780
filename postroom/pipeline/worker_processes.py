"""What is done once in each of Spark's Python processes.

Spark keeps them, and collects garbage in each after every task and every question of a planner.
That looks at every object that was imported (Spark, Arrow, NumPy, Postroom: 70,000), to find that
all of them are needed: 13 ms of a processor each time, while the next task of this process waits.
So when Postroom has been imported, the collector is told to look at what is there no more
(``gc.freeze``). What comes later is collected as ever.

An error of Postroom is a sentence that says what to do. Spark would put the calls that led to it
before that; so it is told to leave them out, of these errors only.
"""

from __future__ import annotations

import gc
import sys
from typing import IO, Any, Final

from postroom.errors import Error

_DAEMON: Final = "pyspark.daemon"
_settled = False


def settle() -> None:
    """What this process has imported stays. It does something once, and nothing outside of Spark's
    own processes: a driver's garbage is its program's business.
    """
    global _settled  # noqa: PLW0603 - once for the process
    if not _settled and _is_of_spark():
        gc.collect()  # what is garbage by now shall not stay
        gc.freeze()
        _tell_errors_in_a_sentence()
        _settled = True


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

    for module in list(sys.modules.values()):  # they have imported it by its name
        if getattr(module, "__dict__", {}).get("handle_worker_exception") is handle:
            module.handle_worker_exception = handle_plainly  # type: ignore[attr-defined]


def _is_of_spark() -> bool:
    run_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(run_as, "name", "") == _DAEMON


__all__ = ["settle"]

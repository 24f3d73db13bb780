"""What is done once in each of Spark's Python processes.

Spark keeps them, and collects garbage in each after every task and every question of a planner.
That looks at every object that was imported (Spark, Arrow, NumPy, Postroom: 70,000), to find that
all of them are needed: 13 ms of a processor each time, while the next task of this process waits.
So when Postroom has been imported, the collector is told to look at what is there no more
(``gc.freeze``). What comes later is collected as ever.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

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
        _settled = True


def _is_of_spark() -> bool:
    run_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(run_as, "name", "") == _DAEMON


__all__ = ["settle"]

"""Help where Spark leaves something out: quick workers, plain errors, and advice.

**Garbage.** Spark keeps its Python processes, and collects garbage in each after every task and
every question of a planner. The collector then visits every imported object (Spark, Arrow, NumPy,
Postroom: 70,000), to find that all of them are needed. Each visit takes 13 ms of a processor, while
the next task of this process waits. After the imports, the collector is told to ignore these
objects (``gc.freeze``). Later ones are collected.

**Errors.** An error of Postroom is a sentence that says what to do. Spark would print the calls
that led to it first. It is told to leave them out, for these errors only.

**Profilers.** PySpark 4.3.0 (SPARK-59135): the process that plans a source in Python reports the
counts of two profilers, also if nothing is profiled. A client of Spark Connect that waits for a
long command, such as ``spark-pipelines``, takes a report for an error. If the driver is elsewhere,
empty reports are therefore not made. The report of a profiled planner is left out too.

**Output modes.** Spark refuses ``outputMode("update")`` before it asks the sink, with words that
show no way out. A listener logs the way out when a query has ended with that error.
"""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Final

from pyspark import accumulators
from pyspark.sql.streaming.listener import StreamingQueryListener

from postroom.errors import Error, Invalid

_SPARK: Final = "pyspark."
"""The beginning of the names of Spark's programs: the daemon, and the runner of streams."""

CHECK_SECONDS: Final = 60.0
_CHECK: Final = "import postroom, msgpack, msgspec, pyarrow; print(postroom.__version__)"
_REFUSED: Final = "postroom does not support"
_ADVICE: Final = """a streaming query has ended: a store takes rows with outputMode("append") only.
Write each batch of updated rows with foreachBatch:

    def write(batch, number):
        batch.write.format("postroom").options(**store).option("query", NAME)\\
            .option("batch", number).mode("append").save()

    stream.writeStream.outputMode("update").foreachBatch(write).start()"""

_log = logging.getLogger("postroom.pipeline")
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


def drop_empty_reports() -> None:
    """Forget the profilers of this process that have counted nothing."""
    ids = getattr(accumulators, "SpecialAccumulatorIds", None)
    registry = getattr(accumulators, "_accumulatorRegistry", {})
    for name in ("SQL_UDF_PROFIER", "SQL_UDF_PROFIER_V2"):  # these are the names in PySpark
        profiler = registry.get(getattr(ids, name, None))
        if profiler is not None and not getattr(profiler, "_value", True):
            registry.pop(getattr(ids, name))


def check_python(executable: str) -> None:
    """Make sure that the Python of Spark's tasks has Postroom.

    Args:
        executable: as Spark starts it.

    Raises:
        Invalid: it has none, or another version.
    """
    import postroom  # noqa: PLC0415 - the package is being imported when this module is

    found = shutil.which(executable)
    if found is not None and Path(found).absolute() == Path(sys.executable).absolute():
        return
    said = _postroom_version(found or executable)
    if said != postroom.__version__:
        raise Invalid(
            f"Spark starts its tasks with {executable!r} ({found or 'not found'}), which "
            f"{'has Postroom ' + said if said else 'has no Postroom'}, and not with this Python; "
            "nothing was registered: before the session starts, set the environment variable "
            f"PYSPARK_PYTHON={sys.executable}, or install Postroom {postroom.__version__} there"
        )


def _postroom_version(executable: str) -> str:
    """Return the version of Postroom in another Python; empty: it has none."""
    try:
        done = subprocess.run(
            [executable, "-c", _CHECK], capture_output=True, text=True, timeout=CHECK_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class Adviser(StreamingQueryListener):
    """The listener that logs what to do when a query has ended because of its output mode."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name, as those below
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Log the way out, if there is one."""
        if event.exception is not None and _REFUSED in event.exception:
            _log.error(_ADVICE)

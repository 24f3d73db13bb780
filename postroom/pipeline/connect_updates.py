"""A workaround that keeps Spark Connect from failing when it plans a source in Python.

PySpark 4.3.0 (SPARK-59135): the process that plans a source in Python reports the counts of two
profilers, also if nothing is profiled. A client of Spark Connect that waits for a long command,
such as ``spark-pipelines``, takes a report for an error. If the driver is elsewhere, empty reports
are therefore not made. The report of a profiled planner is left out too.
"""

from __future__ import annotations

from pyspark import accumulators


def drop_empty() -> None:
    """Forget the profilers of this process that have counted nothing."""
    ids = getattr(accumulators, "SpecialAccumulatorIds", None)
    registry = getattr(accumulators, "_accumulatorRegistry", {})
    for name in ("SQL_UDF_PROFIER", "SQL_UDF_PROFIER_V2"):  # these are the names in PySpark
        profiler = registry.get(getattr(ids, name, None))
        if profiler is not None and not getattr(profiler, "_value", True):
            registry.pop(getattr(ids, name))


__all__ = ["drop_empty"]

"""What keeps commands of Spark Connect from failing when a source in Python is planned.

PySpark 4.3.0 (SPARK-59135): the process that plans a source in Python reports the counts of two
profilers, also if nothing is profiled. A client of Spark Connect that waits for a long command, as
``spark-pipelines`` does, takes such a report for an error. So where a driver is elsewhere, reports
that are empty are not made. That of a planner that is profiled is not made either.
"""

from __future__ import annotations

from pyspark import accumulators


def drop_empty() -> None:
    """Forgets the profilers of this process that have counted nothing."""
    ids = getattr(accumulators, "SpecialAccumulatorIds", None)
    registry = getattr(accumulators, "_accumulatorRegistry", {})
    for name in ("SQL_UDF_PROFIER", "SQL_UDF_PROFIER_V2"):  # so they are called
        profiler = registry.get(getattr(ids, name, None))
        if profiler is not None and not getattr(profiler, "_value", True):
            registry.pop(getattr(ids, name))


__all__ = ["drop_empty"]

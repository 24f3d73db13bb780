"""Postroom as a source of data for Apache Spark (extra ``[spark]``).

::

    from postroom import pipeline

    pipeline.register(spark)
    spark.read.format("postroom").option("path", "data/shop").option("table", "data").load()
    spark.readStream.format("postroom").option("connect", ...).option("table", "changes").load()

``docs/pipeline.md`` tells what there is, ``docs/pipeline-inside.md`` how it works.
"""

from __future__ import annotations

import atexit
import os
import time
from typing import Any, Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # a channel and Spark's launch: a crash

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

from postroom.pipeline.advice import Adviser, check_python
from postroom.pipeline.driver_service import DriverService
from postroom.pipeline.filters import after_prefix
from postroom.pipeline.source import PostroomSource

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

_services: dict[str, DriverService] = {}


def register(spark: SparkSession) -> None:
    """Makes the format ``postroom`` known to a session. Call it once for each session.

    It sets ``spark.sql.python.filterPushdown.enabled``, without which a source that filters cannot
    be read. In a program that has the driver in its process it also starts a service on the
    loopback device, which opens folders (``path=``) and keeps timestamps readable; it ends with the
    program, or with :func:`close`.

    Args:
        spark: the session.

    Raises:
        Invalid: the Python that Spark starts for its tasks has no Postroom.
    """
    if spark.conf.get(PUSHDOWN, None) != "true":  # where it may not be set, it may be there
        spark.conf.set(PUSHDOWN, "true")
    context = _context(spark)
    line = None
    if context is not None:
        service = service_of(spark)
        if service is None:
            check_python(context.pythonExec)
            spark.streams.addListener(Adviser())
            service = DriverService(lambda: _is_busy(context), time.monotonic)
            _services[context.applicationId] = service
        line = service.line
    spark.dataSource.register(type("PostroomSource", (PostroomSource,), {"line": line}))


def service_of(spark: SparkSession) -> DriverService | None:
    """The service that :func:`register` has started for a session; ``None``: there is none."""
    context = _context(spark)
    return None if context is None else _services.get(context.applicationId)


def close() -> None:
    """Ends what :func:`register` has started: folders are closed, protections given back."""
    while _services:
        _services.popitem()[1].close()


atexit.register(close)


def starts_with(column: str | Column, prefix: bytes) -> Column:
    """The condition that a column of bytes begins with ``prefix``, so that it is pushed down.

    (Spark hands a source the bounds of a range of bytes, but not ``startswith``.)
    """
    of = F.col(column) if isinstance(column, str) else column
    condition = of >= F.lit(prefix)
    end = after_prefix(prefix)
    return condition if end is None else condition & (of < F.lit(end))


def _context(spark: SparkSession) -> Any:
    """The driver's context; ``None``: the driver is elsewhere (Spark Connect)."""
    try:
        return spark.sparkContext
    except Exception:  # of a type that depends on what is installed
        return None


def _is_busy(context: Any) -> bool:
    """Whether Spark has jobs that run; it has none when it is stopped."""
    try:
        return bool(context.statusTracker().getActiveJobsIds())
    except Exception:  # the session has ended, however that shows
        return False


__all__ = ["close", "register", "service_of", "starts_with"]

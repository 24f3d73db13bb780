"""Advice that Spark does not give: which Python its tasks need, and how a stream is written.

Spark refuses ``outputMode("update")`` before it asks the sink, with words that show no way out. A
listener logs the way out when a query has ended with that error.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from postroom.errors import Invalid

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


__all__ = ["Adviser", "check_python"]

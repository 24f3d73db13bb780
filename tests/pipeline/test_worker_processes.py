"""What Spark's Python processes load, and what their collector looks at."""

from __future__ import annotations

import gc
import subprocess
import sys
from types import SimpleNamespace

import pytest

from postroom.pipeline import worker_processes


@pytest.mark.parametrize("name", ["pyspark.daemon", "a.program", None])
def test_only_in_processes_of_spark_what_is_imported_is_looked_at_no_more(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    done: list[str] = []
    main = SimpleNamespace(__spec__=None if name is None else SimpleNamespace(name=name))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    monkeypatch.setattr(worker_processes, "_settled", False)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    worker_processes.settle()
    worker_processes.settle()
    assert done == (["collected", "frozen"] if name == "pyspark.daemon" else [])


LOADED = """
import sys
import postroom.pipeline.source
print(*(name for name in sys.modules if name.startswith("postroom.")))
"""


def test_a_task_loads_the_client_and_nothing_of_the_server() -> None:
    """Each process of Spark's imports Postroom anew, and the first task of it waits for that."""
    ran = subprocess.run(
        [sys.executable, "-c", LOADED], check=True, capture_output=True, text=True, timeout=240
    )
    loaded = ran.stdout.split()
    assert "postroom.pipeline.batch_source" in loaded
    assert not [each for each in loaded if each.split(".")[1] in {"server", "raft", "cli", "demo"}]

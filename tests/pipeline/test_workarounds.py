"""The modules that Spark's Python processes load, and the work of their collector."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark import util
from pyspark.sql.worker import utils

from postroom.errors import Invalid
from postroom.pipeline import workarounds

STREAM_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


@pytest.fixture(autouse=True)
def _spark_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = util.handle_worker_exception
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("handle_worker_exception") is handle:
            monkeypatch.setattr(module, "handle_worker_exception", handle)


@pytest.mark.parametrize("name", ["pyspark.daemon", "a.program", None])
def test_only_in_processes_of_spark_what_is_imported_is_looked_at_no_more(
    monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    done: list[str] = []
    main = SimpleNamespace(__spec__=None if name is None else SimpleNamespace(name=name))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    monkeypatch.setattr(workarounds, "_frozen", False)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    monkeypatch.setattr(gc, "collect", lambda: done.append("collected"))
    workarounds.freeze_imports()
    workarounds.freeze_imports()
    assert done == (["collected", "frozen"] if name == "pyspark.daemon" else [])


@pytest.mark.parametrize("name", ["pyspark.daemon", STREAM_RUNNER, "a.program"])
def test_processes_of_spark_tell_errors_of_postroom_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    main = SimpleNamespace(__spec__=SimpleNamespace(name=name))
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    monkeypatch.setattr(workarounds, "_frozen", False)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    workarounds.freeze_imports()
    lost = UnboundLocalError("reader")
    lost.__context__ = Invalid("say this")
    for error in (Invalid("say this"), KeyError("of a program"), lost):
        told = io.BytesIO()
        try:
            raise error
        except Exception as caught:
            utils.handle_worker_exception(caught, told)
        is_plain = name != "a.program" and not isinstance(error, KeyError)
        assert (b"Traceback" in told.getvalue()) == (not is_plain)
        expected = b"of a program" if isinstance(error, KeyError) else b"say this"
        assert expected in told.getvalue()


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
    assert "postroom.pipeline.table_reader" in loaded
    assert not [each for each in loaded if each.split(".")[1] in {"server", "raft", "cli", "demo"}]


def test_an_import_without_spark_tells_how_to_install_it() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import postroom.pipeline"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: postroom.pipeline needs Spark"), done.stderr
    assert 'pip install ".[spark]"' in last

"""Exports of three real nodes, each of which leads a range, while one of them is killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import CommitUnknown
from tests.backup.moves import MOVES_MAX, check_moves, move, total
from tests.cluster.harness import ClusterProcesses, cluster
from tests.cluster.test_backups import spread

pytestmark = pytest.mark.skipif(find_spec("pyspark") is None, reason="needs the extra [spark]")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with cluster(tmp_path / "nodes") as processes:
        yield processes


def test_an_export_begins_anew_when_the_node_is_killed_that_leads_one_of_its_ranges(
    three: ClusterProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from postroom.pipeline.jobs.export_files import TableWriter  # noqa: PLC0415 - needs the extra
    from tests.pipeline.jobs.in_process import InProcess  # noqa: PLC0415 - needs the extra
    from tests.pipeline.jobs.test_copies_of_ranges import check_restored  # noqa: PLC0415 - the same

    exporting = import_module("postroom.pipeline.jobs.export")
    tasks = InProcess(monkeypatch, exporting, import_module("postroom.pipeline.jobs.restore"))
    stop = threading.Event()
    close, killed = TableWriter.close, []

    def work(own: bytes) -> None:
        with three.connect() as other:
            for _ in range(MOVES_MAX):
                with contextlib.suppress(CommitUnknown):  # each move is whole, or not there
                    if not stop.is_set():
                        other.run(lambda tx: move(tx, own))

    with three.connect() as db:
        spread(db)

        def closing(self: TableWriter) -> Any:
            if not killed:
                killed.append(three.nodes[1])
                killed[0].kill()
            return close(self)

        monkeypatch.setattr(TableWriter, "close", closing)
        worker = threading.Thread(target=work, args=(b"1",))
        worker.start()
        try:
            while not total(db, b"n"):
                pass
            store = {"connect": three.addresses, "insecure": "true"}
            exporting.export(None, store, str(tmp_path / "export"))
        finally:
            stop.set()
            worker.join()
        moved = check_moves(db)
    assert killed
    assert tasks.begun > 2
    assert 0 < check_restored(tmp_path / "export") <= moved

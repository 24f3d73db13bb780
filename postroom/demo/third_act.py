"""The third act, ``postroom demo --spark``: Spark moves the year into files, and audits the store.

::

    store ──archive──▶ DIR-spark/archive   mail that was read, turn-rounds that are done: Parquet
          ──report───▶ DIR-spark/report    a page, and the table that it is made of
          ──audit────▶                     everything that the store claims, counted again

The archive is compared with the departures, as the store itself was: every message that an airport
has read, and every turn-round, is there once. Numbers of the report are compared too. The audit
must find no difference, and must have found as many sums as the departures make.

The store keeps messages that were read for a day (on a cluster: as long as this runs), for the
archive. A demonstration without Spark does not keep them. If they are gone, the mail is not
compared, and a line tells it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

import postroom.aio
from postroom.counted import counted
from postroom.demo.check import SubjectComparison, compare, expect, show_comparisons, turned_round
from postroom.demo.flights import flights, legs
from postroom.demo.turn_rounds import QUEUE
from postroom.errors import SnapshotTooOld

if TYPE_CHECKING:
    from postroom.layers.report import ReportResult
    from postroom.pipeline.jobs.archive import ArchiveResult
    from postroom.pipeline.jobs.audit import AuditResult
    from postroom.pipeline.jobs.job import JobProgress

TOUR_KEY: Final = b"demo"
"""The key of a store that the tour made; other stores must not be touched."""
TOUR_FILE: Final = "made by postroom demo"
WHOLE_FILE: Final = "the archive has all mail"
KEPT_SECONDS: Final = 86_400.0
_TOUR_SPAN: Final = (TOUR_KEY, TOUR_KEY + b"\x00")


def files_folder(store: Path) -> Path:
    """Return the folder for the files that are made of a store."""
    return store.with_name(f"{store.name}-spark")


def remove_files(store: Path) -> None:
    """Delete the files that were made of a removed store."""
    files = files_folder(store)
    if (files / TOUR_FILE).exists():
        shutil.rmtree(files)


@asynccontextmanager
async def keep_readable(db: postroom.aio.Database) -> AsyncGenerator[None, None]:
    """Keep what is read meanwhile readable, from the beginning of the store if possible."""
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(db.hold())
        async for page in db.bulk.columns(*_TOUR_SPAN, at=at, values=False):
            with suppress(SnapshotTooOld):
                made_at = int.from_bytes(page.timestamps, "big")
                await stack.enter_async_context(db.hold(made_at))
        yield


async def play(
    console: Console, spark: Any, store: Mapping[str, str], files: Path, total: int, turned: int
) -> bool:
    """Archive, report and audit; return whether all of it matches the departures.

    Args:
        console: what to tell it.
        spark: a session.
        store: options of the source that say which store.
        files: a folder.
        total: how many departures there are.
        turned: after how many of them there are turn-rounds.
    """
    # The act runs in a thread: the client of a cluster shares this loop, and must send signs of
    # life.
    return await asyncio.to_thread(Play(console, spark, store, files).play, total, turned)


class Play:
    """The jobs of the third act and their checks, in blocking code."""

    def __init__(self, console: Console, spark: Any, store: Mapping[str, str], files: Path) -> None:
        self._console = console
        self._spark = spark
        self._store = store
        self._files = files

    def play(self, total: int, turned: int) -> bool:
        """Run the jobs and check them; return whether all is as expected."""
        from postroom.pipeline import jobs  # noqa: PLC0415 - needs the extra

        self._files.mkdir(exist_ok=True)
        (self._files / TOUR_FILE).touch()
        self._note_whether_whole()
        began = perf_counter()
        archive = str(self._files / "archive")
        with stages(self._console) as progress:
            archived = jobs.archive(self._spark, self._store, archive, progress=progress)
        reported_from = perf_counter()
        with stages(self._console) as progress:
            reported = jobs.report(
                self._spark,
                self._store,
                str(self._files / "report"),
                archive=archive,
                title="departures from New York, 2013",
                progress=progress,
            )
        audited_from = perf_counter()
        with stages(self._console) as progress:
            audited = jobs.audit(self._spark, self._store, progress=progress)
        audited_seconds = perf_counter() - audited_from
        again = f"{counted(audited.compared, 'value')} counted again"
        show_jobs(
            self._console,
            [
                ("archive", _archive_summary(archived), reported_from - began),
                ("report", counted(reported.rows, "measure"), audited_from - reported_from),
                ("audit", again, audited_seconds),
            ],
        )
        self._console.out(f"The report is {reported.page}", highlight=False)
        self._console.print("Comparing files, report and audit with the source ...")
        findings = self._compare(archived, reported, audited, total, turned)
        show_comparisons(self._console, findings)
        return all(finding.passed for finding in findings)

    def _note_whether_whole(self) -> None:
        """Note whether the first archive begins with the first departure."""
        from postroom.pipeline.jobs.job import database  # noqa: PLC0415 - needs the extra

        if (self._files / "archive").exists():
            return
        with database(self._spark, self._store) as db, db.hold() as at:
            (page,) = db.bulk.columns(*_TOUR_SPAN, at=at, values=False)
            made_at = int.from_bytes(page.timestamps, "big")
            readable_from = max(each.readable_from for each in db.partitions())
        if readable_from <= made_at:
            (self._files / WHOLE_FILE).touch()

    # --- the comparison

    def _compare(
        self,
        archived: ArchiveResult,
        reported: ReportResult,
        audited: AuditResult,
        total: int,
        turned: int,
    ) -> list[SubjectComparison]:
        expected = expect(flights(total))
        flown = list(legs(turned))
        sums = sum(map(_metrics, expected.accounts.values()))
        found = [compare("archived turn-rounds", turned_round(flown), self._turn_rounds())]
        if (self._files / WHOLE_FILE).exists() and not archived.gaps_so_far:
            found.append(compare("archived mail per airport", expected.mail, self._mail()))
            done = {"mail": total, "turn-rounds": len(flown)}
            found.append(compare("messages in the report", done, self._done(reported.measures)))
        else:
            self._console.out(
                "Mail that was read before Spark came is not kept, and not in the archive: start "
                "over with --fresh --spark to compare it.",
                highlight=False,
            )
        different = {each.counter: each.differences for each in audited.findings}
        claimed = {each.counter: each.compared for each in audited.findings}
        found.append(
            compare("sums that were audited", {"sums": sums}, {"sums": claimed["accounting"]})
        )
        nothing = dict.fromkeys(different, 0)
        found.append(compare("claims of the store", nothing, different))
        return found

    def _turn_rounds(self) -> dict[str, object]:
        """Return the turn-rounds of each aircraft in the files, and the sum of the numbers."""
        rows = self._query(
            "queues",
            "SELECT `group` AS tail, count(*) AS turns, "
            "sum(CAST(get_json_object(CAST(payload AS STRING), '$[0]') AS BIGINT)) AS numbers "
            f"FROM {{archived}} WHERE queue = '{QUEUE}' GROUP BY `group`",
        )
        return {row.tail: [row.turns, row.numbers] for row in rows}

    def _mail(self) -> dict[str, object]:
        """Return the arrivals and cancellations of each airport, and the sum of the numbers."""
        rows = self._query(
            "inboxes",
            "SELECT substring(CAST(key AS STRING), 9) AS airport, "
            "count_if(get_json_object(told, '$[1]') = 'false') AS arrivals, "
            "count_if(get_json_object(told, '$[1]') = 'true') AS cancelled, "
            "sum(CAST(get_json_object(told, '$[0]') AS BIGINT)) AS numbers "
            "FROM (SELECT key, CAST(value AS STRING) AS told FROM {archived} WHERE consumed) "
            "GROUP BY key",
        )
        return {row.airport: (row.arrivals, row.cancelled, row.numbers) for row in rows}

    def _done(self, measures: str) -> dict[str, object]:
        """Return how many messages were done, by the report's table."""
        rows = self._spark.sql(
            "SELECT prefix, queue, messages FROM {measures} "
            "WHERE (level = 'prefix' AND prefix = 'airport' AND measure = 'commit to reap') "
            f"OR (level = 'queue' AND queue = '{QUEUE}' AND measure = 'commit to acknowledgement')",
            measures=self._spark.read.parquet(measures),
        ).collect()
        return {"mail" if row.prefix else row.queue: row.messages for row in rows}

    def _query(self, table: str, question: str) -> list[Any]:
        from postroom.pipeline.jobs.archive import read_archive  # noqa: PLC0415 - needs the extra

        archived = read_archive(self._spark, str(self._files / "archive"))
        frame = archived.queues if table == "queues" else archived.inboxes
        return list(self._spark.sql(question, archived=frame).collect())


def _metrics(sums: Mapping[str, int]) -> int:
    """Return how many metrics a prefix has, some of which may be zero.

    A departure adds to three, one that is cancelled to another one.
    """
    return 3 * (sums["departures"] > 0) + (sums["cancelled"] > 0)


def _archive_summary(archived: ArchiveResult) -> str:
    files = counted(archived.files, "file")
    new = archived.queue_messages + archived.inbox_messages
    return f"{counted(new, 'message')}; the archive has {archived.rows:,} in {files}"


# --- output ---------------------------------------------------------------------------------------


@contextmanager
def stages(console: Console) -> Iterator[JobProgress]:
    """Show the progress of a Spark job; yield the function that the job takes as ``progress``."""
    if not console.is_terminal:
        yield lambda stage, done, total: None  # a log gets the result of a job when it is done
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield progress


def show_jobs(console: Console, rows: Sequence[tuple[str, str, float]]) -> None:
    """Print the results of the Spark jobs, and the time of each."""
    table = Table("job", "result", "seconds", title_justify="left")
    table.columns[2].justify = "right"
    for name, result, seconds in rows:
        table.add_row(name, result, f"{seconds:,.1f}")
    console.print(table)

"""The output of the tour: a progress bar while it runs, then two short tables.

If the output is no terminal, progress is a line for each tenth: a log stays short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from postroom.counted import counted
from postroom.demo.check import SubjectComparison
from postroom.demo.replay import Measures
from postroom.demo.turn_rounds import TurnRoundOutcomes

if TYPE_CHECKING:
    from postroom.pipeline.jobs.job import JobProgress

DIFFERENCES_SHOWN: Final = 3


@contextmanager
def progress(
    console: Console, done: int, total: int, what: str = "departures"
) -> Iterator[Callable[[], None]]:
    """Show the progress of the job; yield a function to call for each of ``what``."""
    if not console.is_terminal:
        yield _line_per_tenth(console, done, total, what)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda: bar.advance(task)


def _line_per_tenth(console: Console, done: int, total: int, what: str) -> Callable[[], None]:
    def advance() -> None:
        nonlocal done
        before, done = done * 10 // total, done + 1
        if done * 10 // total > before:
            console.out(f"{done:,} of {total:,} {what}", highlight=False)

    return advance


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


def show_measures(console: Console, measures: Measures, folder: Path) -> None:
    """Print a short table of amount, speed and size."""
    transactions = measures.departures + measures.boards
    rows = {
        "transactions": f"{transactions:,}",
        "messages sent": f"{measures.messages_sent:,}",
        "messages read": f"{measures.messages_read:,}",
        "deferred updates": f"{measures.updates:,}",
        "elapsed": f"{measures.seconds:,.1f} s",
        "throughput": f"{transactions / measures.seconds:,.0f} transactions/s",
        "commit p50, p95, p99": _percentiles(measures.commit_seconds.tolist()),
        "on disk": f"{bytes_on_disk(folder) / 1e6:,.1f} MB",
    }
    table = Table(title="This run", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def _percentiles(seconds: list[float]) -> str:
    seconds.sort()
    chosen = (seconds[int(len(seconds) * share)] * 1000 for share in (0.5, 0.95, 0.99) if seconds)
    return ", ".join(f"{milliseconds:.1f}" for milliseconds in chosen) + " ms" if seconds else "-"


def show_attempts(console: Console, attempts: Sequence[TurnRoundOutcomes], seconds: float) -> None:
    """Print the outcome of turn-rounds: a row for each first attempt, second one, and so on."""
    done = sum(len(each.late_milliseconds) for each in attempts)
    title = f"{done:,} turn-rounds; this run took {seconds:,.1f} s"
    table = Table(title=title, title_justify="left")
    for name in ("attempt", "begun", "failed", "lost", "done", "late p50, p95, p99"):
        table.add_column(name, justify="right")
    for number, each in enumerate(attempts, 1):
        late = _percentiles([milliseconds / 1000 for milliseconds in each.late_milliseconds])
        counts = (each.begun, each.failed, each.lost, len(each.late_milliseconds))
        table.add_row(f"{number}", *(f"{count:,}" for count in counts), late)
    console.print(table)


def bytes_on_disk(folder: Path) -> int:
    """Return the size of all files in the data folder, which may change meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # the storage engine has just replaced it
            continue
    return total


def show_comparisons(console: Console, findings: list[SubjectComparison]) -> None:
    """Print the verdict, subject by subject, and the first differences of each."""
    table = Table("compared with the source", "values", "result", title_justify="left")
    table.columns[1].justify = "right"
    for finding in findings:
        result = "[green]PASS[/]" if finding.passed else "[bold red]FAIL[/]"
        table.add_row(finding.subject, f"{finding.compared:,}", result)
    console.print(table)
    for finding in findings:
        for difference in finding.differences[:DIFFERENCES_SHOWN]:
            console.out(f"{finding.subject}: {difference}", style="red")
        if (more := len(finding.differences) - DIFFERENCES_SHOWN) > 0:
            console.out(f"{finding.subject}: {counted(more, 'more difference')}", style="red")

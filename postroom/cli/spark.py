"""Options, Spark session and progress bars that the commands of jobs share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from postroom.cli.options import StoreOptions, pairs, required_store, with_options
from postroom.errors import Unavailable, how_to_install

if TYPE_CHECKING:
    from postroom.pipeline.jobs.job import JobProgress

_MASTER: Final = "local[*]"

_Master = Annotated[
    str,
    typer.Option(
        "--master", metavar="URL", help="Run Spark at URL, for example spark://HOST:PORT."
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="NAME=VALUE", help="Set NAME of Spark to VALUE; give it once for each."
    ),
]


@dataclass(frozen=True, slots=True)
class Spark:
    """The settings with which Spark is started.

    Attributes:
        master: where it runs.
        settings: by name.
    """

    master: str
    settings: Mapping[str, str]

    @contextmanager
    def session(self, job: str) -> Iterator[Any]:
        """Start a session for a job, and stop it at the end.

        Raises:
            Unavailable: what Spark needs is not installed.
        """
        if find_spec("pyspark") is None or find_spec("pyarrow") is None:
            raise Unavailable(f"jobs need Spark; nothing was done: {how_to_install('spark')}")
        from postroom.pipeline.sessions import session  # noqa: PLC0415 - needs the extra

        with session(f"postroom {job}", self.master, self.settings) as spark:
            yield spark


def _spark(master: _Master = _MASTER, conf: _Settings = None) -> Spark:
    """Return the settings of Spark that the options name."""
    return Spark(master, pairs(conf, "--conf"))


def on_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function with a :class:`StoreOptions` and a :class:`Spark`."""
    return with_options(command, required_store, _spark)


def source_options(store: StoreOptions) -> dict[str, str]:
    """Return the store as options of the Spark source."""
    if store.path is not None:
        store.check_folder()
        return {"path": str(store.path)}
    options = {"connect": ",".join(store.addresses)}
    if store.tls is None:
        options["insecure"] = "true"
    else:
        files = {f"tls_{name}": getattr(store.tls, name) for name in ("ca", "certificate", "key")}
        options |= {name: str(file) for name, file in files.items() if file is not None}
    if store.token is not None:
        options["token"] = store.token
    return options


@contextmanager
def progress_shown(*, quiet: bool = False) -> Iterator[JobProgress]:
    """Show on standard error how far a job is, if that is a terminal.

    Args:
        quiet: show nothing.
    """
    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=quiet or not sys.stderr.isatty(),
    )  # fmt: skip
    tasks: dict[str, Any] = {}

    def progress(stage: str, done: int, total: int | None) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total)
        bars.update(tasks[stage], completed=done, total=total)

    with bars:
        yield progress

"""The common parts of jobs: their store, their progress, their errors, and work that is spread.

A job is a function of a session and a store. The store is given as options of the source, which a
job hands on::

    store = {"connect": "10.0.0.1:7400", "tls_ca": "ca.pem"}
    spark.read.format("postroom").options(**store).option("table", "queue").load()

A job can be killed at any moment and run again: then it ends as if it had run once.

A job that reads or writes no rows of Spark's spreads its work (:func:`spread`): a function is
called for each of many things. Each thing is a task, and the answer of the function (bytes) comes
back. An error that it raises on purpose comes back, too, and is raised here: a job sees the errors
of the store, and not a page of Java. Other errors fail the task, which Spark tries again by its own
settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from postroom import TLS, Codec, Database, connect, errors, pipeline
from postroom.errors import Error, Invalid
from postroom.pipeline.options import StoreAddress, parse

_OWN: Final = re.compile(r"\bpostroom\.(?:\w+\.)+[A-Z]\w*: (.+)")
"""An error of Postroom, as Spark tells it: with its name before it."""
_GENERAL: Final = "An error occurred while calling"


class JobFailed(Error):
    """A job could not do its work; the message says what was changed, and what to do."""


class JobProgress(Protocol):
    """The receiver of a job's progress."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report that ``done`` of ``total`` (``None``: unknown) are done of a stage.

        Args:
            stage: what is being done, in a few words; those of a job follow each other.
            done: how many of whatever the stage counts.
            total: of how many.
        """


def own_error(text: str) -> str:
    """Return the last error of Postroom in Spark's text of a failure; empty: there is none."""
    return str(["", *_OWN.findall(text)][-1]).strip()


def in_a_line(text: str) -> str:
    """Return Spark's text of a failure as one line, without the calls in its processes.

    The line is the last one that Postroom has said in a task, or else the first one.
    """
    own = own_error(text)
    if own:
        return own
    lines = [line.strip(": ") for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(_GENERAL)]
    return f"Spark: {told[0]}" if told else "Spark has failed, and does not say why"


def _silent(stage: str, done: int, total: int | None) -> None:
    del stage, done, total


SILENT: JobProgress = _silent
"""The receiver that ignores progress."""


@contextmanager
def database(
    spark: SparkSession, store: Mapping[str, str], codec: str | Codec | None = None
) -> Iterator[Database]:
    """Connect to the store, over a connection of the job's own.

    The driver's service opens a folder, once for everybody in this program.

    Args:
        spark: a session on which :func:`postroom.pipeline.register` was called.
        store: options of the source that say which store.
        codec: of values; they are bytes if it is not given.

    Raises:
        Invalid: the options say no store, or a folder where there is no driver's service.
        Unavailable, AccessDenied, StoreLocked: it cannot be reached, or opened.
    """
    wanted = reached(spark, store)
    tls = None if wanted.tls is None else TLS(*wanted.tls)
    with connect(
        wanted.connect, tls=tls, token=wanted.token, insecure=wanted.insecure, codec=codec
    ) as db:
        yield db


def reached(spark: SparkSession, store: Mapping[str, str]) -> StoreAddress:
    """Return a store as tasks reach it: the driver's service opens and serves a folder.

    Raises:
        Invalid: the options say no store, or a folder where there is no driver's service.
    """
    wanted = parse(store).store
    if not wanted.path:
        return wanted
    service = pipeline.service_of(spark)
    if service is None:
        raise Invalid("path= needs the driver on this machine: give connect= instead")
    return service.line.address(wanted)


# --- work that is spread --------------------------------------------------------------------------


T = TypeVar("T")

AT_ONCE: Final = 32
"""The things given to Spark at a time; between them the progress is reported."""
_SCHEMA: Final = "number bigint, failed string, said binary"


def spread(
    spark: SparkSession,
    act: Callable[[T], bytes],
    things: Sequence[T],
    stage: str,
    progress: JobProgress,
) -> list[bytes]:
    """Return the answers of ``act`` to each of ``things``, in their order.

    Args:
        spark: whose tasks.
        act: called once for each, and again where a task is; pickled, as ``things`` are.
        things: what there is to do.
        stage: as it is shown.
        progress: told after each round.

    Raises:
        Error: what ``act`` has raised.
    """
    said: list[bytes] = []
    progress(stage, 0, len(things))
    for first in range(0, len(things), AT_ONCE):
        some = list(things[first : first + AT_ONCE])
        frame = spark.range(0, len(some), 1, len(some)).mapInArrow(_each(act, some), _SCHEMA)
        answers = sorted(frame.collect(), key=lambda row: int(row["number"]))
        for row in answers:
            if row["failed"]:
                raise getattr(errors, row["failed"], Error)(bytes(row["said"]).decode())
        said += [bytes(row["said"]) for row in answers]
        progress(stage, len(said), len(things))
    return said


def _each(
    act: Callable[[T], bytes], things: list[T]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                failed, said = tried(act, things[number])
                yield pa.RecordBatch.from_pydict(
                    {"number": [number], "failed": [failed], "said": [said]},
                    pa.schema([
                        ("number", pa.int64()), ("failed", pa.string()), ("said", pa.binary()),
                    ]),
                )  # fmt: skip

    return run


def tried(act: Callable[[T], bytes], thing: T) -> tuple[str, bytes]:
    """Return the name of the error that ``act`` has raised, or ``""``, and its text or answer."""
    try:
        return "", act(thing)
    except Error as error:
        kind = type(error).__name__
        return kind if hasattr(errors, kind) else "Error", str(error).encode()

"""Work that is spread over Spark's tasks: a function that is called for each of many things.

It is for jobs that read or write no rows of Spark's. Each thing is a task, and the answer of the
function (bytes) comes back. An error that it raises on purpose comes back, too, and is raised here:
a job sees the errors of the store, and not a page of Java. Other errors fail the task, which Spark
tries again by its own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from postroom import errors, pipeline
from postroom.errors import Error, Invalid
from postroom.pipeline.jobs.job import JobProgress
from postroom.pipeline.options import StoreAddress, parse

T = TypeVar("T")

AT_ONCE: Final = 32
"""The things given to Spark at a time; between them the progress is reported."""
_SCHEMA: Final = "number bigint, failed string, said binary"


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
    return replace(service.line.address(wanted), insecure=True)


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

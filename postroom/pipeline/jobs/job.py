"""The common parts of jobs: their store, their progress and their errors.

A job is a function of a session and a store. The store is given as options of the source, which a
job hands on::

    store = {"connect": "10.0.0.1:7400", "tls_ca": "ca.pem"}
    spark.read.format("postroom").options(**store).option("table", "queue").load()

A job can be killed at any moment and run again: then it ends as if it had run once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from pyspark.sql import SparkSession

from postroom import TLS, Codec, Database, connect, pipeline
from postroom.errors import Error, Invalid
from postroom.pipeline.options import parse

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
    wanted = parse(store).store
    if wanted.path:
        service = pipeline.service_of(spark)
        if service is None:
            raise Invalid("path= needs the driver on this machine: give connect= instead")
        wanted = replace(service.line.address(wanted), insecure=True)
    tls = None if wanted.tls is None else TLS(*wanted.tls)
    with connect(
        wanted.connect, tls=tls, token=wanted.token, insecure=wanted.insecure, codec=codec
    ) as db:
        yield db

"""What jobs have in common: the store that they are about, and how they tell how far they are.

A job is a function of a session and a store. The store is given as the options of the source that
say which one, so that a job hands them on::

    store = {"connect": "10.0.0.1:7400", "tls_ca": "ca.pem"}
    spark.read.format("postroom").options(**store).option("table", "queue").load()

A job can be killed at any moment and run again: then it ends as if it had run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Protocol

from pyspark.sql import SparkSession

from postroom import pipeline
from postroom.client.codec import Codec
from postroom.client.remote.connect import TLS, connect
from postroom.client.sync import Database
from postroom.errors import Error, Invalid
from postroom.pipeline.options import parse

_OWN: Final = "postroom."
"""What the names of Postroom's errors begin with."""
_GENERAL: Final = "An error occurred while calling"


class JobFailed(Error):
    """A job could not do what it is for; the message says what was changed, and what to do."""


class Progress(Protocol):
    """Is told how far a job is."""

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """``done`` of ``total`` (``None``: nobody knows) are done of a stage.

        Args:
            stage: what is being done, in a few words; those of a job follow each other.
            done: how many of whatever the stage counts.
            total: of how many.
        """


def in_a_line(text: str) -> str:
    """What Spark says of a failure, without the ways through its processes: the last thing that
    Postroom has said in a task, or else the first line.
    """
    lines = [line.strip(": ") for line in text.splitlines()]
    own = [line for line in lines if line.startswith(_OWN)]
    if own:
        return own[-1].partition(": ")[2].strip()
    told = [line for line in lines if line and not line.startswith(_GENERAL)]
    return f"Spark: {told[0]}" if told else "Spark has failed, and does not say why"


def _silent(stage: str, done: int, total: int | None) -> None:
    del stage, done, total


SILENT: Progress = _silent
"""Is told, and tells nobody."""


@contextmanager
def database(
    spark: SparkSession, store: Mapping[str, str], codec: str | Codec | None = None
) -> Iterator[Database]:
    """The store, over a connection of the job's own. A folder is opened by the driver's service,
    once for everybody in this program.

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

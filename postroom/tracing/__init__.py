"""Spans of transactions, sends, receives and task runs for OpenTelemetry: opt in, per database.

::

    transaction ─▶ send ─ ─ context in the headers ─ ─▶ receive, process   linked, not children

* A database that is instrumented sends its requests through a :class:`.TracedSender`. A worker that
  is instrumented calls its functions in spans (:func:`.process_spans`). Others cost nothing.
* Names and attributes are those of the semantic conventions for messaging and databases.
* The context of a send travels in the headers of its messages, in the form of the propagator that
  the program has configured; by default as W3C ``traceparent``. A context that is malformed, or
  larger than ``CONTEXT_CHARACTERS_MAX``, is ignored.
* Spans contain no payloads, and keys are shortened.

This package uses the API of OpenTelemetry alone (extra ``[tracing]``). The application configures
the SDK, and then calls :func:`instrument`.
"""

from __future__ import annotations

import logging
from typing import Any

from opentelemetry import trace

from postroom.client import database as asynchronous
from postroom.client import sync as blocking
from postroom.client.sender import Sender
from postroom.client.worker.worker import WorkerTasks
from postroom.tracing.sender import TracedSender
from postroom.tracing.workers import process_spans
from postroom.version import VERSION

_log = logging.getLogger(__name__)
_RECORDS_NOTHING = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


def instrument(target: Any, *, tracer_provider: trace.TracerProvider | None = None) -> bool:
    """Have a database, or a worker and its database, make spans from now on.

    Instrument a database before you make queues and transactions of it, and a worker before it
    runs. A worker may get its database later. A second call changes nothing.

    Args:
        target: a database or a worker, of either form.
        tracer_provider: the provider of the tracer; ``None``: the global one.

    Returns:
        Whether spans are made. Without a configured SDK nothing is changed.

    Raises:
        TypeError: ``target`` is neither.
    """
    provider = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
    if not isinstance(target, asynchronous.CoreDatabase | blocking.CoreDatabase | WorkerTasks):
        raise TypeError(f"a database or a worker can be instrumented, not {type(target).__name__}")
    if isinstance(provider, _RECORDS_NOTHING):
        _log.info("no spans are made: configure the SDK of OpenTelemetry before instrument()")
        return False
    tracer = provider.get_tracer("postroom", VERSION)

    def traced(sender: Sender) -> Sender:
        return sender if isinstance(sender, TracedSender) else TracedSender(sender, tracer)

    target.reach_through(traced)
    if isinstance(target, WorkerTasks):
        target.make_context = process_spans(tracer)
    return True

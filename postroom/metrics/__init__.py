"""Metrics of a store, for Prometheus; needs the extra ``[metrics]``.

::

    scraper ── HTTP ─▶ Endpoint (a thread of its own) ─┐
    registry of the application ── collect ────────────┴─▶ StoreCollector ─▶ Sampling
                                                                                │ one at a time
                                      node, between two of its turns  ◀── look ─┘

Nothing is sent to the store: a sample reads counters that the node keeps anyway. If the node does
not answer within a second, the sample before counts, and says how old it is.

:mod:`.table` has all metrics. Each kind of them is read by a module: :mod:`.node_figures`,
:mod:`.message_figures`, :mod:`.client_figures` (of a served node), :mod:`.process_figures`.

Labels have few values: nodes, services, reasons, the first 100 queues, the first 50 kinds of their
messages. Keys of inboxes, payloads and ids of messages are in none.
"""

from __future__ import annotations

from importlib.util import find_spec

from postroom.errors import Error, how_to_install

if find_spec("prometheus_client") is None:
    raise Error(f"metrics need another library: {how_to_install('metrics')}")

from postroom.metrics.collector import StoreCollector, collector

__all__ = ["StoreCollector", "collector"]

"""The gateway: the service ``postroom.v1`` for programs in any language, over gRPC.

::

    program ── gRPC ──▶ Gateway ─▶ Service ─┬─ one request: functions of the service
    (any language)      TLS, health,        ├─ Transaction, Execute: TransactionCall
                        reflection          ├─ BatchExecute: BatchCall, many of these at a time
                                            └─ Receive, Acknowledge, ...: Deliveries
                                                  │
                                            StoreConnections: one asyncio Database for each token
                                                  │
                                            an embedded store, or the nodes of a cluster

It is a thin layer over the public asyncio client: it imports :mod:`postroom`, :mod:`postroom.aio`
and :mod:`postroom.errors`, and nothing else of the package. Thus the nodes decide about tokens and
roles: the gateway shows them the token of its caller.

``postroom.proto`` beside this file defines the service. ``postroom_pb2.py`` and its types are
generated from it (``make proto``) and never edited. The calls are found by their names in it.

It leaves out administration, bulk data, search and workers, which are for Python.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"
TRIED_VERSIONS: Final = ("1.85.",)


def prepare_environment() -> None:
    """Set what gRPC reads in the environment when it is loaded; the user's own settings stay.

    * ``GRPC_ENABLE_FORK_SUPPORT=0``: gRPC's own handling of forks crashes the child while streams
      are open.
    * ``GRPC_VERBOSITY=NONE``: a connection that fails is an error of its call, and no line on
      standard error.
    * ``GRPC_EXPERIMENTS``: the *event engine* of newer versions, a pool of threads, hands each
      message from thread to thread. Without it a call takes a third less processor time. The names
      of experiments belong to a version, so only versions that were tried get them.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        installed = version("grpcio")
    except PackageNotFoundError:
        return
    if installed.startswith(TRIED_VERSIONS):
        os.environ.setdefault("GRPC_EXPERIMENTS", WITHOUT_EVENT_ENGINE)


__all__ = ["prepare_environment"]

"""The gateway: the service ``postroom.v1`` for programs in any language, over gRPC.

::

    program ── gRPC ──▶ Listener ─▶ Service ─┬─ one call: Calls
    (any language)      TLS, health,         ├─ Transaction: TransactionCall   one stream each
                        reflection           ├─ Receive, Acknowledge, ...: Deliveries
                                             └─ Scan, Watch: Readings
                                                   │
                                             Connections: one asyncio Database for each token
                                                   │
                                             an embedded store, or the nodes of a cluster

It is a thin layer over the public asyncio client: it imports :mod:`postroom`, :mod:`postroom.aio`
and :mod:`postroom.errors`, and nothing else of the package. So the nodes decide about tokens and
roles: the gateway shows them the token of its caller.

``postroom.proto`` beside this file defines the service. ``postroom_pb2.py``, its types and
``postroom_pb2_grpc.py`` are generated from it (``make proto``) and never edited.

What it leaves out: administration, bulk data, search and workers, which are for Python.
"""

from postroom.gateway.limits import Limits

__all__ = ["Limits"]

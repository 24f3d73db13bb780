"""The settings of gRPC in the environment, made before it is loaded; the user's own stay.

* ``GRPC_ENABLE_FORK_SUPPORT=0``: gRPC's own handling of forks crashes the child while streams are
  open.
* ``GRPC_VERBOSITY=NONE``: a connection that fails is an error of its call, and no line on standard
  error.
* ``GRPC_EXPERIMENTS``: the *event engine* of newer versions, a pool of threads, hands each message
  from thread to thread. Without it a call takes a third less processor time. The names of
  experiments belong to a version, so only versions that were tried get them.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"
TRIED_VERSIONS: Final = ("1.85.",)


def prepare() -> None:
    """Set what is not set yet. This has no effect once gRPC is loaded."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        installed = version("grpcio")
    except PackageNotFoundError:
        return
    if installed.startswith(TRIED_VERSIONS):
        os.environ.setdefault("GRPC_EXPERIMENTS", WITHOUT_EVENT_ENGINE)

"""One connection to each store for each process.

Spark forks its workers, pickles readers, and runs many tasks in one process. A connection is
therefore never an attribute of a pickled object. It is looked up by its address, and made anew in
the child of a fork.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from postroom.client.remote.connect import connect
from postroom.client.remote.tls_files import TLS
from postroom.client.sync import CoreDatabase
from postroom.pipeline.options import StoreAddress
from postroom.pipeline.workarounds import freeze_imports

_lock = threading.Lock()
_open: dict[tuple[int, StoreAddress], CoreDatabase] = {}


def database(store: StoreAddress) -> CoreDatabase:
    """Return this process's connection to a store; make one if there is none.

    Raises:
        Unavailable, AccessDenied: it cannot be reached.
    """
    key = (os.getpid(), store)
    with _lock:
        found = _open.get(key)
        if found is None:
            tls = None if store.tls is None else TLS(*store.tls)
            found = _open[key] = connect(
                store.connect, tls=tls, token=store.token, insecure=store.insecure
            )
            freeze_imports()
        return found


def at_address(store: StoreAddress, address: str) -> StoreAddress:
    """Return the store at another address, on the loopback device."""
    return replace(store, connect=address, insecure=True)


def close(store: StoreAddress) -> None:
    """End this process's connection, if there is one."""
    with _lock:
        found = _open.pop((os.getpid(), store), None)
    if found is not None:
        found.close()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may hold it
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)

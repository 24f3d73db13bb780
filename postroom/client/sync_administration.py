"""The synchronous form of the calls for operators: see :mod:`postroom.client.sync`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from postroom.client import administration as asynchronous
from postroom.client.blocking import blocking
from postroom.client.sender import BlockingSender


class Administration:
    """An open store, as its operator sees it."""

    _blocking: BlockingSender
    _core: asynchronous.Administration

    # --- waiting messages and updates

    inboxes = blocking(asynchronous.Administration.inboxes)
    dead_letters = blocking(asynchronous.Administration.dead_letters)
    replay = blocking(asynchronous.Administration.replay)
    discard = blocking(asynchronous.Administration.discard)
    scheduled = blocking(asynchronous.Administration.scheduled)
    cancel = blocking(asynchronous.Administration.cancel)
    drain = blocking(asynchronous.Administration.drain)

    # --- readers that come back later

    keep_position = blocking(asynchronous.Administration.keep_position)
    forget_position = blocking(asynchronous.Administration.forget_position)

    # --- the store itself

    status = blocking(asynchronous.Administration.status)
    close = blocking(asynchronous.Administration.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

"""The requests of the protocol: all that the listed modules define, and tables by their types.

A request is added by its class in one of these modules; its class tells everything about it
(:mod:`postroom.ranges.contract`), and the tables here follow. Answers have no kind of their own on
the wire: they are decoded by the type of the request that they answer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

import msgspec

from postroom.messaging import bulk_requests as bulk_messages
from postroom.messaging import requests as messages
from postroom.messaging.ingest import requests as ingests
from postroom.messaging.queues import queries as queue_queries
from postroom.messaging.queues import requests as queues
from postroom.protocol.failures import WireError
from postroom.ranges import nodes, positions
from postroom.ranges import partitions as bulk_keys
from postroom.ranges import requests as keys
from postroom.ranges.contract import Request, Role, Write
from postroom.ranges.requests import CommitTransaction

MODULES: Final[tuple[ModuleType, ...]] = (
    keys,
    bulk_keys,
    positions,
    nodes,
    messages,
    bulk_messages,
    ingests,
    queues,
    queue_queries,
)
"""The modules that define requests."""


class Requests:
    """The requests that some modules define, in their order.

    Args:
        modules: the modules.

    Attributes:
        all: the classes of all requests.
        writes: the classes of those that a transaction may have.
        asked: the classes of those that a client may send, alone.
        write: the type of any write, for decoders.
        request: the type of any request that a client may send, for decoders.
        answers: the type of the answer to each request that a client may send.
    """

    def __init__(self, modules: Iterable[ModuleType] = MODULES) -> None:
        self.all = tuple(kind for module in modules for kind in _defined_in(module))
        self.writes = tuple(kind for kind in self.all if issubclass(kind, Write))
        self.asked = tuple(
            kind for kind in self.all if kind.role is not None and not issubclass(kind, Write)
        )
        write: Any = any_of(self.writes)
        self.write = write
        self.request: Any = any_of(
            CommitTransaction[write] if kind is CommitTransaction else kind for kind in self.asked
        )
        self.answers: dict[type[Request], Any] = {kind: kind.answer for kind in self.asked}

    def allowed(self, role: Role) -> frozenset[type[Request]]:
        """Return the classes of the requests that clients of a role may send."""
        return frozenset(
            kind for kind in self.asked if kind.role is not None and role.includes(kind.role)
        )


def name_of(kind: type[Request]) -> str:
    """Return the name of a class of requests on the wire."""
    return str(kind.__struct_config__.tag)


def _defined_in(module: ModuleType) -> Iterator[type[Request]]:
    for kind in vars(module).values():
        if (
            isinstance(kind, type)
            and issubclass(kind, Request)
            and kind.__module__ == module.__name__
        ):
            yield kind


def any_of(types: Iterable[Any]) -> Any:
    """Return the union of some types, for decoders."""
    return functools.reduce(operator.or_, types)


# --- those of this version ------------------------------------------------------------------------

REQUESTS: Final = Requests()
"""The requests of this version."""

RESULT_DECODERS: Final = {
    kind: msgspec.msgpack.Decoder(answer).decode for kind, answer in REQUESTS.answers.items()
}
"""The decoders of answers. They raise ``MALFORMED`` for bytes that are no such answer."""

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_result(kind: type, result: msgspec.Raw) -> Any:
    """Decode the answer to a request of the type ``kind``.

    Raises:
        WireError: the bytes are no such answer.
    """
    try:
        return RESULT_DECODERS[kind](result)
    except MALFORMED as error:
        raise not_an_answer(kind, error) from error


def not_an_answer(kind: type, error: Exception) -> WireError:
    """Return the error for a result that is no answer to a request of the type ``kind``."""
    return WireError(f"not an answer to {kind.__name__}: {error}")

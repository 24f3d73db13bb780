"""The rules of the homes of messages, over all ranges of a store.

A message of a queue, of a kind and an id, lies in one place. If that is not its id, a pointer under
the id leads there, once nothing is on its way between ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from postroom.kv import keys
from tests.sim.checkers import Content, require

Message: TypeAlias = tuple[bytes, bytes, bytes]
"""The number of a queue, a kind and an id."""


class _Parts(NamedTuple):
    """The parts of the engine key of a body, a state or a pointer."""

    user_key: bytes
    suffix: bytes
    number: bytes
    kind: bytes
    rest: bytes


def check_homes(contents: Sequence[Content]) -> None:
    """Check that each message is in one place, and is found by its id."""
    every = list(_said(contents))
    bodies = [
        ((each.number, each.kind, each.rest), each.user_key)
        for each, _ in every
        if each.suffix == keys.QUEUE_BODY
    ]
    homes: dict[Message, bytes] = dict(bodies)
    require(len(homes) == len(bodies), f"a message lies in two places: {sorted(bodies)}")
    if any(content.outgoing for content in contents):
        return
    pointers = {
        (each.number, each.kind, each.user_key): stored
        for each, stored in every
        if each.suffix == keys.QUEUE_POINTER
    }
    wanted = {message: home for message, home in homes.items() if home != message[-1]}
    require(pointers == wanted, f"pointers lead to {pointers}, messages lie at {wanted}")


def _said(contents: Iterable[Content]) -> Iterator[tuple[_Parts, bytes]]:
    return ((_parts(raw), stored) for each in contents for raw, stored in each.said.items())


def _parts(raw: bytes) -> _Parts:
    at = raw.index(keys.END_OF_KEY, 1) + len(keys.END_OF_KEY)
    kind, _, rest = raw[at + 5 :].partition(keys.END_OF_KEY)
    return _Parts(keys.user_key(raw), raw[at : at + 1], raw[at + 1 : at + 5], kind, rest)

"""Asynchronous iterators as synchronous ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from postroom.client.sender import BlockingSender

T = TypeVar("T")


def iterate(sender: BlockingSender, items: AsyncIterator[T]) -> Iterator[T]:
    """``items`` one by one; closed with the generator."""
    try:
        while True:
            try:
                item = sender.run(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            sender.run(close())


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)

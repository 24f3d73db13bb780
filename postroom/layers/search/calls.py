"""The search calls of a database, in the asyncio form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.layers.search import building
from postroom.layers.search import definition as definitions
from postroom.layers.search.definition import Definition
from postroom.layers.search.index import SearchIndex
from postroom.layers.search.layout import DEFINITIONS


class SearchCalls:
    """The search calls of a database, in the asyncio form."""

    async def create_search_index(
        self: Any,
        name: str,
        prefix: bytes,
        *,
        fields: Sequence[str] = (),
        format: str | None = None,  # noqa: A002 - like the option of Spark
        anew: bool = False,
    ) -> SearchIndex:
        """Make a full-text index over the documents whose keys begin with ``prefix``.

        Existing documents are indexed now, by transactions; for many, the job ``index`` is quicker.
        If an index of that name exists for the same documents, it is only built if its build was
        not finished.

        Args:
            name: 128 bytes at most.
            prefix: the prefix of the keys.
            fields: the fields that are searched, ``a.b`` for one inside another; none: all text.
            format: the format of values: ``text``, ``json`` or ``msgpack``; ``None``: by the codec.
            anew: whether to build it again even if it exists.

        Returns:
            The index.

        Raises:
            TypeError, ValueError: an argument is not valid.
            Invalid: there is one of this name for other documents.
        """
        wanted = definitions.define(name, prefix, fields, format or format_of(self.codec))
        work = building.Building(self, wanted)
        definition = await work.begin(anew=anew)
        if definition.state != "ready":
            await work.build(definition)
        return SearchIndex(self, name)

    def search_index(self: Any, name: str) -> SearchIndex:
        """Return the search index of that name.

        The store is not asked: if there is no such index, the first call raises ``Invalid``.

        Args:
            name: its name.
        """
        return SearchIndex(self, name)

    async def search_indexes(self: Any) -> list[Definition]:
        """Return the definitions of all search indexes."""
        found = self.as_stored().scan(*DEFINITIONS)
        return [definitions.read(stored) async for _, stored in found]

    async def drop_search_index(self: Any, name: str) -> bool:
        """Drop a search index; its documents stay. Return whether there was one.

        Args:
            name: its name.
        """
        return await building.drop(self.as_stored(), name)

    async def sweep_search_indexes(self: Any) -> int:
        """Delete data of indexes that no longer exist; return of how many.

        Late tasks of a build may have left such data.
        """
        return await building.sweep(self.as_stored())


def format_of(codec: Any) -> str:
    """Return the format of the values that a codec packs.

    Raises:
        ValueError: it is one of the application's own.
    """
    if not codec.packs:
        return "text"
    packed = codec.encode([1, "a"])
    formats = {b'[1,"a"]': "json", b"\x92\x01\xa1a": "msgpack"}
    if packed not in formats:
        raise ValueError(
            "a search index must read documents where this codec is not known: give format= json, "
            "msgpack or text, as the stored values are"
        )
    return formats[packed]


__all__ = ["SearchCalls", "format_of"]

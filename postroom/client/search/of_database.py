"""What a database offers about search indexes, in the asyncio form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postroom.client.codec import Packing
from postroom.client.search import building
from postroom.client.search import definition as definitions
from postroom.client.search.definition import Definition
from postroom.client.search.index import SearchIndex
from postroom.client.search.layout import DEFINITIONS


class SearchOfDatabase:
    """What a database offers about search indexes."""

    async def create_search_index(
        self: Any,
        name: str,
        prefix: bytes,
        *,
        fields: Sequence[str] = (),
        format: str | None = None,  # noqa: A002 - as the option of Spark
        anew: bool = False,
    ) -> SearchIndex:
        """Makes a full-text index over the documents whose keys begin with ``prefix``.

        If there are such documents they are indexed now, by transactions; of many, the job
        ``index`` does so quicker. One of that name for the same documents is fine: if it was not
        built to its end, it is built.

        Args:
            name: 128 bytes at most.
            prefix: of the keys.
            fields: the fields that are searched, ``a.b`` for one inside another; none: all text.
            format: of values: ``text``, ``json`` or ``msgpack``; ``None``: by the codec.
            anew: built anew, even if it is there.

        Raises:
            TypeError, ValueError: an argument is none that can be.
            Invalid: there is one of this name for other documents.
        """
        wanted = definitions.define(name, prefix, fields, format or format_of(self.codec))
        work = building.Building(self, wanted)
        definition = await work.begin(anew=anew)
        if definition.state != "ready":
            await work.build(definition)
        return SearchIndex(self, name)

    def search_index(self: Any, name: str) -> SearchIndex:
        """The search index of that name. Nobody is asked: if there is none, the first call says
        so.
        """
        return SearchIndex(self, name)

    async def search_indexes(self: Any) -> list[Definition]:
        """All search indexes."""
        found = self.as_stored().scan(*DEFINITIONS)
        return [definitions.read(stored) async for _, stored in found]

    async def drop_search_index(self: Any, name: str) -> bool:
        """Drops a search index; its documents stay. Whether there was one."""
        return await building.drop(self.as_stored(), name)

    async def sweep_search_indexes(self: Any) -> int:
        """Deletes data of indexes that are not there any more, which late tasks of a build may have
        left; of how many.
        """
        return await building.sweep(self.as_stored())


def format_of(codec: Packing) -> str:
    """Of the values that a codec packs.

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


__all__ = ["SearchOfDatabase", "format_of"]

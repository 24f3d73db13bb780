"""A query: words that a document must have.

========================  ======================================================================
``wine cellar``           both words, anywhere
``cell*``                 a word with this prefix
``"wine cellar"``         these words, one right after the other, in one text of the document
========================  ======================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from postroom.layers.search.limits import SEARCHED_WORDS_MAX
from postroom.layers.search.words import words

_PARTS: Final = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True)
class Query:
    """The words that a document must have.

    Attributes:
        exact: these words.
        prefixes: for each of them, a word with this prefix.
        phrases: these words in a row.
    """

    exact: tuple[str, ...]
    prefixes: tuple[str, ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()


def parse(text: str) -> Query:
    """Return the query in ``text``.

    Raises:
        TypeError: it is no text.
        ValueError: there is no word in it, or more than ``SEARCHED_WORDS_MAX``.
    """
    if not isinstance(text, str):
        raise TypeError(f"what is searched for is a str, not {type(text).__name__}")
    exact: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    phrases: dict[tuple[str, ...], None] = {}
    for quoted, bare in _PARTS.findall(text):
        found = words(quoted or bare)
        if len(found) > 1 and quoted:
            phrases[tuple(found)] = None
        if bare.endswith("*") and found:
            prefixes[found.pop()] = None
        exact.update(dict.fromkeys(found))
    _check(text, len(exact) + len(prefixes))
    return Query(tuple(exact), tuple(prefixes), tuple(phrases))


def _check(text: str, count: int) -> None:
    if not count:
        raise ValueError(f"there is no word in {text[:48]!r}: give letters or digits")
    if count > SEARCHED_WORDS_MAX:
        raise ValueError(
            f"{count} words are searched for at once, the limit is {SEARCHED_WORDS_MAX}: take "
            "those that are rare"
        )


__all__ = ["Query", "parse"]

"""The search for the documents of a query, at one timestamp.

========================  ======================================================================
``wine cellar``           both words, anywhere
``cell*``                 a word with this prefix
``"wine cellar"``         these words, one right after the other, in one text of the document
========================  ======================================================================

::

    postings of each word, in order of documents ── join ─▶ candidates (all words)
        ── best first, by what their postings say ─▶ records ─▶ hits (phrases: documents, too)

The postings of a word are read page by page, never all at once. Only the best candidates are kept.
Postings may be left over from earlier versions of a document. The record of each candidate, read
at the same timestamp, decides, and gives the actual frequencies and length.

Hits are in the order of Okapi BM25, the usual measure. A word counts more the fewer documents have
it, and the more often it occurs among few words. (Robertson and Zaragoza, "The Probabilistic
Relevance Framework: BM25 and Beyond", 2009; the form of the rarity that is never negative is
Lucene's.)
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from postroom import Timestamp, integer
from postroom.errors import Invalid, WrongType
from postroom.layers.search.changes import Past
from postroom.layers.search.definition import Definition, words
from postroom.layers.search.layout import (
    Layout,
    Posting,
    Record,
    Span,
    unpack_posting,
    unpack_record,
)
from postroom.layers.search.limits import SEARCH_CANDIDATES_MAX, SEARCHED_WORDS_MAX

if TYPE_CHECKING:
    from postroom.aio import Database

_TERMS: Final = re.compile(r'"([^"]*)"|(\S+)')


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
        raise TypeError(f"the text of a search is a str, not {type(text).__name__}")
    exact: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    phrases: dict[tuple[str, ...], None] = {}
    for quoted, bare in _TERMS.findall(text):
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


_RECORDS_AT_ONCE: Final = 64


class Hit(NamedTuple):
    """A document that has all words.

    Attributes:
        key: the key of the document.
        score: the higher, the better it fits; comparable within one search.
        timestamp: the timestamp at which it has them.
    """

    key: bytes
    score: float
    timestamp: Timestamp


class Found(NamedTuple):
    """The contents of the postings of one word in a document.

    Attributes:
        key: the key of the document.
        frequency: how often it has the word.
        length: how many words it had when the posting was born.
    """

    key: bytes
    frequency: int
    length: int


class Candidate(NamedTuple):
    """A document with a posting for each word."""

    key: bytes
    frequencies: tuple[int, ...]
    length: int


class Matching:
    """One search.

    Args:
        raw: the database, values as they are stored.
        definition: the definition of the index.
        at: the timestamp, which is protected.
    """

    def __init__(self, raw: Database, definition: Definition, at: Timestamp) -> None:
        self._raw = raw
        self._definition = definition
        self._layout: Layout = definition.layout
        self._at = at

    async def hits(self, query: Query, limit: int) -> list[Hit]:
        """Return the best hits.

        Raises:
            Invalid: a prefix fits too many documents.
        """
        having = [0] * (len(query.exact) + len(query.prefixes))
        candidates = await self._candidates(query, having)
        ranking = Ranking.of(*await self._sums(), having)
        candidates.sort(key=lambda each: (-ranking.score(each.frequencies, each.length), each.key))
        hits: list[Hit] = []
        best = iter(candidates)
        while len(hits) < limit and (some := list(islice(best, _RECORDS_AT_ONCE))):
            for candidate, record in zip(some, await self._records(some), strict=True):
                frequencies = _frequencies(query, record)
                if record is None or frequencies is None:
                    continue
                if query.phrases and not await self._has_phrases(candidate.key, query):
                    continue
                score = ranking.score(frequencies, record.length)
                hits.append(Hit(candidate.key, score, self._at))
        hits.sort(key=lambda hit: (-hit.score, hit.key))
        return hits[:limit]

    async def _sums(self) -> tuple[int, int]:
        layout = self._layout
        stored = await self._raw.get_many([layout.documents, layout.words], at=self._at)
        documents, length = (0 if each is None else integer(each) for each in stored)
        return documents, length

    # --- candidates

    async def _candidates(self, query: Query, having: list[int]) -> list[Candidate]:
        """Return documents with a posting for each word; count in ``having`` how many have each."""
        found: list[Candidate] = []
        async with AsyncExitStack() as stack:
            terms = [self._word_postings(word) for word in query.exact]
            terms += [_listed(await self._prefix_postings(prefix)) for prefix in query.prefixes]
            for term in terms:
                await stack.enter_async_context(aclosing(term))
            async for candidate in _joined(terms, having):
                found.append(candidate)
                if len(found) >= 2 * SEARCH_CANDIDATES_MAX:
                    found.sort(key=_promising)
                    del found[SEARCH_CANDIDATES_MAX:]
        return found

    async def _word_postings(self, word: str) -> AsyncGenerator[Found, None]:
        """Return the postings of a word, in the order of documents, one for each."""
        live_span, built_span = self._layout.postings(word)
        async with (
            aclosing(self._span_postings(live_span)) as live,
            aclosing(self._span_postings(built_span)) as built,
        ):
            one, other = await anext(live, None), await anext(built, None)
            while one is not None or other is not None:
                if other is None or (one is not None and one.key <= other.key):
                    assert one is not None
                    yield one
                    if other is not None and other.key == one.key:
                        other = await anext(built, None)
                    one = await anext(live, None)
                else:
                    yield other
                    other = await anext(built, None)

    async def _span_postings(self, span: Span) -> AsyncGenerator[Found, None]:
        """Return the newest posting of each document in a span.

        If a document has several postings of a word, the others are left over.
        """
        last: Posting | None = None
        found: Found | None = None
        async with aclosing(self._raw.scan_pages(*span, at=self._at)) as pages:
            async for page in pages:
                for key, stored in page.pairs:
                    posting = self._layout.read_posting(key)
                    if found is not None and last is not None and last[:2] != posting[:2]:
                        yield found
                    last, found = posting, Found(posting.key, *unpack_posting(stored, key))
        if found is not None:
            yield found

    async def _prefix_postings(self, prefix: str) -> list[Found]:
        """Return the postings of all words with a prefix, frequencies added up by document."""
        found: dict[bytes, Found] = {}
        for span in self._layout.postings(prefix, prefix=True):
            async for each in self._span_postings(span):
                known = found.get(each.key)
                if known is not None:
                    each = each._replace(frequency=each.frequency + known.frequency)  # noqa: PLW2901 - of both
                found[each.key] = each
                if len(found) > SEARCH_CANDIDATES_MAX:
                    raise Invalid(
                        f"more than {SEARCH_CANDIDATES_MAX} documents have words that begin with "
                        f"{prefix!r}: give more letters"
                    )
        return [found[key] for key in sorted(found)]

    # --- checks by records and documents

    async def _records(self, candidates: Sequence[Candidate]) -> list[Record | None]:
        layout = self._layout
        keys = [
            key
            for each in candidates
            for key in (layout.live(each.key), layout.built_record(each.key))
        ]
        stored = await self._raw.get_many(keys, at=self._at)
        return [past.record for past in _pasts(keys, stored)]

    async def _has_phrases(self, key: bytes, query: Query) -> bool:
        stored = await self._raw.get(key, at=self._at)
        if stored is None:
            return False
        try:
            texts = [words(text) for text in self._definition.texts(stored, key)]
        except WrongType:  # it was changed without the index
            return False
        return all(any(_is_in(phrase, text) for text in texts) for phrase in query.phrases)


def _pasts(keys: Sequence[bytes], stored: Sequence[bytes | None]) -> Iterator[Past]:
    read = [
        None if value is None else unpack_record(value, key)
        for key, value in zip(keys, stored, strict=True)
    ]
    for live, built in zip(read[::2], read[1::2], strict=True):
        yield Past(live, built)


async def _joined(
    terms: Sequence[AsyncGenerator[Found, None]], having: list[int]
) -> AsyncGenerator[Candidate, None]:
    """Return the documents that all terms have found."""
    heads: list[Found | None] = [None] * len(terms)
    behind = set(range(len(terms)))
    while True:
        for number in sorted(behind):
            heads[number] = await anext(terms[number], None)
            having[number] += heads[number] is not None
        here = [head for head in heads if head is not None]
        if len(here) < len(heads):
            break
        furthest = max(head.key for head in here)
        behind = {number for number, head in enumerate(here) if head.key < furthest}
        if not behind:
            yield Candidate(furthest, tuple(head.frequency for head in here), here[0].length)
            behind = set(range(len(terms)))
    for number, head in enumerate(heads):  # count all documents that have the word
        if head is not None:
            async for _ in terms[number]:
                having[number] += 1


async def _listed(found: list[Found]) -> AsyncGenerator[Found, None]:
    for each in found:
        yield each


def _promising(candidate: Candidate) -> tuple[float, bytes]:
    """Return a sort key: the best come first, without regard to how rare the words are."""
    return -sum(candidate.frequencies) / (candidate.length + 1), candidate.key


def _frequencies(query: Query, record: Record | None) -> list[int] | None:
    """Return how often a document has each word; ``None``: it lacks one of them."""
    if record is None:
        return None
    found = [record.words.get(word, (0, 0))[0] for word in query.exact]
    found += [
        sum(count for word, (count, _) in record.words.items() if word.startswith(prefix))
        for prefix in query.prefixes
    ]
    return found if all(found) else None


def _is_in(phrase: Sequence[str], text: Sequence[str]) -> bool:
    wanted = list(phrase)
    width = len(wanted)
    return any(list(text[at : at + width]) == wanted for at in range(len(text) - width + 1))


# --- ranking --------------------------------------------------------------------------------------


SATURATION: Final = 1.2
"""The parameter ``k1``: how soon another occurrence of a word adds no more."""
LENGTH_WEIGHT: Final = 0.75
"""The parameter ``b``: how much long documents are discounted."""


@dataclass(frozen=True)
class Ranking:
    """The facts on which scores depend, beside the document.

    Attributes:
        rarity: that of each word in the query.
        average_length: that of a document, in words.
    """

    rarity: tuple[float, ...]
    average_length: float

    @classmethod
    def of(cls, documents: int, words: int, having: Sequence[int]) -> Ranking:
        """Return the ranking for an index.

        Args:
            documents: how many there are, about.
            words: how many words they have altogether.
            having: how many of them have each word.
        """
        total = max(documents, *having, 1)
        rarity = tuple(math.log(1 + (total - each + 0.5) / (each + 0.5)) for each in having)
        return cls(rarity, max(words / total, 1.0))

    def score(self, frequencies: Sequence[int], length: int) -> float:
        """Return the score of a document with these frequencies of words and ``length`` words."""
        discount = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length / self.average_length)
        scores = (
            rarity * frequency * (SATURATION + 1) / (frequency + discount)
            for rarity, frequency in zip(self.rarity, frequencies, strict=True)
        )
        return round(math.fsum(scores), 6)

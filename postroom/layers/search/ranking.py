"""The order of hits: Okapi BM25, the usual measure.

A word counts more the fewer documents have it, and the more often it occurs among few words.
(Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; the form of
the rarity that is never negative is Lucene's.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
        parts = (
            rarity * frequency * (SATURATION + 1) / (frequency + discount)
            for rarity, frequency in zip(self.rarity, frequencies, strict=True)
        )
        return round(math.fsum(parts), 6)


__all__ = ["Ranking"]

"""Which hit comes first: Okapi BM25, the usual measure.

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
"""How soon a further occurrence of a word adds no more (``k1``)."""
LENGTH_WEIGHT: Final = 0.75
"""How much long documents are discounted (``b``)."""


@dataclass(frozen=True)
class Ranking:
    """What scores depend on, beside the document.

    Attributes:
        rarity: of each word that is searched for.
        average_length: of a document.
    """

    rarity: tuple[float, ...]
    average_length: float

    @classmethod
    def of(cls, documents: int, words: int, having: Sequence[int]) -> Ranking:
        """For an index.

        Args:
            documents: how many there are, about.
            words: how many words they have altogether.
            having: how many of them have each word.
        """
        total = max(documents, *having, 1)
        rarity = tuple(math.log(1 + (total - each + 0.5) / (each + 0.5)) for each in having)
        return cls(rarity, max(words / total, 1.0))

    def score(self, frequencies: Sequence[int], length: int) -> float:
        """Of a document, by how often it has each word, and how many words it has in all."""
        discount = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length / self.average_length)
        parts = (
            rarity * frequency * (SATURATION + 1) / (frequency + discount)
            for rarity, frequency in zip(self.rarity, frequencies, strict=True)
        )
        return round(math.fsum(parts), 6)


__all__ = ["Ranking"]

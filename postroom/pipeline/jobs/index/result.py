"""The result of the job ``index``."""

from __future__ import annotations

from dataclasses import dataclass

from postroom.layers.search.checking import Difference


@dataclass(frozen=True)
class IndexResult:
    """The result of the job.

    Attributes:
        name: of the index.
        built: whether documents were indexed in bulk; otherwise it was there, or there were none.
        documents, words: how many the build has indexed; words count as often as they occur.
        postings: how many of them there are: a word of a document counts once.
        unindexable: documents that the build could not index; ``verify`` names them.
        settled: documents that were changed during the build.
        verified: whether it was compared with the documents.
        suspects: documents that were looked at once more.
        different: how many differences there are.
        differences: the first 10,000 of them.
        repaired: documents of which the index was written anew.
    """

    name: str
    built: bool = False
    documents: int = 0
    words: int = 0
    postings: int = 0
    unindexable: int = 0
    settled: int = 0
    verified: bool = False
    suspects: int = 0
    different: int = 0
    differences: tuple[Difference, ...] = ()
    repaired: int = 0


__all__ = ["IndexResult"]

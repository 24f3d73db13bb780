"""The limits of search indexes, and those of the store that their data must fit into."""

from __future__ import annotations

from typing import Final

WORD_CHARACTERS_MAX: Final = 64
"""A word of a search index: a longer one is cut, in documents and in searches."""
DOCUMENT_WORDS_MAX: Final = 10_000
"""The different words of a document in a search index."""
INDEXED_KEY_BYTES_MAX: Final = 2048
"""The key of a document in a search index: it is a part of the keys of its postings."""
SEARCH_NAME_BYTES_MAX: Final = 128
"""The name of a search index."""
SEARCH_FIELDS_MAX: Final = 64
"""The fields of a search index."""
SEARCHED_WORDS_MAX: Final = 32
"""The words of one search."""
SEARCH_CANDIDATES_MAX: Final = 50_000
"""Documents that a search keeps in memory until it knows which are the best."""
RECORD_BYTES_MAX: Final = 1 << 20
"""The record of a document: the limit of the store for a value."""
TRANSACTION_BYTES_MAX: Final = 16 << 20
"""The writes of a transaction: the limit of the store."""

"""Lists and scans in many pages: between any two of them anything may happen.

What a simulated client asks for is small: with the sizes of the product it would be one page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random  # noqa: TID251 - passed in, as an instance
from unittest.mock import patch

from postroom.client import pages


@contextmanager
def drawn_page_sizes(randomness: Random) -> Iterator[None]:
    """Pages have other sizes meanwhile, or those of the product."""
    pairs = randomness.choice([1, 2, 5, pages.PAIRS_PER_PAGE])
    list_bytes = randomness.choice([1, 100, 400, pages.LIST_BYTES_PER_PAGE])
    with (
        patch.object(pages, "PAIRS_PER_PAGE", pairs),
        patch.object(pages, "LIST_BYTES_PER_PAGE", list_bytes),
    ):
        yield

"""Text to words: the same for documents and for queries, wherever it is done.

A word is a run of letters, digits and the marks that belong to them, folded (Unicode NFKC, case
folding, NFKC again) and cut to ``WORD_CHARACTERS_MAX`` characters. ``TOKENIZER`` says which rules
these are: an index that was made by others is built anew. What is no letter or digit divides: of
*e-mail* there are two words.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

from postroom.limits import WORD_CHARACTERS_MAX

TOKENIZER: Final = 1
"""Of these rules. Changing them changes the number."""

_ASCII: Final = re.compile(r"[a-z0-9]+")
_MARKS_BEFORE: Final = 0x20000


def words(text: str) -> list[str]:
    """The words of ``text``, in their order."""
    if text.isascii():
        found = _ASCII.findall(text.lower())
    else:
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        found = _of_any_script().findall(folded)
    return [word[:WORD_CHARACTERS_MAX] for word in found]


@cache
def _of_any_script() -> re.Pattern[str]:
    """Letters and digits, with the marks that follow them (vowels of Indian scripts, accents)."""
    marks = []
    first = 0
    for code in range(0x300, _MARKS_BEFORE + 1):
        is_mark = code < _MARKS_BEFORE and unicodedata.category(chr(code)).startswith("M")
        if is_mark and not first:
            first = code
        elif first and not is_mark:
            marks.append(f"{chr(first)}-{chr(code - 1)}")
            first = 0
    return re.compile(rf"[^\W_](?:[^\W_]|[{''.join(marks)}])*")


__all__ = ["TOKENIZER", "words"]

"""Text to words: the same for documents and for queries, in every process.

A word is a run of letters, digits and the marks that belong to them. It is folded (Unicode NFKC,
case folding, NFKC again) and cut to ``WORD_CHARACTERS_MAX`` characters. ``TOKENIZER`` is the
version of these rules: an index that was made by another version is built anew. All other
characters divide words: *e-mail* is two words.

Only the first 30 marks in a row count, as in the stream-safe format of Unicode (annex 15). No
language has more, and the time to order n marks is proportional to n squared.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

from postroom.layers.search.limits import WORD_CHARACTERS_MAX

TOKENIZER: Final = 1
"""The version of these rules. A change of the rules changes the number."""

_ASCII: Final = re.compile(r"[a-z0-9]+")
_MARKS_BEFORE: Final = 0x20000
_MARKS_KEPT: Final = 30
_BECOME_MARKS: Final = "\uff9e\uff9f"
"""The voiced sound marks of half-width Katakana: letters, which NFKC makes marks."""


def words(text: str) -> list[str]:
    """Return the words of ``text``, in their order."""
    if text.isascii():
        found = _ASCII.findall(text.lower())
    else:
        any_script, many_marks = _script_patterns()
        text = many_marks.sub(r"\1", text)
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        found = any_script.findall(folded)
    return [word[:WORD_CHARACTERS_MAX] for word in found]


@cache
def _script_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a word and of too many marks in a row.

    A word is letters and digits, with the marks that follow them (vowels of Indian scripts,
    accents).
    """
    marks = []
    first = 0
    for code in range(0x300, _MARKS_BEFORE + 1):
        is_mark = code < _MARKS_BEFORE and unicodedata.category(chr(code)).startswith("M")
        if is_mark and not first:
            first = code
        elif first and not is_mark:
            marks.append(f"{chr(first)}-{chr(code - 1)}")
            first = 0
    mark = "".join(marks)
    some = f"[{mark}{_BECOME_MARKS}]"
    return (
        re.compile(rf"[^\W_](?:[^\W_]|[{mark}])*"),
        re.compile(f"({some}{{{_MARKS_KEPT}}}){some}+"),
    )


__all__ = ["TOKENIZER", "words"]

"""Text to words, and what is searched for."""

from __future__ import annotations

import time

import pytest

from postroom.layers.search.definition import words
from postroom.layers.search.limits import SEARCHED_WORDS_MAX, WORD_CHARACTERS_MAX
from postroom.layers.search.matching import Query, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  -- \x00 ", []),
        ("Red wine, RED cellar.", ["red", "wine", "red", "cellar"]),
        ("e-mail_2013 B52", ["e", "mail", "2013", "b52"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("ﬁn ﬀ Ⅷ", ["fin", "ff", "viii"]),
        ("café cafe\u0301", ["café", "café"]),
        ("İstanbul ΣΟΦΟΣ", ["i\u0307stanbul", "σοφοσ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("١٢٣ \uff14\uff15", ["١٢٣", "45"]),
        ("東京タワー", ["東京タワー"]),
    ],
)
def test_words_are_folded(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_long_runs_of_marks_are_cut() -> None:
    text = "ä" + "\u0301\u0316" * 100_000 + " wine"  # putting marks in order takes time squared
    began = time.process_time()
    first, second = words(text)
    assert time.process_time() - began < 2
    assert first.startswith("ä")
    assert second == "wine"
    assert words("\uff76" + "\uff9e\u0301" * 100_000)
    assert words("wi\u0301\u0316" + "ne") == words("wi\u0316\u0301" + "ne")


def test_words_are_cut() -> None:
    assert words("x" * 1000) == ["x" * WORD_CHARACTERS_MAX]
    assert words("ß" * 1000) == ["s" * WORD_CHARACTERS_MAX]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wine cellar wine", Query(("wine", "cellar"))),
        ("cell* wine", Query(("wine",), ("cell",))),
        ('"red wine" x', Query(("red", "wine", "x"), (), (("red", "wine"),))),
        ('"wine"', Query(("wine",))),
        ("e-mail*", Query(("e",), ("mail",))),
        ('say "hi', Query(("say", "hi"))),
        ("* wine", Query(("wine",))),
    ],
)
def test_a_query_is_read(text: str, expected: Query) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", " - ", '""', "*", " ".join(map(str, range(SEARCHED_WORDS_MAX + 1)))]
)
def test_an_impossible_search_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="word"):
        parse(text)


def test_bytes_are_no_query() -> None:
    with pytest.raises(TypeError, match="str"):
        parse(b"wine")  # type: ignore[arg-type]

"""The definition of an index: its name, its documents, how their text is found, and its state.

::

    (none) ──▶ building ──the build is loaded──▶ settling ──documents changed meanwhile──▶ ready
                  ▲                                            are put right                 │
                  └──────────────────────────── built anew: another id ──────────────────────┘

==========  ===========================  ==========================  ============================
state       what the build has written   a document that is deleted  search
==========  ===========================  ==========================  ============================
building    is not looked at             leaves a record that says   refused: it would find half
                                         so
settling    counts, unless there is a    leaves nothing              finds everything
            live record
ready       the same                     leaves nothing              finds everything
==========  ===========================  ==========================  ============================

Every transaction that changes a document reads the definition. Thus each of them comes either
before a change of state or after it.

**Text to words** is the same for documents and for queries, in every process. A word is a run of
letters, digits and the marks that belong to them. It is folded (Unicode NFKC, case folding, NFKC
again) and cut to ``WORD_CHARACTERS_MAX`` characters. ``TOKENIZER`` is the version of these rules:
an index that was made by another version is built anew. All other characters divide words: *e-mail*
is two words.

Only the first 30 marks in a row count, as in the stream-safe format of Unicode (annex 15). No
language has more, and the time to order n marks is proportional to n squared.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgpack
import msgspec

from postroom import prefix as span_of
from postroom.errors import (
    Invalid,
    KeyTooLarge,
    StoreCorrupted,
    ValueTooLarge,
    WrongType,
    shorten,
)
from postroom.layers.search.layout import Layout, Packing, Posting, definition_key, unpack
from postroom.layers.search.limits import (
    DOCUMENT_WORDS_MAX,
    INDEXED_KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    SEARCH_FIELDS_MAX,
    SEARCH_NAME_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    WORD_CHARACTERS_MAX,
)

Format: TypeAlias = Literal["text", "json", "msgpack"]
State: TypeAlias = Literal["building", "settling", "ready"]

TOKENIZER: Final = 1
"""The version of these rules. A change of the rules changes the number."""

_ASCII: Final = re.compile(r"[a-z0-9]+")
_MARKS_BEFORE: Final = 0x20000
_MARKS_KEPT: Final = 30
_BECOME_MARKS: Final = "\uff9e\uff9f"
"""The voiced sound marks of half-width Katakana: letters, which NFKC makes marks."""
FORMATS: Final = ("text", "json", "msgpack")
_POSTING_KEY_BYTES: Final = 4 * WORD_CHARACTERS_MAX + 128
"""The largest size of a posting's key without the document's key."""


class Definition(msgspec.Struct, frozen=True):
    """A search index, as it is stored.

    Attributes:
        name: the name of the index.
        prefix: the prefix of the keys of its documents.
        fields: the fields of a document that are searched, ``a.b`` for one inside another; none:
            all text in it.
        format: the format of the documents' values.
        tokenizer: the version of the rules by which text is divided.
        id: the id of its data.
        state: how far it is built.
    """

    name: str
    prefix: bytes
    fields: tuple[str, ...] = ()
    format: Format = "text"
    tokenizer: int = TOKENIZER
    id: str = "0"
    state: State = "ready"

    @property
    def key(self) -> bytes:
        """Return the key at which it is stored."""
        return definition_key(self.name)

    @property
    def packing(self) -> Packing:
        """Return the packing of its values: a reader of the documents can scan over them."""
        return "json" if self.format == "json" else "msgpack"

    @property
    def layout(self) -> Layout:
        """Return the layout of its data."""
        return Layout(self.id, self.packing)

    @property
    def span(self) -> tuple[bytes, bytes | None]:
        """Return the span of its documents."""
        return span_of(self.prefix)

    def packed(self) -> bytes:
        """Return the definition in its stored form."""
        facts = msgspec.to_builtins(self)  # bytes become text in base 64
        return self.layout.pack(facts)

    def same_documents(self, other: Definition) -> bool:
        """Return whether both are about the same text."""
        mine, others = ((each.prefix, each.fields, each.format) for each in (self, other))
        return mine == others

    def check_key(self, key: bytes) -> None:
        """Check that a document may have this key.

        Raises:
            TypeError: it is not ``bytes``.
            ValueError: it does not begin with the prefix.
            KeyTooLarge: its postings would have keys that are too long.
        """
        if not isinstance(key, bytes):
            raise TypeError(f"keys are bytes, not {type(key).__name__}")
        if not key.startswith(self.prefix):
            raise ValueError(
                f"{shorten(key)} is no document of the search index {self.name!r}, whose keys "
                f"begin with {shorten(self.prefix)}; nothing was changed"
            )
        if len(key) > INDEXED_KEY_BYTES_MAX:
            raise KeyTooLarge(
                f"the key {shorten(key)} is over the limit of {INDEXED_KEY_BYTES_MAX} bytes for "
                f"documents of a search index ({self.name!r}); nothing was changed: use a shorter "
                "key"
            )

    # --- text

    def texts(self, stored: bytes, key: bytes) -> list[str]:
        """Return the searched texts of a document.

        Args:
            stored: its value.
            key: the key of the document.

        Raises:
            WrongType: the value is not of this index's format.
        """
        if self.format == "text":
            return [stored.decode("utf-8", "replace")]
        document = _document(stored, key, self.format)
        if not self.fields:
            return list(_texts_in(document))
        return [text for each in self.fields for text in _texts_in(_field(document, each))]

    def words(self, stored: bytes, key: bytes) -> Counter[str]:
        """Return the words of a document, and how often each occurs.

        Raises:
            WrongType: the value is not of this index's format.
            ValueTooLarge: it has too many different words.
        """
        found = Counter(word for text in self.texts(stored, key) for word in words(text))
        if len(found) > DOCUMENT_WORDS_MAX:
            raise ValueTooLarge(
                f"the document {shorten(key)} has {len(found)} different words, the limit of a "
                f"search index ({self.name!r}) is {DOCUMENT_WORDS_MAX}; nothing was changed: "
                "divide it, or index fewer of its fields"
            )
        self._check_postings(found, key)
        return found

    def _check_postings(self, found: Counter[str], key: bytes) -> None:
        """Check that one transaction can delete all postings of a document.

        Their keys contain its key. Otherwise it could never be deleted.
        """
        count = len(found)
        if count * _deferred(2 * len(key) + _POSTING_KEY_BYTES) <= TRANSACTION_BYTES_MAX:
            return  # whatever its words are
        but_word = len(self.layout.posting(Posting("", key, 1 << 63)))
        size = sum(_deferred(but_word + len(word.encode())) for word in found)
        if size > TRANSACTION_BYTES_MAX - RECORD_BYTES_MAX:
            raise ValueTooLarge(
                f"the document {shorten(key)} has {count} different words, and with a key of "
                f"{len(key)} bytes a search index ({self.name!r}) could not delete them in one "
                "transaction; nothing was changed: use a shorter key, divide it, or index fewer "
                "of its fields"
            )


def _deferred(key_bytes: int) -> int:
    """Return about how many bytes a deferred deletion adds to a transaction."""
    return 2 * key_bytes + 64


def read(stored: bytes) -> Definition:
    """Return a definition from its stored form.

    Raises:
        StoreCorrupted: it is none.
    """
    try:
        return msgspec.convert(unpack(stored), Definition)
    except msgspec.ValidationError as error:
        raise StoreCorrupted(
            f"{shorten(stored)} is no definition of a search index ({error})"
        ) from error


def define(
    name: Any,
    prefix: Any,
    fields: Sequence[Any] = (),
    format: str = "text",  # noqa: A002
) -> Definition:
    """Return a definition, checked.

    Raises:
        TypeError, ValueError: an argument is not valid.
    """
    if not isinstance(name, str) or not isinstance(prefix, bytes):
        raise TypeError("the name of a search index is a str, the prefix of its documents bytes")
    if not 0 < len(name.encode()) <= SEARCH_NAME_BYTES_MAX:
        raise ValueError(f"the name of a search index has 1 to {SEARCH_NAME_BYTES_MAX} bytes")
    if not prefix or len(prefix) > INDEXED_KEY_BYTES_MAX:
        raise ValueError(
            f"the prefix of a search index has 1 to {INDEXED_KEY_BYTES_MAX} bytes: documents are "
            "some of the keys of a store, which contains the index as well"
        )
    if isinstance(fields, str) or not all(isinstance(each, str) and each for each in fields):
        raise TypeError("fields are a list of names")
    if format not in FORMATS:
        raise ValueError(f"format is one of {', '.join(FORMATS)}, not {format!r}")
    if fields and format == "text":
        raise ValueError("only documents of format json or msgpack have fields")
    if len(fields) > SEARCH_FIELDS_MAX:
        raise ValueError(
            f"a search index has {SEARCH_FIELDS_MAX} fields at most, not {len(fields)}"
        )
    return Definition(name, prefix, tuple(fields), format)  # type: ignore[arg-type]


def check_tokenizer(definition: Definition) -> None:
    """Check that the index was made by the rules that this version knows.

    Raises:
        Invalid: it was made by others.
    """
    if definition.tokenizer != TOKENIZER:
        raise Invalid(
            f"the search index {definition.name!r} was built by version {definition.tokenizer} of "
            f"the rules that divide text, and this is version {TOKENIZER}; nothing was changed: "
            "build it anew, or use the version of Postroom that has built it"
        )


def _document(stored: bytes, key: bytes, format_: str) -> Any:
    """Return a document, unpacked.

    Raises:
        WrongType: its value is not of this format.
    """
    try:
        if format_ == "json":
            return json.loads(stored)
        return msgpack.unpackb(stored, strict_map_key=False)
    except Exception as error:  # msgpack raises several kinds for bytes that it has not packed
        raise WrongType(
            f"{shorten(key)} contains {shorten(stored)}, which is no document of the format "
            f"{format_} ({error}): write it as the search index says, or without the index"
        ) from error


def _field(document: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    return document


def _texts_in(value: Any) -> Iterator[str]:
    """Return text and whole numbers, wherever they are in lists and values of dictionaries."""
    left = [value]  # not by recursion: they may be nested as deep as a codec can read
    while left:
        match value := left.pop():
            case str():
                yield value
            case bool():
                pass
            case int():
                yield str(value)
            case dict():
                left += reversed(value.values())
            case list():
                left += reversed(value)


# --- words ----------------------------------------------------------------------------------------


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

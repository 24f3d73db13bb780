"""Sentences, names and comments of Python sources, read without importing them.

Prose is what a docstring or a comment says in sentences. Code blocks, tables, drawings, headings
and lists of arguments are left out, since they have no sentences.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LONGEST_SENTENCE_WORDS = 30
MESSAGE_WORDS_MIN = 4

# These words hide the subject of a sentence that they begin.
HIDING_WORDS = frozenset(
    {"of", "what", "who", "whoever", "whose", "whom", "nobody", "that", "as"}
    | {"where", "whether", "some", "so", "such"}
)
# These words begin no statement of their own: the docstring of a test must not hang on its name.
HANGING_WORDS = frozenset(
    {"and", "or", "but", "nor", "also", "else", "how", "why", "which", "whatever", "wherever"}
)
# These words begin neither a command nor the name of a thing.
_NO_THINGS = frozenset(
    {"it", "they", "them", "those", "that", "there", "here", "then", "if", "because", "unless"}
    | {"nobody", "somebody", "anybody", "everybody", "someone", "something", "anything"}
    | {"everything", "nothing", "none", "who", "whoever", "whose", "whom", "what", "whatever"}
    | {"which", "whichever", "how", "however", "why", "where", "wherever", "when", "whenever"}
    | {"whether", "while", "until", "since", "though", "as", "and", "or", "but", "nor", "so"}
    | {"such", "not", "also", "else", "again", "always", "never", "often", "mostly", "only", "once"}
    | {"of", "by", "for", "from", "in", "into", "on", "onto", "at", "to", "with", "within"}
    | {"without", "after", "before", "during", "under", "over", "above", "below", "behind"}
    | {"beyond", "about", "against", "among", "across", "per", "than", "like", "instead"}
    | {"is", "are", "was", "were", "has", "had", "does", "did", "will", "would", "can", "may"}
)
_NO_COMMANDS = _NO_THINGS | frozenset(
    {"a", "an", "the", "this", "these", "its", "their", "his", "her", "our", "no", "some", "any"}
    | {"each", "every", "all", "both", "either", "neither", "other", "another", "several", "many"}
    | {"few", "more", "most", "half", "one", "two", "three", "four", "five", "ten"}
)
# These words may follow a noun in the plural, which looks like a verb of the third person.
_AFTER_NOUNS = frozenset(
    {"of", "that", "which", "who", "whose", "whom", "in", "at", "to", "for", "from", "with", "by"}
    | {"without", "between", "beside", "and", "or", "on", "over", "behind", "made", "as"}
    | {"are", "do"}
)
VAGUE_PHRASES = re.compile(r"\b(the other way round|likewise|as ever)\b", re.IGNORECASE)

# The names in which a word of several meanings may stand, and the files in which it has the meaning
# of the glossary. A file is named by the beginning of its path in the package.
WORDS_IN_PLACE = {
    "around": (("look_around",), ()),
    "attempt": (
        ("max_attempts", "task_attempt"),
        (
            "cli/queue", "client/arguments", "client/pages", "client/queues/",
            "client/reaping", "client/sender", "client/values", "client/worker/", "demo/",
            "gateway/", "kv/keys", "limits", "messaging/",
        ),
    ),
    "lane": ((), ("client/routing/", "kv/keys", "messaging/handover/", "messaging/queues/")),
    "mark": (
        (),
        (
            "kv/keys", "kv/log_", "layers/search/definition", "messaging/",
            "pipeline/jobs/load_files",
        ),
    ),
    "moment": (
        (),
        ("cli/pipeline", "client/arguments", "kv/clock", "layers/", "messaging/", "pipeline/"),
    ),
    "part": (
        ("in_parts", "part_bytes", "part_of", "usual_parts"),
        (
            "backup/", "client/bulk", "client/images", "client/routing/", "client/sync_parts",
            "kv/background", "kv/engine",
            "kv/gathering", "kv/head_filter", "kv/keys", "kv/leveldb", "kv/memory", "kv/rocksdb",
            "limits", "messaging/handover/", "messaging/ingest/", "messaging/usual", "pipeline/",
            "protocol/", "ranges/",
        ),
    ),
    "place": (
        ("in_place",),
        ("messaging/queues/", "messaging/scanning", "pipeline/jobs/"),
    ),
    "position": (
        (),
        (
            "cli/", "client/administration", "client/remote/nodes", "client/sync_parts",
            "client/values", "demo/replay", "limits", "messaging/handover/", "pipeline/", "ranges/",
            "server/embedded",
        ),
    ),
    "signal": ((), ("cli/", "client/worker/", "server/")),
    "turn": (
        ("turn_round",),
        ("kv/gathering", "kv/storage", "limits", "messaging/moving", "raft/", "ranges/", "server/"),
    ),
}  # fmt: skip

_SECTIONS = frozenset(
    ("args", "arguments", "attributes", "returns", "yields", "raises", "example", "examples")
)
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_FENCES = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LEFT_OUT_OF_PAGES = re.compile(r"^(?:#|\||!\[|:::).*$", re.MULTILINE)
_LINKS = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ITEM = re.compile(r"([*-]|\d+\.)\s+")
_ENDS = re.compile(r"""(?<=[.!?])["')\]]*\s+(?=["'(\[`]*(?:[A-Z0-9*:]|[a-z]+[A-Z]))""")
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Sec|No)\.")
_NEXT_WORD = re.compile(r"\w+ ([a-z]+)")
_DRAWN = re.compile(r"[|│┌└├─═►▶]|-->|==>|<--|\+--|  {2,}\S.*  {2,}\S|\S {3,}\S")
_PRAGMAS = re.compile(r"#\s*(type:\s*ignore|noqa|ruff:|pragma|fmt:|mypy:|!|-\*-)")


@dataclass(frozen=True, slots=True)
class Prose:
    """One docstring or comment: where it stands, its text without markers, and what has it."""

    path: Path
    line: int
    text: str
    of: Literal["comment", "function", "test", "thing"]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def docstrings_of(path: Path, tree: ast.Module) -> Iterator[Prose]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(tree):
        for statement in _strings_of(node):
            text = inspect.cleandoc(str(statement.value.value))  # type: ignore[attr-defined]  # a string constant: see _strings_of
            yield Prose(path, statement.lineno, text, _documented(node, statement))


def comments_of(path: Path, source: str) -> Iterator[Prose]:
    """Yield comments, where comments on consecutive lines of their own are one."""
    block: list[str] = []
    begins = column = last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _PRAGMAS.match(token.string):
            continue
        line, at = token.start
        text = token.string.lstrip("#").removeprefix(" ")
        alone = not token.line[:at].strip()
        if block and alone and line == last + 1 and at == column:
            block.append(text)
            last = line
            continue
        if block:
            yield Prose(path, begins, "\n".join(block), "comment")
        block, begins, last, column = [text], line, line, at if alone else -1
    if block:
        yield Prose(path, begins, "\n".join(block), "comment")


def prose_of(path: Path) -> list[Prose]:
    """Return all docstrings and comments of a file."""
    source = path.read_text()
    return [*docstrings_of(path, ast.parse(source)), *comments_of(path, source)]


def messages_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that people may read, with their lines.

    These are its strings of several words but docstrings: errors, lines of the log, help.
    """
    others = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            others |= {id(each) for each in node.values}
    for node in ast.walk(tree):
        text = "" if id(node) in others else _text_of(node)
        if len(text.split()) >= MESSAGE_WORDS_MIN:
            yield node.lineno, text  # type: ignore[attr-defined]  # an expression has a line


def clauses_of(message: str) -> list[str]:
    """Return the parts of a message, which semicolons, colons and periods divide."""
    return [each for each in re.split(r"[;:.]\s+", message) if len(words_of(each)) > 1]


def _text_of(node: ast.AST) -> str:
    """Return the text of a string; values in it are one word each."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(each.value) if isinstance(each, ast.Constant) else "Value" for each in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring or a comment; code in them is one word."""
    for paragraph in _paragraphs(text):
        plain = _ABBREVIATIONS.sub(r"\1", _CODE.sub(_one_word, " ".join(paragraph.split())))
        yield from filter(words_of, (sentence.strip() for sentence in _ENDS.split(plain)))


def page_sentences_of(page: str) -> Iterator[str]:
    """Yield the sentences of a page in Markdown, without its code, tables and headings."""
    text = _LEFT_OUT_OF_PAGES.sub("", _FENCES.sub("", page))
    yield from sentences_of(_LINKS.sub(r"\1", text).strip())


def words_of(sentence: str) -> list[str]:
    """Return the words of a sentence, where punctuation alone is no word."""
    return [word for word in sentence.split() if any(map(str.isalnum, word))]


def words_out_of_place(name: str, file: str) -> list[str]:
    """Return the words in a name that stand for another thing in this file of the package."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")
    return [
        word
        for word, (names, files) in WORDS_IN_PLACE.items()
        if not {word, f"{word}s"}.isdisjoint(parts)
        and not any(each in "_".join(parts) for each in names)
        and not file.startswith(files)
    ]


def first_word(sentence: str) -> str:
    """Return the first word of a sentence in lower case, without punctuation."""
    found = re.match(r"[\W_]*([A-Za-z'_]+)", sentence)
    return found[1].lower() if found else ""


def is_command(line: str) -> bool:
    """Tell whether the first line of a function's docstring begins with an imperative."""
    word = line.partition(" ")[0].rstrip(".,;:").lower()
    is_plural = word.endswith("s") and not word.endswith("ss")
    return word.isalpha() and word not in _NO_COMMANDS and not is_plural


def is_thing(line: str, commands: Container[str]) -> bool:
    """Tell whether the first line of another docstring begins with a noun.

    Args:
        line: the first line.
        commands: the verbs with which functions' docstrings begin.
    """
    word, following = first_word(line), _NEXT_WORD.match(line)
    if word in _NO_THINGS or word in {"see", "return", "raised"}:
        return False
    says_what_it_does = word.endswith("s") and word[:-1] in commands and following is not None
    return not says_what_it_does or following[1] in _AFTER_NOUNS


def _documented(node: ast.AST, docstring: ast.stmt) -> Literal["function", "test", "thing"]:
    """Return what a docstring documents: a node, or an attribute that is made in it."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if not is_function or docstring is not node.body[0]:
        return "thing"
    return "test" if node.name.startswith("test") else "function"


def _strings_of(node: ast.AST) -> Iterator[ast.Expr]:
    """Yield the strings that document a node or, in its body, one of its attributes."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for at, statement in enumerate(node.body):
        documents = at == 0 or isinstance(node.body[at - 1], ast.Assign | ast.AnnAssign)
        if documents and isinstance(statement, ast.Expr) and _is_string(statement.value):
            yield statement


def _is_string(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _one_word(code: re.Match[str]) -> str:
    """Return a word in place of code, which may begin a sentence and ends none."""
    del code
    return "Code"


def _paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and list items that are prose, one string each."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if _left_out(lines):
            continue
        item: list[str] = []
        for line in lines:
            marker = _ITEM.match(line.strip())
            if marker and item:
                yield " ".join(item)
                item = []
            item.append(line.strip()[marker.end() :] if marker else line.strip())
        yield " ".join(item)


def _left_out(lines: list[str]) -> bool:
    """Tell whether a block is a drawing, a table, a code block or a list of arguments."""
    first = lines[0].strip()
    if first.endswith(":") and first[:-1].lower() in _SECTIONS:
        return True
    if all(line.startswith("    ") for line in lines) or first.startswith(">>>"):
        return True
    return any(_DRAWN.search(_CODE.sub("code", line.strip())) for line in lines)

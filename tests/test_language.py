"""The language of the project: plain sentences, one name for one class, tests named by statements.

Pages are short: a fact stands in one place, and others link to it.

``make check`` runs these tests. They read sources without importing them, so they are quick. The
rules are in ``docs/glossary.md`` and in CONTRIBUTING.md; ruff checks the form of docstrings besides
(D205, D400, D401).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests import language

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
TOLD_MAX = 40
PAGES_WORDS_MAX = 40_000
README_LINES_MAX = 119

# A name that begins so has no subject, or hides it.
HIDING_FIRST_WORDS = frozenset(
    {"what", "whatever", "who", "whoever", "whose", "whom", "which", "why", "how", "however"}
    | {"where", "wherever", "when", "while", "until", "if", "as", "of", "to", "there"}
    | {"it", "its", "that", "they", "those", "nobody", "nothing", "no", "not", "nor"}
    | {"so", "such", "and", "but", "also"}
)


def sources(*folders: str) -> list[Path]:
    """Return the sources in some folders, without those that protoc has generated."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not path.stem.partition("_pb2")[1]]


# The pages that are written by hand; those of the reference are made from the code.
PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    if path.parent.name != "reference"
]
ALL_SOURCES = sources("postroom", "benchmarks", "examples", "tests")
PROSE = [(path, prose) for path in ALL_SOURCES for prose in language.prose_of(path)]


def listed(problems: Iterable[str]) -> str:
    """Return the first problems, one a line, and how many there are."""
    found = list(problems)
    more = [f"... {len(found)} in all"] if len(found) > TOLD_MAX else []
    return "\n".join([*found[:TOLD_MAX], *more])


def sentences() -> Iterator[tuple[str, str]]:
    for path, prose in PROSE:
        for sentence in language.sentences_of(prose.text):
            yield f"{path.relative_to(ROOT)}:{prose.line}", sentence


def test_each_docstring_begins_with_a_line_that_is_one_sentence() -> None:
    wrong = []
    for path, prose in PROSE:
        if prose.of != "comment":
            first, _, rest = prose.text.partition("\n")
            if not first.endswith(".") or (rest and not rest.startswith("\n")):
                wrong.append(f"{path.relative_to(ROOT)}:{prose.line}: {first}")
    assert not wrong, listed(wrong)


def test_docstrings_begin_with_a_command_a_thing_or_a_statement() -> None:
    docstrings = [(path, each) for path, each in PROSE if each.of != "comment"]
    commands = {language.first_word(each.text) for _, each in docstrings if each.of == "function"}
    wrong = []
    for path, each in docstrings:
        line = each.text.partition("\n")[0]
        if each.of == "function" and not language.is_command(line):
            wrong.append(f"{path.relative_to(ROOT)}:{each.line}: no command: {line}")
        if each.of == "thing" and not language.is_thing(line, commands):
            wrong.append(f"{path.relative_to(ROOT)}:{each.line}: no thing: {line}")
        if each.of == "test" and language.first_word(line) in language.HANGING_WORDS:
            wrong.append(f"{path.relative_to(ROOT)}:{each.line}: no statement: {line}")
    assert not wrong, listed(wrong)


def test_sentences_begin_with_their_subject() -> None:
    wrong = [
        f"{place}: {sentence}"
        for place, sentence in sentences()
        if language.first_word(sentence) in language.HIDING_WORDS
    ]
    assert not wrong, listed(wrong)


def test_messages_begin_each_clause_with_its_subject() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {clause}"
        for path in sources("postroom")
        for line, message in language.messages_of(ast.parse(path.read_text()))
        for clause in language.clauses_of(message)
        if language.first_word(clause) in language.HIDING_WORDS
    ]
    assert not wrong, listed(wrong)


def test_sentences_are_short() -> None:
    wrong = [
        f"{place}: {count} words: {sentence}"
        for place, sentence in sentences()
        if (count := len(language.words_of(sentence))) > language.LONGEST_SENTENCE_WORDS
    ]
    assert not wrong, listed(wrong)


def test_sentences_have_no_vague_phrases() -> None:
    wrong = [
        f"{place}: {sentence}"
        for place, sentence in sentences()
        if language.VAGUE_PHRASES.search(sentence)
    ]
    assert not wrong, listed(wrong)


def test_all_pages_together_have_at_most_40_000_words() -> None:
    words = {str(path.relative_to(ROOT)): len(path.read_text().split()) for path in PAGES}
    told = [f"{count:6} {name}" for name, count in sorted(words.items(), key=lambda each: -each[1])]
    assert sum(words.values()) <= PAGES_WORDS_MAX, listed(told)


def test_the_readme_has_less_than_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= README_LINES_MAX


def test_sentences_of_pages_begin_with_their_subject_and_are_short() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path in PAGES
        for sentence in language.page_sentences_of(path.read_text())
        if language.first_word(sentence) in language.HIDING_WORDS
        or len(language.words_of(sentence)) > language.LONGEST_SENTENCE_WORDS
        or language.VAGUE_PHRASES.search(sentence)
    ]
    assert not wrong, listed(wrong)


def test_class_names_are_unique_but_for_synchronous_twins() -> None:
    places = defaultdict(list)
    for path in sources("postroom"):
        tree = ast.parse(path.read_text())
        is_twin = (
            path.name.startswith("sync")
            or "synchronous" in (ast.get_docstring(tree) or "").partition("\n")[0]
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not is_twin:
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    wrong = [f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1]
    assert not wrong, listed(wrong)


def test_names_of_tests_are_statements_with_a_subject() -> None:
    wrong = []
    for path in sources("tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            test, _, statement = node.name.partition("_")
            if test == "test" and statement.partition("_")[0] in HIDING_FIRST_WORDS:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert not wrong, listed(wrong)


@pytest.mark.skipif(not GLOSSARY.exists(), reason="there is no glossary")
def test_words_that_the_glossary_replaces_are_no_names() -> None:
    replaced = replaced_words(GLOSSARY.read_text())
    wrong = []
    for path in sources("postroom"):
        for name, line in names_in(ast.parse(path.read_text())):
            words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().strip("_").split("_")
            for word in sorted(replaced.keys() & {"_".join(words), *words}):
                place = f"{path.relative_to(ROOT)}:{line}"
                wrong.append(f"{place}: {name}: write {replaced[word]} in place of {word}")
    assert not wrong, listed(wrong)


def test_words_stand_only_where_the_glossary_has_them() -> None:
    wrong = []
    for path in sources("postroom"):
        where = str(path.relative_to(ROOT / "postroom"))
        for name, line in names_in(ast.parse(path.read_text())):
            wrong += [
                f"{path.relative_to(ROOT)}:{line}: {name}: {word} is another thing in the glossary"
                for word in language.words_out_of_place(name, where)
            ]
    assert not wrong, listed(wrong)


def replaced_words(page: str) -> dict[str, str]:
    """Return the words that are not used, with those that are used in their place.

    The glossary has tables: *word | meaning | where* for words that are used, and
    *not | but | ...* for those that are not.
    """
    found, replaces = {}, False
    for line in page.splitlines():
        cells = [cell.strip(" `*") for cell in line.strip().strip("|").split("|")]
        if not line.strip().startswith("|") or len(cells) < 2:
            replaces = False
        elif cells[0].lower() in {"not", "replaced", "instead of"}:
            replaces = True
        elif replaces and not set(cells[0]) <= set("-: "):
            for word in cells[0].split(","):
                found[word.strip(" `*").lower().replace(" ", "_")] = cells[1]
    return found


def names_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


# --- the reader of sentences itself

TEXT = '''
def example():
    """Return the newest version.

    A sentence about ``code. With dots`` is one sentence. gRPC begins another one, e.g. this.

    * An item is prose.
    * So is this one.

    | drawn | 1 |

    ::

        Who knows

    Args:
        who: left out.
    """
    return 1  # who counts
'''


def test_sentences_are_found_without_code_tables_and_arguments(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(TEXT)
    docstring, comment = language.prose_of(path)
    assert [language.first_word(each) for each in language.sentences_of(docstring.text)] == [
        "return", "a", "grpc", "an", "so",
    ]  # fmt: skip
    assert (docstring.of, comment.of, comment.text) == ("function", "comment", "who counts")


def test_messages_are_found_without_docstrings_and_names() -> None:
    source = '''"""No message at all."""
raise Error(f"the key {key} is gone; nobody knows", "a name", "of_queue boolean, other string")
'''
    messages = [text for _, text in language.messages_of(ast.parse(source))]
    assert messages == ["the key Value is gone; nobody knows", "of_queue boolean, other string"]
    assert language.clauses_of(messages[0]) == ["the key Value is gone", "nobody knows"]


def test_a_command_is_told_from_other_first_lines() -> None:
    commands = ["Return the newest version.", "Wait, and return.", "Pass it on.", "Sleep."]
    others = ["For a while; then it leaves.", "Again and again.", "Something is done.", "``None``."]
    others += ["Asks for it.", "Seconds since 1970.", "4 bytes, big-endian.", "One more."]
    assert all(map(language.is_command, commands))
    assert not any(map(language.is_command, others))


def test_a_thing_is_told_from_other_first_lines() -> None:
    things = [
        "A queue.",
        "Writes of a turn.",
        "Queues, which have names.",
        "``serve``: an example.",
    ]
    others = [
        "What every engine must do.",
        "How clients end.",
        "Writes files.",
        "Keeps what it has.",
    ]
    others += [
        "By recipient: messages.",
        "See the module.",
        "So many bytes.",
        "Nobody sends there.",
    ]
    assert all(language.is_thing(each, {"write", "keep", "queue"}) for each in things)
    assert not any(language.is_thing(each, {"write", "keep", "queue"}) for each in others)


def test_sentences_of_a_page_are_found_without_code_tables_and_headings() -> None:
    page = "# Who\n\nA [page](of.md) says `so`. It ends.\n\n```\nWho knows.\n```\n\n| Of | 1 |\n"
    assert list(language.page_sentences_of(page)) == ["A page says Code.", "It ends."]


def test_comments_on_consecutive_lines_are_one(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text("# One sentence\n# over two lines.\nx = 1  # another\n")
    assert [each.text for each in language.prose_of(path)] == [
        "One sentence\nover two lines.", "another",
    ]  # fmt: skip


def test_a_table_of_the_glossary_tells_replaced_words() -> None:
    page = "| word | meaning | where |\n| --- | --- | --- |\n| range | ... | ... |\n\n"
    page += "| not | but |\n| --- | --- |\n| `shard`, tablet | range |\n"
    assert replaced_words(page) == {"shard": "range", "tablet": "range"}


def test_a_word_out_of_place_is_found() -> None:
    assert language.words_out_of_place("CommitSignal", "messaging/services.py") == ["signal"]
    assert language.words_out_of_place("_signals", "server/drivers.py") == []
    assert language.words_out_of_place("failed_attempts", "client/retries.py") == ["attempt"]
    assert language.words_out_of_place("task_attempt", "client/staging.py") == []
    assert language.words_out_of_place("leases_held_around", "ranges/lease.py") == ["around"]

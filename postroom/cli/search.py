"""The command ``search``: finds documents by words, in a full-text index of the store."""

from __future__ import annotations

from typing import Annotated

import typer

import postroom
from postroom.cli.options import Limit, StoreOptions, on_a_store_with_values
from postroom.cli.output import Notation, print_json, print_line
from postroom.errors import Error
from postroom.layers.search.matching import parse


@on_a_store_with_values
def search(
    store: StoreOptions,
    notation: Notation,
    words: Annotated[list[str], typer.Argument(metavar="WORDS", show_default=False)],
    index: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Search the index NAME, if there are several."),
    ] = None,
    limit: Limit = 10,
    consistent: Annotated[
        bool, typer.Option("--consistent", help="Wait until the index has caught up.")
    ] = False,
) -> None:
    """Print the documents that have all WORDS, the best first: their scores and keys.

    wine cell* '"red wine"': a word, words that begin so, and words in a row.
    """
    try:
        parse(text := " ".join(words))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="WORDS") from None
    with store.open_existing() as db:
        name = index if index is not None else _only_index_name(db)
        hits = db.search_index(name).search(text, limit=limit, consistent=consistent)
    for hit in hits:
        if notation.as_json:
            print_json({"key": notation.json_key(hit.key), "score": hit.score})
        else:
            print_line(f"{hit.score:.3f}", notation.key(hit.key))


def _only_index_name(db: postroom.Database) -> str:
    """Return the name of the only index of the store."""
    names = [each.name for each in db.search_indexes()]
    if len(names) == 1:
        return names[0]
    if not names:
        raise Error("there is no search index: 'postroom pipeline run index' makes one")
    raise Error(f"there are several search indexes: give --index {' or '.join(names)}")

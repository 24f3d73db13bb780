"""All differences of an index, looked for without Spark."""

from __future__ import annotations

import postroom
from postroom.layers.search.changes import Difference, Suspect
from postroom.layers.search.sync_index import Checking


def differences(db: postroom.Database, name: str) -> list[Difference]:
    """Compare every document and every posting with the index."""
    definition = db.search_index(name).definition()
    layout = definition.layout
    strays: dict[bytes, list[bytes]] = {key: [] for key, _ in db.scan(*definition.span)}
    for key, _ in db.scan(*layout.span):
        row = layout.read(key)
        if row.kind != "sums":
            postings = strays.setdefault(row.key, [])
            if row.posting is not None:
                postings.append(key)
    suspects = [Suspect(key, tuple(postings)) for key, postings in strays.items()]
    checking = Checking(db, definition)
    found = checking.confirm(suspects)
    if not found:
        with db.hold(whole=True) as at:
            documents = words = 0
            for key, stored in db.scan(*definition.span, at=at):
                if isinstance(stored, bytes):
                    documents += 1
                    words += sum(definition.words(stored, key).values())
            if definition.format == "text":
                assert checking.sums(at) == (documents, words)
    return found

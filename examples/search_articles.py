"""Searching: an index over articles that follows the transactions which change them.

A transaction writes the article and one record; what each word needs is deferred, and carried out
exactly once, soon after. A search asks the records, so every hit is right.

Run it: python examples/search_articles.py
"""

from __future__ import annotations

import postroom

ARTICLES = {
    b"article/1": {"title": "Red wine", "text": "From the cellar of an old house"},
    b"article/2": {"title": "White wine", "text": "Cold, and not from any cellar"},
    b"article/3": {"title": "Bread", "text": "With red wine, or without"},
}


def titles(db: postroom.Database, index: postroom.SearchIndex, words: str) -> list[str]:
    """Return the titles of the articles with these words, the best first."""
    hits = index.search(words, consistent=True)  # earlier commits are found
    return [db.get(hit.key)["title"] for hit in hits]


def main() -> None:
    with postroom.open(":memory:", codec="json") as db:
        index = db.create_search_index("articles", b"article/", fields=["title", "text"])
        for key, article in ARTICLES.items():
            with db.begin() as tx:
                index.put(tx, key, article)
                tx.enqueue_message(b"newsletter", {"new": article["title"]})

        assert titles(db, index, "red wine") == ["Bread", "Red wine"]
        assert titles(db, index, "wine cell*") == ["White wine", "Red wine"]
        assert titles(db, index, '"old house"') == ["Red wine"]

        with db.begin() as tx:
            index.put(tx, b"article/3", {"title": "Bread", "text": "With butter"})
            index.delete(tx, b"article/2")
        assert titles(db, index, "wine") == ["Red wine"]
        print("found:", ", ".join(titles(db, index, "butter")))


if __name__ == "__main__":
    main()

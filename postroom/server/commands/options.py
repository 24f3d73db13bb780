"""The options that commands share, and how they open the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import postroom
from postroom.errors import Error

StorePath = Annotated[
    Path,
    typer.Option("--path", metavar="DIR", envvar="POSTROOM_PATH", help="The store's data folder."),
]
AsHex = Annotated[
    bool, typer.Option("--hex", help="Keys and values are hexadecimal digits, not text.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Key = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]


def open_or_create(path: Path) -> postroom.Database:
    """The store in ``path``, made if there is none: for commands that write."""
    return postroom.open(str(path))


def open_existing(path: Path) -> postroom.Database:
    """The store in ``path``: a mistyped path must not look like an empty store."""
    if not path.is_dir() or not any(path.iterdir()):
        raise Error(f"there is no store in {str(path)!r}: check --path, or create one with 'put'")
    return postroom.open(str(path))

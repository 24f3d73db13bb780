"""Render the drawings: ``docs/drawings/*.dot``, by Graphviz, to SVG files beside them.

``python docs/tools/drawings.py`` (``make drawings``) renders all of them. The files are kept with
the pages, so that nobody needs Graphviz to build these. Each file names the digest of its source;
by that a test sees that it is up to date.

Colours come from a style sheet (``docs/assets/drawing.css``), by the classes of nodes and edges.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

DRAWINGS: Final = Path(__file__).parents[1] / "drawings"
STYLE: Final = Path(__file__).parents[1] / "assets" / "drawing.css"

_DIGEST: Final = re.compile(r"<!-- made from ([0-9a-f]{64}) -->")


def digest(source: Path) -> str:
    """Return the digest of a source and of the style."""
    return hashlib.sha256(source.read_bytes() + STYLE.read_bytes()).hexdigest()


def digest_in(drawing: str) -> str:
    """Return the digest that a rendered drawing names; empty: none."""
    found = _DIGEST.search(drawing)
    return found[1] if found else ""


def render(source: Path) -> str:
    """Return the drawing of a source as SVG.

    Raises:
        CalledProcessError: Graphviz does not understand the source.
    """
    command = ["dot", "-Tsvg", str(source)]
    drawn = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    svg = drawn[drawn.index("<svg") :]
    svg = re.sub(r"<!--.*?-->\n?", "", svg)
    svg = re.sub(r"<title>.*?</title>\n?", "", svg)
    svg = re.sub(r' id="[^"]*"', "", svg)  # several drawings may be on one page
    svg = re.sub(r' (?:fill|stroke|font-family)="[^"]*"', "", svg)
    title = re.match(r"// (.*)", source.read_text())
    head = f'<svg class="drawing" role="img" aria-label="{title[1] if title else source.stem}"'
    svg = svg.replace("<svg", head, 1).replace(">", f">\n<style>\n{STYLE.read_text()}</style>", 1)
    return f"<!-- made from {digest(source)} -->\n{svg}"


def main() -> None:
    """Render all drawings."""
    for source in sorted(DRAWINGS.glob("*.dot")):
        source.with_suffix(".svg").write_text(render(source))
        sys.stdout.write(f"{source.stem}.svg\n")


if __name__ == "__main__":
    main()

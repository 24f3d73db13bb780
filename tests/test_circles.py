"""Files import each other in one direction, those for types alone apart."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import postroom

ROOT = Path(postroom.__file__).parent


def modules() -> dict[str, Path]:
    """Return the file of each module."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that are carried out, also those in functions."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for each in node.orelse:
                    yield from imports(each)
            case _:
                yield from imports(node)


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports; a package counts if one of its names is imported."""
    found: set[str] = set()
    for node in imports(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        else:
            assert node.level == 0, f"{path} has a relative import"
            for each in node.names:
                name = f"{node.module}.{each.name}"
                found.add(name if name in MODULES else str(node.module))
    return found & MODULES.keys()


def test_files_do_not_import_themselves_through_others() -> None:
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}
    assert len(graph) > 300
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle

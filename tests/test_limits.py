"""Limits that users and operators can meet stand in one file."""

from __future__ import annotations

import ast
from pathlib import Path

import postroom
from postroom import limits

PACKAGE = Path(postroom.__file__).parent
JOBS = {PACKAGE / "pipeline" / "jobs", PACKAGE / "layers" / "report"}
"""Programs of their own, whose bounds stand beside them."""


def _assigned(path: Path) -> set[str]:
    """Return the names to which a module assigns."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_names_that_end_in_max_stand_in_limits_only() -> None:
    """A bound that only tunes code stands beside it under another name: no user meets it."""
    elsewhere = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "limits.py" and JOBS.isdisjoint(path.parents)
        for name in _assigned(path)
        if name.endswith("_MAX")
    }
    assert not elsewhere, "move them to limits.py, or name what they are"


def test_each_limit_has_a_line_of_why() -> None:
    lines = Path(limits.__file__).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("REAPED_BYTES_D"))
    without = []
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.AnnAssign) and node.lineno > first:
            assert node.end_lineno is not None
            following = lines[node.end_lineno] if node.end_lineno < len(lines) else ""
            if not following.strip().startswith('"""') and ": Final = " not in following:
                without.append(lines[node.lineno - 1])
    assert all("_MIN" in each for each in without), without

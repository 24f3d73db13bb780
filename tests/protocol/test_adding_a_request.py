"""The steps of CONTRIBUTING.md for a new request are enough: they are taken with a copy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "CONTRIBUTING.md"
STEP: Final = re.compile(
    r"(?P<where>at the end of|before `(?P<line>[^`]+)` in) (?:`(?P<path>[\w/.]+)`|the same file)"
    r".*?```python\n(?P<code>.*?)```",
    re.DOTALL,
)
TESTS: Final = ("-k", "exists", "tests/client/test_exists.py", "tests/protocol/test_contract.py")
REQUEST: Final = "Exists"
IMPORT: Final = f"from postroom.ranges.requests import {REQUEST}\n"


def steps() -> list[tuple[str, str | None, str]]:
    """Return the steps of the page: a file, the line before which code goes, and the code."""
    section = PAGE.read_text().partition("## Adding a request")[2].partition("\n## ")[0]
    found, path = [], ""
    for step in STEP.finditer(section):
        path = step["path"] or path
        found.append((path, step["line"], textwrap.dedent(step["code"]).rstrip() + "\n"))
    return found


def take(tree: Path, path: str, line: str | None, code: str) -> None:
    """Take a step in a copy of the tree."""
    file = tree / path
    text = file.read_text() if file.exists() else ""
    if line is None:
        file.write_text(f"{text}\n\n{code}" if text else code)
        return
    match = re.search(rf"(?m)^( *){re.escape(line)}", text)
    assert match is not None, f"{line!r} is not in {path}"
    blank = "" if not code.startswith(("def ", "async def ")) else "\n" if match[1] else "\n\n"
    code = textwrap.indent(code, match[1]) + blank
    text = f"{text[: match.start()]}{code}{text[match.start() :]}"
    if REQUEST in code and IMPORT not in text:
        text = text.replace(
            "from postroom.ranges.requests", f"{IMPORT}from postroom.ranges.requests", 1
        )
    file.write_text(text)


def copied(to: Path) -> Path:
    """Copy the package and its tests."""
    for name in ("postroom", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", to)
    return to


def test_the_steps_of_the_page_add_a_request_in_four_files(tmp_path: Path) -> None:
    tree = copied(tmp_path)
    taken = steps()
    for path, line, code in taken:
        take(tree, path, line, code)
    assert len({path for path, _, _ in taken}) == 4
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *TESTS]
    environment = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, textwrap.indent(ended.stdout[-3000:] + ended.stderr, "  ")
    assert "test_exists.py" not in ended.stderr

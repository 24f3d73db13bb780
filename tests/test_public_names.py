"""The names of ``postroom``: all there, and imported only when they are used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

import postroom


def test_every_public_name_is_there() -> None:
    for name in postroom.__all__:
        assert getattr(postroom, name) is not None
    assert set(postroom.__all__) <= set(dir(postroom))
    assert postroom.SearchHit.__name__ == "Hit"
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        postroom.opne  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_are_told_of_the_same_names() -> None:
    blocks = [each for each in ast.parse(inspect.getsource(postroom)).body if type(each) is ast.If]
    told = {
        alias.asname or alias.name: (each.module, alias.name)
        for each in ast.walk(blocks[0])
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    homes = {
        name: (home, postroom._OTHER_NAMES.get(name, name))
        for name, home in postroom._HOMES.items()
    }
    assert told == homes
    assert set(homes) < set(postroom.__all__)


def test_the_package_loads_little_until_something_of_it_is_used() -> None:
    program = "import sys, postroom; print(*(n for n in sys.modules if n.startswith('postroom')))"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert set(ran.stdout.split()) <= {
        "postroom",
        "postroom.collector",
        "postroom.errors",
        "postroom.limits",
        "postroom.version",
    }

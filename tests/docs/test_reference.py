"""The reference has each public name, with arguments, errors and an example that runs."""

from __future__ import annotations

import builtins
import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import postroom
import postroom.aio
import postroom.testing
from postroom.ranges.contract import Write

PAGES = Path(__file__).parents[2] / "docs" / "reference"
BLOCK = re.compile(r"^::: (\S+)", re.MULTILINE)
WHOLE = re.compile(r"^::: (\S+)\n    options:\n      members: null", re.MULTILINE)
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
MODULES: list[ModuleType] = [postroom, postroom.aio, postroom.testing]
TEXT = "\n".join(each.read_text() for each in sorted(PAGES.glob("*.md")))
BLOCKS = BLOCK.findall(TEXT)


def exported() -> dict[str, Any]:
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in MODULES
        for name in module.__all__
        if not inspect.ismodule(getattr(module, name))
    }


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Return the attributes of a class that are Postroom's own and have a public name.

    The contract of a request is for the parts that carry it, and no part of the interface.
    """
    contract = [*dir(Write), "answer"] if issubclass(owner, Write) else []
    for name in dir(owner):
        home = next((each for each in owner.__mro__ if name in vars(each)), owner)
        is_own = home.__module__.startswith("postroom") and name not in contract
        if not name.startswith("_") and is_own:
            yield name, inspect.getattr_static(owner, name)


def is_field(attribute: Any) -> bool:
    """Return whether the documentation of its class describes an attribute."""
    return not (isinstance(attribute, property) or callable(attribute))


def doc(documented: Any) -> str:
    return inspect.getdoc(documented) or ""


def is_for_layers(attribute: Any) -> bool:
    return "for layers on top" in " ".join(doc(attribute).split()).lower()


def section(documented: Any, *titles: str) -> dict[str, str]:
    """Return the entries of a section of a docstring by their names."""
    found = re.search(
        rf"^(?:{'|'.join(titles)}):\n((?:    .*\n|\n)*)", doc(documented) + "\n", re.MULTILINE
    )
    if not found:
        return {}
    entries = re.findall(r"^    (\S[^:\n]*): (.*)$", found[1], re.MULTILINE)
    return {name: text for names, text in entries for name in names.split(", ")}


EXPORTED = exported()
CLASSES = {name: each for name, each in EXPORTED.items() if inspect.isclass(each)}
WRITTEN_OUT = {name: each for name, each in CLASSES.items() if name not in WHOLE.findall(TEXT)}
CALLS = {name: each for name, each in EXPORTED.items() if inspect.isfunction(each)} | {
    f"{owner}.{name}": attribute
    for owner, each in CLASSES.items()
    for name, attribute in members(each)
    if inspect.isfunction(attribute) and not is_for_layers(attribute)
}


def test_each_block_of_the_reference_is_written_once() -> None:
    assert sorted({each for each in BLOCKS if BLOCKS.count(each) > 1}) == []


def test_each_exported_name_is_in_the_reference() -> None:
    assert sorted(set(EXPORTED) - set(BLOCKS)) == []


def test_the_reference_has_no_name_that_does_not_exist() -> None:
    for block in BLOCKS:
        name, found = block, None
        while found is None:
            name = name.rpartition(".")[0]
            found = next((each for each in MODULES if each.__name__ == name), None)
        for part in block.removeprefix(f"{name}.").split("."):
            found = (
                inspect.getattr_static(found, part)
                if inspect.isclass(found)
                else getattr(found, part)
            )
        assert doc(found), f"{block} has no documentation"


@pytest.mark.parametrize("owner", WRITTEN_OUT)
def test_each_member_of_a_class_is_in_the_reference(owner: str) -> None:
    """A member that only layers on top need says so; a field is described with its class."""
    fields: set[str] = set()
    for each in WRITTEN_OUT[owner].__mro__:
        fields |= {*section(each, "Attributes"), *section(each, "Args")}
    missing = [
        name
        for name, attribute in members(WRITTEN_OUT[owner])
        if f"{owner}.{name}" not in BLOCKS
        and not (is_field(attribute) and name in fields)
        and not (not is_field(attribute) and is_for_layers(attribute))
    ]
    assert missing == []


@pytest.mark.parametrize("name", CALLS)
def test_each_argument_of_a_call_is_described(name: str) -> None:
    given = [
        each
        for each, parameter in inspect.signature(CALLS[name]).parameters.items()
        if each != "self" and not each.startswith("_")
    ]
    described = {each.lstrip("*") for each in section(CALLS[name], "Args")}
    assert [each for each in given if each not in described] == []
    assert [each for each in described if each not in given] == []


@pytest.mark.parametrize("name", CALLS)
def test_the_result_of_a_call_is_described(name: str) -> None:
    returned = str(inspect.signature(CALLS[name]).return_annotation)
    if returned not in {"None", "Any"}:
        assert re.search(r"\b[Rr]eturns?\b", doc(CALLS[name])), f"{name} returns {returned}"


@pytest.mark.parametrize("name", CALLS)
def test_each_error_of_a_call_is_one_of_ours_or_of_python(name: str) -> None:
    for error in section(CALLS[name], "Raises"):
        kind = getattr(postroom.errors, error, None) or getattr(builtins, error, None)
        assert kind is not None, f"{name} is said to raise {error}"
        assert issubclass(kind, Exception)


@pytest.mark.parametrize("page", sorted(each.name for each in PAGES.glob("*.md")))
def test_the_programs_of_a_page_run(page: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for program in PROGRAM.findall((PAGES / page).read_text()):
            exec(compile(program, page, "exec"), names)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_examples_of_a_docstring_run(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    tests = [
        doctest.DocTestParser().get_doctest(doc(each), {}, path, None, None)
        for path, each in [(name, EXPORTED[name]), *members_of_class(name)]
    ]
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in [each for each in tests if each.examples]:
        with postroom.open(":memory:") as db:
            test.globs = {"postroom": postroom, "db": db}
            assert runner.run(test).failed == 0


def members_of_class(name: str) -> list[tuple[str, Any]]:
    owner = CLASSES.get(name)
    return [] if owner is None else [(f"{name}.{each}", found) for each, found in members(owner)]


@pytest.mark.parametrize("name", EXPORTED)
def test_each_exported_name_has_an_example_that_runs(name: str) -> None:
    short = name.rpartition(".")[2]
    prefix = r"aio\." if name.startswith("postroom.aio") else r"(?:postroom|testing)\."
    programs = "\n".join(PROGRAM.findall(TEXT))
    assert ">>>" in doc(EXPORTED[name]) or re.search(rf"\b{prefix}{short}\b", programs)

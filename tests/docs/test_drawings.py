"""The drawings of the pages are made from their sources, and each is on a page."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "docs" / "drawings").glob("*.dot"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.fixture(scope="module")
def drawings() -> ModuleType:
    path = ROOT / "docs" / "tools" / "drawings.py"
    found = importlib.util.spec_from_file_location("drawings", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def texts(drawing: str) -> list[str]:
    return sorted(re.findall(r"<text[^>]*>([^<]*)</text>", drawing))


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.stem)
def test_a_drawing_is_made_from_its_present_source(source: Path, drawings: ModuleType) -> None:
    rendered = source.with_suffix(".svg").read_text()
    assert drawings.digest_in(rendered) == drawings.digest(source), "run: make drawings"


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.stem)
def test_a_drawing_that_is_rendered_again_has_the_same_texts(
    source: Path, drawings: ModuleType
) -> None:
    """Positions depend on the version of Graphviz and on fonts; what is drawn does not."""
    kept, again = source.with_suffix(".svg").read_text(), drawings.render(source)
    assert texts(again) == texts(kept)
    assert again.count("<path") == kept.count("<path")


@pytest.mark.parametrize("source", SOURCES, ids=lambda each: each.stem)
def test_a_drawing_is_on_a_page(source: Path) -> None:
    assert any(f"drawings/{source.stem}.svg)" in each.read_text() for each in PAGES)


def test_each_drawing_has_its_source() -> None:
    rendered = (ROOT / "docs" / "drawings").glob("*.svg")
    assert {each.stem for each in rendered} == {each.stem for each in SOURCES}

"""The site shows what a plain checkout has, and loads nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


class Files:
    """The files of a site, by their paths."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def get_file_from_path(self, path: str) -> str | None:
        return path if path in self.paths else None


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs", reason="the extra [docs] is not installed")
    path = ROOT / "docs" / "tools" / "site_hooks.py"
    found = importlib.util.spec_from_file_location("site_hooks", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def page(path: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


@pytest.mark.parametrize(
    ("here", "link", "on_site"),
    [
        ("queues.md", "../ARCHITECTURE.md#the-problem", "ARCHITECTURE.md#the-problem"),
        ("use/index.md", "../../CHANGELOG.md", "../CHANGELOG.md"),
        ("ARCHITECTURE.md", "docs/queues.md", "queues.md"),
        ("queues.md", "../README.md", "index.md"),
        ("search.md", "../examples/search.py", "examples/search.py.md"),
        ("use/index.md", "../../examples", "../examples/index.md"),
        ("queues.md", "messages.md", "messages.md"),
        ("queues.md", "missing.md", "missing.md"),
        ("queues.md", "https://example.org/", "https://example.org/"),
    ],
)
def test_a_link_of_a_checkout_leads_to_the_page_of_the_site(
    hooks: ModuleType, here: str, link: str, on_site: str
) -> None:
    files = Files(
        "ARCHITECTURE.md", "CHANGELOG.md", "queues.md", "messages.md", "index.md",
        "examples/index.md", "examples/search.py.md",
    )  # fmt: skip
    text = f"see [it]({link})\n\n```\n[code]({link})\n```\n"
    rewritten = hooks.on_page_markdown(text, page(here), None, files)
    assert rewritten == f"see [it]({on_site})\n\n```\n[code]({link})\n```\n"


def test_the_heading_of_a_call_names_its_class(hooks: ModuleType) -> None:
    text = "::: postroom.Queue.claim\n\n::: postroom.Queue\n"
    rewritten = hooks.on_page_markdown(text, page("reference/queues.md"), None, Files())
    assert rewritten.count("heading: Queue.claim\n") == 1
    assert "heading: Queue\n" not in rewritten


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<img alt="" src="http://example.org/a.png">',
    ],
)
def test_a_page_that_loads_something_from_elsewhere_is_refused(
    hooks: ModuleType, tmp_path: Path, tag: str
) -> None:
    (tmp_path / "index.html").write_text(f"<html>{tag}</html>")
    with pytest.raises(hooks.PluginError, match="from elsewhere"):
        hooks.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))


def test_a_page_may_link_to_other_sites(hooks: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="https://example.org/">there</a>')
    (tmp_path / "site.css").write_text("a { background: url(a.png) }")
    hooks.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))


def test_each_reader_has_an_index_page_that_is_short() -> None:
    for reader in ("use", "operate", "spark", "languages", "inside", "reference"):
        text = (ROOT / "docs" / reader / "index.md").read_text()
        assert text.startswith("# ")
        assert len(text.splitlines()) <= 30


def test_each_maker_of_synchronous_forms_is_known_to_the_reference() -> None:
    text = (ROOT / "docs" / "tools" / "sync_forms.py").read_text()
    (makers,) = re.findall(r"MAKERS: Final = frozenset\((.*?)\n\)", text, re.DOTALL)
    known = set(re.findall(r'"(\w+)"', makers))
    line = re.compile(
        r"^    \w+ = (\w+)\(\w+\.\w+\.\w+[,)]|^    \w+ = (\w+)\(Async\w+\.", re.MULTILINE
    )
    used = {
        maker
        for path in (ROOT / "postroom" / "client").rglob("sync*.py")
        for pair in line.findall(path.read_text())
        for maker in pair
        if maker
    }
    assert used
    assert used <= known


def test_the_program_of_the_start_page_runs() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "index.md", "exec"), {})

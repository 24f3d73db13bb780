"""Hooks of mkdocs: what a plain checkout has beside ``docs/`` is on the site, too.

* ``ARCHITECTURE.md``, ``CHANGELOG.md`` and ``CONTRIBUTING.md`` are pages, and so is each example.
  Links to them are rewritten, so that they work on the site and in a plain checkout.
* The pages of the command line and of the requests are written from the code.
* In the reference, the heading of a call names its class.
* Drawings and charts are put into the page itself. They therefore follow its switch of light and
  dark.
"""

from __future__ import annotations

import posixpath
import re
import runpy
from html import escape
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
"""The pages beside ``docs/`` that are part of the site."""

WRITTEN: Final = {
    "reference/command-line.md": "command_line_page.py",
    "reference/requests.md": "requests_page.py",
}
"""The pages that programs beside this one write."""

_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
_CALL: Final = re.compile(r"^::: postroom\.((?!aio|testing)\w+\.\w+)$", re.MULTILINE)
_LOADS: Final = {
    ".html": re.compile(
        r'<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)="(?:https?:)?//[^>]*>'
    ),
    ".css": re.compile(r"url\((?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;"),
}
_IMAGE: Final = re.compile(r'<img alt="([^"]*)" src="([^"]+\.svg)" ?/?>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in ``docs/``."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for path, program in WRITTEN.items():
        text = runpy.run_path(str(Path(__file__).parent / program))["page"]()
        files.append(File.generated(config, path, content=text))
    for path, text in _examples().items():
        files.append(
            File.generated(config, path, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
        )
    return files


def _examples() -> dict[str, str]:
    programs = sorted(
        each
        for each in (ROOT / "examples").rglob("*")
        if each.suffix in {".py", ".yml"} and "__pycache__" not in each.parts
    )
    pages, rows = {}, []
    for each in programs:
        name = each.relative_to(ROOT).as_posix()
        text, language = each.read_text(), {".py": "python"}.get(each.suffix, "yaml")
        pages[f"{name}.md"] = f'# {each.name}\n\n```{language} title="{name}"\n{text}```\n'
        short = name.removeprefix("examples/")
        rows.append(f"| [{short}]({short}) | {_subject(text)} |")
    table = "\n".join(["| program | subject |", "| --- | --- |", *rows])
    pages["examples/index.md"] = f"# Examples\n\nShort programs. The tests run them.\n\n{table}\n"
    return pages


def _subject(program: str) -> str:
    found = re.match(r'(?:#!.*\n)?"""(.+?)(?:\n\n|""")', program, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave ``docs/`` in a plain checkout; name the class of each call."""
    del config
    markdown = _CALL.sub(r"\g<0>\n    options:\n      heading: \1\n      toc_label: \1", markdown)
    here = page.file.src_uri
    folder = posixpath.dirname(_in_checkout(here))

    def rewrite(link: re.Match[str]) -> str:
        aim = posixpath.normpath(posixpath.join(folder, link[1]))
        found = _on_site(aim, files)
        if found is None:
            return link[0]
        start = posixpath.dirname(here) or "."
        return posixpath.relpath(found, start) + (link[2] or "")

    fences = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(each if each.startswith("```") else _LINK.sub(rewrite, each) for each in fences)


def _in_checkout(page: str) -> str:
    """Return where the source of a page is, from the root of the checkout."""
    if page in PAGES or page.startswith("examples/"):
        return page
    return f"docs/{page}"


def _on_site(aim: str, files: Files) -> str | None:
    """Return the page of the site for a path of the checkout; ``None``: it has none."""
    if aim == "README.md":
        return "index.md"
    candidates = [f"{aim}.md", f"{aim}/index.md"] if aim.startswith("examples") else [aim]
    if aim.startswith("examples/") and not aim.endswith((".py", ".yml")):
        candidates = ["examples/index.md"]
    for each in candidates:
        path = each.removeprefix("docs/")
        if files.get_file_from_path(path) is not None:
            return path
    return None


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put drawings and charts into the page itself."""
    del files
    folder = Path(config.docs_dir) / posixpath.dirname(page.file.src_uri)

    def inline(image: re.Match[str]) -> str:
        drawing = (folder / _source(image[2], page)).read_text()
        start = drawing.index("<svg")
        svg = re.sub(r"<style>.*?</style>\n?", "", drawing[start:], flags=re.DOTALL)
        svg = re.sub(r' role="img" aria-label="[^"]*"', "", svg, count=1)
        return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(image[1])}" ', 1)

    return _IMAGE.sub(inline, html)


def _source(address: str, page: Page) -> str:
    """Return the path of a picture from the source of its page."""
    built = posixpath.join(posixpath.dirname(page.file.dest_uri), address)
    return posixpath.relpath(posixpath.normpath(built), posixpath.dirname(page.file.src_uri) or ".")


def on_post_build(config: MkDocsConfig) -> None:
    """Check that no page loads anything from elsewhere: the site needs no network."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix not in _LOADS:
            continue
        for found in _LOADS[path.suffix].findall(path.read_text()):
            if 'rel="canonical"' not in found:
                raise PluginError(f"{path.name} loads something from elsewhere: {found}")

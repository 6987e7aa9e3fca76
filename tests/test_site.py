"""The site has every page and public name; ``.ci/run`` checks what Sphinx makes of it (``tests.site``)."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from codeop import compile_command
from pathlib import Path
from typing import Any

import pytest

import jitree
from jitree.cuda.device import CudaDevice
from jitree.hal.enums import MemoryType
from tests.api.test_failures import FAILURES
from tests.cuda.fake import FakeDriver
from tests.pages import ROOT, blocks
from tests.site import drawings, finding, pages, performance, reference
from tests.site.__main__ import short_list
from tests.site.links import broken

HOW = sorted((ROOT / "docs" / "how").glob("*.md"))
FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("source")
    return folder, pages.gather(folder, {**reference.pages(), performance.PAGE: "# Performance\n\nRatios.\n"})


def test_each_page_is_in_the_table_of_contents_once(gathered: tuple[Path, dict[str, str]]) -> None:
    folder, texts = gathered
    listed: list[str] = []
    for path in folder.rglob("*.md"):
        for contents in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL):
            listed += re.findall(r"(?:^|<)/([^>\n]+)", contents, re.MULTILINE)
    written = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.md")}
    assert sorted(listed) == sorted((written | {"reference/index"}) - {"index"})
    assert texts.keys() == (pages.all_pages().keys() | {performance.PAGE, "parts.md"})


def test_links_of_pages_lead_to_what_is_there(gathered: tuple[Path, dict[str, str]]) -> None:
    folder, _ = gathered
    for path in folder.rglob("*.md"):
        for link in pages.LINK.finditer(pages.CODE.sub("", path.read_text(encoding="utf-8"))):
            if link.group(3) and not re.match(r"[a-z]+:", link.group(3)):
                assert (path.parent / link.group(3)).is_file(), (path, link.group(0))


def test_each_public_name_has_a_page(gathered: tuple[Path, dict[str, str]]) -> None:
    for name in {*jitree.__all__, "compile"} - {"__version__"}:
        assert (gathered[0] / "reference" / f"jitree.{name}.rst").exists(), name
    assert all(said for _, _, said in reference.entries())
    errors = (gathered[0] / "reference" / "jitree.errors.rst").read_text()
    assert all(f"   {code.name}: " in errors for code in jitree.StatusCode if code)
    for name in ("i32", "i64", "f32", "f64"):  # aliases, which are neither classes nor functions
        assert (gathered[0] / "reference" / f"jitree.{name}.rst").read_text().count(".. py:data::") == 1, name


@pytest.mark.parametrize("path", HOW, ids=lambda path: path.stem)
def test_drawings(path: Path) -> None:
    """Each page on how it works has one, with boxes, and its lines end nowhere in the void."""
    found = drawings.DRAWING.findall(path.read_text(encoding="utf-8"))
    assert found
    for text in found:
        canvas = drawings.Canvas(text)
        ElementTree.fromstring(drawings.svg(text, path.stem))
        assert [*canvas.boxes()]
        for column, row, character in canvas.places():
            for dx, dy in drawings.LINES.get(character, ()):
                near = canvas.at(column + dx, row + dy) + canvas.at(column + 2 * dx, row + 2 * dy)
                assert near != "  ", f"{path.name}, line {row + 1}: {character}"


def test_the_frequent_errors_are_those_that_are_raised() -> None:
    """Each message is one that a test has raised; "…" stands for what depends on the release or the file."""
    shown = [text.strip() for text in blocks(FAQ, "text")]
    raised = [golden.partition(" | ")[0] for _, golden in FAILURES.values()]
    gpu = FakeDriver()
    with pytest.raises(jitree.errors.ResourceExhaustedError) as full:
        CudaDevice(gpu, 0).device_allocator.allocate(MemoryType.DEVICE_LOCAL, 0, 2 * gpu.memory)
    raised.append(str(full.value))
    assert len(shown) >= 30
    for text in shown:
        pattern = ".*".join(re.escape(part) for part in text.split("…"))
        assert any(re.fullmatch(pattern, message) for message in raised), text


def test_the_list_for_programs_has_all_pages(gathered: tuple[Path, dict[str, str]]) -> None:
    texts = gathered[1]
    lines = [line for line in short_list(texts).splitlines() if line.startswith("- [")]
    assert len(lines) == len(texts) - 1 + len(reference.entries())
    assert all(len(pages.LINK.findall(line)) == 1 and line.partition("): ")[2] for line in lines)


def test_measurements_become_a_page() -> None:
    page = performance.page((ROOT / performance.SOURCE).read_text(encoding="utf-8"))
    assert "| local-sync, from device | 7 |" in page
    assert "load of 100 dispatches | 0." in page and "`ddddocr`" in page
    slower = page.partition("## What is slower")[2].partition("\n## ")[0]
    assert all(re.search(r"` \| 20\d\d-\d\d-\d\d \|$", row) for row in slower.splitlines() if "| 0." in row)
    assert "against best" in slower


def test_questions_name_pages() -> None:
    made = {*reference.pages(), performance.PAGE, "index.md"}
    asked = finding.questions()
    assert len(asked) >= 30
    for page in {page.partition("#")[0] for question in asked for page in question.pages}:
        assert (ROOT / f"{page}.md").exists() or {f"{page}.md", f"{page}.rst"} & made, page


INDEX: dict[str, Any] = {
    "docnames": ["docs/kernels", "docs/seeing", "docs/programs/narrow_types"],
    "filenames": ["", "", ""],
    "titles": ["Replace a kernel", "See inside", "Narrow types"],
    "alltitles": {
        "Replace a kernel": [[0, None]],
        "Find the first NaN": [[1, "nan"]],
        "See inside": [[1, None]],
    },
    "terms": {"first": 0, "nan": 0, "i4": 2, "pack": [0, 2]},
    "titleterms": {"replac": 0, "kernel": 0, "find": 1, "first": 1, "nan": 1, "see": 1, "insid": 1},
    "objects": {},
    "indexentries": {},
}
"""As Sphinx writes one: words of texts and of headings, by number of the page."""


@pytest.mark.skipif(finding.NODE is None, reason="node is not installed")
def test_the_search(tmp_path: Path) -> None:
    """A word counts more in a heading, alike words are found, and a word that no page has hides none."""
    sphinx = Path(pytest.importorskip("sphinx").__file__).parent
    stemmers = sphinx / "search" / "minified-js"
    data = [
        "const stopwords = new Set(['the']);",
        *((stemmers / f"{name}-stemmer.js").read_text(encoding="utf-8") for name in ("base", "english")),
        "window.Stemmer = EnglishStemmer;",
        (finding.HERE / "search.js").read_text(encoding="utf-8"),
    ]
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "language_data.js").write_text("\n".join(data), encoding="utf-8")
    shutil.copy(sphinx / "themes" / "basic" / "static" / "searchtools.js", tmp_path / "_static")
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(INDEX)})", encoding="utf-8")
    kernels, seeing, narrow = INDEX["docnames"]
    assert finding.found(
        tmp_path, ["first NaN", "int4", "the zebra kernel", "zebra", "pack", "find infinity"]
    ) == [
        [f"{seeing}#nan", kernels],
        [narrow],
        [kernels],
        [],
        [narrow, kernels],
        [f"{seeing}#nan"],
    ]
    assert finding.Question("", [seeing]).is_answered([f"{seeing}#nan"])
    assert not finding.Question("", [f"{seeing}#nan"]).is_answered([seeing])


def test_the_tour_can_be_pasted_into_a_console() -> None:
    """The console before Python 3.13 ends a compound statement at an empty line only."""
    for block in blocks((ROOT / "docs" / "tour.md").read_text(encoding="utf-8"), "python"):
        begun = ""
        for line in [*block.splitlines(), ""]:
            begun += line + "\n"
            if compile_command(begun.removesuffix("\n"), symbol="single"):
                begun = ""
        assert not begun.strip(), begun


def test_defaults_are_shown_as_in_the_source() -> None:
    pytest.importorskip("sphinx.util")  # a folder of that name may be without it
    from tests.site import conf

    shown, _ = conf.signature(None, "class", "jitree.Session", jitree.Session, None, None, None)
    assert shown and "= ContextFlags.NONE," in shown and "= write_to_stderr," in shown and "<" not in shown


def test_environment_variables_are_listed() -> None:
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    used = {
        name
        for path in (ROOT / "jitree").rglob("*.py")
        for name in re.findall(r"JITREE_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    checked = (ROOT / "tests" / "checked" / "README.md").read_text(encoding="utf-8")
    inner = {"JITREE_API_VERSION", "JITREE_BUILD_STAMP"}  # of the interface in C; of builds of images
    assert {name for name in used - inner if f"`{name}`" not in page + checked} == set()


def test_links_that_are_broken_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a id="x" href="b.html#y"></a><a href="#x"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text(
        '<img src="https://example.org/a.png"><a href="https://example.org"></a>'
    )
    assert [*broken(tmp_path)] == [
        "a.html: no such place: b.html#y",
        "a.html: no such page: c.html",
        "b.html: comes from elsewhere: https://example.org/a.png",
    ]

"""Pages about programs: what is in them, what is missing, and that names of programs do nothing there."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.base.page import SAID, Drawing, Notice, PageTable, Text, document, notebook
from jitree.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from jitree.observe.graph import DispatchGraph, dispatch_pieces
from jitree.observe.tolerance import Statistics
from tests.assembler import Assembler
from tests.tools.command import jitree as command
from tests.tools.test_dump_code import SUM

ROOT = Path(__file__).resolve().parents[2]
LLVM, VMVX = (str(ROOT / f"examples/digits/digits.{kind}.vmfb") for kind in ("llvm-cpu", "vmvx"))
HALF = np.full((8, 8), 0.5, np.float32)
HOSTILE = (
    "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">\u2028&'"
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Parsed(HTMLParser):
    """The elements of a page; those that are opened are closed."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        key = self.open[-1] if self.open else ""
        self.texts[key] = self.texts.get(key, "") + data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws: the first one of the two."""
        found: dict[str, Any] = json.JSONDecoder().raw_decode(self.texts["script"])[0]
        return found


def tensor(binding: int, extent: tuple[int, int], origin: str = "") -> Any:
    stats = Statistics((4, 71), "4x71xf32", -1.5, 2.25, 0.125, 2.25, 1.03125, 3, 0, 0, tuple(range(16)))
    return SimpleNamespace(
        binding=binding, extent=extent, origin=origin, type="4x71xf32", source="name", stats=stats, changes=()
    )


def dispatch(
    number: int, reads: Sequence[Any], writes: Sequence[Any], *, kind: str = "dispatch", **given: Any
) -> Any:
    """As an observer sees it. Bindings are as large as the tensors in them, unless ``operands`` are given."""
    name = given.pop("name", f"main_dispatch_{number}_matmul_like_128x768x256_f32")
    operands = given.pop("operands", tuple(item.extent for item in (*reads, *writes)))
    fields = {"constants": (), "call": 0, "function": "module.main", "workgroups": (8, 4, 1)}
    where = f"module.main+{number:08X}; compiled from model.py:{number % 700}"
    fields |= {"location": where, "call_site": "run.py:3 in <module>", "label": name, **given}
    return SimpleNamespace(
        name=name, kind=kind, ordinal=number, operands=operands, inputs=reads, outputs=writes,
        stats=writes[0].stats if writes else None, **fields,
    )  # fmt: skip


def program(count: int) -> list[Any]:
    """A model of so many dispatches, each of which reads the one before and another."""
    chance = random.Random(0)
    return [
        dispatch(
            number,
            [
                tensor(place, (1000 * other, 900))
                for place, other in enumerate({max(0, number - 1), max(0, number - chance.randrange(2, 40))})
            ],
            [tensor(2, (1000 * number, 900))],
            operands=((0, 0),) * 3,
        )
        for number in range(count)
    ]


POOL = (0, 4096)
"""A block that tensors share."""


def of_pool(number: int, write: tuple[int, int], constants: tuple[int, ...] = ()) -> Any:
    """Reads something of the pool and writes to it; what it reads is not known."""
    read, made = tensor(0, POOL), tensor(1, write)
    return dispatch(number, [read], [made], operands=(POOL, POOL), constants=constants)


@pytest.mark.parametrize(
    ("dispatches", "edges"),
    [
        pytest.param(
            [dispatch(0, [], [tensor(0, (0, 64))]), dispatch(1, [tensor(0, (0, 64))], [tensor(1, (64, 64))])],
            [(0, 1, True)],
            id="what is read was written",
        ),
        pytest.param(
            [
                dispatch(0, [], [tensor(0, (0, 64))]),
                dispatch(1, [], [tensor(0, (0, 64))]),
                dispatch(2, [tensor(0, (0, 32))], [tensor(1, (64, 64))]),
            ],
            [(1, 2, True)],
            id="the latest counts",
        ),
        pytest.param(
            [
                dispatch(0, [], [tensor(0, (0, 64))]),
                dispatch(1, [], [tensor(0, (32, 32))]),
                dispatch(2, [tensor(0, (0, 64))], [tensor(1, (64, 64))]),
            ],
            [(0, 2, True), (1, 2, True)],
            id="parts of two",
        ),
        pytest.param(
            [
                dispatch(0, [], [tensor(0, (0, 64))], kind="fill", name="fill"),
                dispatch(1, [], [tensor(0, (8, 16))]),
                dispatch(2, [tensor(0, (8, 16))], [tensor(1, (64, 64))]),
            ],
            [(0, 1, True), (1, 2, True)],
            id="padding and its inside are one tensor",
        ),
        pytest.param(
            [dispatch(0, [], [tensor(0, (0, 64))]), dispatch(1, [tensor(0, (0, 64), "argument 0")], [])],
            [],
            id="an argument is no result",
        ),
        pytest.param(
            [of_pool(n, (64 * n, 64)) for n in range(3)] + [of_pool(3, (640, 64), (64, 128, 640))],
            [(0, 1, True), (1, 2, False), (1, 3, True), (2, 3, True)],
            id="numbers of the dispatch say where",
        ),
        pytest.param(
            [
                of_pool(0, (0, 64)),
                of_pool(1, (64, 64), (0, 64)),
                of_pool(2, (128, 64), (64, 128)),
                of_pool(3, (192, 64)),
            ],
            [(0, 1, True), (1, 2, True), (2, 3, False)],
            id="what nothing has read is likely",
        ),
    ],
)
def test_edges(dispatches: list[Any], edges: list[tuple[int, int, bool]]) -> None:
    for each in dispatches:
        for made in each.outputs:
            made.changes = (made.extent,)
    assert sorted(DispatchGraph(dispatches).edges) == edges


@pytest.fixture(scope="module")
def session() -> Any:
    with jitree.Session(device="local-sync") as session:
        session.load(LLVM)
        yield session


def test_a_page_of_a_call(session: jitree.Session, tmp_path: Path) -> None:
    report = session.report("module.classify", HALF)
    report.save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Parsed(text)
    assert not [attrs for _, attrs in page.elements if {"src", "href"} & attrs.keys()]
    assert "default-src 'none'" in text and "://" not in re.sub(
        r"http://www.w3.org/2000/svg|local-sync://", "", text
    )
    assert "classify_dispatch_3" in page.texts["td"] and "hal" in page.texts["td"]
    assert "fast: mostly calls of imports" in page.texts["pre"]
    graph, timeline = page.data["graph"], page.data["timeline"]
    names = [graph["words"][node[0]] for node in graph["nodes"]]
    dispatches = [number for number, name in enumerate(names) if "_dispatch_" in name]
    assert len(dispatches) == 7 and {str(number) for number in dispatches} <= graph["times"].keys()
    made_for = {(source, to) for source, to, _ in graph["edges"]}
    assert {*pairwise(dispatches)} <= made_for  # a chain
    outputs = graph["nodes"][dispatches[-1]][9]
    assert graph["words"][outputs[0][1]] == "10xf32" and outputs[0][3][5:7] == [0, 0]
    assert len(outputs[0][3][7]) == 16
    assert "module.classify" in timeline["words"] and len(timeline["events"]) > len(dispatches)
    assert report.error is None and graph["first"] is None


def test_what_is_no_function(session: jitree.Session) -> None:
    """It was an AttributeError of a part."""
    with pytest.raises(InvalidArgumentError, match="expected the name of a function but got 3 of type int"):
        session.report(3)  # type: ignore[arg-type]


def test_what_is_wrong_is_marked(session: jitree.Session) -> None:
    report = session.report(session.modules["module"].classify, np.full((8, 8), 3e38, np.float32))
    assert report.fault is not None and report.error is None
    graph = Parsed(report.html).data["graph"]
    assert graph["words"][graph["nodes"][graph["first"]][0]] == report.fault.dispatch
    assert "the first value that is not finite" in report.html

    report = session.report("module.classify", HALF)
    report.difference = difference = jitree.diff((LLVM, "local-sync"), (VMVX, "local-sync"), inputs=[HALF])
    page = Parsed(report.html)
    graph = page.data["graph"]
    departing = [int(node) for node, row in graph["differences"].items() if row[1]]
    assert difference.first is not None and min(departing) == graph["first"]
    assert graph["nodes"][graph["first"]][2] == difference.first.ordinal
    assert f"{difference.rows[0].closeness.differing} of" in page.texts["td"]
    titles = [getattr(piece, "title", getattr(piece, "kind", "")) for piece in report.pieces]
    assert titles.index("graph") < titles.index("Differences")

    report = session.report("module.classify", HALF[:7])
    assert isinstance(report.error, InvalidArgumentError) and "expected 8 but have 7" in report.html
    with pytest.raises(NotFoundError):
        session.report("module.absent")
    with session.profile(), pytest.raises(FailedPreconditionError):
        session.report("module.classify", HALF)


def test_a_page_of_many_dispatches(monkeypatch: pytest.MonkeyPatch) -> None:
    text = document("500", dispatch_pieces(program(500)))
    assert len(text.encode()) < 1_000_000 and len(Parsed(text).data["graph"]["nodes"]) == 500
    assert len(document("10,000", dispatch_pieces(program(10_000)))) < 6_000_000
    monkeypatch.setattr("jitree.observe.graph.MOST_NODES", 100)
    pieces = dispatch_pieces(program(101))
    assert "the graph has the first 100 dispatches; 1 more" in str(pieces[0])
    assert isinstance(pieces[-1], Drawing) and len(pieces[-1].data["nodes"]) == 100


def hostile_pieces(count: int = 1) -> list[Any]:
    odd = dispatch(1, [tensor(0, (0, 900))], [], name=HOSTILE, location=HOSTILE, call_site=HOSTILE)
    return [
        Notice(HOSTILE, SAID, 0),
        PageTable(HOSTILE, [HOSTILE], [[HOSTILE]], HOSTILE),
        Text(HOSTILE, HOSTILE),
        *dispatch_pieces([*program(count), odd]),
        Drawing(
            "timeline", {"words": [HOSTILE], "tracks": [HOSTILE], "events": [[0, 0, 0.0, 1.0]], "left_out": 0}
        ),
    ]


def test_names_of_programs_are_no_markup() -> None:
    page = Parsed(document(HOSTILE, hostile_pieces()))
    assert page.count("script") == 2 and page.count("img") == 0
    assert page.data["graph"]["words"].count(page.data["timeline"]["words"][0]) == 1
    frame = Parsed(notebook(HOSTILE, hostile_pieces()))
    (inside,) = (attrs["srcdoc"] for tag, attrs in frame.elements if tag == "iframe")
    assert frame.count("script") == frame.count("img") == 0
    assert inside is not None and Parsed(inside).count("script") == 2


def test_notebooks_show_the_same_pieces(session: jitree.Session) -> None:
    with session.profile() as profile:
        session.call("module.classify", HALF)
    with session.tap() as taps:
        session.call("module.classify", HALF)
    difference = jitree.diff((LLVM, "local-sync"), (VMVX, "local-sync"), inputs=[HALF])
    shown: list[tuple[Any, set[str], str]] = [
        (profile, {"timeline"}, "total ms"),
        (taps, {"graph"}, ""),
        (difference, {"graph"}, "max abs"),
        (session.report("module.classify", HALF), {"graph", "timeline"}, "total ms"),
        (session.modules["module"], set(), "classify"),
    ]
    for value, drawn, words in shown:
        page = Parsed(value._repr_html_())
        inside = [Parsed(attrs["srcdoc"] or "") for tag, attrs in page.elements if tag == "iframe"]
        assert {kind for each in inside for kind in each.data} == drawn, value
        assert words in page.texts.get("th", "") + page.texts.get("td", ""), value


def test_a_device_that_tells_nothing() -> None:
    with jitree.Session(device="null") as session:
        module = session.load(VMVX)
        report = session.report(module.classify, HALF)
    assert "UNIMPLEMENTED" in report.html and "classify" in report.html


@pytest.mark.parametrize(
    ("kind", "arguments", "code", "says"),
    [
        ("call", ["--function=classify", "--input=8x8xf32=0.5"], 0, "Time by dispatch"),
        ("call", [], 0, "classify was not called"),
        ("call", ["--function=absent"], 1, "cannot run the module here"),
        ("call", ["--input=8x7xf32=0.5"], 1, "expected 8 but have 7"),
        ("two", ["--input=8x8xf32=0.5"], 0, "the first difference: classify_dispatch_"),
        ("two", ["--input=8x8xf32=0.5", "--atol=1e-3"], 0, "nothing departs: 8 tensors were compared"),
        ("plain", ["--input=3"], 0, "no dispatch has run"),
        ("nothing", [], 0, "exports no function that could be called"),
        ("cut", [], 1, "the file"),
        ("absent", [], 1, "no such file"),
        ("cuda", [], 1, "cannot run the module here"),
    ],
)
def test_commands(kind: str, arguments: list[str], code: int, says: str, tmp_path: Path) -> None:
    """There is a page whatever is missing."""
    made = {
        "plain": Assembler("m").function("predict", "0i_i", SUM).build(),
        "nothing": Assembler("m").build(),
        "cut": Path(LLVM).read_bytes()[:9000],
    }
    path = tmp_path / "made.vmfb"
    if kind in made:
        path.write_bytes(made[kind])
    paths = {"call": [LLVM], "two": [LLVM, VMVX], "cuda": [str(ROOT / "perf/programs/cuda.vmfb")]}
    page = tmp_path / "page.html"
    outcome = command("report", *paths.get(kind, [str(path)]), *arguments, f"--output={page}")
    text = page.read_text(encoding="utf-8")
    assert outcome.code == code, outcome.stderr
    assert says in Parsed(text).texts["p"] + str(Parsed(text).texts.get("h2")), outcome.stderr
    assert outcome.stdout == f"written to {page}\n"


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium to look at the page with")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    assert BROWSER is not None
    page = tmp_path / "page.html"
    page.write_text(document("a title", hostile_pieces(299)), encoding="utf-8")
    line = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    line += ["--virtual-time-budget=2000", "--window-size=1200,900", "--dump-dom", page.as_uri()]
    shown = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>a title</title>" in shown and 'data-theme="' in shown
    assert "<dt>dispatches</dt><dd" in shown and "300</dd>" in shown
    lines = shown.count('class="line"')
    assert 10 < lines < 60, "the list has those in view"
    assert "1 events in 1 µs" in shown

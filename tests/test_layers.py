"""The shape of the package: who may import whom, how long files are, and what an import costs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import jitree
from tests.base.rows import each_row
from tests.pages import users_environment
from tests.sizes import (
    FILES,
    PACKAGE,
    ROOT,
    ceilings,
    code_lines,
    known_violations,
    long_files,
    long_headlines,
    nodes,
    package_code,
    short_files,
    size_table,
    tree,
)

START = PACKAGE / "base" / "start.txt"
START_ITSELF = ("base.forks", "base.records", "base.start")
"""What is imported before the files are there."""
FIRST_RESULT = """
import numpy, jitree
module = jitree.load('perf/programs/call.vmfb', device='local-sync')
x = numpy.ones(16, 'f4')
assert numpy.asarray(module.add(x, x))[0] == 2
"""

DRIVERS = {path.parent.name for path in PACKAGE.glob("*/drivers.py")}
"""Folders that make the devices of a driver; nothing else imports them."""

LAYERS = [
    {"errors", "types", "base"},
    {"codegen"},
    {"vmfb"},
    {"regs"},
    {"dispatch"},
    {"hal"},
    {"loaders", *DRIVERS},
    {"params"},
    {"modules"},
    {"observe"},
    {"kernels"},
    {"debug"},
    {"api"},
    {"compare"},
    {"compiling"},
    {"__init__"},
    {"tools"},
    {"compat", "integrations"},
    {"__main__"},
]
"""Each part imports only from itself and from the layers before its own."""

APART = {("modules", "loaders"), ("modules", "params")}
"""Further pairs (importer, imported) that are forbidden: the session hands one to the other."""

NO_GPU = ("hal", "params", "modules", "observe", "api", "compare")
"""Parts in which no file names a GPU: what these know of a device is its contract."""
OF_A_GPU = re.compile(
    r"cuda|gpu|nvidia|cupti|nccl|\bptx\b|cubin|cu[A-Z][a-z]+[A-Z]|graph.?launch|launch.?graph"
)
OF_ITS_ORDER = re.compile(r"stream")
STREAMLESS = ("hal/", "modules/hal/", "api/calls/")
"""… and none speaks of streams."""
NAMES_OF_OTHERS = (
    "__cuda_array_interface__", "is not in the memory of a GPU", "current_work_stream", "(stream=",
    '("stream"', "stream: int | None", "``stream``",
    "cuda://0", '("local-task", "cuda")', '"llvmlite", "cuda"', "cuda and local devices have",
)  # fmt: skip
"""Protocols of other packages, with the names of their parameters; what devices are called, as users do; a
package."""

SLOW = {"numba", "llvmlite", "rich", "click", "cuda", "asyncio", "ml_dtypes", "elftools"}
"""Loaded when first used, never by ``import jitree``."""

HEAVY = {"dataclasses", "threading", "pathlib", "json", "hashlib", "logging", "subprocess", "tempfile"}
"""Of the standard library; half a millisecond or more each."""

SELDOM = {
    "jitree.vmfb.instructions", "jitree.vmfb.superinstructions", "jitree.regs.list",
    "jitree.hal.command_buffer",
    "jitree.hal.objects", "jitree.hal.recording", "jitree.hal.exchange", "jitree.hal.local.transfer",
    "jitree.base.callbacks", "jitree.api.calls.number_packing",
    "jitree.codegen.image.generated", "jitree.hal.local.queue",
    "jitree.hal.checks", "jitree.hal.local.operation",
    "jitree.hal.waiting", "jitree.hal.transfers", "jitree.hal.profiling",
    "jitree.base.elements", "jitree.dispatch.conversion", "jitree.api.calls.reference_packing",
    "jitree.api.calls.storage_arguments",
}  # fmt: skip
"""Not loaded before a first result of a program of tensors."""
MOST_MODULES = 116


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def rank(part: str) -> int:
    for index, layer in enumerate(LAYERS):
        if part in layer:
            return index
    raise AssertionError(f"jitree/{part} has no place in the list of layers")


@cache
def imported_names(path: Path) -> set[str]:
    """What a file imports of jitree anywhere, also inside functions and for type checking."""
    return names_in(path, nodes(path))


def names_in(path: Path, nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name == "jitree" or name.startswith("jitree.")}


def imported_parts(path: Path) -> set[str]:
    parts = {([*name.split("."), "__init__"])[1] for name in imported_names(path)}
    return {
        part if (PACKAGE / part).exists() or (PACKAGE / f"{part}.py").exists() else "__init__"
        for part in parts
    }


def imported_files(path: Path) -> set[Path]:
    """The files of jitree that a file imports from."""
    return files_of(path, imported_names(path))


def run_files(path: Path) -> set[Path]:
    """The files that run before a file does, and so those of the packages that they are in."""
    found = files_of(path, names_in(path, tree(path).body))
    packages = {folder / "__init__.py" for file in found for folder in file.parents}
    return (found | packages & FILES.keys()) - {path, *(folder / "__init__.py" for folder in path.parents)}


def files_of(path: Path, names: set[str]) -> set[Path]:
    found = set()
    for name in names:
        base = ROOT.joinpath(*name.split("."))
        candidates = [base.with_suffix(".py"), base / "__init__.py"]
        candidates += [base.parent.with_suffix(".py"), base.parent / "__init__.py"]
        found.add(next(candidate for candidate in candidates if candidate in FILES))
    return found - {path}


@pytest.mark.parametrize("importer", sorted({part_of(path) for path in FILES}))
def test_imports_only_upwards(importer: str) -> None:
    def check(path: Path) -> None:
        for imported in imported_parts(path) - {importer}:
            assert (importer, imported) not in APART, f"{importer} must not import {imported}"
            if importer not in ("tools", "kernels"):  # which show a driver's files, and launch its kernels
                assert imported not in DRIVERS, f"{importer} imports {imported}, which is a driver"
            if {importer, imported} <= LAYERS[0]:
                continue
            assert rank(imported) < rank(importer), f"{importer} imports {imported}, which is not above it"

    each_row({str(path): path for path in FILES if part_of(path) == importer}, check)


def test_private_names_stay_in_their_files() -> None:
    for path in FILES:
        last = {name.rpartition(".")[2] for name in imported_names(path)} - {"__version__"}
        assert not [name for name in last if name.startswith("_")], f"{path} imports what is private"


def test_imports_by_name_go_upwards() -> None:
    """A text that names a file, as ``import_module`` takes it, is an import too."""
    for path in FILES:
        importer = part_of(path)
        for text in filter(re.compile(r"jitree(\.\w+)+(:\w+)?").fullmatch, texts_in(path)):
            file = ROOT.joinpath(*text.partition(":")[0].split("."))
            named = {file.with_suffix(".py"), file / "__init__.py"} & FILES.keys()
            for imported in {part_of(each) for each in named} - {importer}:
                assert rank(imported) <= rank(importer), f"{path} names {text}, which is not above it"


@pytest.mark.parametrize("part", NO_GPU)
def test_no_file_above_a_driver_names_a_gpu(part: str) -> None:
    """Code, comments and tables; a driver may be written without a change of any."""
    found = []
    for path in sorted((PACKAGE / part).rglob("*.*")):
        if path.suffix not in (".py", ".tsv"):
            continue
        text, name = path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix()
        for known in NAMES_OF_OTHERS:
            text = text.replace(known, "")
        words = OF_A_GPU.findall(text) + OF_A_GPU.findall(text.lower())
        words += OF_ITS_ORDER.findall(text.lower()) if name.startswith(STREAMLESS) else []
        found += [(name, word) for word in words]
    assert not found


def texts_in(path: Path) -> set[str]:
    found = nodes(path)
    return {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("imported", [imported_files, run_files])
def test_no_files_import_each_other(imported: Callable[[Path], set[Path]]) -> None:
    """Files can be put into an order in which each imports only from those before it, also for type checking
    and inside folders, and any of them can be the first that a program imports."""
    try:
        tuple(TopologicalSorter({path: imported(path) for path in FILES}).static_order())
    except CycleError as error:
        circle = " -> ".join(str(path.relative_to(ROOT)) for path in reversed(error.args[1]))
        pytest.fail(f"files import each other in a circle: {circle}")


def test_no_two_classes_have_one_name() -> None:
    """A file may state a class twice: for type checkers, and as it runs."""
    files = {
        path: {node.name for node in nodes(path) if isinstance(node, ast.ClassDef)}
        for path in FILES
        if part_of(path) != "compat"  # whose names are another package's
    }
    names = Counter(name for found in files.values() for name in found)
    assert not [(name, str(path)) for path, found in files.items() for name in found if names[name] > 1]


def test_devices_are_asked_by_their_contract() -> None:
    """Not by ``hasattr``, but what other libraries and versions of a system may lack."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("hal", *DRIVERS)
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("hasattr", "getattr")
        and isinstance(node.args[1], ast.Constant)
        and not str(node.args[1].value).startswith("__")
        and ast.unparse(node.args[0]) not in ("os", "driver")
    ]
    assert not found


def test_files_are_short() -> None:
    assert not long_files()


def test_files_are_rooms_to_live_in() -> None:
    """A short one has a reason; those of today that have none are a list that only shrinks."""
    assert short_files() == known_violations(), "the list at the end of CONTRIBUTING.md"


def test_the_package_does_not_grow() -> None:
    allowed = ceilings()
    assert package_code() <= allowed["lines of code"], "tests/ceilings.tsv"
    assert len(FILES) <= allowed["files"], "tests/ceilings.tsv"


def undocumented() -> Iterator[str]:
    """Public names of the package, and of its classes, that do not say what they are."""
    for name in jitree.__all__:
        value = getattr(jitree, name)
        if isinstance(value, type) or callable(value):
            yield from () if inspect.getdoc(value) else (name,)
        for key in dir(value) if isinstance(value, type) else ():
            owner = next(cls for cls in (*value.__mro__, type) if key in vars(cls))
            member = vars(owner)[key]
            said = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            is_own = owner.__module__.startswith("jitree.") and not key.startswith("_") and key != "value"
            if is_own and inspect.isroutine(said) and not inspect.getdoc(said):
                yield f"{name}.{key}"


def test_public_names_say_what_they_are() -> None:
    assert not [*undocumented()]


def test_lines_of_code() -> None:
    """Neither blank lines nor comments and docstrings; all lines of a text that is a value."""
    documented = '"""About."""\n\nimport a\n\nx = """b\n\nc"""\n"""What x is.\n\n"""\n'
    function = '# d\ndef f():\n    "e"\n    return x\n'
    assert (code_lines(documented), code_lines(function)) == (1 + 3, 2)


def test_headlines_are_short() -> None:
    """A first sentence says what the thing does, to who looks for it. The number of long ones only falls."""
    long = long_headlines()
    assert len(long) <= ceilings()["long headlines"], "\n".join(long)


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh process has loaded after running some code."""
    return {name.partition(".")[0] for name in modules_after(code)}


def modules_after(code: str) -> set[str]:
    report = "\nimport sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code + report],
        cwd=ROOT,
        env=users_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(result.stdout.split())


def test_import_loads_nothing_slow() -> None:
    assert loaded_after("import jitree, numpy") & SLOW == set()


def test_a_first_result_loads_nothing_heavy() -> None:
    """When the machine code that it takes is there."""
    loaded_after("import jitree; jitree.Session('local-sync', tier='fast')")  # waits for it
    program = (
        "import sys, numpy; numpys = set(sys.modules)\n"
        "import jitree\n"
        "module = jitree.Session('local-sync').load('perf/programs/call.vmfb')\n"
        "x = numpy.ones(16, 'f4')\n"
        "assert numpy.asarray(module.add(x, x))[0] == 2\n"
        "for name in numpys - {'sys'}: del sys.modules[name]\n"
    )
    assert loaded_after(program) & (HEAVY | SLOW) == set()


def test_a_first_result_loads_few_modules() -> None:
    """Of jitree's own: a quarter of a millisecond each. What records commands in Python, converts numbers or
    knows the instruction table is not among them."""
    own = {name for name in modules_after(FIRST_RESULT) if name.startswith("jitree")}
    assert len(own) <= MOST_MODULES, sorted(own)
    assert own & SELDOM == set()
    known = {"jitree"} | {f"jitree.{name}" for name in ("errors", "base", *START_ITSELF)}
    assert own - known == listed_modules()[0], "base/start.txt lists others"


def listed_modules() -> list[set[str]]:
    """Those of a first result, and of the calls after it."""
    return [set(names.split()) for names in START.read_text(encoding="ascii").split("\n\n")]


RECORDER = """
import sys
import jitree
from jitree.base import start
start.use = lambda: None
depths = {}
class Recorder:
    def find_spec(name, path=None, target=None):
        if name.startswith("jitree."):
            frame = sys._getframe(1)
            while frame.f_code.co_name != "<module>":
                frame = frame.f_back
            depths[name] = depths.get(frame.f_globals["__name__"], -1) + 1
            print(" " * depths[name] + name)
sys.meta_path.insert(0, Recorder)
"""
"""Prints each module of jitree when it is searched for, by so many spaces as modules are running that import
each other."""


def imports_of_a_first_result() -> str:
    """The first part of `jitree/base/start.txt`."""
    command = [sys.executable, "-c", RECORDER + FIRST_RESULT]
    return subprocess.check_output(command, cwd=ROOT, env=users_environment(), text=True, timeout=60)


def test_modules_are_listed_below_those_that_import_them() -> None:
    first = START.read_text(encoding="ascii").partition("\n\n")[0]
    hint = "python -c 'from tests.test_layers import *; write_imports()'"
    assert imports_of_a_first_result() == first + "\n", hint


def write_imports() -> None:
    later = START.read_text(encoding="ascii").partition("\n\n")[2]
    START.write_text(f"{imports_of_a_first_result()}\n{later}", encoding="ascii")


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="machine code makes calls of CPython")
def test_calls_of_tensors_load_few_modules() -> None:
    """What numbers, lists, references and other libraries take is not among them."""
    loaded = modules_after(
        "import numpy, jitree\n"
        "add = jitree.load('perf/programs/call.vmfb', device='local-sync', tier='fast').add\n"
        "x = numpy.ones(16, 'f4')\n"
        "while not add.is_direct: add(x, x)\n"
        "assert numpy.asarray(add(x, x))[0] == 2\n"
    )
    own = {name for name in loaded if name.startswith("jitree")}
    first, later = listed_modules()
    assert not own & SELDOM
    assert {name for name in own - first if name.startswith("jitree.api.")} <= later, "base/start.txt"


def test_a_run_of_the_command_line_comes_from_the_files_too() -> None:
    """It starts no threads that look for work either, unless the user says so."""
    loaded = modules_after(
        "import os, sys, numpy\n"
        "from jitree.__main__ import main\n"
        "sys.argv = ['jitree', 'run', 'perf/programs/call.vmfb', '--function=add', *['--input=16xf32'] * 2]\n"
        "sys.stdout = open(os.devnull, 'w')\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "sys.stdout = sys.__stdout__\n"
        "assert os.environ['OPENBLAS_THREAD_TIMEOUT'] == '4'\n"
    )
    first, later = listed_modules()
    known = {f"jitree.{name}" for name in ("errors", "base", "__main__", "tools", *START_ITSELF)}
    assert {name for name in loaded if name.startswith("jitree.")} - first - later <= known, "base/start.txt"


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("kind", ["llvm-cpu", "vmvx"])
def test_first_results_of_other_kinds_come_from_the_files_too(device: str, kind: str) -> None:
    loaded = modules_after(
        "import numpy, jitree\n"
        f"module = jitree.load('examples/digits/digits.{kind}.vmfb', device='{device}', tier='fast')\n"
        "assert numpy.asarray(module.classify(numpy.zeros((8, 8), 'f4'))).shape == (10,)\n"
    )
    first, later = listed_modules()
    known = {name for name in loaded if name.startswith("jitree.")} - first - later
    assert known <= {f"jitree.{name}" for name in ("errors", "base", *START_ITSELF)}, "base/start.txt"


def test_what_calls_import_later_exists() -> None:
    first, later = listed_modules()
    assert not first & later
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES
    }
    assert later <= names


def test_the_plain_tier_runs_without_a_compiler() -> None:
    loaded = loaded_after(
        "import numpy, jitree\n"
        "module = jitree.load('examples/digits/digits.llvm-cpu.vmfb', device='local-sync', tier='plain')\n"
        "assert numpy.asarray(module.classify(numpy.zeros((8, 8), 'f4'))).shape == (10,)\n"
    )
    assert loaded & {"numba", "llvmlite"} == set()


if __name__ == "__main__":
    print(*size_table(), sep="\n")

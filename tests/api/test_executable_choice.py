"""``prefer=``: which formats the executables of a module have that carries several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.api import executable_choice
from jitree.dispatch.variants import Variants, asserted_tensors, find_variants, with_formats
from jitree.errors import InvalidArgumentError, UnimplementedError
from jitree.hal.executable import prepared_executables
from jitree.tools import run
from jitree.types import BY_NAME as ELEMENT_TYPES
from jitree.vmfb.decode import BytecodeModule

PROGRAMS = Path(__file__).parents[1] / "data" / "programs"
PROGRAM = PROGRAMS / "variants.vmfb"
RANDOM = np.random.default_rng(5)
X, W, V = (RANDOM.random(shape, np.float32) for shape in ((37, 16), (16, 24), (24, 8)))
PAIR = [RANDOM.random(shape, np.float32) for shape in ((4, 8), (8, 16), (5, 6), (6, 7))]
ROW = RANDOM.random(64, np.float32)
NATIVE, VMVX = "NativeExecutable", "VmvxExecutable"
FUNCTIONS = (
    "layers_dispatch_0_matmul_Dx24x16_f32", "layers_dispatch_1_matmul_Dx8x24_f32",
    "pick_dispatch_0_elementwise_64_f32", "pick_dispatch_1_elementwise_64_f32",
    "pair_dispatch_0_matmul_4x16x8_f32", "pair_dispatch_1_matmul_5x7x6_f32",
)  # fmt: skip


@pytest.fixture(scope="module")
def program() -> BytecodeModule:
    return BytecodeModule.load(PROGRAM)


@pytest.fixture(scope="module")
def variants(program: BytecodeModule) -> Variants:
    found = find_variants(program)
    assert found is not None
    return found


def kinds(source: Any, **options: Any) -> list[str]:
    """The class of the executable of each function, after calls whose results are right. Both of `pair` share
    theirs."""
    with jitree.Session("local-sync", **options) as session:
        before = set(prepared_executables())
        module = session.load(source)
        made = [executable for executable in prepared_executables() if executable not in before]
        np.testing.assert_allclose(module.layers(X, W, V), X @ W @ V, rtol=1e-5)
        np.testing.assert_allclose(module.layers(X[:3], W, V), X[:3] @ W @ V, rtol=1e-5)
        for number, expected in enumerate((ROW + ROW, ROW * ROW, ROW)):
            np.testing.assert_array_equal(module.pick(ROW, number), expected)
        for result, (left, right) in zip(module.pair(*PAIR), (PAIR[:2], PAIR[2:]), strict=True):
            np.testing.assert_allclose(result, left @ right, rtol=1e-5)
        found = {executable.function_name(0): type(executable).__name__ for executable in made}
        assert found.keys() == set(FUNCTIONS)
        assert found[FUNCTIONS[4]] == found[FUNCTIONS[5]]
        return [found[name] for name in FUNCTIONS[:5]]


def test_a_module_says_what_it_offers(variants: Variants) -> None:
    assert [name.rpartition("-")[0] for name in variants.formats] == ["embedded-elf", "vmvx-bytecode"]
    functions = [executable.functions for executable in variants.executables]
    assert functions == [*({name} for name in FUNCTIONS[:4]), set(FUNCTIONS[4:])]
    assert [len(executable.switches) for executable in variants.executables] == [2, 2, 2, 2, 3]


@pytest.mark.parametrize("name", ["arithmetic", "checks", "two_devices", "endless"])
def test_modules_without_a_choice(name: str) -> None:
    assert find_variants(BytecodeModule.load(PROGRAMS / f"{name}.vmfb")) is None


def test_a_dispatch_that_no_table_leads_to_leaves_the_module_as_it_is(
    program: BytecodeModule, variants: Variants
) -> None:
    words = program.program.words.copy()
    words[variants.executables[0].switches[0].word + 1] = 0  # of a register that no answer decides on
    assert find_variants(BytecodeModule(program.module, program.program.with_words(words))) is None


@pytest.mark.parametrize("choice", list(product((0, 1), repeat=5)))
def test_each_executable_has_a_format_of_its_own(
    choice: tuple[int, ...], program: BytecodeModule, variants: Variants
) -> None:
    chosen = with_formats(program, variants, [variants.formats[number] for number in choice])
    assert kinds(chosen, tier="fast") == [(NATIVE, VMVX)[number] for number in choice]


@pytest.mark.parametrize("tier", ["plain", "native"])
def test_on_all_tiers(tier: str, program: BytecodeModule, variants: Variants) -> None:
    chosen = with_formats(program, variants, [variants.formats[number] for number in (0, 1, 1, 0, 1)])
    assert kinds(chosen, tier=tier) == [NATIVE, VMVX, VMVX, NATIVE, VMVX]


@pytest.mark.parametrize(("prefer", "kind"), [(None, NATIVE), ("llvm-cpu", NATIVE), ("vmvx", VMVX)])
def test_a_session_prefers(prefer: str | None, kind: str) -> None:
    assert kinds(PROGRAM, prefer=prefer) == [kind] * 5


def test_one_of_two_devices_is_the_module_s_choice() -> None:
    with jitree.Session(["local-sync", "local-sync"], prefer="vmvx") as session:
        np.testing.assert_array_equal(session.load(PROGRAM).pick(ROW, 0), ROW + ROW)


TIMES = {
    NATIVE: dict(zip(FUNCTIONS, (10, 30, 5, 7, 4, 4), strict=True)),
    VMVX: dict(zip(FUNCTIONS, (20, 10, 5, 6, 3, 6), strict=True)),
}


def by_format(variants: Variants, functions: Sequence[str]) -> dict[str, dict[str, int]]:
    """Times of functions by the formats of the module, one of which names the processor."""
    rows = ({name: times[name] for name in functions} for times in TIMES.values())
    return dict(zip(variants.formats, rows, strict=True))


def test_the_faster_of_each(variants: Variants) -> None:
    formats = executable_choice.fastest(variants, by_format(variants, FUNCTIONS))
    assert formats is not None
    assert [variants.formats.index(name) for name in formats] == [0, 1, 0, 1, 0]


def test_what_was_not_measured_is_the_module_s_choice(variants: Variants) -> None:
    formats = executable_choice.fastest(variants, by_format(variants, FUNCTIONS[1:]))
    assert formats is not None
    assert [variants.formats.index(name) for name in formats] == [0, 1, 0, 1, 0]
    assert executable_choice.fastest(variants, by_format(variants, ())) is None


def test_arguments_are_what_functions_assert(program: BytecodeModule) -> None:
    """Also of functions of the importers of PyTorch and ONNX, which declare no types."""
    f32 = ELEMENT_TYPES["f32"].code
    ordinals = {export.name: export.ordinal for export in program.module.exports}
    assert asserted_tensors(program, ordinals["layers"]) == {
        0: (f32, (None, 16)), 1: (f32, (16, 24)), 2: (f32, (24, 8)),
    }  # fmt: skip
    with jitree.Session("local-sync") as session:
        torch_style = BytecodeModule.load(PROGRAMS / "torch_style.vmfb")
        found = dict(executable_choice._measurable(session.load(torch_style), torch_style))
        assert found and all(name.name[-6:] != "$async" for name in found)
        for function, arguments in found.items():
            function(*arguments)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    yield tmp_path


def test_all_functions_are_measured(cache: Path) -> None:
    """Whatever is faster here: each executable has one of both, and the next session the same."""
    first = kinds(PROGRAM, prefer="fastest")
    assert len(list(cache.glob("formats-*"))) == 1
    assert kinds(PROGRAM, prefer="fastest") == first


def test_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def times_of(session: Any, function: Any, arguments: Any) -> dict[str, int]:
        """As if the first and the third function were faster for the processor."""
        measured.append(function.name)
        vmvx = any(type(one).__name__ == VMVX for one in prepared_executables() if one not in before)
        times = TIMES[VMVX if vmvx else NATIVE]
        return {key: value for key, value in times.items() if key.startswith(function.name)}

    before = set(prepared_executables())
    monkeypatch.setattr(executable_choice, "_times_of", times_of)
    assert kinds(PROGRAM, prefer="fastest") == [NATIVE, VMVX, NATIVE, VMVX, NATIVE]
    assert sorted(measured) == ["layers", "layers", "pair", "pair", "pick", "pick"]
    assert kinds(PROGRAM, prefer="fastest") == [NATIVE, VMVX, NATIVE, VMVX, NATIVE]
    assert len(measured) == 6
    with jitree.Session("local-task://?threads=2", prefer="fastest") as session:
        session.load(PROGRAM)
    assert len(measured) == 12  # on other devices the faster one may be another


@pytest.mark.parametrize("odd", ["VMVX", "", "cuda", 1, b"vmvx", ["vmvx"]])
def test_what_is_no_preference(odd: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prefer: expected None, 'llvm-cpu', 'vmvx', 'fastest'"):
        jitree.Session("local-sync", prefer=odd)


@pytest.mark.parametrize("sandbox", [True, "process"])
def test_sandboxes_have_no_choice(sandbox: Any) -> None:
    with pytest.raises(UnimplementedError, match="prefer"):
        jitree.Session("local-sync", prefer="vmvx", sandbox=sandbox)


def test_programs_travel_with_it() -> None:
    opened = jitree.Program(PROGRAM, device="local-sync", prefer="vmvx")
    before = set(prepared_executables())
    with opened.open():
        made = [executable for executable in prepared_executables() if executable not in before]
        assert {type(executable).__name__ for executable in made} == {VMVX}


@pytest.mark.parametrize(("prefer", "kind"), [("vmvx", VMVX), ("llvm-cpu", NATIVE), ("", NATIVE)])
def test_on_the_command_line(prefer: str, kind: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[str] = set()
    prepare = jitree.hal.executable.ExecutableCache.prepare_executable

    def noted(self: Any, parameters: Any) -> Any:
        executable = prepare(self, parameters)
        made.add(type(executable).__name__)
        return executable

    monkeypatch.setattr(jitree.hal.executable.ExecutableCache, "prepare_executable", noted)
    arguments = [str(PROGRAM), "--device=local-sync", "--function=pick", "--input=64xf32=2", "--input=1"]
    assert run.main([*arguments, f"--prefer={prefer}"]) == 0
    assert "64xf32=4 4 4" in capsys.readouterr().out
    assert made == {kind}

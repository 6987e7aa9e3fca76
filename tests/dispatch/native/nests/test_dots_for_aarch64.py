"""Products of numbers on aarch64: their machine code has the instructions, and keeps sums in registers."""

from __future__ import annotations

import pytest

from jitree.base.platform import processor
from jitree.codegen.image.compile import compile_object, optimized_module, target_machine, target_of
from jitree.dispatch.native.lower import program
from jitree.dispatch.native.nests import joining, planner, reductions, tiles
from jitree.dispatch.native.source import encode, from_program
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.native.nests import programs
from tests.dispatch.native.nests.programs import Body, Level, module
from tests.dispatch.native.nests.test_dots import SIGNS, product

TILE = {name: getattr(planner, name).__wrapped__ for name in ("accumulators", "copies")}
SIZES = (18, 64, 64)


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("features", [{"dotprod", "i8mm"}, {"dotprod"}], ids=len)
def test_code_for_aarch64(
    signs: tuple[str, str], features: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums stay in registers; signs that differ take an extension of their own."""
    on_aarch64(monkeypatch, features)
    name = {"su": "usdot", "us": "usdot", "ss": "sdot", "uu": "udot"}["".join(signs)]
    loop = longest_loop(product(SIZES, signs, False), features, f"\t{name}\t")
    if name == "usdot" and "i8mm" not in features:
        assert "dot\t" not in loop
    else:
        assert loop.count(f"\t{name}\t") == 16 and "[sp" not in loop


def test_binary32_for_aarch64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each product is rounded, then each sum: 16 sums of four lanes, in registers."""
    on_aarch64(monkeypatch, set())
    loads = [lambda text, buffer, index: text.load("f32", buffer, index)] * 2
    loop = longest_loop(programs.product(SIZES, "f32", (loads[0], loads[1]), False), set(), "\tfadd\tv")
    assert loop.count("\tfadd\tv") == loop.count("\tfmul\tv") == 16
    assert "fmla" not in loop and "[sp" not in loop


def on_aarch64(monkeypatch: pytest.MonkeyPatch, features: set[str]) -> None:
    monkeypatch.setattr(processor, "machine", lambda: "aarch64")
    monkeypatch.setattr(processor, "words", lambda name: frozenset())
    monkeypatch.setattr(tiles, "WORD_PANEL_BYTES", 64 * 64)
    for name, of_processor in TILE.items():
        monkeypatch.setattr(planner, name, of_processor)
    monkeypatch.setattr(reductions, "dot_lanes", lambda: reductions.NEON if features else 0)
    monkeypatch.setattr(reductions, "widens", lambda: False)
    monkeypatch.setattr(reductions, "pair_lanes", lambda: 0)  # what it found would be kept for other tests
    monkeypatch.setattr(joining, "row_lanes", lambda: 0)  # other tests may have found some
    monkeypatch.setattr(processor, "arm_features", lambda: frozenset(features))


def longest_loop(body: Body, features: set[str], instruction: str) -> str:
    """The block of the machine code that has most of an instruction."""
    built = BytecodeModule.load(module([Level(size) for size in SIZES], body).build())
    [unit] = program(encode(from_program(built.program))).units
    target = target_of("aarch64", "generic", ",".join(f"+{name}" for name in features))
    compile_object(unit.texts, unit.entries, target, unit.pipeline)  # LLVM's options are those of the last
    optimized = optimized_module(unit.texts, unit.entries, target, unit.pipeline)
    code = str(target_machine(target).emit_assembly(optimized))
    return max(code.split("\n.LBB"), key=lambda block: block.count(instruction)).partition("\tb.")[0]

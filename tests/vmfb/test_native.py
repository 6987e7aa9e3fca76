"""The machine code of loading does what its functions do in Python, word for word, and refuses what there is
a reason to refuse."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen import image
from jitree.errors import StatusError
from jitree.vmfb import decode
from jitree.vmfb import native as code
from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import Decoding, decode_module
from jitree.vmfb.module import read_module, read_signatures
from jitree.vmfb.native import RECIPE, Code, tables
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.refusals import require_sound
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.words import FUSED
from tests.assembler import Assembler
from tests.vmfb import branches, streams
from tests.vmfb.frame_bounds import check_program
from tests.vmfb.modules import read
from tests.vmfb.streams import assembly, functions
from tests.vmfb.test_streams import relaxed

DATA = Path(__file__).parents[1] / "data"
MODULES = sorted(DATA.rglob("*.vmfb"))
FLIPS = 40
INTERPRETED_SIZE = 600
"""Bytes of bytecode of which the functions can be run in Python."""


@pytest.fixture(scope="module")
def compiled() -> Code:
    assert image.wait(RECIPE).notes == tables.generate()
    found = code.compiled()
    assert found is not None
    return found


def fields(program: DecodedModule | None) -> tuple[Any, ...] | None:
    if program is None:
        return None
    sites = [program.site(index) for index in range(program.site_count)]
    places = program.instruction_words, program.instruction_offsets
    return program.words.tolist(), program.functions, sites, *map(list, places)


def compare(module: ModuleTables, compiled: Code) -> bool:
    """Whether a module is accepted, as it is if there is no reason to refuse it. What comes of it is safe to
    run, and what the functions make of it in Python, if it is small."""
    signatures = read_signatures(module)
    sound = False
    with suppress(StatusError):
        for function in module.functions:
            require_sound(module, function, signatures)
        sound = True
    program = Decoding(module, signatures, FUSED).run(compiled)
    assert (program is not None) == sound
    if program is not None:
        check_program(program)
    if len(module.bytecode) <= INTERPRETED_SIZE:
        assert fields(Decoding(module, signatures, FUSED).run(code.interpreted())) == fields(program)
    return sound


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(DATA)))
def test_modules_and_damaged_ones(path: Path, compiled: Code) -> None:
    try:
        module = read_module(Archive.open(path))
        read_signatures(module)
    except StatusError:
        pytest.skip("refused before any body is looked at")
    compare(module, compiled)
    source = random.Random(path.name)
    bytecode = bytes(module.bytecode)
    for _ in range(FLIPS if len(bytecode) < 20_000 else 2):
        damaged = bytearray(bytecode)
        for _ in range(source.choice((1, 1, 2, 4))):
            damaged[source.randrange(len(damaged))] = source.choice((0, 1, 0x80, 0xFF, source.randrange(256)))
        compare(module._replace(bytecode=memoryview(damaged).toreadonly()), compiled)


def test_modules_load_before_there_is_machine_code(compiled: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    module = read_module(Archive.open(DATA / "programs" / "program.vmfb"))
    expected = fields(decode_module(module))
    monkeypatch.setattr(decode, "compiled", lambda: None)
    assert fields(decode_module(module)) == expected


@pytest.mark.parametrize("version", [15, 16, 17])
@given(data=st.data())
@relaxed
def test_every_instruction(data: st.DataObject, version: int, compiled: Code) -> None:
    text = assembly(data.draw(functions(version)))
    assert compare(read(streams.module(text, version)), compiled)


def test_branches_to_one_comparison_share_its_moves(compiled: Code) -> None:
    """Else a small file takes all memory: so many branches times so many moves."""
    moves = ", ".join(f"%i{2 * slot}->%i{2 * slot + 1}" for slot in range(100))
    branches = "\n".join(f"^b{number}:\nbr ^head" for number in range(100))
    text = f"br ^head\n^head:\n%i0 = cmp.lt.i32.s %i1, %i2\ncond_br %i0, ^end {{{moves}}}, ^end\n{branches}"
    module = read(Assembler("m").function("f", "0v", f"{text}\n^end:\nreturn"))
    assert compare(module, compiled)
    program = decode_module(module)
    assert len(program.words) < 2 * len(module.bytecode)


@pytest.mark.parametrize(
    ("cconv", "lines", "expected"),
    [
        ("0ii_i", ["%i0 = add.i32 %i0, %i1"], True),
        ("0v_i", ["%i0 = const.i32 1", "%i0 = add.i32 %i0, %i0"], False),
        ("0v_i", ["%i0 = const.i32 1", "%i0 = mul.i32 %i0, %i0"], True),
        ("0ii_i", ["%i0 = and.i32 %i0, %i1"], False),
    ],
)
def test_which_functions_may_compute_sizes(
    cconv: str, lines: list[str], expected: bool, compiled: Code
) -> None:
    """Sums of initializers, which have no arguments, count devices."""
    module = Assembler("m").function("f", "0i_i", "return [%i0]")
    module.function("g", cconv, "\n".join([*lines, "return [%i0]"]))
    tables_of = read_module(Archive.open(module.build()))
    for chosen in (compiled, code.interpreted()):
        decoding = Decoding(tables_of, read_signatures(tables_of), FUSED)
        assert decoding.run(chosen) is not None
        assert decoding.may_compute_sizes == expected


def test_each_branch_of_the_verifier_is_taken() -> None:
    """By modules of the other tests' tables."""
    assert len(branches.untaken([])) > 200
    assert not branches.untaken(branches.rows())

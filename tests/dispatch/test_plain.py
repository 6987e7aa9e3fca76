"""What only the plain tier has: its generated part, the trace, and the instructions one by one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.dispatch import context as tiers
from jitree.dispatch.context import Context, ContextFlags
from jitree.dispatch.plain import generate_shapes, shapes
from jitree.dispatch.plain.handlers import HANDLERS, find
from jitree.errors import InvalidArgumentError
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.words import BASE_OPCODE
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, load


def test_generated_shapes_are_up_to_date() -> None:
    assert shapes.__file__ is not None
    assert Path(shapes.__file__).read_text(encoding="utf-8") == generate_shapes.generate()


def test_every_opcode_has_a_handler() -> None:
    assert len(HANDLERS) == len(BASE_OPCODE)
    assert all(callable(find(opcode)) for opcode in range(len(HANDLERS)))


def test_what_machine_code_leaves_to_python_most_takes_few_handlers() -> None:
    """Those of arithmetic take as long to make as many a kernel to run."""
    program = """
import sys
from jitree.dispatch.plain.handlers import find
from jitree.vmfb.words import OPCODE
for name in ("call.import", "br", "br.bare", "cond_br", "br_table", "buffer.alloc", "host.exit"):
    find(OPCODE[name])
print([name for name in sys.modules if name in ("jitree.dispatch.plain.table", "jitree.dispatch.semantics")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_trace(capsys: pytest.CaptureFixture[str]) -> None:
    module = Assembler("m").import_function("n.f", "0r_v")
    module.function("f", "0iFr_i", """
        %i1 = cast.f64.si32 %i2
        %i1 = add.i32 %i0, %i1
        [] = call @n.f [%r0]
        cond_br %i1, ^loop {%i1->%i0}, ^end
        ^loop:
        br ^end
        ^end:
        [%i5] = call @inner [%i0]
        return [%i5]
    """)  # fmt: skip
    module.function("inner", "0i_i", "return [%i0]", exported=False)
    context = Context(RefTypes(), flags=ContextFlags.TRACE_EXECUTION)
    context.register([HostFunctions("n", [("f", "0r_v", lambda thing: None)]), load(module)])
    assert context.tier == "plain"
    assert context.invoke(context.lookup("m.f"), [5, 2.0, VmBuffer(1)]) == [7]
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\[m\.[^]]*\+[0-9A-F]{8}\]    \S", line) for line in lines)
    texts = [line.split("]    ")[1] for line in lines]
    assert texts[0] == "<block>"
    assert texts[1] == "%i1 = vm.cast.f64.si32 %i2:3(2)"
    assert texts[2].startswith("%i1(2) = vm.add.i32 %i0(5), %i1(2)")
    assert "vm.call @n.f(%r0(vm.buffer #0))" in texts[3]
    assert texts[4].startswith("vm.cond_br %i1(7), ^bb1(%i1(7)->%i0), ^bb2")
    assert [text.split()[0] for text in texts[5:]] == [
        "<block>", "vm.br", "<block>", "%i5", "<block>", "vm.return", "vm.return",
    ]  # fmt: skip


def test_unknown_tiers_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="tier 'quick' is unknown; the tiers are plain, fast"):
        Context(RefTypes(), tier="quick")


def test_the_environment_names_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tiers.TIER_VARIABLE, "plain")
    assert Context(RefTypes()).tier == "plain"
    monkeypatch.delenv(tiers.TIER_VARIABLE)
    assert tiers.default_tier() == "auto"

"""Random programs whose registers keep their types end the same natively as in Python."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.dispatch.harness import compile_here
from tests.dispatch.test_random_programs import PAIRS, Writer, outcome

INTEGERS, FLOATS, FLOAT_PAIRS = (0, 1, 4, 5), range(17, 20), range(20, 26, 2)
"""The third argument is an i64 in slots 2 and 3."""


class TypedWriter(Writer):
    """Floats have registers of their own, so that functions are not refused."""

    def register(self, kind: str) -> str:
        if kind == "f32":
            return f"%i{self.draw(st.sampled_from(FLOATS))}"
        if kind == "f64":
            return f"%i{self.draw(st.sampled_from(FLOAT_PAIRS))}"
        if kind == "i32":
            return f"%i{self.draw(st.sampled_from(INTEGERS))}"
        return super().register(kind)


_CALLEE = """
    cond_br %i0, ^deeper, ^end
    ^deeper:
    %i1 = const.i32 7
    %i0 = and.i32 %i0, %i1
    %i1 = const.i32 -1
    %i0 = add.i32 %i0, %i1
    [%i0, %r1, %i2:3] = call @callee [%i0, %r0, %i2:3]
    %r0 = assign.ref %R1
    br ^end
    ^end:
    %i1 = add.i32 %i0, %i0
    return [%i1, %r0, %i2:3]
"""


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), arguments=st.tuples(st.integers(-4, 20), st.integers(-4, 20), st.integers(-4, 70)))
def test_native_and_plain_agree(data: st.DataObject, arguments: tuple[int, int, int]) -> None:
    text = TypedWriter(data.draw).program()
    program = Assembler("m", globals_size=16, ref_global_count=1)
    program.rodata(b"constant bytes: a piece of data.")
    program.function("f", "0iiIrr_iIr", text, value_count=26, ref_count=8)
    program.function("callee", "0irI_irI", _CALLEE)
    module = BytecodeModule.load(program.build())
    assert compile_here(module).refusals == {}
    assert outcome(module, "native", arguments) == outcome(module, "plain", arguments)


assert not {*INTEGERS, *(slot + half for slot in PAIRS for half in (0, 1))} & {*FLOATS, *FLOAT_PAIRS}

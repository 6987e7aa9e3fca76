"""Random programs whose registers keep their types end the same natively as in Python."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.harness import compile_here
from tests.dispatch.random_programs import TypedWriter, outcome, typed_program


@settings(max_examples=20)
@given(data=st.data(), arguments=st.tuples(st.integers(-4, 20), st.integers(-4, 20), st.integers(-4, 70)))
def test_native_and_plain_agree(data: st.DataObject, arguments: tuple[int, int, int]) -> None:
    text = TypedWriter(lambda some: data.draw(st.sampled_from(some))).program()
    module = BytecodeModule.load(typed_program(text).build())
    assert compile_here(module).refusals == {}
    assert outcome(module, "native", arguments) == outcome(module, "plain", arguments)

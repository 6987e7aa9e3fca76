"""Random programs end alike on both tiers: same results, same errors, same memory, no reference left."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.random_programs import Writer, outcome, program


@settings(max_examples=100)
@given(
    data=st.data(),
    arguments=st.tuples(st.integers(-4, 20), st.integers(-4, 20), st.integers(-4, 70)),
    bytecode=st.sampled_from([15, 17]),
)
def test_tiers_agree(data: st.DataObject, arguments: tuple[int, int, int], bytecode: int) -> None:
    text = Writer(lambda some: data.draw(st.sampled_from(some))).program()
    module = BytecodeModule.load(program(text, bytecode).build())
    assert outcome(module, "fast", arguments) == outcome(module, "plain", arguments)

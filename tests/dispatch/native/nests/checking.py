"""Runs a nest, and its instructions one by one: both leave the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np

from jitree.base.platform import PAGE_SIZE, READ, WRITE, whole_pages
from jitree.base.platform import Mapping as Pages
from jitree.codegen.image.generated import Pipeline
from jitree.dispatch.native.ssa import SsaFunction
from tests.dispatch.native.nests.harness import Bytes, Compiled, as_kernels, mostly_quick
from tests.dispatch.native.nests.interpreter import interpret
from tests.dispatch.native.nests.programs import only_nest

ELEMENTS = 4096
NO_ENDS: Mapping[int, int] = MappingProxyType({})


def some_memory(function: SsaFunction, seed: int = 0) -> list[Bytes]:
    """A buffer for each reference: small floats, whose bits do as integers too."""
    random = np.random.default_rng(seed)
    return [
        random.normal(0, 1, ELEMENTS).astype(np.float32).view(np.uint8)
        for argument in function.arguments
        if argument.type == "ref"
    ]


def check(
    function: SsaFunction,
    sizes: tuple[int, ...] = (),
    memory: list[Bytes] | None = None,
    ends: Mapping[int, int] = NO_ENDS,
    pipeline_of: Callable[[str], Pipeline] = as_kernels,
) -> None:
    """The guard holds, and the nest leaves the same memory as the instructions one by one. Of buffers that
    have ``ends`` it touches no byte from there on."""
    nest = only_nest(function)
    compiled = Compiled(nest, pipeline_of=pipeline_of)
    given = memory if memory is not None else some_memory(function)
    given = [buffer[: ends.get(number, len(buffer))] for number, buffer in enumerate(given)]
    expected, actual = [buffer.copy() for buffer in given], [buffer.copy() for buffer in given]
    pages = {number: Pages(whole_pages(0, end)[1] + PAGE_SIZE) for number, end in ends.items()}
    for number, mapping in pages.items():
        actual[number] = _at_the_end(mapping, given[number])
    numbers = (*sizes, *[0] * 8)
    refs = [value for value in function.arguments if value.type == "ref"]
    others = [value for value in function.arguments if value.type != "ref"]
    scalars = dict(zip(others, numbers, strict=False))
    left = interpret(nest.loop, {**scalars, **dict(zip(refs, expected, strict=True))})
    assert compiled.run({**scalars, **dict(zip(refs, actual, strict=True))}) == left
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert _same(one, other), f"buffer {number}"


check_one_of_many = partial(check, pipeline_of=mostly_quick)
"""For tests of thirty nests and more for each processor: some are surely compiled as those of kernels are."""


def _at_the_end(pages: Pages, given: Bytes) -> Bytes:
    """A copy after which no byte may be touched, in pages of which the last has no access."""
    usable = pages.size - PAGE_SIZE
    pages.protect(0, usable, READ | WRITE)
    copy = np.frombuffer(pages.view(), np.uint8)[usable - len(given) : usable]
    copy[:] = given
    return copy


def _same(left: Bytes, right: Bytes) -> bool:
    """The same bits, which NaN aside."""
    if np.array_equal(left, right):
        return True
    one, other = left.view(np.float32), right.view(np.float32)
    return bool(((left.view(np.uint32) == right.view(np.uint32)) | np.isnan(one) & np.isnan(other)).all())

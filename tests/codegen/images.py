"""Images that are built in this process, which takes a tenth of what a builder takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final
from unittest.mock import patch

import llvmlite.binding as llvm

from jitree.codegen.checked.instrument import instrumented
from jitree.codegen.image import Recipe, compile
from jitree.codegen.image.build import build, generate
from jitree.codegen.image.compile import Target, host_target
from jitree.codegen.image.flat import FlatImage
from jitree.codegen.image.generated import STRAIGHT, Unit
from jitree.codegen.image.shipped import CHECKED

_FEW: Final = STRAIGHT._replace(passes=("sroa",))


def built(recipe: Recipe) -> FlatImage:
    return build(generate(recipe), host_target())


@contextmanager
def few_passes() -> Iterator[None]:
    """Within, LLVM does as little as it can: a seventh of the time. Calls that are to be inlined are."""
    with patch.object(compile, "compile_unit", _compile_quickly):
        yield


def _compile_quickly(unit: Unit, target: Target) -> bytes:
    module = compile.optimized_module(unit.texts, unit.entries, target, _FEW)
    if CHECKED:
        module = instrumented(module, _machine(target), partial(compile._parse, target=target))
    return bytes(_machine(target).emit_object(module))


@cache
def _machine(target: Target) -> Any:
    compile.target_machine(target)  # sets up all targets
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=0, reloc="pic", codemodel="small"
    )

"""LLVM IR texts to one object file, with llvmlite. Runs only in the builder and in tests."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final

import llvmlite.binding as llvm

from jitree.base.platform import MACHINE, processor
from jitree.base.records import NamedTuple
from jitree.codegen import processor_texts
from jitree.codegen.image.generated import ALWAYS, FIRST, PLAIN, TIDYING, Pipeline, Unit
from jitree.codegen.image.shipped import CHECKED

_KEPT_FREE: Final = {"aarch64": "+reserve-x18"}
"""A register that macOS changes at any time: code that leaves it alone runs on both systems."""


class Target(NamedTuple):
    triple: str
    cpu: str
    features: str


def host_target() -> Target:
    """The machine this runs on, with every instruction set extension it has."""
    stated = [f"+{name}" for name in sorted(processor.arm_features())]  # LLVM finds fewer
    features = [str(llvm.get_host_cpu_features().flatten()), *stated]
    return target_of(MACHINE, llvm.get_host_cpu_name(), ",".join(filter(None, features)))


def target_of(machine: str, cpu: str, features: str = "") -> Target:
    """A kind of processor. Objects are ELF on every system: images are made of nothing else."""
    kept_free = _KEPT_FREE.get(machine, "")
    return Target(f"{machine}-unknown-linux-gnu", cpu, ",".join(filter(None, (features, kept_free))))


@cache
def target_machine(target: Target) -> Any:
    for option in ALWAYS:
        llvm.set_option("", option)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for inline assembly
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def optimized_module(
    texts: Sequence[str], entries: Iterable[str], target: Target, pipeline: Pipeline = PLAIN
) -> Any:
    """Links the texts into the first one, keeps only ``entries`` visible, inlines and optimises."""
    machine = target_machine(target)
    module = _parse(texts[0], target)
    texts = [*texts, *processor_texts.needed(texts, *target)]
    for text in texts[1:]:
        module.link_in(_parse(text, target))
    kept = set(entries)
    if sum(map(_visible, texts)) > len(kept):
        _make_internal(module, kept)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=pipeline.speed_level)
    options.loop_vectorization = pipeline.loop_vectorization
    options.slp_vectorization = pipeline.slp_vectorization
    options.loop_unrolling = pipeline.loop_unrolling
    builder = llvm.create_pass_builder(machine, options)
    _manager(llvm.create_new_module_pass_manager, FIRST).run(module, builder)
    if pipeline.passes:
        _simplify(module, builder, pipeline)
    else:
        builder.getModulePassManager().run(module, builder)
    return module


def _visible(text: str) -> int:
    """Counts what a text defines for others. To ask LLVM about each takes as long as to verify them."""
    lines = f"\n{text}"
    functions = lines.count("\ndefine ") - lines.count("\ndefine internal ")
    return functions + lines.count("\n@") - lines.count(" = internal ") - lines.count(" = external ")


def _make_internal(module: Any, kept: Container[str]) -> None:
    """Leaves those functions visible to others."""
    for function in module.functions:
        if not function.is_declaration and function.name not in kept:
            function.linkage = "internal"
            function.visibility = "default"
    for variable in module.global_variables:
        if not variable.is_declaration or str(variable.linkage) == "Linkage.common":
            variable.linkage = "internal"


def _simplify(module: Any, builder: Any, pipeline: Pipeline) -> None:
    """Runs the passes of a pipeline that lists them."""
    _manager(llvm.create_new_module_pass_manager, pipeline.whole).run(module, builder)
    simplifying = _manager(llvm.create_new_function_pass_manager, pipeline.passes)
    for function in module.functions:
        if not function.is_declaration:
            simplifying.run(function, builder)


def _manager(create: Callable[[], Any], passes: Iterable[str]) -> Any:
    """A pass manager with these passes, by llvmlite's names."""
    manager = create()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    return manager


def compile_object(
    texts: Sequence[str], entries: Iterable[str], target: Target, pipeline: Pipeline = PLAIN
) -> bytes:
    """The relocatable object of some IR texts (see :class:`~jitree.codegen.image.generated.Unit`)."""
    module = optimized_module(texts, entries, target, pipeline)
    for option, value in TIDYING.items():
        llvm.set_option("", f"-{option}={str(pipeline.tidies == value).lower()}")
    if CHECKED:
        from jitree.codegen.checked.instrument import instrumented

        module = instrumented(module, target_machine(target), partial(_parse, target=target))
    return bytes(target_machine(target).emit_object(module))


def compile_unit(unit: Unit, target: Target) -> bytes:
    return compile_object(unit.texts, unit.entries, target, unit.pipeline)


def _parse(text: str, target: Target) -> Any:
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.data_layout = str(target_machine(target).target_data)
    return module

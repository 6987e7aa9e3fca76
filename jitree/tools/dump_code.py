"""Shows how a module is compiled: ``jitree dump --llvm --asm --tiers --time``.

``--tiers`` says which functions are compiled as wholes, which loops become nests, and why not. ``--time``
measures on this machine what compiling the kernels of VMVX executables takes. Each kernel is compiled by
itself, in this process, without the functions that all have in common. What a process needs once (imports,
tables) is had before the first one. Then the kernels are compiled again, while LLVM takes the time of each
pass: :mod:`jitree.codegen.image.generated` says which run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from jitree.api.calls.declaration import TORCH_ASYNC_SUFFIX
from jitree.codegen.image import Recipe
from jitree.codegen.image.build import generate, target_here
from jitree.codegen.image.generated import Unit
from jitree.dispatch.native import tiering
from jitree.errors import NotFoundError
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.build import WORKGROUP
from jitree.loaders.vmvx.kernels import kernels
from jitree.observe.taps import near
from jitree.tools.dump_summary import is_executable
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.disassemble import function_symbol
from jitree.vmfb.schema import FunctionRow, ModuleTables

_SYMBOLS: Final = ("f{}", "enter.{}", "r{}", "resume.{}")
"""What a function becomes: itself and its entry from the interpreter; itself from where it resumes and that
entry. What is inlined everywhere is not there."""
_OF_KERNELS: Final = (WORKGROUP,)
"""What a kernel becomes."""
_SHOWN: Final = 12
"""How many dispatches a message names."""
_ASSEMBLY: Final = re.compile(
    r"^\"?(?P<name>[A-Za-z_][\w.$]*)\"?:.*?^\.Lfunc_end\d+:$", re.DOTALL | re.MULTILINE
)
"""A function in what LLVM prints; constants have labels that begin with a dot."""

Matches = Callable[[ModuleTables, FunctionRow, str], bool]
"""(module, function, text): whether that is what a function is called."""
Renderer = Callable[[Any, Sequence[str]], Iterator[str]]
"""(optimised LLVM module, symbols) -> lines"""


class _Place(NamedTuple):
    """A function and the image that it is compiled in."""

    title: str
    name: str
    """Begins the names of its dispatches; kernels have none."""
    recipe: Recipe
    symbols: Sequence[str]


class _Kernel(NamedTuple):
    """A kernel of a VMVX executable."""

    name: str
    module: ModuleTables
    function: FunctionRow
    place: _Place


def code_lines(
    module: BytecodeModule, text: str, matches: Matches, renderers: Sequence[Renderer]
) -> Iterator[str]:
    """Prints the code of functions called ``text``, of the module or its VMVX executables. Of a function that
    is not compiled as a whole (``--tiers`` says why) that of its dispatch, if it has one.

    NOT_FOUND, with what can be shown, if there is no such function, or not one dispatch of it."""
    import_module("jitree.codegen.image.compile")  # that llvmlite is not installed is said first
    places = _functions(module, text, matches) or [
        kernel.place for kernel in _kernels(module) if matches(kernel.module, kernel.function, text)
    ]
    if not places:
        names = [kernel.name for kernel in _kernels(module)]
        shown = f"; it has the dispatches {near(text, names)}" if names else _other_executables(module)
        raise NotFoundError(f"no function `{text}` in the module or its VMVX executables{shown}")
    for place in places:
        if units := _units(place):
            yield from _rendered(place, units, renderers)
        else:
            yield from _dispatch_lines(module, place, renderers)


def _dispatch_lines(module: BytecodeModule, place: _Place, renderers: Sequence[Renderer]) -> Iterator[str]:
    """The code of the one dispatch of a function.

    NOT_FOUND, with their names, for any other number.
    """
    refusal = f"{place.title} is not compiled as a whole; `jitree dump --tiers` says why"
    own = list(_dispatches(module, place))
    shown = [(kernel, units) for kernel in own[:_SHOWN] if (units := _units(kernel.place))]
    if len(own) == len(shown) == 1:
        yield f"; {refusal}; it has one dispatch, {shown[0][0].name}:"
        yield from _rendered(shown[0][0].place, shown[0][1], renderers)
        return
    names = ", ".join(kernel.name for kernel, _ in shown)
    rest = f" and {len(own) - _SHOWN} more, which it lists" if len(own) > _SHOWN else ""
    offer = f"; --function= takes its dispatches: {names}{rest}" if names else ""
    if not own and place.name:
        offer = _other_executables(module)
    raise NotFoundError(f"{refusal}{offer}")


def _dispatches(module: BytecodeModule, place: _Place) -> Iterator[_Kernel]:
    """Finds dispatches with the name of a function, or of its twin without waits."""
    starts = tuple(f"{place.name}{suffix}_dispatch_" for suffix in ("", TORCH_ASYNC_SUFFIX))
    return (kernel for kernel in _kernels(module) if place.name and kernel.name.startswith(starts))


def _other_executables(module: BytecodeModule) -> str:
    """What may be said instead where jitree compiles no kernels."""
    if not any(is_executable(segment.data) for segment in module.module.rodata):
        return ""
    return "; its dispatches are machine code in the file already, which `--output=executables` lists"


def _rendered(place: _Place, units: Sequence[Unit], renderers: Sequence[Renderer]) -> Iterator[str]:
    from jitree.codegen.image.compile import optimized_module

    for unit in units:
        optimized = optimized_module(unit.texts, unit.entries, target_here(), unit.pipeline)
        for render in renderers:
            yield f"; {place.title}"
            yield from render(optimized, place.symbols)


def _units(place: _Place) -> list[Unit]:
    """None if it is not compiled as a whole."""
    return [unit for unit in generate(place.recipe).units if set(place.symbols) & set(unit.entries)]


def _functions(module: BytecodeModule, text: str, matches: Matches) -> list[_Place]:
    recipe = tiering.recipe(module.program, module.name)
    return [
        _Place(
            f"function {function.ordinal} of module @{module.name}",
            function_symbol(module.module, function.ordinal),
            recipe,
            [symbol.format(function.ordinal) for symbol in _SYMBOLS],
        )
        for function in module.module.functions
        if matches(module.module, function, text)
    ]


def _kernels(module: BytecodeModule) -> Iterator[_Kernel]:
    for number, executable in enumerate(vmvx_kernels.executables(module.module)):
        recipes = vmvx_kernels.recipes(executable)
        for export, recipe in zip(kernels(executable.module), recipes, strict=True):
            place = _Place(f"kernel {export.ordinal} of executable {number}", "", recipe, _OF_KERNELS)
            function = executable.module.functions[export.ordinal]
            yield _Kernel(export.name, executable.module, function, place)


def llvm_lines(optimized: Any, symbols: Sequence[str]) -> Iterator[str]:
    """LLVM IR after all passes."""
    for function in optimized.functions:
        if function.name in symbols and not function.is_declaration:
            yield from str(function).splitlines()


def assembly_lines(optimized: Any, symbols: Sequence[str]) -> Iterator[str]:
    """Assembly for this processor."""
    from jitree.codegen.image.compile import target_machine

    text = target_machine(target_here()).emit_assembly(optimized)
    for match in _ASSEMBLY.finditer(text):
        if match["name"] in symbols:
            yield from match[0].splitlines()


Result = TypeVar("Result")
_MILLISECONDS: Final = 1e3


class _Times(NamedTuple):
    """Seconds of the processor."""

    generating: float = 0.0
    passes: float = 0.0
    machine_code: float = 0.0

    def plus(self, other: _Times) -> _Times:
        return _Times(*(a + b for a, b in zip(self, other, strict=True)))

    def text(self) -> str:
        parts = zip(("generating", "passes", "machine code"), self, strict=True)
        return ", ".join(f"{name} {_MILLISECONDS * seconds:.1f}" for name, seconds in parts) + " ms"


_PASS: Final = re.compile(r" *((?:\d+\.\d+ \( *[\d.]+%\) +)+)(.+?)(?: #\d+)?")
"""A line of LLVM's report: columns of seconds, their shares, the name of a pass and its number."""
_LEAST_SHARE: Final = 0.005
"""Passes that take less than so much of all are one line."""


def time_lines(module: BytecodeModule) -> Iterator[str]:
    """A line for each kernel of VMVX executables, the sum, and each pass."""
    for number, executable in enumerate(vmvx_kernels.executables(module.module)):
        yield f"executable {number}, @{executable.name}:"
        exports = kernels(executable.module)
        width = max(len(export.name) for export in exports)
        total = _Times()
        recipes = vmvx_kernels.recipes(executable)
        _measured(recipes[0])
        for export, recipe in zip(exports, recipes, strict=True):
            times = _measured(recipe)
            total = total.plus(times)
            yield f"  [{export.ordinal:3}] {export.name:{width}}  {times.text()}"
        yield f"  in all: {total.text()}"
        yield from _pass_lines(recipes)


def _measured(recipe: Recipe) -> _Times:
    from jitree.codegen.image.compile import compile_unit, optimized_module

    target = target_here()
    generating, generated = _timed(lambda: generate(recipe))
    units = generated.units
    passes, _ = _timed(
        lambda: [optimized_module(unit.texts, unit.entries, target, unit.pipeline) for unit in units]
    )
    compiling, _ = _timed(lambda: [compile_unit(unit, target) for unit in units])
    return _Times(generating, passes, max(compiling - passes, 0.0))


def _pass_lines(recipes: Sequence[Recipe]) -> Iterator[str]:
    """What each pass takes for all of them, those first that take longest."""
    times = _pass_times(recipes)
    seconds = sum(times.values())
    yield f"  passes of LLVM, {_MILLISECONDS * seconds:.1f} ms in all:"
    shown = {name: taken for name, taken in times.items() if taken >= _LEAST_SHARE * seconds}
    others = [taken for name, taken in times.items() if name not in shown]
    rows = sorted(shown.items(), key=itemgetter(1), reverse=True)
    for name, taken in (*rows, (f"{len(others)} others", sum(others))):
        yield f"    {_MILLISECONDS * taken:8.1f} ms {taken / (seconds or 1.0):6.1%}  {name}"


def _pass_times(recipes: Sequence[Recipe]) -> dict[str, float]:
    """Seconds by the name of a pass. LLVM adds them up, and says so in a report to people."""
    import llvmlite.binding as llvm

    from jitree.codegen.image.compile import compile_unit

    units = [unit for recipe in recipes for unit in generate(recipe).units]
    llvm.set_time_passes(True)
    try:
        for unit in units:
            compile_unit(unit, target_here())
        report = llvm.report_and_reset_timings()
    finally:
        llvm.set_time_passes(False)
    return _added_up(report)


def _added_up(report: str) -> dict[str, float]:
    """Seconds by pass in one of LLVM's reports: of a processor, whose column comes before that of the clock
    on the wall, if LLVM has found that any were taken."""
    times: dict[str, float] = {}
    for match in filter(None, map(_PASS.fullmatch, report.splitlines())):
        columns, name = match.groups()
        seconds = columns.replace("(", " ").replace("%)", " ").split()[::2]
        if name != "Total":
            times[name] = times.get(name, 0.0) + float(seconds[-2:][0])
    return times


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result

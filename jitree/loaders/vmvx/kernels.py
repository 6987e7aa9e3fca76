"""Finds the kernels of VMVX executables, and says which images they are.

Each kernel is an image of its own; notes in the image say what is known of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.codegen.image import Recipe, provider
from jitree.codegen.image.flat import START_SECONDS
from jitree.codegen.record import Atomic, MemoryRecord
from jitree.dispatch.native.source import ModuleSource, by_itself, encode, from_program, mnemonics
from jitree.errors import StatusError
from jitree.regs.layout import Entry, MachineState
from jitree.vmfb.schema import Export, FunctionRow, ModuleTables
from jitree.vmfb.words import BASE_OPCODE, FUSED, OPCODE_NAMES

if TYPE_CHECKING:
    from jitree.codegen.image.batch import ImageBatch
    from jitree.codegen.image.builder import BuilderLimits
    from jitree.codegen.record import i64
    from jitree.vmfb.decode import BytecodeModule  # numpy: builders do not need it


KEEPS: Final = frozenset(("global.store.ref", "global.store.indirect.ref"))
"""Instructions of an executable due to which a kernel may find less scratch memory than another one did."""
_CALLS: Final = frozenset(name for name in OPCODE_NAMES if name.startswith("call."))
CHANGE_LISTS: Final = ("list.set", "list.resize", "list.reserve", "list.swap")
"""Beginnings of mnemonics that could leave a worker context's list of bindings changed for the next span."""

MAXIMUM_CONTEXTS: Final = 64
MAXIMUM_BINDINGS: Final = 64
SCRATCH_MARK: Final = 0x53435254
"""The value of ENTRY.encoding in handles that a worker context keeps for scratch buffers."""

WORKGROUP_DONE, WORKGROUP_LEFT, WORKGROUP_LITTERED, WORKGROUP_REFUSED = range(4)
"""Why a run of workgroups has stopped: it is complete, one has left machine code, one has released handles,
the machine has no room."""
STACK_SIZE: Final = 32 << 10
"""Bytes of a thread's stack that kernels may take, whatever thread it is; deeper calls are the VM's."""
MOST_FINISHED: Final = 4
"""Workgroups of a span that may leave machine code before the rest is left to the VM."""


class KernelEnvironment(MemoryRecord):
    """Gives a function's calls their environment; the function owns it.

    The C functions take environment, dispatch state and workgroup state, the last one also the worker context
    that the workgroup left in; they return 0, or the number of a failure.
    """

    function: i64  # the Python object that the record belongs to
    contexts: Contexts  # those of the executable
    run: i64  # address of the C function that runs a span on the VM
    slow_path: i64  # address of the one that runs a span when no worker context is free
    finish: i64  # address of the C function that finishes a workgroup which left machine code
    workgroup: i64  # the compiled kernel's address: `i64 (dispatch, context, fuel, x, y, z, end)`, 0 = none
    frames: i64  # bytes of frames that it and what it calls take
    values: i64  # … of value slots
    refs: i64  # … of ref registers
    kernel: i64  # number of the kernel's function in the module
    stores: i64  # a bit for each binding that the kernel may store to
    changed: Atomic  # address of constants that it stores to, of which no copies are read; 0 = none
    changed_size: Atomic  # their bytes


class Contexts(MemoryRecord):
    """Lists the worker contexts of one executable.

    ``count`` grows when another one is complete, up to MAXIMUM_CONTEXTS. The C function takes and returns
    what those of :class:`KernelEnvironment` do.
    """

    count: Atomic
    interval: i64  # ticks between two looks at the memory that is left; 0: no look is needed
    due: Atomic  # when the next one is; 0 before the first span
    look: i64  # address of the C function that looks
    first: i64  # address of a worker context; count of them follow


class WorkerContextRecord(MemoryRecord):
    """Aims a machine's handles at other memory for each span.

    One thread at a time runs compiled kernels with it.
    """

    busy: Atomic  # 1 while a thread has it
    state: MachineState  # address of the STATE of its machine
    frame: i64  # address of the frame record of a kernel, the one after the host's
    values: i64  # of its value slots
    refs: i64  # of its ref registers
    local: Entry  # address of the ENTRY of the buffer of local memory
    constants: Entry  # … of constants
    bindings: Entry  # … of the list of bindings
    scratch: i64  # address of the first byte of scratch memory
    dispatch: i64  # address of the dispatch state of the span
    reached: i64  # by a run of workgroups: number of the first that is not complete; by a kernel: its `x`
    binding: i64  # … of the buffer of the first binding; MAXIMUM_BINDINGS addresses


ENTRY_CONVENTION: Final = "0rrriiiiiiiii_v"
"""Local memory, constants, list of bindings; x, y, z of workgroup id, workgroup size and workgroup count."""
_INTERNAL_PREFIX: Final = "__"

_ARCHIVE: Final = b"PK\x03\x04"
_SECONDS_A_WORD: Final = 0.000075
_HOT_SECONDS_A_WORD: Final = 0.00016
"""Of a processor, for a word of bytecode, until it has been measured on the machine; of code that can be
entered in the middle."""

_SECONDS_MORE: Final = {
    "exp.f32": 0.013, "exp2.f32": 0.013, "expm1.f32": 0.035, "tanh.f32": 0.035, "erf.f32": 0.045,
    "log.f32": 0.055, "log1p.f32": 0.055, "log2.f32": 0.055, "pow.f32": 0.07, "atan.f32": 0.05,
    "atan2.f32": 0.05, "sin.f32": 0.07, "cos.f32": 0.07,
}  # fmt: skip
"""The same for an instruction that becomes hundreds: measured of exp, tanh, erf, log1p, sin and cos, for the
others that of one that they resemble."""

SPANS: Final = Recipe("spans", "the code around VMVX kernels", "jitree.loaders.vmvx.spans:generate", 2.0)
"""Runs spans of any kernels."""


def kernels(module: ModuleTables) -> Sequence[Export]:
    """The entries of an executable, in their order."""
    return [export for export in module.exports if _is_kernel(export, module.functions[export.ordinal])]


def _is_kernel(export: Export, function: FunctionRow) -> bool:
    """Internal functions (``__init``, ``__set_constants``) are none; kernels that the compiler adds to every
    program, such as ``__builtin_fill_i64``, are."""
    return not export.name.startswith(_INTERNAL_PREFIX) or function.cconv == ENTRY_CONVENTION


class KernelNotes(NamedTuple):
    """Describes a kernel's image: numbers in one line, text in the next.

    The numbers are read without the module ``json``.
    """

    parts: int
    """Into how many parts a workgroup can be cut."""
    stores: int
    """A bit for each binding that it may store to, as a signed number of 64 bits."""
    frames: int
    values: int
    refs: int
    """Bytes on the stacks of a machine that it and what it calls take."""
    refusal: str
    """Why it has not been compiled."""
    loops: Sequence[Sequence[object]]
    """What became of its loops."""

    def encoded(self) -> bytes:
        import json

        described = json.dumps({"refusal": self.refusal, "loops": self.loops})
        return f"{' '.join(map(str, self[:_NUMBERS]))}\n{described}".encode()


_NUMBERS: Final = KernelNotes._fields.index("refusal")


def numbers_of(notes: bytes) -> list[int]:
    """``parts``, ``stores``, ``frames``, ``values`` and ``refs``."""
    return list(map(int, notes.partition(b"\n")[0].split()))


def recipes(executable: BytecodeModule) -> list[Recipe]:
    """The image of each of an executable's kernels, in their order.

    One that calls nothing is the same image for all executables that have it.
    """
    source = from_program(executable.program)
    keeps = not KEEPS.isdisjoint(mnemonics(source))
    whole = cache(partial(encode, source))
    return [_kernel(executable, export, source, whole, keeps) for export in kernels(executable.module)]


def _kernel(
    executable: BytecodeModule,
    export: Export,
    module: ModuleSource,
    whole: Callable[[], bytes],
    keeps: bool,
) -> Recipe:
    """``whole``: what the code of a kernel depends on that calls anything, the same bytes for all of them."""
    own = by_itself(module, export.ordinal)
    used = mnemonics(own)
    text, ordinal = (encode(own), 0) if _CALLS.isdisjoint(used) else (whole(), export.ordinal)
    return Recipe(
        name="vmvx_kernels",
        title=f"kernel '{export.name}' of executable '{executable.name}'",
        generator="jitree.loaders.vmvx.build:generate",
        seconds=START_SECONDS + _seconds(own, used),
        data=(text, array("i", (ordinal, keeps)).tobytes()),
    )


def _seconds(own: ModuleSource, used: set[str]) -> float:
    """States seconds of a processor to build a kernel, the function of ``own``."""
    seconds = _SECONDS_A_WORD * len(own.words)
    if not used.isdisjoint(_SECONDS_MORE):
        names = (OPCODE_NAMES[BASE_OPCODE[own.words[at]]] for at in own.instruction_words)
        seconds += sum(_SECONDS_MORE.get(name, 0.0) for name in names)
    return seconds


def batch(executable: BytecodeModule, builds: BuilderLimits | None = None) -> ImageBatch:
    """The images of an executable's kernels."""
    from jitree.codegen.image.batch import ImageBatch

    made = recipes(executable)
    title = f"{len(made)} kernel{'s' * (len(made) != 1)} of executable '{executable.name}'"
    return ImageBatch(title, [provider(recipe, builds) for recipe in made])


def hot_recipe(executable: BytecodeModule, ordinal: int) -> Recipe:
    """The image of one kernel, for machines that are in the middle of it."""
    function = executable.program.functions[ordinal]
    return Recipe(
        name="vmvx_hot",
        title=f"a kernel of executable '{executable.name}'",
        generator="jitree.loaders.vmvx.build:generate_hot",
        seconds=START_SECONDS + _HOT_SECONDS_A_WORD * (function.end - function.start),
        data=(encode(from_program(executable.program)), array("i", [ordinal]).tobytes()),
    )


def archives(module: ModuleTables) -> Iterator[memoryview]:
    """The constants of a program that look like modules."""
    for segment in module.rodata:
        head = bytes(segment.data[:8])
        if head[:4] == _ARCHIVE or head[4:] == b"IREE":
            yield segment.data


def executables(module: ModuleTables, arithmetic: str = FUSED) -> Iterator[BytecodeModule]:
    """Finds the VMVX executables among a program's constants.

    They are as a session of that arithmetic has them; what looks like one and is damaged is left out.
    """
    from jitree.vmfb.decode import BytecodeModule

    for data in archives(module):
        try:
            found = BytecodeModule.load(bytes(data), "executable", arithmetic)
        except StatusError:
            continue
        functions = found.module.functions
        if any(functions[export.ordinal].cconv == ENTRY_CONVENTION for export in found.module.exports):
            yield found

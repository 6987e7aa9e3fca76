"""The LLVM IR of all kernels. Only the builder and tests import this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, Final

from jitree.codegen import functions
from jitree.codegen.image.generated import LOOPS, PLAIN, Generated, Pipeline, Unit
from jitree.codegen.primitives import load32, load64
from jitree.dispatch import semantics_code
from jitree.modules.vmvx.kernels import COMPILED, ELEMENTWISE, TILED, compiled, symbol_of
from jitree.modules.vmvx.tiled import MOST_COMPILED
from jitree.regs.access import put
from jitree.regs.layout import COMPILED_DONE, KIND_BUFFER, STATE, Entry, Released
from jitree.vmfb.words import TAG_REF_MOVE

RELEASED = STATE["released"]
NO_BUFFER = 1


def generate() -> Generated:
    used: dict[str, Callable[..., Any]] = {}

    def instruction(mnemonic: str) -> Callable[..., Any]:
        return used.setdefault(mnemonic, semantics_code.stand_in(mnemonic))

    kernels = dict(zip(COMPILED, compiled(instruction, MOST_COMPILED), strict=True))

    def unit(rows: Sequence[tuple[str, str]], pipeline: Pipeline) -> Unit:
        entries = [entry(*row, kernels[row]) for row in rows]
        texts = [*functions.texts(entries), *semantics_code.texts_of(used)]
        return Unit(texts, tuple(starmap(symbol_of, rows)), pipeline)

    return Generated((unit(ELEMENTWISE, LOOPS), unit(TILED, PLAIN)), tuple(starmap(symbol_of, COMPILED)))


def entry(name: str, cconv: str, kernel: Callable[..., int]) -> Callable[..., int]:
    """A kernel as bytecode calls it (``regs.layout.COMPILED_DONE``).

    For all that it refuses the function in Python is called, which says why.
    """
    kinds = list(enumerate(cconv[1:].partition("_")[0]))
    references = [index for index, kind in kinds if kind == "r"]
    arguments = [_ARGUMENTS[kind].format(4 + 8 * index) for index, kind in kinds]
    source = [
        "def entry(state: int, values: int, refs: int, words: int) -> int:",
        *(f"    if not is_buffer(refs, words, {index}): return NO_BUFFER" for index in references),
        f"    status = kernel({', '.join(arguments)})",
        f"    if status == {COMPILED_DONE}:",
        *(f"        give_up(state, refs, words, {index})" for index in references),
        "    return status",
    ]
    scope = globals() | {"kernel": kernel}
    exec(compile("\n".join(source), f"<entry of {name}>", "exec"), scope)
    made: Callable[..., int] = scope["entry"]
    made.__name__ = symbol_of(name, cconv)
    return made


_ARGUMENTS: Final = {
    "i": "load32(values + 4 * load32(words + {}))",
    "I": "load64(values + 4 * load32(words + {}))",
    "r": "Entry(load64(refs + 8 * load32(words + {})))",
}


def is_buffer(refs: int, words: int, index: int) -> bool:
    entry = Entry(load64(refs + 8 * load32(words + 8 * index + 4)))
    return bool(entry) and entry.kind == KIND_BUFFER


def give_up(state: int, refs: int, words: int, index: int) -> None:
    """Empties a register if the call moves what it holds."""
    if load32(words + 8 * index) == TAG_REF_MOVE:
        put(Entry(0), refs + 8 * load32(words + 8 * index + 4), Released(state + RELEASED))

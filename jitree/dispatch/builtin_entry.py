"""Machine code as a builtin function of Python, which is called in a quarter of the time that ctypes takes.

The function is an ordinary ``PyCFunction`` without arguments. Its code, a few instructions, lets go of
the GIL, runs machine code on a state, takes the GIL back and gives what the code returned as a truth value.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from jitree.memory import map_code

_NO_ARGUMENTS: Final = 4
"""METH_NOARGS"""

_CALL: Final = "48b8{} ffd0"
"""movabs rax, address; call rax"""
_LOAD_STATE: Final = "48bf{state:016x}"
"""movabs rdi, state"""
_X86_64: Final = (
    "53 4154 4883ec08",  # push rbx; push r12; sub rsp, 8: the stack is aligned
    _CALL.format("{save:016x}"),
    "4889c3",  # mov rbx, rax
    "48bf{state:016x}",  # movabs rdi, state
    _CALL.format("{run:016x}"),
    "4989c4 4889df",  # mov r12, rax; mov rdi, rbx
    _CALL.format("{restore:016x}"),
    "4c89e7 4883c408 415c 5b",  # mov rdi, r12; add rsp, 8; pop r12; pop rbx
    "48b8{truth:016x} ffe0",  # movabs rax, PyBool_FromLong; jmp rax
)


class _Definition(ctypes.Structure):
    """A ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


def builtin_entry(
    run: int, state: int, presets: Mapping[int, int] | None = None
) -> Callable[[], bool] | None:
    """A function that calls the C function at address ``run`` with ``state`` and tells whether the result was
    not 0; None where there is no such code for the processor or this Python.

    ``presets`` are 64-bit words that it writes before, by their offset in the state: below 128.
    """
    interface = _interface()
    if interface is None:
        return None
    new_function, addresses = interface
    writes = "".join(map(_write, *zip(*presets.items(), strict=True))) if presets else ""
    code = map_code(_assemble(_LOAD_STATE + writes, addresses | {"run": run, "state": state}))
    definition = _Definition(b"enter", code.address, _NO_ARGUMENTS, None)
    kept = definition, code  # by the function, as its self
    function: Callable[[], bool] = new_function(ctypes.addressof(definition), kept, None)
    return function


def _assemble(beginning: str, addresses: dict[str, int]) -> bytes:
    swapped = {name: _swapped(value) for name, value in addresses.items()}
    return bytes.fromhex("".join((beginning, *_X86_64)).format(**swapped))


def _swapped(value: int) -> int:
    return int.from_bytes((value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"), "big")


def _write(offset: int, value: int) -> str:
    return f"48b8{_swapped(value):016x} 488947{offset:02x}"  # movabs rax, value; mov [rdi + offset], rax


@cache
def _interface() -> tuple[Callable[..., Any], dict[str, int]] | None:
    """What makes such functions, and the functions of Python that their code calls."""
    if os.uname().machine != "x86_64" or sys.implementation.name != "cpython":
        return None
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new_function: Callable[..., Any] = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    names = {"save": "PyEval_SaveThread", "restore": "PyEval_RestoreThread", "truth": "PyBool_FromLong"}
    pointers = {
        key: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for key, name in names.items()
    }
    return new_function, {key: pointer.value or 0 for key, pointer in pointers.items()}

"""Describes the processor, as the operating system or the processor itself says."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import _lru_cache_wrapper, cache
from typing import Any, Final

from jitree.base import platform
from jitree.base.platform import C_LIBRARY, map_code
from jitree.errors import StatusError, pass_interruption

_FLAGS: Final = """
    1.0.2     pni 0 ssse3 9 fma 12 cx16 13 sse4_1 19 sse4_2 20 movbe 22 popcnt 23 xsave 26 avx 28 f16c 29
    1.0.2     pclmulqdq 1 aes 25
    7.0.1     bmi1 3 avx2 5 bmi2 8 avx512f 16 avx512dq 17 avx512ifma 21 avx512cd 28 avx512bw 30 avx512vl 31
    7.0.1     adx 19 sha_ni 29
    7.0.2     avx512vbmi 1 avx512_vbmi2 6 gfni 8 avx512_vnni 11 avx512_bitalg 12 avx512_vpopcntdq 14
    7.0.2     vaes 9 vpclmulqdq 10
    7.0.3     avx512_vp2intersect 8 amx_bf16 22 avx512_fp16 23 amx_tile 24 amx_int8 25
    7.1.0     avx_vnni 4 avx512_bf16 5
    2147483649.0.2  lahf_lm 0 abm 5 sse4a 6 xop 11 fma4 16 tbm 21
"""
"""A line or two for each word: leaf, part of it, register (EAX, EBX, ECX, EDX); names and their bits."""
_SIGNATURE: Final = 1
"""The leaf of family, model and stepping."""
_EXTENDED: Final = 1 << 31
"""The first of the leaves that are counted by themselves."""
_KEEPS_STATE: Final = 27
"""The bit of ECX of leaf 1 that says that the system keeps registers by XSAVE."""
_STATES: Final = {"avx512": 0xE6, "amx": 0x60000, "": 6}
"""By how a name begins: the registers that the system must keep."""
_OF_VECTORS: Final = ("avx", "amx", "fma", "f16c", "xop", "vaes", "vpclmul")
"""How names begin of what takes more registers than SSE."""

# push rbx; mov r8, rdx; mov eax, edi; mov ecx, esi; cpuid
# mov [r8], eax; mov [r8+4], ebx; mov [r8+8], ecx; mov [r8+12], edx; pop rbx; ret
_CPUID: Final = "53 4989d0 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3"
# xor ecx, ecx; xgetbv; ret
_XGETBV: Final = "31c9 0f01d0 c3"
_START: Final = 32
"""Where the second function begins."""


def ask_processor() -> bytes:
    """Lines as of ``/proc/cpuinfo``: what tells the processor from others, and its flags. Empty where no
    machine code may be made."""
    code = bytes.fromhex(_CPUID).ljust(_START, b"\xcc") + bytes.fromhex(_XGETBV)
    try:
        mapping = map_code(code)
    except StatusError:
        return b""
    pointer = ctypes.POINTER(ctypes.c_uint32)
    ask = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, pointer)(mapping.address)

    def words(leaf: int, part: int) -> list[int]:
        answer = (ctypes.c_uint32 * 4)()
        ask(leaf & _EXTENDED, 0, answer)
        if answer[0] < leaf:
            return [0, 0, 0, 0]
        ask(leaf, part, answer)
        return list(answer)

    model, _, features, _ = words(_SIGNATURE, 0)
    kept = 0
    if features >> _KEEPS_STATE & 1:
        kept = ctypes.CFUNCTYPE(ctypes.c_uint32)(mapping.address + _START)()
    flags = []
    for line in _FLAGS.split("\n"):
        place, *pairs = line.split() or [""]
        for name, bit in zip(pairs[::2], pairs[1::2], strict=True):
            leaf, part, register = map(int, place.split("."))
            if words(leaf, part)[register] >> int(bit) & 1 and _is_kept(name, kept):
                flags.append(name)
    return f"model\t: {model:#x}\nflags\t: {' '.join(flags)}".encode()


def _is_kept(name: str, kept: int) -> bool:
    if not name.startswith(_OF_VECTORS):
        return True
    needed = next(state for start, state in _STATES.items() if name.startswith(start))
    return kept & needed == needed


_FILE: Final = "/proc/cpuinfo"
MACHINES: Final = frozenset(("x86_64", "aarch64", "riscv64"))
"""Those that machine code is made for: :mod:`jitree.codegen.processor_texts`."""
_ENOUGH: Final = 1 << 14
"""Bytes: the first processor takes 3 KB. The system makes the text while it is read."""


_assumed: tuple[str, bytes] = ("", b"")


def assume(name: str, described: bytes) -> None:
    """Has this process make code for another processor from now on. It is a builder, and runs no such
    code."""
    global _assumed
    _assumed = name, described
    for cached in kept:
        cached.cache_clear()


def assumed() -> str:
    """The name of the processor that is assumed; empty without one."""
    return _assumed[0]


def described(machine: str, flags: Iterable[str]) -> bytes:
    """As :func:`description`, of a processor that has so much at least."""
    return f"machine : {machine}\nflags : {' '.join(sorted(flags))}".encode()


def machine() -> str:
    """As :data:`jitree.base.platform.MACHINE`; of the processor that is assumed, if one is."""
    return next(iter(words("machine"))) if _assumed[0] else platform.MACHINE


@cache
def description() -> bytes:
    """What the system says about the first processor, a line ``name : value`` a fact; empty if nothing."""
    if _assumed[0]:
        return _assumed[1]
    try:
        with open(_FILE, "rb", buffering=0) as file:
            return file.read(_ENOUGH).partition(b"\n\n")[0]
    except OSError as error:
        pass_interruption(error)
        return _asked()


def _asked() -> bytes:
    """What the processor itself says, where the system says nothing."""
    return ask_processor() if platform.MACHINE == "x86_64" else b""


_OWN_LINES: Final = {"flags": "x86_64", "isa": "riscv64"}
"""Lines that only one architecture has."""


@cache
def words(name: str) -> frozenset[str]:
    """The words of a line: ``flags`` on x86-64, ``isa`` on RISC-V; none where there is no such line."""
    if not _assumed[0] and _OWN_LINES.get(name, platform.MACHINE) != platform.MACHINE:
        return frozenset()  # emulators show the file of the machine that they run on
    for line in str(description(), "utf-8", "replace").splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return frozenset(value.split())
    return frozenset()


@cache
def fuses() -> bool:
    """Whether an instruction of it multiplies and adds, and rounds once."""
    return "fma" in words("flags") or machine() == "aarch64"


_ARM_FEATURES: Final = {"dotprod": "1:20/FEAT_DotProd", "i8mm": "2:13/FEAT_I8MM"}


@cache
def arm_features() -> frozenset[str]:
    """Names the extensions of an AArch64 that code is made for, as LLVM does."""
    if assumed() or platform.MACHINE != "aarch64":
        return frozenset()
    return frozenset(name for name, source in _ARM_FEATURES.items() if has_capability(source))


kept: Final[list[_lru_cache_wrapper[Any]]] = [description, words, fuses, arm_features]
"""Functions whose results depend on the processor and are kept: of every module."""
_AT_HWCAP: Final = {1: 16, 2: 26}
"""getauxval(3) keys of the two words."""


def has_capability(source: str) -> bool:
    """Whether an AArch64 has a feature: ``word:bit,word:bit/name``. Linux sets all these bits of its words
    HWCAP (1) and HWCAP2 (2); macOS knows the name. No where the system says nothing."""
    bits, _, name = source.partition("/")
    if hasattr(C_LIBRARY, "getauxval"):
        ask = C_LIBRARY.getauxval
        ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
        pairs = (pair.split(":") for pair in bits.split(","))
        return all(ask(_AT_HWCAP[int(word)]) >> int(bit) & 1 for word, bit in pairs)
    if not hasattr(C_LIBRARY, "sysctlbyname"):
        return False
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    asked = f"hw.optional.arm.{name}".encode()
    done = C_LIBRARY.sysctlbyname(asked, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return done == 0 and value.value == 1

"""Describes the processor, as the operating system or the processor itself says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
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


_ARM_FEATURES: Final = frozenset(("dotprod", "i8mm"))


@cache
def arm_features() -> frozenset[str]:
    """Names the extensions of an AArch64 that code is made for, as LLVM does."""
    if assumed() or platform.MACHINE != "aarch64":
        return frozenset()
    return frozenset(name for name, (_, present) in known_features().items() if present) & _ARM_FEATURES


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
    if not name or not hasattr(C_LIBRARY, "sysctlbyname"):
        return False
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    asked = f"hw.optional.arm.{name}".encode()
    done = C_LIBRARY.sysctlbyname(asked, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return done == 0 and value.value == 1


# One row per extension: LLVM's name, its bit in the first of the words that executables are given (``-``: no
# executable asks for it; compilers make its instructions), and what the system calls it. Linux says what
# x86-64 and RISC-V have in words of ``/proc/cpuinfo``, and what an AArch64 has in bits of two words; macOS
# answers questions by name.

X86_64: Final = """
    sse3 0 pni                  ssse3 1 ssse3               sse4.1 2 sse4_1
    sse4.2 3 sse4_2             sse4a 4 sse4a               avx 10 avx
    fma 11 fma                  fma4 12 fma4                xop 13 xop
    f16c 14 f16c                avx2 15 avx2                avx512f 20 avx512f
    avx512cd 21 avx512cd        avx512vl 22 avx512vl        avx512dq 23 avx512dq
    avx512bw 24 avx512bw        avx512ifma 25 avx512ifma    avx512vbmi 26 avx512vbmi
    avx512vpopcntdq 27 avx512_vpopcntdq                     avx512vnni 28 avx512_vnni
    avx512vbmi2 29 avx512_vbmi2 avx512bitalg 30 avx512_bitalg
    avx512bf16 31 avx512_bf16   avx512fp16 32 avx512_fp16
    amx-tile 50 amx_tile        amx-int8 51 amx_int8        amx-bf16 52 amx_bf16
    bmi - bmi1                  bmi2 - bmi2                 lzcnt - abm
    popcnt - popcnt             movbe - movbe               gfni - gfni
    avxvnni - avx_vnni                                      avx512vp2intersect - avx512_vp2intersect
    vaes - vaes                 vpclmulqdq - vpclmulqdq     aes - aes
    pclmul - pclmulqdq          sha - sha_ni                adx - adx
    crc32 - sse4_2              cx16 - cx16                 tbm - tbm
"""
"""Names of the flags line of /proc/cpuinfo, which lists only what the kernel lets programs use."""

ARM_64: Final = """
    fp-armv8 0 1:0/AdvSIMD             lse 1 1:8/FEAT_LSE         lse128 2 2:47/FEAT_LSE128
    fullfp16 10 1:9,1:10/FEAT_FP16     fp16fml 11 1:23/FEAT_FHM   dotprod 12 1:20/FEAT_DotProd
    i8mm 13 2:13/FEAT_I8MM             bf16 14 2:14/FEAT_BF16     sve 20 1:22
    sve2 21 2:1           sve2p1 22 2:36      sve2-bitperm 23 2:4 f32mm 24 2:10         f64mm 25 2:11
    sme 30 2:23/FEAT_SME               sme2 31 2:37/FEAT_SME2     sme2p1 32 2:38/FEAT_SME2p1
    sme-f16f16 33 2:42/FEAT_SME_F16F16 sme-f64f64 34 2:25/FEAT_SME_F64F64
    sme-i16i64 35 2:24/FEAT_SME_I16I64
    rdm - 1:12/FEAT_RDM                complxnum - 1:14/FEAT_FCMA
    rcpc - 1:15/FEAT_LRCPC             rcpc-immo - 1:26/FEAT_LRCPC2
    sha3 - 1:17,1:21/FEAT_SHA3         sve-bitperm - 2:4
    cssc - 2:34/FEAT_CSSC              mops - 2:43/FEAT_MOPS
"""
"""Words and bits of the kernel's HWCAP (1) and HWCAP2 (2), arch/arm64/include/uapi/asm/hwcap.h in Linux; and
names of macOS, "Determining instruction set characteristics" of Apple."""

RISCV_64: Final = """
    v 0 v              zvfhmin 1 zvfhmin   zvfh 2 zvfh         zvfbfwma 3 zvfbfwma
    xsmtvdot 4 xsmtvdot                    zvl256b 5 zvl256b   zvl1024b 6 zvl1024b   zvl4096b 7 zvl4096b
"""
"""Extensions of the isa line of /proc/cpuinfo."""


def known_features() -> dict[str, tuple[str, bool]]:
    """Says of each extension its bit, and whether this processor has it.

    By LLVM's names; nothing on an architecture without rows."""
    present: Callable[[str], bool]
    table = {"x86_64": X86_64, "aarch64": ARM_64, "riscv64": RISCV_64}.get(platform.MACHINE, "")
    if platform.MACHINE == "x86_64":
        present = words("flags").__contains__
    elif platform.MACHINE == "riscv64":
        present = _riscv_extensions(words("isa")).__contains__
    else:
        present = has_capability
    fields = table.split()
    rows = zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
    return {name: (bit, present(source)) for name, bit, source in rows}


def _riscv_extensions(isa: frozenset[str]) -> frozenset[str]:
    """{"rv64imafdcv_zvfh"} -> {"i", "m", …, "v", "zvfh"}."""
    extensions: set[str] = set()
    for text in isa:
        letters, *names = text.removeprefix("rv64").split("_")
        extensions.update(letters, names)
    return frozenset(extensions)

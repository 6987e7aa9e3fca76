"""Makes the environment of executables: constants, imports, processor data.

Functions that a program declared external are imports: symbols that providers answer with a function address
and a context. An import is called as ``i32 function(parameters, context, reserved)`` through a thunk.

What the processor can do is eight 64-bit words, and answers to ``hal.cpu`` queries. One row per feature:
LLVM's name, its bit in word 0, and the name that the operating system gives it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from functools import cache
from typing import Final

from jitree.base.memory import once
from jitree.base.platform import MACHINE, UNAME, Mapping, map_code, processor
from jitree.base.records import Protocol
from jitree.errors import NotFoundError, UnavailableError, UnimplementedError
from jitree.regs.memory import address_of, zeroed

WORD_COUNT: Final = 8

_X86_64: Final = """
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
"""Names of the flags line of /proc/cpuinfo, which lists only what the kernel lets programs use. ``-``: no
executable asks for it; compilers make its instructions."""

_ARM_64: Final = """
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

_RISCV_64: Final = """
    v 0 v              zvfhmin 1 zvfhmin   zvfh 2 zvfh         zvfbfwma 3 zvfbfwma
    xsmtvdot 4 xsmtvdot                    zvl256b 5 zvl256b   zvl1024b 6 zvl1024b   zvl4096b 7 zvl4096b
"""
"""Extensions of the isa line of /proc/cpuinfo."""

_NO_BIT: Final = "-"


class CpuData:
    """Describes a processor: ``words`` for executables, :meth:`query` by LLVM's name."""

    def __init__(self, features: MappingOf[str, tuple[str, bool]]) -> None:
        """``features``: bits, and whether the processor has them, by LLVM's name."""
        self._features = {name: row for name, row in features.items() if row[0] != _NO_BIT}
        word = sum(1 << int(bit) for bit, present in self._features.values() if present)
        self.words: tuple[int, ...] = (word,) + (0,) * (WORD_COUNT - 1)
        lacking = frozenset(name for name, (_, present) in features.items() if not present)
        self.lacking = lacking if len(lacking) < len(features) else frozenset[str]()
        """The features that the processor does not have; none where nothing is known of it."""

    def items(self) -> list[tuple[str, int]]:
        """Every feature that the architecture knows, and 1 or 0."""
        return [(name, int(present)) for name, (_, present) in self._features.items()]

    def query(self, feature: str) -> int | None:
        """Whether the processor has the feature: 1 or 0.

        None for a name its architecture does not know.
        """
        row = self._features.get(feature)
        return None if row is None else int(row[1])


@cache
def host_cpu_data() -> CpuData:
    """The features of this machine's processor; none on an architecture without rows."""
    if MACHINE == "x86_64":
        return _read(_X86_64, processor.words("flags").__contains__)
    if MACHINE == "aarch64":
        return _read(_ARM_64, processor.has_capability)
    if MACHINE == "riscv64":
        return _read(_RISCV_64, _riscv_extensions(processor.words("isa")).__contains__)
    return CpuData({})


def _read(table: str, present: Callable[[str], bool]) -> CpuData:
    fields = table.split()
    rows = zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
    return CpuData({name: (bit, present(source)) for name, bit, source in rows})


def _riscv_extensions(isa: frozenset[str]) -> frozenset[str]:
    """{"rv64imafdcv_zvfh"} -> {"i", "m", …, "v", "zvfh"}."""
    extensions: set[str] = set()
    for text in isa:
        letters, *names = text.removeprefix("rv64").split("_")
        extensions.update(letters, names)
    return frozenset(extensions)


ENVIRONMENT_SIZE: Final = 96
_FIELDS: Final = struct.Struct("<4Q8Q")
"""Constants, import thunk, import functions, import contexts, processor data."""
assert _FIELDS.size == ENVIRONMENT_SIZE

_THUNKS: Final = {
    # mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; jmp rax
    "x86_64": "4889f8 4889f7 4889d6 4889ca ffe0",
    # mov x4, x0; mov x0, x1; mov x1, x2; mov x2, x3; br x4
    "aarch64": "e40300aa e00301aa e10302aa e20303aa 80001fd6",
    # mv t0, a0; mv a0, a1; mv a1, a2; mv a2, a3; jr t0
    "riscv64": "93020500 13850500 93050600 13860600 67800200",
}
"""Machine code of ``thunk(function, parameters, context, reserved)``: calls function with the other three."""


class ImportProvider(Protocol):
    """Finds functions for executables that import some."""

    def resolve(self, symbol: str) -> tuple[int, int] | None:
        """(function address, context) of a symbol, None if this provider does not have it.

        Both must stay valid as long as the provider, which is kept by the executables that it served.
        """


class Environment:
    """Lays out one executable's environment in memory, and lives as long."""

    __slots__ = ("_block", "_contexts", "_functions", "_kept", "_words", "address")

    def __init__(self, constants: Sequence[int]) -> None:
        """``constants`` are the executable's specialization constants, unsigned 32-bit words."""
        self._words = array("I", constants)
        self._functions = array("Q")
        self._contexts = array("Q")
        self._kept: tuple[ImportProvider, ...] = ()
        self._block = zeroed(ENVIRONMENT_SIZE)
        self.address: int = address_of(self._block)
        self._write(0)

    def link(self, symbols: Sequence[str], providers: Sequence[ImportProvider]) -> None:
        """Resolves the imports of a library; the provider registered last is asked first.

        UNAVAILABLE without any provider, NOT_FOUND naming the symbols that none has. Optional ones (``?``)
        stay null.
        """
        if not symbols:
            return
        missing = []
        for symbol in symbols:
            name = symbol.removeprefix("?")
            answers = (provider.resolve(name) for provider in reversed(providers))
            found = next((answer for answer in answers if answer is not None), None)
            if found is None and name == symbol:
                missing.append(name)
            function, context = found or (0, 0)
            self._functions.append(function)
            self._contexts.append(context)
        if missing:
            names = ", ".join(missing)
            if not providers:
                raise UnavailableError(
                    f"the executable imports {names}, but nothing that provides imports is registered"
                )
            raise NotFoundError(f"the executable imports {names}, which no registered provider has")
        self._kept = tuple(providers)
        self._write(_thunk().address)

    def _write(self, thunk: int) -> None:
        _FIELDS.pack_into(
            self._block.data, 0, *(self._words.buffer_info()[0] if self._words else 0, thunk),
            self._functions.buffer_info()[0], self._contexts.buffer_info()[0], *host_cpu_data().words,
        )  # fmt: skip


@once
def _thunk() -> Mapping:
    if MACHINE not in _THUNKS:
        raise UnimplementedError(f"executables with imports cannot be run on {UNAME}")
    return map_code(bytes.fromhex(_THUNKS[MACHINE]))

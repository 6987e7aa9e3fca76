"""Reads PTX text: kernels' parameters, and parts that compile at the same time."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_ENTRY: Final = re.compile(rb"^[ \t]*(?:\.visible[ \t]+|\.weak[ \t]+)?\.entry[ \t]+([\w$%]+)", re.MULTILINE)
_PARAMETER: Final = re.compile(rb"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\b[^,\[]*(\[)?")
_FUNCTION: Final = re.compile(rb"^[ \t]*(?:\.visible[ \t]+|\.weak[ \t]+)?\.func\b", re.MULTILINE)
_COMMENT: Final = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_POINTER_BITS: Final = 64
_WORD_BITS: Final = 32
_BODY: Final = re.compile(_ENTRY.pattern + rb"[^{;]*\{", re.MULTILINE)
_VERSION: Final = re.compile(rb"(^\s*\.version\s+)(\d+)\.(\d+)", re.MULTILINE)
_TARGET: Final = re.compile(rb"(^\s*\.target\s+sm_)(\d+)", re.MULTILINE)
_WAIT: Final = b"\n\tgriddepcontrol.wait;"
_WAIT_VERSION: Final = (7, 8)
_WAIT_TARGET: Final = 90
"""The lowest target of texts that may have that instruction."""
_ELF_MAGIC: Final = b"\x7fELF"


class KernelSignature(NamedTuple):
    """Says what a kernel takes: pointers first, then 32-bit words."""

    binding_count: int
    constant_count: int


def is_cubin(image: bytes) -> bool:
    """Whether an image is machine code instead of PTX."""
    return image.startswith(_ELF_MAGIC)


def signatures(text: bytes) -> dict[str, KernelSignature | None]:
    """Reads the kernels of a PTX text by name. None stands for one whose parameters are no pointers followed
    by words."""
    found: dict[str, KernelSignature | None] = {}
    for match in _ENTRY.finditer(text):
        opening = text.find(b"(", match.end())
        body = text.find(b"{", match.end())
        if opening < 0 or (body >= 0 and body < opening):  # a kernel without a parameter list
            found[match[1].decode()] = KernelSignature(0, 0)
            continue
        closing = text.find(b")", opening)
        parameters = _COMMENT.sub(b"", text[opening : closing if closing >= 0 else len(text)])
        found[match[1].decode()] = _signature(parameters)
    return found


def _signature(parameters: bytes) -> KernelSignature | None:
    widths = []
    for kind, bits, array in _PARAMETER.findall(parameters):
        if array or kind not in (b"u", b"b", b"s", b"f"):
            return None
        widths.append(int(bits))
    if len(widths) != parameters.count(b".param"):
        return None
    pointers = sum(width == _POINTER_BITS for width in widths)
    words = len(widths) - pointers
    if widths != [_POINTER_BITS] * pointers + [_WORD_BITS] * words:
        return None
    return KernelSignature(pointers, words)


def with_waits(text: bytes) -> bytes | None:
    """Makes kernels wait first for what they depend on, to be launched earlier. None where that cannot be
    done to all of them."""
    waiting, count = _BODY.subn(lambda found: found[0] + _WAIT, text)
    if not count or count != len(_ENTRY.findall(text)):
        return None
    waiting = _VERSION.sub(_at_least_version, waiting)
    return _TARGET.sub(lambda found: found[1] + b"%d" % max(_WAIT_TARGET, int(found[2])), waiting)


def _at_least_version(found: re.Match[bytes]) -> bytes:
    return found[1] + b"%d.%d" % max(_WAIT_VERSION, (int(found[2]), int(found[3])))


def split(text: bytes) -> list[bytes]:
    """Splits a text into one per kernel, each with the head of all.

    The whole text when functions that kernels share stand between them.
    """
    starts = [match.start() for match in _ENTRY.finditer(text)]
    if len(starts) < 2 or _FUNCTION.search(text, starts[0]):
        return [text]
    header = text[: starts[0]]
    ends = [*starts[1:], len(text)]
    return [header + text[start:end] for start, end in zip(starts, ends, strict=True)]

"""What a file that is not a module is instead, so that the error can say so."""

from __future__ import annotations

import re
from typing import Final

_COMPILE: Final = "compile it with iree-compile first"
_PARAMETERS: Final = "it holds parameters (--parameters=, parameters=[…]), not a program"

_MAGICS: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"\x7fELF", "an ELF object or shared library, not a module"),
    (0, b"MZ", "a Windows executable, not a module"),
    (0, b"ML\xefR", f"MLIR bytecode; {_COMPILE}"),
    (0, b"BC\xc0\xde", "LLVM bitcode, not a module"),
    (0, b"\x1f\x8b", "compressed with gzip; decompress it first"),
    (0, b"\xfd7zXZ\x00", "compressed with xz; decompress it first"),
    (0, b"BZh", "compressed with bzip2; decompress it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first"),
    (0, b"IRPA", f"an IREE parameter archive; {_PARAMETERS}"),
    (0, b"GGUF", f"a GGUF file; {_PARAMETERS}"),
    (8, b'{"', f"a safetensors file; {_PARAMETERS}"),
    (0, b"\x93NUMPY", "a numpy array (.npy), not a module"),
    (4, b"TFL3", "a TensorFlow Lite model; import and compile it first"),
    (0, b"version https://git-lfs", "a git LFS pointer; fetch the file it stands for (git lfs pull)"),
    (0, b"<!DOCTYPE html", "a web page, probably a failed download"),
    (0, b"<html", "a web page, probably a failed download"),
)
"""(offset, bytes found there, what the file is)."""

_SAMPLE: Final = 4096
_MLIR_WORDS: Final = (
    rb"^\s*(module\b|builtin\.module|func\.func|util\.func|vm\.module|ml_program|hal\.executable|#\w+ = )"
    rb"|\b(func\.func|stablehlo\.|linalg\.|tosa\.|arith\.|tensor<)"
)


def describe_foreign(data: memoryview) -> str:
    """``"the file is …"`` for content that is not a module; ``""`` if nothing better can be said."""
    if len(data) == 0:
        return "the file is empty"
    sample = bytes(data[:_SAMPLE])
    for offset, magic, description in _MAGICS:
        if sample.startswith(magic, offset):
            return f"the file is {description}"
    if sample.startswith(b"PK"):
        return _describe_zip(sample)
    if _is_text(sample):
        if re.search(_MLIR_WORDS, sample, re.MULTILINE):
            return f"the file is MLIR text; {_COMPILE}"
        return "the file is plain text, not a module"
    return ""


def _describe_zip(sample: bytes) -> str:
    length = int.from_bytes(sample[26:28], "little")
    member = sample[30 : 30 + length].decode("utf-8", "backslashreplace")
    if member == "module.fb" or len(member) < length:
        return ""  # a module, or cut off before one can tell
    if member.endswith(".npy"):
        return f"the file is a numpy archive (.npz) that begins with {member!r}, not a module"
    return f"the file is a ZIP archive that begins with {member!r}, not a module"


def _is_text(sample: bytes) -> bool:
    try:
        text = sample.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(sample) - 4 or len(sample) < _SAMPLE:
            return False
        text = sample[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\t\r\n\f" for character in text)

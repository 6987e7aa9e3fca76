"""Recognises files that are no modules.

So an error says what such a file is instead.
"""

from __future__ import annotations

import re
from typing import Final

MLIR_BYTECODE: Final = b"ML\xefR"
_COMPILE: Final = "compile it with iree-compile first, or by `jitree compile {0} -o model.vmfb`"
_EXPORT: Final = "export the model to ONNX, and `jitree compile` that"
_TORCH: Final = "export the model to ONNX (torch.onnx.export), and `jitree compile` that"
_PARAMETERS: Final = (
    "it holds parameters (--parameters=, parameters=[…]), not a program, which `jitree compile` makes of "
    "a model"
)

_MAGICS: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"\x7fELF", "an ELF object or shared library, not a module"),
    (0, b"MZ", "a Windows executable, not a module"),
    (0, MLIR_BYTECODE, f"MLIR bytecode; {_COMPILE.format('model.mlirbc')}"),
    (0, b"BC\xc0\xde", "LLVM bitcode, not a module"),
    (0, b"\x1f\x8b", "compressed with gzip; decompress it first"),
    (0, b"\xfd7zXZ\x00", "compressed with xz; decompress it first"),
    (0, b"BZh", "compressed with bzip2; decompress it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first"),
    (0, b"IRPA", f"an IREE parameter archive; {_PARAMETERS}"),
    (0, b"GGUF", f"a GGUF file; {_PARAMETERS}"),
    (8, b'{"', f"a safetensors file; {_PARAMETERS}"),
    (0, b"\x93NUMPY", "a numpy array (.npy), not a module"),
    (4, b"TFL3", "a TensorFlow Lite model; convert it to ONNX (tf2onnx), and `jitree compile` that"),
    (0, b"\x89HDF\r\n\x1a\n", f"an HDF5 file, as Keras writes; {_EXPORT}"),
    (0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19", f"a PyTorch file of weights; {_TORCH}"),
    (0, b"version https://git-lfs", "a git LFS pointer; fetch the file it stands for (git lfs pull)"),
    (0, b"<!DOCTYPE html", "a web page, probably a failed download"),
    (0, b"<html", "a web page, probably a failed download"),
)
"""(offset, bytes found there, what the file is)."""

_TORCH_MEMBERS: Final = ("/data.pkl", "/archive_format", "serialized_exported_program.json")
"""What archives begin with that torch.save, torch.jit.save and torch.export.save write."""
_VERSION: Final = b"\x08"
"""How an ONNX model begins: a number in field 1."""
_GRAPH: Final = 7
_ONNX_FIELDS: Final = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, _GRAPH: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Fields of an ONNX model, and how protocol buffers write each: as a number (0), or as a length and bytes."""
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
    if is_onnx(data):
        return "the file is an ONNX model; `jitree compile model.onnx -o model.vmfb` makes a module of it"
    if _is_text(sample):
        if re.search(_MLIR_WORDS, sample, re.MULTILINE):
            return f"the file is MLIR text; {_COMPILE.format('model.mlir')}"
        return "the file is plain text, not a module"
    return ""


def is_mlir(data: memoryview) -> bool:
    """Whether it is a program for the compiler, as text or bytecode."""
    sample = bytes(data[:_SAMPLE])
    return sample.startswith(MLIR_BYTECODE) or (
        _is_text(sample) and re.search(_MLIR_WORDS, sample, re.MULTILINE) is not None
    )


def is_onnx(data: memoryview) -> bool:
    """Whether it has an ONNX model's fields, up to the graph. The version is first; the graph may be cut
    off."""
    place = 0
    if bytes(data[:1]) != _VERSION:
        return False
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if _ONNX_FIELDS.get(number) != kind:
            return False
        if number == _GRAPH:
            return True
        value, place = _varint(data, place)
        place += value if kind == 2 else 0
    return False


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for index in range(place, min(place + 10, len(data))):
        value |= (data[index] & 0x7F) << 7 * (index - place)
        if data[index] < 0x80:
            return value, index + 1
    return 0, len(data)


def _describe_zip(sample: bytes) -> str:
    length = int.from_bytes(sample[26:28], "little")
    member = sample[30 : 30 + length].decode("utf-8", "backslashreplace")
    if member == "module.fb" or len(member) < length:
        return ""  # a module, or cut off before one can tell
    if member.endswith(_TORCH_MEMBERS):
        return f"the file is a PyTorch file of weights or of a program; {_TORCH}"
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

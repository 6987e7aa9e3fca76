"""Where the parts of a module file lie, and what is said about files that are none."""

from __future__ import annotations

import errno
import gzip
import io
import mmap
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from jitree import Limits, Session
from jitree.errors import InvalidArgumentError, NotFoundError, ResourceExhaustedError, StatusError
from jitree.vmfb.archive import Archive
from tests.api.onnx_files import chain
from tests.assembler import Assembler
from tests.assembler.module import Container

EXTERNAL = bytes(range(256)) * 20


def module_with_data() -> Assembler:
    module = Assembler("m").function("f", "0_i", "%i0 = const.i32 1\n return [%i0]")
    module.rodata(b"embedded")
    module.rodata(EXTERNAL, external=True)
    return module


@pytest.mark.parametrize("container", ["zip", "plain"])
def test_layout_of_both_containers(container: Container) -> None:
    data = module_with_data().build(container)
    archive = Archive.open(data)
    assert archive.polyglot == (container == "zip")
    assert archive.flatbuffer_offset == (68 if container == "zip" else 4)
    assert bytes(archive.flatbuffer[4:8]) == b"IREE"
    assert archive.rodata_base % 64 == 0
    assert bytes(archive.data[archive.rodata_base :]).count(EXTERNAL) == 1


def test_the_zip_layout_is_a_zip_file() -> None:
    members = zipfile.ZipFile(io.BytesIO(module_with_data().build()))
    assert members.testzip() is None
    assert members.read("rodata_0.bin") == EXTERNAL


def test_every_kind_of_source(tmp_path: Path) -> None:
    data = module_with_data().build()
    path = tmp_path / "m.vmfb"
    path.write_bytes(data)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        sources = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.int8), mapping]
        for source in (*sources, str(path), path, file, io.BytesIO(data)):
            archive = Archive.open(source)  # type: ignore[arg-type]
            assert archive.data == data
            assert archive.data.readonly
            del archive


def test_bytes_are_aliased_and_kept_alive() -> None:
    data = bytearray(module_with_data().build())
    archive = Archive.open(data)
    data[-1] ^= 0xFF
    assert archive.data[-1] == data[-1]
    with pytest.raises(BufferError):
        data.clear()


def test_large_files_are_mapped_and_small_ones_survive_overwriting(tmp_path: Path) -> None:
    small, large = tmp_path / "small.vmfb", tmp_path / "large.vmfb"
    module = module_with_data()
    small.write_bytes(module.build())
    module.rodata(bytes(2 << 20), external=True)
    large.write_bytes(module.build())
    opened = Archive.open(small)
    expected = bytes(opened.data)
    small.write_bytes(b"")
    assert opened.data == expected
    assert np.frombuffer(opened.data, np.uint8).ctypes.data % mmap.PAGESIZE == 0  # as in a mapping
    opened = Archive.open(large)
    assert str(large) in Path("/proc/self/maps").read_text() and opened.data == large.read_bytes()
    with large.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        assert Archive.open(mapping).data == opened.data, "which is memory, though it has `read`"
    del opened
    assert str(large) not in Path("/proc/self/maps").read_text()


def test_missing_file_names_the_path(tmp_path: Path) -> None:
    path = tmp_path / "none.vmfb"
    with pytest.raises(NotFoundError) as caught:
        Archive.open(path)
    assert str(caught.value).count(f"'{path}'") == 2
    assert f"loading bytecode module at '{path}'" in str(caught.value)


def test_a_closed_file(tmp_path: Path) -> None:
    path = tmp_path / "m.vmfb"
    path.write_bytes(module_with_data().build())
    with path.open("rb") as file:
        pass
    with pytest.raises(InvalidArgumentError, match=r"cannot be read: .*closed"):
        Archive.open(file)


@pytest.mark.parametrize("failure", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
def test_a_file_without_room(tmp_path: Path, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.vmfb"
    path.write_bytes(module_with_data().build())

    def fail(*arguments: object) -> None:
        raise failure

    monkeypatch.setattr("jitree.vmfb.archive._read_part", fail)
    with pytest.raises(ResourceExhaustedError, match=f"no memory for the file '{path}'"):
        Archive.open(path)


class Endless(io.RawIOBase):
    """A stream that does not end."""

    def read(self, size: int = -1) -> bytes:
        assert size >= 0
        return bytes(size)


def test_a_stream_that_gives_more_than_it_is_asked_for() -> None:
    class Generous(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            assert size is not None and size > 0
            return bytes(1500)

    with pytest.raises(StatusError), Session(sandbox=True, limits=Limits(load_size=1000)) as session:
        session.load(Generous())


def test_a_stream_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitree.vmfb.archive._STREAM_SIZE", 3 << 20)
    with pytest.raises(ResourceExhaustedError, match=r"more than 3145728 bytes.*pass the path.*'<Endless>'"):
        Archive.open(Endless())  # type: ignore[arg-type]


def test_devices_are_not_read() -> None:
    expected = r"it is a character device.*pass the path.*loading bytecode module at '/dev/zero'"
    with open("/dev/zero", "rb") as file:
        for source in ("/dev/zero", Path("/dev/zero"), file):
            with pytest.raises(InvalidArgumentError, match=expected):
                Archive.open(source)


def test_pipes_that_end(tmp_path: Path) -> None:
    data = module_with_data().build()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        for opened in (str(pipe), "file"):
            writing = pool.submit(pipe.write_bytes, data)
            if opened == "file":
                with pipe.open("rb") as file:
                    assert Archive.open(file).data == data
            else:
                assert Archive.open(opened).data == data
            assert writing.result() == len(data)


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is a directory"):
        Archive.open(tmp_path)


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, weights=np.zeros(4))
    return stream.getvalue()


def zip_of(name: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as members:
        members.writestr(name, "text " * 20)
    return stream.getvalue()


FOREIGN = {
    "empty": (b"", "the file is empty"),
    "elf": (b"\x7fELF\2\1\1" + bytes(200), "ELF"),
    "mlir": (b"module @m {\n  func.func @f() { return }\n}\n", "MLIR text; compile it with iree-compile"),
    "mlir with comment": (b"// RUN: x\nfunc.func @f(%x: tensor<4xf32>) -> tensor<4xf32>\n", "MLIR text"),
    "mlir bytecode": (b"ML\xefR\x0dMLIR20.0" + bytes(50), "MLIR bytecode"),
    "safetensors": (
        (56).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  ' + bytes(4),
        "safetensors",
    ),
    "safetensors, what for": (
        (2).to_bytes(8, "little") + b'{"w":{}}' + bytes(64),
        "a safetensors file; it holds parameters (--parameters=, parameters=[…]), not a program, which "
        "`jitree compile` makes of a model",
    ),
    "onnx": (
        chain([np.ones((4, 4), np.float32)], 2),
        "an ONNX model; `jitree compile model.onnx -o model.vmfb` makes a module of it",
    ),
    "onnx cut off": (chain([np.ones((40, 40), np.float32)], 2)[:90], "an ONNX model"),
    "mlir, what to do": (b"func.func @f() { return }\n", "`jitree compile model.mlir -o model.vmfb`"),
    "torch": (zip_of("net/data.pkl"), "a PyTorch file of weights or of a program; export the model to ONNX"),
    "torch.export": (zip_of("net/archive_format"), "a PyTorch file of weights or of a program"),
    "old torch": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02" + bytes(50),
        "a PyTorch file of weights; export the model to ONNX (torch.onnx.export), and `jitree compile` that",
    ),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "a TensorFlow Lite model; convert it to ONNX (tf2onnx)"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file, as Keras writes; export the model to ONNX"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(64), "GGUF"),
    "parameter archive": (b"IRPA" + bytes(64), "IREE parameter archive"),
    "gzip": (gzip.compress(b"x" * 1000), "gzip"),
    "npz": (npz(), "numpy archive (.npz)"),
    "zip": (zip_of("a.txt"), "ZIP archive that begins with 'a.txt'"),
    "npy": (b"\x93NUMPY\1\0" + bytes(100), "numpy array"),
    "text": ("the quick brown fox, größer\n".encode() * 400, "plain text"),
    "web page": (b"<!DOCTYPE html><html>" + b" " * 40, "web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git LFS pointer"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_recognised(kind: str) -> None:
    content, expected = FOREIGN[kind]
    with pytest.raises(InvalidArgumentError) as caught:
        Archive.open(content, name="model.vmfb")
    assert expected in str(caught.value)
    assert "loading bytecode module at 'model.vmfb'" in str(caught.value)


@pytest.mark.parametrize("container", ["zip", "plain"])
def test_every_truncation_is_refused_or_harmless(container: Container) -> None:
    from jitree.vmfb.module import read_module

    data = module_with_data().build(container)
    whole = read_module(Archive.open(data))
    needed = whole.rodata[1].file_offset + len(EXTERNAL)
    for length in range(0, len(data), 7):
        if length >= needed:
            assert read_module(Archive.open(data[:length])).rodata[1].data == EXTERNAL
            continue
        with pytest.raises(StatusError) as caught:
            read_module(Archive.open(data[:length]))
        assert isinstance(caught.value, InvalidArgumentError)


def test_zip_header_beyond_the_file() -> None:
    data = bytearray(module_with_data().build()[:400])
    data[26:28] = (60000).to_bytes(2, "little")
    with pytest.raises(InvalidArgumentError, match="ZIP header"):
        Archive.open(data)

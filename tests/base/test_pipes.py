"""Pipes as files: read as a whole, and refused where nobody writes into them."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.base import pipes
from jitree.compat.iree_runtime.vm import VmInstance, VmModule
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError
from jitree.hal.enums import MemoryAccess
from jitree.hal.objects import DescriptorFile
from jitree.params.provider import read_archive
from jitree.tools.flags import _flagfile_lines, whole_file
from jitree.tools.inputs import parse_values
from jitree.tools.values import HostTensor, ValueFiles
from jitree.vmfb.archive import Archive
from tests.api.programs import ARITHMETIC


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pipes, "WRITER_SECONDS", 0.02)
    path = tmp_path / "pipe.safetensors"
    os.mkfifo(path)
    for ending in ("npz", "json"):
        (tmp_path / f"{path.name}.{ending}").symlink_to(path)
    return path


READERS: dict[str, Callable[[str], object]] = {
    "a module": Archive.open,
    "a session": lambda path: jitree.load(path, device="local-sync"),
    "a file of flags": whole_file,
    "values": lambda path: ValueFiles().read_bytes("@", path, 4),
    "an archive of arrays": lambda path: ValueFiles().read_arrays("@", f"{path}.npz"),
    "a document": lambda path: parse_values([f"@{path}.json"], ["r"], ValueFiles(), list),
    "parameters": read_archive,
    "a file of a program": lambda path: DescriptorFile.open(path, MemoryAccess.READ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_that_nobody_writes_into(pipe: Path, reader: str) -> None:
    """Opening it waited for ever."""
    with pytest.raises(StatusError, match=r"pipe|is no file"):
        READERS[reader](str(pipe))


def test_what_is_no_file_is_said_once(tmp_path: Path) -> None:
    """It was said to have no file's name, and a folder of flags to be like itself."""
    with pytest.raises(InvalidArgumentError) as caught:
        read_archive(str(tmp_path))
    assert caught.value.message == f"'{tmp_path}' is no file"
    with pytest.raises(NotFoundError) as missing:
        _flagfile_lines(str(tmp_path))
    assert missing.value.message == f"cannot read flag file '{tmp_path}': Is a directory"


def test_a_pipe_is_no_module_of_iree_runtime(pipe: Path) -> None:
    """Opening it waited for ever; there is nothing to map."""
    with pytest.raises(OSError, match="Invalid argument"):
        VmModule.mmap(VmInstance(), pipe)


def test_a_pipe_whose_writer_takes_its_time(pipe: Path) -> None:
    """As a program that a shell starts for ``<(…)``: it has the pipe, and has written nothing yet."""
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(pipe, os.O_WRONLY)
    data = Path(ARITHMETIC).read_bytes()

    def write() -> None:
        with open(writing, "wb") as file:
            file.write(data)

    later = threading.Timer(0.1, write)
    later.start()
    try:
        assert Archive.open(f"/dev/fd/{reading}").data == data
    finally:
        later.join()
        os.close(reading)


def test_values_of_a_pipe_are_read_again_from_its_beginning(pipe: Path) -> None:
    writer = threading.Thread(target=pipe.write_bytes, args=(bytes(range(8)),))
    writer.start()
    with ValueFiles() as files:
        read = [files.read_bytes(mode, str(pipe), 4).tolist() for mode in "@+@"]
    writer.join()
    assert read == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_pipe_of_more_bytes_than_may_be_read(pipe: Path) -> None:
    writer = threading.Thread(target=pipe.write_bytes, args=(bytes(9),))
    writer.start()
    with pytest.raises(InvalidArgumentError, match="has more than 8 bytes"):
        whole_file(str(pipe), 8)
    writer.join()


def test_archives_of_arrays_come_through_pipes(pipe: Path) -> None:
    """It was said that there was no such file."""
    stream = io.BytesIO()
    np.savez(stream, a=np.arange(3, dtype=np.float32))
    writer = threading.Thread(target=pipe.write_bytes, args=(stream.getvalue(),))
    writer.start()
    with ValueFiles() as files:
        [tensor] = files.read_arrays("@", f"{pipe}.npz")
    writer.join()
    assert tensor.values.tolist() == [0, 1, 2]


def test_documents_come_through_pipes(pipe: Path) -> None:
    """It was said that there was no such file."""
    writer = threading.Thread(target=pipe.write_text, args=("[1, 2]",))
    writer.start()
    with ValueFiles() as files:
        [value] = parse_values([f"@{pipe}.json"], ["r"], files, lambda: [("x", "tensor<2xf32>")])
    writer.join()
    assert isinstance(value, HostTensor) and value.values.tolist() == [1, 2]

"""What sessions are told of parameters: paths, arrays, scopes; what is missing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from jitree.params import Access, Mode, ParameterIndex, ParameterProvider, open_providers
from tests.params.archives import address, content, load, write_irpa

W = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(3, np.float32)


class Model:
    def state_dict(self) -> dict[str, Any]:
        return OrderedDict(w=Tensor(W), b=B)


class Tensor:
    """As a tensor library shows one: DLPack, and no exchange of what records gradients."""

    def __init__(self, array: Any, records: bool = True) -> None:
        self.array = array
        self.records = records

    def detach(self) -> Tensor:
        return Tensor(self.array, False)

    def __dlpack__(self, **options: Any) -> Any:
        if self.records:
            raise BufferError("records gradients")
        from jitree.base import dlpack

        return dlpack.export(self.array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def keys(providers: tuple[ParameterProvider, ...]) -> dict[str, list[str]]:
    return {provider.scope: provider.index.keys() for provider in providers}


def test_every_kind_of_source(tmp_path: Path) -> None:
    a = write_irpa(tmp_path / "a.irpa", {"a": W})
    b = write_irpa(tmp_path / "b.irpa", {"b": W})
    index = ParameterIndex()
    index.load(b)
    sources = [f"model={a}", a, {"x": W, "model": {"y": B}, "torch": Model(), "index": index}, f"model={b}"]
    assert keys(open_providers(sources)) == {
        "model": ["a", "y", "b"], "": ["a", "x"], "torch": ["w", "b"], "index": ["b"],
    }  # fmt: skip
    assert keys(open_providers([Model()])) == {"": ["w", "b"]}
    assert keys(open_providers({"w": W})) == {"": ["w"]}
    assert keys(open_providers(str(a))) == {"": ["a"]}
    provider = ParameterProvider("p", index)
    assert open_providers([provider]) == (provider,)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([5], "expected `scope=path`"),
        ([{"w": 5}], "parameter 'w'"),
        ([{"w": [1, 2]}], "expected an array but got list"),
        ([{"w": np.array([{}], object)}], "dtype object"),
        ([{"w": np.array(["1.5", "2"])}], "programs have no elements of dtype <U3; convert the array"),
        ([{"model": {"w": np.array([b"1"])}}], r"no elements of dtype \|S1.*parameter scope 'model'"),
        ([{"w": np.array(["2026-01-01"], "M8[s]")}], r"no elements of dtype datetime64\[s\]"),
        ([{"w": np.zeros(2, [("a", ">f4"), ("b", "f4")])}], r"no elements of dtype \[\('a', '>f4'\)"),
        ([{"w": np.zeros(2, np.longdouble)}], "no elements of dtype float128"),
        ([{"w": np.ma.masked_array(W)}], r"MaskedArray; programs know no masks: pass array\.filled"),
        ([{5: W}], "must be strings, not 5"),
        ([{"model": {5: W}}], "must be strings, not 5"),
    ],
)
def test_sources_that_are_none(source: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        open_providers(source)


def test_one_key_twice() -> None:
    with pytest.raises(AlreadyExistsError, match="parameter 'w' is twice in Python"):
        open_providers([{"w": W}, {"w": W}])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (W, W.tobytes()),
        (W.T, W.T.tobytes()),
        (W[:, ::2], W[:, ::2].tobytes()),
        (W.astype(">f4"), W.tobytes()),
        (np.float32(2), np.float32(2).tobytes()),
        (np.zeros((0, 2)), b""),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 2], ml_dtypes.bfloat16).tobytes()),
        (np.array([1, -2, 3], ml_dtypes.int4), b"\xe1\x03"),
        (Tensor(W), W.tobytes()),
        (Tensor(np.array([1, 2], ml_dtypes.bfloat16)), np.array([1, 2], ml_dtypes.bfloat16).tobytes()),
        (b"abc", b"abc"),
    ],
)
def test_bytes_of_arrays(array: Any, expected: bytes) -> None:
    assert content(open_providers([{"k": array}])[0].get("k")) == expected


def test_contiguous_arrays_are_not_copied() -> None:
    array = W.copy()
    entry = open_providers([{"w": array}])[0].get("w")
    assert address(entry) == array.ctypes.data and entry.writable
    array.flags.writeable = False
    assert not open_providers([{"w": array}])[0].get("w").writable


def test_missing_keys_are_explained(tmp_path: Path) -> None:
    path = write_irpa(tmp_path / "a.irpa", {"layer.0.weight": W, "layer.1.weight": W})
    provider = open_providers([f"model={path}"])[0]
    with pytest.raises(NotFoundError) as failure:
        provider.get("layer.0.weigth")
    for part in ("'layer.0.weigth'", "'model'", "a.irpa", "2 keys", "nearest: 'layer.0.weight'"):
        assert part in str(failure.value)


def test_writing_to_a_file(tmp_path: Path) -> None:
    path = write_irpa(tmp_path / "a.irpa", {"w": W})
    entry = load(path, access=Access.READ_WRITE)["w"]
    entry.contents()[:4] = b"abcd"
    assert content(load(path)["w"]).startswith(b"abcd")
    with pytest.raises(InvalidArgumentError, match="must be mapped"):
        load(path, mode=Mode.PRELOAD, access=Access.READ_WRITE)


def test_a_preloaded_file_that_is_cut_short(tmp_path: Path) -> None:
    """Its mapping would have no memory any more, and touching it end the process."""
    path = write_irpa(tmp_path / "a.irpa", {"w": np.arange(1 << 16)})
    entry = load(path, mode=Mode.PRELOAD)["w"]
    with path.open("r+b") as file:
        file.truncate(100)
    assert content(entry) == np.arange(1 << 16).tobytes()


SPARSE = """
import resource, sys, time
import numpy as np
from jitree import Session
from jitree.params.irpa import plan
from jitree.regs.buffer import VmBuffer
from jitree.modules.io_parameters import IoParametersModule
import struct

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))

with Session("local-sync", tier="plain") as warm:  # what the first session of a process loads
    warm.append_module(IoParametersModule())
before, start = resident(), time.perf_counter()
session = Session("local-sync", tier="plain", parameters=["model=" + sys.argv[1]])
session.append_module(IoParametersModule(session.parameter_providers))
text = VmBuffer.alias
spans = struct.pack("<6Q", 0, 0, 1 << 30, 0, 0, 1 << 30)
loaded, = session.call_direct(
    "io_parameters.load", session.device, -1, None, None, text(b"model"), -1, 0x30, 0x80C03,
    text(struct.pack("<4I", 0, 1, 1, 1)), text(b"ab"), text(spans),
)
seconds, grown = time.perf_counter() - start, resident() - before
data = np.asarray(loaded[1].host_array())
data[:: 1 << 20].sum()
print(seconds, grown, resident() - before)
"""


def test_two_gigabytes_are_ready_at_once(tmp_path: Path) -> None:
    """A sparse file: the system gives zeros for what was never written."""
    from jitree.params import splat_entry
    from jitree.params.irpa import plan, write

    path = tmp_path / "big.irpa"
    write(path, plan([], [splat_entry(key, b"\0", 1 << 30) for key in "ab"]))
    assert path.stat().st_size > 2 << 30 and path.stat().st_blocks < 100
    root = Path(__file__).resolve().parents[2]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, grown, touched = map(float, done.stdout.split())
    assert seconds < 1 and time.perf_counter() - started < 30
    assert grown < 4096, f"{grown} kB of memory before anything was read"
    assert touched > grown + 1024

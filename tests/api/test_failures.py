"""The most frequent failures of calls and arrays: what, where, why and what to do, word for word."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.api.calls import conversion
from jitree.vmfb.module import VERSIONS, releases_of
from tests.api.programs import ARITHMETIC, PROGRAMS
from tests.pages import ROOT

X: Final = np.arange(4, dtype=np.float32)
ROW: Final = np.arange(4, dtype=np.int32)


class Programs:
    """What the rows fail with."""

    def __init__(self) -> None:
        self.session = Session("local-sync", tier="plain")
        self.module = self.session.load(ARITHMETIC)
        self.outputs = self.session.load(PROGRAMS / "outputs.vmfb")
        self.array = self.session.empty((4,))
        self.integers = self.session.to_device(ROW)
        self.donate: Any = jitree.donate


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs()


def donated(p: Programs) -> Any:
    array = p.session.to_device(ROW)
    p.outputs.double(jitree.donate(array))
    return array + 1


def closed(p: Programs) -> Any:
    session = Session("local-sync", tier="plain")
    add = session.load(ARITHMETIC).add
    session.close()
    return add(X, X)


def of_a_later_release() -> bytes:
    module = bytearray(ARITHMETIC.read_bytes())
    struct.pack_into(
        "<I", module, module.index(struct.pack("<I", max(VERSIONS) << 16)), (1 + max(VERSIONS)) << 16
    )
    return bytes(module)


FAILURES: Final[dict[str, tuple[Callable[[Programs], Any], str]]] = {
    "too few arguments": (
        lambda p: p.module.add(X),
        "INVALID_ARGUMENT; expected 2 arguments but passed 1; missing: input1",
    ),
    "an argument that is unknown": (
        lambda p: p.module.add(X, rigth=X),
        "INVALID_ARGUMENT; argument 'rigth' is unknown; there are: input0, input1",
    ),
    "an argument twice": (
        lambda p: p.module.add(X, X, input1=X),
        "INVALID_ARGUMENT; argument 'input1' is given twice",
    ),
    "f64 for f32": (
        lambda p: p.module.add(X, X.astype(np.float64)),
        "INVALID_ARGUMENT; input1 element type mismatch; expected f32 (float32) but have f64 (float64); "
        'f32 does not have every value of f64, so nothing is converted unasked: pass x.astype("float32")'
        " | %input1: tensor<4xf32>",
    ),
    "i32 for f32": (
        lambda p: p.module.add(X, ROW),
        "INVALID_ARGUMENT; input1 element type mismatch; expected f32 (float32) but have i32 (int32); f3"
        '2 does not have every value of i32, so nothing is converted unasked: pass x.astype("float32") |'
        " %input1: tensor<4xf32>",
    ),
    "a device array of i32 for f32": (
        lambda p: p.module.add(X, p.integers),
        "INVALID_ARGUMENT; input1 element type mismatch; expected f32 (float32) but have i32 (int32); f3"
        '2 does not have every value of i32, so nothing is converted unasked: pass x.astype("float32") |'
        " %input1: tensor<4xf32>",
    ),
    "bytes of no type": (
        lambda p: p.module.add(X, np.zeros(4, "V2")),
        "INVALID_ARGUMENT; input1 element type mismatch; expected f32 (float32) but have *16 (void16); s"
        'ay what the bytes are: pass x.view("float32") | %input1: tensor<4xf32>',
    ),
    "another rank": (
        lambda p: p.module.add(X, X[:1, None]),
        "INVALID_ARGUMENT; input1 shape rank mismatch; expected 1 but have 2; expected shape `4`, actual"
        " shape `1x1` | %input1: tensor<4xf32>",
    ),
    "another size": (
        lambda p: p.module.add(X, X[:3]),
        "INVALID_ARGUMENT; input1 shape dimension 0 mismatch; expected 4 but have 3; expected shape `4`,"
        " actual shape `3` | %input1: tensor<4xf32>",
    ),
    "None": (
        lambda p: p.module.add(X, None),
        "INVALID_ARGUMENT; ref is null; input1 needs a tensor<4xf32>, and None is none | %input1: tensor"
        "<4xf32>",
    ),
    "text": (
        lambda p: p.module.add("abc", X),
        "INVALID_ARGUMENT; input0: expected tensor<4xf32> but got 'abc' of type str | %input0: tensor<4x"
        "f32>",
    ),
    "a ragged list": (
        lambda p: p.module.add(X, [[1], [2]]),
        "INVALID_ARGUMENT; input1 shape rank mismatch; expected 1 but have 2; expected shape `4`, actual"
        " shape `2x1` | %input1: tensor<4xf32>",
    ),
    "objects": (
        lambda p: p.module.add(X, np.array([{}] * 4)),
        "INVALID_ARGUMENT; input1: expected tensor<4xf32> but got an array of dtype object and shape (4,"
        ") | %input1: tensor<4xf32>",
    ),
    "a masked array": (
        lambda p: p.module.add(X, np.ma.array(X)),
        "INVALID_ARGUMENT; input1: expected tensor<4xf32> but got a 4xf32 masked array; programs know no"
        " masks: pass array.filled(value), or array.data where no element is masked | %input1: tensor<4x"
        "f32>",
    ),
    "a list that would lose something": (
        lambda p: p.outputs.double([1.5, 2, 3, 4]),
        "INVALID_ARGUMENT; input0: expected tensor<?xi32> but got [1.5, 2, 3, 4] of type list; its eleme"
        "nts cannot be converted without loss | %input0: tensor<?xi32>",
    ),
    "a number out of range": (
        lambda p: p.module.numbers(1 << 40, 1, 1.0, 1.0, True, 1),
        "INVALID_ARGUMENT; input0: expected i32 but got 1099511627776 of type int; it takes -2147483648 "
        "to 2147483647 | %input0: i32",
    ),
    "a fraction for an integer": (
        lambda p: p.module.numbers(1, 1.5, 1.0, 1.0, True, 1),
        "INVALID_ARGUMENT; input1: expected i64 but got 1.5 of type float | %input1: i64",
    ),
    "text for a number": (
        lambda p: p.module.numbers(1, 1, "1", 1.0, True, 1),
        "INVALID_ARGUMENT; input2: expected f32 but got '1' of type str | %input2: f32",
    ),
    "out= of a program without such results": (
        lambda p: p.module.add(X, X, out=p.array),
        "INVALID_ARGUMENT; out: the program puts no result into storage of its caller; compile it with a"
        "n argument that has `iree.abi.output`, or copy its results",
    ),
    "out= of two arrays": (
        lambda p: p.outputs.one_of_two(ROW, out=(p.integers, p.integers)),
        "INVALID_ARGUMENT; out: expected 1 arrays but got 2",
    ),
    "out= of another shape": (
        lambda p: p.outputs.one_of_two(ROW, out=p.session.empty((3,), np.int32)),
        "INVALID_ARGUMENT; input1 shape dimension 0 mismatch; expected 4 but have 3; expected shape `4`,"
        " actual shape `3` | %input1: tensor<4xi32>",
    ),
    "out= of another type": (
        lambda p: p.outputs.one_of_two(ROW, out=p.array),
        "INVALID_ARGUMENT; input1 element type mismatch; expected i32 (int32) but have f32 (float32); th"
        'e result is put there as it is: pass session.empty(shape, "int32") | %input1: tensor<4xi32>',
    ),
    "out= of a list": (
        lambda p: p.outputs.one_of_two(ROW, out=[[1, 2, 3, 4]]),
        "INVALID_ARGUMENT; out: input1: [1, 2, 3, 4] of type list cannot be written in place; it takes d"
        "evice arrays (session.empty), and arrays of numpy and others in host memory, contiguous, writab"
        "le and aligned to 64 bytes (as session.empty(shape, dtype).to_host() is), where the device uses"
        " that",
    ),
    "a donated numpy array": (
        lambda p: p.donate(X),
        "INVALID_ARGUMENT; donate: expected a jitree.Array but got a 4xf32 array",
    ),
    "an array that was donated": (
        lambda p: donated(p),
        "FAILED_PRECONDITION; the array was donated to a call and cannot be used any more",
    ),
    "elements of another type assigned": (
        lambda p: p.array.__setitem__(slice(2), np.zeros(2)),
        "INVALID_ARGUMENT; an array with elements of f32 is assigned a 2xf64 array, which has others: as"
        'sign x.astype("float32")',
    ),
    "elements of another shape assigned": (
        lambda p: p.array.__setitem__(slice(2), [1, 2, 3]),
        "INVALID_ARGUMENT; elements of shape (2,) are assigned a value of shape (3,)",
    ),
    "an element outside assigned": (
        lambda p: p.array.__setitem__(9, 1),
        "OUT_OF_RANGE; assigning elements of a 4xf32 array: index 9 is out of bounds for axis 0 with siz"
        "e 4",
    ),
    "an element outside": (
        lambda p: p.array[9],
        "index 9 is out of bounds for axis 0 with size 4",
    ),
    "no array": (
        lambda p: p.session.to_device({"a": 1}),
        "INVALID_ARGUMENT; to_device: no device array can hold {'a': 1} of type dict",
    ),
    "a size below 0": (
        lambda p: p.session.empty((-1,)),
        "OUT_OF_RANGE; shape `-1xf32`: dimension 0 is negative (-1)",
    ),
    "a type that programs have not": (
        lambda p: p.session.empty((1,), "M8[s]"),
        "INVALID_ARGUMENT; empty: no device array can have dtype 'M8[s]' of type str",
    ),
    "a time that is text": (
        lambda p: p.module.add(X, X, timeout="1"),
        "INVALID_ARGUMENT; timeout: expected a number of seconds but got '1' of type str",
    ),
    "an unknown tier": (
        lambda p: Session("local-sync", tier="fats"),
        "INVALID_ARGUMENT; tier 'fats' is unknown; the tiers are plain, fast, native, auto",
    ),
    "an unknown kind of arithmetic": (
        lambda p: Session("local-sync", arithmetic="strct"),
        "INVALID_ARGUMENT; arithmetic: expected 'fused' or 'strict' but got 'strct' of type str",
    ),
    "no provider of parameters": (
        lambda p: Session("local-sync", tier="plain").load(PROGRAMS / "parameters.vmfb"),
        "NOT_FOUND; no provider of parameters for scope 'model'; there are none at all. Name an archive "
        'for it: --parameters=model=weights.irpa, Session(parameters=["model=weights.irpa"]); while invo'
        "king host function io_parameters.load",
    ),
    "a module twice": (
        lambda p: p.session.load(ARITHMETIC),
        "ALREADY_EXISTS; a module 'arithmetic' is registered already; use another session for the second"
        " one, session.reload to replace the first, or session.link, after which its name means the second",
    ),
    "a library that is not known": (
        lambda p: p.module.add.to("tensorflow"),
        "INVALID_ARGUMENT; to: expected the name of a library but got 'tensorflow' of type str; there ar"
        "e: cupy, jax, numpy, torch",
    ),
    "a closed session": (
        lambda p: closed(p),
        "FAILED_PRECONDITION; the context is closed; `sync func @add(%input0: tensor<4xf32>, %input1: te"
        "nsor<4xf32>) -> (%output0: tensor<4xf32>)`",
    ),
    "another version of bytecode": (
        lambda p: p.session.load(of_a_later_release()),
        "INVALID_ARGUMENT; bytecode version mismatch; runtime supports "
        + ", ".join(f"{version}.0 (IREE {releases_of(version)})" for version in VERSIONS)
        + f"; module has {1 + max(VERSIONS)}.0 (a release after {releases_of(max(VERSIONS)).split()[-1]}: a"
        " later jitree may run it); loading bytecode module at '<bytes>'",
    ),
    "a file that is cut": (
        lambda p: p.session.load(ARITHMETIC.read_bytes()[:5000]),
        "INVALID_ARGUMENT; FlatBuffer length prefix out of bounds (prefix is 12988 but only 4932 availab"
        "le); truncated: the header says 13,056 bytes, the file has 5,000; loading bytecode module at '<b"
        "ytes>'",
    ),
    "a file that is no module": (
        lambda p: p.session.load(b"# jitree\n" * 20),
        "INVALID_ARGUMENT; FlatBuffer length prefix out of bounds (prefix is 1768562723 but only 176 avai"
        "lable): the file is plain text, not a module; loading bytecode module at '<bytes>'",
    ),
    "a device that is not there": (
        lambda p: Session("gpu"),
        "NOT_FOUND; no driver 'gpu' registered; there are: local-sync, local-task, null, cuda; did you m"
        "ean 'cuda'?",
    ),
    "a module that another one imports": (
        lambda p: p.session.load(ROOT / "examples" / "custom_module" / "program.vmfb"),
        "NOT_FOUND; required module 'activation' is not registered (modules before this one: hal, arithm"
        "etic, outputs); a module must be loaded before those that import it; registering module 'program'",
    ),
    "a function that is not there": (
        lambda p: p.module["predict"],
        "NOT_FOUND; no function 'predict' exported by module 'arithmetic'; it exports add, add_named, twi"
        "ce, square, scale, large, sums, consume, nothing, numbers",
    ),
}  # fmt: skip
"""How each is caused, and its text up to the place of the call; behind a bar what the caret points at."""


@pytest.mark.parametrize("name", FAILURES)
def test_failures_say_what_to_do(programs: Programs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_ASTYPE_OF", {})  # another test may have loaded torch
    cause, golden = FAILURES[name]
    with pytest.raises((jitree.StatusError, IndexError)) as failure:
        cause(programs)
    lines = str(failure.value).split("\n")
    pointed = lines[1][lines[2].index("^") : len(lines[2])] if len(lines) == 3 else ""
    assert f"{lines[0].partition('; invoking function')[0]} | {pointed}".removesuffix(" | ") == golden


def test_other_libraries_have_other_names(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    with pytest.raises(
        jitree.StatusError, match=r'x\.astype\("float32"\) \(of torch x\.to\(torch\.float32\)\)'
    ):
        programs.module.add(X, X.astype(np.float64))

"""``jitree dump`` against the reference tool's output and its own contract."""

from __future__ import annotations

import ast
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jitree.errors import InvalidArgumentError, NotFoundError, StatusError
from jitree.tools import dump
from tests.assembler import Assembler
from tests.sizes import ROOT
from tests.tools.command import jitree

DATA = Path(__file__).parents[1] / "data" / "dump"
MODULE = str(DATA / "instructions.vmfb")

Dump = Callable[..., str]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Dump:
    def run(*arguments: str) -> str:
        assert dump.main(arguments) == 0
        return capsys.readouterr().out

    return run


def write(path: Path, module: Assembler) -> str:
    path.write_bytes(module.build())
    return str(path)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--output=metadata"], "instructions.metadata.txt"),
        (["--output=flatbuffer-json"], "instructions.json"),
        (["--output=flatbuffer-json", "--pretty"], "instructions.pretty.json"),
        (["--output=disassembly", "--bytecode_offsets"], "instructions.disassembly.txt"),
    ],
)
def test_text_is_the_expected_one(output: Dump, flags: list[str], expected: str) -> None:
    assert output(*flags, MODULE).rstrip() == (DATA / expected).read_text().rstrip()


def test_all_is_what_the_reference_tool_prints(output: Dump) -> None:
    """With a debug database that has one map under a wrong number, and quotes in the texts of failures."""
    program = str(DATA.parent / "programs" / "torch_style.vmfb")
    assert output(program) == output("--output=all", f"--module={program}")
    assert output(program) == (DATA / "torch_style.txt").read_text()


def test_metadata_without_a_debug_database_end_in_one_empty_line(output: Dump) -> None:
    text = output("--output=metadata", str(DATA.parent / "programs" / "parameters.vmfb"))
    assert "Debug Information" not in text
    assert text.endswith("\n\n") and not text.endswith("\n\n\n")


def test_all_of_one_function_has_the_metadata_too(output: Dump) -> None:
    both = [output(f"--output={kind}", "--function=misc", MODULE) for kind in ("metadata", "disassembly")]
    assert output("--function=misc", MODULE) == "\n".join(both)


def test_json_ends_as_that_of_the_reference_tool(output: Dump) -> None:
    assert output("--output=flatbuffer-json", MODULE).endswith("}")
    assert output("--output=flatbuffer-json", "--pretty", MODULE).endswith("}\n")


def test_the_pretty_json_says_the_same(output: Dump) -> None:
    assert json.loads(output("--output=flatbuffer-json", MODULE)) == json.loads(
        output("--output=flatbuffer-json", "--pretty", MODULE)
    )


def test_the_binary_is_the_flatbuffer(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert dump.main(["--output=flatbuffer-binary", MODULE]) == 0
    content = Path(MODULE).read_bytes()
    length = int.from_bytes(content[64:68], "little")
    assert capfdbinary.readouterr().out == content[68 : 68 + length]


@pytest.mark.parametrize("name", ["misc", "2"])
def test_one_function_by_name_or_ordinal(output: Dump, name: str) -> None:
    text = output("--output=disassembly", f"--function={name}", MODULE)
    assert text.startswith("vm.module @m version 0\nvm.type f32\n")
    assert [line for line in text.splitlines() if line.startswith("vm.func")] == [
        "vm.func @misc(%i0: i32, %i2:3: i64, %i4:5: i64, %r0: !vm.ref<?>, %r1: !vm.ref<?>) -> "
        "(i32, i64, i32, !vm.ref<?>) {"
    ]


def test_an_unknown_function_is_an_error() -> None:
    with pytest.raises(NotFoundError, match=r"no function `nothing`.*__init, lists, misc"):
        dump.main(["--output=disassembly", "--function=nothing", MODULE])


def test_an_unknown_output_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="'xml'"):
        dump.main(["--output=xml", MODULE])


def test_without_a_file_the_syntax_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert dump.main([]) == 1
    captured = capsys.readouterr()
    assert (
        captured.out == ""
        and captured.err.startswith("Syntax: jitree dump")
        and captured.err.count("\n") == 1
    )


def test_help_is_a_flag_file(output: Dump, tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    flags.write_text(output("--help"))
    assert output(f"--flagfile={flags}", MODULE) == output(MODULE)


def test_standard_input(output: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(Path(MODULE).read_bytes())

    monkeypatch.setattr("sys.stdin", Input)
    assert output("--output=metadata", "-") == (DATA / "instructions.metadata.txt").read_text()


def test_damaged_code_shows_as_far_as_it_goes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    module = (
        Assembler("m").function("bad", "0", "%i0 = const.i32 7\n.bytes FF").function("good", "0", "return")
    )
    with pytest.raises(StatusError, match=r"unknown opcode 0xFF.*function 'bad'"):
        dump.main(["--output=disassembly", write(tmp_path / "m.vmfb", module)])
    text = capsys.readouterr().out
    assert (
        "  %i0 = vm.const.i32 7  // 0x00000007\n  // damaged: INVALID_ARGUMENT; unknown opcode 0xFF" in text
    )
    assert "vm.export @good\nvm.func @good() -> () {\n^bb0:\n  vm.return\n}" in text


@pytest.mark.parametrize("bytecode", [15, 16, 17])
def test_every_bytecode_version(output: Dump, tmp_path: Path, bytecode: int) -> None:
    module = Assembler("m", bytecode).function("f", "0iIi_i", "%i4 = add.i32 %i0, %i4\nreturn [%i4]")
    text = output(write(tmp_path / "m.vmfb", module))
    assert "  %i4 = vm.add.i32 %i0, %i4" in text
    assert "vm.func @f(%i0: i32, %i2:3: i64, %i4: i32) -> (i32) {" in text


def test_arguments_of_old_compilers_are_where_their_code_has_them(output: Dump, tmp_path: Path) -> None:
    module = Assembler("m", 15).function("f", "0iIi_i", "return [%i1]")
    text = output("--output=disassembly", write(tmp_path / "m.vmfb", module))
    assert "vm.func @f(%i0: i32, %i2:3: i64, %i1: i32) -> (i32) {" in text


DECLARATION = (
    "sync func @predict(%image: tensor<?x8xf32> {iree.abi.output = 0 : index}, %count: i32, "
    '%tag: !hal.buffer_view {text = "a, b"}) -> (%output0: tensor<10xbf16>, %output1: f64)'
)


def summary_module() -> Assembler:
    module = Assembler("classifier", 15).dependency("hal", 5).dependency("extra", 1, optional=True)
    module.import_function("io_parameters.load", "0rIrrrIiirrr_r")
    module.import_function("hal.executable.create", "0rrrr_r")
    module.rodata(b"embedded-elf-x86_64")
    module.rodata(b"\7ELF" * 2000, external=True)
    module.rodata(b"model")
    module.rodata(b"\0\0\0\0\1\0\0\0\1\0\0\0\4\0\0\0")
    module.rodata(b"wbias")
    module.rodata(b"".join(n.to_bytes(8, "little") for n in (0, 0, 48, 64, 48, 12)))
    module.function("predict", "0rir_rF", "return [%r0, %i0]", attrs={"iree.abi.declaration": DECLARATION})
    module.function("class", "0Ifr_v", "return").function("odd", "0i_I", "return [%i0]", value_count=2)
    return module.function(
        "__init",
        "0v_v",
        "%r0 = const.ref.rodata 2\n%r1 = const.ref.rodata 3\n"
        "%r2 = const.ref.rodata 4\n%r3 = const.ref.rodata 5\n"
        "[%r4] = call @io_parameters.load [%r9, %i0, %r8, %r8, %r0, %i0, %i2, %i2, %R1, %R2, %R3]\nreturn",
    )


def test_summary(output: Dump, tmp_path: Path) -> None:
    text = output("--output=summary", write(tmp_path / "m.vmfb", summary_module()))
    assert "Bytecode:   15.0 (IREE 20240129.785 to 3.9.0)" in text
    assert "HAL ABI:    0.5a to 0.5b\nCompiler:   IREE 20240828.999 to 3.3.0\n" in text
    assert "Needs:      hal >= 5\n" in text
    assert "Needs:      extra >= 1, optional" in text
    assert "Targets:    embedded-elf-x86_64\n" in text
    assert "Parameters: scope 'model': w (48 bytes), bias (76 bytes)" in text


def test_a_signature_of_no_release_is_named(output: Dump, tmp_path: Path) -> None:
    module = summary_module().import_function("hal.buffer.length", "0ri_I")
    text = output("--output=summary", write(tmp_path / "m.vmfb", module))
    assert "Compiler:   none of IREE 20240129.785 to 3.13.0\nUnknown:    hal.buffer.length (0ri_I)\n" in text


def test_the_stub_is_python(output: Dump, tmp_path: Path) -> None:
    text = output("--output=summary", write(tmp_path / "m.vmfb", summary_module()))
    stub = text.partition("# Python stub\n")[2]
    functions = {
        node.name: ast.unparse(node) for node in ast.parse(stub).body if isinstance(node, ast.FunctionDef)
    }
    assert functions == {
        "predict": "def predict(image: numpy.typing.NDArray[numpy.float32], count: int, tag: object) -> "
        "tuple[numpy.typing.NDArray[ml_dtypes.bfloat16], float]:\n    ...",
        "_class": "def _class(input0: int, input1: float, input2: object) -> None:\n    ...",
        "odd": "def odd(input0: int) -> int:\n    ...",
    }
    assert f"# {DECLARATION}\n" in stub


def test_verify_lists_all_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dump.main(["--verify", MODULE]) == 0
    assert capsys.readouterr().out == f"{MODULE}: nothing is wrong\n"
    module = Assembler("m").function("f", "0v", "%i9 = const.i32.zero\nreturn", value_count=1)
    module.function("g", "0v", "return")
    path = write(tmp_path / "m.vmfb", module.function("h", "0v", ".bytes 79 FF", block_count=1))
    assert dump.main(["--verify", path]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "value register 9" in first and "function 'f'" in first
    assert "unknown opcode" in second and "function 'h'" in second
    assert "the rest of the function is not looked at" in second and "the rest" not in first


def test_verify_goes_on_after_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the instruction, in the next one, in the next block."""
    text = "%i9 = add.i32 %i8, %i0\n%i7 = const.i32.zero\nbr ^b\n^b:\n%i6 = const.i32.zero\nreturn"
    path = write(tmp_path / "m.vmfb", Assembler("m").function("f", "0v", text, value_count=1))
    assert dump.main(["--verify", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = [re.search(r"value register (\d)", line) for line in lines]
    assert sorted(match.group(1) for match in found if match) == ["6", "7", "8", "9"]
    assert len(lines) == 4 and not any("the rest" in line for line in lines)


@pytest.mark.parametrize("table", ["mod", "i64", "x.y"])
def test_verify_looks_at_functions_though_a_table_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    """Of an import that cannot be read nothing is known, so its calls are not faults."""
    module = Assembler("mod").import_function("x.y", "0i_v")
    module.type("i64")
    module.function("f", "0v", "call @x.y [%i0]\n%i9 = const.i32.zero\nreturn", value_count=1)
    data = bytearray(module.build())
    data[data.index(table.encode() + b"\0") + len(table)] = 1
    (tmp_path / "m.vmfb").write_bytes(data)
    assert dump.main(["--verify", str(tmp_path / "m.vmfb")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "not zero terminated" in lines[0] and "value register 9" in lines[1]


def test_verify_lists_damaged_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(Path(MODULE).read_bytes())
    for text in (b"f32", b"i64"):  # names of types lose their zero
        place = data.index(text + b"\0")
        data[place + len(text)] = 1
    (tmp_path / "m.vmfb").write_bytes(data)
    assert dump.main(["--verify", str(tmp_path / "m.vmfb")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("string not zero terminated" in line and "type.full_name" in line for line in lines)


@pytest.mark.parametrize("kept", [12000, 6300])
def test_a_cut_file_shows_its_tables_and_then_what_is_missing(kept: int, tmp_path: Path) -> None:
    cut = tmp_path / "cut.vmfb"
    cut.write_bytes((ROOT / "examples" / "digits" / "digits.vmvx.vmfb").read_bytes()[:kept])
    outcome = jitree("dump", str(cut))
    assert outcome.code == 1 and "vm.call" in outcome.stdout
    assert f"truncated: the header says 21,077 bytes, the file has {kept:,}" in outcome.stderr
    cut.write_bytes(cut.read_bytes()[:5000])
    outcome = jitree("dump", str(cut))
    assert outcome.code == 1 and outcome.stdout == "" and "truncated: the header says 6,208" in outcome.stderr


def test_locations_of_libraries_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Those for others are named, and are no failure."""
    module = ROOT / "examples" / "digits" / "digits.llvm-cpu.vmfb"
    assert dump.main(["--output=locations", str(module)]) == 0
    text = capsys.readouterr().out
    assert "where it can be loaded" in text and "classify_dispatch_5_vecmat_10x64_f32: <stdin>:8" in text

"""The tables of a module: what is read, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from jitree.errors import InvalidArgumentError, StatusCode, StatusError, UnimplementedError
from jitree.vmfb.archive import Archive
from jitree.vmfb.debug import DebugDatabase
from jitree.vmfb.flatbuffer import FlatBuffer
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import Attr, Dependency, Export, Import, ModuleTables
from tests.assembler import Assembler
from tests.assembler.container import TableBuilder, wrap_plain
from tests.assembler.module import Container

RETURN = "return"


def read(data: bytes) -> ModuleTables:
    return read_module(Archive.open(data))


def sample(bytecode: int = 17) -> Assembler:
    module = Assembler("sample", bytecode, version=3, globals_size=24, ref_global_count=2)
    module.attr("author", "someone")
    module.dependency("hal", 6).dependency("extra", 1, optional=True)
    module.import_function("hal.fence.await", "0iC rD_i".replace(" ", ""))
    module.import_function("extra.thing", None, optional=True)
    module.rodata(b"embedded")
    module.rodata(b"external" * 600, external=True)
    module.type("!vm.list<i8>")
    module.function("f", "0rI_i", "%i0 = const.i32 1\nreturn [%i0]", attrs={"iree.abi.declaration": "f()"})
    module.function("hidden", "0v_v", f"%i0:1 = const.i64 2\n{RETURN}", exported=False, ref_count=-1)
    return module.export("alias", "f")


@pytest.mark.parametrize("bytecode", [15, 16, 17])
@pytest.mark.parametrize("container", ["zip", "plain"])
def test_everything_written_is_read(bytecode: int, container: Container) -> None:
    module = read(sample(bytecode).build(container))
    assert (module.name, module.version, module.bytecode_version) == ("sample", 3, (bytecode, 0))
    assert module.attrs == (Attr("author", "someone"),)
    assert module.types == ("!vm.list<i8>",)
    assert module.dependencies == (Dependency("hal", 6, True), Dependency("extra", 1, False))
    assert module.imports == (
        Import("hal.fence.await", "0iCrD_i", {}, False),
        Import("extra.thing", None, {}, True),
    )
    assert module.exports == (Export("f", 0), Export("alias", 0))
    assert (module.globals_size, module.ref_global_count) == (24, 2)
    first, second = module.functions
    assert (first.cconv, first.attrs) == ("0rI_i", {"iree.abi.declaration": "f()"})
    assert (first.offset, first.block_count, first.value_count, first.ref_count) == (0, 1, 2, 1)
    assert (second.offset % 8, second.ref_count) == (0, -1)
    assert module.body(first)[0] == 0x79
    assert len(module.body(second)) == second.length
    assert [(bytes(row.data[:8]), row.external) for row in module.rodata] == [
        (b"embedded", False),
        (b"external", True),
    ]
    for segment in module.rodata:
        end = segment.file_offset + len(segment.data)
        assert module.archive.data[segment.file_offset : end] == segment.data


def test_rodata_outlives_the_module() -> None:
    segment = read(sample().build()).rodata[1].data
    assert bytes(segment) == b"external" * 600
    assert segment.readonly


def test_names_for_messages() -> None:
    module = read(sample().build())
    assert [module.function_name(0), module.function_name(1)] == ["f", "@1"]
    assert module.export("alias") == Export("alias", 0)
    assert module.export("hidden") is None
    labelled = Assembler("m", source="a.mlir").function("inner", "0", RETURN, exported=False).build()
    assert read(labelled).function_name(0) == "inner"


def test_locations() -> None:
    text = "\n%i0 = const.i32 1\n%i1 = const.i32 2\n\nreturn"
    module = read(Assembler("m", source="a.mlir").function("f", "0", text).function("g", "0", RETURN).build())
    assert module.debug is not None
    located = [module.debug.locate(0, offset) for offset in range(module.functions[0].length)]
    assert located[0] == []  # the block marker in front of the first instruction
    assert located[1] == ["a.mlir:2:1"]
    assert located[-1] == ["a.mlir:5:1"]
    assert {tuple(lines) for lines in located} == {
        (), ("a.mlir:2:1",), ("a.mlir:3:1",), ("a.mlir:5:1",)
    }  # fmt: skip
    assert module.debug.locate(1, 1) == ["a.mlir:1:1"]
    assert module.debug.location_count == 4


def test_lines_that_call_others_come_last() -> None:
    """Each operation of an exported model is at its own line, called from the line of the export."""
    builder = TableBuilder()
    export, first, second = (
        builder.table({0: ("ref", builder.text(file)), 1: ("i32", line), 2: ("i32", 1)})
        for file, line in (("export.py", 40), ("model.py", 11), ("model.py", 12))
    )
    calls = [builder.table({0: ("i32", callee), 1: ("i32", 0)}) for callee in (1, 2)]
    parts = builder.structs(struct.pack("<3i", 0, 4, 3), 4)
    fused, name = builder.table({1: ("ref", parts)}), builder.text("sum")
    named = builder.table({0: ("ref", name), 1: ("i32", 4)})
    entries = b"".join(struct.pack("<ii", 8 * row, row) for row in (0, 3, 4, 5, 6))
    function = builder.table({0: ("ref", builder.text("f")), 1: ("ref", builder.structs(entries, 8))})
    rows = builder.offsets([export, first, second, *calls, fused, named])
    kinds = builder.byte_vector(bytes([2, 2, 2, 1, 1, 3, 4]))
    root = builder.table({0: ("ref", kinds), 1: ("ref", rows), 2: ("ref", builder.offsets([function]))})
    data = builder.finish(root, b"IREE")[4:]
    debug = DebugDatabase(FlatBuffer(memoryview(data)).root(b"IREE"), 1, [("f", 0)])
    outer, lines = "export.py:40:1", ["model.py:11:1", "model.py:12:1"]
    assert debug.places(0) == [*lines, "sum", outer]
    assert [debug.locate(0, 8 * row) for row in (0, 3, 4, 5, 6)] == [
        [outer], [lines[0], outer], [lines[1], outer], [lines[1], lines[0], outer], ["sum", lines[1], outer]
    ]  # fmt: skip


@pytest.mark.parametrize("version", [0, 14 << 16, 18 << 16, 17 << 16 | 1])
def test_other_bytecode_versions(version: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(sample().build(bytecode_version=version))
    text = str(caught.value)
    assert f"module has {version >> 16}.{version & 0xFFFF}" in text
    assert "17.0 (IREE 3.11.0 to 3.13.0)" in text
    assert ("before 20240129.785" in text) == (version < 15 << 16)


def named(name: str) -> Callable[[], bytes]:
    return lambda: Assembler(name).build()


def with_function(**overrides: int) -> Callable[[], bytes]:
    return lambda: Assembler("m").function("f", "0", RETURN, exported=True, attrs=None, **overrides).build()


def with_import(name: str) -> Callable[[], bytes]:
    return lambda: Assembler("m").import_function(name, "0").build()


def with_dependency(name: str) -> Callable[[], bytes]:
    return lambda: Assembler("m").dependency(name).build()


def with_type(name: str) -> Callable[[], bytes]:
    def build() -> bytes:
        module = Assembler("m")
        module.type(name)
        return module.build()

    return build


def with_root(**fields: object) -> Callable[[], bytes]:
    """A root table with the given slots beside a valid name and version."""

    def build() -> bytes:
        builder = TableBuilder()
        slots: dict[int, tuple[str, object]] = {0: ("ref", builder.text("m")), 13: ("u32", 17 << 16)}
        for name, make in fields.items():
            slots[int(name.removeprefix("slot_"))] = ("ref", make(builder))  # type: ignore[operator]
        return wrap_plain(builder.finish(builder.table(slots), b"IREE"), [])

    return build


def export_of(ordinal: int) -> Callable[[TableBuilder], int]:
    return lambda builder: builder.tables([{0: ("ref", builder.text("f")), 1: ("i32", ordinal)}])


REFUSED = {
    "unknown requirement": lambda: Assembler("m").build(requirements=0x80),
    "yield in bytecode 15": lambda: Assembler("m", 15).build(requirements=4),
    "empty module name": named(""),
    "empty type name": with_type(""),
    "type without name": with_root(slot_4=lambda builder: builder.tables([{}])),
    "empty dependency name": with_dependency(""),
    "empty import name": with_import(""),
    "block count 0": with_function(block_count=0),
    "block count -1": with_function(block_count=-1),
    "length 0": with_function(length=0),
    "length -1": with_function(length=-1),
    "length beyond": with_function(length=1 << 30),
    "offset -1": with_function(offset=-1),
    "offset beyond": with_function(offset=1 << 30),
    "offset wraps": with_function(offset=0x7FFFFFFF, length=0x7FFFFFFF),
    "too many refs": with_function(ref_count=0x4000),
    "export without functions": with_root(slot_7=export_of(0)),
    "negative export": with_root(slot_7=export_of(-1)),
    "export without name": with_root(slot_7=lambda builder: builder.tables([{1: ("i32", 0)}])),
    "signature without descriptor": with_root(slot_8=lambda builder: builder.tables([{}])),
    "descriptor without signature": with_root(slot_12=lambda builder: builder.structs(bytes(20), 20)),
    "negative globals": with_root(slot_11=lambda builder: builder.table({0: ("i32", -1)})),
    "negative ref globals": with_root(slot_11=lambda builder: builder.table({1: ("i32", -1)})),
    "external rodata beyond": with_root(
        slot_9=lambda builder: builder.tables([{3: ("u64", 0), 4: ("u64", 1 << 20)}])
    ),
    "external rodata wraps": with_root(
        slot_9=lambda builder: builder.tables([{3: ("u64", (1 << 64) - 64), 4: ("u64", 64)}])
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    with pytest.raises(StatusError) as caught:
        read(REFUSED[case]())
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_tolerated() -> None:
    module = read(with_root()())
    assert [*module.exports, *module.functions, *module.rodata, *module.types] == []
    flagged = with_root(
        slot_6=lambda builder: builder.tables([{0: ("ref", builder.text("a.b")), 2: ("u32", 0x55)}])
    )
    assert read(flagged()).imports == (Import("a.b", None, {}, False),)
    with_function(reserved=-5)()


def test_compressed_data() -> None:
    def segment(builder: TableBuilder) -> int:
        return builder.tables([{0: ("u32", 1), 2: ("ref", builder.byte_vector(b"x"))}])

    with pytest.raises(UnimplementedError, match="compressed"):
        read(with_root(slot_9=segment)())


def test_shared_bodies_cannot_be_used_to_exhaust_the_loader() -> None:
    nothing = ".bytes " + "79" * 60000
    shared = Assembler("m").function("f0", "0", nothing, block_count=1)
    for number in range(1, 60):
        shared.function(f"f{number}", "0", RETURN, offset=0, length=60000)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        read(shared.build())


def test_shared_attributes_cannot_be_used_to_exhaust_the_loader() -> None:
    builder = TableBuilder()
    key = builder.text("k")
    attrs = builder.tables([{0: ("ref", key)}] * 1000)
    signatures = builder.tables([{1: ("ref", attrs)}] * 1000)
    descriptors = builder.structs(struct.pack("<iiIhhhh", 0, 8, 0, 0, 1, 0, 0) * 1000, 20)
    root = builder.table(
        {
            0: ("ref", builder.text("m")),
            8: ("ref", signatures),
            12: ("ref", descriptors),
            13: ("u32", 17 << 16),
            14: ("ref", builder.byte_vector(bytes(8))),
        }
    )
    with pytest.raises(InvalidArgumentError, match="overlap"):
        read(wrap_plain(builder.finish(root, b"IREE"), []))


def test_rows_are_made_when_they_are_asked_for() -> None:
    module = read(sample().build())
    assert module.functions[-1] is module.functions[len(module.functions) - 1]
    assert module.functions[:1] == (module.functions[0],)
    assert [row.length for row in module.functions] == module.functions.columns["length"].tolist()
    assert [row.cconv for row in module.functions] == module.functions.conventions
    assert [row.file_offset for row in module.rodata] == module.rodata.offsets.tolist()
    assert [len(row.data) for row in module.rodata] == module.rodata.lengths.tolist()
    with pytest.raises(IndexError):
        _ = module.rodata[len(module.rodata)]

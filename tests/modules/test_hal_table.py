"""The import table against what release 3.13.0 declares, and the checks that are generated from it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitree import Session, modules
from jitree.errors import InternalError, InvalidArgumentError, NotFoundError
from jitree.hal.buffer import BufferView
from jitree.hal.executable import ExecutableParameters
from jitree.hal.objects import Channel
from jitree.modules.hal.module import HalModule
from jitree.modules.hal.references import HAL_TYPES, checked
from jitree.modules.import_rows import ImportRow, all_rows, parse_parameters, rows
from jitree.regs.buffer import VmBuffer
from jitree.vmfb.cconv import Span, parse
from tests.assembler import Assembler
from tests.base.rows import each_row
from tests.modules.helpers import Hal

DECLARED = Path(__file__).parent.parent / "data" / "hal_imports.txt"
ROWS = [row for row in rows("hal") if not row.last]
DECLARED_ROWS = [
    tuple(line.split("\t")) for line in DECLARED.read_text().split("\n") if line and not line.startswith("#")
]


def test_the_table_has_every_import_of_the_release() -> None:
    ours = {(row.name, row.cconv): parse_parameters(row.parameters) for row in ROWS}
    assert len(ours) == len(ROWS) >= 60
    assert ours == {(name, cconv): parse_parameters(text) for name, cconv, text in DECLARED_ROWS}


def test_a_module_that_imports_all_of_them_links() -> None:
    module = Assembler("everything").dependency("hal", HalModule.version)
    for name, cconv, _ in DECLARED_ROWS:
        module.import_function(f"hal.{name}", cconv)
    for name in HAL_TYPES:
        module.type(f"!{name}")
    module.function("f", "0v_v", "return")
    with Session("null", tier="plain") as session:
        assert session.load(module.build()).names == ("f",)


def test_a_function_of_a_module_that_another_thread_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is waited for: two programs may be loaded at once."""
    (tmp_path / "slowly.py").write_text(
        "import time\ntime.sleep(0.5)\ndef first(state): return ANSWER\nANSWER = 42\n"
    )
    monkeypatch.setattr(modules, "__path__", [*modules.__path__, str(tmp_path)])
    row = ImportRow("hal", "first", "0v_i", "", "", "", "slowly.first")
    found = list[int]()

    def find() -> None:
        found.append(row.implementation()(None))

    threads = [threading.Thread(target=find) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    monkeypatch.delitem(sys.modules, f"{modules.__name__}.slowly")
    assert found == [42, 42]


def test_versions_names_and_conventions_that_do_not_exist() -> None:
    with Session("null", tier="plain") as session:
        newer = Assembler("newer").dependency("hal", HalModule.version + 1).function("f", "0v_v", "return")
        with pytest.raises(NotFoundError, match="hal"):
            session.load(newer.build())
        missing = Assembler("missing").import_function("hal.buffer.frobnicate", "0r_v")
        with pytest.raises(NotFoundError, match=r"hal\.buffer\.frobnicate"):
            session.load(missing.function("f", "0v_v", "return").build())
        other = Assembler("other").import_function("hal.buffer.length", "0r_i")
        with pytest.raises(InternalError, match=r"hal\.buffer\.length"):
            session.load(other.function("f", "0v_v", "return").build())
        assert session.modules == {}


class FakeChannel(Channel):
    @property
    def rank(self) -> int:
        return 1

    @property
    def count(self) -> int:
        return 2

    def split(self, color: int, key: int, flags: int = 0) -> Channel:
        return self


@pytest.fixture(scope="module")
def objects() -> Iterator[dict[str, object]]:
    """An object of each reference type."""
    hal = Hal("null")
    device, buffer = hal.device, hal.buffer(bytes(64))
    executable = device.create_executable_cache().prepare_executable(
        ExecutableParameters("anything", memoryview(b""))
    )
    yield {
        "vm.buffer": VmBuffer(8),
        "hal.allocator": hal.allocator,
        "hal.buffer": buffer,
        "hal.buffer_view": BufferView(buffer, (16,), 0x21000020, 1),
        "hal.channel": FakeChannel(),
        "hal.command_buffer": hal.commands(),
        "hal.device": device,
        "hal.executable": executable,
        "hal.fence": hal.fence(),
        "hal.file": device.import_file(-1, 1, bytes(64)),
    }
    hal.session.close()


def reference_cases() -> Iterator[Any]:
    """(row, path of the parameter, name, type) of every reference parameter."""
    for row in ROWS:
        for index, parameter in enumerate(parse_parameters(row.parameters)):
            fields = parameter if isinstance(parameter, list) else [parameter]
            for position, (name, kind) in enumerate(fields):
                if kind is not None:
                    yield pytest.param(row, index, position, name, kind, id=f"{row.name}-{name}")


def arguments_of(row: ImportRow, objects: dict[str, object]) -> list[Any]:
    def value(parameter: tuple[str, str | None]) -> object:
        return 0 if parameter[1] is None else objects[parameter[1].removesuffix("?")]

    arguments: list[Any] = []
    for item, parameter in zip(parse(row.cconv).arguments, parse_parameters(row.parameters), strict=True):
        if not isinstance(parameter, list):
            arguments.append(value(parameter))
        elif isinstance(item, Span) and len(item.characters) == 1:
            arguments.append([value(parameter[0])])
        else:
            arguments.append([tuple(map(value, parameter))])
    return arguments


@pytest.mark.parametrize(("row", "index", "position", "name", "kind"), list(reference_cases()))
def test_references_are_checked(
    row: ImportRow,
    index: int,
    position: int,
    name: str,
    kind: str,
    objects: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(ImportRow, "implementation", lambda _: lambda *arguments: calls.append(arguments))
    function = checked(row)

    def call(value: object) -> None:
        arguments = arguments_of(row, objects)
        if not isinstance(arguments[index], list):
            arguments[index] = value
        elif isinstance(arguments[index][0], tuple):
            row_of_span = list(arguments[index][0])
            row_of_span[position] = value
            arguments[index] = [tuple(row_of_span)]
        else:
            arguments[index] = [value]
        function(None, *arguments)

    call(objects[kind.removesuffix("?")])
    assert len(calls) == 1
    wrong = objects["hal.fence" if not kind.startswith("hal.fence") else "hal.buffer"]
    with pytest.raises(InvalidArgumentError, match=f"ref type mismatch; hal.{row.name} .* as {name} "):
        call(wrong)
    if kind.endswith("?"):
        call(None)
        assert len(calls) == 2
    else:
        with pytest.raises(InvalidArgumentError, match=f"ref is null; hal.{row.name} .* as {name}$"):
            call(None)


def test_parameters_are_those_of_the_convention() -> None:
    def check(row: ImportRow) -> None:
        stated = [
            [character == "r" for character in item.characters] if isinstance(item, Span) else item == "r"
            for item in parse(row.cconv).arguments
        ]
        declared = [
            [kind is not None for _, kind in item] if isinstance(item, list) else item[1] is not None
            for item in parse_parameters(row.parameters)
        ]
        assert declared == stated

    each_row([row for row in all_rows() if row.function], check)


def test_all_exports_are_bound_once() -> None:
    exports = list(HalModule([]).exports())
    assert [(export.name, export.cconv) for export in exports] == [row[1:3] for row in rows("hal")]


def test_all_signatures_of_a_name_have_one_function_in_machine_code() -> None:
    """A list of command buffers is what no newer signature has."""
    found: dict[str, set[str]] = {}
    for row in rows("hal"):
        if row.fast_path:
            found.setdefault(row.name.replace("dispatch2", "dispatch"), set()).add(row.fast_path.split()[0])
    several = {name for name, functions in found.items() if len(functions) > 1}
    assert len(found) > 30 and several == {"device.queue.execute"}

"""Sessions: loading, calling, state, several modules and devices, errors, environment."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import ContextFlags, HostExport, HostModule, Instance, Session
from jitree.codegen import image
from jitree.dispatch import context
from jitree.dispatch.engine import Engine
from jitree.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusError,
    UnavailableError,
)
from jitree.hal.driver import DriverRegistry
from jitree.vmfb.decode import BytecodeModule
from tests.api.programs import ARITHMETIC, ECHO, LIBRARY, PROGRAM, STATE
from tests.assembler import Assembler

X = np.arange(4, dtype=np.float32)


# -- loading and calling -----------------------------------------------------------------------------


def test_every_kind_of_source(plain_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    content = ARITHMETIC.read_bytes()
    with ARITHMETIC.open("rb") as file:
        sources: list[Any] = [
            str(ARITHMETIC), ARITHMETIC, content, bytearray(content), memoryview(content), file,
            io.BytesIO(content), "-", BytecodeModule.load(ARITHMETIC),
        ]  # fmt: skip
        for source in sources:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
            with Session(plain_session.device, tier="plain") as session:
                assert np.array_equal(session.load(source).add(X, X), X + X)


def test_ways_to_call(session: Session) -> None:
    module = session.load(ARITHMETIC)
    prepared = session.prepare("arithmetic.add")
    ways: tuple[Callable[..., Any], ...] = (
        module.add, module["add"], module["arithmetic.add"], session["arithmetic.add"],
        session.lookup("arithmetic.add"), prepared, lambda a, b: session.call("arithmetic.add", a, b),
    )  # fmt: skip
    for call in ways:
        assert np.array_equal(call(X, X), X + X)
    assert module.add is module.add
    assert prepared is module.add
    call = jitree.Call(prepared)
    call.push(X)
    call.push(X)
    call.invoke()
    assert np.array_equal(call.pop(), X + X)
    with pytest.raises(IndexError):
        call.pop()
    call.reset()
    assert call.inputs == []
    multiple = jitree.Call(session.prepare("arithmetic.sums"))
    multiple.inputs = [np.arange(4), 2]
    multiple.invoke()
    assert [type(item) for item in multiple.outputs] == [jitree.Array, int, float]


def test_call_direct_converts_nothing(session: Session) -> None:
    module = session.load(ARITHMETIC)
    view = session.to_device(X).buffer_view
    (result,) = session.call_direct("arithmetic.add", view, view)
    assert result.shape == (4,) and result is not view
    assert session.call_direct(module.nothing) == []
    assert session.call_direct(module.numbers.vm_function, 1, 2, 3.0, 4.0, 5, 6) == [1, 2, 3.0, 4.0, 5, 6]
    with pytest.raises(InvalidArgumentError, match="expected 2 arguments but passed 1"):
        session.call_direct("arithmetic.add", view)
    with pytest.raises(StatusError, match=r"input1|ref is null"):
        session.call_direct("arithmetic.add", view, None)


def test_what_a_module_says_about_itself(plain_session: Session) -> None:
    module = plain_session.load(ARITHMETIC)
    assert module.name == "arithmetic" and "add" in module and "__init" not in module
    assert list(module)[:2] == ["add", "add_named"] and len(module) == len(module.names) == 10
    assert set(dir(module)) > {"add", "names"}
    function = module.add_named
    assert (function.name, function.full_name, function.cconv) == (
        "add_named",
        "arithmetic.add_named",
        "0rr_r",
    )
    assert [str(item) for item in function.arguments] == ["left: tensor<2x3xi32>", "right: tensor<2x3xi32>"]
    assert [str(item) for item in function.results] == ["sum: tensor<2x3xi32>"]
    assert function.reflection["author"] == "somebody"
    assert [(item.name, item.minimum_version) for item in module.dependencies] == [("hal", 7)]
    assert module.signatures["nothing"].arguments == ()
    assert repr(function) == f"<jitree.Function arithmetic.add_named: {function.declaration}>"
    assert "sync func @nothing() -> ()" in repr(module)
    assert plain_session.modules == {"arithmetic": module}
    assert repr(plain_session) == "<jitree.Session on local-sync://; modules: arithmetic>"
    assert {"tier", "device", "instance"} <= set(dir(plain_session)) and plain_session.tier == "plain"


def test_unknown_functions(plain_session: Session) -> None:
    module = plain_session.load(ARITHMETIC)
    with pytest.raises(
        AttributeError, match=r"no attribute or function 'subtract'; it exports add, add_named"
    ):
        _ = module.subtract
    ways: tuple[Callable[[], object], ...] = (
        lambda: module["subtract"], lambda: plain_session.lookup("arithmetic.subtract"),
    )  # fmt: skip
    for find in ways:
        with pytest.raises(
            NotFoundError, match=r"no function 'subtract' exported by module 'arithmetic'.*'?add"
        ):
            find()
    with pytest.raises(NotFoundError, match="no module 'nowhere' is registered"):
        plain_session.call("nowhere.add")
    with pytest.raises(StatusError):
        plain_session.call("add")
    assert not hasattr(module, "_private")


# -- state -------------------------------------------------------------------------------------------


def test_state_belongs_to_the_session(session: Session) -> None:
    module = session.load(STATE)
    assert [module.increment() for _ in range(3)] == [11, 12, 13]
    assert np.asarray(module.accumulate(X)).tolist() == [0, 1, 2, 3]
    assert np.asarray(module.accumulate(X)).tolist() == [0, 2, 4, 6]
    with Session(session.device, tier="plain") as other:
        assert other.load(STATE).increment() == 11
    assert module.increment() == 14


def test_control_flow_that_reads_tensors(session: Session) -> None:
    value, count = session.load(STATE).double_until(np.float32(3), 1000)
    assert (float(value), count) == (1536.0, 9)


def test_a_failed_assertion(session: Session) -> None:
    module = session.load(STATE)
    with pytest.raises(FailedPreconditionError) as raised:
        module.positive(-1)
    assert raised.value.message == "value must be positive"
    assert raised.value.contexts[-2:] == ["invoking function 'positive'", f"`{module.positive.declaration}`"]
    assert raised.value.backtrace[0].startswith("state.positive+")
    assert module.positive(5) == 5


def test_traced_tensors(capfd: pytest.CaptureFixture[str]) -> None:
    taken: list[Any] = []
    sinks: list[dict[str, Any]] = [{}, {"trace_sink": None}, {"trace_sink": lambda *row: taken.append(row)}]
    for options in sinks:
        with Session("local-sync", tier="plain", **options) as session:
            session.load(STATE).trace(np.ones((2, 2), np.float32))
    assert capfd.readouterr().err == "=== doubled ===\n2x2xf32=[2 2][2 2]\n\n"
    ((key, (view,)),) = taken
    assert (key, view.shape) == ("doubled", (2, 2))


def test_execution_trace(capfd: pytest.CaptureFixture[str]) -> None:
    with Session("local-sync", flags=ContextFlags.TRACE_EXECUTION) as session:
        session.load(STATE).increment()
    assert "[state.increment+" in capfd.readouterr().err


# -- several modules and devices ---------------------------------------------------------------------


def test_modules_that_import_each_other(session: Session) -> None:
    library, program = session.load(LIBRARY, PROGRAM)
    assert np.asarray(program.quadruple(X)).tolist() == [0, 4, 8, 12]
    assert program.bump_twice(1) == 201 and library.bump(1) == 101


def test_a_missing_dependency_leaves_the_session_usable(session: Session) -> None:
    for sources in ((PROGRAM,), (ARITHMETIC, PROGRAM)):
        with pytest.raises(NotFoundError, match="library"):
            session.load(*sources)
        assert session.modules == {}
    session.load(LIBRARY)
    assert session.load(PROGRAM).bump_twice(0) == 200


def test_two_modules_of_one_name(session: Session) -> None:
    module = session.load(STATE)
    ways: tuple[Callable[[], object], ...] = (
        lambda: session.load(STATE), lambda: session.load(LIBRARY, LIBRARY),
    )  # fmt: skip
    for load in ways:
        with pytest.raises(AlreadyExistsError, match="registered already"):
            load()
    assert list(session.modules) == ["state"] and module.increment() == 11


def test_an_initialiser_that_fails(plain_session: Session) -> None:
    text = '%i0 = const.i32 9\nfail %i0, "not today"'
    broken = Assembler("broken").function("__init", "0v_v", text)
    with pytest.raises(FailedPreconditionError, match="not today"):
        plain_session.load(STATE, broken.build())
    assert plain_session.modules == {}
    assert plain_session.load(STATE).increment() == 11


class Doubler(HostModule):
    name = "native"

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("double", "0i_i", lambda state, value: 2 * value)]


def test_native_modules(session: Session) -> None:
    native = session.append_module(Doubler())
    assert native.double(21) == 42 and session["native.double"](4) == 8
    program = Assembler("program").import_function("native.double", "0i_i")
    program.function("f", "0i_i", "%i1 = call @native.double [%i0]\nreturn [%i1]")
    assert session.load(program.build()).f(5) == 10
    with pytest.raises(AlreadyExistsError):
        session.append_module(Doubler())


def test_builtin_modules_by_choice() -> None:
    with (
        Session("local-sync", builtin_modules=(), tier="plain") as session,
        pytest.raises(NotFoundError, match="hal"),
    ):
        session.load(ARITHMETIC)
    with Session("local-sync", builtin_modules=["hal"], tier="plain") as session:
        session.load(ARITHMETIC)
    with pytest.raises(NotFoundError, match="no builtin module 'vulkan'; there are: "):
        Session("local-sync", builtin_modules=["vulkan"])


def test_devices_by_choice() -> None:
    with Session(tier="plain") as session:
        assert session.device.id == "local-task" and len(session.devices) == 1
    with Session(["local-sync", "local-task://?threads=2"], tier="plain") as session:
        assert [device.id for device in session.devices] == ["local-sync", "local-task"]
        assert np.array_equal(session.load(ARITHMETIC).add(X, X), X + X)
        assert session.device_allocator is session.device.device_allocator
        assert session.host_allocator is session.device.host_allocator
    with pytest.raises(NotFoundError, match="no driver 'vulkan' registered; there are: "):
        Session("vulkan")
    for bad in ([], [3], "://0", "local-sync?nonsense=1"):
        with pytest.raises(InvalidArgumentError):
            Session(bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="tier 'quick' is unknown"):
        Session("local-sync", tier="quick")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (5, "expected a URI or a Device but got 5 of type int"),
        (["local-sync", None], "expected a URI or a Device but got None"),
        ([], "at least one device"),
        ("local-task://?threads=many", "local-task: threads='many' is not an integer"),
        ("local-task://?threads=-1", "local-task: threads=-1 is outside 0 to 64"),
        ("local-task://?task_topology_group_count=65", "task_topology_group_count=65 is outside 0 to 64"),
        ("local-task://?cpu_ids=first", "cpu_ids='first' is not a list of processor numbers"),
    ],
)
def test_devices_that_are_none(choice: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Session(choice)


def test_a_device_of_the_caller_stays_open() -> None:
    device = Instance.default().create_device("local-task")
    for _ in range(2):
        with Session(device, tier="plain") as session:
            assert np.array_equal(session.load(ARITHMETIC).add(X, X), X + X)
    device.close()
    with pytest.raises(FailedPreconditionError), Session(device, tier="plain") as session:
        session.load(ARITHMETIC).add(X, X)


def test_no_device_at_all() -> None:
    with pytest.raises(UnavailableError, match=r"local-task: NOT_FOUND.*cuda: NOT_FOUND"):
        Instance(DriverRegistry()).create_session()


def test_instances() -> None:
    instance = Instance()
    assert Instance.default() is Instance.default() is not instance
    with instance.create_session("local-sync", tier="plain") as session:
        assert session.instance is instance and session.context.ref_types is instance.ref_types
        array = session.load(ARITHMETIC).add(X, X)
        with instance.create_session("local-task", tier="plain") as other:
            assert np.array_equal(other.load(ARITHMETIC).add(array, X), X * 3)
    assert ("local-sync", "local execution on the calling thread") in instance.drivers()
    assert instance.driver("local-sync").query_available_devices()
    assert instance.create_default_device("null").id == "null"
    assert instance.host_allocator.allocate(0x46, 3, 16).byte_length == 16


def test_a_missing_archive_of_parameters() -> None:
    with pytest.raises(NotFoundError, match=r"no file 'file\.irpa'"):
        Session("local-sync", parameters=["scope=file.irpa"])


# -- bad files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("no/such/file.vmfb", NotFoundError, "no such file: 'no/such/file.vmfb'"),
        (".", InvalidArgumentError, "is a directory"),
        (ARITHMETIC.with_suffix(".mlir"), InvalidArgumentError, "MLIR"),
        (b"", InvalidArgumentError, "less than 16 bytes"),
        (ARITHMETIC.read_bytes()[:2000], InvalidArgumentError, "out of bounds"),
        (None, InvalidArgumentError, "a path, bytes or an open binary file, not from NoneType"),
        (7, InvalidArgumentError, "a path, bytes or an open binary file, not from int"),
        (io.StringIO("text"), InvalidArgumentError, "not from a file of text: open it by"),
    ],
    ids=["missing", "directory", "text", "empty", "truncated", "none", "number", "file of text"],
)
def test_bad_files(session: Session, source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        session.load(source)
    assert "loading bytecode module at" in str(raised.value)
    assert np.array_equal(session.load(ARITHMETIC).add(X, X), X + X)


def test_nothing_to_load(plain_session: Session) -> None:
    with pytest.raises(InvalidArgumentError, match="no module was given"):
        plain_session.load()


def test_inspection() -> None:
    summary = jitree.inspect(ARITHMETIC)
    assert (summary.name, summary.bytecode_version) == ("arithmetic", (17, 0))
    assert list(summary.functions)[:2] == ["add", "add_named"] and "__init" not in summary.functions
    assert summary.reflection["add_named"]["author"] == "somebody"
    assert summary.dependencies[0].name == "hal" and summary.imports
    assert str(summary).splitlines()[1].startswith("  needs hal >= 7; imports ")
    assert summary.file_size == ARITHMETIC.stat().st_size
    with pytest.raises(NotFoundError):
        jitree.inspect("no/such/file.vmfb")


# -- environment -------------------------------------------------------------------------------------


def run_python(code: str, **environment: str) -> str:
    root = Path(jitree.__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_environment_variables_and_keyword_arguments(tmp_path: Path) -> None:
    code = "import jitree; s = jitree.Session('local-sync'{}); print(s.tier)"
    home = {"HOME": str(tmp_path)}
    assert run_python(code.format(""), JITREE_TIER="plain", **home) == "plain"
    assert run_python(code.format(", tier='plain'"), JITREE_TIER="fast", **home) == "plain"
    directory = (
        "import jitree; from jitree.codegen.image.cache import directory\n"
        "jitree.Session('local-sync', tier='plain'{}); print(directory())"
    )
    chosen = tmp_path / "chosen"
    assert run_python(directory.format(""), JITREE_CACHE_DIR=str(chosen), **home) == str(chosen)
    override = directory.format(f", cache_dir={str(tmp_path)!r}")
    assert run_python(override, JITREE_CACHE_DIR=str(chosen), **home) == str(tmp_path)


def test_importing_is_lazy() -> None:
    code = "import sys, jitree; print(sorted(name for name in sys.modules if name.startswith('jitree')))"
    expected = ["jitree", "jitree.base", "jitree.base.forks", "jitree.base.records", "jitree.errors"]
    assert run_python(code) == str(expected)
    assert set(jitree.__all__) <= set(dir(jitree))
    for name in jitree.__all__:
        assert getattr(jitree, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = jitree.nonsense


def test_all_names_leave_those_of_python_alone() -> None:
    names = "[name for name in dir(builtins) if name[0] != '_' and name in globals()]"
    assert run_python(f"import builtins; from jitree import *; print({names})") == "[]"
    assert callable(jitree.compile) and "load" in jitree.__all__


def test_a_whole_program_in_a_fresh_process() -> None:
    code = (
        "import jitree, numpy as np\n"
        f"module = jitree.load({str(ECHO)!r}, device='local-sync', tier='plain')\n"
        "print(np.asarray(module.e1_f32([1, 2])).tolist())"
    )
    assert run_python(code) == "[1.0, 2.0]"


@pytest.mark.parametrize(("tier", "built"), [("plain", set()), ("fast", {"executor", "hal"})])
def test_what_devices_need_is_built_beside_the_engine(
    tier: str, built: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that waits for the engine's machine code does not begin with the rest afterwards."""
    begun: set[str] = set()

    def create_engine(name: str | None) -> Engine:
        begun.update(asked)
        return original_engine(name)

    asked: set[str] = set()
    original_engine = context.create_engine
    monkeypatch.setattr(context, "create_engine", create_engine)
    monkeypatch.setattr(image, "start", lambda recipe: asked.add(recipe.name))
    with Session("local-sync", tier=tier):
        assert begun == built


def test_masked_arrays_do_not_go_to_a_device() -> None:
    with Session("local-sync", tier="plain") as session:
        masked = np.ma.masked_array(np.zeros(4, np.float32), [False, True, False, False])
        for value in (masked, [np.ma.masked, 1.0], (masked, masked)):
            with pytest.raises(InvalidArgumentError, match=r"programs know no masks: pass array\.filled"):
                session.to_device(value)
        assert np.array_equal(session.to_device(masked.filled(5)), [0, 5, 0, 0])


@pytest.mark.parametrize(("old", "new"), [("NativeModule", "HostModule"), ("NativeExport", "HostExport")])
def test_old_names_warn_once(old: str, new: str) -> None:
    jitree.__dict__.pop(old, None)
    with pytest.warns(DeprecationWarning, match=rf"jitree\.{old} is called jitree\.{new} now"):
        assert getattr(jitree, old) is getattr(jitree, new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert getattr(jitree, old) is getattr(jitree, new)

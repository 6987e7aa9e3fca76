"""The life of modules in contexts: linking, initialisation, signals, forks, teardown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from jitree.dispatch.context import Context
from jitree.dispatch.function import BytecodeFunction
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule, Signal
from jitree.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.schema import Dependency, Import
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, Thing, Vm, load
from tests.fuzz.faults import PLACES, failing

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

ONE = VmBuffer(1)


class Log(HostModule):
    """Writes down what happens to it and what programs tell it."""

    name = "log"

    def __init__(self) -> None:
        self.lines: list[str] = []

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("say", "0i_v", lambda state, value: self.lines.append(f"{state} {value}"))]

    def create_state(self, context: ModuleContext) -> object:
        return "state"

    def fork_state(self, state: object, context: ModuleContext) -> object:
        return "fork"

    def free_state(self, state: object) -> None:
        self.lines.append(f"free {state}")

    def notify(self, state: object, signal: Signal) -> None:
        self.lines.append(f"{state} {signal.name}")


def speaker(name: str, number: int) -> Assembler:
    """A module that says ``number`` + 1, 2, 3 when initialised, notified and torn down."""
    module = Assembler(name, globals_size=4).import_function("log.say", "0i_v")
    module.function("__init", "0v_v", f"%i0 = const.i32 {number + 1}\n[] = call @log.say [%i0]\nreturn []")
    module.function("__deinit", "0v_v", f"%i0 = const.i32 {number + 3}\n[] = call @log.say [%i0]\nreturn []")
    notify = f"%i1 = const.i32 {number + 20}\n%i1 = add.i32 %i1, %i0\n[] = call @log.say [%i1]\nreturn []"
    module.function("__notify", "0i_v", notify)
    return module


def test_initialisation_and_teardown_order(vm: Vm) -> None:
    log = Log()
    vm.add(log, speaker("a", 100), speaker("b", 200))
    assert log.lines == ["state 101", "state 201"]
    log.lines.clear()
    vm.context.close()
    assert log.lines == ["state 203", "state 103", "free state"]
    vm.context.close()
    assert len(log.lines) == 3
    with pytest.raises(FailedPreconditionError, match="closed"):
        vm.context.notify(Signal.RESUME)


@pytest.mark.parametrize(
    ("signal", "order"),
    [(Signal.RESUME, "forwards"), (Signal.SUSPEND, "backwards"), (Signal.LOW_MEMORY, "backwards")],
)
def test_signals(vm: Vm, signal: Signal, order: str) -> None:
    log = Log()
    vm.add(log, speaker("a", 100), speaker("b", 200))
    log.lines.clear()
    vm.context.notify(signal)
    expected = [f"state {signal.name}", f"state {120 + signal}", f"state {220 + signal}"]
    assert log.lines == (expected if order == "forwards" else expected[::-1])


def test_failed_initialisation_takes_the_registration_back(vm: Vm) -> None:
    log = Log()
    vm.add(log)
    bad = Assembler("bad").function("__init", "0v_v", '%i0 = const.i32 7\nfail %i0, "no licence"')
    with pytest.raises(PermissionDeniedError, match=r"no licence.*registering module 'bad'"):
        vm.add(speaker("a", 100), bad)
    assert [module.name for module in vm.context.modules] == ["log"]
    assert log.lines == ["state 101", "state 103"]
    vm.add(speaker("a", 300))
    assert log.lines[-1] == "state 301"


def test_frozen_contexts(vm: Vm) -> None:
    vm.add(Assembler("a").function("f", "0v_i", "%i0 = const.i32 1\nreturn [%i0]"))
    vm.context.freeze()
    with pytest.raises(FailedPreconditionError, match="frozen"):
        vm.add(Assembler("b"))
    assert vm.call("a:f") == [1]


def test_imports_of_bytecode_modules(vm: Vm) -> None:
    provider = Assembler("provider", globals_size=8)
    provider.function("add", "0iIr_rIi", """
        %i4 = global.load.i32 0
        %i4 = add.i32 %i4, %i0
        global.store.i32 0, %i4
        return [%R0, %i2:3, %i4]
    """)  # fmt: skip
    provider.function("bad", "0i_v", 'fail %i0, "provider"')
    user = Assembler("user").dependency("provider").import_function("provider.add", "0iIr_rIi")
    user.import_function("provider.bad", "0i_v")
    user.function("f", "0Iri_iIr", """
        [%r1, %i4:5, %i6] = call @provider.add [%i2, %i0:1, %r0]
        [%r1, %i4:5, %i6] = call @provider.add [%i2, %i4:5, %R1]
        return [%i6, %i4:5, %r1]
    """)  # fmt: skip
    user.function("g", "0i_v", "[] = call @provider.bad [%i0]\nreturn []")
    vm.add(provider, user)
    assert vm.call("f", -(2**40), ONE, 5) == [10, -(2**40), ONE]
    assert vm.call("f", 0, None, 1) == [12, 0, None]
    with pytest.raises(InvalidArgumentError) as failure:
        vm.call("g", 3)
    assert [line.split("+")[0] for line in failure.value.backtrace] == ["provider.bad", "user.g"]


def test_recursion_across_modules_overflows_cleanly(vm: Vm) -> None:
    provider = Assembler("provider").function("f", "0r_r", "[%r1] = call @f [%r0]\nreturn [%r1]")
    user = Assembler("user").import_function("provider.f", "0r_r")
    vm.add(provider, user.function("g", "0r_r", "[%r1] = call @provider.f [%r0]\nreturn [%r1]"))
    with pytest.raises(Exception, match="stack overflow"):
        vm.call("g", ONE)


def test_the_last_module_of_a_name_wins(vm: Vm) -> None:
    for value in (1, 2):
        vm.add(Assembler("p").function("f", "0v_i", f"%i0 = const.i32 {value}\nreturn [%i0]"))
    user = (
        Assembler("u")
        .import_function("p.f", "0v_i")
        .function("g", "0v_i", "[%i0] = call @p.f []\nreturn [%i0]")
    )
    assert vm.add(user).call("g") == [2]


@pytest.mark.parametrize("present", [True, False])
def test_optional_imports(vm: Vm, present: bool) -> None:
    if present:
        vm.add(HostFunctions("maybe", [("f", "0i_i", lambda value: value + 1)]))
    module = Assembler("m").dependency("maybe", 3, optional=True)
    module.import_function("maybe.f", "0i_i", optional=True).import_function("maybe.g", "0i_i", optional=True)
    module.function(
        "ask", "0v_ii", "%i0 = import.resolved @maybe.f\n%i1 = import.resolved @maybe.g\nreturn [%i0, %i1]"
    )
    module.function("call", "0i_i", "[%i0] = call @maybe.f [%i0]\nreturn [%i0]")
    vm.add(module)
    assert vm.call("ask") == [int(present), 0]
    if present:
        assert vm.call("call", 5) == [6]
    else:
        with pytest.raises(NotFoundError, match=r"optional import 'maybe\.f' was not resolved"):
            vm.call("call", 5)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Assembler("m").dependency("p", 3), "version 2; version 3 or newer"),
        (Assembler("m").dependency("q"), "'q' is not registered"),
        (Assembler("m").import_function("q.f", "0v_v"), "no module 'q'"),
        (Assembler("m").import_function("p.g", "0v_v"), "exports no such function"),
        (Assembler("m").import_function("p.f.g", "0v_v"), "exports no such function"),
    ],
    ids=["version", "dependency", "module", "function", "dots"],
)
def test_what_is_missing_is_not_found(vm: Vm, module: Assembler, message: str) -> None:
    vm.add(HostFunctions("p", [("f", "0v_v", lambda: None)], version=2))
    with pytest.raises(NotFoundError, match=message):
        vm.add(module.function("f", "0v_v", "return []"))
    assert [item.name for item in vm.context.modules] == ["p"]


def test_dependencies_that_are_met_or_optional(vm: Vm) -> None:
    vm.add(HostFunctions("p", [], version=2))
    vm.add(
        Assembler("m").dependency("p", 2).dependency("q", 9, optional=True).dependency("p", 5, optional=True)
    )


def test_of_modules_of_one_name_the_last_one_has_to_be_new_enough(vm: Vm) -> None:
    """That is where imports come from."""
    vm.add(HostFunctions("p", [], version=3), HostFunctions("p", [], version=2))
    with pytest.raises(NotFoundError, match="version 2; version 3 or newer"):
        vm.add(Assembler("m").dependency("p", 3))
    vm.add(HostFunctions("p", [], version=3))
    vm.add(Assembler("m").dependency("p", 3))


def test_unknown_types_are_not_found(vm: Vm) -> None:
    module = Assembler("m")
    module.type("!other.thing")
    with pytest.raises(NotFoundError, match=r"other\.thing"):
        vm.add(module)


def test_absurd_numbers_of_ref_globals_are_refused(vm: Vm) -> None:
    with pytest.raises(ResourceExhaustedError, match=r"2147483647 ref globals.*registering module 'm'"):
        vm.add(Assembler("m", ref_global_count=2**31 - 1))


def test_imports_need_a_dot(vm: Vm) -> None:
    with pytest.raises(InvalidArgumentError, match=r"module\.function"):
        vm.add(Assembler("m").import_function("nodot", "0v_v"))


def test_signatures_must_be_equal(vm: Vm) -> None:
    vm.add(
        HostFunctions("n", [("f", "0i_i", lambda value: value)]),
        Assembler("p").function("f", "0i_v", "return []"),
    )
    with pytest.raises(InternalError, match=r"'n\.f' signature mismatch: expected '0I_i'.*'0i_i'"):
        vm.add(Assembler("m").import_function("n.f", "0I_i"))
    with pytest.raises(InternalError, match=r"'p\.f' signature mismatch"):
        vm.add(Assembler("m").import_function("p.f", "0i"))


def test_imports_without_signature(vm: Vm) -> None:
    vm.add(
        HostFunctions("n", [("f", "0v_v", lambda: None), ("g", "0i_i", lambda value: value)]),
        Assembler("p").function("f", "0i_v", "return []"),
    )
    module = Assembler("m")
    for name in ("n.f", "n.g", "p.f"):
        module.import_function(name, None)
        module.function("call_" + name.replace(".", "_"), "0v_v", f"[] = call @{name} []\nreturn []")
    vm.add(module)
    vm.call("call_n_f")
    for name in ("call_n_g", "call_p_f"):
        with pytest.raises(InvalidArgumentError, match="states no signature"):
            vm.call(name)


def counter() -> Assembler:
    module = Assembler("c", globals_size=4, ref_global_count=1)
    module.function("__init", "0v_v", "%i0 = const.i32 100\nglobal.store.i32 0, %i0\nreturn []")
    module.function("next", "0v_i", """
        %i0 = global.load.i32 0
        %i1 = const.i32 1
        %i0 = add.i32 %i0, %i1
        global.store.i32 0, %i0
        return [%i0]
    """)  # fmt: skip
    module.function("keep", "0r_v", "global.store.ref 0, !vm.list<?>, %R0\nreturn []")
    module.function("kept", "0v_r", "%r0 = global.load.ref 0, !vm.list<?>\nreturn [%R0]")
    return module


def test_contexts_share_modules_but_not_globals(tier: str) -> None:
    module = load(counter())
    contexts = [Context(RefTypes(), tier=tier) for _ in range(2)]
    for context in contexts:
        context.register([module])
    first, second = (context.lookup("c.next") for context in contexts)
    assert [contexts[0].invoke(first), contexts[0].invoke(first), contexts[1].invoke(second)] == [
        [101],
        [102],
        [101],
    ]
    contexts[0].close()
    assert contexts[1].invoke(second) == [102]
    contexts[1].close()


def test_functions_belong_to_their_context(vm: Vm) -> None:
    module = load(counter())
    other = Vm("plain").add(module)
    vm.add(module)
    with pytest.raises(InvalidArgumentError, match="another context"):
        vm.context.invoke(other.function("next"))
    other.context.close()


def test_fork(vm: Vm) -> None:
    log = Log()
    vm.add(log, counter(), speaker("s", 100))
    vm.call("c:next")
    items = VmList()
    items.append(ONE)
    vm.keep("c:keep", items)
    log.lines.clear()
    fork = vm.context.fork()
    assert log.lines == ["fork FORK", "fork 123"], "initialisers do not run again"
    call = fork.lookup("c.next")
    assert [fork.invoke(call), fork.invoke(call), vm.call("c:next")] == [[102], [103], [102]]
    assert fork.invoke(fork.lookup("c.kept")) == [items]
    vm.context.close()
    assert fork.invoke(fork.lookup("c.kept")) == [items]
    fork.close()
    del items


def test_lookup(vm: Vm) -> None:
    module = Assembler("m", version=3).attr("k", "v").dependency("n", 1)
    module.function(
        "f",
        "0ir_I",
        "%i2 = ext.i32.i64.s %i0\nreturn [%i2:3]",
        attrs={"iree.abi.declaration": "sync func @f()"},
    )
    module.function("hidden", "0v_v", "return []", exported=False)
    vm.add(HostFunctions("n", [("f", "0i_i", lambda value: value)], version=1), module)
    function = vm.context.lookup("m.f")
    assert (function.name, function.full_name, function.cconv, function.ordinal) == ("f", "m.f", "0ir_I", 0)
    assert str(function.convention) == "(i32, !vm.ref<?>) -> (i64)"
    assert function.attrs == {"iree.abi.declaration": "sync func @f()"}
    assert function.module.version == 3
    assert [(item.key, item.value) for item in function.module.attrs] == [("k", "v")]
    assert [item.name for item in function.module.dependencies] == ["n"]
    assert vm.context.lookup("m.f") is function
    with pytest.raises(NotFoundError, match=r"no function 'hidden'.*exports 'f'"):
        vm.context.lookup("m.hidden")
    with pytest.raises(NotFoundError, match="registered are: n, m"):
        vm.context.lookup("x.f")
    with pytest.raises(InvalidArgumentError, match=r"module\.function"):
        vm.context.lookup("f")


def test_custom_types_and_native_imports(vm: Vm) -> None:
    """A host module that imports from bytecode and hands out objects of a type of its own."""

    class Maker(HostModule):
        name = "maker"
        dependencies = (Dependency("p", 0, True),)
        imports = (Import("p.double", "0i_i", {}, False), Import("p.no", None, {}, True))

        def exports(self) -> Iterable[HostExport]:
            return [HostExport("make", "0i_rr", self.make)]

        def create_state(self, context: ModuleContext) -> object:
            return {"context": context}

        def resolve_import(self, state: object, index: int, function: object) -> None:
            assert isinstance(state, dict)
            state[index] = function

        def make(self, state: dict[object, object], value: int) -> tuple[object, object]:
            context = state["context"]
            assert isinstance(context, Context) and state[1] is None
            [doubled] = context.invoke(state[0], [value])  # type: ignore[arg-type]
            return Thing(), VmBuffer(doubled)

    provider = Assembler("p").function("double", "0i_i", "%i0 = add.i32 %i0, %i0\nreturn [%i0]")
    user = Assembler("u").import_function("maker.make", "0i_rr")
    user.function(
        "f",
        "0i_rr",
        "[%r0, %r1] = call @maker.make [%i0]\n%r2 = cast.any.ref %R0, !test.thing\nreturn [%R2, %R1]",
    )
    vm.add(provider, Maker(), user)
    thing, buffer = vm.call("f", 4)
    assert isinstance(thing, Thing)
    assert buffer.length == 8


def test_a_native_function_cannot_close_the_context_that_calls_it(vm: Vm) -> None:
    text = "[] = call @n.close\n%r0 = const.ref.rodata 0\nreturn [%r0]"
    module = Assembler("m").import_function("n.close", "0v_v").function("f", "0v_r", text)
    module.function("__deinit", "0v_v", "[] = call @n.close\nreturn []")
    module.rodata(b"here")
    vm.add(HostFunctions("n", [("close", "0v_v", vm.context.close)]), module)
    with pytest.raises(FailedPreconditionError, match="in use by the call"):
        vm.call("f")
    vm.context.close()
    assert vm.context.modules == ()


class Clumsy(HostModule):
    """Raises whenever it is torn down or told to."""

    def __init__(self, name: str, freed: list[str]) -> None:
        self.name = name
        self.freed = freed

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("fall", "0v_v", self._fall)]

    def _fall(self, state: object) -> None:
        raise ZeroDivisionError("fallen")

    def free_state(self, state: object) -> None:
        self.freed.append(self.name)
        raise ValueError(self.name)


@pytest.mark.parametrize("initialiser", ["", "fail"])
def test_teardown_goes_on_whatever_modules_raise(vm: Vm, initialiser: str) -> None:
    freed: list[str] = []
    module = Assembler("m", ref_global_count=1).import_function("a.fall", "0v_v")
    module.function("__deinit", "0v_v", "[] = call @a.fall\nreturn []")
    if initialiser:
        module.function("__init", "0v_v", '%i0 = const.i32 3\nfail %i0, "no"')
        with pytest.raises(ValueError):
            vm.add(Clumsy("a", freed), Clumsy("b", freed), module)
    else:
        vm.add(Clumsy("a", freed), Clumsy("b", freed), module)
        with pytest.raises(ValueError):
            vm.context.close()
        vm.context.close()
    assert freed == ["b", "a"]
    assert vm.context.modules == ()


def test_a_function_without_memory_to_call_it_is_a_status(vm: Vm) -> None:
    """It was a MemoryError; the next look-up finds it."""
    module = Assembler("m")
    module.function("f", "0v_v", "return []")
    vm.add(module)
    with (
        failing(PLACES["allocation"], 1),
        pytest.raises(ResourceExhaustedError, match="no memory to prepare"),
    ):
        vm.context.lookup("m.f")
    assert vm.context.lookup("m.f").full_name == "m.f"


def test_no_property_of_a_function_loses_what_a_handler_raises() -> None:
    """Python forgets an AttributeError of a property, of whatever origin, where a class finds attributes.
    This one finds none."""
    assert not hasattr(BytecodeFunction, "__getattr__")

"""Makes LLVM IR of a Python function and its signature, by Numba. All of Numba's internals that jitree uses
are in this file.

Numba's own targets stay as they are; :data:`_TARGET` is one beside them. What differs from Numba's:

* A function is ``result name(arguments…)``, which C and other IR can call: no slot for the result,
  no status.
* Other functions are called by name, from their annotations, so each is compiled by itself, in any order.
* Where a function could raise, a function that does not exist is called. LLVM removes the calls that are
  never made (a step of ``range`` that is zero); the linker refuses any other by the name of the exception.
* Integers wrap, as the semantics say: no flag lets LLVM assume that they do not.
* Libraries only keep the IR. Linking, optimising and emitting are the business of what takes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any, Final, TypeVar

from llvmlite import binding, ir
from numba.core import cgutils, compiler, imputils, typing
from numba.core import types as numba_types
from numba.core.callconv import RETCODE_OK, BaseCallConv, Status
from numba.core.codegen import CodeLibrary
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext
from numba.core.datamodel import models, register_default
from numba.core.errors import NumbaError
from numba.core.typed_passes import NativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.typing import builtins as _builtin_typing  # noqa: F401  (they register the operators)
from numba.core.typing import templates
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode
from numba.cpython import builtins, mathimpl, numbers, rangeobj, tupleobj  # noqa: F401

from jitree.base.records import NamedTuple
from jitree.codegen import processor_texts
from jitree.codegen.image.compile import host_target
from jitree.codegen.record import MemoryRecord, fields_of
from jitree.errors import InternalError

Function = TypeVar("Function", bound=Callable[..., Any])

types: Final[Any] = numba_types
signature: Final[Any] = typing.signature
_typing_rules: Final = templates.Registry()
_code_rules: Final = imputils.Registry("jitree")

_ANNOTATED: Final = {"int": types.int64, "bool": types.boolean, "None": types.none}
"""Types of the functions that are written over 64-bit integers."""


def declared(builder: Any, kind: Any, name: str) -> Any:
    """A function that is defined elsewhere."""
    return cgutils.get_or_insert_function(builder.module, kind, name)


class _Attributes(ir.values.FunctionAttributes):  # type: ignore[misc]
    _known = ir.values.FunctionAttributes._known | {'"no-builtins"'}


class _ValueConvention(BaseCallConv):  # type: ignore[misc]
    """``result name(arguments…)``, ``void`` for None."""

    def _make_call_helper(self, builder: Any) -> None:
        return None

    def get_function_type(self, result: Any, arguments: Sequence[Any]) -> Any:
        value = self.context.get_value_type
        kind = ir.VoidType() if result == types.none else value(result)
        return ir.FunctionType(kind, list(map(value, arguments)))

    def decorate_function(self, function: Any, names: Any, arguments: Any, noalias: bool = False) -> None:
        attributes = _Attributes(function.attributes)
        attributes.add("nounwind")
        attributes.add('"no-builtins"')
        function.attributes = attributes

    def get_arguments(self, function: Any) -> Any:
        return function.args

    def decode_arguments(self, builder: Any, arguments: Any, function: Any) -> list[Any]:
        return list(function.args)

    def return_value(self, builder: Any, value: Any) -> None:
        if isinstance(builder.function.function_type.return_type, ir.VoidType):
            builder.ret_void()
        else:
            builder.ret(value)

    def return_user_exc(
        self, builder: Any, exc: Any, exc_args: Any = None, loc: Any = None, func_name: Any = None
    ) -> None:
        name = f"raises.{getattr(exc, '__name__', 'exception')}.{builder.function.name}"
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(declared(builder, kind, name), [])
        builder.unreachable()

    def return_status_propagate(self, builder: Any, status: Any) -> None:
        builder.unreachable()

    def call_function(self, builder: Any, callee: Any, result: Any, kinds: Any, arguments: Any) -> Any:
        value = builder.call(callee, arguments)
        no = ir.Constant(ir.IntType(1), 0)
        status = Status(RETCODE_OK, ir.Constant(ir.IntType(1), 1), no, no, no, no, no, None)
        return status, self.context.get_dummy_value() if result == types.none else value


class _Library(CodeLibrary):  # type: ignore[misc]
    """The IR of one function."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.text = ""
        self.linked: list[str] = []

    def add_ir_module(self, module: Any) -> None:
        for function in module.functions:
            for block in function.blocks:
                for instruction in block.instructions:
                    if instruction.opname in ("add", "sub", "mul", "shl"):
                        instruction.flags = []
        self.text = str(module)

    def add_linking_library(self, library: Any) -> None:
        pass

    def finalize(self) -> None:
        self._finalized = True

    def get_function(self, name: str) -> Any:  # Numba's base class declares it; code is never asked for here
        raise NotImplementedError

    def get_llvm_str(self) -> str:
        return self.text

    def get_asm_str(self) -> str:  # the same
        raise NotImplementedError


class _Codegen:
    """Makes empty modules and libraries."""

    target_data = binding.create_target_data("e-m:e-i64:64-n8:16:32:64-S128")
    """Sizes of numbers, the same on every machine that images are made for."""

    def create_library(self, name: str, **options: Any) -> _Library:
        return _Library(self, name)

    def _create_empty_module(self, name: str) -> Any:
        return ir.Module(name.partition("$")[0])  # what follows counts, from the start of the process


class _Typing(typing.Context):  # type: ignore[misc]
    def load_additional_registries(self) -> None:
        self.install_registry(_typing_rules)

    def resolve_value_type(self, value: Any) -> Any:
        if isinstance(value, type) and issubclass(value, MemoryRecord):
            return _of_class(value)[1]
        if isinstance(value, FunctionType) and self._lookup_global(value) is None:
            if "float" in value.__annotations__.values():
                return types.Function(_function_on_numbers(value))
            return types.ExternalFunction(value.__name__, signature_of(value))
        return super().resolve_value_type(value)


class _Target(CPUContext):  # type: ignore[misc]
    symbol: str
    """The name that the function gets which is compiled now."""
    called: dict[str, tuple[Callable[..., Any], Any]]
    """By symbol: functions on numbers that were called, and as what."""

    def init(self) -> None:
        self.is32bit = False
        self._internal_codegen = _Codegen()

    def load_additional_registries(self) -> None:
        self.install_registry(mathimpl.registry)
        self.install_registry(_code_rules)

    @property
    def call_conv(self) -> _ValueConvention:
        return _ValueConvention(self)

    def mangler(self, name: str, kinds: Any, *, abi_tags: Any = (), uid: Any = None) -> str:
        return self.symbol

    def declare_env_global(self, module: Any, name: str) -> None:
        pass

    def get_return_value(self, builder: Any, kind: Any, value: Any) -> Any:
        return value

    def get_external_function_type(self, descriptor: Any) -> Any:
        return self.call_conv.get_function_type(descriptor.restype, descriptor.argtypes)

    def declare_external_function(self, module: Any, descriptor: Any) -> Any:
        kind = self.get_external_function_type(descriptor)
        return cgutils.get_or_insert_function(module, kind, descriptor.mangled_name)

    def call_external_function(self, builder: Any, callee: Any, kinds: Any, arguments: Any) -> Any:
        value = builder.call(callee, arguments)
        return self.get_dummy_value() if isinstance(value.type, ir.VoidType) else value

    def post_lowering(self, module: Any, library: Any) -> None:
        pass


class _Compiler(compiler.CompilerBase):  # type: ignore[misc]
    """The passes that functions over numbers need: no closures, no overloads, no unrolling of literals."""

    def define_pipelines(self) -> list[Any]:
        manager = PassManager("jitree")
        for step in (
            TranslateByteCode, FixupArgs, IRProcessing, ReconstructSSA, NopythonTypeInference,
            PreLowerStripPhis, NativeLowering, NoPythonBackend,
        ):  # fmt: skip
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]


_TYPING: Final = _Typing()
_TARGET: Final = _Target(_TYPING, "cpu")
_FLAGS: Final = compiler.Flags()
_FLAGS.no_compile = True
_FLAGS.no_cpython_wrapper = True
_FLAGS.no_cfunc_wrapper = True
_FLAGS.nrt = False
_FLAGS.error_model = "numpy"
_FLAGS.boundscheck = False
_FLAGS.release_gil = False
_FLAGS.enable_pyobject = False
_INLINED: Final = _FLAGS.copy()
_INLINED.forceinline = True


class Compiled(NamedTuple):
    text: str
    """LLVM IR."""
    linked: list[str]
    """What intrinsics have linked into the function."""
    variables: dict[str, Any]
    """The types of the function's variables."""


def compiled(function: Callable[..., Any], symbol: str, stated: Any) -> Compiled:
    """The LLVM IR of a function under a name. INTERNAL, with the place in the source, where it uses what has
    no machine code."""
    return _compiled(function, symbol, stated, _FLAGS)


def inlined(function: Callable[..., Any], symbol: str, stated: Any) -> dict[str, str]:
    """As :func:`compiled`, of functions that become part of their callers. By symbol: the IR of the function,
    and of the functions on numbers that it calls."""
    texts: dict[str, str] = {}
    waiting = {symbol: (function, stated)}
    while waiting:
        name, (wanted, kind) = waiting.popitem()
        texts[name] = _compiled(wanted, name, kind, _INLINED).text
        waiting |= {item: _TARGET.called[item] for item in _TARGET.called.keys() - texts.keys()}
    return texts


def _compiled(function: Callable[..., Any], symbol: str, stated: Any, flags: Any) -> Compiled:
    _TARGET.symbol, _TARGET.called = symbol, {}
    try:
        result = compiler.compile_extra(
            _TYPING, _TARGET, function, stated.args, stated.return_type, flags, {}, pipeline_class=_Compiler
        )
    except (NumbaError, NotImplementedError, TypeError) as error:
        raise InternalError(f"{symbol}: {error}") from error
    return Compiled(result.library.text, result.library.linked, result.fndesc.typemap)


def intrinsic(stated: Any) -> Callable[[Function], Function]:
    """Makes a function what a call of it becomes: ``function(context, builder, signature, values)`` writes
    IR. Calls are known to this front end and to Numba's own; :func:`link_texts` is for whole texts."""

    def known(function: Function) -> Function:
        template = typing.make_concrete_template(function.__name__, function, [stated])
        templates.infer_global(function, types.Function(template))
        imputils.lower_builtin(function, *stated.args)(function)
        return function

    return known


def link_texts(context: Any, texts: list[str], entry: str) -> None:
    """For intrinsics: makes IR texts part of the function that is being compiled, for this front end or for
    Numba's own. ``entry`` is the one function of them that the intrinsic calls."""
    library = context.active_code_library
    if isinstance(library, _Library):
        library.linked += texts
        return
    module = binding.parse_assembly(texts[0])
    for text in [*texts[1:], *processor_texts.needed(texts, *host_target())]:
        module.link_in(binding.parse_assembly(text))
    for function in module.functions:
        if not function.is_declaration and function.name != entry:
            function.linkage = "internal"
    module.triple, module.data_layout = library._final_module.triple, library._final_module.data_layout
    library._final_module.link_in(module)


def signature_of(function: Callable[..., Any]) -> Any:
    """The signature that a function's annotations state."""
    stated = dict(function.__annotations__)
    result = _annotated(function, "return", stated.pop("return", None))
    return typing.signature(result, *(_annotated(function, name, kind) for name, kind in stated.items()))


@cache
def _function_on_numbers(function: Callable[..., Any]) -> Any:
    """The typing of calls of a function on floats: they may have either width, and all have the same."""

    def typed(*given: Any) -> Any:
        floats = {kind for kind in given if isinstance(kind, types.Float)}
        if len(floats) != 1:
            return None
        known = _ANNOTATED | {"float": floats.pop()}
        *kinds, result = (known[kind] for kind in function.__annotations__.values())
        return signature(result, *kinds)

    def emit(builder: Any, stated: Any, given: Sequence[Any]) -> Any:
        name = ".".join([function.__name__, *map(str, stated.args)])
        _TARGET.called[name] = function, stated
        kind = _TARGET.call_conv.get_function_type(stated.return_type, stated.args)
        return builder.call(declared(builder, kind, name), given)

    return _template(function, typed, emit)


class RecordType(types.Type):  # type: ignore[misc]
    """The type of records of a class: the value is the address."""

    def __init__(self, cls: type[MemoryRecord]) -> None:
        self.cls = cls
        super().__init__(f"record.{cls.__module__}.{cls.__name__}")


def register_type(kind: Any, of: Callable[[Any], Any]) -> None:
    """Says what values of a class of types are as machine code: ``of(type)`` gives LLVM's type."""

    class Model(models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, stated: Any) -> None:
            super().__init__(manager, stated, of(stated))

    register_default(kind)(Model)


register_type(RecordType, lambda kind: ir.IntType(64))


_records: Final[dict[type, tuple[RecordType, Any]]] = {}
"""The type of each record class, and that of its constructor."""


def _of_class(cls: type[MemoryRecord]) -> tuple[RecordType, Any]:
    if cls not in _records:
        kind = RecordType(cls)
        made = _template(cls, lambda place: signature(kind, types.int64), lambda builder, _, given: given[0])
        _records[cls] = kind, types.Function(made)
    return _records[cls]


def record_type(cls: type[MemoryRecord]) -> RecordType:
    return _of_class(cls)[0]


def _annotated(function: Callable[..., Any], name: str, kind: Any) -> Any:
    stated = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    cls = function.__globals__.get(stated)
    if isinstance(cls, type) and issubclass(cls, MemoryRecord):
        return record_type(cls)
    if stated not in _ANNOTATED:
        known = ", ".join(_ANNOTATED)
        raise InternalError(f"{function.__name__}: '{name}' has type {stated}, not one of {known}")
    return _ANNOTATED[stated]


def is_primitive(function: Callable[..., Any]) -> bool:
    """Whether :func:`primitive` has said what a function becomes."""
    return any(known is function for known, _ in _typing_rules.globals)


def record_access(load: Callable[..., Any], store: Callable[..., Any]) -> None:
    """Says what the fields of records become: ``load(builder, address, field)`` gives the integer,
    ``store(builder, address, field, value)`` stores one."""

    def of_field(target: type[MemoryRecord] | None) -> Any:
        return types.int64 if target is None else record_type(target)

    class Attributes(templates.AttributeTemplate):  # type: ignore[misc]
        key = RecordType

        def generic_resolve(self, kind: RecordType, name: str) -> Any:
            field = fields_of(kind.cls).get(name)
            return None if field is None else of_field(field.target)

    def read(context: Any, builder: Any, kind: RecordType, value: Any, name: str) -> Any:
        return load(builder, value, fields_of(kind.cls)[name])

    def write(context: Any, builder: Any, stated: Any, given: Any, name: str) -> None:
        store(builder, given[0], fields_of(stated.args[0].cls)[name], given[1])

    _typing_rules.register_attr(Attributes)
    _code_rules.lower_getattr_generic(RecordType)(read)
    _code_rules.lower_setattr_generic(RecordType)(write)


def primitive(
    function: Callable[..., Any],
    typed: Callable[..., Any],
    emit: Callable[[Any, Any, Sequence[Any]], Any],
) -> None:
    """Says what a call of a function becomes. ``typed(*argument types)`` gives the signature, or None where
    the types are wrong; ``emit(builder, signature, values)`` the value, None if there is no result."""

    _typing_rules.register_global(function, types.Function(_template(function, typed, emit)))


def standing_for(symbol: str, stated: Any) -> Callable[..., Any]:
    """Returns a callable stand-in for a function known by symbol."""

    def stand_in() -> None: ...

    def emit(builder: Any, _: Any, given: Sequence[Any]) -> Any:
        kind = _TARGET.call_conv.get_function_type(stated.return_type, stated.args)
        return builder.call(declared(builder, kind, symbol), given)

    primitive(stand_in, lambda *given: stated, emit)
    return stand_in


def _template(function: Callable[..., Any], typed: Callable[..., Any], emit: Callable[..., Any]) -> Any:
    class Template(templates.AbstractTemplate):  # type: ignore[misc]
        key = function

        def generic(self, arguments: Any, keywords: Any) -> Any:
            return None if keywords else typed(*map(types.unliteral, arguments))

    def code(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        value = emit(builder, signature, arguments)
        return context.get_dummy_value() if value is None else value

    Template.__name__ = function.__name__
    _code_rules.lower(function, types.VarArg(types.Any))(code)
    return Template

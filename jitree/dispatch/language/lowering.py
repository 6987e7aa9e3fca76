"""Python functions on integers to LLVM IR.

The language: parameters and local variables are 64-bit integers that wrap; assignments, ``if``, ``while``,
``for … in range``, ``return``, integer and bit arithmetic (``>>`` keeps the sign), comparisons, ``and``,
``or``, ``not``, conditional expressions, calls of other such functions and of :mod:`primitives`. Global names
are constants. A function without ``return`` gives 0. Everything else is refused when the image is built.

Numba would do the same; its front end takes a tenth of a second a function, and there are a hundred.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from jitree.dispatch.language import primitives
from jitree.dispatch.language.primitives import Field
from jitree.errors import InternalError

IntegerFunction = Callable[..., Any]

HEADER: Final = """
declare i64 @llvm.ctlz.i64(i64, i1)
attributes #0 = { nounwind "no-builtins" }
"""

_ARITHMETIC: Final[dict[type, str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
_COMPARISONS: Final[dict[type, str]] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge",
}  # fmt: skip
_LOADS: Final = {
    primitives.load8: ("i8", "zext"),
    primitives.load32: ("i32", "sext"),
    primitives.load64: ("i64", ""),
}
_STORES: Final = {primitives.store8: "i8", primitives.store32: "i32", primitives.store64: "i64"}


def lower(functions: Iterable[IntegerFunction]) -> str:
    """The IR of functions and of all that they call, each ``i64 @name(i64 …)``."""
    texts: dict[str, str] = {}
    known: dict[str, IntegerFunction] = {}
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        name = function.__name__
        if known.setdefault(name, function) is not function:
            raise InternalError(f"two functions of the name {name}")
        if name not in texts:
            lowering = _Lowering(function)
            texts[name] = lowering.text()
            waiting += lowering.callees
    return HEADER + "\n".join(texts.values())


def entry_text(symbol: str, function: IntegerFunction, constants: Sequence[int]) -> str:
    """A function as bytecode calls it, ``i32 (state, values, refs, words)``; ``constants`` come behind."""
    names = ("state", "values", "refs", "words")
    casts = [f"  %{name}.i = ptrtoint ptr %{name} to i64" for name in names]
    arguments = ", ".join([*(f"i64 %{name}.i" for name in names), *(f"i64 {value}" for value in constants)])
    return "\n".join([
        f"define i32 @{symbol}({', '.join(f'ptr %{name}' for name in names)}) #0 {{", *casts,
        f"  %result = call i64 @{function.__name__}({arguments})",
        "  %status = trunc i64 %result to i32", "  ret i32 %status", "}",
    ])  # fmt: skip


class _Lowering:
    """One function."""

    def __init__(self, function: IntegerFunction) -> None:
        self._name = function.__name__
        self._globals = function.__globals__
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self._tree = tree
        self._lines: list[str] = []
        self._slots: dict[str, str] = {}
        self._count = 0
        self._loops: list[tuple[str, str]] = []
        self.callees: list[IntegerFunction] = []

    def text(self) -> str:
        parameters = [argument.arg for argument in self._tree.args.args]
        for name in parameters:
            self._do(f"store i64 %{name}, ptr {self._slot(name)}")
        self._block(self._tree.body)
        self._do("ret i64 0")
        header = ", ".join(f"i64 %{name}" for name in parameters)
        slots = [f"  {slot} = alloca i64" for slot in self._slots.values()]
        lines = [
            f"define i64 @{self._name}({header}) #0 {{",
            "function.start:",
            *slots,
            *self._lines,
            "}",
            "",
        ]
        return "\n".join(lines)

    # -- lines ---------------------------------------------------------------------------------------

    def _do(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def _let(self, text: str) -> str:
        self._count += 1
        self._do(f"%t{self._count} = {text}")
        return f"%t{self._count}"

    def _label(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def _jump(self, label: str) -> None:
        self._do(f"br label %{label}")

    def _slot(self, name: str) -> str:
        return self._slots.setdefault(name, f"%{name}.at")

    def _refuse(self, node: ast.AST, why: str) -> NoReturn:
        line = getattr(node, "lineno", 0)
        raise InternalError(f"{self._name}, line {line}: {why}: {ast.unparse(node)}")

    # -- statements ----------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as made):
                self._call(made)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._do(f"store i64 {self._value(value)}, ptr {self._slot(name)}")
            case ast.AugAssign(target=ast.Name(id=name), op=operation, value=value):
                result = self._arithmetic(node, operation, self._variable(node, name), self._value(value))
                self._do(f"store i64 {result}, ptr {self._slot(name)}")
            case ast.If(test=test, body=body, orelse=orelse):
                self._if(test, body, orelse)
            case ast.While(test=test, body=body, orelse=[]):
                self._while(test, body)
            case ast.For(target=ast.Name(id=name), iter=ast.Call() as domain, body=body, orelse=[]):
                self._for(name, domain, body)
            case ast.Return(value=value):
                self._do(f"ret i64 {'0' if value is None else self._value(value)}")
                self._begin(self._label("dead"))
            case ast.Break() | ast.Continue():
                self._jump(self._loops[-1][isinstance(node, ast.Break)])
                self._begin(self._label("dead"))
            case _:
                self._refuse(node, "not in the language")

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        then, other, done = self._label("then"), self._label("else"), self._label("done")
        self._condition(test, then, other)
        for label, statements in ((then, body), (other, orelse)):
            self._begin(label)
            self._block(statements)
            self._jump(done)
        self._begin(done)

    def _while(self, test: ast.expr, body: list[ast.stmt]) -> None:
        again, turn, done = self._label("again"), self._label("turn"), self._label("done")
        self._jump(again)
        self._begin(again)
        self._condition(test, turn, done)
        self._loop(body, turn, again, done)
        self._jump(again)
        self._begin(done)

    def _for(self, name: str, domain: ast.Call, body: list[ast.stmt]) -> None:
        if not isinstance(domain.func, ast.Name) or domain.func.id != "range":
            self._refuse(domain, "only range, upwards")
        bounds = [self._value(argument) for argument in domain.args]
        start, last, stride = ["0", *bounds, "1"] if len(bounds) == 1 else [*bounds, "1"][:3]
        again, turn, step, done = (self._label(part) for part in ("again", "turn", "step", "done"))
        slot, counter = self._slot(name), self._slot(f"{name}.{again}")
        self._do(f"store i64 {start}, ptr {counter}")
        self._jump(again)
        self._begin(again)
        number = self._let(f"load i64, ptr {counter}")
        self._do(f"br i1 {self._let(f'icmp slt i64 {number}, {last}')}, label %{turn}, label %{done}")
        self._begin(turn)
        self._do(f"store i64 {number}, ptr {slot}")
        body_label = self._label("body")
        self._jump(body_label)
        self._loop(body, body_label, step, done)
        self._jump(step)
        self._begin(step)
        following = self._let(f"add i64 {self._let(f'load i64, ptr {counter}')}, {stride}")
        self._do(f"store i64 {following}, ptr {counter}")
        self._jump(again)
        self._begin(done)

    def _loop(self, body: list[ast.stmt], label: str, again: str, done: str) -> None:
        self._begin(label)
        self._loops.append((again, done))
        self._block(body)
        self._loops.pop()

    # -- conditions ----------------------------------------------------------------------------------

    def _condition(self, node: ast.expr, yes: str, no: str) -> None:
        """Goes to one of two labels."""
        match node:
            case ast.BoolOp(op=operation, values=values):
                for value in values[:-1]:
                    following = self._label("next")
                    if isinstance(operation, ast.And):
                        self._condition(value, following, no)
                    else:
                        self._condition(value, yes, following)
                    self._begin(following)
                self._condition(values[-1], yes, no)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._condition(operand, no, yes)
            case _:
                self._do(f"br i1 {self._test(node)}, label %{yes}, label %{no}")

    def _test(self, node: ast.expr) -> str:
        """An i1."""
        if isinstance(node, ast.Compare):
            left = self._value(node.left)
            result = ""
            for operation, operand in zip(node.ops, node.comparators, strict=True):
                right = self._value(operand)
                name = _COMPARISONS.get(type(operation)) or self._refuse(node, "no such comparison")
                one = self._let(f"icmp {name} i64 {left}, {right}")
                result = self._let(f"and i1 {result}, {one}") if result else one
                left = right
            return result
        if isinstance(node, ast.Call) and self._constant(node.func) is primitives.below:
            left, right = map(self._value, node.args)
            return self._let(f"icmp ult i64 {left}, {right}")
        return self._let(f"icmp ne i64 {self._value(node)}, 0")

    def _truth(self, node: ast.expr) -> str:
        yes, no, done = self._label("yes"), self._label("no"), self._label("done")
        self._condition(node, yes, no)
        for label in (yes, no):
            self._begin(label)
            self._jump(done)
        self._begin(done)
        return self._let(f"phi i64 [ 1, %{yes} ], [ 0, %{no} ]")

    # -- values --------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=bool() | int() as number):
                return str(int(number))
            case ast.Name(id=name) if name in self._slots:
                return self._variable(node, name)
            case ast.Name() | ast.Attribute():
                constant = self._constant(node)
                if not isinstance(constant, int):
                    self._refuse(node, "no integer")
                return str(int(constant))
            case ast.BinOp(left=left, op=operation, right=right):
                return self._arithmetic(node, operation, self._value(left), self._value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._let(f"sub i64 0, {self._value(operand)}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self._let(f"xor i64 {self._value(operand)}, -1")
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(test, body, orelse)
            case ast.Call():
                return self._call(node)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp():
                return self._truth(node)
        self._refuse(node, "not in the language")

    def _variable(self, node: ast.AST, name: str) -> str:
        if name not in self._slots:
            self._refuse(node, "read before it is set")
        return self._let(f"load i64, ptr {self._slots[name]}")

    def _arithmetic(self, node: ast.AST, operation: ast.operator, left: str, right: str) -> str:
        name = _ARITHMETIC.get(type(operation)) or self._refuse(node, "no such operation")
        return self._let(f"{name} i64 {left}, {right}")

    def _choice(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> str:
        slot = self._slot(self._label("choice"))
        then, other, done = self._label("then"), self._label("else"), self._label("done")
        self._condition(test, then, other)
        for label, value in ((then, body), (other, orelse)):
            self._begin(label)
            self._do(f"store i64 {self._value(value)}, ptr {slot}")
            self._jump(done)
        self._begin(done)
        return self._let(f"load i64, ptr {slot}")

    def _constant(self, node: ast.expr) -> Any:
        """What a global name, or an attribute of one, stands for."""
        match node:
            case ast.Name(id=name) if name in self._globals:
                return self._globals[name]
            case ast.Attribute(value=value, attr=name):
                return getattr(self._constant(value), name)
        self._refuse(node, "unknown name")

    # -- calls ---------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> str:
        function = self._constant(node.func)
        if function in (primitives.load, primitives.store):
            return self._access(node, function)
        values = [self._value(argument) for argument in node.args]
        if function in _LOADS:
            return self._load(values[0], *_LOADS[function])
        if function in _STORES:
            return self._store(values[0], _STORES[function], values[1])
        if function is primitives.call:
            passed = ", ".join(f"i64 {value}" for value in values[1:])
            return self._let(f"call i64 {self._pointer(values[0])}({passed})")
        if function is primitives.call_double:
            number = self._let(f"bitcast i64 {values[1]} to double")
            return self._let(f"call i64 {self._pointer(values[0])}(double {number})")
        if function is primitives.narrow:
            number = self._let(f"bitcast i64 {values[0]} to double")
            single = self._let(f"fptrunc double {number} to float")
            return self._let(f"sext i32 {self._let(f'bitcast float {single} to i32')} to i64")
        if function is primitives.widen:
            single = self._let(f"bitcast i32 {self._let(f'trunc i64 {values[0]} to i32')} to float")
            number = self._let(f"fpext float {single} to double")
            return self._let(f"bitcast double {number} to i64")
        if function is primitives.stack:
            return self._let(f"ptrtoint ptr {self._let(f'alloca i8, i64 {values[0]}, align 64')} to i64")
        if function is primitives.bit_length:
            zeros = self._let(f"call i64 @llvm.ctlz.i64(i64 {values[0]}, i1 false)")
            return self._let(f"sub i64 64, {zeros}")
        if function is primitives.below:
            return self._truth(node)
        if not inspect.isfunction(function):
            self._refuse(node, "no function of the language")
        self.callees.append(function)
        return self._let(f"call i64 @{function.__name__}({', '.join(f'i64 {value}' for value in values)})")

    def _access(self, node: ast.Call, function: IntegerFunction) -> str:
        field = self._constant(node.args[1])
        assert isinstance(field, Field)
        address = self._let(f"add i64 {self._value(node.args[0])}, {field.offset}")
        kind, extension = ("i32", "sext") if field.width == 4 else ("i64", "")
        if function is primitives.load:
            return self._load(address, kind, extension)
        return self._store(address, kind, self._value(node.args[2]))

    def _pointer(self, address: str) -> str:
        return self._let(f"inttoptr i64 {address} to ptr")

    def _load(self, address: str, kind: str, extension: str) -> str:
        value = self._let(f"load {kind}, ptr {self._pointer(address)}, align 1")
        return self._let(f"{extension} {kind} {value} to i64") if extension else value

    def _store(self, address: str, kind: str, value: str) -> str:
        if kind != "i64":
            value = self._let(f"trunc i64 {value} to {kind}")
        self._do(f"store {kind} {value}, ptr {self._pointer(address)}, align 1")
        return "0"

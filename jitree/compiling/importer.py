"""Makes MLIR bytecode of a model, with names and types of its declaration. It is run as a script, in a
process of its own.

    python importer.py onnx model.onnx program.mlirbc name declaration
    python importer.py mlir model.mlirbc program.mlirbc chosen name
    python importer.py mend lowered.mlirbc program.mlirbc declaration

``name`` is what the module is called; MLIR keeps the name that it has, unless another is ``chosen``. An ONNX
file has shapes and types already. Each operation keeps the name of its node as its location, which is what
errors, profiles and taps show; ``declaration`` says names and types of arguments and results. A program of
JAX has names of its arguments as their locations, and those of its results as attributes; where all stays as
it is, no file is written. ``mend`` gives the results of a program of ONNX, after its conversion, the
unsigned types that are declared, which the conversion drops, and cuts fractions off before numbers become
integers, which vmvx rounds to the nearest.
What cannot be imported is one line on standard error, in the form that the compiler has for its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

_CONVERSIONS = ("arith.fptosi", "arith.fptoui")
_FLOATS = ("f16", "bf16", "f32", "f64")
_WHOLE = ("math.floor", "math.ceil", "math.round", "math.roundeven", "math.trunc")
"""Operations whose results have no fractions."""
_CHOOSING = ("arith.maximumf", "arith.minimumf")
"""Operations whose results are one of their operands."""
_DOMAINS = ("", "ai.onnx", "com.microsoft")
"""Those of ONNX, and of onnxruntime, which has forms of ONNX's under the same names."""
_DECLARATION = "iree.abi.declaration"
_REFLECTION = "iree.reflection"
_NAME = "sym_name"
_EXPORT, _ENCODING = "hal.tensor.export", "source_encoding"
"""What makes a result of a tensor; the attribute that has the type that it is given."""


def import_onnx(source: str, target: str, name: str, declaration: str) -> None:
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context, DictAttr, StringAttr

    def import_node(importer: Any, node: Any) -> None:
        if node.domain not in _DOMAINS:  # the importer would take it for ONNX's operator of this name
            node.op_type = f"{node.domain}.{node.op_type}"
        try:
            take(importer, node)
        except Exception as error:
            text = " ".join(str(error).split())
            sys.exit(f'error: loc("{node.name}"): "onnx.{node.op_type}": {type(error).__name__}: {text}')

    take = onnx_importer.NodeImporter.import_node
    onnx_importer.NodeImporter.import_node = import_node
    context = Context()
    info = onnx_importer.ModelInfo(onnx.load(source))
    module = info.create_module(context=context).operation
    onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    with context:
        module.attributes[_NAME] = StringAttr.get(name)
        function = module.regions[0].blocks[0].operations[0]
        function.attributes[_REFLECTION] = DictAttr.get({_DECLARATION: StringAttr.get(declaration)})
    module.verify()
    with open(target, "wb") as file:
        module.write_bytecode(file)


def import_mlir(source: str, target: str, chosen: str, name: str) -> None:
    from iree.compiler.ir import Context, Module, StringAttr

    with Context() as context:
        context.allow_unregistered_dialects = True
        module = Module.parseFile(source)  # locations have the name of the file
        attributes = module.operation.attributes
        named = chosen or ("" if _NAME in attributes else name)
        if named:
            attributes[_NAME] = StringAttr.get(named)
        if _declare(module) or named:
            with open(target, "wb") as file:
                module.operation.write_bytecode(file)


def mend(source: str, target: str, declaration: str) -> None:
    from iree.compiler.ir import Context, Location, Module, RankedTensorType, Type, TypeAttr

    declared = _types(declaration.partition("->")[2])
    with Context(), Location.unknown():
        module = Module.parseFile(source)
        _cut_fractions(module.operation)
        for function in module.body.operations:
            for body in (block for region in function.regions for block in region.blocks):
                for value, text in zip(list(body.operations)[-1].operands, declared, strict=False):
                    export = value.owner.operation
                    element = re.split("x|<", text.rstrip(">"))[-1]
                    if export.name == _EXPORT and element.startswith("ui"):
                        shape = RankedTensorType(export.attributes[_ENCODING].value).shape
                        encoding = RankedTensorType.get(shape, Type.parse(element))
                        export.attributes[_ENCODING] = TypeAttr.get(encoding)
        with open(target, "wb") as file:
            module.operation.write_bytecode(file)


def _cut_fractions(operation: Any) -> None:
    """Cuts fractions off what becomes an integer, also in what is within an operation."""
    from iree.compiler.dialects import arith, math
    from iree.compiler.ir import InsertionPoint

    for block in (block for region in operation.regions for block in region.blocks):
        for inner in list(block.operations):
            one = inner.operation
            _cut_fractions(one)
            if one.name not in _CONVERSIONS:
                continue
            value = one.operands[0]
            if str(value.type) in _FLOATS and not _is_whole(value):
                with InsertionPoint(one), one.location:
                    zero = arith.constant(value.type, 0.0)
                    is_negative = arith.cmpf(arith.CmpFPredicate.OLT, value, zero)
                    one.operands[0] = arith.select(is_negative, math.ceil(value), math.floor(value))


def _is_whole(value: Any) -> bool:
    """Whether a number has no fraction: an index that stays as it is may become a copy."""
    maker: Any = getattr(value.owner, "operation", None)
    name = getattr(maker, "name", "")
    if name == "arith.constant":
        return float(maker.attributes["value"].value).is_integer()
    return name in _WHOLE or (name in _CHOOSING and all(map(_is_whole, maker.operands)))


def _declare(module: Any) -> bool:
    """Declares the functions by the names that they have; whether they have such."""
    from iree.compiler.ir import Attribute, DictAttr, StringAttr

    functions = [one.operation for one in module.body.operations if "function_type" in one.attributes]
    public = [
        one
        for one in functions
        if "private" not in str(_of(one, "sym_visibility")) and _REFLECTION not in one.attributes
    ]
    texts = [_declared(one, functions) for one in public]
    if not all(texts):
        return False
    for function, text in zip(public, texts, strict=True):
        if function.name.startswith("vhlo."):
            pair = f'#vhlo.string_v1<"{_DECLARATION}"> = #vhlo.string_v1<"{text}">'
            function.attributes[_REFLECTION] = Attribute.parse(f"#vhlo.dict_v1<{{{pair}}}>")
        else:
            function.attributes[_REFLECTION] = DictAttr.get({_DECLARATION: StringAttr.get(text)})
    return bool(texts)


def _of(operation: Any, name: str) -> Any:
    try:
        return operation.attributes[name]
    except KeyError:
        return ""


def _declared(function: Any, functions: list[Any]) -> str:
    """Names that JAX has given; empty where it has not."""
    kind, symbol = _plain(_of(function, "function_type")), _text(_of(function, "sym_name"))
    taken, _, given = kind.partition("->")
    types, results = _types(taken), _types(given)
    names = [_name(str(one.location)) for one in function.regions[0].blocks[0].arguments]
    if not all(names) and len(functions) > 1:  # one that checks sizes, and calls the program
        inner = functions[-1].regions[0].blocks[0].arguments
        names = [_name(str(one.location)) for one in list(inner)[-len(types) :]]
    if len(names) != len(types) or not all(names):
        return ""
    found = re.findall(r'jax\.result_info"?>? = [^"]*"result([^"]*)"', str(_of(function, "res_attrs")))
    outputs = [_identifier(one) or f"output{index}" for index, one in enumerate(found)]
    if len(outputs) != len(results):
        outputs = [f"output{index}" for index in range(len(results))]
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    return f"sync func @{symbol}({arguments}) -> ({', '.join(map('%{}: {}'.format, outputs, results))})"


def _plain(attribute: Any) -> str:
    """Types as the compiler writes them: portable artefacts have versions of them."""
    text = re.sub(r"[!#]?vhlo\.(\w+?)_v\d+", r"\1", str(attribute))
    return re.sub(r"(?<=[x<])bool(?=>)", "i1", text)


def _types(text: str) -> list[str]:
    return re.findall(r"tensor<(?:[^<>]|<[^<>]*>)*>", text)


def _text(attribute: Any) -> str:
    return _plain(attribute).removeprefix("string<").strip('<>"')


def _name(location: str) -> str:
    found = re.fullmatch(r'loc\("([^"]*)"\)', location)
    return _identifier(found[1]) if found else ""


def _identifier(text: str) -> str:
    """``p['w']`` → ``p_w``."""
    return "_".join(re.findall(r"\w+", text))


_WORK: dict[str, Callable[..., None]] = {"onnx": import_onnx, "mlir": import_mlir, "mend": mend}

if __name__ == "__main__":
    try:
        _WORK[sys.argv[1]](*sys.argv[2:])
    except Exception as error:
        sys.exit(f"error: {type(error).__name__}: {' '.join(str(error).split())}")

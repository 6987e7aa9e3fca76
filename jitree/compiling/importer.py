"""Makes MLIR bytecode of a model, with names and types of arguments and results; run as a script, in a
process of its own.

    python importer.py onnx model.onnx program.mlirbc declaration
    python importer.py stablehlo model.mlirbc program.mlirbc

An ONNX file has shapes and types already. Each operation keeps the name of its node as its location, which is
what errors, profiles and taps show; ``declaration`` says names and types of arguments and results. A program
of JAX has names of its arguments as their locations, and those of its results as attributes; one that has
none stays as it is, and no file is written.
What cannot be imported is one line on standard error, in the form that the compiler has for its own.
"""

from __future__ import annotations

import re
import sys
from typing import Any

_DECLARATION = "iree.abi.declaration"
_REFLECTION = "iree.reflection"


def import_onnx(source: str, target: str, declaration: str) -> None:
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context, DictAttr, StringAttr

    def import_node(importer: Any, node: Any) -> None:
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
        function = module.regions[0].blocks[0].operations[0]
        function.attributes[_REFLECTION] = DictAttr.get({_DECLARATION: StringAttr.get(declaration)})
    module.verify()
    with open(target, "wb") as file:
        module.write_bytecode(file)


def import_stablehlo(source: str, target: str) -> None:
    from iree.compiler.ir import Attribute, Context, DictAttr, Module, StringAttr

    with open(source, "rb") as file:
        data = file.read()
    with Context() as context:
        context.allow_unregistered_dialects = True
        module = Module.parse(data)
        functions = [one.operation for one in module.body.operations if "function_type" in one.attributes]
        for function in functions:
            if "private" in str(_of(function, "sym_visibility")) or _REFLECTION in function.attributes:
                continue
            text = _declared(function, functions)
            if not text:
                return
            if function.name.startswith("vhlo."):
                pair = f'#vhlo.string_v1<"{_DECLARATION}"> = #vhlo.string_v1<"{text}">'
                function.attributes[_REFLECTION] = Attribute.parse(f"#vhlo.dict_v1<{{{pair}}}>")
            else:
                function.attributes[_REFLECTION] = DictAttr.get({_DECLARATION: StringAttr.get(text)})
        with open(target, "wb") as file:
            module.operation.write_bytecode(file)


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
    return re.sub(r"[!#]?vhlo\.(\w+?)_v\d+", r"\1", str(attribute))


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


if __name__ == "__main__":
    try:
        (import_onnx if sys.argv[1] == "onnx" else import_stablehlo)(*sys.argv[2:])
    except Exception as error:
        sys.exit(f"error: {type(error).__name__}: {' '.join(str(error).split())}")

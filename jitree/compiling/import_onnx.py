"""Writes the program of an ONNX file as MLIR bytecode; run as a script, in a process of its own.

    python import_onnx.py model.onnx program.mlirbc declaration

The file has shapes and types already. Each operation keeps the name of its node as its location, which is
what errors, profiles and taps show; ``declaration`` says names and types of arguments and results.
What cannot be imported is one line on standard error, in the form that the compiler has for its own.
"""

from __future__ import annotations

import sys
from typing import Any


def import_model(source: str, target: str, declaration: str) -> None:
    import onnx
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context, DictAttr, StringAttr

    def import_node(importer: Any, node: Any) -> None:
        try:
            take(importer, node)
        except Exception as error:
            if isinstance(error, SystemExit):
                raise
            text = " ".join(str(error).split())
            sys.exit(f'error: loc("{node.name}"): "onnx.{node.op_type}": {type(error).__name__}: {text}')

    take = onnx_importer.NodeImporter.import_node
    onnx_importer.NodeImporter.import_node = import_node
    context = Context()
    info = onnx_importer.ModelInfo(onnx.load(source))
    module = info.create_module(context=context).operation
    importer = onnx_importer.NodeImporter.define_function(info.main_graph, module)
    importer.import_all()
    with context:
        function = module.regions[0].blocks[0].operations[0]
        reflection = {"iree.abi.declaration": StringAttr.get(declaration)}
        function.attributes["iree.reflection"] = DictAttr.get(reflection)
    module.verify()
    with open(target, "wb") as file:
        module.write_bytecode(file)


if __name__ == "__main__":
    import_model(*sys.argv[1:])

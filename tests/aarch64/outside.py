"""Compiles outside of an emulation what is asked for inside: ``python -m tests.aarch64.outside SOCKET``.

LLVM takes ten to forty times as long inside. The bytes are the same: this process takes its machine for one
with the extensions that are asked for, so generators return what they do inside, and LLVM compiles that to
the same bytes on every machine. Each request runs in a new process.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from importlib import import_module

from jitree.base import platform

platform.MACHINE = "aarch64"  # type: ignore[misc]  # before the others ask

from jitree.base.platform import processor  # noqa: E402
from jitree.codegen.image import build  # noqa: E402
from jitree.codegen.image.compile import (  # noqa: E402
    Target,
    compile_unit,
    optimized_module,
    target_machine,
    target_of,
)
from jitree.codegen.image.flat import Recipe  # noqa: E402
from jitree.codegen.image.generated import Pipeline, Unit  # noqa: E402
from tests.aarch64.asking import receive, send  # noqa: E402
from tests.dispatch.native.nests.harness import own_machine  # noqa: E402

Texts = tuple[tuple[str, ...], tuple[str, ...], tuple[object, ...]]
_GENERATORS = ("jitree.dispatch.native.build", "jitree.loaders.vmvx.build")
"""Modules of those that are asked for most: copies of this process need not import them."""


def main(path: str) -> None:
    """Answers until it is ended."""
    for name in _GENERATORS:
        import_module(name)
    target_machine(target_of("aarch64", "generic"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        while True:
            connection, _ = listening.accept()
            with connection:
                if not os.fork():
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _answer(connection)
                    os._exit(0)


def _answer(connection: socket.socket) -> None:
    """Sends the result, or None for what fails: who asked compiles it inside and sees how."""
    kind, *operands = pickle.loads(receive(connection))
    try:
        answer: object = globals()[kind](*operands)
    except Exception:
        traceback.print_exc()
        answer = None
    send(connection, pickle.dumps(answer))


def image(recipe: tuple[object, ...], target: tuple[str, str, str]) -> tuple[object, ...]:
    """What a builder makes of a recipe: the parts of a flat image."""
    stated = {feature.removeprefix("+") for feature in target[2].split(",")}
    processor.arm_features = lambda: stated & set(processor._ARM_FEATURES)  # type: ignore[assignment]
    build.target_here = lambda: Target(*target)
    made = build.build(build.generate(Recipe(*recipe)), Target(*target))  # type: ignore[arg-type]
    return bytes(made.code), bytes(made.rebase), dict(made.entries), bytes(made.notes)


def unit(texts: Texts, target: tuple[str, str, str]) -> bytes:
    """The object of a unit."""
    return compile_unit(_unit(texts), Target(*target))


def nest(texts: Texts, target: tuple[str, str, str]) -> bytes:
    """The object of what tests of nests run in an engine."""
    asked = _unit(texts)
    module = optimized_module(asked.texts, asked.entries, Target(*target), asked.pipeline)
    return bytes(own_machine(Target(*target)).emit_object(module))


def _unit(texts: Texts) -> Unit:
    ir, entries, pipeline = texts
    return Unit(ir, entries, Pipeline(*pipeline))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1])

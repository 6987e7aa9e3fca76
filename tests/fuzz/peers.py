"""Asks iree.runtime what programs of bytecode do, in a process of its own, which some of them end.

``python -m tests.fuzz.peers`` is that process: it gets modules and calls, and answers with outcomes.
"""

from __future__ import annotations

import pickle
import selectors
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO, Final

Outcome = tuple[Any, ...]
"""How a call ends, then the buffer and the list that it was given."""
Answer = list[Outcome] | str
"""Of each call; or why the module is not loaded."""

RELEASE: Final = "3.13.0"
ITEMS: Final = 4
LENGTH: Final = 64
SHOWN: Final = 100
"""Items of a list that are looked at."""
SECONDS: Final = 10.0
"""That the peer has for a program."""
_MEMORY: Final = 2 << 30
_PROCESSOR_SECONDS: Final = 120
"""That a process has in all, also where nobody waits for it any more."""
_SIZE: Final = struct.Struct("<I")


@dataclass
class Peer:
    """The process, made anew where a program ended it."""

    process: subprocess.Popen[bytes] | None = field(default=None)

    def ask(self, module: bytes, calls: Sequence[tuple[int, ...]]) -> Answer | None:
        """Nothing where the process ends or does not answer."""
        process = self.process = self.process or _started()
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, (module, list(calls)))
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                answer: Answer | None = received(process.stdout) if selector.select(SECONDS) else None
        except BrokenPipeError:
            answer = None
        if answer is None:
            self.close()
        return answer

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()


@cache
def peer() -> Peer | None:
    """The peer of a process that has not been forked since; nothing where the release is not installed."""
    try:
        found = version("iree-base-runtime")  # it is not imported: this process is to be as programs' are
    except PackageNotFoundError:
        return None
    return Peer() if found.startswith(RELEASE) else None


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.peers"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def send(file: BinaryIO | Any, value: object) -> None:
    data = pickle.dumps(value)
    file.write(_SIZE.pack(len(data)) + data)
    file.flush()


def received(file: BinaryIO | Any) -> Any:
    """None at the end of the file."""
    header = file.read(_SIZE.size)
    return pickle.loads(file.read(_SIZE.unpack(header)[0])) if len(header) == _SIZE.size else None


def main() -> None:
    import resource

    import iree.runtime as rt

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_SECONDS, _PROCESSOR_SECONDS))
    instance = rt.VmInstance()
    while (request := received(sys.stdin.buffer)) is not None:
        data, calls = request
        try:
            module = rt.VmModule.copy_buffer(instance, data)
            context = rt.VmContext(instance, modules=(module,))
            answer: Answer = [_called(rt, context, module.lookup_function("f"), given) for given in calls]
        except (ValueError, RuntimeError) as error:
            answer = str(error)
        send(sys.stdout.buffer, answer)


def _called(rt: Any, context: Any, function: Any, given: tuple[int, ...]) -> Outcome:
    arguments, results = rt.VmVariantList(5), rt.VmVariantList(3)
    for value in given:
        arguments.push_int(value)
    buffer, items = rt.VmBuffer(LENGTH), rt.VmVariantList(ITEMS)
    memoryview(buffer)[:] = bytes(LENGTH)
    for value in range(ITEMS):
        items.push_int(value)
    arguments.push_ref(buffer)
    arguments.push_list(items)
    try:
        context.invoke(function, arguments, results)
    except Exception as error:
        end: Outcome = ("status", str(error))
    else:
        end = ("done", results.get_variant(0), results.get_variant(1), _shown(rt, results, 2))
    return end, bytes(memoryview(buffer)), [_shown(rt, items, at) for at in range(min(len(items), SHOWN))]


def _shown(rt: Any, items: Any, at: int) -> object:
    value = items.get_variant(at)
    if isinstance(value, (int, float)) or value is None:
        return value
    buffer = items.get_as_object(at, rt.VmBuffer)
    return "list" if buffer is None else bytes(memoryview(buffer))


if __name__ == "__main__":
    main()

"""Stores one dispatch of a call in files and reruns it alone.

Finds the dispatch that reads an element of a constant.

Programs bind all of their constants to each dispatch. Each one that binds the element is run alone, with
other bits there. The first that then makes something else reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

import numpy as np

from jitree import errors
from jitree.api.calls.transfers import copy_to_device
from jitree.base.arguments import object_of
from jitree.base.events import DISPATCH
from jitree.base.records import NamedTuple
from jitree.hal.command_buffer import BufferRange
from jitree.hal.enums import CachingMode
from jitree.hal.executable import ExecutableParameters
from jitree.hal.fence import Fence
from jitree.hal.stepwise import merged
from jitree.observe.observation import Onlooker
from jitree.observe.taps import require_memory, tensor_type
from jitree.observe.tensors import dtype_of, elements_of, has_elements
from jitree.observe.tolerance import Statistics, statistics
from jitree.types import BY_NAME

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.hal.device import Device
    from jitree.hal.stepwise import DeviceStep, Extent
    from jitree.observe.tensors import ObservedDispatch
    from jitree.observe.tolerance import Tolerance

Array = np.ndarray[Any, Any]

_DESCRIPTION: Final = "dispatch.json"
_EXECUTABLE: Final = "executable.bin"
_MEMORY: Final = "memory.npz"
_EXPECTED: Final = "expected.npz"
_BYTES: Final = " bytes"
_SCRIPT: Final = '''"""{text}"""

from pathlib import Path

import jitree

folders = sorted(path.parent for path in Path(__file__).parent.glob("*/dispatch.json"))
first, *others = [jitree.LoneDispatch.load(folder) for folder in folders]
second = others[0].run if others else first.expected
print(first.name, *first.statistics(), jitree.diff(first.run, second, {tolerance}), sep="\\n")
'''


class MemorySpan(NamedTuple):
    """Names a part of the memory of a dispatch. It is a binding, or a tensor in it."""

    block: int
    offset: int
    length: int


class LoneDispatch:
    """Runs a dispatch alone, with its memory as it was before it ran. Made by :meth:`load` and
    :meth:`of_call`.

    :meth:`Difference.save` and :func:`jitree.reduce` write such dispatches to folders.

    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb", device="local-sync")
    >>> image = np.zeros((8, 8), np.float32)
    >>> dispatch = jitree.LoneDispatch.of_call(digits.classify, [image], None)
    >>> [output.shape for output in dispatch.run()]
    [(10,)]
    """

    def __init__(
        self, facts: dict[str, Any], executable: bytes, blocks: Sequence[Array], expected: Sequence[Array]
    ) -> None:
        self._facts = facts
        self._executable = executable
        self._blocks = tuple(blocks)
        self._expected = list(expected)

    @property
    def name(self) -> str:
        """The full name of the export, with that of its executable."""
        return str(self._facts["name"])

    @property
    def bindings(self) -> list[Array]:
        """Bytes of each binding before it runs: arrays of ``uint8`` of rank 1."""
        return [_part(self._blocks, MemorySpan(*span)) for span in self._facts["bindings"]]

    def expected(self) -> list[Array]:
        """What it made in the program, in the shapes of its outputs.

        Where that was compared with another runtime, what that has. Nothing fails here.
        """
        return self._expected

    @errors.folded
    def statistics(self) -> list[Statistics]:
        """Runs it, and gives statistics of what it makes. Errors are those of :meth:`run`."""
        kinds = (kind for _, kind in self._facts["outputs"])
        return [
            statistics(partial(_whole, made), made.shape, kind)
            for made, kind in zip(self.run(), kinds, strict=True)
        ]

    @errors.folded
    def run(self, device: str | None = None) -> list[Array]:
        """Runs it on its own or another device, and gives outputs in their shapes.

        ``device``: a URI. NOT_FOUND for an unknown one, UNIMPLEMENTED for a device that computes nothing.
        """
        blocks = self.run_whole(device)
        return [_unpacked(_part(blocks, MemorySpan(*span)), kind) for span, kind in self._facts["outputs"]]

    @errors.folded
    def run_whole(self, device: str | None = None) -> list[Array]:
        """As :meth:`run` on ``device``, with all of its memory as it is then.

        It gives bytes, an array of rank 1 for each block of memory; errors are those of :meth:`run`.
        """
        from jitree.api.session import Instance

        opened = Instance.default().create_device(device or self._facts["device"])
        try:
            if not opened.is_observable:
                raise errors.UnimplementedError(
                    f"{opened.uri} computes nothing; run the dispatch on another device"
                )
            return self._run_on(opened)
        finally:
            opened.close()

    def bytes_at(self, block: int, places: Array) -> Array:
        """Gives some bytes of its memory before it runs, in the shape of ``places``.

        ``block``: the number of the block of memory. IndexError outside.
        """
        return np.array(self._blocks[block][places])

    def with_bytes(self, block: int, places: Array, values: Array) -> LoneDispatch:
        """The same dispatch on memory with other bytes.

        ``block``: the number of the block; ``places``: which bytes; ``values``: of the same shape. IndexError
        outside.
        """
        blocks = [np.array(one) if number == block else one for number, one in enumerate(self._blocks)]
        blocks[block][places] = values
        return LoneDispatch(self._facts, self._executable, blocks, self._expected)

    def _run_on(self, device: Device) -> list[Array]:
        facts = self._facts
        executable = device.create_executable_cache("lone").prepare_executable(
            ExecutableParameters(
                facts["format"],
                memoryview(self._executable),
                tuple(facts["specialization"]),
                CachingMode.ALIAS_PROVIDED_DATA,
            )
        )
        views = [copy_to_device(block, BY_NAME["ui8"], device) for block in self._blocks]
        ranges = [
            BufferRange(0, views[block].buffer, offset, length) for block, offset, length in facts["bindings"]
        ]
        signal = Fence.create(device)
        x, y, z = facts["workgroups"]
        device.queue_dispatch(
            -1, None, signal, executable, facts["function"], (x, y, z), facts["constants"], ranges
        )
        signal.wait()
        return [np.array(device.read_buffer(view.buffer, None)) for view in views]

    def expect(self, array: Array, operand: str) -> None:
        """Notes what another runtime has in place of what the dispatch makes.

        ``array``: of the shape of the output. ``operand``: ``output 0``, or a result, which is its only
        output as large. Nothing is noted, and nothing fails, where no one output is meant.
        """
        fitting = [number for number, made in enumerate(self._expected) if made.size == array.size]
        meant = [number for number in fitting if operand == f"output {number}"] or fitting
        if len(meant) == 1:
            made = self._expected[meant[0]]
            self._expected[meant[0]] = array.astype(made.dtype).reshape(made.shape)

    # -- in files --------------------------------------------------------------------------------------

    @errors.folded
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes it into a folder, which is made.

        ``folder``: a path. UNAVAILABLE where it cannot be written, INVALID_ARGUMENT for what is no path.
        """
        place = require_folder(folder)
        with errors.system_refusals(f"cannot write a dispatch to '{place}'"):
            place.mkdir(parents=True, exist_ok=True)
            (place / _DESCRIPTION).write_text(json.dumps(self._facts, indent=1) + "\n")
            (place / _EXECUTABLE).write_bytes(self._executable)
            np.savez(place / _MEMORY, *self._blocks)
            np.savez(
                place / _EXPECTED,
                *(np.ascontiguousarray(made).reshape(-1).view(np.uint8) for made in self._expected),
            )

    @classmethod
    @errors.folded
    def load(cls, folder: str | os.PathLike[str]) -> LoneDispatch:
        """Reads one that was saved in ``folder``.

        NOT_FOUND where there is none, INVALID_ARGUMENT for damaged files.
        """
        place = require_folder(folder)
        try:
            facts = json.loads((place / _DESCRIPTION).read_text())
            blocks, expected = (_arrays(place / name) for name in (_MEMORY, _EXPECTED))
            _require_inside(facts["bindings"] + [span for span, _ in facts["outputs"]], blocks)
            made = [_typed(data, kind) for data, (_, kind) in zip(expected, facts["outputs"], strict=True)]
            return cls(facts, (place / _EXECUTABLE).read_bytes(), blocks, made)
        except OSError as error:
            errors.pass_interruption(error)
            raise errors.NotFoundError(f"no dispatch was saved in '{place}': {error.strerror}") from None
        except (ValueError, KeyError, TypeError, BadZipFile) as error:
            errors.pass_interruption(error)
            raise errors.InvalidArgumentError(f"the dispatch in '{place}' is damaged: {error}") from None

    # -- in a call -------------------------------------------------------------------------------------

    @classmethod
    def of_call(cls, function: Function, inputs: Sequence[Any], ordinal: int | None) -> LoneDispatch:
        """Takes a dispatch out of a call, which is made for it.

        ``function``: of a module; ``inputs``: its arguments. ``ordinal``: its number, from 0 on; None: the
        last one that begins, where the call fails, too. FAILED_PRECONDITION if there is none, or its program
        was not loaded by this session.
        """
        capture = CapturedDispatch(ordinal)
        with function.session.looked_at(capture):
            try:
                function(*inputs)
            except Exception as error:  # the call may go on after the dispatch, and fail
                if capture.facts is None or errors.is_interruption(error):
                    raise
        facts = capture.facts
        if facts is None:
            which = "no dispatch" if ordinal is None else f"no dispatch {ordinal}"
            raise errors.FailedPreconditionError(f"the call of '{function.full_name}' has {which}")
        return capture.dispatch(function)


class CapturedDispatch(Onlooker):
    """Copies the memory of one dispatch before it runs, and what it makes."""

    def __init__(self, ordinal: int | None) -> None:
        self._ordinal = ordinal
        self._bases: list[int] = []
        self.facts: dict[str, Any] | None = None
        self.blocks: list[Array] = []
        self.expected: list[Array] = []
        self.parameters: ExecutableParameters | None = None

    def is_about(self, step: DeviceStep, ordinal: int | None) -> None:
        if step.kind != DISPATCH or ordinal is None or (self._ordinal not in (None, ordinal)):
            return
        extents = merged(step.operands)
        require_memory(step.name, sum(length for _, length in extents))
        self._bases = [address for address, _ in extents]
        self.blocks = [np.array(step.look(extent)) for extent in extents]
        self.expected = []
        self.parameters = None if step.executable is None else step.executable.parameters
        self.facts = {
            "name": step.name,
            "ordinal": ordinal,
            "function": step.function,
            "workgroups": step.workgroups,
            "constants": [constant & 0xFFFFFFFF for constant in step.constants],
            "bindings": [self._span(operand) for operand in step.operands],
            "outputs": [],
        }

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if self.facts is None or dispatch.kind != DISPATCH or dispatch.ordinal != self.facts["ordinal"]:
            return
        self.facts["outputs"] = [[self._span(tensor.extent), tensor.type] for tensor in dispatch.outputs]
        self.expected = [np.array(tensor.array) for tensor in dispatch.outputs]

    def dispatch(self, function: Function) -> LoneDispatch:
        """What was captured. FAILED_PRECONDITION where another program has loaded its executable."""
        assert self.facts is not None
        parameters = self.parameters
        if parameters is None:
            raise errors.FailedPreconditionError(
                f"the executable of {self.facts['name']} was loaded by another program"
            )
        facts = self.facts | {
            "device": function.device.uri,
            "format": parameters.format,
            "specialization": list(parameters.constants),
        }
        return LoneDispatch(facts, bytes(parameters.data), self.blocks, self.expected)

    def span_of(self, address: int) -> tuple[int, int]:
        """The block that an address lies in, and its place there."""
        return self._span((address, 1))[:2]

    def _span(self, extent: Extent) -> MemorySpan:
        address, length = extent
        block = max(number for number, base in enumerate(self._bases) if base <= address)
        return MemorySpan(block, address - self._bases[block], length)


def require_folder(folder: Any) -> Path:
    """INVALID_ARGUMENT for what is no path."""
    return Path(object_of("folder", folder, str, os.PathLike))


def save_reproduction(
    folder: str | os.PathLike[str], dispatches: Sequence[LoneDispatch], allowed: Tolerance, text: str
) -> None:
    """Writes dispatches that make the same tensor, and a script that runs them."""
    place = require_folder(folder)
    for name, dispatch in zip("ab", dispatches, strict=False):
        dispatch.save(place / name)
    given = ", ".join(
        f"{name}={value!r}" for name, value in zip(allowed._fields, allowed, strict=True) if value is not None
    )
    text = text.replace("\\", "/").replace('"', "'")
    with errors.system_refusals(f"cannot write to '{place}'"):
        (place / "run.py").write_text(_SCRIPT.format(text=text, tolerance=given).replace(", )", ")"))


def _part(blocks: Sequence[Array], span: MemorySpan) -> Array:
    return blocks[span.block][span.offset : span.offset + span.length]


def _typed(data: Array, kind: str) -> Array:
    """Bytes as a tensor of a type; ``1152 bytes`` stay bytes."""
    if kind.endswith(_BYTES):
        return data
    element, shape = tensor_type(kind)
    return data.view(dtype_of(element)).reshape(shape) if has_elements(element) else data


def _unpacked(data: Array, kind: str) -> Array:
    """As :func:`_typed`, of memory, where elements may share bytes."""
    if kind.endswith(_BYTES):
        return data
    element, shape = tensor_type(kind)
    return elements_of(data, element, prod(shape)).reshape(shape) if has_elements(element) else data


def _whole(array: Array) -> Iterator[Array]:
    yield array.reshape(-1)


def _arrays(path: Path) -> list[Array]:
    with np.load(path) as file:
        arrays = [file[name] for name in file.files]
    if not all(isinstance(array, np.ndarray) and array.dtype == np.uint8 for array in arrays):
        raise ValueError(f"{path.name} has something else than bytes")
    return arrays


def _require_inside(spans: Sequence[Sequence[int]], blocks: Sequence[Array]) -> None:
    for block, offset, length in spans:
        if not (0 <= block < len(blocks) and 0 <= offset <= offset + length <= len(blocks[block])):
            raise ValueError(f"{_DESCRIPTION} names memory that {_MEMORY} does not have")


_LARGEST: Final = 64 << 20
"""Bytes of memory of a dispatch that is run alone."""


class ConstantReader(NamedTuple):
    """The dispatch that reads an element."""

    dispatch: ObservedDispatch
    operand: str
    """The element's place among what it reads: ``input 1``; empty if that is not known."""
    type: str
    coordinate: tuple[int, ...]


def first_reader(
    function: Function, inputs: Sequence[Any], ordinal: int, binding: int, place: range
) -> ConstantReader | None:
    """Finds the first dispatch, from a number on, that reads bytes of a constant. They are at a ``place`` of
    what is bound to that one as ``binding``. None if it is not found: none does, or more memory is bound than
    is copied."""
    return _searched(function, inputs, ordinal, binding, place).found


def is_unread(
    function: Function, inputs: Sequence[Any], ordinal: int, binding: int, places: Sequence[int]
) -> bool:
    """Tells whether no dispatch, from a number on, is known to read the bytes: an allocation that values
    share has bytes between them that nobody writes either."""
    if not places:
        return False
    reader = _searched(function, inputs, ordinal, binding, places)
    return reader.found is None and reader.is_complete


def _searched(
    function: Function, inputs: Sequence[Any], ordinal: int, binding: int, places: Sequence[int]
) -> _ConstantReader:
    reader = _ConstantReader(function, ordinal, binding, places)
    with function.session.looked_at(reader):
        function(*inputs)
    return reader


class _ConstantReader(Onlooker):
    def __init__(self, function: Function, ordinal: int, binding: int, places: Sequence[int]) -> None:
        self._function = function
        self._first = ordinal
        self._binding = binding
        self._places = np.array(places)
        self.is_complete = True
        """Whether each dispatch that may read the bytes has been run with others."""
        self._address = 0
        self._number: int | None = None
        self.found: ConstantReader | None = None

    def is_about(self, step: DeviceStep, ordinal: int | None) -> None:
        if step.kind != DISPATCH or ordinal is None or ordinal < self._first or self._number is not None:
            return
        if ordinal == self._first:
            self._address = step.operands[self._binding][0] + int(self._places[0])
        end = self._address + int(self._places[-1] - self._places[0]) + 1
        if not any(start < end and self._address < start + length for start, length in step.operands):
            return
        whole = any(start <= self._address and end <= start + length for start, length in step.operands)
        if not whole or sum(length for _, length in step.operands) > _LARGEST:
            self.is_complete = False
        elif self._reads(step, ordinal):
            self._number = ordinal

    def _reads(self, step: DeviceStep, ordinal: int) -> bool:
        captured = CapturedDispatch(ordinal)
        captured.is_about(step, ordinal)
        dispatch = captured.dispatch(self._function)
        block, start = captured.span_of(self._address)
        changed = self._places - self._places[0] + start
        expected = dispatch.run_whole()
        return any(
            _differ(expected, dispatch.with_bytes(block, changed, other).run_whole(), block, changed)
            for other in (np.full(changed.size, 0xFF, np.uint8), ~dispatch.bytes_at(block, changed))
        )

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if self._number is not None and dispatch.ordinal == self._number:
            self.found = self.found or self._reader(dispatch)

    def _reader(self, dispatch: ObservedDispatch) -> ConstantReader:
        for number, tensor in enumerate(dispatch.inputs):
            place, kind = self._address - tensor.extent[0], tensor.kind
            if kind is not None and not tensor.origin and 0 <= place < kind.byte_length:
                element = place * 8 // kind.element.bits
                coordinate = tuple(map(int, np.unravel_index(element, kind.shape)))
                return ConstantReader(dispatch, f"input {number}", tensor.type, coordinate)
        return ConstantReader(dispatch, "", "", ())


def _differ(expected: Sequence[Any], found: Sequence[Any], block: int, changed: Any) -> bool:
    """Tells whether two runs left other memory, but for bytes changed before."""
    found[block][changed] = expected[block][changed]
    return any((one != other).any() for one, other in zip(expected, found, strict=True))

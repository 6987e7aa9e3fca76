"""Find out from bytecode whether a program may store to its constants.

Then it works on a copy of those that are not its own to change, wherever they lie.

Compilers have some operations work in place on a constant. Which bindings a kernel may store to its loader
says; of kernels that are machine code nobody knows, but compilers bind results last. Which buffers are bound
there is followed through the registers and globals of the program. What it has allocated is no constant.
Everything else may be one: what is not followed costs a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from jitree.base.cancel_scopes import require_going_on
from jitree.base.finalizers import SharedWeakKeys
from jitree.dispatch.native.reading import ReadBlock, ReadInstruction, read_blocks
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import ENTRY_PC, REF
from jitree.hal.executable import ExecutableLoader
from jitree.modules.import_rows import Parameter, named, parse_parameters
from jitree.vmfb.cconv import Span, parse
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import TAG_VALUE32, TAG_VALUE64

_ALL: Final = -1
_NULL, _OWN, _OTHER = 1, 2, 4
_FIRST_COMMANDS: Final = 3
"""What a register may hold, bits: nothing, memory that the program has allocated, anything else; from
the first commands on, command buffers that the function of that number has made."""
_ALLOCATING: Final = ("hal.allocator.allocate", "hal.device.queue.alloca")
_RANGE: Final = "hal.buffer.subspan"
_CREATE: Final = "hal.command_buffer.create"
_LOOK_UP: Final = "hal.executable.lookup.function"
_DISPATCH: Final = "hal.command_buffer.dispatch"
_PUSH: Final = "hal.command_buffer.push_descriptor_set"
_EXECUTE: Final = {"hal.device.queue.execute.indirect": 4, "hal.command_buffer.execute.commands": 1}
"""Where the command buffer is among the arguments."""
_TARGET, _SLOT = "target_buffer", "target_buffer_slot"
"""Parameters of transfers."""
_MOST_WORDS: Final = 1 << 20
"""Of bytecode. Reading more takes longer than to copy what models of that size have."""

_State = dict[int, int]
"""What registers may hold; those that are not there hold nothing."""
_known: Final = SharedWeakKeys[BytecodeModule, bool]()


def may_store_to_constants(modules: Iterable[object], loaders: Sequence[ExecutableLoader]) -> bool:
    """Whether a module with kernels may store to constants. A loader says what they store to."""
    return any(_may_store(module, loaders) for module in modules if isinstance(module, BytecodeModule))


def _may_store(module: BytecodeModule, loaders: Sequence[ExecutableLoader]) -> bool:
    known = _known.get(module)
    if known is None:
        kernels = _Kernels(module, loaders)
        has_kernels = bool(kernels.by_name) or kernels.are_machine_code
        known = _known[module] = has_kernels and _BoundConstants(module, kernels).stores
    return known


class _Kernels:
    """Of all executables of a module: a bit for each binding that those of a name, or of an ordinal, may
    store to."""

    def __init__(self, module: BytecodeModule, loaders: Sequence[ExecutableLoader]) -> None:
        self.by_name: dict[str, int] = {}
        self._by_ordinal: dict[int, int] = {}
        self.are_machine_code = module.module.has_machine_code
        for segment in module.module.rodata:
            for loader in loaders:
                for ordinal, (name, stores) in enumerate(loader.stores(segment.data)):
                    self.by_name[name] = self.by_name.get(name, 0) | stores
                    self._by_ordinal[ordinal] = self._by_ordinal.get(ordinal, 0) | stores

    def stores(self, kernel: str | int | None, count: int) -> int:
        """``kernel``: its name or ordinal, None if neither is known; ``count``: of its bindings."""
        found = self.by_name.get(kernel) if isinstance(kernel, str) else self._by_ordinal.get(kernel or 0)
        if found is not None and kernel is not None:
            return found
        return 1 << max(count - 1, 0) if self.are_machine_code and not self.by_name else _ALL


class _BoundConstants:
    def __init__(self, module: BytecodeModule, kernels: _Kernels) -> None:
        self._module = module
        self._kernels = kernels
        self._names = [row.full_name for row in module.imports]
        self._globals: dict[int, int] = {}
        self._results: dict[int, int] = {}
        """What functions may give, by ordinal."""
        self._changed_slots: list[tuple[int, int]] = []
        """Slots of binding tables that commands may store to: what the register of the command buffer may
        hold, and the slot, _ALL for one that is not known."""
        self._bound_slots: list[tuple[int, int]] = []
        """Slots that constants may be bound to."""
        self.stores = len(module.program.words) > _MOST_WORDS or self._find()

    def _find(self) -> bool:
        source = from_program(self._module.program)
        functions: list[tuple[int, Mapping[int, ReadBlock], _State]] = []
        for function in source.functions:
            require_going_on()
            start = {register: _OTHER for kind, register in function.arguments if kind == REF}
            functions.append((function.ordinal, read_blocks(source, function, ()), start))
        reached = [dict[int, _State]() for _ in functions]
        before: tuple[dict[int, int], ...] = ()
        while before != (self._globals, self._results):  # found as functions are followed
            before = dict(self._globals), dict(self._results)
            for (ordinal, blocks, start), states in zip(functions, reached, strict=True):
                require_going_on()
                self._follow(ordinal, blocks, start, states)
        steps = (
            step
            for (ordinal, blocks, _), states in zip(functions, reached, strict=True)
            for step in self._steps(ordinal, blocks, states)
        )
        return any(self._is_store(*step) for step in steps) or any(
            (commands & others or (commands | others) & _OTHER) and slot in (other, _ALL)
            for commands, slot in self._changed_slots
            for others, other in self._bound_slots
        )

    def _follow(
        self, ordinal: int, blocks: Mapping[int, ReadBlock], start: _State, states: dict[int, _State]
    ) -> None:
        """Finds what registers of a function may hold where blocks begin."""
        states.setdefault(ENTRY_PC, start)
        waiting = list(states)
        while waiting:
            pc = waiting.pop()
            state = dict(states[pc])
            for instruction in blocks[pc].instructions:
                self._step(ordinal, instruction, state)
            for target in blocks[pc].targets:
                if _join(states, target, state):
                    waiting.append(target)

    def _step(self, ordinal: int, instruction: ReadInstruction, state: _State) -> None:
        mnemonic = instruction.mnemonic
        given = [variable.slot for variable in instruction.inputs if variable.type == REF]
        if mnemonic.startswith("global.store") and given:
            held = state.get(given[0], _NULL)
            for slot in [instruction.literals[0]] if mnemonic == "global.store.ref" else [_ALL]:
                self._globals[slot] = self._globals.get(slot, 0) | held
        if mnemonic == "return":
            for register in given:
                self._results[ordinal] = self._results.get(ordinal, 0) | state.get(register, _NULL)
        made = self._made(ordinal, instruction, given, state)
        for output in instruction.outputs:
            if output.type == REF:
                state[output.slot] = made
        for move in instruction.moves:
            if move.tag not in (TAG_VALUE32, TAG_VALUE64):
                state[move.destination] = state.get(move.source, _NULL)

    def _made(self, ordinal: int, instruction: ReadInstruction, given: Sequence[int], state: _State) -> int:
        """What the result of an instruction may be."""
        mnemonic = instruction.mnemonic
        if mnemonic == "const.ref.zero":
            return _NULL
        if mnemonic == "global.load.ref":
            return self._globals.get(_ALL, 0) | self._globals.get(instruction.literals[0], 0) or _NULL
        if mnemonic == "call.internal":
            return self._results.get(instruction.literals[0], 0) or _NULL
        if mnemonic == "call.import":
            name = self._name(instruction)
            if name == _CREATE:
                return 1 << _FIRST_COMMANDS + ordinal
            if name in _ALLOCATING:
                return _OWN
            if name == _RANGE:
                return state.get(given[0], _NULL)
        return _OTHER

    def _name(self, instruction: ReadInstruction) -> str:
        return self._names[self._module.program.site_import(instruction.literals[0])[0]]

    # -- what is stored to -----------------------------------------------------------------------------

    def _steps(
        self, ordinal: int, blocks: Mapping[int, ReadBlock], states: Mapping[int, _State]
    ) -> Iterator[tuple[ReadInstruction, _State, dict[int, str | int]]]:
        """Lists calls of imports with registers, numbers and kernel names."""
        for pc, start in states.items():
            state, numbers, texts = dict(start), dict[int, str | int](), dict[int, str]()
            for instruction in blocks[pc].instructions:
                if instruction.mnemonic == "call.import":
                    yield instruction, state, numbers
                self._step(ordinal, instruction, state)
                self._note(instruction, numbers, texts)

    def _note(
        self, instruction: ReadInstruction, numbers: dict[int, str | int], texts: dict[int, str]
    ) -> None:
        mnemonic = instruction.mnemonic
        named_text = None
        if mnemonic == "call.import" and self._name(instruction) == _LOOK_UP:
            named_text = texts.get(instruction.inputs[1].slot)
        for output in instruction.outputs:
            if output.type == REF:
                texts.pop(output.slot, None)
                continue
            numbers.pop(output.slot, None)
            if output.type in ("i64", "f64"):
                numbers.pop(output.slot + 1, None)
            if output.type == "i32" and mnemonic.startswith("const.i32"):
                numbers[output.slot] = instruction.literals[0] if instruction.literals else 0
            elif named_text is not None:
                numbers[output.slot] = named_text
        if mnemonic == "const.ref.rodata":
            segment = self._module.module.rodata[instruction.literals[0]]
            texts[instruction.outputs[0].slot] = str(segment.data[:1024], "utf-8", "backslashreplace")

    def _is_store(
        self, instruction: ReadInstruction, state: _State, numbers: Mapping[int, str | int]
    ) -> bool:
        """Whether a call has something store to what may be a constant. Notes its slots of binding tables."""
        name = self._name(instruction)
        fixed, span = self._arguments(instruction)

        def slot(register: int) -> int:
            number = numbers.get(register, _ALL)
            return number if isinstance(number, int) else _ALL

        if name.startswith((_DISPATCH, _PUSH)):
            is_pushed = name == _PUSH
            kernel = None if is_pushed else numbers.get(fixed[2])
            stores = self._kernels.stores(kernel, len(span))
            changed = [
                (row[2], slot(row[1])) for number, row in enumerate(span) if stores >> min(number, 63) & 1
            ]
        elif name in _EXECUTE:
            commands = state.get(fixed[_EXECUTE[name]], _NULL)
            for number, row in enumerate(span):
                if state.get(row[0], _NULL) & _OTHER:
                    self._bound_slots.append((commands, number))
            return False
        else:
            names = _fixed_names(name, self._cconv(instruction))
            if _TARGET not in names:
                return False
            at = names.index(_SLOT) if _SLOT in names else None
            changed = [(fixed[names.index(_TARGET)], 0 if at is None else slot(fixed[at]))]
        for register, number in changed:
            held = state.get(register, _NULL)
            if held & _OTHER:
                return True
            if held & _NULL:
                self._changed_slots.append((state.get(fixed[0], _NULL), number))
        return False

    def _cconv(self, instruction: ReadInstruction) -> str:
        return self._module.imports[self._module.program.site_import(instruction.literals[0])[0]].cconv or ""

    def _arguments(self, instruction: ReadInstruction) -> tuple[list[int], list[tuple[int, ...]]]:
        """Lists argument registers around spans, and the last span's rows."""
        _, segments = self._module.program.site_import(instruction.literals[0])
        registers = iter([variable.slot for variable in instruction.inputs])
        fixed: list[int] = []
        rows: list[tuple[int, ...]] = []
        items = parse(self._cconv(instruction)).arguments
        for item, count in zip(items, segments or (1,) * len(items), strict=True):
            if isinstance(item, Span):
                rows = [tuple(next(registers) for _ in item.characters) for _ in range(count)]
            else:
                fixed.append(next(registers))
        return fixed, rows


def _join(states: dict[int, _State], pc: int, state: _State) -> bool:
    """Whether registers may hold more where a block begins than was known."""
    known = states.get(pc)
    if known is None:
        states[pc] = dict(state)
        return True
    joined = {
        register: known.get(register, _NULL) | state.get(register, _NULL) for register in {*known, *state}
    }
    if joined == known:
        return False
    states[pc] = joined
    return True


def _fixed_names(name: str, cconv: str) -> list[str]:
    """The names of the parameters of an import, without spans."""
    module, _, function = name.partition(".")
    row = next((row for row in named(module, function) if row.cconv == cconv), None)
    items: list[Parameter | list[Parameter]] = [] if row is None else parse_parameters(row.parameters)
    return [item[0] for item in items if isinstance(item, tuple)]

"""Finds the places in programs that breakpoints mean: functions, offsets, lines, imports, dispatches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from jitree.base.near_names import nearest
from jitree.debug.code import KEPT, Codes, FunctionCode
from jitree.debug.frames import compiled, evaluate, frames_of, read_global, shortened
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError, printable
from jitree.observe.graph import EVERYTHING
from jitree.observe.taps import near
from jitree.regs.memory import address_of

if TYPE_CHECKING:
    from jitree.debug.frames import Frame, Showing
    from jitree.observe.tensors import ObservedDispatch
    from jitree.regs.machine import Machine
    from jitree.regs.records import FunctionRecord, ModuleRecord

_CONDITION: Final = re.compile(r"(.*?)\s+if\s+(.+)")
_OFFSET: Final = re.compile(r"(.*)\+(?:0x)?([0-9A-Fa-f]{1,8})")
_LINE: Final = re.compile(r"(.+):(\d{1,9})")
_SOURCE: Final = re.compile(r"(.+?):(\d+)(?::\d+)?(?: \(.*\))?")
"""``file.mlir:3:10``, ``file.mlir:3 (stage)``"""
_STORED: Final = "global.store."
_INIT: Final = "__init"
"""It has run when its module is debugged."""
IMPORT: Final = "import"
DISPATCH: Final = "dispatch"
"""Words before patterns in places."""

Word = tuple[int, int]
"""The address of a program's words, and an index of them."""


class Breakpoint:
    """A place to stop at, on a condition."""

    def __init__(self, number: int, text: str, condition: str, words: set[Word], owner: Breakpoints) -> None:
        self.number, self.text, self.condition, self.words = number, text, condition, words
        self.hits = 0
        self._owner = owner

    def __str__(self) -> str:
        condition = f" if {self.condition}" if self.condition else ""
        hits = f", hits {self.hits}" if self.hits else ""
        return f"{self.number}: {self.text}{condition}{hits}"

    def hit(self, machine: Machine, pc: int) -> str:
        """Why to stop in front of an instruction; empty: not."""
        owner = self._owner
        return self.test(lambda: owner.evaluate(self.condition, frames_of(machine, pc, owner.codes)[0]))

    def test(self, condition: Callable[[], Any]) -> str:
        """Why to stop, if the condition holds. One that fails stops, and says why."""
        try:
            if self.condition and not condition():
                return ""
        except (StatusError, ValueError) as error:  # of an array's truth
            return f"breakpoint {self.number}, whose condition failed: {error}"
        self.hits += 1
        return f"breakpoint {self.number}, {self.text}"


class DispatchBreakpoint(Breakpoint):
    """Stops when a dispatch has been done; or prints what it made. Other operations of a queue are meant by
    their own names, such as ``fill``."""

    kind = DISPATCH
    prints = False
    """Whether it only tells of the dispatch."""

    def __init__(self, number: int, text: str, names: list[str], condition: str, owner: Breakpoints) -> None:
        """``names`` are patterns."""
        super().__init__(number, text, condition, set(), owner)
        self._names = names

    def matches(self, dispatch: ObservedDispatch) -> bool:
        if dispatch.kind != DISPATCH:
            return dispatch.kind in self._names
        return any(fnmatchcase(dispatch.name, pattern) for pattern in self._names)

    def hit_by(self, dispatch: ObservedDispatch) -> str:
        return self.test(lambda: self._owner.evaluate(self.condition, None, names_in(dispatch)))


class Watch(Breakpoint):
    """Stops before the instruction that follows a change of a global."""

    def __init__(
        self, number: int, name: str, words: set[Word], read: Callable[[], str], owner: Breakpoints
    ) -> None:
        super().__init__(number, name, "", words, owner)
        self.value = read

    def hit(self, machine: Machine, pc: int) -> str:
        return ""

    def change(self, before: object) -> str:
        """Why to stop, if it is another value now."""
        value = self.value()
        if value == before:
            return ""
        self.hits += 1
        return f"watch {self.number}, {self.text}: {before} -> {value}"


class Breakpoints:
    """All breakpoints of a debugger."""

    def __init__(self, session: Any, codes: Codes, show: Showing, look: Callable[[], None]) -> None:
        """``look`` has devices tell of dispatches."""
        self._session, self.codes, self.show, self._look = session, codes, show, look
        self.all: dict[int, Breakpoint] = {}
        self.words: dict[int, dict[int, list[Breakpoint]]] = {}
        """What stops at a word, by the address of the program's words."""
        self.watches: list[Watch] = []
        self.dispatches: list[DispatchBreakpoint] = []
        self._reaching: dict[int, bool] = {}
        self._number = 0

    def evaluate(self, text: str, frame: Frame | None, names: dict[str, Any] | None = None) -> Any:
        return evaluate(text, frame, names or {}, self.show)

    # -- changes ---------------------------------------------------------------------------------------

    def add(self, text: str, default: FunctionCode | None = None) -> Breakpoint:
        """Adds a breakpoint as ``break`` takes it; an offset alone is one of ``default``. NOT_FOUND, saying
        what there is, for a place that is not there; UNIMPLEMENTED for dispatches of a device that does not
        tell of them."""
        match = _CONDITION.fullmatch(text)
        place, condition = (match[1].strip(), match[2]) if match else (text.strip(), "")
        if condition:
            compiled(condition)
        kind, _, rest = place.partition(" ")
        number = self._number + 1
        item: Breakpoint
        if kind == DISPATCH:
            pattern = self._pattern(rest.strip() or "*")
            item = DispatchBreakpoint(number, f"{DISPATCH} {pattern}", [pattern], condition, self)
        elif kind == IMPORT:
            item = Breakpoint(number, place, condition, self._sites(rest.strip() or "*"), self)
        elif line := _LINE.fullmatch(place):
            words, names = self._line(line[1], int(line[2]))
            item = Breakpoint(number, place, condition, words, self)
            if not words:
                item = DispatchBreakpoint(number, place, names, condition, self)
        else:
            word, name = self._function_place(place, default)
            item = Breakpoint(number, name, condition, {word}, self)
        if isinstance(item, DispatchBreakpoint):
            self._look()
        return self._put(item)

    def add_at(self, code: FunctionCode, offset: int, condition: str = "") -> Breakpoint:
        """Adds a breakpoint at the instruction at an offset, or the next one."""
        word, name = self._at(code, offset)
        return self._put(Breakpoint(self._number + 1, name, condition, {word}, self))

    def watch(self, name: str, frame: Frame) -> Watch:
        """Adds a watch of a global of a frame's module."""
        show, record, held = self.show, frame.record, frame.held

        def read() -> str:
            return show.text(read_global(record, held, name))

        read()
        words: set[Word] = set()
        for code in self.codes_of(record):
            for instruction in code.records:
                if instruction.instruction.mnemonic.startswith(_STORED):
                    words.add((_address(code), code.words[instruction.offset]))
        watch = Watch(self._number + 1, name.strip(), words, read, self)
        self._put(watch)
        return watch

    def _put(self, item: Breakpoint) -> Breakpoint:
        self._number = item.number
        self.all[item.number] = item
        self._arrange()
        return item

    def remove(self, number: int) -> Breakpoint:
        """NOT_FOUND for a number that none has."""
        found = self.all.pop(number, None)
        if found is None:
            known = ", ".join(map(str, self.all)) or "none"
            raise NotFoundError(f"there is no breakpoint {number}; there are: {known}")
        self._arrange()
        return found

    def _arrange(self) -> None:
        words: dict[int, dict[int, list[Breakpoint]]] = {}
        for item in self.all.values():
            for address, word in item.words:
                words.setdefault(address, {}).setdefault(word, []).append(item)
        self.watches = [item for item in self.all.values() if isinstance(item, Watch)]
        self.dispatches = [item for item in self.all.values() if isinstance(item, DispatchBreakpoint)]
        self.words, self._reaching = words, {}

    # -- what programs have ----------------------------------------------------------------------------

    @property
    def modules(self) -> list[ModuleRecord]:
        return self._session.context.invoker.functions.modules  # type: ignore[no-any-return]

    def codes_of(self, record: ModuleRecord) -> Iterator[FunctionCode]:
        """The code of a module's functions."""
        for ordinal in range(len(record.program.functions)):
            yield self.codes.find(record.module, record.program, ordinal)

    def is_instruction(self, machine: Machine, pc: int) -> bool:
        """Whether an instruction of the file begins there."""
        function = machine.function
        record = function.module
        return self.codes.find(record.module, record.program, function.ordinal).is_instruction(pc)

    def find(self, name: str) -> FunctionCode:
        """The function ``name`` or ``module.name``. NOT_FOUND with what is near."""
        names: dict[str, FunctionCode] = {}
        for record in reversed(self.modules):
            for code in self.codes_of(record):
                for known in (code.full_name, f"{record.module.name}.{code.symbol}", code.name, code.symbol):
                    names.setdefault(known, code)
        if name not in names:
            name = name.removeprefix("@")
        if name not in names:
            near = nearest(name, names) or f"; there are: {', '.join(list(names)[:8])}"
            raise NotFoundError(f"no function '{shortened(name)}'{near}")
        return names[name]

    def _function_place(self, place: str, default: FunctionCode | None) -> tuple[Word, str]:
        match = _OFFSET.fullmatch(place)
        if match is None:
            code = self.find(place)
            return self._at(code, 0)
        if match[1]:
            return self._at(self.find(match[1]), int(match[2], 16), is_exact=True)
        if default is None:
            raise InvalidArgumentError(f"'{place}': name the function too, as module.function+1C")
        return self._at(default, int(match[2], 16), is_exact=True)

    def _at(self, code: FunctionCode, offset: int, is_exact: bool = False) -> tuple[Word, str]:
        following = [known for known in code.words if known >= offset]
        if not following or (is_exact and following[0] != offset):
            near = f"; the next one begins at +{following[0]:X}" if following else ""
            raise NotFoundError(f"no instruction begins at {code.full_name}+{offset:X}{near}")
        found = min(following)
        name = code.full_name if not offset else f"{code.full_name}+{found:X}"
        return (_address(code), code.words[found]), name

    def _line(self, file: str, line: int) -> tuple[set[Word], list[str]]:
        """The first instruction of each run of those from a line; where there is none, the names of
        dispatches that are."""
        words: set[Word] = set()
        files: set[str] = set()
        for code in (code for record in self.modules for code in self.codes_of(record)):
            debug = code.module.debug
            places = [] if debug is None else debug.places(code.ordinal)
            files.update(match[1] for place in places if (match := _SOURCE.fullmatch(place)))
            if code.name != _INIT and _any_at(places, file, line):
                before = False
                for offset, word in sorted(code.words.items()):
                    here = _any_at([code.line_of(offset)], file, line)
                    if here and not before:
                        words.add((_address(code), word))
                    before = here
        names = [] if words else [name for name, places in self._exports() if _any_at(places, file, line)]
        if not words and not names:
            known = ", ".join(sorted(files))
            missing = f"no instruction is from it, and no dispatch; modules have lines of: {known}"
            missing = missing if known else f"no module has source locations; {KEPT}"
            raise NotFoundError(f"{printable(file)}:{line}: {missing}")
        return words, names

    def _exports(self) -> Iterator[tuple[str, list[str]]]:
        """Dispatches that devices have: names, and where they come from."""
        for executable in (found for device in self._session.devices for found in device.executables):
            for ordinal in range(executable.function_count):
                yield executable.function_name(ordinal), executable.places(ordinal)

    def _pattern(self, pattern: str) -> str:
        """The pattern of a dispatch's name. NOT_FOUND if there are some, and none is meant."""
        names = [name for name, _ in self._exports()]
        if names and not any(fnmatchcase(name, pattern) for name in (*names, *EVERYTHING[1:])):
            raise NotFoundError(
                f"no dispatch is named '{printable(pattern)}'; names near it: {near(pattern, names)}"
            )
        return pattern

    def _sites(self, pattern: str) -> set[Word]:
        """The calls of imports."""
        words: set[Word] = set()
        names: set[str] = set()
        for code in (code for record in self.modules for code in self.codes_of(record)):
            for offset, is_import, number in code.calls:
                name = code.module.imports[number].full_name if is_import else ""
                names.add(name)
                if is_import and fnmatchcase(name, pattern):
                    words.add((_address(code), code.words[offset]))
        if not words:
            near = nearest(pattern, filter(None, names))
            raise NotFoundError(f"no import that is called is named '{printable(pattern)}'{near}")
        return words

    def stops_in(self, code: FunctionCode) -> set[int]:
        """The offsets of a function that have a breakpoint."""
        words = self.words.get(_address(code), {})
        return {offset for offset, word in code.words.items() if word in words}

    def reaches(self, function: FunctionRecord) -> bool:
        """Whether a function, or what it calls, has a place to stop at.

        Dispatches count as the imports that submit them."""
        known = self._reaching.get(function.address)
        if known is None:
            known = self._reaching[function.address] = self._search(function)
        return known

    def _search(self, function: FunctionRecord) -> bool:
        seen, pending = {function.address}, [function]
        while pending:
            record = pending[-1].module
            code = self.codes.find(record.module, record.program, pending.pop().ordinal)
            words = self.words.get(_address(code))
            if words and any(word in words for word in code.words.values()):
                return True
            for _, is_import, number in code.calls:
                callee = record.function_imports[number] if is_import else record.function(number)
                if callee is None:
                    if self.dispatches:
                        return True
                elif callee.address not in seen:
                    seen.add(callee.address)
                    pending.append(callee)
        return False


def names_in(dispatch: ObservedDispatch | None) -> dict[str, Any]:
    """What expressions may name where a dispatch has been done."""
    if dispatch is None:
        return {}
    inputs, outputs = ([tensor.array for tensor in found] for found in (dispatch.inputs, dispatch.outputs))
    return {"name": dispatch.name, "ordinal": dispatch.ordinal, "inputs": inputs, "outputs": outputs}


def _address(code: FunctionCode) -> int:
    return address_of(code.program.words)


def _any_at(places: Iterable[str], file: str, line: int) -> bool:
    """Whether a place is of a line of a file. Either may have more folders in front."""
    for match in filter(None, map(_SOURCE.fullmatch, places)):
        longer, shorter = sorted((match[1], file), key=len, reverse=True)
        if match[2] == str(line) and f"/{longer}".endswith(f"/{shorter.removeprefix('./')}"):
            return True
    return False

"""The debugger's command line, in the manner of pdb."""

from __future__ import annotations

import cmd
import sys
from inspect import cleandoc
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from jitree.base.arguments import object_of
from jitree.base.near_names import did_you_mean
from jitree.debug.breakpoints import names_in
from jitree.debug.code import KEPT, Codes
from jitree.debug.debugger import Debugger, FrontEnd, Stopped, describe_dispatch
from jitree.debug.frames import (
    GLOBAL,
    Frame,
    Showing,
    assign,
    ended_frame,
    evaluate,
    parse_register,
    read_global,
    shortened,
)
from jitree.debug.stepper import CONTINUE, FINISH, NEXT, QUIT, STEP, Stop, Way
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError, printable

if TYPE_CHECKING:
    from jitree.debug.breakpoints import Breakpoint

PROMPT: Final = "(jitree) "
_AROUND: Final = 5
"""Lines of a listing before and after the current one."""
_DIGITS: Final = 9
"""Of a number that a command takes."""
_ALIASES: Final = {
    "s": "step", "n": "next", "c": "continue", "cont": "continue", "r": "finish", "return": "finish",
    "b": "break", "cl": "delete", "clear": "delete", "u": "up", "d": "down", "w": "where", "bt": "where",
    "l": "list", "p": "print", "q": "quit", "exit": "quit", "h": "help",
}  # fmt: skip
_QUIET: Final = (STEP, NEXT, FINISH)
"""Reasons that go without saying."""


class Shell(cmd.Cmd, FrontEnd):
    """Asks on a terminal, or reads a script, whose commands it shows."""

    prompt = PROMPT

    def __init__(self, read: IO[str] | None = None, write: IO[str] | None = None) -> None:
        super().__init__(stdin=read or sys.stdin, stdout=write or sys.stdout)
        self.debugger: Debugger | None = None
        """None in post mortem."""
        self._stopped: Stopped
        self._place = 0
        """The frame that is looked at; 0: the innermost one."""
        self._way: Way | None = None
        self.has_quit = False
        """Whether it was left before the call was over, or after it had failed."""
        self._repeat: tuple[int, str] | None = None
        self.use_rawinput = read is None and self.stdin.isatty()
        if read is None and isinstance(self.stdin, TextIOWrapper):
            self.stdin.reconfigure(errors="surrogateescape")  # what is no text is refused by the line
        if not self.use_rawinput:
            self.prompt = ""

    def attach(self, debugger: Debugger) -> None:
        """Gets the debugger whose program it shows."""
        self.debugger = debugger

    def tell(self, text: str) -> None:
        self.stdout.write(f"{printable(text)}\n")
        self.stdout.flush()

    def ask(self, stopped: Stopped) -> Way:
        self._stopped, self._place, self._way = stopped, 0, None
        if self._repeat is not None and stopped.stop.reason in _QUIET and self._repeat[0] > 1:
            self._repeat = self._repeat[0] - 1, self._repeat[1]
            return stopped.way(self._repeat[1])
        self._repeat = None
        if stopped.stop.reason not in _QUIET:
            self.tell(f"stopped: {stopped.stop.reason}")
        if stopped.dispatch is not None:
            self.tell("\n".join(describe_dispatch(stopped.dispatch)))
        self._show_place()
        way = None
        while way is None:
            way = self._answer()
        return way

    def _answer(self) -> Way | None:
        try:
            self.is_waiting = True
            self.cmdloop()
        except KeyboardInterrupt:
            self.tell("(quit ends the call)")
        finally:
            self.is_waiting = False
        return self._way

    # -- cmd.Cmd ---------------------------------------------------------------------------------------

    def precmd(self, line: str) -> str:
        if not self.use_rawinput and line.strip() and line != "EOF":
            self.tell(f"{PROMPT}{line.strip()}")
        name, _, rest = line.strip().partition(" ")
        return f"{_ALIASES.get(name, name)} {rest}".strip() if line != "EOF" else line

    def onecmd(self, line: str) -> bool:
        if line.startswith("#"):
            return False
        try:
            super().onecmd(line)
        except StatusError as error:
            self.tell(f"cannot: {error.message}")
        return self._way is not None

    def emptyline(self) -> bool:
        """A script's empty line does nothing; on a terminal it is the last command again."""
        return super().emptyline() if self.use_rawinput else False

    def default(self, line: str) -> None:
        name = line.partition(" ")[0]
        raise NotFoundError(
            f"there is no command '{name}'{did_you_mean(name, self._commands())}; help lists all"
        )

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        return [name for name in self._commands() if name.startswith(text)]

    def _commands(self) -> list[str]:
        return [name[3:] for name in self.get_names() if name.startswith("do_") and name != "do_EOF"]

    # -- what is looked at -----------------------------------------------------------------------------

    @property
    def _frame(self) -> Frame:
        if not self._stopped.frames:
            raise NotFoundError("the program has no frame here: a device works on its own")
        return self._stopped.frames[self._place]

    def _live(self) -> Debugger:
        if self.debugger is None or self._stopped.stop.error is not None:
            raise InvalidArgumentError("the program has failed: it cannot go on; look around, then quit")
        return self.debugger

    def _show_place(self) -> None:
        if self._stopped.frames:
            frame = self._frame
            self.tell(f"> {frame.title}")
            self.tell(f"->{frame.code.lines[frame.offset]}")

    def _go(self, kind: str, argument: str) -> None:
        self._live()
        count = self._number(argument) if argument else 1
        self._repeat = (count, kind) if count > 1 else None
        self._way = self._stopped.way(kind, self._place)

    def _number(self, text: str) -> int:
        if not text.isdecimal() or len(text) > _DIGITS or not int(text):
            raise InvalidArgumentError(f"'{shortened(text)}' is no number above 0")
        return int(text)

    def do_help(self, argument: str) -> None:
        """help [COMMAND]: says what commands do."""
        if argument:
            name = _ALIASES.get(argument, argument)
            if name not in self._commands():
                self.default(argument)
            self.tell(cleandoc(getattr(self, f"do_{name}").__doc__))
        else:
            self.tell(
                "\n".join(getattr(self, f"do_{name}").__doc__.split("\n")[0] for name in self._commands())
            )

    # -- commands: going on ----------------------------------------------------------------------------

    def do_step(self, argument: str) -> None:
        """step [COUNT]: executes an instruction; stops in functions that it calls."""
        self._go(STEP, argument)

    def do_next(self, argument: str) -> None:
        """next [COUNT]: goes on to the next instruction of this function."""
        self._go(NEXT, argument)

    def do_finish(self, argument: str) -> None:
        """finish: goes on until this function has returned."""
        self._go(FINISH, argument)

    def do_continue(self, argument: str) -> None:
        """continue: goes on to the next breakpoint; after a failure it lets the call fail."""
        if self._stopped.stop.error is not None:
            self.do_quit(argument)
        else:
            self._go(CONTINUE, "")

    def do_quit(self, argument: str) -> None:
        """quit: ends the call."""
        self._way, self.has_quit = Way(QUIT), True

    do_EOF = do_quit

    # -- commands: breakpoints -------------------------------------------------------------------------

    def do_break(self, argument: str) -> None:
        """break [PLACE [if CONDITION]]: stops there. Without a place it lists breakpoints.

        PLACE: a function (`module.name` or `name`), an offset in one (`name+1C`, `+1C` in this one), a source
        line (`file.mlir:3`), `import PATTERN`, `dispatch PATTERN` (stops when it has been done).
        CONDITION: a Python expression of registers and globals, `%i3 > 4`, `global[8] == 1`; of a dispatch
        `name`, `ordinal`, `inputs` and `outputs`, arrays."""
        breakpoints = self._live().breakpoints
        if not argument:
            self.tell("\n".join(map(str, breakpoints.all.values())) or "no breakpoints")
            return
        frames = self._stopped.frames
        self._added(breakpoints.add(argument, frames[self._place].code if frames else None))

    def do_watch(self, argument: str) -> None:
        """watch GLOBAL: stops when it has changed. GLOBAL: `global[8]`, `global[8].f32`, `globalref[0]`."""
        self._added(self._live().breakpoints.watch(argument, self._frame))

    def do_tap(self, argument: str) -> None:
        """tap PATTERN: prints statistics of what dispatches make, without a stop."""
        self._added(self._live().tap(argument or "*"))

    def _added(self, item: Breakpoint) -> None:
        self.tell(f"breakpoint {item}")

    def do_delete(self, argument: str) -> None:
        """delete NUMBER: removes a breakpoint, watch or tap."""
        self.tell(f"removed {self._live().breakpoints.remove(self._number(argument))}")

    # -- commands: looking -----------------------------------------------------------------------------

    def do_up(self, argument: str) -> None:
        """up: looks at the caller."""
        self._move(1)

    def do_down(self, argument: str) -> None:
        """down: looks at what was called."""
        self._move(-1)

    def _move(self, by: int) -> None:
        place = self._place + by
        if not 0 <= place < len(self._stopped.frames):
            raise NotFoundError("this is the outermost frame" if by > 0 else "this is the innermost frame")
        self._place = place
        self._show_place()

    def do_where(self, argument: str) -> None:
        """where: lists frames, innermost first."""
        for place, frame in enumerate(self._stopped.frames):
            self.tell(f"{'>' if place == self._place else ' '} {frame.title}")

    def do_list(self, argument: str) -> None:
        """list [all | FUNCTION]: lists instructions around this one, all of this function, or of another."""
        debugger = self.debugger
        if argument and argument != "all":
            code, offset = self._live().breakpoints.find(argument), -1
        else:
            code, offset = self._frame.code, self._frame.offset
        rows = list(code.lines.items())
        at = next((place for place, row in enumerate(rows) if row[0] == offset), 0)
        first, last = (max(0, at - _AROUND), at + _AROUND + 1) if not argument else (0, len(rows))
        stops = debugger.breakpoints.stops_in(code) if debugger is not None else ()
        for place, text in rows[first:last]:
            mark = "B" if place in stops else " "
            self.tell(f"{'->' if place == offset else '  '}{mark} {place:08X} {text}")

    def do_source(self, argument: str) -> None:
        """source: lists lines of the source around this instruction."""
        path, line = source_of(self._frame)
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        first = max(0, line - 1 - _AROUND)
        for number, text in enumerate(lines[first : line + _AROUND], first + 1):
            self.tell(f"{'->' if number == line else '  '} {number:4} {text}")

    def do_functions(self, argument: str) -> None:
        """functions [PART]: lists functions, those with PART in their names."""
        breakpoints = self._live().breakpoints
        codes = (code for record in breakpoints.modules for code in breakpoints.codes_of(record))
        names = [code.full_name for code in codes if argument in code.full_name]
        self.tell("\n".join(names) or f"no function has '{argument}' in its name")

    def do_print(self, argument: str) -> None:
        """print [EXPRESSION]: prints registers that have been written, or an expression of them.

        `%i3`, `%i4:5` (64 bits), `%f3`, `%f4:5` (as floats), `%r0`; `global[8]`, `global[8].f32`,
        `globalref[0]`. Where a dispatch has stopped: `inputs[0]`, `outputs[0]`."""
        show = self._show()
        if not argument:
            self.tell("\n".join(show.registers(self._frame)) or "no register has been written")
        elif argument.startswith("%") and argument[1:].replace(":", "").isalnum():
            self.tell(show.register(self._frame, *parse_register(argument), is_whole=True))
        elif GLOBAL.fullmatch(argument):
            value = read_global(self._frame.record, self._frame.held, argument)
            self.tell(f"{argument} = {show.text(value, True)}")
        else:
            self.tell(show.text(self._evaluated(argument), True))

    def _show(self) -> Showing:
        return Showing(None, None) if self.debugger is None else self.debugger.show

    def _evaluated(self, text: str) -> Any:
        names, frames = names_in(self._stopped.dispatch), self._stopped.frames
        return evaluate(text, frames[self._place] if frames else None, names, self._show())

    def do_set(self, argument: str) -> None:
        """set REGISTER = EXPRESSION: gives a register a value; a ref takes another one (`%r1`) or `null`."""
        self._live()
        name, equals, text = argument.partition("=")
        if not equals:
            raise InvalidArgumentError("set what? set %i3 = 5")
        frame = self._frame
        self.tell(assign(frame, name, text.strip(), self._evaluated, self._show()))


def post_mortem(error: BaseException, front: FrontEnd | None = None) -> None:
    """Looks at the program whose call failed: frames, registers, code.

    ``error``: of the call. ``front``: what asks how to go on; None: the terminal (``docs/debugging.md``).
    Objects are gone with the call. INVALID_ARGUMENT for an error that is of no program.

    >>> import io, sys
    >>> from jitree.debug.shell import Shell
    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb", check_finite=["nan", "inputs"])
    >>> try:
    ...     digits.classify(np.full((8, 8), np.nan, np.float32))
    ... except jitree.StatusError as error:
    ...     jitree.post_mortem(error, Shell(io.StringIO("where"), sys.stdout))
    stopped: post mortem: DATA_LOSS; argument 0 of module.classify has nan at (0, 0) ...
    > module.classify...
    """
    left = getattr(object_of("error", error, BaseException), "frames", None)
    if not left:
        raise InvalidArgumentError(
            f"this {type(error).__name__} has no frames of a program: it came out of none, or from "
            "another process"
        )
    codes = Codes()
    frames = [ended_frame(frame, codes) for frame in left]
    (front or Shell()).ask(Stopped(Stop(None, left[0].word, f"post mortem: {error}", error), frames))


def source_of(frame: Frame) -> tuple[Path, int]:
    """The file and line that an instruction comes from. NOT_FOUND, saying what is missing."""
    name, _, line = frame.location.rpartition(":")[0].rpartition(":")
    if not name or not line.isdecimal():
        missing = f"{frame.code.full_name} has no source locations (list shows instructions)"
        raise NotFoundError(f"{missing}; {KEPT}")
    for folder in (Path(), Path(frame.code.module.archive.name).parent):
        for path in (folder / name, folder / Path(name).name):
            if path.is_file():
                return path, int(line)
    raise NotFoundError(f"the source {name} is not here; run from the folder that the compiler ran in")

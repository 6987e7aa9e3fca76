"""Writes checks into machine code: is the memory there to be accessed?

LLVM has optimised by then, so what is checked are the accesses of the code that is shipped, no more and no
fewer. A check is a call that is inlined: it looks at one byte of the map (:mod:`.shadow`) and calls what
knows more where that does not say yes. Only the builder and tests import this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as llvm

from jitree.codegen.checked.layout import ACCESS, CALLS, MASKED, NOT_CHECKED, REPORTS, SHADOW
from jitree.errors import UnimplementedError

_PARALLEL: Final = {8: "i8", 16: "i16", 32: "i32", 64: "i64"}
"""Bytes of an access whose granules one load of the map has; the type of that load."""
_BYTES: Final = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_OPENING: Final = {"<": ">", "[": "]", "{": "}", "(": ")"}
_HARMLESS: Final = re.compile(
    r"@llvm\.(lifetime|prefetch|x86\.sse\.(ld|st)mxcsr|assume|frameaddress|stackrestore)\b"
)
_FUNCTION: Final = re.compile(r'^define .*?@("[^"]+"|[\w.$-]+)\(')
_ALLOCATED: Final = re.compile(r"^\s*(%\S+) = alloca ")
_ACCESS: Final = re.compile(
    r"^\s*(?:(%\S+) = )?(?:tail |musttail |notail )?(load|store|atomicrmw|cmpxchg|call|invoke)\s+(.*)$"
)
_QUALIFIER: Final = re.compile(r"^(atomic|volatile|weak)\s+")
_MOVED: Final = re.compile(r"@llvm\.(memcpy|memmove|memset)\.[\w.]*\(")
_MASKED: Final = re.compile(r"@llvm\.masked\.(load|store|gather|scatter)\.[\w.]*\(")
_SITE_LENGTH: Final = 160


def is_exempt(text: str) -> bool:
    """Whether a text is that of the checks themselves."""
    return f"@{ACCESS}(" in text


def instrumented(module: Any, machine: Any, parse: Callable[[str], Any]) -> Any:
    """The module with a check before each access; ``parse`` makes a module of a text."""
    text = str(module)
    if is_exempt(text):
        return module
    try:
        checked = parse(_Text(text).whole())
        checked.verify()
    except Exception as error:
        _tell(error)
        raise
    inlining = llvm.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    inlining.run(
        checked, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    )
    return checked


def _tell(error: Exception) -> None:
    """Adds to the reports what cannot be checked: its program is interpreted then, which shows nothing."""
    path = os.environ.get(REPORTS)
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{NOT_CHECKED}{error}\n")


class _Text:
    """A module's text, changed line by line."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._sites: dict[str, int] = {}
        self._sizes: set[int] = set()
        self._places: set[str] = set()
        self._function = ""
        self._number = 0
        self._lane_count = 0

    def whole(self) -> str:
        lines = [line for old in self._lines for line in (*self._before(old), old)]
        sites = [_site(number, text) for text, number in self._sites.items()]
        return "\n".join([*lines, *sites, *map(_check, sorted(self._sizes)), _RANGE, _LANES, ""])

    def _before(self, line: str) -> Iterator[str]:
        begun = _FUNCTION.match(line)
        if begun:
            self._function, self._places, self._number = begun[1].strip('"'), set(), 0
            return
        self._number += 1
        allocated = _ALLOCATED.match(line)
        if allocated:
            self._places.add(allocated[1])
            return
        found = _ACCESS.match(line)
        if found is None:
            return
        kind, rest = found[2], found[3]
        while qualifier := _QUALIFIER.match(rest):
            rest = rest[qualifier.end() :]
        site = f"ptr @checked.site.{self._site(line)}" if kind not in ("call", "invoke") else ""
        if kind == "load":
            yield from self._fixed(_parts(rest)[1], size_of(_parts(rest)[0]), site)
        elif kind == "store":
            yield from self._fixed(_parts(rest)[1], size_of(_type(_parts(rest)[0])), site)
        elif kind == "cmpxchg":
            yield from self._fixed(_parts(rest)[0], size_of(_type(_parts(rest)[1])), site)
        elif kind == "atomicrmw":
            yield from self._fixed(rest[rest.index(" ptr ") + 1 :], size_of(_type(_parts(rest)[1])), site)
        else:
            yield from self._call(rest, line)

    def _fixed(self, place: str, size: int, site: str) -> Iterator[str]:
        if not place.startswith("ptr "):
            raise UnimplementedError(f"an access of {place!r} cannot be checked")
        pointer = _parts(place[4:])[0]
        if pointer.startswith("%"):
            pointer = pointer.split()[0]
        if pointer in self._places or size == 0:
            return
        self._sizes.add(size)
        yield f"  call void @checked.{size}(ptr {pointer}, {site})"

    def _call(self, rest: str, line: str) -> Iterator[str]:
        if "@llvm." not in rest or "ptr" not in rest or _HARMLESS.search(rest):
            return
        moved, masked = _MOVED.search(rest), _MASKED.search(rest)
        if moved:
            given = _parts(rest[moved.end() :].rpartition(")")[0])
            site = f"ptr @checked.site.{self._site(line)}"
            for pointer in given[: 1 if moved[1] == "memset" else 2]:
                yield f"  call void @checked.range(ptr {pointer.split()[-1]}, {given[2]}, {site})"
        elif masked:
            yield from self._lanes(masked, rest, line)
        elif re.search(r"@llvm\.[\w.]*\([^)]*\bptr\b", rest):
            raise UnimplementedError(f"it is not known what is accessed: {line.strip()}")

    def _lanes(self, masked: re.Match[str], rest: str, line: str) -> Iterator[str]:
        """The check of those elements of a vector that a mask lets be accessed."""
        given = _parts(rest[masked.end() :].rpartition(")")[0])
        if masked[1] in ("gather", "scatter"):
            yield from self._places_of(masked[1], given, f"ptr @checked.site.{self._site(line)}")
            return
        pointer, mask = given[:2] if masked[1] == "load" else given[1:3]
        vector = _type(given[-1] if masked[1] == "load" else given[0])
        count, _, element = vector[1:-1].partition(" x ")
        self._lane_count += 1
        bits, wide = (f"%checked.{name}.{self._lane_count}" for name in ("bits", "wide"))
        yield f"  {bits} = bitcast {mask} to i{count}"
        yield f"  {wide} = {'zext' if int(count) < 64 else 'bitcast'} i{count} {bits} to i64"
        yield (
            f"  call void @checked.lanes(ptr {pointer.split()[-1]}, i64 {wide}, i64 {size_of(element)}, "
            f"ptr @checked.site.{self._site(line)})"
        )

    def _places_of(self, kind: str, given: list[str], site: str) -> Iterator[str]:
        """The checks of accesses of several places, of which a mask has some."""
        pointers, mask = given[:2] if kind == "gather" else given[1:3]
        count, _, element = _type(given[-1] if kind == "gather" else given[0])[1:-1].partition(" x ")
        pointers = re.sub(r"> align \d+ ", "> ", pointers)
        for lane in range(int(count)):
            self._lane_count += 1
            place, taken, size = (f"%checked.{name}.{self._lane_count}" for name in ("at", "taken", "size"))
            yield f"  {place} = extractelement {pointers}, i64 {lane}"
            yield f"  {taken} = extractelement {mask}, i64 {lane}"
            yield f"  {size} = select i1 {taken}, i64 {size_of(element)}, i64 0"
            yield f"  call void @checked.range(ptr {place}, i64 {size}, {site})"

    def _site(self, line: str) -> int:
        text = f"{self._function}, line {self._number}: {line.strip()}"[:_SITE_LENGTH]
        return self._sites.setdefault(text, len(self._sites))


def _parts(text: str) -> list[str]:
    """Splits at commas that are not inside of brackets."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        if character in _OPENING:
            depth += 1
        elif character in _OPENING.values():
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()]


def _type(text: str) -> str:
    """The type that a typed value begins with."""
    if text[0] not in _OPENING:
        return text.split()[0]
    depth = 0
    for index, character in enumerate(text):
        depth += (character in _OPENING) - (character in _OPENING.values())
        if not depth:
            return text[: index + 1]
    raise UnimplementedError(f"no type begins {text!r}")


def size_of(kind: str) -> int:
    """Bytes of a type that is loaded or stored."""
    if kind in _BYTES:
        return _BYTES[kind]
    if re.fullmatch(r"i\d+", kind):
        return -(-int(kind[1:]) // 8)
    several = re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", kind)
    if several is None:
        raise UnimplementedError(f"the size of {kind} is not known")
    count, element = int(several[1]), several[2]
    if re.fullmatch(r"i\d+", element) and kind[0] == "<":
        return -(-count * int(element[1:]) // 8)
    return count * size_of(element)


def _site(number: int, text: str) -> str:
    data = "".join(c if c.isalnum() or c in " .,:%@=<>*" else f"\\{ord(c) & 255:02X}" for c in text)
    length = len(re.sub(r"\\[0-9A-F]{2}", "?", data)) + 1
    return f'@checked.site.{number} = private unnamed_addr constant [{length} x i8] c"{data}\\00", align 1'


_SLOW: Final = f"""
  %function = load ptr, ptr inttoptr (i64 {CALLS} to ptr)
  call void %function(i64 %address, i64 %size, ptr %site)
  ret void
}}
"""


def _check(size: int) -> str:
    """The check of an access of so many bytes. What crosses a granule is looked at elsewhere."""
    kind = _PARALLEL.get(size, "i8")
    whole = int.from_bytes(b"\x08" * (size // 8 if size in _PARALLEL else 1), "little")
    inside = f"%end = add i64 %low, {size}\n  %inside = icmp ule i64 %end, 8"
    aligned = "%inside = icmp eq i64 %low, 0"
    return f"""
define internal void @checked.{size}(ptr %pointer, ptr %site) alwaysinline nounwind {{
  %address = ptrtoint ptr %pointer to i64
  %size = add i64 0, {size}
  %granule = lshr i64 %address, 3
  %at = add i64 %granule, {SHADOW}
  %place = inttoptr i64 %at to ptr
  %known = load {kind}, ptr %place, align 1
  %full = icmp eq {kind} %known, {whole}
  %low = and i64 %address, 7
  {aligned if size in _PARALLEL and size > 8 else inside}
  %both = and i1 %full, %inside
  br i1 %both, label %done, label %slow, !prof !{{!"branch_weights", i32 1000, i32 1}}
done:
  ret void
slow:{_SLOW}"""


_RANGE: Final = f"""
define internal void @checked.range(ptr %pointer, i64 %size, ptr %site) alwaysinline nounwind {{
  %address = ptrtoint ptr %pointer to i64{_SLOW}"""

_LANES: Final = f"""
define internal void @checked.lanes(ptr %pointer, i64 %bits, i64 %width, ptr %site) noinline nounwind {{
  %address = ptrtoint ptr %pointer to i64
  %function = load ptr, ptr inttoptr (i64 {MASKED} to ptr)
  call void %function(i64 %address, i64 %bits, i64 %width, ptr %site)
  ret void
}}"""

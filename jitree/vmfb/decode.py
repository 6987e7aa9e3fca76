"""Verifies a module's function bodies and decodes them.

Machine code (:mod:`jitree.vmfb.native`) that gets a Decoder record makes of them one
:class:`~jitree.vmfb.schema.DecodedModule`. A :class:`BytecodeModule` holds one, shared by every context that
registers it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.memory import address_of
from jitree.codegen.record import layout_of, size_of, words_of
from jitree.errors import InternalError, StatusError, error_context
from jitree.vmfb.archive import Archive, Source
from jitree.vmfb.cconv import TAGS, CallingConvention, RegisterSlot, Span, parse
from jitree.vmfb.module import read_module, read_signatures
from jitree.vmfb.native import Code, compiled, interpreted
from jitree.vmfb.native.layout import (
    SPAN,
    BlockRecord,
    Convention,
    Decoder,
    EdgeRecord,
    FoundPart,
    FunctionRowRecord,
)
from jitree.vmfb.program import DecodedFunctions, DecodedModule
from jitree.vmfb.schema import FIRST_MOVING_VERSION, Attr, Dependency, Import, ModuleTables
from jitree.vmfb.words import MULTIPLY_ADD, STRICT

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.vmfb.program import Signatures

_LINE: Final = 16
"""Words of a cache line."""
_MOST_TAGS: Final = 1 << 16
_MOST_PARTS: Final = 16
_CACHED_CONVENTIONS: Final = 1024
_ROW: Final = words_of(FunctionRowRecord)
_DECODER: Final = words_of(Decoder)
_CONVENTION_WORDS: Final = size_of(Convention) // 4


class Decoding:
    """A Decoder record, and the memory that it refers to."""

    def __init__(self, module: ModuleTables, signatures: Signatures, arithmetic: str) -> None:
        self._module = module
        self._signatures = signatures
        self._conventions = array("i")
        self._function_places: dict[str, int] = {}
        self._rows = self._function_rows()
        imports = np.array(self._import_conventions([item.cconv or "" for item in module.imports]), np.int32)
        conventions = np.frombuffer(self._conventions or b"", np.int32)
        bytecode = np.array(module.bytecode, np.uint8)  # a copy: it must not change meanwhile
        self._owned = imports, conventions, bytecode
        self._places = self._make_room()
        fields = {
            "bytecode": address_of(bytecode),
            "functions": address_of(self._rows),
            "function_count": len(signatures),
            "imports": address_of(imports),
            "import_count": len(imports),
            "conventions": address_of(conventions),
            "honours_moves": module.bytecode_version[0] >= FIRST_MOVING_VERSION,
            "version": module.bytecode_version[0],
            "multiply_add": MULTIPLY_ADD[arithmetic],
            "globals_size": module.globals_size,
            "ref_global_count": module.ref_global_count,
            "rodata_count": len(module.rodata),
            "type_count": len(module.types),
            "next_word": self._places["words"],
        } | self._places
        self._record = np.array([fields.get(name, 0) for name in layout_of(Decoder).offsets], np.int64)

    def run(self, code: Code) -> DecodedModule | None:
        """What comes out; None if the functions are not accepted."""
        self._record[_DECODER.tables] = code.tables
        if not code.decode(address_of(self._record)):
            return None
        results = _DECODER.next_word, _DECODER.instruction_count, _DECODER.site_count
        end, instructions, sites = (int(self._record[word]) for word in results)
        return DecodedModule(
            self._module,
            words=_placed(self._result("words", (end - self._places["words"]) // 4)),
            functions=DecodedFunctions(self._signatures, self._rows[:, _ROW.start], self._rows[:, _ROW.end]),
            site_words=self._result("site_words", sites).copy().data,
            site_segments=self._result("site_segments", sites).copy().data,
            instruction_words=array("i", self._result("instruction_words", instructions).tobytes()),
            instruction_offsets=array("i", self._result("instruction_offsets", instructions).tobytes()),
        )

    @property
    def accepted(self) -> int:
        """How many functions were accepted before the first that was not."""
        return int(np.argmin(self._rows[:, _ROW.end] > 0))

    @property
    def may_compute_sizes(self) -> bool:
        """Whether a function of what came out may."""
        return bool(self._record[_DECODER.sized])

    def _result(self, field: str, count: int) -> npt.NDArray[np.int32]:
        first = (self._places[field] - self._places["marks"]) // 4
        return self._room[first : first + count]

    def _make_room(self) -> dict[str, int]:
        """Memory for what comes out, in one piece, by the bytes that go in: an instruction of so many bytes
        makes less than twice as many words; a block, an edge, a call and a list of moves take four bytes or
        more. Where the parts lie."""
        lengths = self._module.functions.columns["length"]
        total, longest = int(lengths.sum()), int(lengths.max(initial=0))
        sizes = {
            "marks": 4 * longest + 4,
            "words": 8 * total + 256,
            "instruction_words": 4 * total + 64,
            "instruction_offsets": 4 * total + 64,
            "site_words": total + 64,
            "site_segments": total + 64,
            "blocks": (longest // 4 + 8) * size_of(BlockRecord),
            "edges": (longest // 4 + 8) * size_of(EdgeRecord),
            "moves": 3 * longest + 64,
            "draft": 8 * longest + 256,
            "draft_starts": 4 * longest + 64,
            "draft_offsets": 4 * longest + 64,
            "tags": _MOST_TAGS,
            "parts": _MOST_PARTS * size_of(FoundPart),
        }
        ends = [*accumulate(size + 7 & -8 for size in sizes.values())]
        self._room = np.empty(ends[-1] // 4, np.int32)
        self._room[: longest + 1] = 0  # the marks
        first = address_of(self._room)
        return dict(zip(sizes, (first, *(first + end for end in ends)), strict=False))

    def _function_rows(self) -> npt.NDArray[np.int32]:
        rows = np.zeros((len(self._signatures), size_of(FunctionRowRecord) // 4), np.int32)
        functions, signatures = self._module.functions, self._signatures
        for field in ("offset", "length", "requirements", "block_count"):
            rows[:, getattr(_ROW, field)] = functions.columns[field]
        columns = {
            "value_count": [item.value_count for item in signatures.distinct],
            "ref_count": [item.ref_count for item in signatures.distinct],
            "convention": [self._convention(item.cconv, item.argument_slots) for item in signatures.distinct],
        }
        for field, values in columns.items():
            rows[:, getattr(_ROW, field)] = signatures.column(values)
        return rows

    def _import_conventions(self, texts: Sequence[str]) -> list[int]:
        """The place of each import's convention among them, -1 if it cannot be read: one that nothing calls
        need not be."""
        places: dict[str, int] = {}
        for text in texts:
            if text not in places:
                try:
                    encoded = _encoded(parse(text), ())
                except StatusError:
                    places[text] = -1
                else:
                    places[text] = len(self._conventions)
                    self._conventions.extend(encoded)
        return [places[text] for text in texts]

    def _convention(self, cconv: CallingConvention, slots: Sequence[RegisterSlot]) -> int:
        """The place of a function's convention among them."""
        place = self._function_places.get(cconv.text)
        if place is None:
            place = self._function_places[cconv.text] = len(self._conventions)
            self._conventions.extend(_encoded(cconv, slots))
        return place


@lru_cache(maxsize=_CACHED_CONVENTIONS)
def _encoded(cconv: CallingConvention, slots: Sequence[RegisterSlot]) -> list[int]:
    """A Convention record and all that follows it."""
    items: list[int] = []
    for item in cconv.arguments:
        if isinstance(item, Span):
            items += [SPAN + len(item.characters), *(TAGS[character] for character in item.characters)]
        else:
            items.append(TAGS[item])
    results_at = _CONVENTION_WORDS + len(items)
    slots_at = results_at + len(cconv.result_tags)
    header = [len(cconv.arguments), len(cconv.result_tags), results_at, slots_at]
    return [*header, *items, *cconv.result_tags, *(slot for _, slot in slots)]


def decode_module(module: ModuleTables, arithmetic: str = STRICT) -> DecodedModule:
    """The decoded form of all functions, with one of :data:`jitree.vmfb.words.MULTIPLY_ADD`.

    Every instruction is verified on the way: a module that decodes can be run without checks of operands.
    Raises the status of the failed check with function, byte offset and mnemonic as contexts.
    """
    signatures = read_signatures(module)
    decoding = Decoding(module, signatures, arithmetic)
    program = decoding.run(compiled() or interpreted())
    if program is None:
        from jitree.vmfb.refusals import require_sound

        for function in module.functions[decoding.accepted :]:
            require_sound(module, function, signatures)
        raise InternalError(f"module '{module.name}' is refused, but no check of its functions says why")
    if decoding.may_compute_sizes and any(item.may_take_sizes for item in module.imports):
        from jitree.vmfb.sizes import check_sizes  # which few modules take

        check_sizes(module, program)
    return program


def _placed(words: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """A copy in the middle of a cache line.

    Wherever numpy had put it, the same loop took up to 8 % longer in one process than in another.
    """
    block = np.empty(len(words) + 2 * _LINE, np.int32)
    first = -address_of(block) % (4 * _LINE) // 4 + _LINE // 2
    block[first : first + len(words)] = words
    return block[first : first + len(words)]


class BytecodeModule:
    """A loaded module. It has no state: globals belong to the contexts."""

    __slots__ = ("__weakref__", "module", "name", "program")

    def __init__(self, module: ModuleTables, program: DecodedModule) -> None:
        self.module = module
        self.name = module.name
        self.program = program

    @staticmethod
    def load(source: Source, name: str | None = None, arithmetic: str = STRICT) -> BytecodeModule:
        """Opens, verifies and decodes a module; ``name`` is for messages, ``arithmetic`` one of
        :mod:`jitree.vmfb.words`.

        INVALID_ARGUMENT and the other statuses of a failed check, with the file as context.
        """
        archive = Archive.open(source, name)
        module = read_module(archive)
        with error_context(f"loading bytecode module at '{archive.name}'"):
            return BytecodeModule(module, decode_module(module, arithmetic))

    @property
    def version(self) -> int:
        return self.module.version

    @property
    def attrs(self) -> Sequence[Attr]:
        return self.module.attrs

    @property
    def dependencies(self) -> Sequence[Dependency]:
        return self.module.dependencies

    @property
    def imports(self) -> Sequence[Import]:
        return self.module.imports

    def export_names(self) -> list[str]:
        """Exported functions in file order, ``__init`` and the like included."""
        return [export.name for export in self.module.exports]

    def convention(self, ordinal: int) -> CallingConvention:
        """The calling convention of an internal function."""
        return parse(self.module.functions[ordinal].cconv)

    def __repr__(self) -> str:
        return f"<BytecodeModule {self.name} of {len(self.module.functions)} functions>"

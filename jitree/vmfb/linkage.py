"""What function bodies refer to: the tables of their module, and the call sites found in them."""

from __future__ import annotations

from jitree.errors import InvalidArgumentError, OutOfRangeError, StatusError
from jitree.vmfb import operand_classes
from jitree.vmfb.cconv import CallingConvention, parse
from jitree.vmfb.instructions import IMPORT_BIT
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.signature import FunctionSignature


class Linkage:
    """Shared by the walks over all functions of a module."""

    def __init__(self, module: ModuleTables, signatures: tuple[FunctionSignature, ...]) -> None:
        self.version = module.bytecode_version[0]
        self.signatures = signatures
        self.imports = module.imports
        self.globals_size = module.globals_size
        self.ref_global_count = module.ref_global_count
        self.rodata_count = len(module.rodata)
        self.type_count = len(module.types)
        self.site_segments: list[int] = []
        """Of each call of an import: where its segment counts are in the bytecode, -1 without."""
        self._tags: dict[tuple[int, tuple[int, ...] | None], tuple[int, ...]] = {}

    def import_ordinal(self, callee: int) -> int:
        """The import that a function operand names."""
        if not callee & IMPORT_BIT:
            raise InvalidArgumentError(f"function ordinal {callee} where an import is needed")
        ordinal = callee & ~IMPORT_BIT
        if ordinal >= len(self.imports):
            raise InvalidArgumentError(
                f"import ordinal {ordinal} out of range; the module has {len(self.imports)}"
            )
        return ordinal

    def import_convention(self, ordinal: int) -> CallingConvention:
        """An import without signature is called without arguments."""
        return parse(self.imports[ordinal].cconv or "")

    def argument_tags(
        self, ordinal: int, segments: tuple[int, ...] | None, register_count: int
    ) -> tuple[int, ...]:
        """Tag of each argument register of an import call, which has segment counts if it is variadic."""
        key = (ordinal, segments)
        tags = self._tags.get(key)
        if tags is None or len(tags) != register_count:
            cconv = self.import_convention(ordinal)
            if segments is not None:
                tags = cconv.flat_tags(segments, register_count)
            elif cconv.argument_tags is not None:
                tags = cconv.argument_tags
            else:
                raise InvalidArgumentError(
                    f"call without segments of '{self.imports[ordinal].full_name}', whose convention "
                    f"{cconv.text!r} has variadic spans"
                )
            self._tags[key] = tags
        return tags

    def signature(self, callee: int) -> FunctionSignature:
        """The internal function that a function operand names."""
        if callee >= len(self.signatures):
            raise InvalidArgumentError(
                f"function ordinal {callee} out of range; the module has {len(self.signatures)}"
            )
        return self.signatures[callee]

    def refusal(self, value: int, operand_class: int) -> StatusError:
        """The error of an operand that is not below the limit of its class, or of a global that is not
        aligned."""
        what, limit = {
            operand_classes.RODATA: ("rodata ordinal", self.rodata_count),
            operand_classes.TYPE: ("type ordinal", self.type_count),
            operand_classes.REF_GLOBAL: ("ref global", self.ref_global_count),
            operand_classes.GLOBAL32: ("offset of a 32-bit global", self.globals_size),
            operand_classes.GLOBAL64: ("offset of a 64-bit global", self.globals_size),
        }[operand_class]
        width = {operand_classes.GLOBAL32: 4, operand_classes.GLOBAL64: 8}.get(operand_class, 0)
        if width and value + width <= limit:
            return InvalidArgumentError(f"{what} {value} is not a multiple of {width}")
        return OutOfRangeError(f"{what} {value} out of range; the module has {limit}")

"""Reads the signatures of exported functions as their compiler declared them.

The export attribute ``iree.abi.declaration`` holds text such as
``sync func @f(%input0: tensor<4x?xf32>, %n: i32 {attributes}) -> (%output0: tensor<?xf32>)``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.types import BY_NAME, ElementType
from jitree.vmfb.cconv import TYPE_NAMES, CallingConvention, Span, item_text

if TYPE_CHECKING:
    pass


WORKSPACE: Final = "workspace"
"""The keyword of calls that gives the memory for what the program computes in between."""
DEPENDS: Final = -1
"""Stands for the bytes of a workspace whose size depends on the call, or is not stated."""
TRANSIENTS: Final = "iree.abi.transients"
_TRANSIENTS_SIZE: Final = f"{TRANSIENTS}.size"
_TRANSIENTS_CONSTANT: Final = f"{TRANSIENTS}.size.constant"
OUT: Final = "out"
TIMEOUT: Final = "timeout"
"""The argument of calls that says how many seconds they may take."""
"""The keyword of calls that names the storage of their results."""
DECLARATION: Final = "iree.abi.declaration"
MODEL: Final = "iree.abi.model"
COARSE_FENCES: Final = "coarse-fences"
TORCH_ASYNC_SUFFIX: Final = "$async"
"""Exports that the torch front end makes take fences, but carry no attributes."""

_HEADS: Final = (["func"], ["sync", "func"], ["async", "func"])
_TENSOR: Final = "tensor<"
_STORAGE: Final = r"\biree\.abi\.output\s*=\s*(\d{1,18})\b"
_WORKSPACE: Final = r"\biree\.abi\.transients\b"
_CONSUMED: Final = r"\biree\.abi\.consume\b"
_OPENING: Final = "<({["
_CLOSING: Final = ">)}]"
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|->|[<({\[>)}\],]', re.DOTALL)
"""Strings, arrows, brackets and commas."""
_MOST_TOKENS: Final = 1 << 18
"""Brackets and commas of a declaration that is read."""
_MOST_PARAMETERS: Final = 1 << 15
"""More than a function has registers for."""
_MOST_DIGITS: Final = 18
"""The most digits of a size that can be counted."""
_REGISTER_BITS: Final = 64


class DeclaredTensor(NamedTuple):
    """A tensor of the declaration."""

    element_type: ElementType | None
    """None for an element type that tensors of the runtime do not have: nothing is checked then."""
    shape: tuple[int | None, ...]
    """None: any size."""

    def __str__(self) -> str:
        dimensions = "".join("?x" if size is None else f"{size}x" for size in self.shape)
        return f"tensor<{dimensions}{self.element_type.name if self.element_type else '?'}>"


class Parameter(NamedTuple):
    """An argument or a result."""

    name: str
    type: str
    """As declared: ``tensor<4xf32>``, ``i32``, ``!hal.buffer_view``; without a declaration as the calling
    convention has it."""
    tensor: DeclaredTensor | None = None
    storage_of: int | None = None
    """The number of the result that the program puts into this argument's memory."""
    consumed: bool = False
    """Whether the program may overwrite the argument."""
    workspace: int | None = None
    """The bytes of memory that the program computes in between in, or DEPENDS."""

    @property
    def written(self) -> bool:
        """Whether the program may write to an array that is used afterwards."""
        return self.storage_of is not None or (self.tensor is None and self.type.startswith("!"))

    @property
    def overwritten(self) -> bool:
        """Whether the program may write to memory that it gets. That is so even if the caller is done with
        it."""
        return self.written or self.consumed

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


class Signature(NamedTuple):
    """What a function takes from its caller and returns. Fences that the runtime passes are left out."""

    arguments: tuple[Parameter, ...]
    results: tuple[Parameter, ...]
    declaration: str
    """For people: the compiler's text, or one made from the calling convention."""
    declared: bool
    """Whether the compiler said more than the calling convention."""
    fences: bool
    """Takes a wait and a signal fence after its arguments."""
    measure: str | None = None
    """The function of its module that says how many bytes of workspace a call needs, where that depends."""

    @property
    def workspace(self) -> str | None:
        """The argument that memory for what the program computes in between is passed as."""
        return next((item.name for item in self.arguments if item.workspace is not None), None)


def pointed_out(signature: Signature, index: int) -> str:
    """The declaration on a line of its own, with a caret under an argument: ``^~~~`` as compilers do."""
    parameter = signature.arguments[index]
    found = re.search(
        rf"%{re.escape(parameter.name)}\s*:\s*{re.escape(parameter.type)}", signature.declaration
    )
    if found is None:
        return f"`{signature.declaration}`"
    caret = " " * (found.start() + 1) + "^" + "~" * (found.end() - found.start() - 1)
    return f"\n`{signature.declaration}`\n{caret}"


def storage_names(signature: Signature) -> tuple[str, ...]:
    """The arguments that results are put into, in the order of the results."""
    stored = [(item.storage_of, item.name) for item in signature.arguments if item.storage_of is not None]
    return tuple(name for _, name in sorted(stored))


def signature_of(name: str, convention: CallingConvention, attrs: Mapping[str, str]) -> Signature:
    """The signature of an export. A declaration that does not fit the calling convention is ignored."""
    fences = _takes_fences(name, convention, attrs)
    items = convention.arguments[:-2] if fences else convention.arguments
    text = attrs.get(DECLARATION)
    parsed = parse_declaration(text) if text is not None else None
    if text is not None and parsed is not None:
        arguments, results = parsed
        if _fits(arguments, items) and _fits(results, tuple(convention.results)):
            return _sized(Signature(arguments, results, text, True, fences), attrs)
    arguments = tuple(Parameter(f"input{index}", item_text(item)) for index, item in enumerate(items))
    if _TRANSIENTS_SIZE in attrs and arguments:
        arguments = (*arguments[:-1], arguments[-1]._replace(workspace=DEPENDS))
    results = tuple(
        Parameter(f"output{index}", TYPE_NAMES[character])
        for index, character in enumerate(convention.results)
    )
    return _sized(Signature(arguments, results, f"func @{name}{convention}", False, fences), attrs)


def _sized(signature: Signature, attrs: Mapping[str, str]) -> Signature:
    """The parameters with what the compiler says about the size of the workspace."""
    constant = _number(attrs.get(_TRANSIENTS_CONSTANT, ""))
    if constant is None:
        return signature._replace(measure=attrs.get(_TRANSIENTS_SIZE))
    arguments = tuple(
        item if item.workspace is None else item._replace(workspace=constant) for item in signature.arguments
    )
    return signature._replace(arguments=arguments)


def without_twins(names: Sequence[str]) -> list[str]:
    """The functions that a program has for its callers: importers of PyTorch and ONNX give each a twin
    ``…$async``, which takes fences."""
    known = set(names)
    return [
        name
        for name in names
        if not name.endswith(TORCH_ASYNC_SUFFIX) or name.removesuffix(TORCH_ASYNC_SUFFIX) not in known
    ]


def _takes_fences(name: str, convention: CallingConvention, attrs: Mapping[str, str]) -> bool:
    if convention.arguments[-2:] != ("r", "r"):
        return False
    return attrs.get(MODEL) == COARSE_FENCES or name.endswith(TORCH_ASYNC_SUFFIX)


def _fits(parameters: tuple[Parameter, ...], items: tuple[str | Span, ...]) -> bool:
    """Tensors must be references and numbers must not."""
    return len(parameters) == len(items) and all(
        (item == "r") == (parameter.tensor is not None or parameter.type.startswith("!"))
        for parameter, item in zip(parameters, items, strict=True)
    )


def parse_declaration(text: str) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]] | None:
    """(arguments, results) of a declaration, None for text of another form."""
    head, at, following = text.partition("@")
    if not at or head.split() not in _HEADS:
        return None
    opening = next((position for position, _ in _depths(following, 0) if following[position] == "("), -1)
    if not following[: max(opening, 0)].strip():
        return None
    arguments, position = _parenthesised(following, opening)
    if position < 0:
        return None
    rest = following[position:].strip()
    if not rest:
        return _parameters(arguments, "input"), ()
    if not rest.startswith("->"):
        return None
    rest = rest[2:].strip()
    results, position = _parenthesised(rest, 0)
    if position < 0:  # one result without parentheses
        results, position = rest, len(rest)
    return (
        None if rest[position:].strip() else (_parameters(arguments, "input"), _parameters(results, "output"))
    )


def _parenthesised(text: str, start: int) -> tuple[str, int]:
    """The text inside the parentheses that begin at ``start``, and the position after; -1 without them."""
    if text[start : start + 1] != "(":
        return "", -1
    for position, depth in _depths(text, start):
        if depth == 0:
            return text[start + 1 : position], position + 1
    return "", -1


def _depths(text: str, start: int) -> list[tuple[int, int]]:
    """(position, brackets open after it) of every bracket and comma outside of strings."""
    found, depth = [], 0
    for match in islice(_TOKENS.finditer(text, start), _MOST_TOKENS):
        character = match[0]
        if len(character) == 1 and character != '"':
            depth += (character in _OPENING) - (character in _CLOSING)
            found.append((match.start(), depth))
    return found


def _parameters(text: str, prefix: str) -> tuple[Parameter, ...]:
    if not text.strip():
        return ()
    starts = [-1, *(position for position, depth in _depths(text, 0) if depth == 0 and text[position] == ",")]
    pieces = [text[start + 1 : end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return tuple(_parameter(piece, f"{prefix}{n}") for n, piece in enumerate(pieces[:_MOST_PARAMETERS]))


def _parameter(text: str, default_name: str) -> Parameter:
    written = text.strip()
    name = ""
    if written.startswith("%"):
        name, _, written = (piece.strip() for piece in written[1:].partition(":"))
    opened = next((position for position, depth in _depths(written, 0) if written[position] == "{"), -1)
    kind = (written if opened < 0 else written[:opened]).strip()
    attributes = "" if opened < 0 else written[opened:]
    storage = re.search(_STORAGE, attributes) if attributes else None
    return Parameter(
        name or default_name,
        kind,
        parse_tensor_type(kind),
        None if storage is None else int(storage.group(1)),
        bool(attributes) and re.search(_CONSUMED, attributes) is not None,
        DEPENDS if attributes and re.search(_WORKSPACE, attributes) else None,
    )


def parse_tensor_type(text: str) -> DeclaredTensor | None:
    """``tensor<4x?xf32>`` → (f32, (4, None)); None for other types."""
    if not (text.startswith(_TENSOR) and text.endswith(">")):
        return None
    element = text[len(_TENSOR) : -1].partition(",")[0].strip()  # an encoding follows the comma
    parts = element.split("x")
    shape: list[int | None] = []
    for size in parts[:-1]:
        number = _number(size)
        if number is None and size != "?":
            break
        shape.append(number)
    return DeclaredTensor(BY_NAME.get("x".join(parts[len(shape) :])), tuple(shape))


def width_of(declared: str) -> int:
    """Bits of an integer's type. 0 where it states none that a register has: modules may write any."""
    digits = declared.lstrip("siu")
    width = _number(digits) or 0
    return width if width <= _REGISTER_BITS and digits != declared else 0


def _number(text: str) -> int | None:
    """A size, which no text of thousands of digits is."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None

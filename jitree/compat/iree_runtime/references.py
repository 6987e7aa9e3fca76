"""What the wrappers of references have in common, and references of any type."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from jitree.base.arguments import shown
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.regs.buffer import VmBuffer as VmBytes
from jitree.regs.list import VmList

_NAMES = {
    VmBytes: "vm.buffer",
    VmList: "vm.list",
    Buffer: "hal.buffer",
    BufferView: "hal.buffer_view",
    Fence: "hal.fence",
}


class VmRef:
    """A reference of any type."""

    __slots__ = ("raw",)

    def __init__(self, raw: object) -> None:
        self.raw = raw
        """What the program refers to."""

    @property
    def __iree_vm_ref__(self) -> VmRef:
        return self

    def isinstance(self, cls: Any) -> bool:
        """Whether :meth:`deref` to a class succeeds. TypeError for what is no class."""
        _require_class(cls)
        return cls.__iree_vm_cast__(self) is not None

    def deref(self, value: Any, optional: bool = False) -> Any:
        """The object as an instance of a class that has ``__iree_vm_cast__``. TypeError if it is of another
        type; None then with ``optional``."""
        _require_class(value)
        found = value.__iree_vm_cast__(self)
        if found is None and not optional:
            raise TypeError("Cannot dereference to specific type")
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VmRef) and self.raw is other.raw

    def __hash__(self) -> int:
        return hash(id(self.raw))

    def __repr__(self) -> str:
        if self.raw is None:
            return "<VmRef NULL>"
        return f"<VmRef {_NAMES.get(type(self.raw), type(self.raw).__name__)} at {id(self.raw):#x}>"


def _require_class(cls: Any) -> None:
    if not isinstance(cls, type):
        raise TypeError(f"expected a class but got {shown(cls)}")
    cls.__iree_vm_type__  # type: ignore[attr-defined]  # noqa: B018  # those without are no types of the VM


class Reference:
    """A wrapper of objects of one class of jitree's; all wrappers of one object are equal."""

    wrapped: ClassVar[type]

    raw: Any
    """What it wraps."""

    def __init__(self) -> None:
        """For those that only functions make."""
        raise TypeError(f"{type(self).__name__}: no constructor defined")

    @classmethod
    def of(cls, raw: Any) -> Self:
        made = cls.__new__(cls)
        made.raw = raw
        return made

    @classmethod
    def __iree_vm_type__(cls) -> int:
        return id(cls.wrapped)

    @classmethod
    def __iree_vm_cast__(cls, ref: VmRef, /) -> Self | None:
        """None for a reference of another type."""
        if not isinstance(ref, VmRef):
            raise TypeError(f"__iree_vm_cast__(): expected a VmRef but got {type(ref).__name__}")
        return cls.of(ref.raw) if isinstance(ref.raw, cls.wrapped) else None

    @property
    def __iree_vm_ref__(self) -> VmRef:
        return VmRef(self.raw)

    @property
    def ref(self) -> VmRef:
        return VmRef(self.raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self.raw is other.raw

    def __hash__(self) -> int:
        return hash(id(self.raw))


def raw_of(value: Any) -> Any:
    """What a reference, or an object with ``__iree_vm_ref__``, refers to. AttributeError for others."""
    ref = None if value is None else value.__iree_vm_ref__
    if ref is not None and not isinstance(ref, VmRef):
        raise TypeError(f"__iree_vm_ref__ of {type(value).__name__} is no VmRef but a {type(ref).__name__}")
    return None if ref is None else ref.raw

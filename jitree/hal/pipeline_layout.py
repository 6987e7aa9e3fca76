"""What functions of executables take, as programs of ABI 0.2 to 0.4 say it."""

from __future__ import annotations

from typing import Final


class DescriptorSetLayout:
    """The bindings of one set of a pipeline layout, for ABI 0.2 to 0.4."""

    VM_TYPE: Final = "hal.descriptor_set_layout"
    __slots__ = ("bindings", "flags")

    def __init__(self, flags: int, bindings: tuple[tuple[int, int, int], ...]) -> None:
        self.flags = flags
        self.bindings = bindings
        """(binding, descriptor type, flags)"""


class PipelineLayout:
    """What one function of an executable of ABI 0.2 to 0.4 takes."""

    VM_TYPE: Final = "hal.pipeline_layout"
    __slots__ = ("_memory", "bindings", "constant_count")

    def __init__(
        self, constant_count: int, bindings: tuple[tuple[int, int], ...], memory: object = None
    ) -> None:
        """``memory``: counts what it has, until it dies."""
        self._memory = memory
        self.constant_count = constant_count
        """32-bit words."""
        self.bindings = bindings
        """(set, binding) in the order in which the function gets them."""

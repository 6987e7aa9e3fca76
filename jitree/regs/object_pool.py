"""What handle tables ask of those who give machine code the means to make objects, and of its users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Connected(Protocol):
    """A machine, whose state block refers to the native objects of its table."""

    def connect(self, handle_pool: ObjectPool) -> None: ...


class ObjectPool(Protocol):
    """Gives machine code the means to make objects of a table, and knows what it has made."""

    @property
    def record(self) -> int:
        """The value of STATE.handle_pool."""

    @property
    def sweep(self) -> int:
        """The value of STATE.sweep."""

    @property
    def new_list(self) -> int:
        """The value of STATE.new_list."""

    @property
    def live_count(self) -> int:
        """Objects without a Python object."""

    @property
    def promised(self) -> int:
        """The same, with those that machine code may make without asking."""

    def withdraw(self) -> None:
        """Machine code has to ask before it makes more."""

    def make(self, table: Any, address: int) -> object:
        """The Python object of an entry of the table, which knows it from then on
        (:meth:`HandleTable.adopt`, ``take_over``)."""

    def free(self, address: int) -> None:
        """The last reference is gone."""

    def drop(self, address: int) -> None:
        """The last reference is gone; it may be freed later."""

    def drop_all(self, addresses: npt.NDArray[np.int64]) -> None:
        """The same of several."""

    def settle(self) -> None:
        """Frees what was dropped."""

    def supply_lists(self) -> bool:
        """Gives machine code lists where it has none left; whether it has some now."""

"""Loads module arithmetic, whose functions type checkers and editors know by this file.

`jitree stub` has written it; write it again when the module changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import jitree

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Tensor = ArrayLike | jitree.Array


class Arithmetic(Protocol):
    """Has the functions of the module, and nothing that it has not."""

    def add(self, input0: Tensor, input1: Tensor, *, timeout: float = ...) -> jitree.Array:
        """input0: tensor<4xf32>, input1: tensor<4xf32> -> output0: tensor<4xf32>."""
        ...

    def add_named(self, left: Tensor, right: Tensor, *, timeout: float = ...) -> jitree.Array:
        """left: tensor<2x3xi32>, right: tensor<2x3xi32> -> sum: tensor<2x3xi32>."""
        ...

    def twice(self, input0: Tensor, *, timeout: float = ...) -> jitree.Array:
        """input0: tensor<?x3xf32> -> output0: tensor<?x3xf32>."""
        ...

    def square(self, input0: Tensor, *, timeout: float = ...) -> jitree.Array:
        """input0: tensor<f32> -> output0: tensor<f32>."""
        ...

    def scale(self, input0: Tensor, input1: float, *, timeout: float = ...) -> jitree.Array:
        """input0: tensor<8xf32>, input1: f32 -> output0: tensor<8xf32>."""
        ...

    def large(self, input0: Tensor, *, timeout: float = ...) -> jitree.Array:
        """input0: tensor<65536xf32> -> output0: tensor<65536xf32>."""
        ...

    def sums(self, input0: Tensor, input1: int, *, timeout: float = ...) -> tuple[jitree.Array, int, float]:
        """input0: tensor<4xi64>, input1: i64 -> output0: tensor<4xi64>, output1: i64, output2: f32."""
        ...

    def consume(self, input0: Tensor, *, timeout: float = ...) -> None:
        """input0: tensor<4xf32> -> ."""
        ...

    def nothing(self, *, timeout: float = ...) -> None:
        """ -> ."""
        ...

    def numbers(self, input0: int, input1: int, input2: float, input3: float, input4: int, input5: int, *, timeout: float = ...) -> tuple[int, int, float, float, int, int]:
        """input0: i32, input1: i64, input2: f32, input3: f64, input4: i1, input5: i8 -> output0: i32, output1: i64, output2: f32, output3: f64, output4: i1, output5: i8."""
        ...

    def __getitem__(self, name: Literal['add', 'add_named', 'twice', 'square', 'scale', 'large', 'sums', 'consume', 'nothing', 'numbers']) -> jitree.Function: ...


def load(path: str = '/work/wt/integ/tests/data/programs/arithmetic.vmfb', **options: Any) -> Arithmetic:
    """The module in a session of its own; options as of `jitree.load`."""
    return cast(Arithmetic, jitree.load(path, **options))

"""Reduces a wrong call to its one wrong dispatch: ``jitree.reduce``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jitree import errors
from jitree.base.arguments import said
from jitree.base.events import DISPATCH
from jitree.compare.differences import diff
from jitree.compare.lone_dispatch import LoneDispatch, require_folder, save_reproduction
from jitree.compare.sides import FunctionSide, ModuleSide, SideLike, arguments_of, arrays_of, side_of
from jitree.observe.finite import FiniteCheck, choice_of
from jitree.observe.observation import Onlooker
from jitree.observe.tolerance import EXACT

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.hal.stepwise import DeviceStep
    from jitree.observe.tensors import ObservedDispatch


class _Progress(Onlooker):
    """Which dispatch has begun last, and which is done."""

    def __init__(self) -> None:
        self.begun: int | None = None
        self.done: int | None = None
        self.last = ""
        """The name of the dispatch that was done last."""

    def is_about(self, step: DeviceStep, ordinal: int | None) -> None:
        if step.kind == DISPATCH:
            self.begun = ordinal

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if dispatch.kind == DISPATCH:
            self.done, self.last = dispatch.ordinal, dispatch.label


@errors.folded
def reduce(
    a: SideLike,
    folder: str | os.PathLike[str],
    function: str | None = None,
    inputs: Sequence[Any] = (),
    *,
    against: SideLike | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: float | None = None,
    parameters: Iterable[Any] = (),
    check_finite: bool | str | Iterable[str] = True,
) -> str:
    """Writes the reproduction of a wrong call to a folder, and says what differs.

    ``a``: the program, and ``function`` of it, called with ``inputs``. ``folder``: a path;
    :meth:`Difference.save` says what it gets. ``against``: another build, device or runtime that is right;
    without one the call fails, or makes a value that is not finite. ``atol``, ``rtol``, ``ulp`` and
    ``parameters`` are those of :func:`jitree.diff`. ``check_finite``: what a call without ``against`` is not
    to make, as :class:`jitree.Session` takes it.

    Of a value that is not finite and that no dispatch made, the one that reads it first is written.
    FAILED_PRECONDITION where nothing is wrong, or no dispatch is what fails, INVALID_ARGUMENT for what is no
    program.

    >>> import tempfile
    >>> digits, wrong = "examples/digits/digits.vmvx.vmfb", np.full((8, 8), np.nan, np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(jitree.reduce(digits, folder, "classify", [wrong]))
    no dispatch makes what is not finite: ...
    """
    parameters, inputs, names = tuple(parameters), arguments_of(inputs), choice_of(check_finite)
    require_folder(folder)
    if against is not None:
        found = diff(a, against, function, inputs, atol=atol, rtol=rtol, ulp=ulp, parameters=parameters)
        found.save(folder)
        return str(found)
    side = side_of("a", a, function, {"parameters": parameters} if parameters else {})
    if not isinstance(side, (ModuleSide, FunctionSide)):
        raise errors.InvalidArgumentError(
            "reduce: what is no program has no dispatches; give the path of a module"
        )
    with side.open() as opened:
        ordinal, text = _wrong(opened, inputs, names)
    with side.open() as opened:
        dispatch = LoneDispatch.of_call(opened, inputs, ordinal)
    save_reproduction(folder, [dispatch], EXACT, text)
    return text


def _wrong(function: Function, inputs: Sequence[Any], names: Sequence[str]) -> tuple[int, str]:
    """The number of the dispatch that is wrong, and how."""
    progress = _Progress()
    check = FiniteCheck(names)
    try:
        with function.session.looked_at(check, progress):
            arrays_of(function(*inputs))
    except Exception as error:  # also what functions of the user's raise
        if errors.is_interruption(error):
            raise
        if isinstance(error, errors.NonFiniteError) and error.ordinal is not None:
            return error.ordinal, str(error)
        if isinstance(error, errors.StatusError) and progress.begun not in (None, progress.done):
            return progress.begun, str(error)
        since = f", after {progress.last}" if progress.last else ""
        what = error if isinstance(error, errors.StatusError) else said(error)
        raise errors.FailedPreconditionError(
            f"reduce: the call fails in no dispatch{since}: {what}"
        ) from error
    if check.first_reader is not None:
        return check.first_reader, f"no dispatch makes what is not finite: {check.first_read}"
    raise errors.FailedPreconditionError(
        "reduce: no dispatch is wrong: the call does not fail and makes no "
        f"{' or '.join(names) or 'error'}; compare it (against=, --against)"
    )

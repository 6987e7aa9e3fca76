"""Shows what programs of a session do while they run."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jitree.errors import folded

if TYPE_CHECKING:
    import os

    from jitree.api.function import Function
    from jitree.dispatch.context import Context
    from jitree.dispatch.function import VmFunction
    from jitree.hal.device import Device
    from jitree.kernels.replacement import Replacement, Replacements
    from jitree.observe.finite import FiniteCheck
    from jitree.observe.observation import Observation, Onlooker
    from jitree.observe.profile import Profile
    from jitree.observe.taps import Keep, Ordinals, Taps


class Observable(abc.ABC):
    """A session, as far as it can be looked into."""

    _context: Context
    _devices: tuple[Device, ...]
    _functions: dict[VmFunction, Function]
    _observation: Observation | None = None
    _profile: Profile | None = None
    _closed: bool
    _replacements: Replacements | None = None
    """What runs in place of dispatches."""
    finite_check: FiniteCheck | None = None
    """What looks for values that are not finite, if that was asked for."""

    @folded
    def tap(
        self,
        pattern: str | Sequence[str] = "*",
        keep: Keep = "stats",
        *,
        ordinals: Ordinals = None,
        module: str | None = None,
        function: str | None = None,
        types: Mapping[int, str] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> Taps:
        """Looks at dispatches until the end of a ``with`` block, or :meth:`Taps.stop`.

        ``pattern``: names of exports, with ``*`` and ``?``; ``copy``, ``fill``, ``update``, ``read`` and
        ``write`` are the other operations of a queue. ``keep``: ``"stats"`` of outputs, ``"tensors"`` (in
        memory, or in the file ``path``, npz or safetensors), or a function that is called with each
        dispatch. ``ordinals``: numbers among the dispatches of a call. ``module`` and ``function``: which was
        called. ``types``: those of bindings, where they are not known: ``{1: "4x71xf32"}``.

        UNIMPLEMENTED for devices that do not tell of single dispatches. When the block ends: NOT_FOUND, with
        names that are near, if dispatches ran and none was meant.
        """
        from jitree.observe.taps import Selection, Taps

        self._require_open()
        return Taps(self._observed(), Selection(pattern, ordinals, module, function), keep, types, path)

    @folded
    def profile(self) -> Profile:
        """Measures where time goes (``docs/profiling.md``) until the end of a ``with`` block, or
        :meth:`Profile.stop`.

        FAILED_PRECONDITION while the session or one of its devices is profiled, or a function explained."""
        from jitree.observe.profile import Profile
        from jitree.observe.profiled import CallRecorder

        self._require_open()
        calls = CallRecorder(self._context.table, tuple(self._functions.values()))
        self._profile = Profile(self._devices, calls)
        return self._profile

    @folded
    def replace(
        self,
        name: str | Sequence[str],
        kernel: Any,
        *,
        verify: bool = False,
        atol: float | None = None,
        rtol: float | None = None,
        ulp: float | None = None,
    ) -> Replacement:
        """Runs a kernel in place of dispatches until :meth:`Replacement.undo` or its block ends. See
        ``docs/kernels.md``.

        ``name``: ``module.dispatch`` or ``dispatch``, with ``*`` and ``?``; it also means dispatches of
        modules that are loaded later. Several names are a run: the kernel does the work of dispatches that
        come one after the other, and gets the bindings of all. ``kernel``: a function, or a
        :class:`jitree.kernels.Kernel`, which also says the types of bindings. ``verify``: the first dispatch
        runs both, the kernel on copies, and FAILED_PRECONDITION says where they differ by more than ``atol``,
        ``rtol`` and ``ulp`` allow (bits, without any); a tolerance verifies too.

        NOT_FOUND, with names that are near, without such a dispatch; FAILED_PRECONDITION for one that is
        replaced already, and in a call of the session; UNIMPLEMENTED for devices whose dispatches cannot be
        replaced."""
        from jitree.kernels.replacement import Replacements, verified

        self._require_open()
        if self._replacements is None:
            self._replacements = Replacements(self._context, self._devices)
        return self._replacements.add(name, kernel, verified(verify, atol, rtol, ulp))

    @contextmanager
    def looked_at(self, *onlookers: Onlooker) -> Iterator[None]:
        """They are told of each dispatch in a ``with`` block."""
        self._require_open()
        observation = self._observed()
        try:
            for onlooker in onlookers:
                observation.add(onlooker)
            yield
        finally:
            for onlooker in onlookers:
                observation.remove(onlooker)

    def explain(self, function: str | Function | None = None) -> Any:
        """What its last call allocated, copied and updated in place (:func:`jitree.api.explain.explain`)."""
        from jitree.api.explain import explain

        self._require_open()
        return explain(self, function)

    def check_finite(self, check: bool | str | Iterable[str]) -> None:
        """As ``check_finite=`` of a new session."""
        if check is False:
            return
        from jitree.observe.finite import FiniteCheck, choice_of

        names = choice_of(check)
        if names:
            self.finite_check = FiniteCheck(names)
            self._observed().add(self.finite_check)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_observed(self) -> bool:
        return self._observation is not None and self._observation.is_on

    def _observed(self) -> Observation:
        """Has Python make the calls where machine code tells nothing."""
        from jitree.observe.observation import Observation

        if self._observation is None:
            self._observation = Observation(self._context.table, self._devices)
        if self._observation.needs_python:
            for function in self._functions.values():
                function.leave_machine_code()
        return self._observation

    def _seen(self, function: Function) -> Function:
        """A new function, as those that look have it."""
        if self._profile is not None:
            self._profile.notes.watch(function)
        return function

    def _end_replacements(self) -> None:
        """Executables and what replaces their functions refer to each other."""
        if self._replacements is not None:
            self._replacements.end()

    def _stop_looking(self) -> None:
        if self._observation is not None:
            self._observation.close()
        if self._profile is not None:
            self._profile.stop()

    @abc.abstractmethod
    def _require_open(self) -> None:
        """FAILED_PRECONDITION after :meth:`close`."""

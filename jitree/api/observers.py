"""Shows what programs of a session do while they run, and ends it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import ref

from jitree.api.session_arguments import require_path
from jitree.base.cancel_scopes import deadline
from jitree.errors import folded

if TYPE_CHECKING:
    import os

    from jitree.api.function import Function
    from jitree.api.module import Module
    from jitree.api.report import ProgramReport
    from jitree.api.sandbox import Sandbox
    from jitree.api.serving import Metrics
    from jitree.api.session_arguments import Compiled, Loaded
    from jitree.dispatch.context import Context, ModuleLike
    from jitree.dispatch.function import VmFunction
    from jitree.hal.device import Device
    from jitree.kernels.replacement import Replacement, Replacements
    from jitree.observe.finite import FiniteCheck
    from jitree.observe.observation import Observation, Onlooker
    from jitree.observe.profile import Profile
    from jitree.observe.taps import Keep, Ordinals, Taps
    from jitree.observe.telemetry import Telemetry


class Observable(abc.ABC):
    """What a session has beside modules, arrays and calls."""

    _context: Context
    _devices: tuple[Device, ...]
    _functions: dict[VmFunction, Function]
    _modules: dict[str, Module]
    _observation: Observation | None = None
    _profile: ref[Profile] | None = None
    """The last one that was begun. It ends where nothing else refers to it."""
    _telemetry: Telemetry | None = None
    _instance: Any
    _sandbox: Sandbox | None
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
        memory, or in the file ``path``, npz or safetensors), or a function that is called with each dispatch.
        ``ordinals``: numbers among the dispatches of a call. ``module`` and ``function``: which was called.
        ``types``: those of bindings, where they are not known: ``{1: "4x71xf32"}``.

        UNIMPLEMENTED for devices that do not tell of single dispatches. When the block ends: NOT_FOUND, with
        names that are near, if dispatches ran and none was meant.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> with digits.session.tap("*softmax*", keep="tensors") as taps:
        ...     result = digits.classify(np.ones((8, 8), np.float32))
        >>> taps[0].outputs[0].array.shape
        (10,)
        """
        from jitree.observe.taps import Selection, Taps

        self._require_open()
        return Taps(self._observed(), Selection(pattern, ordinals, module, function), keep, types, path)

    @folded
    def profile(self) -> Profile:
        """Measures where time goes until the end of a ``with`` block, or :meth:`Profile.stop`.

        ``print(profile)`` shows milliseconds by dispatch and call; ``docs/profiling.md`` has the rest.
        FAILED_PRECONDITION while the session or one of its devices is profiled, or a function explained.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> with digits.session.profile() as profile:
        ...     result = digits.classify(np.ones((8, 8), np.float32))
        >>> "classify_dispatch_0" in str(profile)
        True
        """
        from jitree.observe.profile import Profile
        from jitree.observe.profiled import CallRecorder

        self._require_open()
        calls = CallRecorder(self._context.table, tuple(self._functions.values()))
        profile = Profile(self._devices, calls)
        self._profile = ref(profile)
        return profile

    def _last_profile(self) -> Profile | None:
        return None if self._profile is None else self._profile()

    def report(self, function: str | Function | None = None, *arguments: Any, **named: Any) -> ProgramReport:
        """Makes a page of a function: its graph of dispatches, times, statistics (``docs/report.md``).

        ``function``: one of a module or its name; without one the page tells of the modules alone. It is
        called three times with ``arguments`` and ``named``: first, with a profile, with a tap, which finds
        the first value that is not finite. Save the page, or show it in a notebook. What fails is said in it,
        and is :attr:`ProgramReport.error`.

        NOT_FOUND without such a function; FAILED_PRECONDITION while the session is profiled.
        """
        from jitree.api.report import report

        self._require_open()
        return report(self, function, arguments, named)

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
        """Runs a kernel in place of dispatches or imports until :meth:`Replacement.undo`.

        Or until the end of a ``with`` block. See ``docs/kernels.md``.

        ``name``: ``module.dispatch`` or ``dispatch``, with ``*`` and ``?``; it also means dispatches of
        modules that are loaded later. Several names are a run: the kernel does the work of dispatches that
        come one after the other, and gets the bindings of all. ``kernel``: a function, or a
        :class:`jitree.kernels.Kernel`, which also says the types of bindings (``docs/kernels.md``).
        ``verify``: the first dispatch runs both, the kernel on copies, and FAILED_PRECONDITION says where
        they differ by more than ``atol``, ``rtol`` and ``ulp`` allow (bits, without any); a tolerance
        verifies too.

        A name that no dispatch has means imports, ``module.function`` as programs call it.

        NOT_FOUND, with names that are near, without such a dispatch or import; FAILED_PRECONDITION for one
        that is replaced already, and in a call of the session; UNIMPLEMENTED for devices whose dispatches
        cannot be replaced, and for imports of modules that come with jitree."""
        from jitree.api.replaced_imports import replacement
        from jitree.kernels.replacement import Replacements, verified

        self._require_open()
        if self._replacements is None:
            self._replacements = Replacements(self._context, self._devices)
        found = replacement(self._replacements, name, kernel, verified(verify, atol, rtol, ulp))
        return self._replacements.add(found)

    def debug(self, function: str | Function, /, *arguments: Any, **named: Any) -> Any:
        """Calls a function under the debugger; gives what the call gives.

        ``function``: one of a module or its name, ``module.function``. The debugger asks on the terminal how
        to go on (``docs/debugging.md``).

        NOT_FOUND without the function; CANCELLED if the debugger is left before the call is over;
        UNIMPLEMENTED in a session with a limit on instructions.
        """
        from jitree.debug.debugger import debug_call
        from jitree.debug.shell import Shell

        self._require_open()
        called: Any = self.prepare(function) if isinstance(function, str) else function
        return debug_call(self, lambda: called(*arguments, **named), Shell())

    @contextmanager
    def looked_at(self, *onlookers: Onlooker) -> Iterator[None]:
        """Tells ``onlookers`` of each dispatch in a ``with`` block, before and after it runs.

        What one of them raises ends the call. UNIMPLEMENTED for devices that do not tell of single
        dispatches.
        """
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
        """Says how many bytes a function's last call allocated, copied and updated in place.

        ``function``: one of a module or its name; it is looked at from then on, until ``stop()`` of what this
        gives (:func:`jitree.api.explain.explain`). Without a function: all that are looked at, and which
        device has what. NOT_FOUND without the function, FAILED_PRECONDITION while it is profiled.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb", device="local-sync")
        >>> explanation = digits.session.explain(digits.classify)
        >>> result = digits.classify(np.ones((8, 8), np.float32))
        >>> print(str(explanation).splitlines()[0])
        module.classify, the last call:
        >>> explanation.stop()
        """
        from jitree.api.explain import explain

        self._require_open()
        return explain(self, function)

    def check_finite(self, check: bool | str | Iterable[str]) -> None:
        """Checks calls from now on for values that are not finite.

        ``check``: as ``check_finite=`` of a session: True (NaN and infinity that a dispatch makes), or some
        of ``inputs``, ``nan``, ``infinity``, ``overflow``, ``denormals``, ``saturated``. Such a call raises
        NonFiniteError, which names the dispatch and the coordinate. INVALID_ARGUMENT for other names.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> digits.session.check_finite(["nan", "inputs"])
        >>> digits.classify(np.full((8, 8), np.nan, np.float32))
        Traceback (most recent call last):
        jitree.errors.NonFiniteError: ...
        """
        from jitree.observe.finite import FiniteCheck, choice_of

        names = choice_of(check)
        if names:
            self.finite_check = FiniteCheck(names)
            self._observed().add(self.finite_check)

    def _ipython_key_completions_(self) -> list[str]:
        return [f"{module.name}.{name}" for module in self._modules.values() for name in module]

    def _repr_html_(self) -> str:
        from jitree.api.showing import session_html

        return session_html(self)

    @folded
    def load_native(self, path: str | os.PathLike[str], /, *, create: str = "", **parameters: str) -> Module:
        """Loads the C module that a shared library makes; what is loaded later may import from it.

        ``path``: of the library. Its function ``create`` (default ``iree_vm_dynamic_module_create``) makes
        the module with ``parameters``.

        NOT_FOUND without the file or the function, FAILED_PRECONDITION for others, or what it fails with.
        """
        self._require_open()
        require_path(path)
        if self._sandbox is not None:
            self._sandbox.refuse_code(path)
        from jitree.api.module_files import open_library_module

        library = open_library_module(path, create, parameters, self._instance.ref_types)
        return self._register_new([library])[0]

    deadline = staticmethod(deadline)
    """Limits the seconds of a ``with`` block: :func:`jitree.base.cancel_scopes.deadline`."""

    def cancel(self) -> None:
        """Ends calls in progress and submitted work, on all threads: they fail with CANCELLED.

        Calls that begin afterwards run (``docs/deadlines.md``). It may be called from any thread.
        """
        self._context.invoker.cancel()

    def trim(self) -> None:
        """Gives back memory that is only kept to be used again; modules do so, too."""
        from jitree.base.platform import give_back_free_memory
        from jitree.dispatch.host_module import Signal

        self._require_open()
        self._drop_blocks()
        self._context.notify(Signal.LOW_MEMORY)
        give_back_free_memory()

    def telemetry(self, dispatches: bool = False) -> Telemetry:
        """Makes spans of OpenTelemetry of calls, to the end of a ``with`` block.

        :meth:`Telemetry.stop` ends it, too.

        ``dispatches``: of dispatches, too. Where the SDK is loaded calls have spans without this.

        UNAVAILABLE without OpenTelemetry, UNIMPLEMENTED for devices that do not tell of dispatches.
        """
        from jitree.observe.telemetry import Telemetry

        self._require_open()
        if self._telemetry is not None:
            self._telemetry.stop()
        self._telemetry = Telemetry(self._devices, tuple(self._functions.values()), dispatches)
        return self._telemetry

    def _trace(self) -> None:
        """As the environment says, in a process that has loaded OpenTelemetry."""
        from jitree.observe import telemetry

        choice = telemetry.chosen()
        if choice != telemetry.OFF:
            self.telemetry(choice == telemetry.DISPATCHES)

    def metrics(self) -> Metrics:
        """Counts calls, errors, waits, bytes of memory, and seconds of building machine code.

        Print it, read its fields, or answer ``GET /metrics`` with ``session.metrics().prometheus()``.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> result = digits.classify(np.ones((8, 8), np.float32))
        >>> digits.session.metrics().errors
        0
        """
        from jitree.api.serving import metrics

        self._require_open()
        return metrics(self)

    def drain(self, timeout: float | None = None) -> None:
        """Takes no more calls and waits for those in progress.

        New ones fail with UNAVAILABLE from now on; when it returns, the work of devices has ended and
        :meth:`close` has nothing to wait for.

        DEADLINE_EXCEEDED after ``timeout`` seconds: it goes on draining, and this may be called again.
        FAILED_PRECONDITION in a call of the session.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> digits.session.drain(timeout=10.0)
        >>> digits.classify(np.ones((8, 8), np.float32))
        Traceback (most recent call last):
        jitree.errors.UnavailableError: ...
        """
        from jitree.api.serving import drain

        self._require_open()
        drain(self, timeout)

    @folded
    def reload(self, *sources: Loaded, compiled: Compiled = None) -> Any:
        """Puts modules in place of those with their names, while the session is used.

        ``sources`` and ``compiled`` are those of :meth:`Session.load`, and so is what it gives. Calls that
        begin from then on go to the new modules, by whatever functions callers have; those in progress end in
        the old ones, which are then closed. This waits for that. All modules begin with new state, on the
        same devices and parameters; until then memory holds both.

        Errors as of :meth:`Session.load`, and then nothing has changed; FAILED_PRECONDITION for a function
        that callers have and that takes or gives something else now, NOT_FOUND without a module of the name.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> classify = digits.classify
        >>> digits.session.reload("examples/digits/digits.vmvx.vmfb").name
        'module'
        >>> classify(np.zeros((8, 8), np.float32)).shape
        (10,)
        """
        from jitree.api.serving import reload

        self._require_open()
        return reload(self, sources, compiled)

    @property
    def is_looked_at(self) -> bool:
        """Tells whether a tap, a profile or a replacement is there; checks of the session do not count."""
        if self._replacements is not None and self._replacements.active:
            return True
        profile, observation = self._last_profile(), self._observation
        checks = self.finite_check is not None
        return (profile is not None and profile.is_going_on) or (
            observation is not None and observation.count > checks
        )

    @property
    def closed(self) -> bool:
        """Whether it has been closed: it loads and calls nothing any more."""
        return self._closed

    @property
    def is_observed(self) -> bool:
        """Whether a tap or a check looks at its dispatches."""
        return self._observation is not None and self._observation.is_on

    def _observed(self) -> Observation:
        """Has Python make the calls where machine code tells nothing."""
        from jitree.observe.observation import Observation

        if self._observation is None:
            self._observation = Observation(self._context.table, self._devices)
        if self._observation.needs_python:
            self.leave_machine_code()
        return self._observation

    def leave_machine_code(self) -> None:
        """Has Python make the next calls."""
        for function in self._functions.values():
            function.leave_machine_code()

    def _seen(self, function: Function) -> Function:
        """A new function, as those that look have it."""
        profile = self._last_profile()
        if profile is not None:
            profile.notes.watch(function)
        if self._telemetry is not None:
            self._telemetry.watch(function)
        return function

    def _end_replacements(self) -> None:
        """Executables and what replaces their functions refer to each other."""
        if self._replacements is not None:
            self._replacements.end()

    def _stop_looking(self) -> None:
        if self._observation is not None:
            self._observation.close()
        profile = self._last_profile()
        if profile is not None:
            profile.stop()
        if self._telemetry is not None:
            self._telemetry.stop()

    @abc.abstractmethod
    def prepare(self, name: str) -> Function: ...

    @abc.abstractmethod
    def _drop_blocks(self) -> None: ...

    @abc.abstractmethod
    def _register_new(self, loaded: Sequence[ModuleLike], compiled: Compiled = None) -> tuple[Module, ...]:
        """Adds modules, whose names no others have."""

    @abc.abstractmethod
    def _require_open(self) -> None:
        """FAILED_PRECONDITION after :meth:`close`."""

"""Runs programs on Ray: predictors for datasets, replicas for Serve.

What they do is in :mod:`.batching`. Servers answer a status by a code of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np

from jitree.api.calls.refusal import listed
from jitree.api.function import Function
from jitree.api.program import Program
from jitree.base.records import NamedTuple
from jitree.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusCode,
    StatusError,
)
from jitree.hal.groups.rendezvous import PolledStore
from jitree.integrations.batching import Batcher, PaddedFunction

_STATUSES: Final = {
    StatusCode.INVALID_ARGUMENT: 400, StatusCode.OUT_OF_RANGE: 400, StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429, StatusCode.UNAVAILABLE: 503, StatusCode.DEADLINE_EXCEEDED: 504,
}  # fmt: skip


def http_status(error: StatusError) -> int:
    """500 for what the caller can do nothing about."""
    return _STATUSES.get(error.code, 500)


def placed(program: Program) -> Program:
    """Places a program that names no device on what Ray gave to this worker: the first of its GPUs
    (``num_gpus``), else as many threads as it has processors (``num_cpus``)."""
    import ray

    if program.device is not None or not ray.is_initialized():
        return program
    if ray.get_gpu_ids():
        return program.on("cuda://0")  # of CUDA_VISIBLE_DEVICES, which Ray sets
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    return program.on(f"local-task://?threads={max(1, int(cpus))}")


def changed(program: Program, files: Mapping[str, Any]) -> Program:
    """The program with other modules, or other parameters: lists of paths."""
    given: dict[str, Any] = {
        "modules": [
            f"{file.path}{file.role}" if file.data is None else file.data for file in program.modules
        ],
        "parameters": [f"{file.role[1:]}={file.path}" for file in program.parameters],
        **files,
    }
    modules, parameters = (listed(name, "paths", paths) for name, paths in given.items())
    return Program(*modules, device=program.device, parameters=parameters, **dict(program.options))


def functions(program: Program, names: str | Sequence[str]) -> list[Function]:
    """Functions of a program by name, with or without that of their module."""
    session = program.open()
    found = []
    for name in [names] if isinstance(names, str) else names:
        owners = [module for module in session.modules.values() if name in module.names]
        if "." in name:
            found.append(session.lookup(name))
        elif len(owners) == 1:
            found.append(owners[0][name])
        else:
            raise NotFoundError(
                f"{len(owners)} modules export '{name}'; write module.{name}, of {', '.join(session.modules)}"
            )
    return found


class Predictor:
    """Calls a function with columns of a batch, for ``Dataset.map_batches``. It adds its results as columns.

    ``dataset.map_batches(Predictor, fn_constructor_args=(program, "classify"), …)``; an instance will do.
    """

    def __init__(
        self,
        program: Program,
        function: str | Sequence[str],
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        sizes: Sequence[int] = (),
        in_flight: int = 1,
    ) -> None:
        """``function``: its name, or those of one for each number of rows.

        ``inputs``: columns that it takes, by default those that are named like its arguments, or all.
        ``outputs``: columns of its results. ``sizes``: as of :class:`.PaddedFunction`. ``in_flight``: parts
        of a batch that are computed at once.
        """
        self._given = program, function
        self._options: dict[str, Any] = {
            "inputs": tuple(inputs), "outputs": tuple(outputs), "sizes": tuple(sizes), "in_flight": in_flight,
        }  # fmt: skip
        self._function: PaddedFunction | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Predictor, *self._given, **self._options), ()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a batch that the function does not take, and its results.

        INVALID_ARGUMENT where one name is for two of them.
        """
        if self._function is None:
            program, names = self._given
            self._function = PaddedFunction(*functions(placed(program), names), sizes=self._options["sizes"])
        inputs = self._inputs(batch)
        results = self._computed(self._function, [batch[name] for name in inputs])
        given = self._options["outputs"] or tuple(item.name for item in self._function.functions[0].results)
        if len(given) != len(results):
            raise InvalidArgumentError(f"outputs: {len(given)} names for {len(results)} results")
        kept = {name: column for name, column in batch.items() if name not in inputs}
        names = [*kept, *given]
        twice = [name for name in given if names.count(name) > 1]
        if twice:
            raise InvalidArgumentError(
                f"outputs: '{twice[0]}' would be two columns; name {len(given)} others than {', '.join(kept)}"
            )
        return kept | dict(zip(given, results, strict=True))

    def _inputs(self, batch: Mapping[str, Any]) -> tuple[str, ...]:
        assert self._function is not None
        names = tuple(argument.name for argument in self._function.functions[0].arguments)
        inputs: tuple[str, ...] = self._options["inputs"]
        if not inputs:
            inputs = names if set(names) <= set(batch) else tuple(batch)
        if len(inputs) != len(names) or not set(inputs) <= set(batch):
            raise InvalidArgumentError(
                f"inputs: the function takes {len(names)} columns and the batch has {', '.join(batch)}; say "
                "which are which"
            )
        return inputs

    def _computed(self, function: PaddedFunction, columns: list[Any]) -> tuple[Any, ...]:
        count, parts = len(columns[0]), self._options["in_flight"]
        if parts < 2 or count < parts:
            results = function(*columns)
            return results if isinstance(results, tuple) else (results,)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(parts, "jitree-predictor")
        step = -(-count // parts)
        if function.sizes:  # whole calls
            step = -(-step // function.sizes[-1]) * function.sizes[-1]
        starts = range(0, count, step)
        made = self._threads.map(
            lambda start: function(*(column[start : start + step] for column in columns)), starts
        )
        rows = [part if isinstance(part, tuple) else (part,) for part in made]
        return tuple(np.concatenate(column) for column in zip(*rows, strict=True))


def _json(array: Any) -> Any:
    """Numbers as lists; null for those that are not finite, which JSON does not have."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        array = np.where(np.isfinite(array), array.astype(object), None)
    return array.tolist()


class _Served(NamedTuple):
    """A program, open, and the batches of requests for its function."""

    program: Program
    function: Function
    batcher: Batcher


class Replica:
    """For Serve: ``serve.deployment(Replica).bind(program, "classify")``.

    Requests that come to a replica at the same time share a batch; ``handle.predict.remote(image)`` gives the
    results of one, and HTTP takes ``{"inputs": […]}`` and gives ``{"outputs": […]}``.
    """

    def __init__(
        self, program: Program, function: str | Sequence[str], *, sizes: Sequence[int] = (), **options: Any
    ) -> None:
        """``options`` are those of :class:`.Batcher`."""
        self._names = function
        self._sizes = sizes
        self._options = options
        self._now = self._load(placed(program))
        self._changing = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()

    def _load(self, program: Program) -> _Served:
        found = functions(program, self._names)
        batcher = Batcher(PaddedFunction(*found, sizes=self._sizes), **self._options)
        return _Served(program, found[0], batcher)

    async def predict(self, *items: Any, timeout: float | None = None) -> Any:
        """As a call of :class:`.Batcher`."""
        return await self._now.batcher(*items, timeout=timeout)

    async def __call__(self, request: Any) -> Any:
        """A request of HTTP. Its errors have statuses of HTTP."""
        try:
            return await self._answer(request)
        except StatusError as error:
            from starlette.responses import JSONResponse

            return JSONResponse({"error": str(error)}, http_status(error))

    async def _answer(self, request: Any) -> dict[str, Any]:
        try:
            value = await request.json()
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"the request is no JSON: {error}") from None
        tensors = (argument.tensor for argument in self._now.function.arguments)
        rows = [tensor.element_type for tensor in tensors if tensor is not None]
        items = value.get("inputs") if isinstance(value, dict) else None
        if not isinstance(items, list) or len(items) != len(rows):
            raise InvalidArgumentError(f"expected a JSON object whose inputs are {len(rows)} arrays")
        try:
            with np.errstate(over="ignore"):
                arrays = [
                    np.asarray(item, row.dtype if row else None)
                    for item, row in zip(items, rows, strict=True)
                ]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"inputs: {error}") from None
        for array in arrays:
            if array.dtype.kind in "fc" and not np.isfinite(array).all():
                raise InvalidArgumentError(f"inputs: expected finite numbers of {array.dtype}")
        results = await self.predict(*arrays)
        results = results if isinstance(results, tuple) else (results,)
        return {"outputs": [_json(np.asarray(result)) for result in results]}

    def check_health(self) -> None:
        """Serve asks, and replaces a replica that raises."""
        if self._now.function.session.closed:
            raise FailedPreconditionError("the session of the replica has been closed")

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """``user_config={"modules": [path], "parameters": [archive]}`` loads these, of which one may stay as
        it is; requests that were accepted end on what was loaded before. INVALID_ARGUMENT for anything else.
        """
        unknown = sorted(user_config.keys() - {"modules", "parameters"})
        if unknown:
            raise InvalidArgumentError(
                f"user_config: expected modules and parameters, not {', '.join(unknown)}"
            )
        if not user_config:
            return
        async with self._changing:
            loaded = await asyncio.to_thread(lambda: self._load(changed(self._now.program, user_config)))
            loaded.batcher.count_on(self._now.batcher)
            old, self._now = self._now, loaded
        ending = asyncio.create_task(self._end(old))
        self._draining.add(ending)
        ending.add_done_callback(self._draining.discard)

    async def _end(self, old: _Served) -> None:
        await old.batcher.drain()
        async with self._changing:  # else the same program may be opened again, and closed here
            if old.program != self._now.program:
                await asyncio.to_thread(old.function.session.close)

    async def metrics(self) -> dict[str, int]:
        return {**self._now.batcher.metrics, "waiting": self._now.batcher.waiting}


class RayStore(PolledStore):
    """Keys that the members of a job on Ray share, for ``StoreProvider``.

    ``job`` tells groups apart: another name for each.
    """

    def __init__(self, job: str, timeout: float = 300.0) -> None:
        super().__init__(timeout)
        self._job = job

    def set(self, key: str, value: bytes, /) -> None:
        from ray.experimental.internal_kv import _internal_kv_put

        if _internal_kv_put(f"{self._job}/{key}", value, overwrite=False):
            raise AlreadyExistsError(f"'{key}' of job '{self._job}' is set already; take another name")

    def look(self, key: str) -> bytes | None:
        from ray.experimental.internal_kv import _internal_kv_get

        value = _internal_kv_get(f"{self._job}/{key}")
        return None if value is None else bytes(value)

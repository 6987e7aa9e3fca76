"""The order in which modules have to be registered: each after those that it imports from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jitree.errors import InvalidArgumentError

if TYPE_CHECKING:
    from jitree.dispatch.context import ModuleLike


def imported_modules(module: ModuleLike) -> set[str]:
    """Names of the modules that a module imports from or says it depends on."""
    names = {item.full_name.partition(".")[0] for item in module.imports}
    return names | {dependency.name for dependency in module.dependencies}


def load_order(modules: Sequence[ModuleLike]) -> list[ModuleLike]:
    """The modules in the given order, but after those among them that they import from.

    INVALID_ARGUMENT, naming the modules, if they import from one another in a circle.
    """
    by_name = {module.name: module for module in modules}
    ordered: dict[str, ModuleLike] = {}
    for module in modules:
        _place(module, by_name, ordered, [])
    return list(ordered.values())


def _place(
    module: ModuleLike, by_name: Mapping[str, ModuleLike], ordered: dict[str, ModuleLike], path: list[str]
) -> None:
    """Puts a module after what it needs; ``path`` are those that are waiting for it."""
    if module.name in ordered:
        return
    if module.name in path:
        circle = [*path[path.index(module.name) :], module.name]
        raise InvalidArgumentError(
            f"modules import from one another in a circle: {' -> '.join(circle)}; none of them can be first"
        )
    for needed in by_name.values():  # not the set of names: its order changes from run to run
        if needed is not module and needed.name in imported_modules(module):
            _place(needed, by_name, ordered, [*path, module.name])
    ordered[module.name] = module

"""Makes the pages of the reference: one for each public name, from its docstring."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, Final, get_origin

import jitree

PARTS: Final = {
    "jitree.errors": "status codes and exceptions",
    "jitree.kernels": "kernels of your own in place of dispatches",
    "jitree.integrations.batching": "requests in batches, for servers",
    "jitree.integrations.streams": "results that come one by one, for servers",
    "jitree.params": "archives of weights",
}
"""Modules that users import from, beside ``jitree`` itself."""

GIVEN: Final = (
    "jitree.api.explain.Explanation",
    "jitree.api.report.ProgramReport",
    "jitree.api.serving.Metrics",
    "jitree.hal.device_memory.DeviceMemory",
    "jitree.observe.profile.Profile",
    "jitree.observe.taps.Taps",
    "jitree.observe.telemetry.Telemetry",
    "jitree.kernels.replacement.Replacement",
)
"""Classes of what public methods give."""


MACHINERY: Final = """
attempt call_by_machine_code call_slowly end forget function_of in_call invoker is_direct is_looked_at
is_observed is_settled known_sizes leave_machine_code looked_at order packers passed readers readers_changed
reduced transfer unpack unpackers updates_in_place will_end
"""
"""Members by which parts of the package call each other."""


def public_names() -> list[str]:
    """What ``dir(jitree)`` has."""
    return [name for name in dir(jitree) if not name.startswith("__")]


def first_sentence(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def resolved(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def exported(module: types.ModuleType) -> list[str]:
    """Names of a module that are its own or that it hands on, but for those that ``jitree`` has."""
    named = getattr(module, "__all__", None)
    return [
        name
        for name, value in sorted(vars(module).items())
        if (
            name in named
            if named
            else is_of_jitree(value) and (module.__file__ or "").endswith("__init__.py")
        )
        or getattr(value, "__module__", None) == module.__name__
        if not name.startswith("_") and name not in public_names()
    ]


def is_of_jitree(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("jitree.")


def title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


@cache
def meanings() -> dict[str, str]:
    """What each status code means: the docstring that follows it."""
    (defined,) = ast.parse(inspect.getsource(jitree.StatusCode)).body
    assert isinstance(defined, ast.ClassDef)
    return {
        ast.unparse(before.targets[0]): ast.literal_eval(after.value)
        for before, after in pairwise(defined.body)
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr)
    }


def directive(path: str, value: Any) -> str:
    """What has Sphinx write the documentation of one name."""
    if isinstance(value, types.ModuleType):
        names = [f"{path}.{name}" for name in exported(value)]
        return f".. automodule:: {path}\n\n" + "\n".join(directive(name, resolved(name)) for name in names)
    if isinstance(value, type) and issubclass(value, jitree.StatusError) and value is not jitree.StatusError:
        meaning = f"{value.code.name}: {meanings()[value.code.name]}"
        options = "   :show-inheritance:\n   :members:\n   :exclude-members: code\n"
        return f".. autoclass:: {path}\n{options}\n   {meaning}\n"
    if isinstance(value, type) and issubclass(value, int):
        return f".. autoclass:: {path}\n   :members:\n   :undoc-members:\n   :member-order: bysource\n"
    if isinstance(value, type):
        inherited = "   :inherited-members: BaseException, Exception, object\n"
        hidden = f"   :exclude-members: {', '.join(MACHINERY.split())}\n"
        return f".. autoclass:: {path}\n   :members:\n{inherited}{hidden}"
    if get_origin(value) is Annotated:  # an alias, which autodoc takes for a function
        text = textwrap.indent(inspect.getdoc(value) or "", "   ")
        return f".. py:data:: {path}\n   :type: {value.__origin__.__name__}\n\n{text}\n"
    if callable(value):
        return f".. autofunction:: {path}\n"
    return f".. autodata:: {path}\n"


def pages() -> dict[str, str]:
    """Each page by its path, the list of all first."""
    found: dict[str, str] = {}
    rows: list[str] = []
    for path, value, about in entries():
        name = f"reference/{path}.rst"
        found[name] = title(path) + directive(path, value)
        rows.append(f"   * - :doc:`{path} </reference/{path}>`\n     - {about}\n")
    table = ".. list-table::\n   :widths: 30 70\n\n" + "".join(rows)
    listed = "".join(f"   /{name.removesuffix('.rst')}\n" for name in found)
    index = title("Reference") + "Every public name.\n\n" + table + "\n.. toctree::\n   :hidden:\n\n" + listed
    return {"reference/index.rst": index, **found}


def entries() -> list[tuple[str, Any, str]]:
    """Path, value and headline of all names."""
    paths = [f"jitree.{name}" for name in public_names() if f"jitree.{name}" not in PARTS]
    found = [(path, getattr(jitree, path.removeprefix("jitree."))) for path in paths]
    found += [(path, resolved(path)) for path in GIVEN]
    rows = [(path, value, first_sentence(value)) for path, value in found]
    return rows + [(path, import_module(path), about) for path, about in PARTS.items()]

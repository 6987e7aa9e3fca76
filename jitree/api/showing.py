"""Says what functions, modules and sessions are, for ``help()``, editors and notebooks.

The first call of ``help()`` and the first object that is shown import this file.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Final

from jitree.api.calls.declaration import OUT, TIMEOUT, WORKSPACE, Parameter, storage_names, without_twins
from jitree.base.page import Notice, PageTable, Piece, notebook
from jitree.base.tables import bytes_text, html_table
from jitree.errors import printable

if TYPE_CHECKING:
    from jitree.hal.device import Device

_WIDTH: Final = 4
_AFFINITY: Final = re.compile(r"%(\w+): [^%]*?iree\.abi\.affinity = #hal\.device\.\w+<@(\w+)")
"""Of a declaration: what an argument or result is called, and the device that it is on."""


def python_signature(function: Any) -> inspect.Signature:
    """What :func:`inspect.signature` gives of a function: names and declared types, results too."""
    names = [item.name for item in function.arguments]
    is_named = all(name.isidentifier() and not iskeyword(name) for name in names)
    is_named = is_named and len(set(names)) == len(names)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_named else inspect.Parameter.POSITIONAL_ONLY
    parameters = [
        inspect.Parameter(item.name if is_named else f"argument{index}", kind, annotation=item.type)
        for index, item in enumerate(function.arguments)
    ]
    types = [item.type for item in function.results]
    result = f"({', '.join(types)})" if len(types) > 1 else types[0] if types else None
    return inspect.Signature(parameters, return_annotation=result)


def _in_python(function: Any) -> str:
    return str(python_signature(function)).replace("'", "")


def documentation(function: Any) -> str:
    """What ``help()`` says of a function: what it takes, what it gives, and how it is called."""
    lines = [f"{function.name}{_in_python(function)}", ""]
    for title, items in (("Takes", function.arguments), ("Gives", function.results)):
        lines.append(f"{title}:" if items else f"{title} nothing.")
        lines += [f"{' ' * _WIDTH}{item.name}: {described(item)}" for item in items]
    stored = storage_names(function.signature)
    options = [f"{TIMEOUT}= (seconds)", *([f"{OUT}= (memory of {', '.join(stored)})"] if stored else [])]
    if function.signature.workspace is not None:
        options.append(f"{WORKSPACE}= (memory to compute in)")
    lines += ["", f"A call may have {', '.join(options)}; `async_` awaits it, `submit` does not wait."]
    return printable("\n".join([*lines, f"Declared as: {function.declaration}"]))


def described(item: Parameter) -> str:
    """An argument or result: ``array of float32, shape (8, ?)``."""
    if item.tensor is None or item.tensor.element_type is None:
        return item.type
    shape = ", ".join("?" if size is None else str(size) for size in item.tensor.shape)
    shape += "," if len(item.tensor.shape) == 1 else ""
    kept = ", may be overwritten" if item.overwritten else ""
    return f"array of {item.tensor.element_type.numpy_name}, shape ({shape}){kept}"


def function_html(function: Any) -> Callable[[], str]:
    return partial(_function_html, function)


def _function_html(function: Any) -> str:
    rows = [
        (role, item.name, item.type, described(item))
        for role, items in (("takes", function.arguments), ("gives", function.results))
        for item in items
    ]
    return html_table(f"jitree.Function {function.full_name}", ("", "name", "declared", "in Python"), rows)


def module_html(module: Any) -> str:
    if module.session.closed:
        return html_table(f"jitree.Module {module.name} of a closed session", (), [module.names])
    return notebook(module.name, module_pieces(module))


def function_pieces(module: Any) -> list[Piece]:
    """The functions of a module."""
    rows = [
        (name, _in_python(module[name]), module[name].declaration) for name in without_twins(module.names)
    ]
    found: list[Piece] = [
        PageTable(f"jitree.Module {module.name}", ("function", "signature", "declared as"), rows)
    ]
    if not rows:
        found.append(Notice("the module exports no function that could be called"))
    return found


def module_pieces(module: Any) -> list[Piece]:
    """Functions of a module, and what it needs."""
    found = function_pieces(module)
    needs = [
        (item.name, f"version {item.minimum_version}", "" if item.required else "optional")
        for item in module.dependencies
    ]
    if needs:
        found.append(PageTable("What it needs", ("module", "at least", ""), needs))
    return found


def session_html(session: Any) -> str:
    rows = [("device", device.uri, _memory(device)) for device in session.devices]
    rows += [("module", name, ", ".join(module.names)) for name, module in session.modules.items()]
    for provider in session.parameter_providers:
        rows.append(("parameters", provider.scope or "(no scope)", f"{len(provider.index)} keys"))
    state = ", closed" if session.closed else ""
    return html_table(f"jitree.Session, tier {session.tier}{state}", ("", "name", "holds"), rows)


def _memory(device: Device) -> str:
    memory = device.memory()
    return f"{bytes_text(memory.live)} used, {bytes_text(memory.peak)} at most"


def placement(session: Any) -> str:
    """Says which device is which, and where arguments and results lie."""
    made = session.made_by[0]
    names = list(made) if isinstance(made, dict) else []
    uris = {f"__device_{index}": device.uri for index, device in enumerate(session.devices)}
    uris |= {name: device.uri for name, device in zip(names, session.devices, strict=False)}
    lines = [
        f"device {index}: {_named(device, names[index:])}" for index, device in enumerate(session.devices)
    ]
    for module in session.modules.values():
        for name in without_twins(module.names):
            function = module[name]
            places = [
                f"{item} on {uris.get(device, device)}"
                for item, device in _AFFINITY.findall(function.signature.declaration)
            ]
            places = places or [f"all on {function.device.uri}"]
            lines.append(f"{function.full_name}: {', '.join(places)}")
    return printable("\n".join(lines))


def _named(device: Device, names: list[str]) -> str:
    name = f"{names[0]}, " if names else ""
    threads = f", {device.threads} threads" if device.threads > 1 else ""
    return f"{name}{device.uri}{threads}"

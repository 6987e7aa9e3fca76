"""``jitree reduce``: the dispatch that is wrong, alone."""

from __future__ import annotations

import sys
from typing import Final

from jitree.errors import InvalidArgumentError
from jitree.tools.comparing import GROUPS, allowed, inputs_of, side, two_sides
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command

FLAGS: Final = flag_set(
    "reduce",
    "writes the one dispatch of a call that is wrong (against a second program), not finite or failing",
    GROUPS,
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Returns 0 when the reproduction is written."""
    from jitree.compare.reduction import reduce

    folder, modules, devices = flags.text("save"), flags.texts("module"), flags.texts("device")
    if not folder:
        raise InvalidArgumentError("no folder was given: --save=FOLDER")
    if len(modules) == 1 and len(devices) < 2:
        one, other = side(flags, modules[0], devices[0] if devices else ""), None
    else:
        one, other = two_sides(flags)
    name, inputs = flags.text("function") or None, inputs_of((one, other), flags)
    text = reduce(one, folder, name, inputs, against=other, **allowed(flags))
    sys.stdout.write(f"{text}\nwritten to {folder}: run.py runs it alone\n")
    return 0

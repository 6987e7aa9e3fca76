"""``jitree diff``: two programs side by side."""

from __future__ import annotations

import sys
from typing import Final

from jitree.tools.comparing import GROUPS, allowed, inputs_of, two_sides
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command

FLAGS: Final = flag_set(
    "diff", "calls two programs with the same values and finds where they depart", GROUPS, positional="module"
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Returns 0, or 1 where the two depart."""
    from jitree.compare.differences import diff

    sides = two_sides(flags)
    found = diff(*sides, flags.text("function") or None, inputs_of(sides, flags), **allowed(flags))
    if flags.text("save") and not found.equal:
        found.save(flags.text("save"))
    sys.stdout.write(f"{found}\n")
    if found.equal:
        return 0
    sys.stdout.write(f"{found.table()}\n")
    for name, alone in zip("ab", found.alone, strict=True):
        sys.stdout.writelines(f"only {name} has {label}\n" for label in alone)
    return 1

"""``jitree parameters create``: an archive of parameters that hold zeros or one value."""

from __future__ import annotations

import sys
from typing import Final

from jitree.errors import InvalidArgumentError, error_context
from jitree.params import ParameterEntry
from jitree.params.irpa_writer import plan, write
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command
from jitree.tools.parameters_table import ParameterRow, table
from jitree.tools.parameters_values import parse_declaration

FLAGS: Final = flag_set(
    "parameters create",
    "makes an archive of parameters that hold zeros or repeated values",
    "create archive",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Writes the archive and lists it; splats come first."""
    splats = [_parse("splat", text) for text in flags.texts("splat")]
    data = [_parse("data", text) for text in flags.texts("data")]
    output = output_path(flags)
    layout = plan(splats, data, flags.integer("alignment"))
    write(output, layout)
    if not flags.boolean("quiet"):
        sys.stdout.write(table("", [ParameterRow(*stored) for stored in layout.parameters]))
    return 0


def _parse(flag: str, text: str) -> ParameterEntry:
    with error_context(f"flag '--{flag}'"):
        if flag == "splat" and text.count("=") < 2:
            raise InvalidArgumentError(f"'{text}' has no value: <key>=<shape>x<type>=<value>")
        return parse_declaration(text)


def output_path(flags: ParsedFlags) -> str:
    """The path of ``--output``; INVALID_ARGUMENT when it was not given."""
    path = flags.text("output")
    if not path:
        raise InvalidArgumentError("no output file was given: --output=<file>.irpa")
    return path

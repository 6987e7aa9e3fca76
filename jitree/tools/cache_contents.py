"""``jitree cache list`` and ``jitree cache clear``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from jitree.codegen.image import contents
from jitree.codegen.image.cache import place
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command

LIST_FLAGS: Final = flag_set("cache list", "shows what the folder of machine code holds", "")
CLEAR_FLAGS: Final = flag_set("cache clear", "removes all machine code but what is being built", "")
_DAMAGED: Final = "(damaged, of another version of jitree, or others can write it)"


@command(LIST_FLAGS)
def list_main(flags: ParsedFlags) -> int:
    """Prints a line per image, the most recently used first. INVALID_ARGUMENT for a bad JITREE_CACHE_SIZE."""
    limit, found = contents.maximum_size(), place()
    if found.refusal:
        print(found.reason)
    entries = contents.entries()
    for folder in found.folders:
        here = [entry for entry in entries if str(entry.path.parent) == folder]
        sys.stdout.writelines(line + "\n" for line in listing(folder, here, limit))
    return 0


@command(CLEAR_FLAGS)
def clear_main(flags: ParsedFlags) -> int:
    """Empties the folder and says how much that was."""
    count, size = contents.clear()
    print(f"removed {_images(count)}, {size_text(size)}, from {place().folder}")
    return 0


def listing(folder: str, entries: Sequence[contents.CacheFile], limit: int) -> Iterator[str]:
    total = size_text(sum(entry.size for entry in entries))
    yield f"{folder}: {_images(len(entries))}, {total} of {size_text(limit)}"
    if not entries:
        return
    width = max(len("NAME"), *(len(entry.name) for entry in entries))
    yield ""
    yield f"{'NAME':{width}}  {'SIZE':>9}  {'LAST USED':16}  WHAT"
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        yield f"{entry.name:{width}}  {size_text(entry.size):>9}  {used}  {entry.title or _DAMAGED}"


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


def size_text(size: int) -> str:
    """Bytes in the largest unit that gives a number of at least one."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"

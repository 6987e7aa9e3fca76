"""What stands in for iree.runtime here."""

from __future__ import annotations

from typing import Final

from jitree import __version__

VERSION: Final = __version__
"""jitree's own."""
REVISIONS: Final[dict[str, str]] = {"JITREE": __version__}
PACKAGE_SUFFIX: Final = ""

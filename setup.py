"""Makes what ``pyproject.toml`` cannot state of the package: its page at an index, and a bill of materials.

An index shows README.md without links to files: a relative link leads to a file of the source distribution,
and an index has none, so the name of the file takes the link's place. The wheel has a bill (PEP 770):
CycloneDX, the same bytes for the same files, with what has to be installed beside jitree, and the files of
machine code that come with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MACHINE_CODE = (".image", ".ptx")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]+)(?:#[^)\s]*)?\)")
NOTE = "`pip install jitree` installs it. Files and commands named here are of the source distribution.\n"


def bill(version: str, files: Iterable[Path]) -> dict[str, Any]:
    """The bill of the package in a version, with these files of it (paths below the root)."""
    own = f"pkg:pypi/jitree@{version}"
    needed = {name: text for text in PROJECT["dependencies"] for name in re.findall(r"^[\w.-]+", text)}
    required: list[dict[str, Any]] = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name.lower().replace('_', '-')}",
            "name": name,
            "purl": f"pkg:pypi/{name.lower().replace('_', '-')}",
            "scope": "required",
            "properties": [{"name": "jitree:requirement", "value": text}],
        }
        for name, text in sorted(needed.items())
    ]
    contained: list[dict[str, Any]] = [
        {
            "type": "file",
            "bom-ref": path.as_posix(),
            "name": path.as_posix(),
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}],
        }
        for path in sorted(files)
    ]
    component = {
        "type": "library",
        "bom-ref": own,
        "name": "jitree",
        "version": version,
        "description": PROJECT["description"],
        "licenses": [{"license": {"id": PROJECT["license"]}}],
        "purl": own,
    }
    made: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component},
        "components": required + contained,
        "dependencies": [{"ref": own, "dependsOn": [item["bom-ref"] for item in required]}],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True))
    return {**made, "serialNumber": number.urn}


class Wheel(bdist_wheel):
    """Writes the bill beside the other metadata, before all of it is packed."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: Any, **named: Any) -> None:
        super().write_wheelfile(wheelfile_base, *arguments, **named)
        files = [
            path.relative_to(ROOT) for path in (ROOT / "jitree").rglob("*") if path.suffix in MACHINE_CODE
        ]
        folder = Path(wheelfile_base) / "sboms"
        folder.mkdir(exist_ok=True)
        text = json.dumps(bill(self.distribution.get_version(), files), indent=1) + "\n"
        (folder / "jitree.cdx.json").write_text(text, encoding="utf-8")


def named(link: re.Match[str]) -> str:
    picture, words, path = link.groups()
    if picture:
        return f"{words}: `{path}`"
    return f"`{path}`" if path.startswith(words) else f"{words} in `{path}`"


def description(readme: str) -> str:
    """The page with names of files in place of links to them and of pictures, outside of code."""
    kept: list[str] = []
    end = 0
    for code in CODE.finditer(readme):
        kept += [LINK.sub(named, readme[end : code.start()]), code.group(0)]
        end = code.end()
    title, _, text = "".join([*kept, LINK.sub(named, readme[end:])]).partition("\n\n")
    first, _, rest = text.partition("\n\n")
    return f"{title}\n\n{first}\n\n{NOTE}\n{rest.lstrip()}"


if __name__ == "__main__":
    setup(
        cmdclass={"bdist_wheel": Wheel},
        long_description=description((ROOT / "README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
    )

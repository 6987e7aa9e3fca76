"""Puts a bill of materials into the wheel (PEP 770): CycloneDX, the same bytes for the same files.

It lists what has to be installed beside jitree, and the files of machine code that come with it.
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


if __name__ == "__main__":
    setup(cmdclass={"bdist_wheel": Wheel})

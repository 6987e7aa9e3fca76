"""Writes ``goldens.json``: what iree-run-module (3.13, extra ``perf``) prints for the golden cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.tools.golden_cases import COMMANDS, ECHO_VALUES

HERE = Path(__file__).parent
MODULE = HERE.parent / "data" / "programs" / "echo.vmfb"
TOOL = Path(sys.executable).with_name("iree-run-module")


def run(*flags: str) -> dict[str, object]:
    command = [str(TOOL), "--device=local-sync", f"--module={MODULE}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return {"exit": done.returncode, "stdout": done.stdout}


def main() -> None:
    values = [
        {"function": function, "input": text, "flags": flags}
        | run(f"--function={function}", f"--input={text}", *flags)
        for function, text, flags in ECHO_VALUES
    ]
    commands = [{"flags": flags} | run(*flags) for flags in COMMANDS]
    (HERE / "goldens.json").write_text(json.dumps({"values": values, "commands": commands}, indent=1) + "\n")


if __name__ == "__main__":
    main()

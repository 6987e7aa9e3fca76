"""Fits the command line into shells: ``jitree completion`` and ``jitree install-tools``.

Completions are made from the table of flags. Tools that IREE has too get their names there.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from jitree.base.near_names import did_you_mean
from jitree.errors import AlreadyExistsError, InvalidArgumentError, system_refusals
from jitree.tools.flags import Flag, FlagSet, Kind, ParsedFlags, Support, command, flag_set

TOOLS: Final = {
    "iree-run-module": "run",
    "iree-benchmark-module": "benchmark",
    "iree-benchmark-executable": "benchmark-executable",
    "iree-check-module": "check",
    "iree-dump-module": "dump",
    "iree-create-parameters": "parameters create",
    "iree-convert-parameters": "parameters convert",
    "iree-dump-parameters": "parameters dump",
    "iree-cpuinfo": "cpuinfo",
}
"""Names of IREE's tools, and the command that stands for each."""
_MARK: Final = "# made by `jitree install-tools`"

INSTALL_FLAGS: Final = flag_set(
    "install-tools",
    "writes scripts with the names of IREE's tools into a folder",
    "install",
    positional="folder",
)
COMPLETION_FLAGS: Final = flag_set(
    "completion",
    'prints what lets a shell complete command lines: `eval "$(jitree completion bash)"`',
    "completion",
    positional="shell",
)
CPUINFO_FLAGS: Final = flag_set("cpuinfo", "lists the features of the processor, by LLVM's names", "")


@command(CPUINFO_FLAGS)
def cpuinfo_main(flags: ParsedFlags) -> int:
    """Lists what executables are told of the processor."""
    from jitree.loaders.environment import host_cpu_data

    sys.stdout.writelines(f"{name:<20} {present}\n" for name, present in host_cpu_data().items())
    return 0


@command(INSTALL_FLAGS)
def install_main(flags: ParsedFlags) -> int:
    """Writes the scripts. A file of that name that this has not written is left alone."""
    if not flags.text("folder"):
        raise InvalidArgumentError("no folder was given: jitree install-tools <folder>")
    folder = Path(flags.text("folder"))
    with system_refusals(f"cannot write scripts to '{folder}'"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in TOOLS:
            path = folder / name
            if path.exists() and not flags.boolean("force") and _MARK not in path.read_text(errors="replace"):
                raise AlreadyExistsError(f"'{path}' is another program; --force replaces it")
        for name, words in TOOLS.items():
            path = folder / name
            path.unlink(missing_ok=True)  # it may be a link to what must not change
            path.write_text(
                f'#!/bin/sh\n{_MARK}\nexec {shlex.quote(sys.executable)} -m jitree {words} "$@"\n'
            )
            path.chmod(0o755)
            sys.stdout.write(f"{path}\n")
    if str(folder.absolute()) not in os.environ.get("PATH", "").split(os.pathsep):
        print(f'jitree: put the folder in front: export PATH="{folder.absolute()}:$PATH"', file=sys.stderr)
    return 0


@command(COMPLETION_FLAGS)
def completion_main(flags: ParsedFlags) -> int:
    """Prints the completion of a shell."""
    shell = flags.text("shell")
    if shell not in _SHELLS:
        raise InvalidArgumentError(
            f"shell '{shell}' is not one of {', '.join(_SHELLS)}{did_you_mean(shell, _SHELLS)}"
        )
    sys.stdout.write(_SHELLS[shell](flag_sets()))
    return 0


def flag_sets() -> list[FlagSet]:
    """The flags of every command, which are found in the files of commands."""
    from jitree.tools.main import COMMANDS

    modules = dict.fromkeys(place.partition(":")[0] for place, _ in COMMANDS.values())
    found = (value for name in modules for value in vars(importlib.import_module(name)).values())
    sets = {value.command: value for value in found if isinstance(value, FlagSet)}
    return [sets[name] for name in sorted(sets)]


def _flags(flags: FlagSet) -> list[Flag]:
    return [flag for flag in flags.flags if flag.support is not Support.REFUSED]


def _values(flag: Flag) -> list[str]:
    if flag.kind is Kind.BOOLEAN:
        return ["true", "false"]
    if flag.name == "device":
        return ["local-sync", "local-task", "cuda"]
    return [choice for choice in flag.choices if choice]


def _words(flags: FlagSet) -> str:
    takes = {Kind.BOOLEAN: "", Kind.OPTIONAL: ""}
    return " ".join(f"--{flag.name}{takes.get(flag.kind, '=')}" for flag in _flags(flags))


def _first_words(sets: Sequence[FlagSet]) -> str:
    return " ".join(dict.fromkeys(flags.command.split()[0] for flags in sets))


def _cases(sets: Sequence[FlagSet]) -> Iterator[str]:
    """What is the same for bash and zsh: sets ``words`` by command, ``values`` by command and flag."""
    yield '  case "$command" in'
    for group in dict.fromkeys(flags.command.split()[0] for flags in sets if " " in flags.command):
        inner = [flags.command.split()[1] for flags in sets if flags.command.startswith(f"{group} ")]
        yield f'    {group}) words="{" ".join(inner)}" ;;'
    for flags in sets:
        yield f'    "{flags.command}") words="{_words(flags)}" ;;'
    yield "  esac"
    yield '  case "$command $flag" in'
    for flags in sets:
        for flag in _flags(flags):
            if _values(flag):
                yield f'    "{flags.command} --{flag.name}") values="{" ".join(_values(flag))}" ;;'
    yield "  esac"


_BASH: Final = r"""_jitree() {
  local line="${COMP_LINE:0:COMP_POINT}" words="" values="" flag="" current command
  current="${line##* }"; command="${COMP_WORDS[1]}"
  [[ "$current" == --*=* ]] && flag="${current%%=*}"
  case "$command" in GROUPS)
    [[ $COMP_CWORD -gt 2 ]] && command="$command ${COMP_WORDS[2]}" ;; esac
CASES
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "FIRST --help --version" -- "$current"))
  elif [[ -n "$flag" && -n "$values" ]]; then
    COMPREPLY=($(compgen -W "$values" -- "${current#*=}"))
  elif [[ -n "$flag" ]]; then
    compopt -o filenames; COMPREPLY=($(compgen -f -- "${current#*=}"))
  elif [[ "$current" == -* || "$words" != -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace
  else compopt -o filenames; COMPREPLY=($(compgen -f -- "$current")); fi
}
complete -F _jitree jitree
"""
_ZSH: Final = r"""#compdef jitree
_jitree() {
  local current="$words[CURRENT]" command="$words[2]" values="" flag=""
  [[ "$current" == --*=* ]] && flag="${current%%=*}"
  case "$command" in GROUPS)
    (( CURRENT > 3 )) && command="$command $words[3]" ;; esac
  local words=""
CASES
  if (( CURRENT == 2 )); then compadd -- FIRST --help --version
  elif [[ -n "$flag" ]]; then compset -P "*="
    if [[ -n "$values" ]]; then compadd -- ${=values}; else _files; fi
  elif [[ "$current" == -* || "$words" != -* ]]; then
    compadd -S "" -- ${(M)${=words}:#*=}; compadd -- ${${=words}:#*=}
  else _files; fi
}
(( $+functions[compdef] )) && compdef _jitree jitree
"""


def _scripted(script: str, sets: Sequence[FlagSet]) -> str:
    """Puts what is the same for bash and zsh into their scripts."""
    groups = "|".join(dict.fromkeys(flags.command.split()[0] for flags in sets if " " in flags.command))
    text = script.replace("GROUPS", groups).replace("FIRST", _first_words(sets))
    return text.replace("CASES", "\n".join(_cases(sets)))


def _fish(sets: Sequence[FlagSet]) -> str:
    lines = [f"complete -c jitree -n __fish_use_subcommand -f -a '{_first_words(sets)}'"]
    for flags in sets:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in flags.command.split())
        group, _, inner = flags.command.partition(" ")
        if inner:
            lines.append(f"complete -c jitree -n '__fish_seen_subcommand_from {group}' -a {inner}")
        for flag in _flags(flags):
            values = f" -f -a '{' '.join(_values(flag))}'" if _values(flag) else ""
            takes = "" if flag.kind in (Kind.BOOLEAN, Kind.OPTIONAL) else " -r"
            text = flag.help.partition("\n")[0].replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"complete -c jitree -n '{seen}' -l {flag.name}{takes}{values} -d '{text}'")
    return "\n".join(lines) + "\n"


_Writer = Callable[[Sequence[FlagSet]], str]
_SHELLS: Final[dict[str, _Writer]] = {
    "bash": partial(_scripted, _BASH),
    "zsh": partial(_scripted, _ZSH),
    "fish": _fish,
}

"""Names of systems are in one folder of the package: all other parts ask it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.sizes import FILES, PACKAGE

OF_A_SYSTEM = re.compile(
    r"mprotect|memfd|MFD_|F_\w*SEAL|futex|eventfd|timerfd|pidfd|epoll|inotify|ioctl|prctl|capset|seccomp|sched_\w"
    r"|SCHED_|\bsyscall\b|unshare\b|setns\b|getcpu|copy_file_range|\bsplice\b|posix_fadvise|posix_spawn|_SETSID"
    r"|O_TMPFILE|O_PATH\b|SO_PEERCRED|AF_NETLINK|SIOC|RLIMIT_(NICE|RT|MSG|SIGP|NPROC)|mallinfo|malloc_trim|dlvsym"
    r"|SIG(RT|PWR|STKFLT|POLL)|sigtimedwait|sigwaitinfo|CLOCK_(BOOT|TAI)|getauxval|HWCAP|hwcap|\bFEAT_|sysctl"
    r"|pthread_\w+_np|pthread_self|MAP_JIT|kqueue|icache|clear_cache|libm\.so|libc\.so|libgcc|mmap\.mmap\(.*PROT"
    r"|ctypes\.CDLL\(|CDLL\(['\"]|sys\.platform|platform\.(machine|system)\(|os\.uname|os\.name\b"
    r"|['\"]/(proc|sys|dev)\b|\bSYSTEM (==|!=|in|not in) |autogroup|cgroup"
)
ALSO = {"codegen/image/builder_process.py": r"CDLL\(|/dev/fd"}
"""What runs before the layer can be imported, in a program that is to start fast, and all that it names: the
C library, for dlopen(3), and the folder of open files."""


def test_one_layer_names_the_system() -> None:
    """Comments may say what a system has."""
    found = [
        (file.relative_to(PACKAGE).as_posix(), line.strip())
        for file in FILES
        if not file.relative_to(PACKAGE).as_posix().startswith("base/platform/")
        and OF_A_SYSTEM.search(file.read_text(encoding="utf-8"))
        for line in ast.unparse(_without_texts(file)).splitlines()
        if OF_A_SYSTEM.search(line)
    ]
    assert not [(name, line) for name, line in found if name not in ALSO or not re.search(ALSO[name], line)]
    assert {name for name, _ in found} == set(ALSO)


@pytest.mark.parametrize(
    "line",
    [
        "Path('/sys/devices')", "open('/proc/self/maps')", "os.listdir('/dev/fd')", "library.prctl(1)",
        "os.pidfd_open(1)", "fcntl.ioctl(file, 1)", "call(futex)", "os.memfd_create('a')", "os.eventfd(0)",
        "select.epoll()", "sys.platform == 'linux'", "platform.machine()", "platform.system()", "HWCAP2 = 26",
        "library.getauxval(16)", "if SYSTEM == 'linux'", "1 if SYSTEM in ('linux',) else 2", "seccomp = 22",
        "os.sched_setaffinity(0, {1})", "os.sched_yield()", "functions.sched_getcpu", "signal.SIGPWR",
        "signal.SIGRTMIN", "ctypes.CDLL('libm.so.6')", "library.pthread_jit_write_protect_np(1)", "O_PATH",
    ],
)  # fmt: skip
def test_names_of_systems_are_known(line: str) -> None:
    assert OF_A_SYSTEM.search(line)


def _without_texts(file: Path) -> ast.Module:
    """A file without the texts that explain it."""
    found = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(found):
        if isinstance(body := getattr(node, "body", None), list):
            body[:] = [
                line
                for line in body
                if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ] or [ast.Pass()]
    return found

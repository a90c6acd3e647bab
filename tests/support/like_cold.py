"""What a rank can see of how it was started; run as a rank, it prints one field of JSON a line.

What differs from process to process anyway is not among it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

SIGNALS = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP})

FILES = ("PREFECT_FT_HEARTBEAT", "TORCHELASTIC_ERROR_FILE")
"""Variables that name a file of the attempt."""


def open_files() -> dict[str, str]:
    """The descriptors; of the output file only that it is one."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            place = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        found[number] = "output" if place.endswith(".log") else place
    return {number: place for number, place in found.items() if not place.startswith("/proc/")}


def status(name: str) -> str:
    with open("/proc/self/status") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith(name + ":"))


def stream(file: object) -> list[object]:
    names = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through", "closed")
    return [getattr(file, name) for name in names] + [
        file.fileno(),
        file.isatty(),
        type(file.buffer).__name__,
    ]  # type: ignore[attr-defined]


def fields(main: dict[str, object]) -> dict[str, object]:
    """Everything; `main` is the main module's contents when it began."""
    thread = threading.main_thread()
    return {
        "argv": sys.argv,
        "orig_argv": getattr(sys, "orig_argv", None),
        "path": sys.path,
        "flags": repr(sys.flags),
        "warnoptions": sys.warnoptions,
        "xoptions": sys._xoptions,
        "executable": [sys.executable, sys.prefix, sys.base_prefix],
        "cwd": os.getcwd(),
        "environ": {name: value for name, value in os.environ.items() if name not in FILES},
        "main": {name: repr(value).split(" at 0x")[0] for name, value in main.items()},
        "main is": sys.modules["__main__"].__dict__ is main or sorted(vars(sys.modules["__main__"])) == sorted(main),
        "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
        "original streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__],
        "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(threading.excepthook), repr(sys.unraisablehook)],
        "handlers": {str(number): repr(signal.getsignal(number)) for number in SIGNALS},
        "kernel's signals": [status(name) for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")],
        "wakeup": signal.set_wakeup_fd(-1),
        "open files": open_files(),
        "threads": [thread.name, thread.native_id == threading.get_native_id() == os.getpid(), status("Threads")],
        "leads its session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "umask": os.umask(os.umask(0o77)),
        "recursion": sys.getrecursionlimit(),
        "tracing": [sys.gettrace(), sys.getprofile()],
        "subreaper's child": os.getppid(),
    }  # fmt: skip


def show(main: dict[str, object]) -> None:
    for name, value in fields(main).items():
        print(json.dumps([name, value], default=repr))  # noqa: T201  # what it is for

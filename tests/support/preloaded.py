"""Commands that load Prefect, forked from a process that has loaded it: to load it takes a second of a processor.

`started` is `subprocess.Popen` for `python -m MODULE …` and `python SCRIPT …`. What it starts is a child of this
process with the arguments, environment, directory, streams and signals that are given, and /proc shows them. Modules
of Prefect, and those of this package that import it, are loaded where the command imports them, with the settings of
that moment. Two things differ: hashes of strings are the same in all commands, and loading takes no time. Tests of what
happens until Prefect is loaded start the command itself; so does `started` where the kernel cannot do what is needed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.abc
import importlib.machinery
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from prefect_ft.worker import zygote

VISIBLE = (
    "prefect_ft.cli.foreground",
    "prefect_ft.cli.resume",
    "prefect_ft.cli.run",
    "prefect_ft.orchestrate.phase",
    "prefect_ft.report",
    "prefect_ft.backends.process.backend",
    "prefect_ft.backends.docker.backend",
    "ssl",
    "cryptography.x509",
    "fastapi.encoders",
    "graphviz",
    "rich.live",
)
"""Loaded in the beginning: none of them loads Prefect."""

HIDDEN = (
    "prefect.main",
    "prefect.cli",
    "prefect.client.orchestration",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.utilities.visualization",
    "prefect_ft.flows",
)
"""Loaded as well, and absent in a command until it imports one of them."""

START_A_SERVER = ("prefect_ft.flows", "prefect_ft.prefect_edge.tasks")
"""Where no API is configured, these do more than load, and do it in the command."""

OF_A_TEST = ("PREFECT_", "XDG_", "PYTEST_")
"""Variables that a test sets for its own processes."""

INTERPRETERS = ("PYTHON", "LC_", "LANG")
"""Variables that Python reads before anything runs."""

CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of the system call."""
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
PR_SET_MM, PR_SET_MM_MAP, PR_GET_TID_ADDRESS = 35, 14, 40


# -- the side of the tests ---------------------------------------------------------------------------


def started(words: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
    """Start a command of Python's; all settings are those of `subprocess.Popen`."""
    server = _server()
    env = settings.get("env")
    is_known = words[0] == sys.executable and (words[1] == "-m" or not os.fspath(words[1]).startswith("-"))
    if server is None or not is_known or not server.suits(os.environ if env is None else env):
        return subprocess.Popen(words, **settings)
    return Forked(server, words, **settings)


def completed(
    words: Sequence[str], *, timeout: float | None = None, capture_output: bool = False, **settings: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command of Python's to its end, as `subprocess.run` does."""
    if capture_output:
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(words, **settings) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def is_able() -> bool:
    """Return whether commands are forked on this machine."""
    return _server() is not None


class Forked(subprocess.Popen[Any]):
    """A command that was forked: a child of this process like any other."""

    def __init__(self, server: _Server, words: Sequence[str], **settings: Any) -> None:
        left = settings.keys() - {"cwd", "env", "stdin", "stdout", "stderr", "text", "start_new_session"}
        assert not left, f"not known here: {left}"
        self._server = server
        super().__init__(words, **settings)

    def _execute_child(self, args: Sequence[str], *how: Any) -> None:
        """Have it forked; `how` is what Popen passes to its own method."""
        cwd, env, is_session = how[4], how[5], how[20]
        ends = how[9:15]
        stdin, _, _, stdout, _, stderr = ends
        streams = [own if end == -1 else end for own, end in enumerate((stdin, stdout, stderr))]
        order = {
            "words": [os.fspath(word) for word in args],
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
            "env": dict(os.environ if env is None else env),
            "is_session": bool(is_session),
        }
        try:
            self.pid = self._server.fork(order, streams)
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        self._child_created = True


class _Server:
    """The process that has loaded Prefect."""

    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        self._env = _read_by_python(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            # Not the directories of the test that happened to be the first: it would count as theirs.
            env={name: value for name, value in os.environ.items() if not name.startswith(OF_A_TEST)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        self.fits, _ = zygote.receive(self._connection)
        atexit.register(self.close)

    def suits(self, env: Mapping[str, str]) -> bool:
        return _read_by_python(env) == self._env

    def fork(self, order: dict[str, Any], streams: Sequence[int]) -> int:
        """Return the pid of the process in which that is run."""
        socket.send_fds(self._connection, [b"\0"], streams)
        zygote.send(self._connection, order)
        pid, _ = zygote.receive(self._connection)
        assert pid is not None, "the process that has loaded Prefect has ended"
        return int(pid)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


@cache
def _server() -> _Server | None:
    """Start it at the first time, for all tests of this process; None: this machine can't do this."""
    server = _Server()
    return server if server.fits else None


def _read_by_python(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(INTERPRETERS)}


# -- the other side ----------------------------------------------------------------------------------


class _Hidden(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules that are loaded and not yet there; with the first that is imported, all of them are."""

    def __init__(self, modules: dict[str, ModuleType], at_exit: list[Any]) -> None:
        self._modules, self._at_exit = modules, at_exit
        self._specs = {name: module.__spec__ for name, module in modules.items()}
        for name in modules:
            del sys.modules[name]

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name not in self._modules:
            return None
        sys.meta_path.remove(self)
        self._appear()
        if name not in sys.modules:
            return None
        is_package = hasattr(self._modules[name], "__path__")
        return importlib.machinery.ModuleSpec(name, self, is_package=is_package)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._specs[module.__name__]

    def _appear(self) -> None:
        """Do what depends on the environment as Prefect would do it now."""
        for name, module in self._modules.items():
            sys.modules.setdefault(name, module)
        for function, arguments, named in self._at_exit:
            atexit.register(function, *arguments, **named)
        import prefect.context  # not before
        import prefect.logging.configuration as logs

        prefect.context.refresh_global_settings_context()
        if prefect.context.get_settings_context().settings.api.url is None:
            for name in START_A_SERVER:
                sys.modules.pop(name, None)
        logs.PROCESS_LOGGING_CONFIG.clear()
        logs.setup_logging()


def _load() -> _Hidden:
    for name in VISIBLE:
        importlib.import_module(name)
    assert "prefect" not in sys.modules
    before = set(sys.modules)
    at_exit: list[Any] = []
    register = atexit.register

    def note(function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
        at_exit.append((function, arguments, named))
        return function

    atexit.register = note  # type: ignore[assignment]
    os.environ["PREFECT_API_URL"] = "http://127.0.0.1:9/api"  # so that none is started
    for name in HIDDEN:
        importlib.import_module(name)
    atexit.register = register
    assert "prefect.server.api.server" not in sys.modules
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if name not in before and name.partition(".")[0] in ("prefect", "prefect_ft")
    }
    return _Hidden(hidden, at_exit)


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork whenever that is asked for; returns in what is forked, and nowhere else."""
    fork = _forking() if len(os.listdir("/proc/self/task")) == 1 else None
    zygote.send(connection, fork is not None)
    while True:
        byte, streams, _, _ = socket.recv_fds(connection, 1, 3)
        if not byte or fork is None:
            os._exit(0)
        order, _ = zygote.receive(connection)
        pid = fork()
        if pid:
            zygote.send(connection, pid)
            for stream in streams:
                os.close(stream)
            continue
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        return dict(order)


def _forking() -> Callable[[], int] | None:
    """Return what forks a child of this process's parent, so that who has asked for it can wait for it."""
    number = CLONE.get(platform.machine())
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    cell = ctypes.c_void_p()
    if (
        number is None
        or libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(cell), 0, 0, 0)
        or not _shown(sys.orig_argv, {})
    ):
        return None
    # The C library keeps the id of its only thread there, and gives it to what it forks itself.
    tid = (cell, None) if platform.machine() == "x86_64" else (None, cell)
    flags = CLONE_PARENT | CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID | signal.SIGCHLD

    def fork() -> int:
        python.PyOS_BeforeFork()
        pid = int(libc.syscall(number, ctypes.c_ulong(flags), None, None, *tid))
        if pid == 0:
            python.PyOS_AfterFork_Child()
            return 0
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), "clone")
        return pid

    return fork


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map`; the first eleven fields are in /proc/PID/stat, but for `brk`."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")
        ),
        *(
            (name, ctypes.c_uint64)
            for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end")
        ),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def _shown(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Have `ps` and /proc show these words and this environment; False where the kernel does not do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat") as file:
        fields = [
            0,
            0,
            0,
            0,
            *map(int, file.read().rpartition(")")[2].split()[1:]),
        ]  # as proc(5) numbers them
    shown = _MemoryMap(
        start_code=fields[26], end_code=fields[27], start_data=fields[45], end_data=fields[46],
        start_brk=fields[47], brk=libc.sbrk(0), start_stack=fields[28], exe_fd=0xFFFFFFFF,
    )  # fmt: skip
    told = [f"{name}={value}" for name, value in env.items()]
    for kind, texts in (("arg", words), ("env", told)):
        text = b"".join(os.fsencode(each) + b"\0" for each in texts)
        buffer = ctypes.create_string_buffer(text, len(text) or 1)
        _kept.append(buffer)
        setattr(shown, f"{kind}_start", ctypes.addressof(buffer))
        setattr(shown, f"{kind}_end", ctypes.addressof(buffer) + len(text))
    size = ctypes.c_ulong(ctypes.sizeof(shown))
    return libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(shown), size, 0) == 0


_kept: list[Any] = []
"""The kernel shows this memory for as long as the process lives."""


def _become(order: Mapping[str, Any]) -> dict[str, Any]:
    """Take what was ordered; return the program that is to run."""
    words: list[str] = order["words"]
    if order["is_session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    _shown(words, order["env"])
    is_module = words[1] == "-m"
    target, *arguments = words[2:] if is_module else words[1:]
    program = {
        "kind": "module" if is_module else "script",
        "target": target,
        "arguments": arguments,
        "command": words,
    }
    zygote.set_path(program)
    zygote.be_new()
    return program


def main(connection: socket.socket) -> None:
    hidden = _load()
    gc.collect()
    gc.freeze()
    order = _serve(connection)
    sys.meta_path.insert(0, hidden)
    try:
        zygote.run(_become(order))
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _show
        raise


def _show(kind: type[BaseException], value: BaseException, trace: Any) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, zygote.__file__):
        trace = trace.tb_next
    sys.__excepthook__(kind, value.with_traceback(trace), trace)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))

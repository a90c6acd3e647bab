"""The zygote: a process of the ranks' own interpreter that has imported their modules, and is forked for them.

Run as a script by the agent, with the descriptor of a socket to it: `python OPTIONS zygote.py FD`. A forked
process waits (is parked) until the agent releases it, and then runs the command's program as Python itself
would have. Single-threaded. It imports only what Python itself has loaded, because ranks inherit
every module, and leaves nothing of itself in them.

Messages are values of `marshal`, with their length (4 bytes, little-endian) before them.
"""

import _socket
import gc
import marshal
import os
import sys

TYPE_CHECKING = False  # typing's own would be one more module in every rank
if TYPE_CHECKING:
    from typing import Any, Callable

    Program = dict[str, Any]
    Hook = Callable[..., Any]

MAX_FDS = 4
NICE = 19
CAP_SYS_NICE = 1 << 23

TORCH_FIXED_SEED = 67280421310721
"""The default seed of torch's generator, where it does not seed itself differently each time."""

RANKS_OWN = (
    "RANK",
    "LOCAL_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "MA_SCHEDULE_CNT",
    "MA_PROC_START_CNT",
)
"""Variables that differ from rank to rank or from attempt to attempt; besides all of `RANKS_OWN_PREFIX`."""

RANKS_OWN_PREFIX = "PREFECT_FT_"


def is_ranks_own(name: str) -> bool:
    """Return whether a variable may differ in each rank and attempt."""
    return name in RANKS_OWN or name.startswith(RANKS_OWN_PREFIX)


# -- messages -------------------------------------------------------------------------------------


def send(connection: _socket.socket, message: "Any") -> None:
    """Send a message whole."""
    data = marshal.dumps(message, 2)
    data = len(data).to_bytes(4, "little") + data
    while data:
        data = data[connection.send(data) :]


def receive(connection: _socket.socket) -> "tuple[Any, list[int]]":
    """Return the next message and the descriptors that came with it; None when the other side has gone."""
    head, descriptors = _receive(connection, 4)
    if len(head) < 4:
        return None, descriptors
    body = b""
    length = int.from_bytes(head, "little")
    while len(body) < length:
        piece, more = _receive(connection, length - len(body))
        descriptors += more
        if not piece:
            return None, descriptors
        body += piece
    return marshal.loads(body), descriptors  # noqa: S302  # from the agent


def _receive(connection: _socket.socket, length: int) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = connection.recvmsg(length, _socket.CMSG_SPACE(4 * MAX_FDS))
    descriptors = []
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            descriptors += [
                int.from_bytes(content[at : at + 4], sys.byteorder)
                for at in range(0, len(content) // 4 * 4, 4)
            ]
    return data, descriptors


# -- preloading -----------------------------------------------------------------------------------


class _Reads:
    """Notes which of the ranks' own variables are read while modules are imported, and by which module."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._class = type(os.environ)
        self._get = self._class.__getitem__
        self._class.__getitem__ = self._noting()  # type: ignore[method-assign]

    def _noting(self) -> "Any":
        get, found = self._get, self.found

        def __getitem__(environ: "Any", key: str) -> "Any":  # noqa: N807
            if isinstance(key, str) and is_ranks_own(key):
                found.append((key, _reader(sys._getframe(1))))
            return get(environ, key)

        return __getitem__

    def end(self) -> None:
        self._class.__getitem__ = self._get  # type: ignore[method-assign]


def _reader(frame: "Any") -> str:
    """Return the module whose code reads a variable."""
    while frame is not None:
        name = frame.f_globals.get("__name__") or "?"
        if name not in ("os", "_collections_abc", "collections.abc"):
            return name
        frame = frame.f_back
    return "?"


def preload(modules: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Import modules; return why some of them cannot be shared, by module, and which failed.

    A zygote with an unfit module is useless: it must be ended and started again without it.
    """
    unfit: dict[str, str] = {}
    failed: dict[str, str] = {}
    reads = _Reads()
    look = _Look()
    for name in modules:
        try:
            __import__(name)
        except Exception as exc:  # a rank may have had the same error, and continued
            failed[name] = type(exc).__name__
        except BaseException as exc:
            unfit[name] = "its import ends the program: " + type(exc).__name__
        for variable, reader in reads.found:
            unfit.setdefault(name, "%s reads %s" % (reader, variable))
            unfit.setdefault(reader, "reads " + variable)
        del reads.found[:]
        found = look.again()
        if found:
            unfit.setdefault(name, found)
    reads.end()
    return unfit, failed


def is_installed(package: str) -> bool:
    """Return whether a package is Python's own or an installed one, and not part of the program to run."""
    if package in sys.builtin_module_names:
        return True
    spec = sys.modules["_frozen_importlib_external"].PathFinder.find_spec(package)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    library = os.path.dirname(os.__file__) + os.sep
    return bool(places) and all(
        place.startswith(library)
        or "site-packages" in place.split(os.sep)
        or "dist-packages" in place.split(os.sep)
        for place in places
    )


class _Look:
    """What a fork does not copy: threads, children, open connections and devices."""

    def __init__(self) -> None:
        self._threads, self._libraries = 1, 0
        self._has_children = False
        self._descriptors = set(os.listdir("/proc/self/fd"))

    def again(self) -> "str | None":
        """Return what has been added since the last look; None if nothing was."""
        threads = len(os.listdir("/proc/self/task"))
        new, self._threads = threads - self._threads, threads
        if new > 0 and not self._are_of_blas(new):
            return "starts %d threads" % new
        descriptors = set(os.listdir("/proc/self/fd"))
        opened, self._descriptors = descriptors - self._descriptors, descriptors
        for number in opened:
            try:
                place = os.readlink("/proc/self/fd/" + number)
            except OSError:
                continue  # the listing's own
            if not place.startswith("/") or place.startswith(("/dev/nvidia", "/dev/davinci", "/dev/kfd")):
                return "opens " + place
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            pass
        else:
            if not self._has_children:
                self._has_children = True
                return "starts processes"
        torch = sys.modules.get("torch.cuda")
        if torch is not None and getattr(torch, "_initialized", False):
            return "initialises CUDA"
        return None

    def _are_of_blas(self, new: int) -> bool:
        """Return whether these threads may be OpenBLAS's, which ends them before a fork and starts them after it."""
        with open("/proc/self/maps", "rb") as file:
            paths = {line.split(None, 5)[5] for line in file if b"openblas" in line}
        libraries, self._libraries = len(paths) - self._libraries, len(paths)
        return new <= libraries * ((os.cpu_count() or 1) - 1)


def step_back() -> "Callable[[], None]":
    """Lower this process's priority, as far as that can be undone; return what undoes it."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:") and int(line.split()[1], 16) & CAP_SYS_NICE:
                nice = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, 0, NICE)
                return lambda: os.setpriority(os.PRIO_PROCESS, 0, nice)
    policy = os.sched_getscheduler(0)
    if policy != os.SCHED_OTHER:
        return lambda: None
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    return lambda: os.sched_setscheduler(0, policy, os.sched_param(0))


# -- serving --------------------------------------------------------------------------------------


def set_path(program: "Program") -> None:
    """Make the first entry of sys.path what Python would have made it."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    if program["kind"] == "script":
        sys.path[0] = os.path.dirname(os.path.realpath(program["target"]))
    else:
        sys.path[0] = os.getcwd() if program["kind"] == "module" else ""


def serve(connection: _socket.socket) -> "Program":
    """Preload, and fork whenever a socket comes; in a fork, return the program to run once it is released.

    In the zygote itself this never returns.
    """
    program, _ = receive(connection)
    if program is None:
        os._exit(0)
    set_path(program)
    back_to_front = step_back()
    modules = program["modules"]
    if program["are_learned"]:
        modules = [name for name in modules if is_installed(name.partition(".")[0])]
    unfit, failed = preload(modules)
    if program["are_learned"]:
        failed = {}  # they failed in the watched rank too
    compile("", "<string>", "exec", dont_inherit=True)  # the first call takes milliseconds, in any process
    gc.collect()
    gc.freeze()
    back_to_front()
    send(connection, {"unfit": unfit, "failed": failed, "modules": len(sys.modules)})
    while True:
        message, descriptors = receive(connection)
        if message is None:
            os._exit(0)
        for descriptor in descriptors:
            if fork():
                connection.close()
                return park(descriptor, program)
            os.close(descriptor)


def fork() -> bool:
    """Fork a process that becomes a child of the agent; return true in it."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        os.sched_yield()
    return True


def park(descriptor: int, program: "Program") -> "Program":
    """Wait until the agent releases this process, and become the rank that it names."""
    os.setsid()
    connection = _socket.socket(fileno=descriptor)
    send(connection, os.getpid())
    order, descriptors = receive(connection)
    connection.close()
    if order is None:
        os._exit(0)
    output = descriptors[0]
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(order["cwd"])
    take_environment(order["env"])
    be_new()
    return {**program, "command": order["command"]}


def take_environment(env: dict[str, str]) -> None:
    """Set the rank's environment, keeping what imports have changed in it."""
    for name in [name for name in os.environ if is_ranks_own(name) and name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if is_ranks_own(name) and os.environ.get(name) != value:
            os.environ[name] = value


def be_new() -> None:
    """Renew state of modules that must differ in each process."""
    modules = sys.modules
    if "numpy.random.mtrand" in modules:
        modules["numpy.random.mtrand"]._rand.seed()
    torch = modules.get("torch")
    if torch is not None and torch.initial_seed() != TORCH_FIXED_SEED:
        torch.default_generator.seed()
    if hasattr(modules.get("logging"), "_startTime"):
        logging, clock = vars(modules["logging"]), modules["time"]
        is_ns = isinstance(logging["_startTime"], int)
        logging["_startTime"] = clock.time_ns() if is_ns else clock.time()
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"]
        process._current_process._config["authkey"] = process.AuthenticationString(os.urandom(32))
    if "threading" in modules:
        modules["threading"].main_thread()._set_native_id()


# -- running --------------------------------------------------------------------------------------


def run(program: "Program") -> None:
    """Run a program as Python itself would have."""
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(program["command"])
    own = new_main()
    target, arguments = program["target"], program["arguments"]
    try:
        if program["kind"] == "script":
            sys.argv = [target, *arguments]
            run_script(own, target)
        elif program["kind"] == "module":
            sys.argv = ["-m", *arguments]
            import runpy  # noqa: PLC0415  # now, as Python does

            runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        else:
            sys.argv = ["-c", *arguments]
            exec(compile(target, "<string>", "exec", dont_inherit=True), own)  # noqa: S102  # the user's program
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = without_us(sys.excepthook)
        raise


def new_main() -> "dict[str, Any]":
    """Make a new main module, as before a program runs; return its contents."""
    main = type(sys)("__main__")
    own = main.__dict__
    own["__builtins__"] = sys.modules["builtins"]
    own["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
    if "__annotations__" in globals():  # absent from Python 3.14 on
        own["__annotations__"] = {}
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main
    return own


def run_script(own: "dict[str, Any]", target: str) -> None:
    """Run a file."""
    path = os.path.join(os.getcwd(), target)
    own["__loader__"] = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", path)
    own["__file__"] = path
    own["__cached__"] = None
    with open(path, "rb") as file:
        source = file.read()
    exec(compile(source, path, "exec", dont_inherit=True), own)  # noqa: S102  # the user's program


def without_us(hook: "Hook") -> "Hook":
    """Return a hook that shows an exception as `hook` does, without frames of this file."""

    def show(kind: type[BaseException], value: BaseException, trace: "Any") -> None:
        sys.excepthook = hook
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        value.__traceback__ = sys.last_traceback = trace
        hook(kind, value, trace)

    return show


if __name__ == "__main__":
    run(serve(_socket.socket(fileno=int(sys.argv[1]))))

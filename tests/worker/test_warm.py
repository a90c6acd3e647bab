"""A rank that is forked is as one that was executed: field by field, and to its end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_fixtures import LivingWorker, MakeWorker
from agents import PYTHON, AgentClient

from prefect_ft.worker.learner import DIRECTORY

SUPPORT = str(Path(__file__).parents[1] / "support")
LOOK = "import like_cold\nlike_cold.show(dict(globals()))\n"
WARM = {
    "modules": ["json", "logging", "multiprocessing", "threading", "inspect", "random"],
    "memory_mb": 1024,
}


class Site:
    """A directory with programs, and a worker that has them start."""

    def __init__(self, directory: Path, make_worker: MakeWorker, warm: dict[str, Any] | None) -> None:
        self.directory = directory
        self.worker: LivingWorker = make_worker(warm=warm)
        self.client: AgentClient = self.worker.attached()
        self.attempt = 0

    def start(
        self, command: list[str], *, ranks: int = 1, cwd: Path | None = None, **env: str
    ) -> dict[str, Any]:
        self.attempt += 1
        env = {"PYTHONPATH": SUPPORT, **env}
        return self.client.start(command, self.attempt, cwd=str(cwd or self.directory), ranks=ranks, **env)

    def end(self) -> None:
        self.client.stop(self.attempt)

    def run(self, command: list[str], **options: Any) -> tuple[bool, dict[str, Any], str]:
        """Run one rank to its end: whether it was warm, how it ended, what it printed."""
        first = self.printed_so_far
        warm = self.start(command, **options)["warm"]
        exited = self.client.expect("exited")
        self.end()
        pieces = [event["text"] for event in self.client.heard[first:] if event["ev"] == "output"]
        return warm, {name: exited[name] for name in ("code", "signal")}, "".join(pieces)

    @property
    def printed_so_far(self) -> int:
        return len(self.client.heard)

    def warm_up(self, command: list[str], **options: Any) -> None:
        """Have ranks of this command parked, by a first start of it."""
        self.run(command, **options)
        self.client.expect("warm", ready=True, parked=options.get("ranks", 1))


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(tmp_path: Path, make_worker: MakeWorker) -> MakeSite:
    return lambda warm=WARM: Site(tmp_path, make_worker, warm)


def write(directory: Path, name: str, text: str) -> str:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    return name


def programs(directory: Path) -> dict[str, list[str]]:
    """The ways in which Python is started."""
    write(directory, "look.py", LOOK)
    write(directory, "sub/look.py", LOOK)
    write(directory, "package/__init__.py", "")
    write(directory, "package/look.py", LOOK)
    write(directory, "package/__main__.py", LOOK)
    write(directory, "own.py", f"#!{PYTHON} -u\n{LOOK}")
    write(directory, "env.py", f"#!/usr/bin/env -S {PYTHON} -X dev\n{LOOK}")
    for name in ("own.py", "env.py"):
        (directory / name).chmod(0o755)
    (directory / "link.py").symlink_to(directory / "sub" / "look.py")
    return {
        "script": [PYTHON, "look.py", "a", "--b"],
        "script by its path": [PYTHON, str(directory / "sub" / "look.py")],
        "script with a dot": [PYTHON, "./look.py"],
        "script by a link": [PYTHON, "link.py"],
        "script by its first line": ["./own.py", "a"],
        "script by env": [str(directory / "env.py"), "-b"],
        "module": [PYTHON, "-m", "look", "a"],
        "module in a package": [PYTHON, "-m", "package.look"],
        "package": [PYTHON, "-m", "package", "-x"],
        "code": [PYTHON, "-c", LOOK, "a", "b"],
        "options": [PYTHON, "-u", "-X", "dev", "-W", "ignore", "-O", "look.py"],
        "isolated": [PYTHON, "-I", "-c", f"import sys; sys.path.append({SUPPORT!r})\n" + LOOK],
        "no site": [PYTHON, "-S", "-s", "-B", "look.py"],
        "safe path": [PYTHON, *(["-P"] if sys.version_info >= (3, 11) else ["-u"]), "look.py"],
    }


ORDINARY = ("script", "script by its first line", "module in a package", "code", "options")
WAYS = (
    *("script by its path", "script with a dot", "script by a link", "script by env", "module", "package"),
    *("isolated", "no site", "safe path"),
)


@pytest.mark.parametrize("way", [*ORDINARY, *(pytest.param(way, marks=pytest.mark.long) for way in WAYS)])
def test_what_a_rank_sees_is_what_it_sees_when_it_is_executed(
    way: str, make_site: MakeSite, tmp_path: Path
) -> None:
    command = programs(tmp_path)[way]
    site = make_site()
    site.warm_up(command)
    seen = {}
    for kind, cold in (("warm", False), ("cold", True)):
        warm, end, printed = site.run(command, **({"ONLY_HERE": "1"} if cold else {}))
        assert (warm, end) == (not cold, {"code": 0, "signal": None}), printed
        seen[kind] = dict(json.loads(line) for line in printed.splitlines())
    del seen["cold"]["environ"]["ONLY_HERE"]
    assert seen["warm"] == seen["cold"]
    assert site.worker.log == ""


ENDS = {
    "success": "print('fine')",
    "nothing": "",
    "exit code": "raise SystemExit(7)",
    "exit message": "import sys; sys.exit('a message')",
    "exit object": "raise SystemExit([1, 2])",
    "exit none": "raise SystemExit",
    "at once": "import os; print('not last'); os._exit(9)",
    "exception": "def f():\n    raise ValueError('bad')\nf()",
    "chained": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('x') from e",
    "syntax": "x = (\n",
    "import error": "import no_such_module",
    "error of an import": "import broken",
    "interrupt": "raise KeyboardInterrupt",
    "interrupt by signal": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handler": "import os, signal\nsignal.signal(15, lambda *a: print('heard', a[0]))\nos.kill(os.getpid(), 15)",
    "abort": "import os; os.abort()",
    "at exit": "import atexit\natexit.register(print, 'last')\nprint('first')\nraise SystemExit(3)",
    "at exit after an error": "import atexit\natexit.register(print, 'last')\nraise ValueError",
    "threads are joined": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.05), print('thread'))).start()\nprint('main')",
    "error in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start()\nt.join()",
    "own hook": "import sys, traceback\ndef hook(*a):\n    print('mine', a[0], len(traceback.extract_tb(a[2])),"
    " sys.excepthook is hook)\nsys.excepthook = hook\n1 / 0",
    "order of output": "import os, sys\nfor i in range(3):\n    print('out', i)\n    print('err', i, file=sys.stderr)\n"
    "    os.write(1, b'raw\\n')\n    os.system('echo child')",
    "del": "class D:\n    def __del__(self):\n        print('gone')\nd = D()",
    "pickle": "import pickle\nclass C:\n    pass\nc = pickle.loads(pickle.dumps(C()))\n"
    "print(type(c) is C, C.__module__)",
    "source": "import inspect\ndef f():\n    return 1\n"
    "try:\n    print(inspect.getsource(f))\nexcept OSError as e:\n    print(e)",
    "annotations": "x: int = 1\nprint(__annotations__)",
    "future": "from __future__ import annotations\nx: nonsense = 1\nprint('ok')",
    "no future of ours": "def f(x: 1 + 1): pass\nprint(f.__annotations__)",
    "locals": "print(sorted(globals()), sorted(locals()) == sorted(globals()), __name__, __file__)",
    "main module": "import __main__, sys\nx = 5\nprint(__main__.x, __main__ is sys.modules['__main__'])",
    "standard input": "import sys\nprint(repr(sys.stdin.read()))",
    "recursion": "def f():\n    f()\ntry:\n    f()\nexcept RecursionError:\n    print('deep')",
    "warning": "import warnings\nwarnings.warn('mind this')",
    "encoding": "# -*- coding: latin-1 -*-\nprint('ä'.encode())",
    "group": "raise ExceptionGroup('g', [ValueError(1)])"
    if sys.version_info >= (3, 11)
    else "raise OSError(2, 'x')",
    "multiprocessing": "import multiprocessing as m\n"
    "def f(q, n):\n    q.put((n, __name__))\n"
    "if __name__ == '__main__':\n"
    "    for how in ('fork', 'spawn', 'forkserver'):\n"
    "        c = m.get_context(how)\n        q = c.Queue()\n        p = c.Process(target=f, args=(q, how))\n"
    "        p.start()\n        print(q.get())\n        p.join()\n        print(p.exitcode)",
    "pool": "from concurrent.futures import ProcessPoolExecutor as P\ndef f(x):\n    return x * x\n"
    "if __name__ == '__main__':\n    with P(2) as p:\n        print(list(p.map(f, range(3))))",
    "file": "print(open(__file__).readline())",
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1)'],"
    " capture_output=True).stdout)",
    "heartbeat": "from prefect_ft.heartbeat import beat\nbeat(step=3)\nprint('beaten')",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('async')\nasyncio.run(f())",
}


def test_programs_run_and_end_as_when_they_are_executed(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "broken.py", "def f():\n    raise OSError('in f')\nf()\n")
    write(tmp_path, "end.py", "")
    warm, cold = make_site(), make_site(None)
    warm.warm_up([PYTHON, "end.py"])
    forked, executed = {}, {}
    for name, program in ENDS.items():
        (tmp_path / "end.py").write_bytes(program.encode("latin-1"))
        forked[name], executed[name] = (site.run([PYTHON, "end.py"]) for site in (warm, cold))
    assert {name: was_warm for name, (was_warm, *_) in forked.items()} == dict.fromkeys(ENDS, True)
    assert {name: rest for name, (_, *rest) in forked.items()} == {
        name: rest for name, (_, *rest) in executed.items()
    }
    assert warm.worker.log == cold.worker.log == ""


def test_a_changed_program_runs_as_it_is_now(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "p.py", "import json\nprint('old')")
    site = make_site()
    site.warm_up([PYTHON, "p.py"])
    write(tmp_path, "p.py", "print('new')")
    assert site.run([PYTHON, "p.py"]) == (True, {"code": 0, "signal": None}, "new\n")


COLD = {
    "another variable": ({}, {"X": "1"}, None),
    "other arguments": ({}, {}, [PYTHON, "p.py", "more"]),
    "no such script": ({}, {}, [PYTHON, "q.py"]),
    "no Python": ({}, {}, ["sh", "-c", "echo $0"]),
}


@pytest.mark.parametrize("case", COLD)
def test_what_was_not_prepared_starts_cold(case: str, make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "p.py", "print('here')")
    site = make_site()
    site.warm_up([PYTHON, "p.py"])
    _, env, command = COLD[case]
    assert site.run(command or [PYTHON, "p.py"], **env)[0] is False
    assert site.run([PYTHON, "p.py"])[1] == {"code": 0, "signal": None}


def test_ranks_have_their_own_variables_and_random_numbers(make_site: MakeSite, tmp_path: Path) -> None:
    code = (
        "import os, random, tempfile, multiprocessing\n"
        "print(os.environ['RANK'], random.random(), multiprocessing.current_process().authkey.hex())"
    )
    write(tmp_path, "p.py", code)
    site = make_site()
    site.start([PYTHON, "p.py"], ranks=4)
    for rank in range(4):
        site.client.expect("exited", rank=rank)
    site.end()
    site.client.expect("warm", parked=4)
    first = len(site.client.heard)
    assert site.start([PYTHON, "p.py"], ranks=4)["warm"] is True
    for rank in range(4):
        assert site.client.expect("exited", rank=rank)["code"] == 0
    site.end()
    printed = [event["text"].split() for event in site.client.heard[first:] if event["ev"] == "output"]
    assert sorted(words[0] for words in printed) == ["0", "1", "2", "3"]
    assert [len(set(column)) for column in zip(*printed, strict=True)] == [4, 4, 4]


UNFIT = {
    "a thread": ("import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()", "starts 1 threads"),
    "a connection": ("import socket\nkept = socket.socketpair()", "opens socket:"),
    "a process": ("import subprocess\nkept = subprocess.Popen(['sleep', '60'])", "starts processes"),
    "the rank": ("import os\nrank = int(os.environ.get('RANK', 0))", "unfit reads RANK"),
    "an exit": ("raise SystemExit(3)", "its import ends the program: SystemExit"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_a_module_that_cannot_be_shared_is_left_out_and_named(
    what: str, make_site: MakeSite, tmp_path: Path
) -> None:
    code, why = UNFIT[what]
    write(tmp_path, "unfit.py", code)
    write(tmp_path, "p.py", "import sys\nprint('unfit' in sys.modules, 'json' in sys.modules)")
    site = make_site({"modules": ["json", "unfit", "logging"], "memory_mb": 1024})
    site.start([PYTHON, "p.py"])
    site.client.expect("exited", code=0)
    site.end()
    told = site.client.expect("warm", parked=1)
    assert list(told["left_out"]) == ["unfit"]
    assert told["left_out"]["unfit"].startswith(why)
    assert site.run([PYTHON, "p.py"]) == (True, {"code": 0, "signal": None}, "False True\n")


def test_a_module_that_fails_is_named_and_the_others_are_there(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "p.py", "import sys\nprint('json' in sys.modules)")
    site = make_site({"modules": ["no.such", "json"], "memory_mb": 1024})
    site.run([PYTHON, "p.py"])
    assert site.client.expect("warm", parked=1)["left_out"] == {
        "no.such": "ModuleNotFoundError at its import"
    }
    assert site.run([PYTHON, "p.py"])[2] == "True\n"


def test_more_memory_than_is_allowed_is_freed(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "p.py", "")
    write(tmp_path, "large.py", "kept = bytearray(64 << 20)")
    site = make_site({"modules": ["large"], "memory_mb": 32})
    site.run([PYTHON, "p.py"])
    told = site.client.expect("warm", ready=False, parked=0)
    assert told["why_cold"].endswith("MB are more than warm_memory_mb allows")
    assert site.run([PYTHON, "p.py"])[0] is False


def test_ranks_that_are_parked_outlive_a_stop_and_end_with_the_agent(
    make_site: MakeSite, tmp_path: Path
) -> None:
    write(tmp_path, "p.py", "import time\nprint('up')\ntime.sleep(60)")
    site = make_site()
    site.start([PYTHON, "p.py"])
    site.client.expect("warm", parked=1)
    for _ in range(3):
        site.end()
        assert site.start([PYTHON, "p.py"])["warm"] is True
        site.client.expect("output", text="up\n")


@pytest.mark.parametrize("victim", ["zygote", "parked"])
def test_who_is_killed_among_them_costs_a_warm_start_at_most(
    victim: str, make_site: MakeSite, tmp_path: Path
) -> None:
    import os
    import signal

    from agents import wait_until_ended

    write(tmp_path, "p.py", "print('up')")
    site = make_site()
    site.warm_up([PYTHON, "p.py"])
    agent = site.client.expect_attached()["pid"]
    children = [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]
    zygotes = [pid for pid in children if _is_zygote(pid)]
    pid = max(zygotes) if victim == "parked" else min(zygotes)
    os.kill(pid, signal.SIGKILL)
    wait_until_ended(pid)
    assert site.run([PYTHON, "p.py"])[1:] == ({"code": 0, "signal": None}, "up\n")
    assert site.run([PYTHON, "p.py"])[1:] == ({"code": 0, "signal": None}, "up\n")
    if victim == "zygote":
        site.client.expect("warm", parked=1)
    assert site.run([PYTHON, "p.py"])[0] is True


def _is_zygote(pid: int) -> bool:
    return b"zygote.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


AUTO = {"modules": "auto", "memory_mb": 1024}


def test_what_the_first_ranks_import_is_learned(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "mine.py", "import fractions")
    write(
        tmp_path,
        "p.py",
        "import mine\nimport colorsys, sys\nprint(sorted({'mine', 'colorsys', 'fractions'} & before))",
    )
    program = "import sys\nbefore = set(sys.modules)\n" + (tmp_path / "p.py").read_text()
    write(tmp_path, "p.py", program)
    site = make_site(AUTO)
    assert site.run([PYTHON, "p.py"])[::2] == (False, "[]\n")
    assert site.client.expect("warm", parked=1)["left_out"] == {}
    assert site.run([PYTHON, "p.py"])[::2] == (True, "['colorsys', 'fractions']\n"), (
        "its own is not preloaded"
    )


def test_what_is_learned_from_sees_nothing_of_it(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "look.py", LOOK)
    write(tmp_path, "sitecustomize.py", "import sys\nsys.customized = True")
    show = "import os, sys\nprint(sys.customized, os.environ['PYTHONPATH'], sys.path)\n"
    child = "subprocess.run([sys.executable, '-c', 'import sys; print(sys.meta_path)'])"
    write(tmp_path, "p.py", show + "import subprocess\n" + child)
    learning, off = make_site(AUTO), make_site(None)
    path = f"{tmp_path}{':'}{SUPPORT}"
    for command in ([PYTHON, "look.py"], [PYTHON, "p.py"]):
        first, second = (site.run(command, PYTHONPATH=path) for site in (learning, off))
        assert _without_agent(first[2]) == _without_agent(second[2])


@pytest.mark.parametrize(
    ("lookup", "notes"),
    [
        pytest.param("importlib.util.find_spec('fractions')", 0, id="looked-up"),
        pytest.param("importlib.util.find_spec('missing')", 0, id="looked-up-and-missing"),
        pytest.param("try:\n        import missing\n    except ImportError:\n        pass", 1, id="missing"),
        pytest.param("import fractions", 1, id="imported"),
        pytest.param("importlib.import_module('fractions')", 1, id="imported-by-its-name"),
        pytest.param(
            "importlib.util.find_spec('fractions')\n    import fractions", 1, id="looked-up-and-imported"
        ),
    ],
)
def test_a_module_is_noted_once_and_when_it_is_imported(lookup: str, notes: int, tmp_path: Path) -> None:
    code = f"import importlib.util\nfor _ in range(100):\n    {lookup}\nimport colorsys"
    noted = tmp_path / "imports"
    env = {"PYTHONPATH": DIRECTORY, "PREFECT_FT_IMPORTS": str(noted)}
    subprocess.run([PYTHON, "-c", code], env=env, check=True)
    names = noted.read_text().split("\n")
    assert (names.count("missing") + names.count("fractions"), names.count("colorsys")) == (notes, 1)


@pytest.mark.long  # as long as nothing new has to be imported, and a little
def test_a_lookup_at_each_step_is_no_import(make_site: MakeSite, tmp_path: Path) -> None:
    code = "import colorsys, importlib.util, time\nwhile True:\n    time.sleep(0.05)\n"
    write(tmp_path, "p.py", code + "    importlib.util.find_spec('missing')")
    site = make_site(AUTO)
    site.start([PYTHON, "p.py"])
    site.client.expect("warm", parked=1)
    site.end()
    assert site.start([PYTHON, "p.py"])["warm"] is True


UNSET = ["RANK", "HOME", "GIVEN", "PYTHONPATH"]


@pytest.mark.parametrize("settings", [WARM, AUTO], ids=["list", "auto"])
def test_a_forked_rank_has_nothing_that_is_unset(
    settings: dict[str, Any], make_site: MakeSite, tmp_path: Path
) -> None:
    write(tmp_path, "p.py", f"import json, os\nprint([each for each in {UNSET} if each in os.environ])")
    site = make_site(settings)
    told = {"GIVEN": "1", "unset": [*UNSET, "PREFECT_FT_HEARTBEAT"]}
    assert site.run([PYTHON, "p.py"], **told)[::2] == (False, "[]\n")
    site.client.expect("warm", parked=1)
    assert site.run([PYTHON, "p.py"], **told)[::2] == (True, "[]\n")


def test_where_nothing_can_be_noted_imports_go_on() -> None:
    code = "import colorsys, sys; print([type(each).__name__ for each in sys.meta_path][0])"
    env = {"PYTHONPATH": DIRECTORY, "PREFECT_FT_IMPORTS": "/dev/full"}
    assert (
        subprocess.run([PYTHON, "-c", code], env=env, check=True, capture_output=True).stdout == b"_Notes\n"
    )


def _without_agent(printed: str) -> list[str]:
    """What was printed, without what differs from agent to agent."""
    lines = [line for line in printed.splitlines() if not line.startswith('["subreaper')]
    return [re.sub(r'"TMPDIR": "[^"]*"', "", re.sub(" at 0x[0-9a-f]+", "", line)) for line in lines]


def test_enough_is_known_after_the_first_step(make_site: MakeSite, tmp_path: Path) -> None:
    code = "from prefect_ft.heartbeat import beat\nimport colorsys, time\n"
    code += "beat(step=0)\ntime.sleep(1.5)\nbeat(step=1)\ntime.sleep(60)"
    write(tmp_path, "p.py", code)
    site = make_site(AUTO)
    site.start([PYTHON, "p.py"])
    site.client.expect("warm", parked=1)
    site.end()
    assert site.start([PYTHON, "p.py"])["warm"] is True


def test_a_package_that_reads_the_rank_is_left_out_whole(make_site: MakeSite, tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "site-packages"
    write(packages, "lit/__init__.py", "import lit.rank")
    write(packages, "lit/rank.py", "import os\nrank = int(os.environ.get('RANK', 7))")
    write(tmp_path, "p.py", "import lit.rank, colorsys\nprint(lit.rank.rank)")
    site = make_site(AUTO)
    path = f"{packages}:{SUPPORT}"
    assert site.run([PYTHON, "p.py"], PYTHONPATH=path)[2] == "0\n"
    assert list(site.client.expect("warm", parked=1)["left_out"]) == ["lit"]
    assert site.run([PYTHON, "p.py"], PYTHONPATH=path)[::2] == (True, "0\n")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_warm_restarts_leave_nothing_behind(make_site: MakeSite, tmp_path: Path) -> None:
    """500 of 2 ranks each; the agent's memory, descriptors and children stay as they are."""
    write(tmp_path, "p.py", "import time\nprint('up')\ntime.sleep(60)")
    site = make_site()
    site.start([PYTHON, "p.py"], ranks=2)
    site.client.expect("warm", parked=2)
    agent = Path(f"/proc/{site.client.expect_attached()['pid']}")
    seen = []
    for number in range(500):
        site.end()
        assert site.start([PYTHON, "p.py"], ranks=2)["warm"] is True
        for rank in (0, 1):
            site.client.expect("output", rank=rank)
        site.client.heard.clear()
        if number in (99, 499):
            resident_kb = int(re.search(r"VmRSS:\s+(\d+)", (agent / "status").read_text())[1])  # type: ignore[index]
            seen.append((resident_kb, len(list((agent / "fd").iterdir()))))
    (early_kb, early_open), (late_kb, late_open) = seen
    assert late_kb - early_kb < 512, "KiB that the agent has grown in 400 restarts"
    assert abs(late_open - early_open) <= 4, "as ranks are parked or not yet"


def test_where_nothing_can_be_learned_that_is_said(make_site: MakeSite, tmp_path: Path) -> None:
    write(tmp_path, "p.py", "import colorsys")
    site = make_site(AUTO)
    assert [site.run([PYTHON, "-S", "p.py"])[0] for _ in range(2)] == [False, False]
    assert site.client.expect("warm")["why_cold"].startswith("nothing is known of what ranks import")
    site.client.expect_nothing()

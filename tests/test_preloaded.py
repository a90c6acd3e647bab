"""A command that the tests fork is what the command itself is: `preloaded` against `subprocess`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import preloaded
import pytest

from tests.conftest import need

DEADLINE_S = 120.0

LOOKS = """
import atexit, os, signal, sys
process = "/proc/self/"
print(sys.argv, sys.orig_argv, sys.path, sys.flags, __name__, __file__)
print(os.getcwd(), os.getppid(), os.getsid(0) == os.getpid(), os.umask(0), os.getpriority(0, 0))
print(sorted(os.environ.items()))
print(open(process + "cmdline", "rb").read(), sorted(open(process + "environ", "rb").read().split(b"\\0")))
print(open(process + "comm").read(), sorted(os.listdir(process + "fd"))[:-1], len(os.listdir(process + "task")))
print([(name, signal.getsignal(getattr(signal, name))) for name in dir(signal) if name[:3] == "SIG" and name[3] != "_"])
print([(stream.encoding, stream.errors, stream.line_buffering) for stream in (sys.stdin, sys.stdout, sys.stderr)])
print("read", sys.stdin.read())
print("written", file=sys.stderr)
"""

LOADS = """
import atexit, logging, os, sys
known = atexit._ncallbacks()
assert not [name for name in sys.modules if name.partition(".")[0] == "prefect"]
os.environ["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
os.environ["PREFECT_LOGGING_LEVEL"] = "ERROR"
import prefect_ft.flows
import prefect
from prefect.settings import PREFECT_API_URL, get_current_settings
print(PREFECT_API_URL.value(), get_current_settings().home, get_current_settings().logging.level)
print(logging.getLogger("prefect").level, [type(each) for each in logging.getLogger("prefect").handlers])
print(atexit._ncallbacks() - known, prefect.__spec__.origin, sys.modules["prefect_ft.flows"].__spec__.name)
print(prefect.context.get_settings_context().profile.name, prefect_ft.flows.train_flow.name)
"""

ENDS = {
    "exit-code": "import sys; sys.exit(7)",
    "exception": "def fail():\n    raise ValueError('why')\nfail()",
    "abort": "import os; os.abort()",
    "ctrl-c": "import os, signal; os.kill(os.getpid(), signal.SIGINT)\nwhile True: signal.pause()",
    "at-the-end": "import atexit; atexit.register(print, 'last'); atexit.register(print, 'first'); print('before')",
}


@pytest.fixture(autouse=True)
def able() -> None:
    need("fork server", preloaded.is_able(), "the kernel has no CONFIG_CHECKPOINT_RESTORE")


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[object, ...]]]:
    """Run words of Python's both ways; return code, output and errors of each."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))

    def run(*words: str, given: str = "", **settings: object) -> list[tuple[object, ...]]:
        came = []
        for begin in (subprocess.Popen, preloaded.started):
            process: subprocess.Popen[str] = begin(
                [sys.executable, *words], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, **settings,
            )  # fmt: skip
            assert isinstance(process, preloaded.Forked) is (begin is preloaded.started)
            out, err = process.communicate(given, timeout=DEADLINE_S)
            came.append((process.returncode, out, err))
        return came

    return run


@pytest.mark.parametrize("kind", ["module", "script"])
@pytest.mark.parametrize("is_session", [False, True], ids=["here", "session"])
def test_it_has_what_it_is_given(
    both: Callable[..., list[tuple[object, ...]]], tmp_path: Path, kind: str, is_session: bool
) -> None:
    (tmp_path / "look.py").write_text(LOOKS)
    words = ("-m", "look") if kind == "module" else ("look.py",)
    env = {**os.environ, "OWN": "ä b"}
    real, forked = both(*words, "a b", "-c", given="in\nput", env=env, start_new_session=is_session)
    assert real == forked
    assert (real[0], real[2], f"{os.getpid()} {is_session}" in str(real[1])) == (0, "written\n", True)


def test_it_loads_prefect_with_the_settings_of_that_moment(
    both: Callable[..., list[tuple[object, ...]]], tmp_path: Path
) -> None:
    (tmp_path / "loads.py").write_text(LOADS)
    real, forked = both("loads.py")
    assert real == forked
    assert (real[0], str(real[1]).splitlines()[0]) == (0, f"http://127.0.0.1:9/api {tmp_path / 'home'} ERROR")


STARTS_A_SERVER = """
import sys
import prefect_ft.flows
owned = sys.modules.get("prefect_ft.prefect_edge.embedded.owned")
print(owned is not None and type(owned.OwnedServer()), "prefect.server.api.server" in sys.modules)
"""


@pytest.mark.parametrize(
    "api",
    [pytest.param("", id="none", marks=pytest.mark.long), pytest.param("http://127.0.0.1:9/api", id="one")],
)
def test_it_has_a_server_of_its_own_where_no_api_is_configured(
    both: Callable[..., list[tuple[object, ...]]], tmp_path: Path, api: str
) -> None:
    (tmp_path / "starts.py").write_text(STARTS_A_SERVER)
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    real, forked = both("starts.py", env={**env, "PREFECT_API_URL": api} if api else env)
    assert real == forked
    assert (real[0], "OwnedServer" in str(real[1])) == (0, not api)


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_as_the_command_does(
    both: Callable[..., list[tuple[object, ...]]], tmp_path: Path, end: str
) -> None:
    (tmp_path / "ends.py").write_text(ENDS[end])
    real, forked = both("ends.py")
    assert real == forked


def test_it_can_be_killed_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text("print('up', flush=True)\nimport signal\nsignal.pause()")
    process = preloaded.started([sys.executable, tmp_path / "stays.py"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        process.kill()
        assert process.wait(timeout=DEADLINE_S) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()


def test_an_environment_that_python_reads_is_not_forked_into(tmp_path: Path) -> None:
    (tmp_path / "flag.py").write_text("import sys; print(sys.flags.optimize)")
    done = preloaded.completed(
        [sys.executable, "flag.py"], cwd=tmp_path, env={**os.environ, "PYTHONOPTIMIZE": "2"}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout == "2\n"

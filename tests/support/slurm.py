"""A Slurm of the tests' own: several slurmd on this machine, each a node with an address of its own.

    python tests/support/slurm.py install           # as root: Debian's packages
    python tests/support/slurm.py start DIRECTORY [NODES]   # prints the SLURM_CONF; four nodes, n0 to n3
    python tests/support/slurm.py lose DIRECTORY NODE       # SIGKILL for all that it runs; `begin` brings it back
    python tests/support/slurm.py stop DIRECTORY

It has its own munged and, with `accounting`, its own slurmdbd and MariaDB, all on free ports; without control groups.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ports import free_port

PROGRAMS = ("iptables", "munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")
PACKAGES = ("slurm-wlm", "slurmdbd", "mariadb-server", "munge", "iptables")
DEADLINE_S = 60.0
BEGIN = 'echo $$ >"$0" && exec "$@"'
PREFIX = "pft-slurm-"
"""Of a cluster's directory, which is short for its sockets' paths."""
LOW, HIGH = "main", "high"
"""Partitions: jobs of the second preempt those of the first."""


def why_not(*, accounting: bool = False) -> str | None:
    """Say what keeps this machine from running a Slurm; None: nothing that is known."""
    if os.getuid() != 0:
        return "a cluster is started as root"
    wanted = (*PROGRAMS, *ACCOUNTING) if accounting else PROGRAMS
    missing = [name for name in wanted if _program(name) is None]
    if missing:
        return f"{missing[0]} is not installed (python tests/support/slurm.py install)"
    return None


def install() -> None:
    """Install the packages, without starting what is in them; do nothing where they are there."""
    if why_not(accounting=True) is None:
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], env=env, check=True
    )


class Slurm:
    """A cluster in a directory: its configuration, logs, and the pids of what runs for it.

    `slurmd_timeout_s`: how long slurmctld waits for a silent node before it is down; Slurm's own default is 300.
    `prefix`: what the names of nodes begin with.
    `requeue`: whether a job that is preempted, or loses a node, is queued again where it does not say.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 4,
        prefix: str = "n",
        slurmd_timeout_s: int = 300,
        kill_wait_s: int = 10,
        accounting: bool = False,
        requeue: bool = True,
        cores: int = 8,
    ) -> None:
        self.directory, self.accounting = directory, accounting
        self.nodes = tuple(f"{prefix}{number}" for number in range(nodes))
        self.conf = directory / "slurm.conf"
        self._slurmd_timeout_s, self._kill_wait_s = slurmd_timeout_s, kill_wait_s
        self._requeue, self._cores = requeue, cores

    def start(self) -> None:
        """Start it, and wait until every node is idle."""
        self.directory.chmod(0o755)
        for name in ("state", "pid", "log", "munge"):
            (self.directory / name).mkdir()
        for node in self.nodes:
            (self.directory / node / "log").mkdir(parents=True)
            (self.directory / node / "spool").mkdir()
        self._begin_munged()
        first = free_port(3 + len(self.nodes))
        self.conf.write_text(self._configuration(first))
        if self.accounting:
            self._begin_accounting(first + 1, first + 2)
        self.begin_controller()
        for node in self.nodes:
            self._begin_slurmd(node)
        _until(
            lambda: set(self.states().values()) == {"idle"} and len(self.states()) == len(self.nodes),
            self.logs,
        )

    def stop(self) -> None:
        """End it, its jobs, and all that it had."""
        for node in self.nodes if self.conf.exists() else ():
            self._join(node)
        self._end_all()
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self._end(name)
        self._end_all()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end_all(self) -> None:
        """End what is on the nodes, and what was just being started there."""
        while pids := [pid for node in self.nodes for pid in self._pids_on(node)]:
            for pid in pids:
                _kill(pid)

    # -- what tests do to it ----------------------------------------------------------------------

    def run(self, *words: str, timeout_s: float = DEADLINE_S) -> str:
        """Run one of its commands, and return what it prints."""
        done = subprocess.run(
            words, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Slurm's commands reach it."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def states(self) -> dict[str, str]:
        """Return what slurmctld says of each node, in sinfo's short words."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", LOW, "-o", "%N %t"],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        return dict(line.split() for line in done.stdout.splitlines())  # type: ignore[misc]

    def jobs(self) -> dict[str, str]:
        """Return the state of each job that is in the queue."""
        lines = self.run("squeue", "-h", "-a", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)  # type: ignore[misc]

    def recorded(self, job: str) -> str:
        """Return the state of a job in the accounting, which may be seconds behind slurmctld."""
        return self.run("sacct", "-n", "-P", "-X", "-j", job, "-o", "State").strip()

    def address(self, node: str) -> str:
        """Return a node's NodeAddr, which no other cluster on this machine has."""
        (port,) = re.findall(r"^SlurmctldPort=(\d+)$", self.conf.read_text(), re.MULTILINE)
        return _address(int(port), self.nodes.index(node))

    def lose(self, node: str) -> None:
        """Have a node disappear, as by its power: nothing answers at its address, and all that runs there is killed."""
        self._cut(node)
        for pid in self._pids_on(node):
            _kill(pid)

    def _cut(self, node: str) -> None:
        for direction in ("-s", "-d"):
            _run("iptables", "-w", "-A", "INPUT", direction, self.address(node), "-j", "DROP")

    def _join(self, node: str) -> None:
        """Give a node its network back; do nothing where it has it."""
        for direction in ("-s", "-d"):
            words = ("INPUT", direction, self.address(node), "-j", "DROP")
            while _succeeds("iptables", "-w", "-C", *words):
                _run("iptables", "-w", "-D", *words)

    def kill(self, program: str, node: str) -> None:
        """End a node's `slurmd` or all its `slurmstepd` by SIGKILL, and nothing of what they run."""
        for pid in self._daemons_on(node):
            if _name(pid) == program:
                _kill(pid)

    def begin(self, node: str) -> None:
        """Start a node's slurmd again, and wait until slurmctld takes jobs for it."""
        self._begin_again(node)
        _until(lambda: self.states().get(node, "down") in ("idle", "alloc", "mix"), self.logs)

    def _begin_again(self, node: str) -> None:
        """Have slurmctld know first that it was lost: else jobs would wait for minutes for their end there."""
        for pid in self._pids_on(node):  # whatever its slurmstepds left
            _kill(pid)
        self._join(node)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
        self.run("scontrol", "update", f"nodename={node}", "state=resume")
        self._begin_slurmd(node)

    def begin_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._begin("slurmctld", "slurmctld", "-D", "-f", str(self.conf), directory=self.directory)
        _until(lambda: _succeeds("scontrol", "ping", env=self.env), self.logs)

    @contextmanager
    def controller_away(self) -> Iterator[None]:
        """slurmctld does not answer while this is entered: it is stopped, and started again.

        It saves its state first. After a SIGKILL it would not know of what it was told in the last seconds.
        """
        self._end("slurmctld", signal.SIGTERM)
        try:
            yield
        finally:
            self.begin_controller()

    def clean(self) -> None:
        """End every job, have every node up again, and wait until all are idle."""
        self.run("scancel", "--full", "--signal=KILL", "-u", "root")
        self.run("scancel", "-u", "root")
        for node in self.nodes:
            if not self._daemons_on(node, "slurmd"):
                self._begin_again(node)

        def is_clean() -> bool:
            states = self.states()
            for node, state in states.items():
                if state in ("down", "drain", "drng", "drained"):
                    _succeeds("scontrol", "update", f"nodename={node}", "state=resume", env=self.env)
            return not self.jobs() and set(states.values()) == {"idle"}

        _until(is_clean, self.logs)
        for node in self.nodes:
            for pid in self._pids_on(node):
                if _name(pid) != "slurmd":
                    _kill(pid)

    def logs(self) -> str:
        """The end of each daemon's log."""
        found = [*(self.directory / "log").iterdir(), *self.directory.glob("n*/log/*")]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(found))

    # -- daemons ----------------------------------------------------------------------------------

    def _configuration(self, port: int) -> str:
        place, host = self.directory, socket.gethostname().split(".")[0]
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self._munge}",
            "CredType=cred/munge",
            f"SlurmctldPort={port}",
            f"SlurmctldPidFile={place}/pid/slurmctld.self",
            f"SlurmdPidFile={place}/%n/slurmd.pid",
            f"StateSaveLocation={place}/state",
            f"SlurmdSpoolDir={place}/%n/spool",
            f"SlurmctldLogFile={place}/log/slurmctld.log",
            f"SlurmdLogFile={place}/%n/log/slurmd.log",  # a slurmd and its slurmstepds live in its directory
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SlurmdParameters=config_overrides",  # more cores than the machine has
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            f"JobRequeue={int(self._requeue)}",
            "MpiDefault=none",
            "ReturnToService=2",
            f"SlurmdTimeout={self._slurmd_timeout_s}",
            f"KillWait={self._kill_wait_s}",
            "MinJobAge=60",
            "CompleteWait=0",
            "OverTimeLimit=0",
            "JobAcctGatherType=jobacct_gather/none",
        ]
        if self.accounting:
            lines += [
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=127.0.0.1",
                f"AccountingStoragePort={port + 1}",
                f"AccountingStoragePass={self._munge}",  # with munge: its socket
            ]
        for number, node in enumerate(self.nodes):
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr={_address(port, number)} Port={port + 3 + number} "
                f"CPUs={self._cores} RealMemory=1000 State=UNKNOWN"
            )
        lines += [
            "PartitionName=DEFAULT Nodes=ALL OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP",
            f"PartitionName={LOW} Default=YES PriorityTier=1",
            f"PartitionName={HIGH} PriorityTier=10",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _munge(self) -> Path:
        return self.directory / "munge" / "socket"

    def _begin_munged(self) -> None:
        """Start a munged with a key of this cluster's; the machine's own is left alone."""
        place = self.directory / "munge"
        key = place / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._begin(
            "munged", "munged", "--foreground", "--force", f"--socket={self._munge}", f"--key-file={key}",
            f"--pid-file={place}/self", f"--seed-file={place}/seed", "--num-threads=4", directory=place,
        )  # fmt: skip
        _until(self._munge.exists, self.logs)

    def _begin_accounting(self, port: int, database_port: int) -> None:
        data = self.directory / "data"
        data.mkdir()
        shutil.chown(data, "mysql")
        _run(
            "mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", "--skip-test-db",
            "--auth-root-authentication-method=normal",
        )  # fmt: skip
        self._begin(
            "mariadbd", "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--socket={data}/socket",
            f"--port={database_port}", "--bind-address=127.0.0.1", f"--pid-file={data}/self",
            "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0",
            directory=data,
        )  # fmt: skip
        client = ("mariadb", "--no-defaults", f"--socket={data}/socket", "-e")
        _until(lambda: _succeeds(*client, "select 1"), self.logs)
        _run(*client, (
            "create database slurm_acct_db; create user slurm@'127.0.0.1' identified by 'slurm';"
            "create user slurm@localhost identified by 'slurm';"
            "grant all on slurm_acct_db.* to slurm@'127.0.0.1'; grant all on slurm_acct_db.* to slurm@localhost"
        ))  # fmt: skip
        conf = self.directory / "slurmdbd.conf"
        conf.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={self._munge}\nDbdHost=localhost\nDbdAddr=127.0.0.1\n"
            f"DbdPort={port}\nSlurmUser=root\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
            f"StoragePort={database_port}\nStorageUser=slurm\nStoragePass=slurm\nStorageLoc=slurm_acct_db\n"
            f"PidFile={self.directory}/pid/slurmdbd.self\nLogFile={self.directory}/log/slurmdbd.log\n"
        )
        conf.chmod(0o600)
        self._begin("slurmdbd", "slurmdbd", "-D", directory=self.directory)
        _until(lambda: _succeeds("sacctmgr", "-n", "list", "cluster", env=self.env), self.logs)
        self.run("sacctmgr", "-i", "add", "cluster", "test")

    def _begin_slurmd(self, node: str) -> None:
        place = self.directory / node / "log"
        self._begin(f"slurmd-{node}", "slurmd", "-D", "-N", node, "-f", str(self.conf), directory=place)

    def _begin(self, name: str, *words: str, directory: Path) -> None:
        """Start a daemon that nobody waits for, whatever becomes of this process."""
        program = _program(words[0])
        assert program is not None
        env = {"PATH": _path(), "HOME": str(self.directory), "SLURM_CONF": str(self.conf)}
        log = self.directory / "log" / f"{name}.out"
        with log.open("ab") as output:
            shell = subprocess.run(
                ["setsid", "--fork", "sh", "-c", BEGIN, str(self._pid_file(name)), program, *words[1:]],
                cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True,
            )  # fmt: skip
        assert shell.returncode == 0
        _until(lambda: self._pid_file(name).exists() and bool(self._pid_file(name).read_text()), self.logs)

    def _pid_file(self, name: str) -> Path:
        return self.directory / "pid" / name

    def _end(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a daemon that is ours by a signal, and wait until it has gone."""
        with suppress(OSError, ValueError):
            pid = int(self._pid_file(name).read_text())
            if str(self.directory).encode() in _environment(pid):
                _kill(pid, number)
        self._pid_file(name).unlink(missing_ok=True)

    # -- processes --------------------------------------------------------------------------------

    def _daemons_on(self, node: str, *names: str) -> list[int]:
        """Find a node's slurmd and slurmstepds: they live in its directory."""
        place = self.directory / node / "log"
        return [
            pid
            for pid in _pids()
            if _name(pid) in (names or ("slurmd", "slurmstepd")) and _directory(pid) == str(place)
        ]

    def _pids_on(self, node: str) -> list[int]:
        """Find a node's daemons and whatever jobs have there, daemons first."""
        here = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_TOPOLOGY_ADDR={node}".encode()}
        conf = f"SLURM_CONF={self.conf}".encode()

        def is_ours(pid: int) -> bool:
            told = {*_environment(pid).split(b"\0")}
            return conf in told and bool(here & told) and pid != os.getpid()

        ours = [pid for pid in _pids() if is_ours(pid)]
        daemons = self._daemons_on(node)
        below = _below(daemons)
        return [*daemons, *sorted({*ours, *below} - {*daemons})]


@contextmanager
def slurm(**options: object) -> Iterator[Slurm]:
    """A cluster that lives while entered."""
    cluster = Slurm(Path(tempfile.mkdtemp(prefix=PREFIX)), **options)  # type: ignore[arg-type]
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _address(port: int, number: int) -> str:
    """Return the address of a node of the cluster whose controller has that port."""
    return f"127.{port >> 8}.{port & 255}.{number + 1}"


def _program(name: str) -> str | None:
    """Find a program; daemons are in directories that are not on every user's PATH."""
    return shutil.which(name, path=_path())


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _directory(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/cwd")
    return ""


def _environment(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _below(roots: list[int]) -> set[int]:
    """Find all descendants of processes."""
    parents = {}
    for pid in _pids():
        with suppress(OSError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    grown = {*roots}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    """End a process by a signal, and wait until it has gone."""
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(held, number)
        _until(lambda: not _lives(pid), lambda: f"process {pid} does not end")
    finally:
        os.close(held)


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"


def _succeeds(*words: str, env: dict[str, str] | None = None) -> bool:
    return subprocess.run(words, env=env, capture_output=True, check=False).returncode == 0


def _until(is_so: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


def _made(place: str, nodes: int) -> Slurm:
    accounting = why_not(accounting=True) is None
    return Slurm(Path(place).resolve(), nodes=nodes, accounting=accounting)


def _found(place: str) -> Slurm:
    return _made(place, len(list(Path(place).glob("n[0-9]*"))))


def main(words: list[str]) -> None:
    """Do what the module's docstring says."""
    match words:
        case ["install"]:
            install()
        case ["start", place, *nodes]:
            Path(place).mkdir(parents=True)
            cluster = _made(place, int(nodes[0]) if nodes else 4)
            cluster.start()
            sys.stdout.write(f"{cluster.conf}\n")
        case ["lose", place, node]:
            _found(place).lose(node)
        case ["begin", place, node]:
            _found(place).begin(node)
        case ["stop", place]:
            _found(place).stop()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

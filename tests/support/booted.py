"""A small machine whose PID 1 is systemd: this machine's own files below an overlay, in namespaces of its own.

What is written there is gone with it, except below the directory that it shares with the test. It reaches no network,
no device and no setting of the kernel's, and none of the units that this machine has enabled is started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
PROGRAMS = ("systemd-run", "unshare", "nsenter", "setpriv", "pivot_root", "dbus-daemon")
DEADLINE_S = 60.0
USER = "train"
UID = 1000

TARGET = """
[Unit]
Requires=basic.target dbus.service systemd-logind.service systemd-journald.service
After=basic.target dbus.service systemd-logind.service systemd-journald.service
AllowIsolate=yes
"""

BOOT = (
    r"""
set -eu
place=$1 shared=$2; shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs "$place"
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" "$place/root"
root=$place/root
reach() {  # a directory of this machine's at its own place, to which a user may get
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    each=$(dirname "$1"); while [ "$each" != / ]; do chmod a+x "$root$each"; each=$(dirname "$each"); done
}
for directory; do reach "$directory"; mount -o remount,bind,ro "$root$directory"; done
reach "$shared"
chmod a+rx "$shared"
cd "$root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
rm -rf etc/systemd/system etc/systemd/user lib/systemd/system/*.wants lib/systemd/system-generators
mkdir -p etc/systemd/system etc/systemd/user var/lib/systemd/linger home/@USER@
printf '%s' "$TARGET" > etc/systemd/system/test.target
echo '@USER@:x:@UID@:@UID@::/home/@USER@:/bin/sh' >> etc/passwd
echo '@USER@:x:@UID@:' >> etc/group
chown @UID@:@UID@ home/@USER@
printf 'session required pam_systemd.so\naccount required pam_permit.so\n' > etc/pam.d/systemd-user
pivot_root . .
umount -l .
cd /
exec env -i container=test PATH=/usr/bin:/bin:/usr/sbin:/sbin \
    @SYSTEMD@ --unit=test.target --log-target=console --show-status=no
""".replace("@USER@", USER)
    .replace("@UID@", str(UID))
    .replace("@SYSTEMD@", str(SYSTEMD))
)


def why_not() -> str | None:
    """Return what keeps this machine from booting one; None: nothing that is known."""
    if os.getuid() != 0:
        return "namespaces are made as root"
    if not SYSTEMD.exists():
        return "systemd is not installed (apt-get install systemd)"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed (apt-get install util-linux dbus)"
    return None if _cgroup2() is not None else "there is no control group file system of version 2"


def _cgroup2() -> Path | None:
    """Return where control groups of version 2 are mounted."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)


class Booted:
    """`shared` is the directory that both machines see, at the same place."""

    def __init__(self, shared: Path, pid: int) -> None:
        self.shared = shared
        self._pid = pid
        self._namespaces = [
            "nsenter",
            f"--target={pid}",
            "--mount",
            "--pid",
            "--cgroup",
            "--net",
            "--uts",
            "--ipc",
        ]

    def run(self, *words: str, as_user: bool = False, check: bool = True) -> str:
        """Run a command in there to its end, and return what it printed."""
        by = f"setpriv --reuid={UID} --regid={UID} --clear-groups env XDG_RUNTIME_DIR=/run/user/{UID}".split()
        command = [*self._namespaces, "--", *(by if as_user else ()), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def systemctl(self, *words: str, as_user: bool = False, check: bool = True) -> str:
        """Ask the machine's manager, or the user's own one."""
        manager = ("--user",) if as_user else ()
        return self.run("systemctl", *manager, *words, as_user=as_user, check=check)

    def write_unit(self, name: str, text: str, *, as_user: bool = False) -> None:
        """Write a service and make it known; to the user's own manager for `as_user`."""
        directory = "/etc/systemd/user" if as_user else "/etc/systemd/system"
        self.run("sh", "-c", 'printf %s "$1" > "$2"', "sh", text, f"{directory}/{name}")
        self.systemctl("daemon-reload", as_user=as_user)

    def start_users_manager(self) -> None:
        """Start the user's own manager, which stays: the user lingers."""
        self.run("loginctl", "enable-linger", USER)
        self.systemctl("start", f"user@{UID}.service")

    def cgroup(self, pid: int) -> str | None:
        """Return the control group of a process in there; None where it has ended."""
        return self.run("sed", "-n", "s/^0:://p", f"/proc/{pid}/cgroup", check=False) or None


@contextmanager
def booted(shared: Path) -> Iterator[Booted]:
    """Boot one, and end it with everything in it."""
    mounted = _cgroup2()
    assert mounted is not None
    place = shared / "booted"
    place.mkdir()
    group = mounted / f"prefect-ft-test-{os.getpid()}"
    group.mkdir()
    log = shared / "boot.log"
    seen = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    topmost = [str(each) for each in seen if not seen & {*each.parents}]
    spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork"]
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", "unshare", *spaces]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*enter, "sh", "-c", BOOT, "boot", str(place), str(shared), *topmost],
            env={"PATH": os.environ["PATH"], "TARGET": TARGET},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield _up(shared, process, log)
    finally:
        for pid in _children(process.pid):  # its PID 1: everything in there ends with it
            os.kill(pid, signal.SIGKILL)
        process.wait()
        for directory in sorted(group.rglob("*/"), reverse=True):
            directory.rmdir()
        group.rmdir()


def _up(shared: Path, process: subprocess.Popen[bytes], log: Path) -> Booted:
    """Wait until the machine has booted."""
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        for pid in _children(process.pid):
            machine = Booted(shared, pid)
            if machine.systemctl("is-active", "test.target", check=False) == "active":
                return machine
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []

"""A virtual machine with a server of NFS and two clients of it, for a machine whose own kernel knows no NFS.

    python tests/support/nfs_machine.py install   # Debian's packages and its kernel, as root
    python tests/support/nfs_machine.py OPTIONS   # two orchestrators that contend on mounts with these options
    python tests/support/nfs_machine.py OPTIONS COMMAND…   # a command; {0} is the mount

It runs Debian's kernel on an emulated processor, some ten times slower than this one, and sees this machine's files, of
which it changes none. The kernel is kept in $XDG_CACHE_HOME/prefect-ft-nfs. What runs in it is `nfs_guest.py`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("qemu-system-x86", "nfs-kernel-server", "e2fsprogs", "iproute2", "busybox-static")
PROGRAMS = ("qemu-system-x86_64", "rpc.nfsd", "rpcbind", "mkfs.ext4", "ip", "busybox")
MODULES = (
    "virtio_pci", "virtio_blk", "9p", "9pnet_virtio", "overlay", "crc32c_generic", "ext4", "veth", "nfsv3", "nfsv4",
    "nfsd",
)  # fmt: skip
MEMORY_MB, DISK_BYTES = 3072, 2 << 30

_INIT = """#!/bin/sh
b() { /bin/busybox "$@"; }
b mount -t proc proc /proc; b mount -t sysfs sys /sys; b mount -t devtmpfs dev /dev
while read module; do b insmod "$module"; done < /modules
b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 host /lower
b mount -t tmpfs rw /rw; b mkdir /rw/up /rw/work
b mount -t overlay -o lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work root /root
b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 out /root/mnt
for each in dev proc sys; do b mount --move "/$each" "/root/$each"; done
exec /bin/busybox switch_root /root /bin/sh /mnt/guest.sh
"""
"""All files of this machine below a layer of memory; the first process of the machine itself is `_GUEST`."""

_GUEST = """export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp/own
mkdir -p /dev/pts /dev/shm $TMPDIR
mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm; mount -t tmpfs own $TMPDIR
cd {root} && {words} > /mnt/output 2>&1
echo $? > /mnt/code; sync; echo o > /proc/sysrq-trigger
while :; do :; done
"""


def cache() -> Path:
    """Return where the kernel is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prefect-ft-nfs"


def why_not() -> str | None:
    """Say what keeps this machine from running the virtual one; None: nothing that is known."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or not list(cache().glob("boot/vmlinuz-*")):
        what = f"{missing[0]} is not installed" if missing else "its kernel is not there"
        return f"{what} (python tests/support/nfs_machine.py install)"
    return None if os.getuid() == 0 else "it reads all of this machine's files: it is started as root"


def install() -> None:
    """Install what it needs, and get the kernel; nothing where it is there."""
    if why_not() is None:
        return
    # The package would start a server of the machine's own where a service manager runs.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], env=env, check=True
    )
    told = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True
    )
    package = next(word for word in told.stdout.split() if word.startswith("linux-image-6"))
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # apt's own user gets what is loaded
        subprocess.run(["apt-get", "download", "-qq", package], cwd=scratch, check=True)
        (archive,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(archive), str(cache())], check=True)
    (release,) = (path.name for path in (cache() / "lib/modules").iterdir())
    subprocess.run(["busybox", "depmod", "-b", str(cache()), release], check=True)


def run(words: Iterable[str], limit_s: float) -> tuple[int, str]:
    """Run `nfs_guest.py` with these words in a machine of its own; return exit code and output."""
    with tempfile.TemporaryDirectory(prefix="pft-nfs-") as scratch:
        directory, out = Path(scratch), Path(scratch) / "out"
        out.mkdir()
        command = [sys.executable, str(Path(__file__).with_name("nfs_guest.py")), *words]
        root = Path(__file__).parents[2]
        (out / "guest.sh").write_text(_GUEST.format(root=shlex.quote(str(root)), words=shlex.join(command)))
        with (directory / "disk").open("wb") as disk:
            disk.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", str(directory / "disk")], check=True)
        _make_first_files(directory)
        console = _boot(directory, out, limit_s)
        output = (out / "output").read_text() if (out / "output").exists() else console
        return int((out / "code").read_text()) if (out / "code").exists() else 1, output


def _boot(directory: Path, out: Path, limit_s: float) -> str:
    """Run the machine to its end, and return what its console has said."""
    (kernel,) = cache().glob("boot/vmlinuz-*")
    command = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MB),
        "-nographic", "-no-reboot", "-nic", "none", "-kernel", str(kernel), "-initrd", str(directory / "first"),
        "-append", "console=ttyS0 panic=-1 loglevel=5 mitigations=off",
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        "-virtfs", f"local,path={out},mount_tag=out,security_model=none",
        "-drive", f"file={directory / 'disk'},format=raw,if=virtio",
    ]  # fmt: skip
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
    )
    return (ended.stdout + ended.stderr).decode(errors="replace")[-3000:]


def _make_first_files(directory: Path) -> None:
    """Make the archive of files with which the kernel starts: modules, and a program that mounts the others."""
    root = directory / "files"
    for name in ("bin", "proc", "sys", "dev", "lower", "rw", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy(str(shutil.which("busybox")), root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    (root / "init").write_text(_INIT)
    (root / "init").chmod(0o755)
    (tree,) = (cache() / "lib/modules").iterdir()
    order = _in_order(tree)
    for path in order:
        shutil.copy(tree / path, root / Path(path).name)
    (root / "modules").write_text("".join(f"/{Path(path).name}\n" for path in order))
    names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
    with (directory / "first").open("wb") as archive:
        subprocess.run(
            ["busybox", "cpio", "-o", "-H", "newc"],
            cwd=root,
            input=names,
            stdout=archive,
            stderr=subprocess.DEVNULL,
            check=True,
        )


def _in_order(tree: Path) -> list[str]:
    """Return the modules that are wanted, each after those that it needs."""
    needs = {}
    for line in (tree / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).stem] = path, [Path(other).stem for other in others.split()]
    order: list[str] = []

    def add(name: str) -> None:
        path, others = needs[name]
        for other in others:
            add(other)
        if path not in order:
            order.append(path)

    for name in MODULES:
        add(name)
    return order


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            install()
        case [str(options), *command]:
            code, told = run([options, *command], 3600)
            sys.stdout.write(told)
            sys.exit(code)
        case _:
            sys.exit(__doc__)

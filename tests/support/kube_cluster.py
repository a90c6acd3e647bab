"""A Kubernetes cluster of the tests' own: three nodes on this machine, each with its own network and mounts.

    python tests/support/kube_cluster.py start DIRECTORY    # prints the KUBECONFIG
    python tests/support/kube_cluster.py cut DIRECTORY N    # the network of node N is gone; `join` brings it back
    python tests/support/kube_cluster.py stop DIRECTORY

PREFECT_FT_TEST_CLUSTER=DIRECTORY has the tests use one that is started; KUBECONFIG any other, of which no node is cut.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import kube_build
from kube_image import PAUSE, write_images

DEADLINE_S = 180.0
NODES = (1, 2, 3)
TOOLS = ("containerd", "ctr", "ip", "mount", "nsenter", "openssl", "sysctl", "umount", "unshare")
PREFIX = "pft-kube-"
"""Of a cluster's directory, which is short for its sockets' paths."""
SWITCH, UPLINK = "pftk-switch", "pftk0"
HOST = "10.99.0.1"
API = f"https://{HOST}:6443"
STORE = "http://127.0.0.1:12379"
SERVICES, FIRST_SERVICE = "10.96.0.0/16", "10.96.0.1"
AUDIT = "log/audit"
GRACE_S = os.environ.get("PREFECT_FT_TEST_GRACE_S", "10")
"""How long nobody may hear of a node before it is not ready; Kubernetes' own default is 40."""
SYSCTLS = ("vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops")
"""What a kubelet changes on its machine."""


def why_not() -> str | None:
    """Say what keeps this machine from running a cluster, once no build goes on; None: nothing that is known."""
    kube_build.await_build()
    if os.getuid() != 0:
        return "a cluster is started as root"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if not kube_build.is_built():
        return "its programs are not built (python tests/support/kube_build.py)"
    return None


class Cluster:
    """A cluster in a directory: its keys, data, logs, and the pids of what runs for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "admin.kubeconfig"
        self._programs = kube_build.binaries()
        self._pki = directory / "pki"
        self._begun: list[subprocess.Popen[bytes]] = []
        """Those that this process began: a child that is forgotten while it runs is a warning."""
        self._killed_kubelets: set[int] = set()
        """The nodes whose kubelet was ended on purpose."""
        self._kubelets: dict[int, subprocess.Popen[bytes]] = {}
        self._one_at_a_time = threading.RLock()
        """Around what begins kubelets and what looks whether they have ended: tests and the watcher do both."""
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._keep_up, daemon=True)

    def start(self) -> None:
        """Start it, and wait until every node is ready; one at a time on a machine."""
        for name in ("pki", "log", "pid", "etcd"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        before = [f"{name} = {Path('/proc/sys', *name.split('.')).read_text()}" for name in SYSCTLS]
        (self.directory / "sysctl").write_text("".join(before))
        self._make_network()
        self._make_mounts()
        _make_certificates(self._pki, self.directory)
        self._begin_store()
        self.begin_api()
        images = self.directory / "images.tar"
        write_images(images, self._programs / "pause")
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(lambda node: self._prepare_node(node, images), NODES))
        self._await_api()
        self._begin_control()
        for node in NODES:
            self.begin_kubelet(node)
        _until(self._up, self._logs)
        self._watcher.start()

    # -- network ----------------------------------------------------------------------------------

    def _make_network(self) -> None:
        _ip("netns add", SWITCH)
        _ip(f"-n {SWITCH} link add bridge type bridge")
        _ip(f"-n {SWITCH} link set bridge up")
        _ip(f"link add {UPLINK} type veth peer name uplink netns {SWITCH}")
        _ip(f"-n {SWITCH} link set uplink master bridge up")
        _ip(f"addr add {HOST}/24 dev {UPLINK}")
        _ip(f"link set {UPLINK} up")
        for node in NODES:
            self._make_node_network(node)

    def _make_node_network(self, node: int) -> None:
        space = _space(node)
        _ip("netns add", space)
        _ip(f"-n {space} link set lo up")
        _ip(f"-n {space} link add eth0 type veth peer name {_port(node)} netns {SWITCH}")
        _ip(f"-n {SWITCH} link set {_port(node)} master bridge up")
        _ip(f"-n {space} addr add {_address(node)}/24 dev eth0")
        _ip(f"-n {space} link set eth0 up")
        _ip(f"-n {space} route add default via {HOST}")
        _run("nsenter", f"--net=/run/netns/{space}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        _ip(f"route add {_pods(node)} via {_address(node)}")
        for other in NODES:
            if other != node:
                _ip(f"-n {space} route add {_pods(other)} via {_address(other)}")

    def _make_mounts(self) -> None:
        """Give each node a /var/log: a kubelet deletes there, once a minute, what is of no pod of its own."""
        held = self.directory / "mounts"
        held.mkdir()
        _run("mount", "--make-private", "-t", "tmpfs", "none", held)
        for node in NODES:
            log = self.directory / f"n{node}" / "log"
            log.mkdir(parents=True)
            (held / f"n{node}").touch()
            _run("unshare", f"--mount={held / f'n{node}'}", "mount", "--bind", log, "/var/log")

    def _enter(self, node: int) -> list[str]:
        """Begin the words of a command that is to run as a node's own."""
        return [
            "nsenter",
            f"--net=/run/netns/{_space(node)}",
            f"--mount={self.directory / 'mounts' / f'n{node}'}",
        ]

    def cut(self, node: int) -> None:
        """Take a node's network away: what runs there goes on, and nobody hears of it."""
        _ip(f"-n {SWITCH} link set {_port(node)} down")

    def join(self, node: int) -> None:
        """Give it back, with a kubelet that starts anew: one that was cut may not ask for its pods for a minute."""
        _ip(f"-n {SWITCH} link set {_port(node)} up")
        self.kill("kubelet", node)
        self.begin_kubelet(node)

    def import_images(self, images: Path) -> None:
        """Have every node hold the images of an archive as well."""
        for node in NODES:
            socket = self.directory / f"n{node}.sock"
            _run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", images)

    # -- programs ---------------------------------------------------------------------------------

    def _begin_store(self) -> None:
        peer = "http://127.0.0.1:12380"
        self._begin("etcd", [
            self._programs / "etcd", f"--data-dir={self.directory / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls={STORE}", f"--advertise-client-urls={STORE}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        ])  # fmt: skip

    def _begin_control(self) -> None:
        """Start what acts on what the API holds; who asks one that is not there yet asks ever more rarely."""
        programs, pki = self._programs, self._pki
        self._begin("controllers", [
            programs / "kube-controller-manager", f"--kubeconfig={self._config_of('controllers')}",
            f"--cert-dir={pki}", f"--service-account-private-key-file={pki / 'sa.key'}",
            f"--root-ca-file={pki / 'ca.crt'}", "--use-service-account-credentials", "--leader-elect=false",
            "--node-monitor-period=1s", f"--node-monitor-grace-period={GRACE_S}s",
        ])  # fmt: skip
        self._begin("scheduler", [
            programs / "kube-scheduler", f"--kubeconfig={self._config_of('scheduler')}", f"--cert-dir={pki}",
            "--leader-elect=false",
        ])  # fmt: skip

    def begin_api(self) -> None:
        """Start the API's program."""
        pki, programs = self._pki, self._programs
        self._begin("apiserver", [
            programs / "kube-apiserver", f"--advertise-address={HOST}", "--secure-port=6443",
            f"--etcd-servers={STORE}", f"--client-ca-file={pki / 'ca.crt'}", f"--cert-dir={pki}",
            f"--tls-cert-file={pki / 'apiserver.crt'}", f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--service-account-key-file={pki / 'sa.pub'}", f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default", f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={pki / 'admin.crt'}", f"--kubelet-client-key={pki / 'admin.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={self._write_audit_policy()}", f"--audit-log-path={self.directory / AUDIT}",
        ])  # fmt: skip

    def stop_api(self) -> None:
        """Take the API away; all else goes on."""
        self._end("apiserver")

    def start_api(self) -> None:
        """Give it back, and wait until it answers; it is nobody's child, whoever does this."""
        _run(sys.executable, __file__, "begin-api", self.directory)
        self._await_api()

    def _await_api(self) -> None:
        _until(lambda: self._get("/readyz") == b"ok", self._logs)

    def _write_audit_policy(self) -> Path:
        """Have written down what service accounts ask for, but for those of the cluster's own parts."""
        rules = [
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
            {"level": "None"},
        ]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
        path = self.directory / "audit-policy"
        path.write_text(json.dumps({**policy, "rules": rules}))
        return path

    def asked(self, account: str) -> set[tuple[str, str]]:
        """Return what a service account (`NAMESPACE:NAME`) has asked for, as verb and resource."""
        lines = (self.directory / AUDIT).read_text().splitlines()
        told = [json.loads(line) for line in lines if f'"system:serviceaccount:{account}"' in line]
        return {
            (each["verb"], "/".join(filter(None, (where["resource"], where.get("subresource")))))
            for each in told
            if (where := each.get("objectRef")) is not None
        }

    def _prepare_node(self, node: int, images: Path) -> None:
        """Have a node's containers run that has nobody yet to speak for it."""
        place = self.directory / f"n{node}"
        for name in ("cni", "kubelet"):
            (place / name).mkdir()
        socket = self.directory / f"n{node}.sock"
        (place / "containerd.toml").write_text(_containerd_toml(place, socket, self._programs))
        (place / "cni" / "10-test.conflist").write_text(json.dumps(_cni(place, node)))
        (place / "kubelet.json").write_text(json.dumps(_kubelet(self._pki, place, node)))
        self.begin_containerd(node)
        _run("ctr", "-a", socket, "-n", "k8s.io", "images", "import", images)

    def begin_containerd(self, node: int) -> None:
        """Start what runs a node's containers, and wait until it answers; what it ran before goes on all the time."""
        place = self.directory / f"n{node}"
        self._begin(
            f"containerd-n{node}", [*self._enter(node), "containerd", "-c", place / "containerd.toml"]
        )
        _until(lambda: _succeeds("ctr", "-a", self.directory / f"n{node}.sock", "version"), self._logs)

    def begin_kubelet(self, node: int) -> None:
        """Start what speaks for a node."""
        place = self.directory / f"n{node}"
        words = [
            *self._enter(node), self._programs / "kubelet", f"--config={place / 'kubelet.json'}",
            f"--kubeconfig={self._config_of(f'n{node}')}", f"--hostname-override=n{node}",
            f"--node-ip={_address(node)}", f"--root-dir={place / 'kubelet'}",
            f"--cert-dir={place / 'kubelet' / 'pki'}", "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{self.directory / f'n{node}.sock'}",
        ]  # fmt: skip
        with self._one_at_a_time:
            self._kubelets[node] = self._begin(f"kubelet-n{node}", words)
            self._killed_kubelets.discard(node)

    def _up(self) -> bool:
        """Whether pods can be made."""
        self._begin_ended_kubelets()
        return len(self._ready()) == len(NODES) and self._has_account()

    def _keep_up(self) -> None:
        while not self._is_over.wait(0.5):
            self._begin_ended_kubelets()

    def _begin_ended_kubelets(self) -> None:
        """Start kubelets again that ended by themselves, as a node's init does.

        One ends where a control group goes away while it looks at all that the machine has.
        """
        with self._one_at_a_time:
            for node in NODES:
                if node not in self._killed_kubelets and self._kubelets[node].poll() is not None:
                    self.begin_kubelet(node)

    def kill(self, program: str, node: int) -> None:
        """End a node's `kubelet` or `containerd`, and nothing of what they run."""
        if program == "kubelet":
            with self._one_at_a_time:
                self._killed_kubelets.add(node)
        self._end(f"{program}-n{node}")

    def kill_container(self, node: int, name: str) -> None:
        """End a container's first process by SIGKILL; `name` is as a pod's status tells it."""
        socket, container = self.directory / f"n{node}.sock", name.removeprefix("containerd://")
        _run("ctr", "-a", socket, "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container)

    def _begin(self, name: str, words: list[Any]) -> subprocess.Popen[bytes]:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "no_proxy": "*"}
        with (self.directory / "log" / name).open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in words], cwd=self.directory, env=env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._begun.append(process)
        (self.directory / "pid" / name).write_text(str(process.pid))
        return process

    def _config_of(self, name: str) -> Path:
        return self.directory / f"{name}.kubeconfig"

    # -- the API ----------------------------------------------------------------------------------

    def _get(self, path: str) -> bytes:
        """What the API answers; nothing while it does not."""
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(API + path, timeout=5) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as exc:
            exc.close()  # it holds the connection
        except OSError:
            pass
        return b""

    def _ready(self) -> list[str]:
        nodes = json.loads(self._get("/api/v1/nodes") or "{}").get("items", [])
        return [
            node["metadata"]["name"]
            for node in nodes
            if any(
                each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"]
            )
        ]

    def _has_account(self) -> bool:
        """Whether pods can be made: they are somebody's."""
        return bool(self._get("/api/v1/namespaces/default/serviceaccounts/default"))

    def _logs(self) -> str:
        """The end of each program's log, after the lines of which it died."""
        told = []
        for log in sorted((self.directory / "log").iterdir()):
            text = log.read_text(errors="replace")
            fatal = [line for line in text.splitlines() if re.match(r"F\d{4} |panic:|fatal error:", line)]
            told.append("\n".join([f"== {log.name}", *fatal, text[-1500:]]))
        return "\n".join(told)

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """End it, its pods, and all that it had."""
        self._is_over.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for node in NODES:
            self._end(f"kubelet-n{node}")
        for node in NODES:
            self._end_containers(self.directory / f"n{node}.sock")
        for name in [
            *(f"containerd-n{node}" for node in NODES),
            "scheduler",
            "controllers",
            "apiserver",
            "etcd",
        ]:
            self._end(name)
        while self._begun:
            each = self._begun.pop()
            each.kill()  # one that was started anew meanwhile is no longer known by its name
            each.wait()
        for pid in _shims_of(self.directory):
            _kill(pid)
        for mount in reversed(_mounts_below(self.directory)):
            _succeeds("umount", "--lazy", mount)
        for space in [*map(_space, NODES), SWITCH]:
            _succeeds("ip", "netns", "del", space)
        _succeeds("ip", "link", "del", UPLINK)
        _succeeds("sysctl", "-q", "-p", self.directory / "sysctl")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, name: str) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            pid = int((self.directory / "pid" / name).read_text())
            if str(self.directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                _kill(pid)

    def _end_containers(self, socket: Path) -> None:
        ctr = ("ctr", "--connect-timeout", "2s", "-a", str(socket), "-n", "k8s.io")
        listed = subprocess.run([*ctr, "tasks", "ls", "-q"], capture_output=True, text=True, check=False)
        for task in listed.stdout.split():
            _succeeds(*ctr, "tasks", "kill", "-s", "9", task)
            _succeeds(*ctr, "tasks", "rm", "-f", task)


# -- what programs are told ---------------------------------------------------------------------------


def _containerd_toml(place: Path, socket: Path, programs: Path) -> str:
    return f"""version = 2
root = "{place}/root"
state = "{place}/state"
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{place}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs}/cni"
conf_dir = "{place}/cni"
"""


def _cni(place: Path, node: int) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": str(place / "addresses"),
        "ranges": [[{"subnet": _pods(node)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "test", "plugins": [bridge]}


def _kubelet(pki: Path, place: Path, node: int) -> dict[str, Any]:
    """Nothing of a machine's own is managed: three of them share this one."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": _address(node),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"n{node}.crt"),
        "tlsPrivateKeyFile": str(pki / f"n{node}.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 4,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "resolvConf": "",
        "evictionHard": {"memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,  # never: on a disk that is nearly full, images would be gone in the midst
        "volumePluginDir": str(place / "plugins"),
    }


def _make_certificates(pki: Path, directory: Path) -> None:
    """Make an authority, and for everybody a certificate and how to reach the API with it."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=pki, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
            "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    openssl("genrsa", "-out", "sa.key", "2048")
    openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    server = f"IP:{HOST},IP:127.0.0.1,IP:{FIRST_SERVICE},DNS:kubernetes.default"
    subjects = {
        "apiserver": ("/CN=kube-apiserver", server),
        "admin": ("/O=system:masters/CN=admin", "DNS:admin"),
        "controllers": ("/CN=system:kube-controller-manager", "DNS:controllers"),
        "scheduler": ("/CN=system:kube-scheduler", "DNS:scheduler"),
        **{f"n{node}": (f"/O=system:nodes/CN=system:node:n{node}", f"IP:{_address(node)}") for node in NODES},
    }
    for name, (subject, names) in subjects.items():
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject, "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        (pki / "ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "ext", "-out", f"{name}.crt")  # fmt: skip
        (directory / f"{name}.kubeconfig").write_text(json.dumps(_kubeconfig(pki, name)))


def _kubeconfig(pki: Path, name: str) -> dict[str, Any]:
    keys = {"client-certificate": str(pki / f"{name}.crt"), "client-key": str(pki / f"{name}.key")}
    cluster = {"server": API, "certificate-authority": str(pki / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": name, "user": keys}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        "current-context": "test",
    }


# -- the machine --------------------------------------------------------------------------------------


def _space(node: int) -> str:
    return f"pftk-n{node}"


def _port(node: int) -> str:
    return f"port{node}"


def _address(node: int) -> str:
    return f"10.99.0.1{node}"


def _pods(node: int) -> str:
    return f"10.244.{node}.0/24"


def _ip(*words: str) -> None:
    _run("ip", *" ".join(words).split())


def _run(*words: Any) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr or done.stdout}"


def _succeeds(*words: Any) -> bool:
    done = subprocess.run([str(word) for word in words], capture_output=True, check=False)
    return done.returncode == 0


def _until(holds: Callable[[], bool], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


def _kill(pid: int) -> None:
    """End a process and wait until it is gone, whoever's child it is."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}/exe").is_symlink() and os.path.exists(f"/proc/{pid}/exe"):
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
            time.sleep(0.01)


def _shims_of(directory: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            if b"containerd-shim" in words and os.fsencode(directory) in words:
                found.append(int(path.parent.name))
    return found


def _mounts_below(directory: Path) -> list[str]:
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [mount for mount in mounts if mount.startswith(str(directory))]


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster that lives while entered; another test run on this machine waits for its end."""
    if started := os.environ.get("PREFECT_FT_TEST_CLUSTER"):
        yield Cluster(Path(started))
        return
    place = Path(tempfile.gettempdir())
    with (place / "prefect-ft-test-cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in place.glob(f"{PREFIX}*"):  # by who died before it was stopped
            Cluster(left).stop()
        made = Cluster(Path(tempfile.mkdtemp(prefix=PREFIX)))
        try:
            made.start()
            yield made
        finally:
            made.stop()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", where]:
            here = Cluster(Path(where).absolute())
            here.start()
            print(here.kubeconfig)
        case ["cut" | "join" as what, where, number]:
            getattr(Cluster(Path(where).absolute()), what)(int(number))
        case ["begin-api", where]:
            Cluster(Path(where).absolute()).begin_api()
        case ["stop", where]:
            Cluster(Path(where).absolute()).stop()
        case _:
            sys.exit(__doc__)

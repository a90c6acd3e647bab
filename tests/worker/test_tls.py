"""The agent at a TCP port: who has the run's certificate and key is served, and nobody else holds it up."""

from __future__ import annotations

import datetime
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_fixtures import HandMadeWorker, StartAgent
from agents import WORKER, AgentClient, network, script

from prefect_ft.backends.base import Address
from prefect_ft.backends.direct import DirectWay, NoAnswerError
from prefect_ft.run import Certificates, certificates_of
from prefect_ft.worker import frames
from prefect_ft.worker.lobby import MAX_STRANGERS
from prefect_ft.worker.tls import RECORD, Identity, agents_context, orchestrators_context

HOST = "127.0.0.1"
WAIT = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return certificates_of(tmp_path)


@pytest.fixture
def port() -> int:
    """One that is free, as far as a kernel can promise that."""
    with socket.create_server((HOST, 0)) as free:
        return int(free.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class AtPort(Address):
    """Where an agent of the tests listens."""

    way: DirectWay

    def connect(self, timeout_s: float) -> socket.socket:
        return self.way.connect(self.host, WORKER)


@pytest.fixture
def dial(
    start_agent: StartAgent, certificates: Certificates, port: int
) -> Iterator[Callable[..., AgentClient]]:
    """Start an agent that listens there, and return who opens connections to it."""
    agent: HandMadeWorker = start_agent(
        network=network(port, certificates),
        faults={"lobby.py": "STRANGER_TIMEOUT_S = 1000.0"},
    )
    agent.attached().close()  # it listens
    address = AtPort(socket_path=agent.home, host=HOST, way=DirectWay(certificates.orchestrator(), port, 5.0))

    def client(epoch: int = 1) -> AgentClient:
        agent.clients.append(AgentClient(address, epoch))
        return agent.clients[-1]

    yield client
    assert agent.log == ""


def test_an_attempt_over_tls(dial: Callable[..., AgentClient]) -> None:
    client = dial()
    assert client.attach()["ev"] == "attached"
    assert client.start(script("print('here')"))["ev"] == "started"
    client.expect("exited", code=0)
    assert client.stop()["ev"] == "stopped"
    assert client.printed() == b"here\n"


def test_more_than_sockets_hold_comes_whole_to_a_slow_reader(dial: Callable[..., AgentClient]) -> None:
    """Records are read ahead of `select`, and sent as there is room."""
    client = dial()
    client.attach()
    lines = 60_000
    client.start(script(f"for number in range({lines}): print('%099d' % number)"))
    client.expect("exited", code=0)  # it has all been written before more than a buffer is read
    client.stop()
    assert client.printed() == b"".join(b"%099d\n" % number for number in range(lines))


def test_a_long_order_arrives_whole(dial: Callable[..., AgentClient]) -> None:
    client = dial()
    client.attach()
    value = "x" * (20 * RECORD)
    client.start(
        script("import os; print(sum(len(os.environ[f'V{n}']) for n in range(4)))"),
        **{f"V{n}": value[: 1 << 16] for n in range(4)},
    )
    client.expect("exited", code=0)
    client.stop()
    assert client.printed() == b"262144\n"


def test_the_key_is_asked_for_all_the_same(dial: Callable[..., AgentClient]) -> None:
    assert dial().attach(key="Secret")["why"] == "wrong key"


def test_a_higher_epoch_takes_over_by_either_way(dial: Callable[..., AgentClient]) -> None:
    old, new = dial(1), dial(2)
    old.attach()
    assert new.attach()["ev"] == "attached"
    assert old.hear_to_the_end()[-1]["ev"] == "superseded"


def plain(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), 10)


def other_certificates(tmp_path: Path) -> Certificates:
    other = tmp_path / "other"
    other.mkdir()
    return certificates_of(other)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", id="http"),
        pytest.param(frames.encode({"op": "attach"}), id="without-tls"),
        pytest.param(b"\x16\x03\x01\xff\xff" + bytes(100), id="half-a-handshake-then-noise"),
    ],
)
def test_who_speaks_no_tls_disturbs_nobody(dial: Callable[..., AgentClient], port: int, data: bytes) -> None:
    client = dial()
    client.attach()
    with plain(port) as stranger, suppress(OSError):  # it may have been shown out before it has said all
        stranger.sendall(data)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1 << 12):
            pass
    assert client.stop()["ev"] == "stopped"


def greet(context: ssl.SSLContext, port: int) -> None:
    """Say something and hear the answer; which of the two fails does not matter."""
    with plain(port) as connection, context.wrap_socket(connection) as secured:
        secured.sendall(frames.encode({"op": "attach"}))
        secured.recv(1)


def test_who_shows_no_certificate_or_another_runs_is_shown_out(
    dial: Callable[..., AgentClient], port: int, tmp_path: Path, certificates: Certificates
) -> None:
    client = dial()
    client.attach()
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE
    other = orchestrators_context(other_certificates(tmp_path).orchestrator())
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    for context in (nobody, other):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            greet(context, port)
    assert client.stop()["ev"] == "stopped"


def test_what_one_worker_was_told_opens_no_other_and_not_itself(
    dial: Callable[..., AgentClient], port: int, certificates: Certificates
) -> None:
    """A rank may read all that its agent was told."""
    client = dial()
    client.attach()
    for worker in ("0-1-1-0", WORKER):
        stolen = orchestrators_context(certificates.worker(worker)._replace(names=False))
        with pytest.raises(OSError, match=r"."):
            greet(stolen, port)
    with plain(port) as connection:
        own = orchestrators_context(certificates.orchestrator())
        with own.wrap_socket(connection, server_hostname=WORKER) as secured:
            secured.sendall(frames.encode({"op": "attach"}))
            assert b"refused" in secured.recv(1 << 12)
    assert client.stop()["ev"] == "stopped"


def is_shown_out(connection: socket.socket) -> bool:
    """Wait until the other side has hung up, whether it had read all or not."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_half_open_handshake_holds_up_nobody_and_the_oldest_have_to_go(
    dial: Callable[..., AgentClient], port: int
) -> None:
    client = dial()
    client.attach()
    with ExitStack() as stack:
        silent = [stack.enter_context(plain(port)) for _ in range(MAX_STRANGERS + 3)]
        for each in silent:
            each.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the first bytes of a handshake
        assert all(map(is_shown_out, silent[:3]))
        assert select.select(silent[3:], [], [], 0)[0] == []
        assert client.stop()["ev"] == "stopped"
        assert dial(2).attach()["ev"] == "attached"


def test_a_port_that_is_somebody_elses_leaves_the_agent_its_socket(
    start_agent: StartAgent, certificates: Certificates
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        agent = start_agent(network=network(port, certificates))
        assert agent.attached().stop()["ev"] == "stopped"
    assert agent.log == f"prefect-ft: cannot listen at port {port}: Address already in use\n"


# -- sockets ------------------------------------------------------------------------------------------


@pytest.fixture
def pair(certificates: Certificates) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection that has been opened."""
    ends = socket.socketpair()
    entrance = agents_context(certificates.worker(WORKER))
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(entrance.wrap_socket, ends[0], server_side=True)
        theirs = orchestrators_context(certificates.orchestrator()).wrap_socket(
            ends[1], server_hostname=WORKER
        )
    with opened.result() as ours, theirs:
        yield ours, theirs


def test_nothing_is_held_back_that_select_does_not_see(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(b"x" * 100)
    assert theirs.recv(1) == b"x" * 100


def test_who_would_have_to_wait_is_told_as_by_any_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    ours.setblocking(False)
    sent = bytearray()
    with pytest.raises(BlockingIOError):  # noqa: PT012  (how often is the kernel's affair)
        while True:
            sent += b"y" * ours.send(b"y" * (4 * RECORD))
    received = bytearray(theirs.recv(1 << 20))
    while len(received) < len(sent):
        received += theirs.recv(1 << 20)
    assert received == sent


# -- the orchestrator's side --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        pytest.param(lambda own, other: other.worker(WORKER), "certificate verify failed", id="another-run"),
        pytest.param(lambda own, other: own.worker("0-1-1-0"), "Hostname mismatch", id="another-worker"),
        pytest.param(
            lambda own, other: own.orchestrator(), "unsuitable certificate purpose", id="the-orchestrator"
        ),
    ],
)
def test_an_orchestrator_trusts_each_worker_by_its_name(
    port: int,
    certificates: Certificates,
    tmp_path: Path,
    shown: Callable[[Certificates, Certificates], Identity],
    why: str,
) -> None:
    with socket.create_server((HOST, port)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            context = agents_context(shown(certificates, other_certificates(tmp_path)))
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(ssl.SSLCertVerificationError, match=why):
            DirectWay(certificates.orchestrator(), port, 5.0).connect(HOST, WORKER)
        server.join()


def test_who_refuses_is_told_from_who_does_not_answer(
    port: int, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.backends.direct.CONNECT_TIMEOUT_S", 0.2)
    way = DirectWay(certificates.orchestrator(), port, 5.0)
    with pytest.raises(ConnectionRefusedError):
        way.connect(HOST, WORKER)
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind((HOST, port))
        deaf.listen(0)
        queued = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in queued:  # then the kernel takes no more, and answers nothing
            each.setblocking(False)
            each.connect_ex((HOST, port))
        with pytest.raises(NoAnswerError, match=f"nothing answers at {HOST}, port {port}, for 0.2 s"):
            way.connect(HOST, WORKER)


def test_who_answers_and_does_not_shake_hands_is_there(
    port: int, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.backends.direct.HANDSHAKE_TIMEOUT_S", 0.05)
    with (
        socket.create_server((HOST, port)),
        pytest.raises(ConnectionError, match="does not shake hands") as caught,
    ):
        DirectWay(certificates.orchestrator(), port, 5.0).connect(HOST, WORKER)
    assert not isinstance(caught.value, NoAnswerError)


# -- certificates -------------------------------------------------------------------------------------


def test_a_run_keeps_its_authority_for_its_user_alone(tmp_path: Path) -> None:
    made = certificates_of(tmp_path)
    assert certificates_of(tmp_path) == made
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_they_sign_no_other_and_never_expire(certificates: Certificates) -> None:
    from cryptography import x509

    for shown in (certificates.orchestrator(), certificates.worker(WORKER)):
        made = x509.load_pem_x509_certificate(shown.own.encode())
        assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
        assert made.not_valid_after_utc.year == 9999
        assert made.not_valid_before_utc < datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
        assert "PRIVATE" not in shown.trusts


def test_agents_of_an_earlier_version_are_still_reached(
    start_agent: StartAgent, port: int, tmp_path: Path
) -> None:
    """All of them and their orchestrator show the one certificate that the run was begun with."""
    made = certificates_of(tmp_path).worker(WORKER).own
    (tmp_path / "authority.pem").unlink()
    (tmp_path / "certificate.pem").write_text(made)
    kept = certificates_of(tmp_path)
    assert {kept.orchestrator(), kept.worker(WORKER)} == {Identity(made, made, names=False)}
    assert [each.name for each in tmp_path.glob("*.pem")] == ["certificate.pem"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    from prefect_ft.errors import ConfigError

    with pytest.raises(ConfigError, match="cannot be written"):
        certificates_of(tmp_path / "none")

"""A secret leaves a worker in nothing that it says, wherever its output is cut and whoever is there to read it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agents import AgentClient, address_of, script, write_agent_config
from growth import is_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_ft.backends.payload import payload_directory
from prefect_ft.worker.masking import Secrets
from prefect_ft.worker.pod import CONFIG_VARIABLE
from prefect_ft.worker.sieve import END_BYTES
from prefect_ft.worker.spool import MAX_PIECE, Keeping, Spool

SECRET = "hf_s3cr3t-value"
PRINTS = script(
    f"import os; print('Error: the token is', os.environ['TOKEN'], 'é' * 9); raise KeyError('{SECRET}')"
)


def handed_on(path: Path, data: bytes, keeping: Keeping, step: int | None = None) -> bytes:
    """What a spool hands on of a file that grows by `step` bytes."""
    spool, found = Spool(str(path), keeping), b""
    for start in range(0, len(data), step or len(data) or 1):
        with path.open("ab") as file:
            file.write(data[start : start + (step or len(data))])
        while piece := spool.next_piece(False):
            found += piece.data
    while piece := spool.next_piece(True):
        found += piece.data
    spool.close()
    return found


# -- where it is cut --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_across_two_pieces_of_a_line_is_masked(tmp_path: Path, cut: int) -> None:
    data = b"x" * (MAX_PIECE - cut) + SECRET.encode() + b"y" * MAX_PIECE + b"\n"
    found = handed_on(tmp_path / "log", data, Keeping(4 * MAX_PIECE, secrets=(SECRET,)))
    assert found == data.replace(SECRET.encode(), b"*" * len(SECRET))


def test_a_secret_that_is_written_in_two_goes_is_masked(tmp_path: Path) -> None:
    data = b"x" * (MAX_PIECE - 5) + SECRET.encode()
    found = handed_on(tmp_path / "log", data, Keeping(4 * MAX_PIECE, secrets=(SECRET,)), step=MAX_PIECE)
    assert found == data[: MAX_PIECE - 5] + b"*" * len(SECRET)


def test_a_reader_that_comes_back_in_the_middle_of_one_gets_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(f"a {SECRET} b\n".encode())
    spool = Spool(str(path), Keeping(1 << 20, secrets=(SECRET,)))
    spool.rewind(5)
    piece = spool.next_piece(True)
    spool.close()
    assert piece is not None
    assert piece.data == b"*" * (len(SECRET) - 3) + b" b\n"


def test_what_remains_of_a_file_that_was_cut_begins_with_no_half_of_one(tmp_path: Path) -> None:
    path, limit = tmp_path / "log", 64 << 10
    for shift in range(0, len(SECRET), 4):
        path.write_bytes(b"")
        spool = Spool(str(path), Keeping(limit, secrets=(SECRET,)))
        with path.open("ab") as file:
            file.write(b"-" * shift + SECRET.encode() * (2 * limit // len(SECRET)))
        spool.bound()
        assert spool.dropped
        while piece := spool.next_piece(True):
            assert set(piece.data) == {ord("*")}
        assert os.stat(path).st_blocks * 512 <= limit + 4096
        spool.close()


def test_an_excerpt_holds_no_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for shift in range(len(SECRET)):
        path.write_bytes(b"Error " + SECRET.encode() * (END_BYTES // len(SECRET)) + b"-" * shift)
        spool = Spool(str(path), Keeping(1 << 20, secrets=(SECRET,)))
        parts = spool.excerpt_of_all()["parts"]
        spool.close()
        assert {char for part in parts for char in part["text"]} <= set("Error *-")


# -- any secrets, any cuts --------------------------------------------------------------------------

letters = st.text("ab\n\r é", min_size=1, max_size=12)


@settings(max_examples=200)
@given(
    values=st.lists(letters, min_size=1, max_size=5), text=st.text("ab\n\r é.", max_size=60), data=st.data()
)
def test_no_secret_is_left_and_nothing_else_is_lost(
    values: list[str], text: str, data: st.DataObject
) -> None:
    secrets, raw = Secrets(values), text.encode()
    masked = secrets.mask(raw)
    words = [word.encode() for word in secrets.words]
    for word in words:
        assert word not in masked or set(word) == {ord("*")}
    found = [(at, at + len(word)) for word in words for at in range(len(raw)) if raw.startswith(word, at)]
    covered = {at for stretch in found for at in range(*stretch)}
    assert masked == bytes(ord("*") if at in covered else byte for at, byte in enumerate(raw))
    assert secrets.mask_text(text).encode() == masked
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    before, after = raw[max(0, start - secrets.reach) : start], raw[end : end + secrets.reach]
    window = secrets.mask(before + raw[start:end] + after)[len(before) :]
    assert window[: end - start] == masked[start:end]


@given(values=st.lists(letters, max_size=3))
def test_each_line_of_a_secret_is_one_and_short_ones_are_none(values: list[str]) -> None:
    words = Secrets(values).words
    for value in values:
        for line in (each.strip("\r") for each in value.split("\n")):
            assert (line in words) == (len(line) >= 4)


@settings(max_examples=60)
@given(
    values=st.lists(st.text("ab", min_size=4, max_size=9), min_size=1, max_size=3),
    data=st.binary(max_size=50).map(
        lambda seed: bytes(b"ab\n"[byte % 3] if byte % 17 else 10 for byte in seed)
    ),
    step=st.integers(1, 20),
)
def test_a_spool_hands_on_what_the_whole_file_masked_would_be(
    values: list[str], data: bytes, step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("spool") / "log"
    found = handed_on(path, data, Keeping(1 << 20, secrets=tuple(values)), step)
    assert found == Secrets(values).mask(data)


# -- whoever is there -------------------------------------------------------------------------------


def test_an_agent_tells_an_orchestrator_none(client: AgentClient) -> None:
    client.start(PRINTS, TOKEN=SECRET, secrets=[SECRET])
    client.expect("exited", code=1)
    client.stop()
    assert b"the token is" in client.printed()
    assert SECRET.encode() not in client.printed()


@pytest.mark.parametrize("output", ["forward", "workers"])
def test_a_pods_log_holds_none_when_its_agent_leaves_alone(runtime_dir: Path, output: str) -> None:
    payload, home = payload_directory(runtime_dir), runtime_dir / "w"
    config = write_agent_config(home, orphan_timeout_s=2, output=output)
    told = config.read_text()
    config.unlink()
    home.rmdir()  # in a pod nothing is there before
    code = f"import sys; sys.path[:0] = [{str(payload)!r}]; from prefect_ft.worker import pod; pod.main()"
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        env={**os.environ, CONFIG_VARIABLE: told},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        while not (home / "agent.sock").exists():
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.002)
        client = AgentClient(address_of(home))
        client.attach()
        client.start(PRINTS, TOKEN=SECRET, secrets=[SECRET])
        client.close()
        said, _ = process.communicate(timeout=30)
    assert b"the token is" in said
    assert SECRET.encode() not in said


# -- what it costs ----------------------------------------------------------------------------------


def masks(values: list[str], text: str, length: int) -> Callable[[], bytes]:
    data = (text.encode() * (length // len(text) + 1))[:length]
    return lambda: Secrets(values).mask(data)


@pytest.mark.parametrize("text", ["a", "ab", "aaab", "x", SECRET, SECRET[:-1]])
def test_masking_costs_no_more_than_the_length_of_what_is_printed(text: str) -> None:
    values = ["aaaa", "a" * 60 + "b", "abababab", SECRET]
    assert is_linear(lambda length: masks(values, text, length), 128 << 10)


def test_masking_costs_no_more_than_the_number_of_secrets() -> None:
    assert is_linear(
        lambda count: masks([f"{SECRET}-{each}" for each in range(count)], SECRET, 64 << 10), 160
    )


@pytest.mark.parametrize("text", ["a", "b" + "a" * 99])
def test_masking_costs_no_more_than_the_length_of_a_secret(text: str) -> None:
    assert is_linear(lambda length: masks(["a" * length], text, 64 << 10), 1600)

"""`classify`: one verdict, whatever the logs are packed in; an error is one line."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from prefect_ft.cli import main

Run = Callable[..., tuple[int, str, str]]

LOG = b"""\
step 10 loss 2.1
Traceback (most recent call last):
  File "/app/train.py", line 9, in step
    loss = model(batch)
OSError: [Errno 28] No space left on device
"""
RESET = LOG.replace(b"OSError: [Errno 28] No space left on device", b"ConnectionResetError: gone")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in a directory with two logs; return exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rank0.log").write_bytes(RESET)
    (tmp_path / "rank1.log").write_bytes(LOG)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(("classify", *arguments))
        return code, *capsys.readouterr()

    return call


def test_the_document(run: Run) -> None:
    code, out, err = run("rank0.log", "rank1.log", "--exit-code", "1", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document.pop("hint")
    assert len(document.pop("signature")) == 12
    (cascade,) = document.pop("cascades")
    assert (cascade["file"], cascade["line"]) == ("rank0.log", 5)
    assert document.pop("rule")
    assert document == {
        "class": "storage",
        "recoverable": True,
        "confidence": "high",
        "blame": "none",
        "role": "root",
        "file": "rank1.log",
        "line": 5,
        "evidence": "OSError: [Errno 28] No space left on device",
    }


def test_nothing_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "well.log").write_text("step 1\nstep 2\n")
    code, out, _ = run("well.log", "--json")
    assert code == 0
    assert json.loads(out) == {
        "class": "none", "recoverable": None, "confidence": "high", "blame": "none", "rule": None, "role": None,
        "file": None, "line": None, "evidence": None, "cascades": [], "signature": None, "hint": None,
    }  # fmt: skip


def test_the_text_says_the_same(run: Run) -> None:
    code, out, _ = run("rank0.log", "rank1.log")
    assert code == 0
    for words in ("storage", "rank1.log:5: OSError: [Errno 28]", "followed by  rank0.log:5"):
        assert words in out


@pytest.mark.parametrize("ended", [("--signal", "11"), ("--exit-code", "139"), ("--exit-code", "-11")])
def test_how_it_ended(run: Run, ended: tuple[str, str]) -> None:
    assert json.loads(run("rank0.log", "--json", *ended)[1])["class"] == "crash"


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda data: data, id="plain"),
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:]), id="gzip-of-members"),
        pytest.param(lambda data: gzip.compress(data) + b"\0" * 512, id="gzip-padded"),
        pytest.param(zstandard.compress, id="zstd"),
        pytest.param(
            lambda data: zstandard.compress(data[:40]) + zstandard.compress(data[40:]), id="zstd-of-frames"
        ),
        pytest.param(lambda data: data.decode().replace("\n", "\r\n").encode("utf-16"), id="utf-16"),
        pytest.param(lambda data: ("\ufeff" + data.decode()).encode("utf-16-be") + b"\0", id="utf-16-cut"),
        pytest.param(lambda data: b"\xef\xbb\xbf" + data, id="utf-8-marked"),
    ],
)
def test_what_it_is_packed_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(b"step 1 loss 3\n" * 50_000 + LOG)
    (tmp_path / "any.log").write_bytes(packed)
    from_file = json.loads(run("any.log", "--json")[1])
    assert (from_file["class"], from_file["line"]) == ("storage", 50_005)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert json.loads(run("-", "--json")[1]) == from_file | {"file": "-"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_powershell_breaks_is_whole(run: Run, tmp_path: Path, encoding: str) -> None:
    error = "acme.VaultError: the vault is broken, as is all that was ever in it"
    broken = [error[at : at + 24] for at in range(0, len(error), 24)]
    trace = ["Traceback (most recent ", "call last):", '  File "train.py", line ', "7, in <module>"]
    report = ["p : its first words", "At line:1 char:1", "+ " + "~" * 22, "    + CategoryInfo", ""]
    (tmp_path / "any.log").write_text("\r\n".join([*report, *trace, *broken]), encoding=encoding)
    told = json.loads(run("any.log", "--json")[1])
    assert (told["class"], told["line"], told["evidence"]) == ("user_code", 10, error)


def test_a_pipe_that_gives_a_byte_at_a_time(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def write() -> None:
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
            for byte in gzip.compress(LOG):
                pipe.write(bytes([byte]))

    writer = threading.Thread(target=write)
    writer.start()
    assert json.loads(run("pipe", "--json")[1])["class"] == "storage"
    writer.join()


def test_what_breaks_off_is_read_as_far_as_it_goes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "half.gz").write_bytes(gzip.compress(LOG + os.urandom(4000))[:-1000])
    assert json.loads(run("half.gz", "--json")[1])["class"] == "storage"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(["none.log"], "none.log: cannot be read: No such file or directory", id="no-file"),
        pytest.param(["empty"], "empty: holds no log", id="a-directory-without-logs"),
        pytest.param(
            [".", "--exit-code", "1"],
            ".: an exit code or a signal is one job's; name its log files",
            id="whose",
        ),
        pytest.param([], "LOG: no log to read; name files or a directory", id="nothing"),
        pytest.param(["rank0.log", "-", "-"], "-: standard input can be read only once", id="twice"),
        pytest.param(
            ["rank0.log", "--signatures", "own.yaml"],
            "own.yaml:3: [0].pattern: is not a pattern of RE2: missing ): (oops",
            id="a-bad-pattern",
        ),
    ],
)
def test_an_error_is_one_line(run: Run, tmp_path: Path, arguments: list[str], error: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "own.yaml").write_text("- id: mine\n  class: config\n  pattern: (oops\n")
    assert run(*arguments) == (2, "", f"error: {error}\n")


def test_damaged_data_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"\xff" * 100)
    (tmp_path / "bad.zst").write_bytes(zstandard.compress(LOG)[:4] + b"\xff" * 100)
    for name in ("bad.gz", "bad.zst"):
        code, out, err = run(name)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_own_signatures_come_first(run: Run, tmp_path: Path) -> None:
    entry = "- {id: quota-of-ours, class: config, pattern: 'Errno 28', hint: ask the admins}\n"
    (tmp_path / "own.yaml").write_text(entry)
    document = json.loads(run("rank1.log", "--signatures", "own.yaml", "--json")[1])
    assert (document["class"], document["rule"], document["hint"]) == (
        "config", "quota-of-ours", "ask the admins",
    )  # fmt: skip


def test_it_loads_neither_prefect_nor_pydantic(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(LOG)
    code = (
        "import sys; from prefect_ft.cli import main; main(['classify', 'a.log']);"
        "sys.exit(any(name in sys.modules for name in ('prefect', 'pydantic', 'rich')))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)


def test_a_log_of_several_pieces_is_counted_after_it_was_closed(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "train.py: error: argument --steps: expected one argument\n" + "a line of words\n" * 50_000
    )
    assert run("--json", str(log))[0] == 0

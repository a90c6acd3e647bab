"""`classify` on directories, with `--explain`, and against labels with `--check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_ft.cli import main
from prefect_ft.cli.classify.check import wilson

Run = Callable[..., tuple[int, str, str]]

FULL = """\
epoch 1 loss 2.1
Traceback (most recent call last):
  File "/app/train.py", line 9, in step
    loss = model(batch)
OSError: [Errno 28] No space left on device
"""
RESET = FULL.replace("OSError: [Errno 28] No space left on device", "ConnectionResetError: gone")
MISTAKE = FULL.replace("OSError: [Errno 28] No space left on device", "KeyError: 'labels'")
WELL = "epoch 1 loss 2.1\nepoch 2 loss 1.9\nepoch 3 loss 1.8\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(("classify", *arguments))
        return code, *capsys.readouterr()

    return call


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def test_a_directory_holds_jobs_and_a_job_the_logs_of_its_ranks(run: Run) -> None:
    write("logs/a/rank0.log", RESET)
    write("logs/a/rank1.log", FULL)
    write("logs/b/train.out", WELL)
    write("logs/b/train.err", MISTAKE)
    write("logs/c/slurm-4711.out", WELL)
    write("logs/c/slurm-4712.out", MISTAKE)
    write("logs/c/script.py", MISTAKE)
    code, out, err = run("logs", "--json")
    assert (code, err) == (0, "")
    assert [(job["job"], job["class"], job["file"]) for job in json.loads(out)["jobs"]] == [
        ("logs/a/*.log", "storage", "logs/a/rank1.log"),
        ("logs/b/train.*", "user_code", "logs/b/train.err"),
        ("logs/c/slurm-4711.out", "none", None),
        ("logs/c/slurm-4712.out", "user_code", "logs/c/slurm-4712.out"),
    ]


def test_each_job_of_a_directory_is_a_line(run: Run) -> None:
    write("logs/a.log", FULL)
    write("logs/b.log", WELL)
    assert run("logs") == (
        0,
        (
            "storage             logs/a.log  a.log:5: OSError: [Errno 28] No space left on device\n"
            "none                logs/b.log\n"
        ),
        "",
    )


def test_of_a_run_each_attempt_is_classified(run: Run) -> None:
    phase = "runs/job/20260102_030405_restartable"
    first = "".join(f"[a1 w0 r0] {line}\n" for line in RESET.splitlines())
    first += "".join(f"[a1 w1 r1] {line}\n" for line in FULL.splitlines())
    second = "".join(f"[a2 w0 r0] {line}\n" for line in MISTAKE.splitlines() + WELL.splitlines())
    write(f"{phase}/run.log", first + second)
    document = json.loads(run("runs", "--json")[1])
    assert [(job["job"], job["class"], job["file"]) for job in document["jobs"]] == [
        (f"{phase} attempt 1", "storage", "rank1"),
        (f"{phase} attempt 2", "none", None),
    ]


# -- why -----------------------------------------------------------------------------------------------


def test_the_other_candidates_are_shown_with_why_each_lost(run: Run) -> None:
    write("a.log", MISTAKE + WELL + RESET + FULL)
    document = json.loads(run("a.log", "--explain", "--json")[1])
    assert document["line"] == 18
    assert [(each["line"], each["class"], each["why_not"]) for each in document["candidates"]] == [
        (5, "user_code", "the run went on after it"),
        (13, "network", "only follows from another failure"),
    ]
    assert document["around"][5] == {"line": 18, "text": "OSError: [Errno 28] No space left on device"}
    text = run("a.log", "--explain")[1]
    assert "not          a.log:5: user_code (py-key): the run went on after it" in text
    assert ">         18 OSError: [Errno 28]" in text


def test_why_is_asked_of_what_cannot_be_read_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write("a.log", RESET + FULL)
    with (tmp_path / "a.log").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        document = json.loads(run("-", "--explain", "--json")[1])
    assert [each["line"] for each in document["candidates"]] == [5]
    assert document["around"] == []


# -- against labels ------------------------------------------------------------------------------------


LABELS = [
    {"file": "full.log", "exit_code": 1, "class": "storage", "root_line": "Errno 28", "recoverable": True},
    {"id": "well", "class": "none", "root_line": ""},
    {"file": "mistake.log", "class": "data", "also": ["user_code"], "root_line": "no such line"},
    {"file": ["reset.log", "full.log"], "class": "network"},
]


@pytest.fixture
def labelled(run: Run) -> None:
    for name, text in (("full", FULL), ("well", WELL), ("mistake", MISTAKE), ("reset", RESET)):
        write(f"logs/{name}.log", text)
    write("logs/cases.jsonl", "".join(json.dumps(label) + "\n" for label in LABELS))


@pytest.mark.usefixtures("labelled")
def test_verdicts_are_held_against_labels(run: Run) -> None:
    code, out, err = run("--check", "logs/cases.jsonl", "--json")
    told = json.loads(out)
    assert (code, err, told["logs"]) == (0, "", 4)
    assert (told["class_right"]["count"], told["root_right"]["count"]) == (3, 2)
    assert (told["false_alarms"]["count"], told["false_alarms"]["of"]) == (0, 1)
    assert told["classes"]["network"] == {
        "logs": 1, "class_right": 0, "root_right": 0, "named": 0, "named_wrongly": 0,
    }  # fmt: skip
    assert told["classes"]["storage"]["named_wrongly"] == 1


@pytest.mark.usefixtures("labelled")
def test_what_stops_a_run_that_could_go_on_is_a_false_stop(run: Run) -> None:
    write(
        "logs/stop.log", FULL.replace("OSError: [Errno 28] No space left on device", "ModuleNotFoundError: x")
    )
    write("logs/alarm.log", MISTAKE)
    more = [
        {"file": "stop.log", "exit_code": 1, "class": "network", "recoverable": True},
        {"file": "alarm.log", "class": "none"},
    ]
    write("logs/two.jsonl", "\n".join(map(json.dumps, more)))
    told = json.loads(run("--check", "logs/two.jsonl", "--json")[1])
    assert (told["false_stops"]["count"], told["false_alarms"]["count"]) == (1, 1)


@pytest.mark.usefixtures("labelled")
def test_figures_are_a_table_and_what_is_wrong_can_be_shown(run: Run) -> None:
    assert "class right                               3 of 4      75.0 %  (95 %: 30.1 to 95.4)" in run(
        "--check", "logs/cases.jsonl"
    )[1].split("\n")
    shown = run("--check", "logs/cases.jsonl", "--explain")[1]
    assert "reset.log, full.log\n  expected network\n  got      storage" in shown


@pytest.mark.parametrize(
    ("label", "error"),
    [
        pytest.param("{", "is not a label: Expecting property name", id="no-json"),
        pytest.param(
            '{"file": "a.log", "class": "sorrow"}',
            "is not a label: class: got 'sorrow', expected",
            id="no-class",
        ),
        pytest.param('{"file": "a.log"}', "is not a label: 'class'", id="without-class"),
        pytest.param("[]", "is not a label: ", id="no-object"),
    ],
)
def test_a_label_that_is_wrong_is_an_error(run: Run, label: str, error: str) -> None:
    write("cases.jsonl", f"\n{label}\n")
    code, out, err = run("--check", "cases.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cases.jsonl:2: {error}")


def test_labels_without_a_log(run: Run) -> None:
    write("cases.jsonl", '{"file": "gone.log", "class": "data"}')
    assert run("--check", "cases.jsonl") == (
        2,
        "",
        "error: gone.log: cannot be read: No such file or directory\n",
    )
    write("cases.jsonl", "")
    assert run("--check", "cases.jsonl") == (2, "", "error: cases.jsonl: holds no label\n")
    assert run("--check", "gone.jsonl")[0] == 2
    assert run("--check", "cases.jsonl", "a.log")[0] == 2


def test_the_interval_is_wilsons() -> None:
    low, high = wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)
    assert wilson(0, 0) == (0.0, 1.0)

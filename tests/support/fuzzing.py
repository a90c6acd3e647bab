"""What is read of what others have written: for each kind the reader, what it may raise, and real examples.

`python tests/support/fuzzing.py TARGET [libFuzzer options]` runs one of them under atheris, which is guided by the code
that an input reaches and ends with the input that crashed, hung or used too much memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
RECORDED = TESTS / "releases" / "921e233"
MOST_LINES = 4000
"""Of an example: longer ones tell a fuzzer nothing more."""

Bytes = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """`read` takes any bytes and returns; what it raises is a fault. `examples` are bytes as they really are."""

    read: Bytes
    examples: Callable[[], list[bytes]]


@cache
def _scratch() -> Path:
    """A directory in memory, for readers of files."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="pft-fuzz-", dir=base))


def _file(name: str, data: bytes) -> Path:
    path = _scratch() / name
    path.write_bytes(data)
    return path


def _found(pattern: str, root: Path = RECORDED) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.rglob(pattern)) if path.is_file()]


# -- frames and heartbeats, as agents and orchestrators read them -------------------------------------


def read_frames(data: bytes) -> None:
    from prefect_ft.worker import frames, protocol

    reader = frames.FrameReader(1 << 20)
    with contextlib.suppress(frames.FrameError):
        for at in range(0, len(data), 997):
            for message in reader.feed(data[at : at + 997]):
                with contextlib.suppress(protocol.RefusedError):
                    protocol.checked(message)


def read_beat(data: bytes) -> None:
    from prefect_ft import heartbeat

    heartbeat.read(_file("beat", data))


def beats() -> list[bytes]:
    from prefect_ft import heartbeat

    path = _scratch() / "written"
    writer = heartbeat._Writer(str(path))
    writer.record(7, "train", None, None, None)
    return [path.read_bytes(), *_found("*.beat")]


# -- what a run leaves --------------------------------------------------------------------------------


def read_journal(data: bytes) -> None:
    from prefect_ft.errors import PrefectFTError
    from prefect_ft.journal.lines import Journal
    from prefect_ft.journal.replay import read_recording
    from prefect_ft.journal.summary import summarise
    from prefect_ft.report.html import page
    from prefect_ft.report.read import read_phase
    from prefect_ft.report.story import story_of

    path = _file("journal.jsonl", data)
    with contextlib.suppress(PrefectFTError):
        phase = read_phase(path.parent)
        summarise(phase.lines, now_t=phase.now_t).to_json()
        page(story_of([phase]))
    with contextlib.suppress(PrefectFTError):
        read_recording(path)
    with contextlib.suppress(PrefectFTError):
        Journal(path).close()


def read_run(data: bytes) -> None:
    """Read run.json, the lease and the wishes of a run, all with the same content."""
    from prefect_ft.errors import PrefectFTError
    from prefect_ft.run import find_run, holder_of, read_run, vacancy

    model = _scratch() / "model"
    root = model / ".prefect-ft" / "20261123-000000-abcdef"
    (model / ".prefect-ft" / "epochs").mkdir(parents=True, exist_ok=True)
    root.mkdir(exist_ok=True)
    (root / "key").write_text("ab" * 16)
    for path in ("run.json", "lease.json", "cancel.json", "answer.json", "job.json", "../epochs/1"):
        (root / path).write_bytes(data)
    with contextlib.suppress(PrefectFTError):
        run = read_run(root)
        assert run is not None
        run.record(), run.status, run.job(), run.cancel_wanted(), run.answer_to("d", 1), run.directory_of(0)
        holder_of(run)
    with contextlib.suppress(PrefectFTError):
        find_run(str(model))
    with contextlib.suppress(PrefectFTError):
        vacancy(model, 0.0)


def read_recorded_job(data: bytes) -> None:
    from prefect_ft.config.recorded import read_recorded
    from prefect_ft.errors import PrefectFTError

    with contextlib.suppress(ValueError, RecursionError):
        told = json.loads(data)
        if isinstance(told, dict):
            for only_to_end in (False, True):
                with contextlib.suppress(PrefectFTError):
                    read_recorded(told, only_to_end=only_to_end)


# -- what people write --------------------------------------------------------------------------------


def read_job_file(data: bytes) -> None:
    from prefect_ft.config import load_job
    from prefect_ft.errors import PrefectFTError

    with contextlib.suppress(PrefectFTError):
        load_job(_file("job.yaml", data))


def job_files() -> list[bytes]:
    return [*_found("*.yaml", TESTS.parent / "flows"), *_found("job.yaml")]


# -- what ranks print ---------------------------------------------------------------------------------


def read_log(data: bytes) -> None:
    from prefect_ft.decide.classify import classify
    from prefect_ft.worker.sieve import Sieve

    sieve = Sieve(("out of memory", "error"))
    for at in range(0, len(data), 4099):
        sieve.take(at, data[at : at + 4099])
    sieve.parts()
    classify({"rank-0": data.decode("utf-8", "surrogateescape").split("\n")}, exit_code=1)


def logs() -> list[bytes]:
    real = _found("*.log", TESTS / "decide" / "logs")
    return [b"\n".join(each.split(b"\n")[:MOST_LINES]) for each in real]


def show_text(data: bytes) -> None:
    """Show a text on a terminal, on a page and in a cell of a ledger, and look whether it is still text alone."""
    from markdown_it import MarkdownIt

    from prefect_ft import plaintext
    from prefect_ft.prefect_edge.reporting import markdown
    from prefect_ft.report.paint import printable

    text = data.decode("utf-8", "surrogateescape")
    line = plaintext.as_line(text)
    assert line.isprintable(), line
    assert plaintext.as_line(line) == line
    assert all(char.isprintable() or char in "\n\t" for char in plaintext.as_lines(text))
    printable(text)
    parser = MarkdownIt().enable("table")
    cell = markdown.as_text(text)
    in_table = parser.parse(f"| a | b |\n|---|---|\n| {cell} | end |\n")
    assert [each.type for each in in_table].count("td_open") == 2, cell
    for tokens in (in_table, parser.parse(f"Said: {markdown.as_code(text)}.")):
        inner = [part for each in tokens for part in each.children or ()]
        assert not {part.type for part in inner} & {"link_open", "image", "html_inline"}, text


# -- what a cluster answers ---------------------------------------------------------------------------


def read_answer(data: bytes) -> None:
    from prefect_ft.backends.kubernetes import answers as cluster_answers
    from prefect_ft.backends.kubernetes.nodes import _are_closed, _is_ready
    from prefect_ft.backends.kubernetes.pod_ends import end_of
    from prefect_ft.backends.kubernetes.pod_state import has_ended, is_leaving, is_running, stuck, waits_for
    from prefect_ft.backends.kubernetes.request import LABELS
    from prefect_ft.errors import BackendError

    told: list[dict[str, Any]] = []
    with contextlib.suppress(BackendError):
        told.append(cluster_answers.object_in(data))
    with contextlib.suppress(BackendError):
        told += cluster_answers.list_in(data)[0]
    with contextlib.suppress(BackendError):
        change = cluster_answers.change_in(data)
        told += [change["object"]] if change["type"] in ("ADDED", "MODIFIED", "DELETED") else []
    for each in told:
        for is_closed in (False, True):
            stuck(each, is_node_closed=is_closed)
            end_of(each, is_there=not is_closed, is_node_closed=is_closed, events=told)
        waits_for(each, told)
        is_running(each), has_ended(each), is_leaving(each), _is_ready(each), _are_closed([each])
        LABELS.worker(each["metadata"]["labels"])


POD = {
    "kind": "Pod",
    "metadata": {
        "name": "p", "uid": "u", "resourceVersion": "7",
        "labels": {"prefect-ft/token": "1.0", "prefect-ft/worker": "0"},
    },
    "spec": {"unschedulable": True},
    "status": {
        "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory", "podIP": "10.0.0.1",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"},
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"},
            {"type": "Ready", "status": "True"},
        ],
        "containerStatuses": [
            {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "x"}}},
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no"}}},
            {"state": {"running": {"startedAt": "t"}}},
        ],
    },
}  # fmt: skip


def answers() -> list[bytes]:
    kinds = (
        POD,
        {"metadata": {"resourceVersion": "9"}, "items": [POD]},
        {"type": "MODIFIED", "object": POD},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}},
    )
    return [json.dumps(each).encode() for each in kinds]


TARGETS = {
    "frames": Target(read_frames, lambda: _found("*.orders") + _found("*.events")),
    "heartbeats": Target(read_beat, beats),
    "journal": Target(read_journal, lambda: _found("journal.jsonl")),
    "runs": Target(read_run, lambda: _found("run.json") + _found("lease.json")),
    "recorded-jobs": Target(read_recorded_job, lambda: _found("job.json")),
    "job-files": Target(read_job_file, job_files),
    "logs": Target(read_log, logs),
    "texts": Target(show_text, lambda: [b"\x1b]0;t\x07[a](http://b)", b"![x](y)|<b>", *logs()[:5]]),
    "cluster-answers": Target(read_answer, answers),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def main(name: str, options: list[str]) -> None:
    """Fuzz one target until libFuzzer's options end it; the corpus begins with its examples."""
    import atheris  # only here: a compiler's runtime that tests do without

    with atheris.instrument_imports(include=["prefect_ft"]):
        import prefect_ft.backends.kubernetes.answers
        import prefect_ft.config
        import prefect_ft.config.recorded
        import prefect_ft.decide.classify
        import prefect_ft.heartbeat
        import prefect_ft.journal.lines
        import prefect_ft.journal.replay
        import prefect_ft.journal.summary
        import prefect_ft.prefect_edge.reporting.markdown
        import prefect_ft.report.html
        import prefect_ft.report.read
        import prefect_ft.worker.frames
        import prefect_ft.worker.protocol
        import prefect_ft.worker.sieve  # noqa: F401

    target = TARGETS[name]
    corpus = _scratch() / "corpus"
    corpus.mkdir()
    for number, example in enumerate(target.examples()):
        (corpus / f"example-{number}").write_bytes(example)

    def once(data: bytes) -> None:
        with _quiet():
            target.read(data)

    atheris.Setup([sys.argv[0], *options, str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""Every word of what the whole logs come to, with the end that they had and with none known.

`verdicts.jsonl` holds one line for each. After a change that is meant to change them,
`python tests/decide/test_classify_verdicts.py` writes it anew; what has changed is then read, line by line.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.decide.classify import LogScanner, classify, judge

HERE = Path(__file__).parent
VERDICTS = HERE / "verdicts.jsonl"


def told() -> Iterator[dict[str, Any]]:
    """Read each log as it ended, and as if its end were unknown."""
    spec = importlib.util.spec_from_file_location("whole_logs", HERE / "test_classify_logs.py")
    assert spec is not None
    assert spec.loader is not None
    whole_logs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(whole_logs)
    for case in whole_logs.CASES:
        for exit_code in dict.fromkeys((case.exit_code, None)):
            yield {"log": case.log, "exit_code": exit_code, **verdict(case.log, exit_code)}


def verdict(log: str, exit_code: int | None) -> dict[str, Any]:
    scanner = LogScanner("job.log")
    scanner.feed((HERE / "logs" / f"{log}.log").read_bytes())
    return json.loads(json.dumps(asdict(judge([scanner.findings()], exit_code=exit_code))))


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in VERDICTS.read_text().splitlines()]


@pytest.mark.parametrize("line", recorded(), ids=lambda line: f"{line['log']}-{line['exit_code']}")
def test_a_log_comes_to_the_verdict_that_is_recorded(line: dict[str, Any]) -> None:
    assert {"log": line["log"], "exit_code": line["exit_code"]} | verdict(
        line["log"], line["exit_code"]
    ) == line


def test_the_verdict_about_every_log_is_recorded() -> None:
    assert sorted({line["log"] for line in recorded()}) == sorted(
        path.stem for path in (HERE / "logs").glob("*.log")
    )


if __name__ == "__main__":
    VERDICTS.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in told()))


def test_a_wrong_set_up_beside_workers_that_were_killed_for_memory_is_doubted():
    missing = "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."
    raylet = "(raylet) node_manager.cc:3069: 50 Workers (tasks / actors) killed due to memory pressure (OOM)"
    trace = [
        f"(loop pid=5) {line}"
        for line in ("Traceback (most recent call last):", '  File "a.py", line 1, in f', missing)
    ]
    assert classify({"log": trace}).confidence == "high"
    assert classify({"log": [*trace, raylet]}).confidence == "low"
    assert classify({"log": [raylet]}).failure_class == "oom_host"
    assert classify({"log": [raylet.replace("50", "0")]}).failure_class == "none"

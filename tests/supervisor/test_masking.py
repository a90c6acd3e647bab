"""What ranks print is told without the secrets that they were given, and is as long as it was."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.supervisor.masking import masking

SECRETS = ["hf_abc", "hf_abcdef", "ab", "zwölf", "first line\nsecond line"]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(
            {"ev": "output", "text": "token hf_abcdef, ab\n", "offset": 3},
            {"ev": "output", "text": "token *********, ab\n", "offset": 3},
            id="the-longer-one-first-and-nothing-short",
        ),
        pytest.param(
            {"ev": "output", "text": "zwölf\udcff"},
            {"ev": "output", "text": "******\udcff"},
            id="as-many-bytes",
        ),
        pytest.param(
            {"ev": "output", "text": "second line first line"},
            {"ev": "output", "text": "*********** **********"},
            id="line-by-line",
        ),
        pytest.param(
            {"ev": "excerpt", "parts": [{"offset": 1, "line": 2, "text": "hf_abc"}]},
            {"ev": "excerpt", "parts": [{"offset": 1, "line": 2, "text": "******"}]},
            id="excerpt",
        ),
        pytest.param(
            {"ev": "in_process", "report": {"exception": "bad hf_abc", "rank": 1}},
            {"ev": "in_process", "report": {"exception": "bad ******", "rank": 1}},
            id="report",
        ),
        pytest.param(
            {"ev": "start_failed", "what": "/hf_abc", "error": "no hf_abc"},
            {"ev": "start_failed", "what": "/******", "error": "no ******"},
            id="start-failed",
        ),
        pytest.param(
            {"ev": "diagnosis", "ranks": {"0": {"processes": [{"stack": "File hf_abc.py"}]}}},
            {"ev": "diagnosis", "ranks": {"0": {"processes": [{"stack": "File ******.py"}]}}},
            id="stacks",
        ),
        pytest.param({"ev": "leaving", "within_s": 1}, {"ev": "leaving", "within_s": 1}, id="anything-else"),
    ],
)
def test_values_are_masked(event: dict[str, Any], expected: dict[str, Any]) -> None:
    assert masking(SECRETS)(event) == expected


def test_without_secrets_nothing_is_copied() -> None:
    event = {"ev": "output", "text": "x"}
    assert masking([])(event) is event

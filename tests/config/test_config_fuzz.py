"""Whatever users write, they get a job or one line of text."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_ft.config import (
    Document,
    JobConfig,
    apply_overrides,
    check_places,
    job_document,
    job_in,
    load_job,
    resolved,
    validate,
)
from prefect_ft.config.yaml_text import Place, parse
from prefect_ft.errors import ConfigError
from prefect_ft.orchestrate.preflight import check, quarantined

FUZZ = settings(max_examples=150, deadline=None, database=None)
GOOD: dict[str, Any] = {
    "name": "j",
    "model_dir": "m",
    "infrastructure": {"type": "process", "systems": ["a", {"name": "b", "env": {"X": "y"}}], "workers": 2},
    "autorestart": {
        "max_num_restarts": 3,
        "min_num_systems": 1,
        "restart_on": ["crash"],
        "isolation_ttl_s": 5,
    },
    "suspension": {"restart": True, "hang_detect_time_s": 60, "stages": {"load": 9}, "floor_s": 5},
    "journal_dir": "jo",
    "quarantine": "q.jsonl",
    "signatures": ["s.yaml"],
    "faults": {"file": "f", "every_s": 3},
    "cwd": ".",
    "stop_grace_s": 1,
    "lease_s": 2,
    "spool_mb": 3,
    "env": {"A": "b"},
    "phases": [
        {"name": "p", "mode": "train", "command": ["c", "d"], "checkpoints": {"path": "x"}, "target_step": 3},
        {"name": "q", "mode": "eval", "command": ["c"], "nproc_per_worker": "auto", "elastic": False},
    ],
}
PATHS = [
    "~nosuchuser/x",
    "a" * 300,
    "/".join(["a" * 200] * 30),
    "/".join(["b" * 250] * 16),
    "../m",
    "m/../m",
    "f/",
]
"""Paths that are none, or lead where something else is."""

YAML_LIKE = st.text(alphabet="ab1-:,.[]{}#&*!|>'\"%@`?~<= \n\t\\\u00e9\u2028\ufeff\x85", max_size=60)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["auto", "a", "b", "process", "train", "{step}", "~", "s3://x", "\0", "\ud800", "3", "1e9"]
    )
    | st.sampled_from([1e20, 10**8, 20_000, float("inf"), float("nan"), " ", "m", "m/.prefect-ft", *PATHS])
)
KEYS = st.text(max_size=5) | st.sampled_from(
    [*GOOD, *GOOD["phases"][0], *GOOD["autorestart"], "\ud800", "min_num_csx"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def ways(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all parts of a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [way for key, part in parts for way in ways(part, (*path, key))]


def assert_one_line(error: ConfigError) -> None:
    assert len(str(error).splitlines()) == 1


def assert_placed(error: ConfigError) -> None:
    assert_one_line(error)
    assert error.file is not None


def judged(document: Document) -> JobConfig | None:
    """The job, if the document makes one; then it must also survive the way through its resolved form."""
    try:
        job = validate(document)
    except ConfigError as error:
        assert_one_line(error)
        return None
    assert JobConfig.model_validate(resolved(job)) == job
    here = job.at("/nowhere")
    assert JobConfig.model_validate(resolved(here)) == here
    try:
        check_places(here)
    except ConfigError as error:
        assert_one_line(error)
    return job


@FUZZ
@given(
    st.binary(max_size=40) | YAML_LIKE.map(str.encode) | st.text(max_size=40).map(lambda text: text.encode())
)
@example(b"a: &a [*a]")
@example(b"\xff\xfe")
@example(b'"\\U00110000": 1')
def test_any_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_bytes(content)
        try:
            load_job(file)
        except ConfigError as error:
            assert_one_line(error)


@FUZZ
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_plain_values(value: dict[str, Any]) -> None:
    judged(Document(value, {(): Place(None)}))


@FUZZ
@given(st.sampled_from(ways(GOOD)), VALUES)
@example(("infrastructure", "type"), ["process"])
@example(("phases", 0, "command"), ["a", "\ud800"])
@example(("phases", 0, "command", 0), "")
@example(("autorestart", "isolation_ttl_s"), 10**400)
@example(("autorestart", "restart_delay_s"), 1e20)
@example(("phases", 0, "nproc_per_worker"), 10**8)
def test_a_good_job_with_anything_in_one_place(path: tuple[str | int, ...], value: Any) -> None:
    judged(Document(GOOD, {(): Place("job.yaml", 1)}).put(path, value, Place("--set")))


EVIL = st.sampled_from(
    [*PATHS, "~", "m", "q.jsonl", "d", " ", "x y", "python", "./f", "./d", "d/f", "s.yaml"]
)
RUNS = {**GOOD, "phases": [{**GOOD["phases"][0], "command": ["true", "d"], "cwd": "d"}, GOOD["phases"][1]]}
TEXTS = [
    way for way in ways(RUNS) if way[-1] not in {"name", "type", "mode", "restart_on"} and "env" not in way
]


@settings(FUZZ, max_examples=300)
@given(st.sampled_from(TEXTS), EVIL | st.sampled_from([20_000, 4096, 1e20, True, None]))
@example(("phases", 0, "cwd"), "/".join(["b" * 250] * 16))
@example(("quarantine",), "d")
@example(("phases", 0, "nproc_per_worker"), 4096)
def test_a_job_with_anything_in_one_place_before_it_runs(path: tuple[str | int, ...], value: Any) -> None:
    """All that is looked at on a machine before anything starts says yes, or one line with a field."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("d", "home"):
            (Path(folder) / name).mkdir()
        (Path(folder) / "s.yaml").write_text("[]")
        (Path(folder) / "f").touch(mode=0o644)
        file = Path(folder) / "job.yaml"
        file.write_text(json.dumps(RUNS))
        override = f"{'.'.join(map(str, path))}={json.dumps(value)}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", f"{folder}/home")
            try:
                document = job_document(file, [override])
                job = job_in(document, file)
            except ConfigError as error:
                assert_placed(error)
                return
            try:
                check(job)
                quarantined(job)
            except ConfigError as error:
                assert_placed(document.located(error))


def test_the_job_that_is_spoiled_above_is_good() -> None:
    assert judged(Document(GOOD, {(): Place("job.yaml", 1)})) is not None


@FUZZ
@given(
    st.lists(
        st.text(max_size=12)
        | st.builds(
            "{}={}".format,
            st.sampled_from([".".join(map(str, way)) for way in ways(GOOD)])
            | st.text(alphabet="ab.0[]", max_size=6),
            YAML_LIKE,
        ),
        max_size=3,
    )
)
@example([".".join(["a"] * 5000) + "=1"])
@example(["phases.1.command=1\u20281"])
def test_any_overrides(overrides: list[str]) -> None:
    try:
        changed = apply_overrides(Document(GOOD, {(): Place("job.yaml", 1)}), overrides)
    except ConfigError as error:
        assert_one_line(error)
    else:
        judged(changed)


@FUZZ
@given(YAML_LIKE)
def test_every_place_leads_to_a_part_of_the_value(text: str) -> None:
    try:
        value, places = parse(text, "job.yaml")
    except ConfigError:
        return
    assert set(ways(value)) | {()} == set(places)

"""ModelArts' annotations say restarts in other words: the same policy, and errors about what was written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_ft.config import Document, JobConfig, load_job, resolved, validate
from prefect_ft.config.modelarts import restarts_of_annotations
from prefect_ft.config.yaml_text import Place, parse
from prefect_ft.errors import ConfigError
from prefect_ft.model import Policy

RETRY = "fault-tolerance/job-retry-num"
UNCONDITIONAL = "fault-tolerance/job-unconditional-retry"
HANG = "fault-tolerance/hang-retry"
POD = "fault-tolerance/pod-retry-num"
JOB = """\
name: j
model_dir: m
infrastructure: {systems: [s0, s1], workers: 2}
phases:
  - {name: p, command: [c], checkpoints: {path: k}}
metadata:
  annotations:
"""


def annotated(*lines: str, before: str = JOB) -> str:
    return before + "".join(f"    {line}\n" for line in lines)


def loaded(text: str, folder: Path, *overrides: str) -> JobConfig:
    file = folder / "job.yaml"
    file.write_text(text)
    return load_job(file, overrides)


def error_of(text: str, folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(text, folder, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def policy(**said: Any) -> Policy:
    """What all annotations bring, and what they say."""
    return Policy(systems=("s0", "s1"), workers=2, rebuild_only=True, **said)


ENVIRONMENT = {
    "environment_only": True,
    "restart_on": frozenset(("hardware", "network", "storage", "port_in_use", "collective_timeout")),
}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({RETRY: "8"}, policy(max_num_restarts=8, **ENVIRONMENT), id="environment-faults-alone"),
        pytest.param(
            {RETRY: 1, UNCONDITIONAL: True}, policy(max_num_restarts=1, unconditional=True), id="bare-values"
        ),
        pytest.param(
            {UNCONDITIONAL: "TRUE", RETRY: "128"},
            policy(max_num_restarts=128, unconditional=True),
            id="true-in-any-case-and-order",
        ),
        pytest.param(
            {RETRY: "3", UNCONDITIONAL: "false"},
            policy(max_num_restarts=3, **ENVIRONMENT),
            id="unconditional-denied-is-the-same-as-absent",
        ),
        pytest.param(
            {RETRY: "3", HANG: "True"},
            policy(max_num_restarts=3, suspension_restart=True, **ENVIRONMENT),
            id="hang-retry",
        ),
        pytest.param(
            {RETRY: "3", HANG: "false"}, policy(max_num_restarts=3, **ENVIRONMENT), id="hang-retry-denied"
        ),
        pytest.param(
            {RETRY: "3", POD: "128"},
            policy(max_num_restarts=3, max_worker_replacements=128, **ENVIRONMENT),
            id="pod-retry",
        ),
        pytest.param(
            {RETRY: "8", UNCONDITIONAL: "true", HANG: "true", POD: "3", "tensorboard/enable": "what"},
            policy(
                max_num_restarts=8, unconditional=True, suspension_restart=True, max_worker_replacements=3
            ),
            id="all-and-somebody-else's",
        ),
        pytest.param(
            {"jupyter-lab/enable": "true", "job_template": 3},
            Policy(systems=("s0", "s1"), workers=2, autorestart=False),
            id="only-somebody-else's",
        ),
        pytest.param({}, Policy(systems=("s0", "s1"), workers=2, autorestart=False), id="none"),
    ],
)
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_annotations_say_as_a_policy(
    annotations: dict[str, Any], expected: Policy, form: str, tmp_path: Path
) -> None:
    lines = [f"{name}: {json.dumps(value)}" for name, value in annotations.items()]
    text = f"kind: job\n{annotated(*lines)}" if lines else f"kind: job\n{JOB[:-1]} {{}}\n"
    if form == "json":
        text = json.dumps(parse(text, "")[0], indent=2)
    assert loaded(text, tmp_path).policy(0) == expected


def test_a_job_in_json_is_the_same_job_and_errors_name_its_lines(tmp_path: Path) -> None:
    document = {
        "kind": "job",
        "metadata": {"annotations": {RETRY: "0", UNCONDITIONAL: "true"}},
        "name": "j",
        "model_dir": "m",
        "phases": [{"name": "p", "mode": "eval", "command": ["c"]}],
    }
    expected = f"job.yaml:5: metadata.annotations.{RETRY}: must be a whole number from 1 to 128, got '0'"
    assert error_of(json.dumps(document, indent=2), tmp_path) == expected


def test_the_resolved_job_says_it_in_the_job_s_own_keys(tmp_path: Path) -> None:
    job = loaded(annotated(f"{RETRY}: 3", f"{HANG}: true"), tmp_path)
    plain = resolved(job)
    assert not {"kind", "metadata"} & set(plain)
    assert JobConfig.model_validate(plain) == job


def test_hang_retry_holds_for_phases_with_a_suspension_of_their_own(tmp_path: Path) -> None:
    sections = "suspension: {hang_detect_time_s: 60}\n"
    own = "  - {name: q, mode: eval, command: [c], suspension: {hang_detect_time_s: 90}}\nmetadata:\n"
    text = annotated(f"{RETRY}: 3", f"{HANG}: true", before=sections + JOB.replace("metadata:\n", own))
    job = loaded(text, tmp_path)
    assert [job.policy(index).suspension_restart for index in (0, 1)] == [True, True]
    assert [job.hang_detect_time_s(index) for index in (0, 1)] == [60, 90]


def test_without_hang_retry_the_job_s_own_suspension_holds(tmp_path: Path) -> None:
    text = annotated(f"{RETRY}: 3", before="suspension: {restart: true}\n" + JOB)
    assert loaded(text, tmp_path).policy(0).suspension_restart


def test_the_command_line_reaches_annotations(tmp_path: Path) -> None:
    override = f"metadata.annotations.{RETRY}=5"
    assert loaded(annotated(f"{RETRY}: 3"), tmp_path, override).policy(0).max_num_restarts == 5


COUNT = "must be a whole number from 1 to 128, got"
TRUTH = "must be true or false, got"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([f"{RETRY}: '129'"], f"8: {RETRY}: {COUNT} '129'", id="above"),
        pytest.param([f"{RETRY}: 0"], f"8: {RETRY}: {COUNT} 0", id="below"),
        pytest.param([f"{RETRY}: -1"], f"8: {RETRY}: {COUNT} -1", id="negative"),
        pytest.param([f"{RETRY}: 2.5"], f"8: {RETRY}: {COUNT} 2.5", id="fraction"),
        pytest.param([f"{RETRY}: 08"], f"8: {RETRY}: {COUNT} '08'", id="leading-zero"),
        pytest.param([f"{RETRY}: three"], f"8: {RETRY}: {COUNT} 'three'", id="word"),
        pytest.param([f"{RETRY}: true"], f"8: {RETRY}: {COUNT} true", id="truth-value-for-a-number"),
        pytest.param([f"{RETRY}:"], f"8: {RETRY}: {COUNT} nothing", id="nothing"),
        pytest.param([f"{RETRY}: [3]"], f"8: {RETRY}: {COUNT} a list", id="list"),
        pytest.param([f"{RETRY}: 3", f"{POD}: '0'"], f"9: {POD}: {COUNT} '0'", id="no-pod-retry"),
        pytest.param([f"{RETRY}: 3", f"{POD}: 129"], f"9: {POD}: {COUNT} 129", id="pod-retry-above"),
        pytest.param([f"{RETRY}: 3", f"{HANG}: 'yes'"], f"9: {HANG}: {TRUTH} 'yes'", id="word-for-truth"),
        pytest.param([f"{RETRY}: 3", f"{HANG}: 1"], f"9: {HANG}: {TRUTH} 1", id="number-for-truth"),
        pytest.param(
            [f"{RETRY}: 3", f"{UNCONDITIONAL}:"],
            f"9: {UNCONDITIONAL}: {TRUTH} nothing",
            id="nothing-for-truth",
        ),
        pytest.param(
            [f"{RETRY}: 3", "fault-tolerance/hang-retries: true"],
            "9: fault-tolerance/hang-retries: unknown key; did you mean 'hang-retry'?",
            id="typo",
        ),
        pytest.param(
            ["fault-tolerance/x: 3"],
            "8: fault-tolerance/x: unknown key; known keys: job-retry-num, job-unconditional-retry, hang-retry, "
            "pod-retry-num",
            id="unknown",
        ),
        *(
            pytest.param(
                ["tensorboard/enable: true", f"{name}: {value}"],
                f'9: {name}: needs {RETRY}; write {RETRY}: "3"',
                id=f"{name.partition('/')[2]}-without-the-first",
            )
            for name, value in ((UNCONDITIONAL, "'true'"), (HANG, "false"), (POD, 3))
        ),
    ],
)
def test_annotations_that_cannot_be_used(lines: list[str], expected: str, tmp_path: Path) -> None:
    line, _, message = expected.partition(": ")
    assert error_of(annotated(*lines), tmp_path) == f"job.yaml:{line}: metadata.annotations.{message}"


OTHERS = "edge_job, hetero_job, mrs_job, autosearch_job, diag_job, visualization_job"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"kind: edge_job\n{JOB[:-1]} {{}}\n",
            f"1: kind: must be job, got 'edge_job'; the kinds {OTHERS} are not supported",
            id="other-kind",
        ),
        pytest.param(
            f"{JOB[:-1]} {{}}\nkind:\n",
            f"8: kind: must be job, got nothing; the kinds {OTHERS} are not supported",
            id="no-kind",
        ),
        pytest.param(
            "metadata: 3\n",
            "1: metadata: must be a mapping of keys to values, got 3",
            id="metadata-no-mapping",
        ),
        pytest.param(
            JOB, "7: metadata.annotations: must be a mapping of keys to values, got nothing", id="no-mapping"
        ),
        pytest.param(
            "metadata: {annotation: {}}\n",
            "1: metadata.annotation: unknown key; did you mean 'annotations'?",
            id="other-metadata",
        ),
        pytest.param(
            annotated(f"{RETRY}: 3") + "autorestart: {max_num_restarts: 3}\n",
            f"8: metadata.annotations.{RETRY}: cannot be combined with autorestart; keep one of the two",
            id="restarts-of-the-job",
        ),
        pytest.param(
            annotated(f"{RETRY}: 3").replace("{path: k}", "{path: k}, autorestart: {max_num_restarts: 3}"),
            f"8: metadata.annotations.{RETRY}: cannot be combined with phases[0].autorestart; keep one of the two",
            id="restarts-of-a-phase",
        ),
        pytest.param(
            annotated(f"{RETRY}: 3", f"{HANG}: true") + "suspension: {restart: true}\n",
            f"9: metadata.annotations.{HANG}: cannot be combined with suspension.restart; keep one of the two",
            id="suspension-of-the-job",
        ),
        pytest.param(
            annotated(f"{RETRY}: 3", f"{HANG}: true").replace(
                "{path: k}", "{path: k}, suspension: {restart: no}"
            ),
            f"9: metadata.annotations.{HANG}: cannot be combined with phases[0].suspension.restart; "
            "keep one of the two",
            id="suspension-of-a-phase",
        ),
        pytest.param(
            annotated(f"{RETRY}: 3").replace("checkpoints: {path: k}", ""),
            "5: phases[0].checkpoints: missing; a phase that trains and restarts needs them, "
            "like {path: checkpoints}",
            id="what-annotations-ask-of-phases",
        ),
        pytest.param(
            annotated(f"{RETRY}: 3", f"{HANG}: true") + "suspension: 3\n",
            "10: suspension: must be a mapping of keys to values, got 3",
            id="a-suspension-that-holds-nothing",
        ),
    ],
)
def test_jobs_with_annotations_that_do_not_fit_together(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == f"job.yaml:{expected}"


def test_what_the_annotations_became_leads_back_to_them() -> None:
    text = annotated(f"{RETRY}: 3", f"{HANG}: true", f"{POD}: 2")
    document = restarts_of_annotations(Document(*parse(text, "job.yaml")))
    ways = [
        ("autorestart", "max_num_restarts"),
        ("autorestart", "max_worker_replacements"),
        ("autorestart", "rebuild_only"),
        ("suspension", "restart"),
        ("phases", 0, "name"),
    ]
    assert [document.origin(way) for way in ways] == [
        ("metadata", "annotations", RETRY),
        ("metadata", "annotations", POD),
        ("metadata", "annotations"),
        ("metadata", "annotations", HANG),
        ("phases", 0, "name"),
    ]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["1", "128", "129", "TRUE", "false", "job", "\ud800", "", "٣", "1\n"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([RETRY, UNCONDITIONAL, HANG, POD, "fault-tolerance/", "x"])
JOBS = st.fixed_dictionaries(
    {"name": st.just("j"), "model_dir": st.just("m")},
    optional={
        "kind": st.just("job") | VALUES,
        "metadata": VALUES
        | st.fixed_dictionaries({"annotations": VALUES | st.dictionaries(NAMES, VALUES, max_size=5)}),
        "suspension": st.just({"restart": True}) | VALUES,
        "autorestart": st.just({"max_num_restarts": 1}) | VALUES,
        "phases": VALUES
        | st.lists(
            st.fixed_dictionaries({"name": st.just("p"), "command": st.just(["c"]), "suspension": VALUES})
            | VALUES,
            max_size=2,
        ),
    },
)


def assert_one_line(error: ConfigError) -> None:
    assert len(str(error).splitlines()) == 1


@settings(max_examples=200, deadline=None, database=None)
@given(JOBS)
@example({"metadata": {"annotations": {RETRY: 10**5000}}})
@example({"metadata": {"annotations": {RETRY: "3", "fault-tolerance/\ud800\n": 1}}})
@example({"metadata": {"annotations": {RETRY: "3", HANG: "true"}}, "phases": {"0": {}}, "suspension": None})
def test_whatever_is_written_there_is_a_job_or_one_line(value: dict[str, Any]) -> None:
    try:
        validate(Document(value, {(): Place("job.yaml", 1)}))
    except ConfigError as error:
        assert_one_line(error)

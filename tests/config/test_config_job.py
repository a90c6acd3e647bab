"""What a job means: defaults, bounds, places of files, which section holds for a phase, its policy."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_ft.backends.process.config import ProcessInfrastructure
from prefect_ft.config import JobConfig, System, load_job, resolved, warnings
from prefect_ft.model import Policy


def job(**changes: Any) -> JobConfig:
    """A job with one phase that needs nothing; `None` takes a key away."""
    minimal = {"name": "j", "model_dir": "runs", "phases": [phase()]}
    return JobConfig.model_validate(
        {key: value for key, value in (minimal | changes).items() if value is not None}
    )


def phase(**changes: Any) -> dict[str, Any]:
    return {"name": "p", "command": ["python", "t.py"], **changes}


FULL = {
    "name": "full",
    "model_dir": "/runs",
    "journal_dir": "/journal",
    "quarantine": "/quarantine",
    "infrastructure": {"systems": ["a", {"name": "b", "env": {"S": "b", "W": "system"}}], "workers": 2},
    "autorestart": {
        "max_num_restarts": 4,
        "min_num_csx": 2,
        "unconditional": True,
        "restart_on": ["crash", "data"],
        "rebuild_only": True,
        "restart_delay_s": 1,
        "max_restart_delay_s": 60.5,
        "max_worker_replacements": 2,
        "stop_on_repeat": 0,
        "suspect_limit": 5,
        "user_induced_codes": ["X1"],
        "isolation_ttl_s": 90,
        "max_suspension_restarts": 1,
        "numeric_elsewhere": True,
        "max_preemptions": 7,
        "max_hand_overs": 8,
        "skip_steps": 20,
        "max_skips": 4,
        "max_skips_per_phase": 12,
        "last_system": "keep",
        "ask_before": ["isolate", "fail"],
        "ask_timeout_s": 60,
        "ask_default": "reject",
    },
    "suspension": {"restart": True, "hang_detect_time_s": 60},
    "env": {"J": "job", "W": "job", "N": 1},
    "signatures": ["own.yaml", {"id": "x", "class": "config", "pattern": "no licence"}],
    "cwd": "/work",
    "phases": [
        {
            "name": "one",
            "mode": "train_and_eval",
            "command": ["python", "t.py"],
            "params": {"fit": {"steps": 400, "betas": [0.9, 0.95]}, "name": None},
            "nproc_per_worker": "auto",
            "checkpoints": {"path": "s3://b/c", "pattern": "w_{step}", "settle_s": 0},
            "target_step": 400,
            "elastic": False,
            "env": {"P": "phase", "W": "phase"},
        },
        {"name": "two", "mode": "eval", "command": ["true"]},
    ],
    "stop_grace_s": 0,
    "sample_period_s": 0.5,
    "orphan_timeout_s": 1,
    "max_orchestrator_restarts": 3,
    "lease_s": 2,
    "output": "workers",
    "spool_mb": 1,
}


def test_everything_that_is_not_written_has_its_default() -> None:
    written = job(autorestart={"max_num_restarts": 3}, phases=[phase(checkpoints={"path": "c"})])
    assert resolved(written) == {
        "name": "j",
        "model_dir": "runs",
        "journal_dir": None,
        "infrastructure": {
            "type": "process",
            "systems": [{"name": "localhost", "env": {}, "heal": None, "check": None}],
            "workers": 1,
            "secret_env": {},
            "heal": None,
            "heal_timeout_s": 600.0,
            "check": None,
            "check_timeout_s": 120.0,
        },
        "faults": {
            "detect": None,
            "file": None,
            "command": None,
            "every_s": 30.0,
            "logs": False,
            "preset": None,
            "severities": {},
            "same_s": 60.0,
        },
        "quarantine": None,
        "autorestart": {
            "max_num_restarts": 3,
            "min_num_systems": 1,
            "unconditional": False,
            "restart_on": [
                "hardware",
                "network",
                "oom_host",
                "storage",
                "data",
                "collective_timeout",
                "port_in_use",
                "crash",
                "unknown",
            ],
            "environment_only": False,
            "rebuild_only": False,
            "restart_delay_s": 0.0,
            "max_restart_delay_s": 3600.0,
            "max_worker_replacements": 0,
            "stop_on_repeat": 2,
            "suspect_limit": 3,
            "user_induced_codes": ["80C98002", "80CB8002"],
            "isolation_ttl_s": None,
            "max_suspension_restarts": 3,
            "max_preemptions": None,
            "max_hand_overs": 5,
            "skip_steps": 0,
            "max_skips": 3,
            "max_skips_per_phase": 10,
            "numeric_elsewhere": False,
            "last_system": "fail",
            "ask_before": [],
            "ask_timeout_s": 3600.0,
            "ask_default": "approve",
        },
        "suspension": {
            "restart": False,
            "hang_detect_time_s": 1800.0,
            "mode": "act",
            "evidence": 2,
            "first_step_s": None,
            "stages": {},
            "floor_s": None,
            "logs": [],
            "device_command": None,
            "grace_s": 5.0,
        },
        "numeric": {"watch": "off", "window": 128, "min_values": 32, "deviations": 12.0, "max_acts": 3},
        "env": {},
        "signatures": [],
        "classify": None,
        "cwd": None,
        "resume": "auto",
        "phases": [
            {
                "name": "p",
                "mode": "train",
                "command": ["python", "t.py"],
                "resume_args": [],
                "skip_args": [],
                "progress_pattern": None,
                "rewrite_launcher": False,
                "params": None,
                "nproc_per_worker": 1,
                "checkpoints": {
                    "path": "c",
                    "layout": "auto",
                    "pattern": None,
                    "settle_s": 2.0,
                    "keep_copies": False,
                    "local": False,
                    "warn_after_s": 600.0,
                    "on_demand": None,
                },
                "resume": None,
                "target_step": None,
                "rendezvous": "auto",
                "warm": "off",
                "warm_memory_mb": 4096,
                "elastic": True,
                "env": {},
                "cwd": None,
                "autorestart": None,
                "suspension": None,
                "numeric": None,
                "infrastructure": None,
            }
        ],
        "metrics": None,
        "stop_grace_s": 10.0,
        "sample_period_s": 10.0,
        "orphan_timeout_s": 3600.0,
        "max_orchestrator_restarts": 20,
        "lease_s": 30.0,
        "output": "forward",
        "spool_mb": 64,
        "run_log_mb": 1024,
    }


def test_the_resolved_job_is_the_same_job() -> None:
    for original in (job(), JobConfig.model_validate(FULL), JobConfig.model_validate(FULL).at("/base")):
        again = JobConfig.model_validate(resolved(original))
        assert (again, list(resolved(again))) == (original, list(resolved(original)))


@pytest.mark.parametrize(
    ("field", "lowest", "too_low", "highest", "too_high"),
    [
        ("max_num_restarts", 1, 0, 128, 129),
        ("min_num_systems", 1, 0, 2, 3),
        ("min_num_csx", 1, 0, 2, 3),
        ("restart_delay_s", 0, -0.1, 86_400, 86_400.1),
        ("max_restart_delay_s", 0, -0.1, 86_400, 1e20),
        ("max_worker_replacements", 0, -1, 128, 129),
        ("stop_on_repeat", 0, -1, 10**9, 10**9 + 1),
        ("suspect_limit", 1, 0, 10**9, 10**9 + 1),
        ("isolation_ttl_s", 0.001, 0, 31_536_000, 31_536_001),
        ("max_suspension_restarts", 0, -1, 10**9, 10**9 + 1),
        ("max_preemptions", 0, -1, 10**9, 10**9 + 1),
        ("max_hand_overs", 0, -1, 10**9, 10**9 + 1),
        ("skip_steps", 0, -1, 100000, 100001),
        ("max_skips", 1, 0, 10, 11),
        ("max_skips_per_phase", 1, 0, 10**9, 10**9 + 1),
        ("ask_timeout_s", 0.001, 0, 2_592_000, 2_592_001),
    ],
)
def test_bounds_of_autorestart(field: str, lowest: Any, too_low: Any, highest: Any, too_high: Any) -> None:
    def allowed(value: Any) -> bool:
        section = {"max_num_restarts": 3} | {field: value}
        try:
            job(
                infrastructure={"systems": ["a", "b", "c"], "workers": 2},
                autorestart=section,
                phases=[phase(mode="eval")],
            )
        except ValidationError:
            return False
        return True

    values = (lowest, too_low, highest, too_high, True, "inf", "nan", None)
    optional = field in {"isolation_ttl_s", "max_preemptions"}
    assert [allowed(value) for value in values] == [True, False, True, False, False, False, False, optional]


@pytest.mark.parametrize(
    ("field", "lowest", "too_low", "highest", "too_high"),
    [
        ("window", 32, 31, 10_000, 10_001),
        ("min_values", 2, 1, 128, 129),
        ("deviations", 1.001, 1, 1e6, 1e6 + 1),
        ("max_acts", 1, 0, 128, 129),
    ],
)
def test_bounds_of_numeric(field: str, lowest: Any, too_low: Any, highest: Any, too_high: Any) -> None:
    for value in (lowest, highest):
        assert getattr(job(numeric={field: value}).numeric, field) == value
    for value in (too_low, too_high, True, "inf", None):
        with pytest.raises(ValidationError):
            job(numeric={field: value})


def test_the_watch_of_a_phase_replaces_that_of_the_job() -> None:
    both = job(numeric={"watch": "report"}, phases=[phase(), phase(name="q", numeric={"max_acts": 1})])
    assert [both.numeric_of(index).watch for index in (0, 1)] == ["report", "off"]


def test_words_for_skipped_steps_have_no_effect_where_none_are_skipped() -> None:
    words = {"skip_args": ["--skip", "{steps}"], "checkpoints": {"path": "c"}}
    told = "phases[0].skip_args: has no effect without autorestart.skip_steps; leave it out"
    for section, expected in (({}, True), ({"skip_steps": 5}, False)):
        autorestart = {"max_num_restarts": 1, "last_system": "keep", **section}
        found = warnings(job(autorestart=autorestart, phases=[phase(**words)]))
        assert (told in found) is expected


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        pytest.param("*/last.pt", "only files directly in path are copied", id="below-a-directory"),
        pytest.param("weights_{step}.bin", "no file is overwritten whose name has {step}", id="with-a-step"),
        pytest.param("best.pt", None, id="a-file"),
        pytest.param(None, None, id="usual-names"),
    ],
)
def test_copies_that_are_never_made_are_warned_of(pattern: str | None, why: str | None) -> None:
    checkpoints = {"path": "c", "pattern": pattern}
    none, wanted = (phase(checkpoints={**checkpoints, "keep_copies": keeps}) for keeps in (False, True))
    said = f"phases[0].checkpoints.keep_copies: has no effect with the pattern {pattern!r}: {why}"
    assert warnings(job(phases=[none])) == []
    assert warnings(job(phases=[wanted])) == ([said] if why is not None else [])


@pytest.mark.parametrize(
    ("field", "lowest", "too_low"),
    [
        ("stop_grace_s", 0, -1),
        ("sample_period_s", 0.001, 0),
        ("orphan_timeout_s", 0.001, 0),
        ("spool_mb", 1, 0),
    ],
)
def test_bounds_of_a_job(field: str, lowest: float, too_low: float) -> None:
    assert getattr(job(**{field: lowest}), field) == lowest
    with pytest.raises(ValidationError):
        job(**{field: too_low})


def test_numbers_in_quotes_are_numbers() -> None:
    section = job(
        autorestart={"max_num_restarts": "3", "restart_delay_s": "1.5"}, phases=[phase(mode="eval")]
    )
    assert section.autorestart is not None
    assert (section.autorestart.max_num_restarts, section.autorestart.restart_delay_s) == (3, 1.5)
    assert job(phases=[phase(nproc_per_worker="2")]).phases[0].nproc_per_worker == 2


def test_a_policy_says_all_that_was_written() -> None:
    assert JobConfig.model_validate(FULL).policy(0, isolated=["b"]) == Policy(
        systems=("a", "b"),
        workers=2,
        mode="train_and_eval",
        isolated=("b",),
        autorestart=True,
        max_num_restarts=4,
        min_num_systems=2,
        unconditional=True,
        restart_on=frozenset(("crash", "data")),
        rebuild_only=True,
        restart_delay_s=1.0,
        max_restart_delay_s=60.5,
        max_worker_replacements=2,
        stop_on_repeat=0,
        suspect_limit=5,
        user_induced_codes=frozenset(("X1",)),
        isolation_ttl_s=90.0,
        max_suspension_restarts=1,
        max_preemptions=7,
        max_hand_overs=8,
        skip_steps=20,
        max_skips=4,
        max_skips_per_phase=12,
        numeric_elsewhere=True,
        suspension_restart=True,
        elastic=False,
        target_step=400,
        last_system="keep",
    )


def test_without_autorestart_a_policy_restarts_nothing() -> None:
    assert job().policy(0) == Policy(systems=("localhost",), workers=1, autorestart=False)


def test_the_defaults_of_a_policy_are_those_of_the_core() -> None:
    written = job(autorestart={"max_num_restarts": 1}, phases=[phase(checkpoints={"path": "c"})])
    assert written.policy(0) == Policy(systems=("localhost",), workers=1)


def test_a_section_of_a_phase_replaces_the_job_s_as_a_whole() -> None:
    written = JobConfig.model_validate(
        FULL
        | {
            "phases": [
                FULL["phases"][1],
                FULL["phases"][1]
                | {
                    "name": "own",
                    "autorestart": {"max_num_restarts": 1},
                    "suspension": {"hang_detect_time_s": 5},
                    "infrastructure": {"systems": ["x"]},
                },
            ]
        }
    )
    job_s, own = written.policy(0), written.policy(1)
    assert (job_s.max_num_restarts, job_s.unconditional, job_s.suspension_restart) == (4, True, True)
    assert own == Policy(systems=("x",), workers=1, mode="eval", max_num_restarts=1)
    assert [written.hang_detect_time_s(index) for index in (0, 1)] == [60.0, 5.0]


def test_environments_are_merged_and_the_narrower_wins() -> None:
    full = JobConfig.model_validate(FULL)
    phase_s = {"J": "job", "W": "phase", "N": "1", "P": "phase"}
    assert [full.env_of(0), full.env_of(0, "a"), full.env_of(0, "b")] == [
        phase_s,
        phase_s,
        phase_s | {"W": "system", "S": "b"},
    ]
    assert full.env_of(1) == {"J": "job", "W": "job", "N": "1"}


def test_null_unsets_a_variable_and_the_narrower_wins() -> None:
    own = {"systems": ["a", {"name": "b", "env": {"J": None, "P": "system"}}], "workers": 2}
    first = phase(env={"P": None, "RANK": None})
    written = job(env={"J": "job", "P": "job"}, infrastructure=own, phases=[first])
    assert [written.env_of(0), written.env_of(0, "b")] == [
        {"J": "job", "P": None, "RANK": None},
        {"J": None, "P": "system", "RANK": None},
    ]
    assert JobConfig.model_validate(resolved(written)) == written
    assert resolved(written)["phases"][0]["env"] == {"P": None, "RANK": None}


@pytest.mark.parametrize("where", ["env", "phase"])
def test_a_hang_detect_time_that_is_unset_is_none(where: str) -> None:
    unset = {"MA_HANG_DETECT_TIME": None}
    first = phase(env=unset if where == "phase" else {})
    env = unset if where == "env" else {"MA_HANG_DETECT_TIME": "20"}
    written = job(env=env, phases=[first])
    assert (written.hang_detect_time_s(0), warnings(written)) == (1800.0, [])


@pytest.mark.parametrize(
    ("minutes", "seconds"),
    [
        ("9", 1800.0),
        ("10", 600.0),
        ("30", 1800.0),
        ("720", 43200.0),
        ("721", 1800.0),
        ("10.5", 1800.0),
        ("ten", 1800.0),
        ("", 1800.0),
    ],
)
def test_ma_hang_detect_time_wins_in_its_range_and_warns_outside(minutes: str, seconds: float) -> None:
    written = job(env={"MA_HANG_DETECT_TIME": minutes})
    in_range = minutes in {"10", "30", "720"}
    warned = f"env.MA_HANG_DETECT_TIME: is ignored; must be 10 to 720 minutes, got {minutes!r}"
    assert (written.hang_detect_time_s(0), warnings(written)) == (seconds, [] if in_range else [warned])


def test_warnings_name_what_has_no_effect_once_and_where_it_stands() -> None:
    useless = ["compile", "assertion", "numeric", "checkpoint", "preempted", "cancelled", "none"]
    written = job(
        autorestart={"max_num_restarts": 1, "restart_on": ["crash", *useless]},
        phases=[
            phase(mode="eval"),
            phase(name="q", mode="eval", target_step=3),
            phase(
                name="r",
                mode="eval",
                env={"MA_HANG_DETECT_TIME": "1"},
                autorestart={"max_num_restarts": 1, "unconditional": True, "restart_on": ["compile"]},
            ),
        ],
    )
    where = "autorestart.restart_on"
    first = "decides about it first; leave it out"
    assert warnings(written) == [
        f"{where}: 'compile' has no effect; the rule 'non-recoverable' {first}",
        f"{where}: 'assertion' has no effect; the rule 'non-recoverable' {first}",
        f"{where}: 'numeric' has no effect; the rule 'numeric' {first}",
        f"{where}: 'checkpoint' has no effect; the rule 'checkpoint-unreadable' {first}",
        f"{where}: 'preempted' has no effect; the rule 'preempted' {first}",
        f"{where}: 'cancelled' has no effect; the rule 'cancelled' {first}",
        f"{where}: 'none' has no effect; the rule 'completed' {first}",
        "phases[1].target_step: has no effect in the mode eval; leave it out",
        f"phases[2].autorestart.restart_on: 'compile' has no effect; the rule 'unconditional' {first}",
        "phases[2].env.MA_HANG_DETECT_TIME: is ignored; must be 10 to 720 minutes, got '1'",
        f"infrastructure.systems: {NONE_LEFT}",
    ]


NONE_LEFT = (
    "a hardware fault ends the run: no other system is left; name a spare system, or write last_system: keep in "
    "autorestart"
)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        pytest.param({}, ["infrastructure"], id="one-system"),
        pytest.param({"autorestart": None}, [], id="nothing-is-restarted"),
        pytest.param({"autorestart": {"max_num_restarts": 1, "last_system": "keep"}}, [], id="kept"),
        pytest.param({"infrastructure": {"systems": ["a", "b"]}}, [], id="a-spare"),
        pytest.param({"infrastructure": {"systems": ["a", "b"], "workers": 2}}, [], id="may-shrink"),
        pytest.param(
            {
                "infrastructure": {"systems": ["a", "b"], "workers": 2},
                "autorestart": {"max_num_restarts": 1, "min_num_systems": 2},
            },
            ["infrastructure"],
            id="may-not-shrink-so-far",
        ),
        pytest.param(
            {"phases": [phase(mode="eval", elastic=False, infrastructure={"systems": ["a"]})]},
            ["phases[0].infrastructure"],
            id="a-phases-own",
        ),
        pytest.param(
            {"phases": [phase(mode="eval"), phase(name="q", mode="eval")]}, ["infrastructure"], id="once-for-both"
        ),
    ],
)  # fmt: skip
def test_who_has_no_other_system_is_warned(fields: dict[str, Any], warned: list[str]) -> None:
    written = job(**{"autorestart": {"max_num_restarts": 1}, "phases": [phase(mode="eval")], **fields})
    assert warnings(written) == [f"{where}.systems: {NONE_LEFT}" for where in warned]


def test_a_job_that_says_nothing_useless_has_no_warnings() -> None:
    assert warnings(JobConfig.model_validate(FULL)) == []


@pytest.mark.parametrize(
    ("sections", "fits"),
    [
        pytest.param(
            {"phases": [phase(mode="eval")], "autorestart": {"max_num_restarts": 1}}, True, id="eval"
        ),
        pytest.param({"phases": [phase()]}, True, id="no-restarts-no-checkpoints"),
        pytest.param(
            {
                "suspension": {"restart": True},
                "phases": [phase(mode="eval", autorestart={"max_num_restarts": 1})],
            },
            True,
            id="each-phase-restarts-by-itself",
        ),
        pytest.param(
            {"autorestart": {"max_num_restarts": 1}, "phases": [phase(mode="train_and_eval")]},
            False,
            id="train-and-eval-needs-checkpoints",
        ),
        pytest.param(
            {
                "autorestart": {"max_num_restarts": 1, "min_num_systems": 2},
                "phases": [phase(mode="eval", infrastructure={"systems": ["a", "b"], "workers": 2})],
            },
            True,
            id="a-minimum-is-held-against-the-phase's-own-workers",
        ),
    ],
)
def test_sections_are_held_against_those_that_hold_for_the_phase(
    sections: dict[str, Any], fits: bool
) -> None:
    if fits:
        job(**sections)
    else:
        with pytest.raises(ValidationError):
            job(**sections)


RELATIVE = """\
name: j
model_dir: runs
journal_dir: ~/journal
quarantine: ../quarantine.jsonl
phases:
  - {name: a, command: [python, ./t.py, ~/x], checkpoints: {path: ../c}}
  - {name: b, command: [t], checkpoints: {path: "s3://b/c"}, cwd: sub}
"""


def test_paths_start_at_the_job_file_and_words_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(RELATIVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for path in ("jobs/job.yaml", tmp_path / "jobs" / "job.yaml"):
        loaded = load_job(path)
        assert (loaded.model_dir, loaded.journal_dir) == (f"{tmp_path}/jobs/runs", "/home/me/journal")
        assert loaded.quarantine == f"{tmp_path}/quarantine.jsonl"
        assert [(each.cwd, each.checkpoints and each.checkpoints.path) for each in loaded.phases] == [
            (f"{tmp_path}/jobs", f"{tmp_path}/c"),
            (f"{tmp_path}/jobs/sub", "s3://b/c"),
        ]
        assert loaded.phases[0].command == ("python", "./t.py", "~/x")
        assert loaded.at("/elsewhere") == loaded


def test_a_phase_runs_in_the_job_s_directory_if_it_has_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"cwd: work\n{RELATIVE}")
    assert [each.cwd for each in load_job(tmp_path / "job.yaml").phases] == [
        f"{tmp_path}/work",
        f"{tmp_path}/sub",
    ]


def test_the_command_line_s_model_dir_starts_at_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(RELATIVE.replace("model_dir: runs\n", ""))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert load_job("../job.yaml", model_dir="m").model_dir == f"{tmp_path}/here/m"
    assert load_job("../job.yaml", ["model_dir=n"]).model_dir == f"{tmp_path}/n"
    assert load_job("../job.yaml", ["model_dir=n"], Path("m")).model_dir == f"{tmp_path}/here/m"


def test_a_job_built_in_python_is_put_in_its_place_by_the_same_method() -> None:
    built = job(model_dir=Path("runs"), infrastructure=ProcessInfrastructure(systems=(System(name="s"),)))
    placed = built.at(".")
    assert (placed.model_dir, placed.phases[0].cwd) == (os.path.abspath("runs"), os.getcwd())


def test_a_job_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        job().name = "other"  # type: ignore[misc]


def test_reading_a_job_costs_no_prefect() -> None:
    heavy = "prefect", "rich", "docker", "fastapi", "httpx", "sqlalchemy"
    code = f"import sys, prefect_ft.config; print([name for name in {heavy!r} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
        == "[]\n"
    )


def test_what_a_phase_begins_with() -> None:
    written = job(resume="never", phases=[phase(), phase(name="q", resume="auto")])
    assert [written.resume_of(index) for index in (0, 1)] == ["never", "auto"]
    assert [job(phases=[phase()]).resume_of(0), job(phases=[phase(resume="never")]).resume_of(0)] == [
        "auto",
        "never",
    ]
    assert [written.from_scratch().resume_of(index) for index in (0, 1)] == ["never", "never"]

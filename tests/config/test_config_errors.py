"""What a user sees when a job file cannot be used: one line with file, line, field, and what to write."""

from pathlib import Path

import pytest
import yaml

from prefect_ft.config import load_job
from prefect_ft.config.kinds import names
from prefect_ft.errors import ConfigError

GOOD = """\
name: char-lm
model_dir: runs
infrastructure:
  type: process
  systems: [s0, s1, s2]
  workers: 2
autorestart:
  max_num_restarts: 3
phases:
  - name: pretrain
    command: [python, train.py]
    checkpoints: {path: checkpoints}
"""


def error_of(text: str | bytes, folder: Path, *overrides: str) -> str:
    file = folder / "job.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_job(file, overrides)
    return str(caught.value).replace(f"{folder}/", "")


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def autorestart(line: str) -> str:
    return edited("  max_num_restarts: 3\n", f"  max_num_restarts: 3\n  {line}\n")


def phase(line: str) -> str:
    return f"{GOOD}    {line}\n"


RESTARTS = "max_num_restarts: 3"
COMMAND = "[python, train.py]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            edited(RESTARTS, "max_num_restarts: 129"),
            "job.yaml:8: autorestart.max_num_restarts: must be at most 128, got 129",
            id="above-the-maximum",
        ),
        pytest.param(
            edited(RESTARTS, "max_num_restarts: 0"),
            "job.yaml:8: autorestart.max_num_restarts: must be at least 1, got 0",
            id="below-the-minimum",
        ),
        pytest.param(
            edited(RESTARTS, "max_num_restarts: 3x"),
            "job.yaml:8: autorestart.max_num_restarts: must be a whole number, got '3x'",
            id="text-for-a-number",
        ),
        pytest.param(
            edited(RESTARTS, "max_num_restarts: true"),
            "job.yaml:8: autorestart.max_num_restarts: must be a number, got true",
            id="truth-value-for-a-number",
        ),
        pytest.param(
            edited(RESTARTS, "max_num_restarts: 2.5"),
            "job.yaml:8: autorestart.max_num_restarts: must be a whole number, got 2.5",
            id="fraction-for-a-whole-number",
        ),
        pytest.param(
            edited(RESTARTS, "max_num_restarts:"),
            "job.yaml:8: autorestart.max_num_restarts: must be a whole number, got nothing",
            id="nothing-for-a-number",
        ),
        pytest.param(
            autorestart("restart_delay_s: -1"),
            "job.yaml:9: autorestart.restart_delay_s: must be at least 0, got -1",
            id="negative-seconds",
        ),
        pytest.param(
            autorestart("restart_delay_s: inf"),
            "job.yaml:9: autorestart.restart_delay_s: must be a number, got 'inf'",
            id="endless-seconds",
        ),
        pytest.param(
            autorestart("restart_delay_s: 100000000000000000000"),
            "job.yaml:9: autorestart.restart_delay_s: must be at most 86400, got 100000000000000000000",
            id="a-wait-without-end",
        ),
        pytest.param(
            f"{GOOD}orphan_timeout_s: 2592001\n",
            "job.yaml:13: orphan_timeout_s: must be at most 2592000, got 2592001",
            id="a-bound-without-exponent",
        ),
        pytest.param(
            autorestart("isolation_ttl_s: 0"),
            "job.yaml:9: autorestart.isolation_ttl_s: must be above 0, got 0",
            id="not-above-an-open-bound",
        ),
        pytest.param(
            autorestart("unconditional: 'yes'"),
            "job.yaml:9: autorestart.unconditional: must be true or false, got 'yes'",
            id="text-for-a-truth-value",
        ),
        pytest.param(
            autorestart("restart_on: network"),
            "job.yaml:9: autorestart.restart_on: must be a list, like [first, second], got 'network'",
            id="text-for-a-list",
        ),
        pytest.param(
            autorestart("restart_on: [network, rain]"),
            "job.yaml:9: autorestart.restart_on[1]: must be one of 'hardware', 'network', 'oom_device', "
            "'oom_host', 'storage', 'checkpoint', 'numeric', 'data', 'compile', 'config', 'assertion', "
            "'user_code', 'preempted', 'cancelled', 'collective_timeout', 'port_in_use', 'crash', 'unknown' "
            "or 'none', got 'rain'",
            id="no-class-of-failure",
        ),
        pytest.param(
            autorestart("user_induced_codes: [80010000]"),
            "job.yaml:9: autorestart.user_induced_codes[0]: must be text, got 80010000; "
            'write it in quotes, like "80010000"',
            id="number-for-a-code",
        ),
        pytest.param(
            edited(f"autorestart:\n  {RESTARTS}", "autorestart: true"),
            "job.yaml:7: autorestart: must be a mapping of keys to values, got true",
            id="truth-value-for-a-section",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_or_size_is_named_with_its_line(
    text: str, expected: str, tmp_path: Path
) -> None:
    assert error_of(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            edited(RESTARTS, "max_num_restart: 3"),
            "job.yaml:8: autorestart.max_num_restart: unknown key; did you mean 'max_num_restarts'?",
            id="typo",
        ),
        pytest.param(
            edited("workers: 2", "workers: 2\n  image: x"),
            "job.yaml:7: infrastructure.image: unknown key; known keys: type, systems, workers, "
            "secret_env, heal, heal_timeout_s, check, check_timeout_s",
            id="nothing-close",
        ),
        pytest.param(
            phase("trainer: {}"),
            "job.yaml:13: phases[0].trainer: unknown key; known keys: name, mode, command, resume_args, "
            "skip_args, progress_pattern, "
            "rewrite_launcher, "
            "params, nproc_per_worker, checkpoints, resume, target_step, rendezvous, warm, warm_memory_mb, elastic, "
            "env, cwd, autorestart, suspension, numeric, infrastructure",
            id="in-a-phase",
        ),
        pytest.param(
            edited("[s0, s1, s2]", "[s0, {name: s1, evn: {}}]"),
            "job.yaml:5: infrastructure.systems[1].evn: unknown key; did you mean 'env'?",
            id="in-a-system",
        ),
        pytest.param(
            f"{GOOD}'a b': 1\n",
            "job.yaml:13: ['a b']: unknown key; known keys: name, model_dir, journal_dir, infrastructure, "
            "quarantine, autorestart, suspension, numeric, faults, env, signatures, "
            "classify, cwd, resume, phases, metrics, stop_grace_s, sample_period_s, orphan_timeout_s, "
            "max_orchestrator_restarts, lease_s, output, spool_mb, run_log_mb, kind, trainer, metadata, "
            "algorithm, spec, tasks, endpoints",
            id="a-key-that-needs-quotes",
        ),
        pytest.param(
            f"{GOOD}metdata: {{}}\n",
            "job.yaml:13: metdata: unknown key; did you mean 'metadata'?",
            id="a-typo-in-the-key-of-a-front-door",
        ),
        pytest.param(
            autorestart("min_num_csx: 2\n  min_num_systems: 2"),
            "job.yaml:9: autorestart.min_num_csx: is another name of 'min_num_systems'; give one of the two",
            id="both-names-of-one-field",
        ),
        pytest.param(
            edited("name: char-lm\n", ""),
            'job.yaml:1: name: missing; write name: "my-job"',
            id="missing-at-the-top",
        ),
        pytest.param(
            edited(f"    command: {COMMAND}\n", ""),
            'job.yaml:10: phases[0].command: missing; write command: ["python", "train.py"]',
            id="missing-in-a-phase",
        ),
        pytest.param(
            edited("{path: checkpoints}", "{}"),
            'job.yaml:12: phases[0].checkpoints.path: missing; write path: "checkpoints"',
            id="missing-in-a-section",
        ),
        pytest.param(
            edited("type: process", "type: dokcer\n  image: torch"),
            f"job.yaml:4: infrastructure.type: unknown type 'dokcer'; known types: {', '.join(names())}",
            id="unknown-type-hides-the-keys-beside-it",
        ),
    ],
)
def test_keys_that_are_unknown_or_missing(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(
            "python train.py --name 'a b'",
            'phases[0].command: must be a list of words; write ["python", "train.py", "--name", "a b"]',
            id="one-text-is-split-as-a-shell-would",
        ),
        pytest.param(
            "it's",
            'phases[0].command: must be a list of words; write ["python", "train.py"]',
            id="one-text-that-a-shell-cannot-split",
        ),
        pytest.param(
            "[python, --steps, 400]",
            'phases[0].command[2]: must be text, got 400; write it in quotes, like "400"',
            id="number",
        ),
        pytest.param(
            "[python, 0.5]",
            'phases[0].command[1]: must be text, got 0.5; write it in quotes, like "0.5"',
            id="fraction",
        ),
        pytest.param(
            "[python, yes]",
            'phases[0].command[1]: must be text, got true; write it in quotes, like "true"',
            id="truth-value",
        ),
        pytest.param(
            "[python, ~]",
            'phases[0].command[1]: must be text, got nothing; write it in quotes, like ""',
            id="nothing",
        ),
        pytest.param("[python, [a]]", "phases[0].command[1]: must be text, got a list", id="list"),
        pytest.param(
            "[]",
            'phases[0].command: must begin with a program; write its words, like ["python", "train.py"]',
            id="empty",
        ),
        pytest.param(
            "['', a]",
            'phases[0].command: must begin with a program; write its words, like ["python", "train.py"]',
            id="no-program",
        ),
        pytest.param(
            "{python: train.py}",
            'phases[0].command: must be a list of words, like ["python", "train.py"], got a mapping',
            id="mapping",
        ),
        pytest.param(
            '["a\\0b"]',
            "phases[0].command[0]: must not contain a NUL character; take it out",
            id="word-that-no-process-can-get",
        ),
    ],
)
def test_a_command_is_a_list_of_words_and_errors_show_how_to_quote(
    written: str, expected: str, tmp_path: Path
) -> None:
    assert error_of(edited(COMMAND, written), tmp_path) == f"job.yaml:11: {expected}"


def test_the_words_that_an_error_suggests_are_what_yaml_reads(tmp_path: Path) -> None:
    command = r"""phases.0.command="\u00e9\U0001f600 '\L\U000e0001\N\x7f\\' b" """
    suggested = error_of(GOOD, tmp_path, command).partition("write ")[2]
    assert suggested.isprintable()
    assert suggested.startswith('["\u00e9\U0001f600", ')
    assert yaml.safe_load(suggested) == ["\u00e9\U0001f600", "\u2028\U000e0001\x85\x7f\\", "b"]


LONG = "n" * 65


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            edited("name: char-lm", "name: char lm"),
            "job.yaml:1: name: must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, got 'char lm'",
            id="job-with-a-space",
        ),
        pytest.param(
            edited("name: pretrain", f"name: {LONG}"),
            "job.yaml:10: phases[0].name: must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, "
            f"got '{LONG[:59]}…",
            id="phase-too-long",
        ),
        pytest.param(
            edited("name: char-lm", "name: 5"),
            'job.yaml:1: name: must be text, got 5; write it in quotes, like "5"',
            id="job-that-is-a-number",
        ),
        pytest.param(
            edited("[s0, s1, s2]", "[s0, -s1]"),
            "job.yaml:5: infrastructure.systems[1].name: must be 1 to 253 of the characters "
            "A-Z a-z 0-9 . _ -, a letter or digit first, got '-s1'",
            id="system-that-begins-like-an-option",
        ),
        pytest.param(
            edited("[s0, s1, s2]", "[s0, s1, s0]"),
            "job.yaml:5: infrastructure.systems[2]: the name of a system must be unique; "
            "'s0' is also systems[0]",
            id="system-twice",
        ),
        pytest.param(
            f"{GOOD}  - {{name: pretrain, command: [a], checkpoints: {{path: c}}}}\n",
            "job.yaml:13: phases[1].name: the name of a phase must be unique; 'pretrain' is also phases[0]",
            id="phase-twice",
        ),
        pytest.param(
            phase("env: {A=B: x}"),
            "job.yaml:13: phases[0].env['A=B']: the name of a variable must be text without =",
            id="variable-with-an-equals-sign",
        ),
        pytest.param(
            phase("env: {DEBUG: true}"),
            'job.yaml:13: phases[0].env.DEBUG: must be text, got true; write it in quotes, like "true"',
            id="variable-that-is-a-truth-value",
        ),
        pytest.param(
            edited("model_dir: runs", "model_dir: s3://bucket/runs"),
            "job.yaml:2: model_dir: must be a directory on this host, got the URL 's3://bucket/runs'",
            id="journal-on-a-url",
        ),
        pytest.param(
            f"{GOOD}quarantine: s3://bucket/q\n",
            "job.yaml:13: quarantine: must be a file on this host, got the URL 's3://bucket/q'",
            id="quarantine-on-a-url",
        ),
        pytest.param(
            edited("model_dir: runs", "model_dir: ''"),
            "job.yaml:2: model_dir: must not be empty; write a path",
            id="empty-path",
        ),
        pytest.param(
            edited("{path: checkpoints}", "{path: c, pattern: 'w_{step}_{step}'}"),
            "job.yaml:12: phases[0].checkpoints.pattern: must hold {step} once, "
            "where the step stands in a name, got 'w_{step}_{step}'",
            id="pattern-with-two-steps",
        ),
        pytest.param(
            edited("{path: checkpoints}", "{path: c, pattern: '../{step}.pt'}"),
            "job.yaml:12: phases[0].checkpoints.pattern: must be NAME or DIRECTORY/NAME inside path, "
            "got '../{step}.pt'",
            id="pattern-that-leaves-the-directory",
        ),
        pytest.param(
            phase("progress_pattern: 'step \\d+'"),
            "job.yaml:13: phases[0].progress_pattern: must have a group: put the step in parentheses, "
            "got 'step \\\\d+'",
            id="steps-without-a-group",
        ),
        pytest.param(
            phase("progress_pattern: 'step (\\d+'"),
            "job.yaml:13: phases[0].progress_pattern: must be a pattern that RE2 takes, got 'step (\\\\d+'",
            id="steps-by-no-pattern",
        ),
        pytest.param(
            phase("nproc_per_worker: 0"),
            "job.yaml:13: phases[0].nproc_per_worker: must be a whole number from 1 to 4096, or auto, got 0",
            id="no-rank",
        ),
        pytest.param(
            phase("nproc_per_worker: 100000000"),
            "job.yaml:13: phases[0].nproc_per_worker: must be a whole number from 1 to 4096, or auto, "
            "got 100000000",
            id="more-ranks-than-any-machine-runs",
        ),
        pytest.param(
            phase("mode: trian"),
            "job.yaml:13: phases[0].mode: must be one of 'train', 'train_and_eval' or 'eval', got 'trian'",
            id="no-mode",
        ),
    ],
)
def test_names_paths_and_choices(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == expected


def test_an_unknown_layout_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    from prefect_ft.worker.checkpoints import LAYOUTS

    said = error_of(edited("{path: checkpoints}", "{path: c, layout: clay}"), tmp_path)
    known = ", ".join(["auto", *LAYOUTS])
    assert said == f"job.yaml:12: phases[0].checkpoints.layout: must be one of {known}, got 'clay'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            edited("workers: 2", "workers: 4"),
            "job.yaml:6: infrastructure.workers: must be at most 3, the number of systems, got 4; "
            "name more systems",
            id="more-workers-than-systems",
        ),
        pytest.param(
            edited("[s0, s1, s2]", "[]"),
            "job.yaml:5: infrastructure.systems: must not be empty; write at least one item",
            id="no-system",
        ),
        pytest.param(
            autorestart("min_num_systems: 3"),
            "job.yaml:9: autorestart.min_num_systems: must be at most 2, "
            "the workers of phase 'pretrain', got 3",
            id="minimum-above-the-workers",
        ),
        pytest.param(
            autorestart("min_num_csx: 3"),
            "job.yaml:9: autorestart.min_num_csx: must be at most 2, the workers of phase 'pretrain', got 3",
            id="minimum-by-its-other-name",
        ),
        pytest.param(
            phase("autorestart: {max_num_restarts: 1, min_num_systems: 3}"),
            "job.yaml:13: phases[0].autorestart.min_num_systems: must be at most 2, "
            "the workers of phase 'pretrain', got 3",
            id="minimum-of-a-phase",
        ),
        pytest.param(
            autorestart("min_num_systems: 2") + "    infrastructure: {systems: [a, b], workers: 1}\n",
            "job.yaml:9: autorestart.min_num_systems: must be at most 1, "
            "the workers of phase 'pretrain', got 2",
            id="minimum-of-the-job-against-the-workers-of-a-phase",
        ),
        pytest.param(
            edited("    checkpoints: {path: checkpoints}\n", ""),
            "job.yaml:10: phases[0].checkpoints: missing; a phase that trains and restarts needs them, "
            "like {path: checkpoints}",
            id="restarts-without-checkpoints",
        ),
        pytest.param(
            edited(f"autorestart:\n  {RESTARTS}", "suspension:\n  restart: true"),
            "job.yaml:8: suspension.restart: needs autorestart; write autorestart: {max_num_restarts: 3}, "
            "or restart: false",
            id="suspension-without-restarts",
        ),
        pytest.param(
            edited(f"autorestart:\n  {RESTARTS}\n", "") + "    suspension: {restart: true}\n",
            "job.yaml:11: phases[0].suspension.restart: needs autorestart; "
            "write autorestart: {max_num_restarts: 3}, or restart: false",
            id="suspension-of-a-phase-without-restarts",
        ),
        pytest.param(
            edited(f"autorestart:\n  {RESTARTS}", "numeric:\n  watch: act"),
            "job.yaml:8: numeric.watch: needs autorestart; write autorestart: {max_num_restarts: 3}, "
            "or watch: report",
            id="acting-on-values-without-restarts",
        ),
        pytest.param(
            GOOD + "numeric: {min_values: 9, window: 8}\n",
            "job.yaml:13: numeric.min_values: must be at most window, 8, got 9",
            id="more-values-than-the-window-has",
        ),
        pytest.param(
            autorestart("skip_steps: 1251") + "    skip_args: [--skip, '{steps}']\n",
            "job.yaml:14: phases[0].skip_args: may name 50040 steps, and a command has room for 50000; write {windows}"
            ", or a smaller skip_steps or max_skips_per_phase",
            id="more-steps-than-a-command-may-name",
        ),
        pytest.param(
            autorestart("environment_only: true"),
            "job.yaml:9: autorestart.environment_only: needs restart_on without 'oom_host'; write restart_on: "
            "[hardware, network, storage, collective_timeout, port_in_use], or environment_only: false",
            id="environment-only-with-other-classes",
        ),
        pytest.param(
            autorestart("environment_only: true\n  restart_on: [network]\n  unconditional: true"),
            "job.yaml:9: autorestart.environment_only: cannot be combined with unconditional: true; "
            "keep one of the two",
            id="environment-only-and-whatever-the-cause",
        ),
        pytest.param(
            "name: a\nmodel_dir: b\nphases: []\n",
            "job.yaml:3: phases: must not be empty; write at least one item",
            id="no-phase",
        ),
        pytest.param(
            phase("target_step: 0"),
            "job.yaml:13: phases[0].target_step: must be at least 1, got 0",
            id="target-step-zero",
        ),
    ],
)
def test_parts_of_a_job_that_do_not_fit_together(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "phases: [{nmae: a}]\nname: 5\nmodel_dir: x\n",
            "job.yaml:1: phases[0].nmae: unknown key; did you mean 'name'?",
            id="the-file's-order-not-the-model's",
        ),
        pytest.param(
            "name: a b\nnmae: x\n",
            "job.yaml:1: name: must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, got 'a b'",
            id="a-bad-value-before-an-unknown-key",
        ),
        pytest.param(
            "nmae: x\nmodel_dir: x\nphases: []\n",
            "job.yaml:1: nmae: unknown key; did you mean 'name'?",
            id="a-typo-before-the-key-that-is-missing-for-it",
        ),
    ],
)
def test_the_first_problem_in_the_file_is_reported(text: str, expected: str, tmp_path: Path) -> None:
    assert error_of(text, tmp_path) == expected


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        pytest.param(
            "autorestart.max_num_restarts=129",
            "--set: autorestart.max_num_restarts: must be at most 128, got 129",
            id="a-value-out-of-bounds",
        ),
        pytest.param(
            "phases[0].command=[python, 4]",
            '--set: phases[0].command[1]: must be text, got 4; write it in quotes, like "4"',
            id="a-word-inside-the-value",
        ),
        pytest.param(
            "phases.1.name=second",
            '--set: phases[1].command: missing; write command: ["python", "train.py"]',
            id="a-phase-that-it-began",
        ),
        pytest.param(
            "phases.2.name=x",
            "--set: phases.2.name: phases is a list; write an index from 0 to 1, not '2'",
            id="an-item-that-is-not-there",
        ),
        pytest.param(
            "phases.first.name=x",
            "--set: phases.first.name: phases is a list; write an index from 0 to 1, not 'first'",
            id="a-word-for-an-index",
        ),
        pytest.param(
            "name.x=1", "--set: name.x: name holds a single value; set name itself", id="through-a-value"
        ),
        pytest.param(
            "name",
            "--set: write KEY=VALUE, like autorestart.max_num_restarts=5, not 'name'",
            id="no-value",
        ),
        pytest.param(
            "a..b=1",
            "--set: write KEY=VALUE, like autorestart.max_num_restarts=5, not 'a..b=1'",
            id="a-key-with-a-hole",
        ),
        pytest.param(
            "phases[0].command=[python",
            "--set: phases[0].command: not valid YAML: while parsing a flow sequence "
            "expected ',' or ']', but got '<stream end>'; close the bracket",
            id="no-yaml",
        ),
    ],
)
def test_what_comes_from_the_command_line_is_blamed_on_it(
    override: str, expected: str, tmp_path: Path
) -> None:
    assert error_of(GOOD, tmp_path, override) == expected

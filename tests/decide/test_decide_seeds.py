"""What the documents behind the recovery policy demand, statement by statement, and the tests that show it.

C: Cerebras, "Automatic Job Restart". Of Huawei Cloud ModelArts, U: "Enabling Unconditional Auto Restart",
H: "Training Job Restart Upon Suspension", R: "Recovering a Training Job". N: NVIDIA Resiliency Extension,
"Inprocess Restart". The statements are in this project's words.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import COLLECTED

TESTS = Path(__file__).parents[1]


def of(file: str, test: str) -> Callable[..., tuple[str, ...]]:
    """Return the names of a parametrised test's cases by their ids."""
    return lambda *ids: tuple(f"{file}::{test}[{each}]" for each in ids)


one = of("decide/test_decide_rules.py", "test_one_incident")
story = of("decide/test_decide_rules.py", "test_a_story")
failures = of("decide/test_decide_budgets.py", "test_failures_without_progress")
suspensions = of("decide/test_decide_budgets.py", "test_consecutive_suspensions")
placed = of("decide/test_decide_placement.py", "test_placement")
suspected = of("decide/test_decide_after_checks.py", "test_a_system_that_is_blamed_too_often_is_isolated")
max_restarts = of("decide/test_decide_after_checks.py", "test_max_restarts")
min_systems = of("decide/test_decide_after_checks.py", "test_min_systems")
resumed = of("decide/test_decide_resume.py", "test_resume_step")
started = of("decide/test_decide_environment.py", "test_start_counts")
skipped = of("decide/test_decide_environment.py", "test_skip_eval_at")
annotated = of("config/test_modelarts.py", "test_what_annotations_say_as_a_policy")
refused = of("config/test_modelarts.py", "test_annotations_that_cannot_be_used")
unfit = of("config/test_modelarts.py", "test_jobs_with_annotations_that_do_not_fit_together")
parts = of("config/test_config_errors.py", "test_parts_of_a_job_that_do_not_fit_together")
trainers = of("config/test_cerebras.py", "test_restarts_of_trainers_that_cannot_be_used")
trainer_list = of(
    "config/test_cerebras.py", "test_each_trainer_of_a_list_is_a_phase_and_what_stands_beside_it_is_its_own"
)
bounds = of("config/test_config_job.py", "test_bounds_of_autorestart")
told = of("supervisor/test_launch.py", "test_what_worker_1_is_told")
last_word = of("supervisor/test_launch.py", "test_who_has_the_last_word")
changed = of("supervisor/test_enact.py", "test_what_a_restart_changes")
stopped = of("worker/test_agent_attempts.py", "test_a_stop_ends_whatever_ranks_started")

hangs = of("supervisor/test_hang_faults.py", "test_a_rank_that_hangs_is_found_blamed_and_restarted")
hang_together = of(
    "supervisor/test_hang_faults.py", "test_ranks_without_heartbeats_that_hang_together_are_found"
)
entered = of("inprocess/test_inprocess_restart.py", "test_all_ranks_enter_again")
gone_on = of("inprocess/test_inprocess_restart.py", "test_the_others_go_on_without_a_rank_that_is_lost")
unfit_rank = of(
    "inprocess/test_inprocess_restart.py", "test_a_rank_that_is_not_fit_leaves_and_the_others_go_on"
)
given_up = of("inprocess/test_inprocess_restart.py", "test_giving_up_ends_all_ranks_each_with_its_own_reason")
spare = of("inprocess/test_inprocess_restart.py", "test_a_spare_takes_the_place_however_the_rank_is_lost")
torn_down = of(
    "inprocess/test_inprocess_torch.py", "test_ranks_blocked_in_a_collective_come_out_when_another_fails"
)
assigned = of("inprocess/test_rank_assignment.py", "test_assignments")
healed = of("e2e/test_ladder.py", "test_a_fault_is_healed_while_nobody_runs")
self_healed = of("e2e/test_ladder.py", "test_a_fault_that_no_rank_tells_of_is_found_and_the_device_is_reset")
in_place = of("config/test_modelarts_request.py", "test_auto_restart_includes_in_place_recovery")
examples = of("cli/test_cli_doors.py", "test_the_examples_of_the_documents_run_as_they_are")
limits = of("config/test_cerebras.py", "test_how_many_restarts_there_may_be")

IN_PROCESS = "inprocess/test_inprocess_restart.py::test_"
E2E = "e2e/test_train_flow.py::test_"
GANG = "supervisor/test_agent_gang.py::test_"
PROPERTIES = "decide/test_decide_properties.py::test_"
BUDGETS = "decide/test_decide_budgets.py::test_"

SHOWN: list[tuple[str, str, tuple[str, ...]]] = [
    # -- C: Automatic Job Restart
    ("C", "a new checkpoint sets the count of failures back",
     failures("progress-resets-before-this-incident-counts", "step-0-is-no-progress")),
    ("C", "restarts are allowed so many times without progress, and then the run has failed",
     (*max_restarts("1-of-1", "2-of-1", "progress-between"),
      f"{E2E}the_budget_ends_an_endless_failure",
      f"{PROPERTIES}an_endless_failing_history_ends_in_fail")),
    ("C", "the maximum has to be given where restarts are wanted",
     (*trainers("without-the-maximum"), *bounds("max_num_restarts-1-0-128-129"))),
    ("C", "nothing is restarted where restarts are not configured",
     ("config/test_config_job.py::test_without_autorestart_a_policy_restarts_nothing",
      "decide/test_decide_rules.py::test_without_autorestart_nothing_is_restarted[a-restart-becomes-fail]")),
    ("C", "a restart begins at the last checkpoint that was saved",
     (*resumed("the-line's-step-else-the-highest"),
      f"{E2E}a_crash_is_restarted_in_place_from_the_last_good_checkpoint")),
    ("C", "restarts need checkpoints to be configured", parts("restarts-without-checkpoints")),
    ("C", "a system at fault leaves the usable pool",
     one("node-lost", "hardware-of-a-blamed-worker") + placed("a-lost-spare-is-no-spare")
     + (f"{PROPERTIES}of_any_history[no_gang_stands_on_an_isolated_system_or_on_one_twice]",)),
    ("C", "a system that may have caused failures is found out", suspected("below-the-limit", "at-the-limit")),
    ("C", "a replacement is taken where there is one", min_systems("a-spare-takes-over")),
    ("C", "the run goes on with the systems that remain where there is none",
     min_systems("shrinks") + placed("numbers-are-compacted")),
    ("C", "no restart with fewer systems than the minimum",
     min_systems("2-left-of-at-least-2", "2-left-of-3", "shrinks-to-the-minimum")),
    ("C", "the minimum is 1 if it is not given, and has the name min_num_csx",
     ("config/test_config_job.py::test_the_defaults_of_a_policy_are_those_of_the_core",
      *bounds("min_num_csx-1-0-2-3"))),
    ("C", "the trainers of a list run one after the other, each with its own restarts",
     (*trainer_list("yaml", "json"), f"{E2E}phases_run_one_after_the_other_each_with_new_workers")),
    ("C", "a trainer runs only if the one before it succeeded",
     (f"{E2E}a_later_phase_does_not_start_after_a_failed_one",)),
    ("C", "what is printed is kept in run.log of a directory with a time stamp",
     (f"{E2E}run_log_holds_every_line_with_its_attempt_worker_and_rank",)),
    ("C", "each phase has such a directory of its own",
     ("run/test_run.py::test_phases_of_one_second_have_directories_of_their_own",)),
    ("C", "a run that only validates restarts from scratch",
     ("decide/test_decide_resume.py::test_eval_is_always_from_scratch[crash]",)),
    ("C", "after a failure in validation, training goes on behind that validation",
     (*skipped("failed-in-validation", "only-the-next-attempt-skips"), *told("failed-in-a-validation"))),
    ("C", "tokens out of bounds use the restarts up", (*one("transient-data"), *max_restarts("2-of-1"))),
    ("C", "a deadlock is not restarted by itself", one("suspension-reported")),
    ("C", "a failed compilation is never restarted", one("compile-is-not-recoverable")),
    ("C", "a wrong configuration is never restarted", one("config-without-progress-is-not-recoverable")),
    ("C", "a failed assertion is never restarted",
     (*one("assertion-is-not-recoverable"), f"{E2E}an_assertion_is_not_restarted")),
    # -- U: Enabling Unconditional Auto Restart
    ("U", "whatever the cause, the job is restarted",
     one("not-recoverable-but-unconditional", "unconditional", "unconditional-takes-what-its-entry-forbids")),
    ("U", "at most three times in a row",
     story("three-unconditional-restarts-then-no-more", "what-parts-unconditional-restarts-is-progress-alone")),
    ("U", "without it only faults of the environment are restarted, and all else fails",
     annotated("yaml-environment-faults-alone")
     + one("environment-only-checkpoint", "environment-only-numeric", "environment-only-user-code",
           "environment-only-config-after-progress", "environment-only-entry-that-asks")),
    ("U", "job-retry-num is 1 to 128",
     annotated("yaml-bare-values", "yaml-true-in-any-case-and-order") + refused("above", "below")),
    ("U", "job-unconditional-retry is asked for by true", annotated("yaml-true-in-any-case-and-order")),
    ("U", "what was restarted is recorded",
     (f"{PROPERTIES}replaying_a_journal_gives_the_decisions_that_it_recorded", f"{E2E}the_summary_adds_up")),
    # -- H: Training Job Restart Upon Suspension
    ("H", "upon suspension the command is executed again in the same containers",
     (*one("suspended"), *started("upon-suspension-the-command-again"), *changed("in-place"))),
    ("H", "the processes are ended by force, and then the command starts",
     (f"{E2E}a_restart_in_place_keeps_the_worker_and_a_rebuild_replaces_it",)),
    ("H", "nothing is scheduled anew", placed("in-place-moves-nobody")),
    ("H", "the count of restarts is not affected",
     (*failures("not-a-suspension"), f"{PROPERTIES}suspensions_healed_faults_and_preemptions_cost_no_restart")),
    ("H", "at most three times in a row",
     suspensions("restarts-and-not-the-failure-past-the-limit", "another-end-of-an-attempt", "progress")),
    ("H", "where it is not asked for, nothing is restarted upon suspension", one("suspension-reported")),
    ("H", "hang-retry needs job-retry-num",
     annotated("yaml-hang-retry") + refused("hang-retry-without-the-first")),
    ("H", "the kind of a job is job if it is not given; the other kinds are known",
     unfit("other-kind") + annotated("yaml-none")),
    ("H", "other annotations may stand beside", annotated("yaml-all-and-somebody-else's")),
    # -- N: Inprocess Restart
    ("N", "a restart inside the living processes ends no attempt and costs nothing",
     one("in-process") + failures("progress-is-judged-once-over-all-that-the-attempt-saw")
     + started("a-report-starts-nothing")),
    # -- R: Recovering a Training Job
    ("R", "a minor or major fault that was healed restarts in place",
     one("minor-fault-healed", "major-fault-healed")),
    ("R", "restarts in place after healing do not count", failures("not-a-healed-fault")),
    ("R", "a warning needs nothing", one("fault-warning", "fault-warning-even-if-healing-failed")),
    ("R", "a critical fault cannot be healed", one("critical-fault", "critical-fault-that-claims-to-be-healed")),
    ("R", "where healing fails the node is isolated and the job rescheduled",
     one("minor-fault-not-healed", "critical-fault-healing-failed")),
    ("R", "the same code three times within a day on one chip of one node isolates that node",
     story("the-third-fault-of-one-code-on-one-device", "another-code-starts-anew",
           "another-device-counts-for-itself", "a-report-just-a-day-ago-counts",
           "a-report-more-than-a-day-ago-does-not")),
    ("R", "three times a code of the user's own making reschedules without isolation",
     (*story("a-code-of-the-user's-own-making", "a-list-given-replaces-the-codes"),
      "decide/test_decide_rules.py::test_the_codes_of_the_users_own_making_that_are_known")),
    ("R", "a non-zero exit code rebuilds the whole job",
     one("unconditional") + placed("rebuild-creates-all-anew-where-they-are") + changed("rebuild")),
    ("R", "after three unconditional rebuilds the fourth failure ends the job",
     story("three-unconditional-restarts-then-no-more")),
    ("R", "a fault of node or chip is not one of those three",
     (f"{BUDGETS}consecutive_unconditional[another-failure-between]",
      f"{BUDGETS}consecutive_unconditional[a-healed-fault-between]")),
    ("R", "a node at fault is isolated before the job is rebuilt",
     one("node-lost") + placed("the-spare-takes-the-displaced-worker")),
    ("R", "at pod level the job stays and only the faulty node's workers are created anew",
     one("node-lost-with-replacement") + placed("replacing-creates-only-the-displaced-anew")
     + changed("replace")
     + (f"{GANG}a_worker_is_replaced_by_a_new_one",
        f"{PROPERTIES}of_any_history[who_is_not_created_anew_stays_where_it_is]")),
    ("R", "so many times", (f"{BUDGETS}past_their_limit_replacements_are_no_longer_ordered",)),
    ("R", "a replacement that fails leads to a rebuild of the whole job",
     one("replacement-failed") + placed("after-a-replacement-that-failed-all-are-created-anew")),
    ("R", "a suspension ends the processes, keeps the containers and starts the command again",
     one("suspended") + started("upon-suspension-the-command-again")),
    ("R", "restarts upon suspension do not count", failures("not-a-suspension")),
    ("R", "too many suspensions in a row fail the job",
     suspensions("restarts-and-not-the-failure-past-the-limit") + one("suspended-past-a-limit-of-0")),
    ("R", "all processes are ended before the command starts again",
     (*stopped("ignores-sigterm-at-once", "own-session-at-once"),
      f"{GANG}after_stop_everything_that_was_printed_has_been_heard")),
    ("R", "MA_SCHEDULE_CNT is 1 at first, and 1 more each time the worker is created anew",
     started("the-first-attempt", "a-rebuild-creates-all-anew", "only-the-replaced-anew",
             "isolation-creates-all-anew") + told("first-attempt", "replaced")
     + (f"{E2E}the_environment_tells_the_script_what_happened",)),
    ("R", "MA_PROC_START_CNT is 1 in a new worker, and 1 more each time the command starts in it again",
     started("in-place-starts-the-command-again", "starts-are-counted-from-its-creation",
             "in-place-after-a-replacement", "upon-suspension-the-command-again") + told("in-place")),
    ("R", "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS reaches the script", last_word("grace-is-passed-on")),
    ("R", "pod-retry-num needs job-retry-num, and is 1 to 128",
     annotated("yaml-pod-retry") + refused("pod-retry-num-without-the-first", "no-pod-retry", "pod-retry-above")),
    ("R", "unconditional retries need job-retry-num", refused("job-unconditional-retry-without-the-first")),
    ("R", "all four annotations can stand together", annotated("yaml-all-and-somebody-else's")),
    ("H", "a suspension is noticed by what the processes do",
     (*hangs("deadlock-in-python", "stopped", "busy-loop"), *hang_together("deadlock-in-python", "busy-loop"))),
    ("H", "containers are kept while processes are ended",
     ("backends/test_docker_backend.py::test_shared_memory_and_files_live_through_a_restart_in_place",)),
    # -- N: in-process restart
    ("N", "the function is entered again on all ranks at the same time",
     entered("exception-2", "exception-8", "asynchronous-exception-4")),
    ("N", "ranks that have ended or are unhealthy are left out",
     (*gone_on("3-killed", "8-segfault"), *unfit_rank("unfit", "finalize-hangs"))),
    ("N", "restarts go on until all ranks are done or an end is declared",
     (*given_up("three-without-progress", "progress-begins-anew"),
      f"{IN_PROCESS}the_users_condition_ends_all_ranks",
      f"{IN_PROCESS}a_rank_that_completed_enters_again_when_another_fails")),
    ("N", "process groups are torn down by the wrapper", torn_down("2", "8")),
    ("N", "a deadlock is found by a time limit",
     entered("asleep-without-progress-4", "live-lock-pings-the-same-step-4")),
    ("N", "reassignment of ranks and the health check can be exchanged",
     (*assigned("shift", "fill-with-the-reserve"), f"{IN_PROCESS}hooks_are_called_in_their_order")),
    ("N", "spare ranks can wait beside", spare("killed", "in-c-with-the-interpreter")),
    # -- R, besides what is decided
    ("R", "healing of a device is tried when the processes have ended", healed("healed", "not-healed")),
    ("R", "device faults reach the policy with code and severity",
     ("supervisor/test_fault_records.py::test_a_line_that_names_an_npu_fault",
      "supervisor/test_fault_sources.py::test_a_file_is_read_from_its_end_on_whole_lines_at_a_time")),
    ("R", "faults of chips are detected, and the chip heals by itself", self_healed("reset", "in-use")),
    ("R", "auto restart includes in-place recovery", in_place("npu", "gpu", "unsaid")),
    ("R", "a grace period lets the clean-up of old containers go on behind",
     ("backends/test_docker_backend.py::test_a_removal_that_takes_long_goes_on_in_the_background",)),
    ("R", "the examples of requests are taken as they are", examples("unconditional", "upon-suspension", "all")),
    ("C", "a trainer's own file runs, and after a failed validation the next training loop follows",
     ("cli/test_cli_doors.py::test_a_run_goes_on_with_the_training_loop_after_a_failed_validation",)),
    ("C", "max_num_restarts is any whole number from 0, and 0 is none",
     limits("none", "the-most", "more-than-the-most")),
]  # fmt: skip

NOT_SHOWN: list[tuple[str, str, str]] = [
    ("C", "a job file of several trainers runs as the original's does", "no trainer of the original is run in tests"),
]  # fmt: skip
"""What another part has to show, and which."""


@pytest.fixture(scope="module")
def known(request: pytest.FixtureRequest) -> frozenset[str]:
    """The names of all tests in the files that the table names."""
    collected = request.config.stash[COLLECTED]
    files = sorted({name.partition("::")[0] for *_, names in SHOWN for name in names})
    if {f"tests/{name}" for name in files} <= {name.partition("::")[0] for name in collected}:
        return frozenset(name.removeprefix("tests/") for name in collected)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "", "-p", "no:cacheprovider", *files]
    listed = subprocess.run(command, cwd=TESTS, capture_output=True, check=True, text=True).stdout
    return frozenset(line.removeprefix("tests/") for line in listed.splitlines() if "::" in line)


def test_every_test_that_the_table_names_is_there(known: frozenset[str]) -> None:
    assert [name for *_, names in SHOWN for name in names if name not in known] == []


def test_every_document_is_there_and_no_statement_stands_twice() -> None:
    statements = [(mark, statement) for mark, statement, _ in (*SHOWN, *NOT_SHOWN)]
    assert {mark for mark, _ in statements} == set("CUHNR")
    assert len(set(statements)) == len(statements)
    assert all(names for *_, names in SHOWN)

"""Words for the report, for readers who know neither the project nor training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prefect_ft.amounts import count, save_noun
from prefect_ft.decide import rules
from prefect_ft.decide.classify.launchers import was_killed
from prefect_ft.decide.incidents import ended_at_unknown_step
from prefect_ft.decide.reasons import signal_name
from prefect_ft.journal.records import ComebackLine
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.model import AFTER_FAILURES, RESTARTS, Action, Counters, FailureClass, Incident, Kind
from prefect_ft.report.advice import Advice
from prefect_ft.report.story import LONG_SILENCE_S, Event, Start, Story

__all__ = [
    "PART_MEANINGS",
    "PART_NAMES",
    "TERMS",
    "advice_lines",
    "budgets",
    "comebacks",
    "completed_sentence",
    "cost",
    "count",
    "done",
    "duration",
    "lead",
    "share",
    "skipped_checkpoints",
    "what",
    "why",
]

PART_NAMES: Mapping[str, str] = {
    "productive": "useful work",
    "recompute": "lost work",
    "detect": "noticing failures",
    "queue": "waiting for an allocation",
    "heal": "healing devices",
    "decide": "stopping and deciding",
    "wait": "intended waiting",
    "recover": "restarting",
    "start": "first start",
    "stop": "ending",
}
PART_MEANINGS: Mapping[str, str] = {
    "productive": "training that counts towards the result",
    "recompute": "training after the last checkpoint before a failure: it is repeated",
    "detect": "from a failure until it was noticed",
    "queue": "the scheduler had taken the systems back and not yet lent others",
    "heal": "the job's own command tried to heal a faulty device",
    "decide": "from then until the remaining processes had ended and the decision was made",
    "wait": "the restart delay set in the job, or the wait for approval",
    "recover": "from the decision until the ranks ran again",
    "start": "from the phase's beginning until its ranks ran",
    "stop": "from the last decision to the phase's end; also from the end of training until an orchestrator came back",
}
"""In display order."""

TERMS: Mapping[str, str] = {
    "job": "a training in one or more consecutive phases",
    "attempt": "one start of the training command in a phase; the next one follows a failure",
    "step": "one update of the model; the training's own count of its progress",
    "checkpoint": "a saved state of the training, from which it can resume; it counts once it is verified as complete",
    "rank": "one training process",
    "worker": "the ranks on one system, and the small agent that starts and watches them",
    "system": "a machine, or a part of one, that can run a worker; one without a worker is a spare",
    "phase": "one training command with its checkpoints; a job's phases run one after the other",
    "rule": "the line of the recovery policy that decided; each has a name",
    "budget": "how often a phase may restart: failures count since the last new checkpoint, each kind up to its limit",
    "suspicion": "how many failures point to a system since it was put into use; at the limit a spare replaces it",
    "suspension": "a hang: all processes are alive, and none makes progress",
    "journal": "the file in which the run recorded all this as it happened",
}

_DONE: Mapping[Action, str] = {
    "restart_in_place": "Restarted in the same workers",
    "replace_workers": "Moved the affected workers to spare systems and restarted",
    "rebuild": "Recreated all workers and restarted",
    "isolate_and_rebuild": "Took the system out of use, recreated all workers and restarted",
    "complete": "The phase is complete",
    "cancel": "Ended the run",
    "fail": "Gave up",
    "continue": "Left the training alone",
}

_CLASSES: Mapping[FailureClass, str] = {
    "hardware": "A machine or device failed",
    "network": "A connection failed",
    "oom_device": "The accelerator's memory was exhausted",
    "oom_host": "The machine's memory was exhausted",
    "storage": "Storage failed or was full",
    "checkpoint": "A checkpoint could not be read back",
    "numeric": "A value became NaN or infinite",
    "data": "Some training data could not be used",
    "compile": "The program did not compile",
    "config": "The setup is wrong",
    "assertion": "An assertion failed",
    "user_code": "The training program raised an error",
    "preempted": "The scheduler took the machine away",
    "cancelled": "The training was cancelled",
    "collective_timeout": "Ranks waited too long for each other",
    "port_in_use": "A network port was already in use",
    "crash": "A training process crashed",
    "unknown": "A training process ended for an unknown reason",
    "none": "A training process ended",
}
_KINDS: Mapping[Kind, str] = {
    "completed": "The training ended before its target",
    "suspended": "The training hung",
    "device_fault": "A device reported a fault",
    "system_lost": "A system was lost",
    "preempted": "The scheduler took the machine away",
    "cancelled": "A cancellation was requested",
    "replacement_failed": "Replacing workers failed",
    "rebuild_failed": "Recreating the workers failed",
    "in_place_failed": "A worker is gone, although its system is available",
    "handed_over": "The run moved to its next allocation",
    "in_process": "The ranks restarted their function by themselves",
}


# -- numbers ----------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for limit_s, big, small in ((3600, 60, 1), (86400, 3600, 60), (float("inf"), 86400, 3600)):
        if seconds < 119.5:
            return f"{seconds:.0f} s"
        if seconds < limit_s:
            first, rest = divmod(round(seconds / small) * small, big)
            units = {60: ("min", "s"), 3600: ("h", "min"), 86400: ("d", "h")}[big]
            return f"{first:.0f} {units[0]}" + (f" {rest / small:.0f} {units[1]}" if rest else "")
    raise AssertionError("the last limit is infinite")


def share(ratio: float | None) -> str:
    """Return a share as a percentage; less than all is never rounded to 100%."""
    if ratio is None:
        return "unknown"
    text = f"{ratio:.1%}"
    if text == "100.0%":
        return "100%" if ratio >= 1 else "99.9%"
    return text


# -- what happened ----------------------------------------------------------------------------------


def what(event: Event) -> str:
    """Return what happened, and where."""
    incident = event.judged.incident
    text = _KINDS.get(incident.kind) or _CLASSES[incident.failure_class or "unknown"]
    if ended_at_unknown_step(incident):
        text = "The training ended, and whether it reached its target is unknown"
    elif incident.failure_class in ("unknown", None) and (
        incident.signal is not None or was_killed(incident)
    ):
        text = "A training process was killed"
    details = list(_details(incident, event.where))
    return text + (f" ({', '.join(details)})" if details else "")


def _details(incident: Incident, where: tuple[str, ...]) -> Iterator[str]:
    if incident.device is not None:
        yield f"device {incident.device}, code {incident.code}, {incident.severity}"
    if incident.evidence is not None and (incident.evidence.file or "").startswith("rank"):
        yield f"rank {(incident.evidence.file or '').removeprefix('rank')}"
    elif incident.worker is not None:
        yield f"worker {incident.worker}"
    if where:
        yield f"on {' and '.join(where)}"
    if incident.signal is not None:
        yield signal_name(incident.signal)
    elif was_killed(incident):
        yield "SIGKILL"
    elif incident.exit_code:
        yield f"exit code {incident.exit_code}"


def done(event: Event) -> str:
    """Return what was done about it."""
    decision = event.judged.decision
    text = _DONE[decision.action]
    if decision.isolate and decision.action == "isolate_and_rebuild":
        text = text.replace("the system", " and ".join(decision.isolate))
    elif decision.isolate:
        text = f"Took {' and '.join(decision.isolate)} out of use. {text}"
    if event.joined:
        text += f" with {' and '.join(event.joined)}"
    if decision.action in RESTARTS:
        start = event.start or Start(decision.resume_step, None)
        text += _from(start, counted=event.judged.incident.counted)
    return f"{text}."


def _from(start: Start, *, counted: bool | None) -> str:
    """Return where an attempt started, and why if the decision said otherwise."""
    number = save_noun(counted=counted)
    origin = " from scratch" if start.step is None else f" from {number} {start.step:,}"
    return origin if start.why is None else f"{origin} ({start.why})"


def why(event: Event) -> str:
    """Return why that was done: the meaning of the rule."""
    decision = event.judged.decision
    return rules.TABLE.meaning_of(decision.rule, gives_up=decision.gives_up)


def cost(event: Event) -> str:
    """Return what it cost; empty if nothing was lost."""
    until = "training resumed" if event.has_resumed else "its ranks ran again"
    parts = [f"{duration(event.down_s)} until {until}"] if event.down_s is not None else []
    if event.steps_lost:
        parts.append(
            f"{count(event.steps_lost, 'step')} repeated"
            if event.down_s is not None
            else f"{count(event.steps_lost, 'step')} not saved"
        )
    return ", ".join(parts)


def skipped_checkpoints(event: Event) -> Iterator[str]:
    """Yield a sentence about each checkpoint that the next attempt could not resume from."""
    for name, why in event.skipped.items():
        yield f"Checkpoint {name} was not used: {why}."


def comebacks(story: Story) -> Iterator[str]:
    """Yield when an orchestrator came back, after how long, and what it found."""
    for t, phase, line, had_ended in story.comebacks:
        where = f", phase {phase}" if len(story.phases) > 1 else ""
        how = "was brought back by hand" if line.by_hand else "came back by itself"
        found = _found(line, had_ended=had_ended)
        yield f"After {duration(t)}{where}: the orchestrator {how}{_absence(line)}. {found}."


def _absence(line: ComebackLine) -> str:
    """Return how long nobody watched, or what is known of that."""
    if line.unwatched_s is not None:
        return f" after {duration(line.unwatched_s)}"
    return "" if line.silent_s is None else f" after {duration(line.silent_s)} without a line in its journal"


def _found(line: ComebackLine, *, had_ended: bool) -> str:
    adopted, left = len(line.adopted or ()), len(line.left or ())
    went_on = line.goes_on and adopted > 0 and not had_ended
    if not line.goes_on:
        attempt = "No attempt was running"
    elif went_on:
        attempt = f"Attempt {line.attempt} went on"
    else:
        attempt = f"Attempt {line.attempt} {'had ended' if adopted or left else 'was lost'}"
    workers = []
    if adopted:
        ranks = f" with {'its' if adopted == 1 else 'their'} ranks" if went_on else ""
        workers.append(f"{count(adopted, 'worker was', 'workers were')} adopted{ranks}")
    if left:
        workers.append(
            f"{count(left, 'worker')} had ended and left {'its' if left == 1 else 'their'} results"
        )
    return f"{attempt}; {', '.join(workers) or 'no worker was left'}"


_COUNTERS: Mapping[str, str] = {
    "failures_without_progress": "failures without progress",
    "consecutive_suspensions": "suspensions in a row",
    "worker_replacements": "replacements of workers",
    "preemptions": "preemptions",
}


def budgets(counters: Counters, limits: Mapping[str, int | None]) -> str:
    """Return how much of the budgets is used: the first one always, the others if not zero."""
    parts: list[str] = []
    for name, words in _COUNTERS.items():
        used, limit = getattr(counters, name), limits.get(name)
        if used or not parts:
            parts.append(f"{words} {used}" + (f" of {limit}" if limit is not None else ""))
    parts += [f"suspicion of {name} {number}" for name, number in counters.suspects.items()]
    return ", ".join(parts)


# -- the run in a few sentences ---------------------------------------------------------------------


def lead(story: Story) -> str:
    """Return a summary of the run in a few sentences."""
    return " ".join(_sentences(story))


def _sentences(story: Story) -> Iterator[str]:
    if not story.phases:
        yield "No phase has begun yet."
        return
    yield _ending(story)
    failures = [event for event in story.disturbances if event.judged.decision.action in AFTER_FAILURES]
    if not failures:
        yield "There were no restarts."
    else:
        restarted = f" and restarted {_times(story.restarts)}" if story.restarts else ""
        yield f"It was interrupted {_times(len(failures))}{restarted}."
    if story.isolated:
        names = " and ".join(story.isolated)
        yield f"{names} {'was' if len(story.isolated) == 1 else 'were'} taken out of use."
    ratio = story.effective_ratio
    if ratio is not None:
        lost_s = sum(seconds for part, seconds in story.time_s.items() if part != "productive")
        yield (
            f"{share(ratio)} of the time was useful work; {duration(lost_s)} was not"
            + (
                f", {duration(story.time_s['recompute'])} of it for {count(story.steps_lost, 'lost step')}."
                if story.steps_lost
                else "."
            )
        )


def completed_sentence(phases: Sequence[PhaseSummary]) -> str:
    """Return one sentence about a completed run."""
    restarts = sum(sum(phase.restarts.values()) for phase in phases)
    total_s = sum(phase.time_s["total"] for phase in phases)
    productive_s = sum(phase.time_s["productive"] for phase in phases)
    at = _at(phases[-1]) if phases else ""
    after = f" after {count(restarts, 'restart')}" if restarts else " without a restart"
    useful = f"; {share(productive_s / total_s)} of {duration(total_s)} was useful work" if total_s else ""
    return f"Completed{at}{after}{useful}."


def _silence(story: Story) -> str:
    if story.silent_s < LONG_SILENCE_S:
        summary = story.phases[-1].summary
        number = save_noun(counted=summary.counted)
        known = (
            f" Its last known {number} is {summary.final_step:,}." if summary.final_step is not None else ""
        )
        return f"is running{_phase(story)}, for {duration(story.total_s)} now.{known}"
    return (
        f"had been running for {duration(story.total_s)}{_place(story)} when its journal went silent "
        f"{duration(story.silent_s)} ago; the time since then is not counted."
    )


def _place(story: Story) -> str:
    return _phase(story) + _at(story.phases[-1].summary)


def _at(summary: PhaseSummary) -> str:
    """Return how far a phase came; empty where that is unknown."""
    if summary.final_step is None:
        return ""
    return f" at {save_noun(counted=summary.counted)} {summary.final_step:,}"


def _phase(story: Story) -> str:
    return f" in phase {story.phases[-1].name}" if len(story.phases) > 1 else ""


def _given_up(story: Story) -> str:
    """Return why the run gave up, with the last event."""
    last = story.disturbances[-1] if story.disturbances else None
    if last is None or not last.judged.decision.gives_up:
        return f"{story.reason}."
    evidence = last.judged.incident.evidence
    quote = f" «{evidence.text}»" if evidence is not None else ""
    return f"{what(last)}{quote}; {why(last)}."


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _ending(story: Story) -> str:
    total = duration(story.total_s)
    match story.status:
        case "completed":
            phases = {1: "", 2: " with both phases"}.get(
                len(story.phases), f" with all {len(story.phases)} phases"
            )
            return f"The run {story.job} completed{phases}{_at(story.phases[-1].summary)}, after {total}."
        case "failed":
            return f"The run {story.job} gave up{_place(story)}, after {total}: {_given_up(story)}"
        case "cancelled":
            return f"The run {story.job} was cancelled{_place(story)}, after {total}: {story.reason}."
        case _:
            return f"The run {story.job} {_silence(story)}"


def advice_lines(advice: Advice) -> Iterator[str]:
    """Yield what the run's own failures imply for the interval between its checkpoints."""
    mean_s = advice.between_failures_s
    if mean_s is None:
        yield "Nothing failed: this run does not show how often to save."
        return
    yield (
        f"{count(advice.failures, 'failure')} in {duration(advice.worked_s)} of work: one every {duration(mean_s)}"
        + (" (few failures: a rough estimate)." if advice.failures < 5 else ".")
    )
    if advice.interval_s is not None:
        yield f"The run saved every {duration(advice.interval_s)}."
    else:
        yield "No two consecutive checkpoints: the interval is unknown."
    if advice.best_s is not None and advice.cost_s is not None:
        yield f"A checkpoint took {duration(advice.cost_s)} ({advice.cost_from:,} measured)."
        yield f"The best interval is {duration(advice.best_s)}{_gain(advice, advice.best_s)}."
    elif advice.fitting_cost_s is not None:
        yield (
            "The cost of a checkpoint is unknown: the ranks reported no time in the stage checkpoint. This interval "
            f"is the best one if it is {duration(advice.fitting_cost_s)}; save less often if it is more."
        )


def _gain(advice: Advice, best_s: float) -> str:
    best, now = advice.loss(best_s), advice.loss(advice.interval_s or 0)
    if best is None or now is None:
        return ""
    return f": saving and repeated work would take about {share(best)} of the time, instead of {share(now)}"


def advisor_said(event: Event) -> str | None:
    """Return what the user's advisor said of a failure, marked as its own; None where it was not asked."""
    advice = event.judged.incident.advice
    if advice is None:
        return None
    if advice.problem is not None:
        return f"no answer: {advice.problem}"
    said = f"{advice.failure_class}" + (f": {advice.reason}" if advice.reason else "")
    quote = f" «{advice.line}»" if advice.line else ""
    ours = f"decided by instead of {advice.instead_of or 'unknown'}" if advice.used else "not decided by"
    return f"{said}{quote} ({ours})"

"""What happened to a run in words for somebody who knows neither the project nor training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prefect_ft.decide import rules
from prefect_ft.decide.reasons import signal_name
from prefect_ft.journal.summary import PhaseSummary
from prefect_ft.model import RESTARTS, Action, Counters, FailureClass, Incident, Kind
from prefect_ft.report.advice import Advice
from prefect_ft.report.story import LONG_SILENCE_S, Event, Start, Story

__all__ = [
    "PART_MEANINGS",
    "PART_NAMES",
    "TERMS",
    "advice_lines",
    "budgets",
    "completed_sentence",
    "cost",
    "count",
    "done",
    "duration",
    "lead",
    "passed_over",
    "share",
    "what",
    "why",
]

PART_NAMES: Mapping[str, str] = {
    "productive": "useful work",
    "recompute": "lost work",
    "detect": "noticing failures",
    "heal": "mending devices",
    "decide": "stopping and deciding",
    "wait": "waiting on purpose",
    "recover": "starting again",
    "start": "first start",
    "stop": "ending",
}
PART_MEANINGS: Mapping[str, str] = {
    "productive": "training that the result rests on",
    "recompute": "training after the checkpoint from which the run went on, or would go on: it is done again",
    "detect": "from a failure until it was noticed",
    "heal": "the job's own command tried to mend a faulty device",
    "decide": "what still ran was ended, and it was decided what to do",
    "wait": "the delay that the job asks for before a restart, or for a person's answer",
    "recover": "from the decision until the ranks ran again",
    "start": "from the phase's beginning until its ranks ran",
    "stop": "from the last decision to the phase's end",
}
"""In the order in which they are shown."""

TERMS: Mapping[str, str] = {
    "job": "what is to be trained, in one or more phases that follow one another",
    "attempt": "one start of the training command in a phase; after a failure comes the next one",
    "step": "one update of the model; the training's own count of its progress",
    "checkpoint": "a saved state of the training, from which it can go on; it counts once it is known to be whole",
    "rank": "one training process",
    "worker": "the ranks on one system, and the small agent that starts and watches them",
    "system": "a machine, or a part of one, that can run a worker; one without a worker is a spare",
    "phase": "one training command with its checkpoints; a job's phases come one after the other",
    "rule": "the line of the recovery policy that decided; each has a name",
    "budget": "how often a run may be restarted: failures count since the last new checkpoint, each kind to its limit",
    "suspicion": "how many failures point to a system since it was last in or out of use; at three it is replaced",
    "suspension": "a hang: all processes are there and nothing moves",
    "journal": "the file in which the run wrote all this down as it happened",
}

_DONE: Mapping[Action, str] = {
    "restart_in_place": "Started again in the same workers",
    "replace_workers": "Moved the affected workers to spare systems and started again",
    "rebuild": "Created all workers anew and started again",
    "isolate_and_rebuild": "Took the system out of use, created all workers anew and started again",
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
    "numeric": "The numbers went bad (NaN or infinity)",
    "data": "A piece of the training data could not be used",
    "compile": "The program did not compile",
    "config": "The set-up is wrong",
    "assertion": "The program found itself in a state that must not be",
    "user_code": "The training program raised an error",
    "preempted": "The scheduler took the machine away",
    "cancelled": "It was ended on purpose",
    "collective_timeout": "Ranks waited for each other for too long",
    "port_in_use": "A network port was taken",
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
    "cancelled": "Somebody asked for the end",
    "replacement_failed": "Replacing workers failed",
    "rebuild_failed": "Creating the workers anew failed",
    "in_place_failed": "A worker is gone although its system is there",
    "in_process": "The ranks started their function again by themselves",
}


# -- numbers ----------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Say a time in the two units that matter."""
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
    raise AssertionError("every time is below infinity")


def share(ratio: float | None) -> str:
    """Say a share as a percentage; one that is not quite all, or nothing, is not rounded to that."""
    if ratio is None:
        return "unknown"
    text = f"{ratio:.1%}"
    if text == "100.0%":
        return "100%" if ratio >= 1 else "99.9%"
    return text


def count(number: int, thing: str, things: str | None = None) -> str:
    """Say how many, in the right number."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


# -- what happened ----------------------------------------------------------------------------------


def what(event: Event) -> str:
    """Say what happened, and where."""
    incident = event.judged.incident
    text = _KINDS.get(incident.kind) or _CLASSES[incident.failure_class or "unknown"]
    if incident.signal is not None and incident.failure_class in ("unknown", None):
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
    elif incident.exit_code:
        yield f"exit code {incident.exit_code}"


def done(event: Event) -> str:
    """Say what was done about it."""
    decision = event.judged.decision
    text = _DONE[decision.action]
    if decision.isolate and decision.action == "isolate_and_rebuild":
        text = text.replace("the system", " and ".join(decision.isolate))
    elif decision.isolate:
        text = f"Took {' and '.join(decision.isolate)} out of use. {text}"
    if event.joined:
        text += f" with {' and '.join(event.joined)}"
    if decision.action in RESTARTS:
        text += _from(event.start or Start(decision.resume_step, None))
    return f"{text}."


def _from(start: Start) -> str:
    """Return where an attempt started, and why that was not where it was decided."""
    origin = " from the beginning" if start.step is None else f" from step {start.step:,}"
    return origin if start.why is None else f"{origin} ({start.why})"


def why(event: Event) -> str:
    """Say why that was done and nothing else."""
    return rules.TABLE.meaning_of(event.judged.decision.rule)


def cost(event: Event) -> str:
    """Say what it cost; empty where nothing was lost."""
    parts = [f"{duration(event.down_s)} until the training ran again"] if event.down_s is not None else []
    if event.steps_lost:
        parts.append(
            f"{count(event.steps_lost, 'step')} done again"
            if event.down_s is not None
            else f"{count(event.steps_lost, 'step')} not saved"
        )
    return ", ".join(parts)


def passed_over(event: Event) -> Iterator[str]:
    """Return which checkpoints the next attempt could not go on from, and why."""
    for name, why in event.passed_over.items():
        yield f"The checkpoint {name} was not whole ({why}), so an older one was taken."


_COUNTERS: Mapping[str, str] = {
    "failures_without_progress": "failures without progress",
    "consecutive_suspensions": "suspensions in a row",
    "worker_replacements": "replacements of workers",
    "preemptions": "preemptions",
}


def budgets(counters: Counters, limits: Mapping[str, int | None]) -> str:
    """Say how much of the budgets is used up: the first one always, the others where they were touched."""
    parts: list[str] = []
    for name, words in _COUNTERS.items():
        used, limit = getattr(counters, name), limits.get(name)
        if used or not parts:
            parts.append(f"{words} {used}" + (f" of {limit}" if limit is not None else ""))
    parts += [f"suspicion of {name} {number}" for name, number in counters.suspects.items()]
    return ", ".join(parts)


# -- the run in a few sentences ---------------------------------------------------------------------


def lead(story: Story) -> str:
    """Tell the run in a few sentences."""
    return " ".join(_sentences(story))


def _sentences(story: Story) -> Iterator[str]:
    if not story.phases:
        yield "No phase has begun yet."
        return
    yield _ending(story)
    failures = [event for event in story.disturbances if event.judged.decision.action in (*RESTARTS, "fail")]
    if not failures:
        yield "Nothing had to be restarted."
    else:
        came_back = f" and came back by itself {_times(story.restarts)}" if story.restarts else ""
        yield f"It was disturbed {_times(len(failures))}{came_back}."
    if story.isolated:
        names = " and ".join(story.isolated)
        yield f"{names} {'was' if len(story.isolated) == 1 else 'were'} taken out of use."
    ratio = story.effective_ratio
    if ratio is not None:
        lost_s = sum(seconds for part, seconds in story.time_s.items() if part != "productive")
        yield (
            f"{share(ratio)} of the time was useful work; {duration(lost_s)} went elsewhere"
            + (
                f", {duration(story.time_s['recompute'])} of it to {count(story.steps_lost, 'step')} that were lost."
                if story.steps_lost
                else "."
            )
        )


def completed_sentence(phases: Sequence[PhaseSummary]) -> str:
    """Say in one sentence how a run came to its good end."""
    restarts = sum(sum(phase.restarts.values()) for phase in phases)
    total_s = sum(phase.time_s["total"] for phase in phases)
    productive_s = sum(phase.time_s["productive"] for phase in phases)
    step = phases[-1].final_step if phases else None
    at = f" at step {step:,}" if step is not None else ""
    after = f" after {count(restarts, 'restart')}" if restarts else " without a restart"
    useful = f"; {share(productive_s / total_s)} of {duration(total_s)} was useful work" if total_s else ""
    return f"Completed{at}{after}{useful}."


def _silence(story: Story) -> str:
    if story.silent_s < LONG_SILENCE_S:
        step = story.phases[-1].summary.final_step
        known = f" Its last known step is {step:,}." if step is not None else ""
        return f"is running{_phase(story)}, for {duration(story.total_s)} now.{known}"
    return (
        f"had been running for {duration(story.total_s)}{_place(story)} when its journal fell silent, "
        f"{duration(story.silent_s)} ago; what came after that is not known and not counted."
    )


def _place(story: Story) -> str:
    last = story.phases[-1]
    at = f" at step {last.summary.final_step:,}" if last.summary.final_step is not None else ""
    return _phase(story) + at


def _phase(story: Story) -> str:
    return f" in phase {story.phases[-1].name}" if len(story.phases) > 1 else ""


def _given_up(story: Story) -> str:
    """Say why nothing was tried any more; what happened is told with the last event."""
    last = story.disturbances[-1] if story.disturbances else None
    if last is None or last.judged.decision.action != "fail":
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
            step = story.phases[-1].summary.final_step
            at = f" at step {step:,}" if step is not None else ""
            return f"The run {story.job} completed{phases}{at}, after {total}."
        case "failed":
            return f"The run {story.job} gave up{_place(story)}, after {total}: {_given_up(story)}"
        case "cancelled":
            return f"The run {story.job} was cancelled{_place(story)}, after {total}: {story.reason}."
        case _:
            return f"The run {story.job} {_silence(story)}"


def advice_lines(advice: Advice) -> Iterator[str]:
    """Say what the run's own failures mean for the interval between its checkpoints."""
    mean_s = advice.between_failures_s
    if mean_s is None:
        yield "Nothing failed: this run says nothing about how often to save."
        return
    yield (
        f"{count(advice.failures, 'failure')} in {duration(advice.worked_s)} of work: one every {duration(mean_s)}"
        + (" (few failures: a rough estimate)." if advice.failures < 5 else ".")
    )
    if advice.interval_s is not None:
        yield f"Checkpoints came every {duration(advice.interval_s)}."
    else:
        yield "No two checkpoints followed one another: how often it saves is not known."
    if advice.best_s is not None and advice.cost_s is not None:
        yield f"One took {duration(advice.cost_s)} ({count(advice.cost_from, 'was', 'were')} measured)."
        yield f"Best would be one every {duration(advice.best_s)}{_gain(advice, advice.best_s)}."
    elif advice.fitting_cost_s is not None:
        yield (
            "What one takes is not known: the ranks reported no time in the stage checkpoint. This interval is the "
            f"best one if that is {duration(advice.fitting_cost_s)}; save less often if it is more."
        )


def _gain(advice: Advice, best_s: float) -> str:
    best, now = advice.loss(best_s), advice.loss(advice.interval_s or 0)
    if best is None or now is None:
        return ""
    return f": saving and repeated work would take about {share(best)} of the time, now it is {share(now)}"

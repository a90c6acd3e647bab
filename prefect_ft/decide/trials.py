"""What is at fault where numbers or data go bad: what further attempts prove, elsewhere and on other systems.

Owns the truth table, as a fold over the attempts of a phase:

| the failure                                              | is at fault                          |
|----------------------------------------------------------|--------------------------------------|
| comes again at its step, and is bound to it              | the data of the step, or the code    |
| has gone once the system that reported it first was left | that system                          |
| has gone from an older checkpoint                        | the checkpoint that all started from |
| comes and goes, on one system or another                 | chance                               |

The first row is read at once, the others once an attempt got past the steps at which others failed without failing
that way itself. Where a step is unknown, nothing is proven. Decides nothing: findings are reported; a poisoned
checkpoint is set aside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from prefect_ft.decide.placement import Gang
from prefect_ft.decide.skipping import BINDING
from prefect_ft.model import AtFault, FailureClass, Incident


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that failed at a step, having started from another (0: from scratch).

    `reporter` is the system whose rank reported it first; None: all reported it, or it is unknown.
    """

    failure_class: FailureClass | None
    step: int
    started_from: int
    reporter: str | None


def first_reporter(incident: Incident, gang: Gang) -> str | None:
    """Return the system whose rank reported a failure first, None where all did."""
    reported = incident.reported or ()
    if incident.worker is None or incident.worker >= len(gang) or incident.failure_class not in BINDING:
        return None
    if len(gang) > 1 and len(set(reported)) >= len(gang):
        return None
    return gang[incident.worker]


@dataclass(slots=True)
class Trials:
    """Failures not explained yet, and the systems that reported failures that were not bound to their steps."""

    finding: AtFault | None = None
    """What the last attempt has proven; None: nothing."""
    _open: list[Failed] = field(default_factory=list)
    _bound: list[Failed] = field(default_factory=list)
    """Those at the step that was proven last to be at fault."""
    _reported: dict[str, set[int]] = field(default_factory=dict)
    """By system, the steps at which it reported failures that have gone since."""

    def end_attempt(
        self, incident: Incident, gang: Gang, started_from: int | None, *, is_bound: bool, seen: int | None
    ) -> None:
        """Note how an attempt on `gang` ended; `seen` is the step of the last checkpoint that it saved."""
        self.finding = None
        fails = incident.kind == "exit" and incident.failure_class in BINDING
        if not (self._open or fails):
            return
        start = started_from or 0
        if fails and incident.reached is not None:
            failed = Failed(incident.failure_class, incident.reached, start, first_reporter(incident, gang))
            if is_bound:
                self._prove_bound(failed)
                return
            self._open.append(failed)
            return
        reached = inf if incident.kind == "completed" else max(incident.reached or 0, seen or 0)
        self._passed(_Passed(reached, start, gang))

    def _prove_bound(self, failed: Failed) -> None:
        """Find the data or the code at fault, by all failures of the class at that step."""
        place = failed.failure_class, failed.step
        known = [*self._bound, *self._open]
        self._bound = [*[each for each in known if (each.failure_class, each.step) == place], failed]
        self._open = []
        self.finding = _data(self._bound)

    def _passed(self, passed: _Passed) -> None:
        """Read the table, where an attempt got past the failures that are open."""
        if not self._open or passed.step <= max(each.step for each in self._open):
            return
        failures, self._open = self._open, []
        others = [name for name in self._reported if name not in {each.reporter for each in failures}]
        for each in failures:
            if each.reporter is not None:
                self._reported.setdefault(each.reporter, set()).add(each.step)
        systems = {each.reporter for each in failures}
        (system,) = systems if len(systems) == 1 else (None,)
        if system is not None and system not in passed.gang and not others:
            self.finding = _system(failures, system)
        elif _is_of_a_state(failures) and passed.start < failures[0].started_from and not others:
            self.finding = _checkpoint(failures, passed.start)
        else:
            self.finding = _chance(failures, self._reported)


def _is_of_a_state(failures: list[Failed]) -> bool:
    """Return whether a state may be to blame: numbers went bad at one step, always from the same checkpoint."""
    places = {(each.step, each.started_from) for each in failures}
    return len(places) == 1 and failures[0].failure_class == "numeric"


@dataclass(frozen=True, slots=True)
class _Passed:
    """How far an attempt came without such a failure, from where, on which systems."""

    step: float
    start: int
    gang: Gang


def _fault(what: str, failures: list[Failed], text: str, **fields: object) -> AtFault:
    steps = tuple(sorted({each.step for each in failures}))
    systems = tuple(dict.fromkeys(each.reporter for each in failures if each.reporter is not None))
    known = {"steps": steps, "systems": systems, **fields}
    return AtFault(what=what, failure_class=failures[0].failure_class, text=text, **known)  # type: ignore[arg-type]


def _data(failures: list[Failed]) -> AtFault:
    """Return that the data or the code is at fault: the step fails from any checkpoint and on any system."""
    origins = _joined(dict.fromkeys(_origin(each.started_from) for each in failures))
    reporters = dict.fromkeys(each.reporter for each in failures if each.reporter is not None)
    where = f", reported by {_joined(reporters)}" if reporters else ""
    text = f"the data or the code: step {failures[-1].step} failed {len(failures)} times, started {origins}{where}"
    return _fault("data_or_code", failures, text)


def _system(failures: list[Failed], system: str) -> AtFault:
    text = f"{system} is suspect: it reported {_failures(failures)}, which has gone since it is not in use"
    return _fault("system", failures, text)


def _checkpoint(failures: list[Failed], start: int) -> AtFault:
    step = failures[0].started_from
    text = f"the checkpoint of step {step}: from it {_failures(failures)} came, and not {_origin(start)}"
    return _fault("checkpoint", failures, text, checkpoint=step)


def _chance(failures: list[Failed], reported: dict[str, set[int]]) -> AtFault:
    where = [f"step {_joined(map(str, sorted(steps)))} on {system}" for system, steps in reported.items()]
    seen = f": {'; '.join(where)}" if len(reported) > 1 else f": {_failures(failures)} did not come again"
    return _fault("chance", failures, f"chance{seen}")


def _failures(failures: list[Failed]) -> str:
    steps = [str(step) for step in sorted({each.step for each in failures})]
    return f"the failure at step {steps[0]}" if len(steps) == 1 else f"the failures at steps {_joined(steps)}"


def _origin(step: int) -> str:
    return f"from step {step}" if step else "from scratch"


def _joined(words: object) -> str:
    return " and ".join(words)  # type: ignore[arg-type]

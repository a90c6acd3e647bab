"""How often the verdicts about labelled logs are right: classes, root lines, false stops, false alarms.

Owns the form of a label and the figures. A line of the file is an object:

    {"file": "job-17.log", "exit_code": 1, "class": "data", "also": ["storage"],
     "root_line": "part of the line that says why", "root_also": ["of one that is as good"]}

`file` is a path beside the file of labels, or a list of paths of one job's ranks. `also` are further classes that are
right, `root_line` and `root_also` parts of lines; only `file` (or `id`, for `ID.log`) and `class` are required.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from prefect_ft import plaintext
from prefect_ft.cli.log_files import lines_around, read_log
from prefect_ft.decide.classify import RECOVERABLE, Catalogue, judge
from prefect_ft.errors import ConfigError
from prefect_ft.model import FailureClass, Verdict

__all__ = ["Label", "figures", "measured", "read_labels", "wilson"]

_Z = 1.959964
"""Of a confidence interval of 95 %."""

_STOPS = ("compile", "assertion", "config")


class Label(NamedTuple):
    """What a person who has read a job's logs says of them."""

    files: tuple[str, ...]
    failure_class: FailureClass
    also: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    recoverable: Any = None

    @property
    def classes(self) -> frozenset[str]:
        return frozenset((self.failure_class, *self.also))


class Outcome(NamedTuple):
    """A label, and the verdict about its logs."""

    label: Label
    verdict: Verdict

    @property
    def is_class_right(self) -> bool:
        return self.verdict.failure_class in self.label.classes

    @property
    def is_root_right(self) -> bool:
        """Return whether the evidence is a line that the label names; without one, whether the class is right."""
        if not self.label.roots:
            return self.is_class_right
        shown = (_text_of(self.verdict), _line_of(self.verdict))
        return any(root in text for root in self.label.roots for text in shown)

    @property
    def is_false_stop(self) -> bool:
        """Return whether a failure that a restart helps against would not be restarted."""
        return (
            self.label.recoverable is True
            and self.verdict.recoverable is False
            and self.verdict.confidence == "high"
        )

    @property
    def is_false_alarm(self) -> bool:
        return self.label.failure_class == "none" and self.verdict.failure_class != "none"


def _text_of(verdict: Verdict) -> str:
    return "" if verdict.evidence is None else verdict.evidence.text


def _line_of(verdict: Verdict) -> str:
    """Return the whole line that shows the root, with what precedes its message."""
    evidence = verdict.evidence
    if evidence is None or evidence.line is None or evidence.file is None:
        return ""
    return "".join(text for _, text in lines_around(evidence.file, evidence.line, 0))


def measured(path: str, catalogue: Catalogue, *, as_json: bool, explain: bool) -> str:
    """Return the figures about a file of labels, with `explain` the jobs that are wrong too; raises ConfigError."""
    outcomes = [_outcome(label, Path(path).parent, catalogue) for label in read_labels(path)]
    if not outcomes:
        raise ConfigError("holds no label", file=path)
    if as_json:
        return plaintext.as_json(figures(outcomes))
    wrong = [line for each in outcomes for line in _wrong(each)] if explain else []
    return "\n".join(map(plaintext.as_line, (*wrong, *_table(figures(outcomes)))))


def read_labels(path: str) -> list[Label]:
    """Read a file of labels; raises ConfigError with the line that is wrong."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", file=path) from error
    labels = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                labels.append(_label(json.loads(line)))
            except (TypeError, ValueError, KeyError) as error:
                raise ConfigError(f"is not a label: {error}", file=f"{path}:{number}") from error
    return labels


def _label(label: Mapping[str, Any]) -> Label:
    failure_class = label["class"]
    if failure_class not in get_args(FailureClass):
        raise ValueError(f"class: got {failure_class!r}, expected one of {', '.join(get_args(FailureClass))}")
    files = label["file"] if "file" in label else f"{label['id']}.log"
    roots = (label.get("root_line") or "", *label.get("root_also", ()))
    return Label(
        files=(files,) if isinstance(files, str) else tuple(files),
        failure_class=failure_class,
        also=tuple(label.get("also", ())),
        roots=tuple(root for root in roots if root),
        exit_code=label.get("exit_code"),
        signal=label.get("signal"),
        recoverable=label.get("recoverable", RECOVERABLE[failure_class]),
    )


def _outcome(label: Label, directory: Path, catalogue: Catalogue) -> Outcome:
    logs = [read_log(str(directory / file), catalogue) for file in label.files]
    return Outcome(label, judge(logs, exit_code=label.exit_code, signal=label.signal))


# -- figures -------------------------------------------------------------------------------------------


def wilson(right: int, of: int) -> tuple[float, float]:
    """Return Wilson's interval of 95 % for a share."""
    if of == 0:
        return 0.0, 1.0
    share, square = right / of, _Z * _Z / of
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / of + square / (4 * of)) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return all figures as one object."""
    healthy = [each for each in outcomes if each.label.failure_class == "none"]
    recoverable = [each for each in outcomes if each.label.recoverable is True]
    low = [each for each in outcomes if each.verdict.confidence == "low"]
    high = [each for each in outcomes if each.verdict.confidence == "high"]
    classes = sorted({each.label.failure_class for each in outcomes})
    return {
        "logs": len(outcomes),
        "class_right": _share(sum(each.is_class_right for each in outcomes), len(outcomes)),
        "root_right": _share(sum(each.is_root_right for each in outcomes), len(outcomes)),
        "false_stops": _share(sum(each.is_false_stop for each in recoverable), len(recoverable)),
        "false_alarms": _share(sum(each.is_false_alarm for each in healthy), len(healthy)),
        "low_confidence": _share(len(low), len(outcomes)),
        "class_right_low": _share(sum(each.is_class_right for each in low), len(low)),
        "class_right_high": _share(sum(each.is_class_right for each in high), len(high)),
        "classes": {name: _of_class(name, outcomes) for name in classes},
    }


def _share(count: int, of: int) -> dict[str, Any]:
    low, high = wilson(count, of)
    return {"count": count, "of": of, "from": round(low, 4), "to": round(high, 4)}


def _of_class(name: str, outcomes: Sequence[Outcome]) -> dict[str, int]:
    labelled = [each for each in outcomes if each.label.failure_class == name]
    named = [each for each in outcomes if each.verdict.failure_class == name]
    return {
        "logs": len(labelled),
        "class_right": sum(each.is_class_right for each in labelled),
        "root_right": sum(each.is_root_right for each in labelled),
        "named": len(named),
        "named_wrongly": sum(not each.is_class_right for each in named),
    }


_TITLES = {
    "class_right": "class right",
    "root_right": "root line right",
    "false_stops": "false stops, of recoverable failures",
    "false_alarms": "false alarms, of healthy runs",
    "low_confidence": "low confidence",
    "class_right_high": "class right, of high confidence",
    "class_right_low": "class right, of low confidence",
}


def _table(figures: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, title in _TITLES.items():
        share = figures[name]
        percent = f"{100 * share['count'] / share['of']:5.1f} %" if share["of"] else "    -  "
        interval = f"95 %: {100 * share['from']:.1f} to {100 * share['to']:.1f}"
        lines.append(f"{title:<37} {share['count']:>5} of {share['of']:<5} {percent}  ({interval})")
    lines.append(
        f"{'class':<20} {'logs':>6} {'class right':>12} {'root right':>11} {'named':>6} {'wrongly':>8}"
    )
    for name, each in figures["classes"].items():
        lines.append(
            f"{name:<20} {each['logs']:>6} {each['class_right']:>12} {each['root_right']:>11} "
            f"{each['named']:>6} {each['named_wrongly']:>8}"
        )
    return lines


def _wrong(outcome: Outcome) -> list[str]:
    if outcome.is_class_right and outcome.is_root_right:
        return []
    label, evidence = outcome.label, outcome.verdict.evidence
    got = (
        ""
        if evidence is None
        else f" ({evidence.rule}), {evidence.file}:{evidence.line}: {evidence.text[:160]}"
    )
    expected = " or ".join((label.failure_class, *label.also))
    root = f": {label.roots[0][:120]}" if label.roots else ""
    return [
        f"{', '.join(label.files)}",
        f"  expected {expected}{root}",
        f"  got      {outcome.verdict.failure_class}{got}",
    ]

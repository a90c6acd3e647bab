"""A verdict as text and as JSON, and what it was chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect_ft import plaintext
from prefect_ft.cli.log_files import lines_around
from prefect_ft.decide.classify import LogFindings, lost
from prefect_ft.model import Verdict

Job = tuple[str, Verdict, Sequence[LogFindings]]
"""A job's name, the verdict about it, and its logs if it is to be explained."""

AROUND = 5
"""Lines before and after the root that are shown."""


def as_one(verdict: Verdict, logs: Sequence[LogFindings], *, as_json: bool) -> str:
    """Return what is printed about one job; `logs` are there where it is to be explained."""
    if as_json:
        return plaintext.as_json(document(verdict) | _explained(verdict, logs))
    return "\n".join(map(plaintext.as_line, (*_lines(verdict), *_why(verdict, logs))))


def as_many(jobs: Sequence[Job], *, as_json: bool) -> str:
    """Return what is printed about several jobs: a line each, or one document with all."""
    if as_json:
        return plaintext.as_json(
            {"jobs": [{"job": name} | document(each) | _explained(each, logs) for name, each, logs in jobs]}
        )
    return "\n".join(plaintext.as_line(line) for job in jobs for line in _lines_of_job(*job))


def document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as the JSON object that users rely on."""
    evidence = verdict.evidence
    return {
        "class": verdict.failure_class,
        "recoverable": verdict.recoverable,
        "confidence": verdict.confidence,
        "blame": verdict.blame,
        "rule": evidence and evidence.rule,
        "role": evidence and evidence.role,
        "file": evidence and evidence.file,
        "line": evidence and evidence.line,
        "evidence": evidence and evidence.text,
        "cascades": [{"rule": one.rule, "file": one.file, "line": one.line} for one in verdict.cascades],
        "signature": verdict.signature,
        "hint": evidence and (evidence.hint or None),
    }


_RESTART_HELPS = {True: "yes", False: "no", "confirm": "one retry to confirm", None: "nothing failed"}


def _lines(verdict: Verdict) -> list[str]:
    evidence = verdict.evidence
    doubt = " (low confidence)" if verdict.confidence == "low" else ""
    lines = [
        f"class        {verdict.failure_class}{doubt}",
        f"restart      {_RESTART_HELPS[verdict.recoverable]}",
    ]
    if evidence is not None:
        place = f"{evidence.file}:{evidence.line}: " if evidence.line is not None else ""
        lines += [f"blame        {verdict.blame}", f"evidence     {place}{evidence.text}"]
        lines += [f"rule         {evidence.rule}", f"signature    {verdict.signature}"]
    if evidence is not None and evidence.hint:
        lines.append(f"hint         {evidence.hint}")
    return lines + [f"followed by  {one.file}:{one.line}: {one.rule}" for one in verdict.cascades]


def _lines_of_job(name: str, verdict: Verdict, logs: Sequence[LogFindings]) -> list[str]:
    evidence = verdict.evidence
    said = "" if evidence is None else evidence.text.strip()[:120]
    if evidence is not None and evidence.line is not None and evidence.file is not None:
        said = f"{evidence.file.rpartition('/')[2]}:{evidence.line}: {said}"
    doubt = "?" if verdict.confidence == "low" else ""
    return [f"{verdict.failure_class + doubt:<19} {name}  {said}".rstrip(), *_why(verdict, logs)]


# -- why -----------------------------------------------------------------------------------------------


def _explained(verdict: Verdict, logs: Sequence[LogFindings]) -> dict[str, Any]:
    if not logs:
        return {}
    return {
        "candidates": [
            {
                "rule": each.finding.signature.id,
                "class": each.finding.signature.failure_class,
                "file": each.file,
                "line": each.finding.line,
                "text": each.finding.text,
                "why_not": each.why,
            }
            for each in lost(logs, verdict)
        ],
        "around": [{"line": number, "text": text} for number, text in _around(verdict)],
    }


def _why(verdict: Verdict, logs: Sequence[LogFindings]) -> list[str]:
    if not logs:
        return []
    lines = []
    for each in lost(logs, verdict):
        finding = each.finding
        lines += [
            (
                f"not          {each.file}:{finding.line}: {finding.signature.failure_class} "
                f"({finding.signature.id}): {each.why}"
            ),
            f"             {finding.text.strip()[:160]}",
        ]
    root = verdict.evidence.line if verdict.evidence is not None else None
    return lines + [
        f"{'>' if number == root else ' '} {number:>10} {text[:200]}" for number, text in _around(verdict)
    ]


def _around(verdict: Verdict) -> list[tuple[int, str]]:
    evidence = verdict.evidence
    if evidence is None or evidence.line is None or not evidence.file:
        return []
    return lines_around(evidence.file, evidence.line, AROUND)

"""The form in which Prefect asks about a decision that waits for a person, and what its answers mean.

Pure. A choice is one or two words with the same meaning as in `prefect-ft approve`: what cannot be done is not
offered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefect_ft.journal.lines import head_of, proposal_in
from prefect_ft.journal.records import Line, ProposedLine
from prefect_ft.model import CHOICES, Answer
from prefect_ft.plaintext import as_line
from prefect_ft.prefect_edge.reporting.markdown import as_text

WAITING = "Waiting for approval"
"""The name of the flow run's state while a decision waits for a person."""

UNNAMED = "somebody in Prefect"
"""Who answered, where the form does not say: Prefect knows no names."""

_CHOICES: Mapping[str, tuple[str, Answer]] = {
    "approve": ("do as proposed", Answer(answer="approve", by="")),
    "reject": ("restart instead, and isolate nothing", Answer(answer="reject", by="")),
    **{
        action: (text, Answer(answer="change", by="", action=action))
        for action, text in zip(
            CHOICES, ("start again in the same workers", "create all workers anew", "give up"), strict=True
        )
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about the decision `number` of the phase in `directory`; `key` names it among a flow run's inputs.

    The key has the characters that Prefect allows: lower case, digits, dashes.
    """

    key: str
    directory: str
    number: int
    message: str
    description: str
    choices: Mapping[str, Answer]

    @property
    def schema(self) -> dict[str, Any]:
        """The form, as JSON Schema."""
        answer = {
            "type": "string",
            "title": "Answer",
            "description": "What is to be done.",
            "enum": list(self.choices),
            "position": 0,
        }
        by = {"type": "string", "title": "Your name", "description": "For the journal.", "position": 1}
        return {
            "title": "Answer",
            "type": "object",
            "properties": {"answer": answer, "by": by},
            "required": ["answer"],
            "additionalProperties": False,
        }

    def answer_in(self, form: Mapping[str, Any]) -> Answer | None:
        """Return the answer in a filled-in form; None: it has none."""
        answer = self.choices.get(str(form.get("answer")))
        return replace(answer, by=str(form.get("by") or UNNAMED)) if answer is not None else None


def question_in(run: str, directory: str, lines: Sequence[Line]) -> Question | None:
    """Return the question that a phase's journal leaves open; None: there is none."""
    proposed = proposal_in(lines)
    if proposed is None:
        return None
    head = head_of(lines)
    systems = (head.systems or ()) if head is not None else ()
    return Question(
        key=re.sub(r"[^a-z0-9]+", "-", f"prefect-ft {run} {directory} {proposed.n}".lower()),
        directory=directory,
        number=proposed.n,
        message=as_line(f"{proposed.reason} (until {proposed.until})"),
        description=_description(proposed),
        choices={
            **{name: answer for name, (_, answer) in _CHOICES.items()},
            **{f"isolate {name}": Answer(answer="change", by="", isolate=(name,)) for name in systems},
        },
    )


def _description(proposed: ProposedLine) -> str:
    meanings = [f"- `{name}`: {meaning}" for name, (meaning, _) in _CHOICES.items()]
    meanings.append("- `isolate SYSTEM`: take this system out of use instead, and start again")
    default = as_text(proposed.default or "approve")
    isolated = f" of {as_text(' and '.join(proposed.isolate))}" if proposed.isolate else ""
    return "\n".join(
        [
            f"Proposed: **{as_text(proposed.action)}**{isolated}. {as_text(proposed.reason)}",
            "",
            f"Without an answer until {as_text(proposed.until)} it is: {default}.",
            "",
            *meanings,
        ]
    )

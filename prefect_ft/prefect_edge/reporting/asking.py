"""Asks in Prefect about the decision that waits for a person, and passes the answer on to the gate."""

from __future__ import annotations

from collections.abc import Iterable

from prefect_ft.prefect_edge.reporting.api import OpenApi
from prefect_ft.prefect_edge.reporting.question import question_in
from prefect_ft.report.tail import Tail
from prefect_ft.run import Run


class Asking:
    """What this process has asked, and the answers; Prefect keeps both for an orchestrator that comes back."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self.is_waiting = False

    def look(self, api: OpenApi, phases: Iterable[Tail]) -> None:
        """Ask new questions, and take new answers, each once."""
        self.is_waiting = False
        for phase in phases:
            question = question_in(self._run.run_id, phase.directory.name, phase.lines)
            if question is None or question.key in self._answered:
                continue
            self.is_waiting = True
            if (answer := api.answer_to(question)) is not None:
                self._run.answer(question.directory, question.number, answer)
                self._answered.add(question.key)
            elif question.key not in self._asked:
                api.ask(question)
                self._asked.add(question.key)

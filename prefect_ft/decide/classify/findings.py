"""What a log may say of a failure: findings, and the bounded store of them.

Owns how many are kept: the first and the last of each rule. Reads no text.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from prefect_ft.decide.classify.closing import Complaint
from prefect_ft.decide.classify.tracebacks import Raised
from prefect_ft.decide.classify.unreadable import Resumption
from prefect_ft.signatures import Signature

__all__ = ["BUFFERED_BYTES", "KEPT_LAST", "WENT_ON", "Finding", "LogFindings", "Store"]

_FIRST = 4  # findings of a rule
KEPT_LAST = 4
"""How many of the last findings of a rule are kept."""

BUFFERED_BYTES = 8 * 8192
"""How much eight ranks may print late, of what they did before one of them failed."""

WENT_ON = "the run went on after it"
"""Why a finding was dropped: later output shows that the run went on."""

_RULES = 200
_NUMBER = re.compile(r"\d+")
_SURVIVED = 3  # times that a run went on after a line show that it goes on after it
_OVER = 32  # dropped findings that are remembered, to explain verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line that may say why a run failed; `order` is its place among all of its log.

    `raised` is the exception if the line ends a traceback. `stamp` is when it was written, in seconds on
    the scale of the logs themselves; `None` if they do not say.
    """

    signature: Signature
    text: str
    line: int
    order: int
    rank: str = ""
    level: str = ""
    raised: Raised | None = None
    stamp: float | None = None
    is_mention: bool = False
    """Whether it only names an exception, without a traceback."""

    @property
    def form(self) -> str:
        """Its rule and its text without numbers: the same for another line that says the same."""
        return f"{self.signature.id}: {_NUMBER.sub('', self.text)}"

    @property
    def first_line(self) -> int:
        """About the number of the first line of its event: every line of a traceback is read."""
        return self.line - (self.order - self.raised.begun) if self.raised is not None else self.line

    @property
    def last_line(self) -> int:
        """About the number of the last line of its event: what follows an exception in a chain belongs to it."""
        return self.line + max(0, self.raised.ended - self.order) if self.raised is not None else self.line


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFindings:
    """The result of reading a log: findings in order, its last lines, and whether the run progressed."""

    file: str
    findings: tuple[Finding, ...] = ()
    tail: tuple[str, ...] = ()
    closing_ranks: tuple[str, ...] = ()
    """Which rank printed each of the last lines, as its prefix names it."""
    bytes_after: int = 0
    """How much follows the last finding that was noted."""
    had_progress: bool = False
    completed: int | None = None
    """The place among all lines at which the run said that it has completed; `None` if it never did."""
    begun: int = 0
    """The place at which the last run began, according to the log."""
    resumption: Resumption | None = None
    """The checkpoint that its rank may have been reading when it ended; `None` if none is known."""
    goes_on: bool = False
    """Whether the last lines are like those before the last traceback."""
    breaks_off: bool = False
    """Whether the log ends within a traceback."""
    held_back: tuple[Finding, ...] = ()
    """Findings before a line that reports a beginning, but may have been printed late."""
    earlier: tuple[Finding, ...] = ()
    """Findings before the last start that was recognised by the log's first lines, in case it was no new run."""
    is_warned: bool = False
    """Whether that start was recognised by a warning alone: another process may have printed it."""
    complaints: tuple[Complaint, ...] = ()
    """The complaints of the last lines, in any words."""
    over: tuple[tuple[Finding, str], ...] = ()
    """The last dropped findings, each with the reason."""
    survived: frozenset[str] = frozenset()
    """The forms of the findings that the run has survived so often that another one like them ends nothing."""
    number_of_tail: Callable[[int], int] = lambda index: index + 1
    """Counts the lines up to one of the tail, by its index there."""


@dataclass(slots=True)
class _Kept:
    """The first and the last findings of one rule."""

    first: list[Finding] = field(default_factory=list)
    last: deque[Finding] = field(default_factory=lambda: deque(maxlen=KEPT_LAST))

    def all(self) -> tuple[Finding, ...]:
        return (*self.first, *self.last)


class Store:
    """Findings by their rules; of a rule with many, those in the middle are dropped."""

    def __init__(self) -> None:
        self._rules: dict[str, _Kept] = {}
        self._over: deque[tuple[Finding, str]] = deque(maxlen=_OVER)
        self._survived: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._rules)

    def add(self, finding: Finding) -> None:
        rule = finding.signature.id
        if rule not in self._rules and len(self._rules) >= _RULES:
            return
        kept = self._rules.setdefault(rule, _Kept())
        if len(kept.first) < _FIRST:
            kept.first.append(finding)
        else:
            kept.last.append(finding)

    def is_among_the_first(self, rule: str) -> bool:
        """Return whether another finding of a rule would stay."""
        return rule not in self._rules or len(self._rules[rule].first) < _FIRST

    def drop(self, finding: Finding) -> None:
        """Remove a finding, if it is there."""
        rule = finding.signature.id
        if (kept := self._rules.get(rule)) is None:
            return
        kept.first = [one for one in kept.first if one is not finding]
        kept.last = deque((one for one in kept.last if one is not finding), maxlen=KEPT_LAST)
        if not kept.all():
            del self._rules[rule]

    def forget(self, is_over: Callable[[Finding], bool], why: str) -> None:
        """Drop findings, and remember why the first one dropped of each rule was."""
        for rule, kept in list(self._rules.items()):
            dropped = [one for one in kept.all() if is_over(one)]
            if not dropped:
                continue
            self._over.append((dropped[0], why))
            self._count({one.form for one in dropped})
            kept.first = [one for one in kept.first if not is_over(one)]
            kept.last = deque((one for one in kept.last if not is_over(one)), maxlen=KEPT_LAST)
            if not kept.all():
                del self._rules[rule]

    def _count(self, forms: set[str]) -> None:
        for form in forms:
            if form in self._survived or len(self._survived) < _RULES:
                self._survived[form] += 1

    def clear(self, why: str) -> None:
        """Drop all, and what was survived."""
        self.forget(lambda _: True, why)
        self._survived.clear()

    def survived(self) -> frozenset[str]:
        """Return the forms of findings that were dropped again and again."""
        return frozenset(form for form, times in self._survived.items() if times >= _SURVIVED)

    def over(self) -> tuple[tuple[Finding, str], ...]:
        """Return the last dropped findings, each with the reason."""
        return tuple(self._over)

    def in_order(self) -> tuple[Finding, ...]:
        """Return what is kept in the log's order."""
        kept = (finding for each in self._rules.values() for finding in each.all())
        return tuple(sorted(kept, key=lambda one: one.order))

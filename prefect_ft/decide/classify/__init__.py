"""Why a run failed, from its logs, exit code and signal: the catalogue, the reading, the choice of the root.

`LogScanner` reads one log as it comes, `judge` brings the logs of a job together, `classify` does both
for given lines. Pure except for the package's own catalogue. The policy decides what follows from
a class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prefect_ft.decide.classify.catalogue import Catalogue, builtin_catalogue, with_own
from prefect_ft.decide.classify.explain import Lost, lost
from prefect_ft.decide.classify.findings import LogFindings
from prefect_ft.decide.classify.literals import texts_of
from prefect_ft.decide.classify.root import judge, only_lost_its_peer
from prefect_ft.decide.classify.scanner import LogScanner
from prefect_ft.decide.classify.unreadable import Resumption
from prefect_ft.model import Verdict
from prefect_ft.signatures import RECOVERABLE, Signature

__all__ = [
    "RECOVERABLE",
    "Catalogue",
    "LogFindings",
    "LogScanner",
    "Lost",
    "Resumption",
    "builtin_catalogue",
    "classify",
    "judge",
    "lost",
    "only_lost_its_peer",
    "signs_of",
    "with_own",
]


def signs_of(signatures: Iterable[Signature]) -> tuple[str, ...]:
    """Return texts that occur in every line that these signatures may match, for readers without patterns."""
    telling = (each.pattern for each in signatures if each.role in ("root", "cascade"))
    return tuple(dict.fromkeys(text for pattern in telling for text in texts_of(pattern)))


def classify(
    logs: Mapping[str, Sequence[str]],
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    catalogue: Catalogue | None = None,
) -> Verdict:
    """Return why a run failed; `logs` are the lines of its ranks by file name.

    `exit_code` and `signal` are those of the rank that ended first; an exit code of -n or 128 + n is
    taken for the signal n.
    """
    found = []
    for file, lines in logs.items():
        scanner = LogScanner(file, catalogue)
        scanner.feed_lines(lines)
        found.append(scanner.findings())
    return judge(found, exit_code=exit_code, signal=signal)

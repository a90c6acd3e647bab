"""The jobs whose logs lie below a directory, each with the logs of its ranks.

Owns which files belong together. A `run.log` of prefect-ft holds the attempts of a phase, and the journal beside it
says how each ended.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from prefect_ft import pieces
from prefect_ft.cli.log_files import read_log
from prefect_ft.decide.classify import Catalogue, LogFindings, LogScanner
from prefect_ft.errors import ConfigError, PrefectFTError
from prefect_ft.journal.replay import read_recording
from prefect_ft.model import Incident

__all__ = ["Job", "jobs_below"]

RUN_LOG = "run.log"
_LOGS = re.compile(r"\.(?:log|out|err|txt|o\d+|e\d+)(?:\.(?:gz|zst))?$|^(?:stdout|stderr)$")
"""Names of logs, among what else lies in a directory."""

_RANK = re.compile(r"(?i)(?:local_rank|rank|worker|node|host|task|proc|replica)[-_.]?\d+")
_STREAM = re.compile(r"(?i)(?:std)?(?:out|err)\b|\b[oe](?=\d+$)")
_LINE = re.compile(rb"\[a(\d+) w\d+ r(\d+)\] ")


class Job(NamedTuple):
    """One job, or one attempt of a phase: its name, its logs, and how it ended as far as that is known."""

    name: str
    logs: Sequence[LogFindings]
    exit_code: int | None = None
    signal: int | None = None


def jobs_below(path: str, catalogue: Catalogue) -> Iterator[Job]:
    """Read the jobs of a directory, or the one of a file; raises ConfigError."""
    if not os.path.isdir(path):
        yield Job(path, [read_log(path, catalogue)])
        return
    for directory, names, files in os.walk(path):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if RUN_LOG in files:
            yield from _attempts(Path(directory), catalogue)
        for job, members in sorted(_together(files).items()):
            logs = [read_log(os.path.join(directory, name), catalogue) for name in sorted(members)]
            name = members[0] if len(members) == 1 else job
            yield Job(os.path.join(directory, name), logs)


def _together(files: Sequence[str]) -> dict[str, list[str]]:
    """Put together the files of the ranks of one job, and both streams of one process."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for name in files:
        if _LOGS.search(name) and not name.startswith(RUN_LOG) and not name.startswith("."):
            jobs[_STREAM.sub("*", _RANK.sub("*", name))].append(name)
    return jobs


# -- a phase of ours -----------------------------------------------------------------------------------


def _attempts(phase: Path, catalogue: Catalogue) -> Iterator[Job]:
    """Read each attempt of a phase from its log; line numbers are those of the attempt's rank."""
    scanners: dict[int, dict[int, LogScanner]] = defaultdict(dict)
    try:
        with pieces.opened(phase / RUN_LOG) as opened:
            for _, stream in opened:
                for line in stream:
                    if (prefix := _LINE.match(line)) is not None:
                        attempt, rank = int(prefix[1]), int(prefix[2])
                        ranks = scanners[attempt]
                        if rank not in ranks:
                            ranks[rank] = LogScanner(f"rank{rank}", catalogue)
                        ranks[rank].feed(line[prefix.end() :])
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=str(phase / RUN_LOG)) from error
    ends = _ends(phase / "journal.jsonl")
    for attempt, ranks in sorted(scanners.items()):
        end = ends.get(attempt)
        yield Job(
            f"{phase} attempt {attempt}",
            [scanner.findings() for _, scanner in sorted(ranks.items())],
            exit_code=end.exit_code if end else None,
            signal=end.signal if end else None,
        )


def _ends(journal: Path) -> dict[int, Incident]:
    """Return how each attempt ended, as far as the journal tells."""
    try:
        history = read_recording(str(journal)).history
    except (PrefectFTError, OSError):
        return {}
    return {entry.incident.attempt: entry.incident for entry in history if entry.incident.attempt is not None}

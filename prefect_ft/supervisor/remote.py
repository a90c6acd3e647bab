"""Scans checkpoints at a URL, which no agent does, and reports them as an agent reports those in a directory.

Scans run in a thread of the watch: an object store that hangs must not hang the supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prefect_ft.errors import BackendError
from prefect_ft.observe import Notice, tell
from prefect_ft.supervisor.asking import Wait
from prefect_ft.supervisor.bucket import Bucket
from prefect_ft.supervisor.calls import Calls
from prefect_ft.supervisor.events import Event, read_event
from prefect_ft.supervisor.resuming import Choice
from prefect_ft.supervisor.roster import Roster
from prefect_ft.supervisor.times import CHOOSE_TIMEOUT_S
from prefect_ft.worker.announcing import Announcements
from prefect_ft.worker.checkpoint_watch import Answer, CheckpointWatch, Criteria, criteria_of
from prefect_ft.worker.protocol import Token

RETRY_S = 2.0
"""The pause after a scan of a store that cannot be reached."""


class Remote:
    """Looks for one phase. `hear` gets events as from an agent, in the supervisor's thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        every_s: float,
        calls: Calls,
        *,
        hear: Callable[[Event], None],
        step_now: Callable[[], int | None],
        token: Callable[[], Token],
    ) -> None:
        """`settings` as for Finder, with the URL as `path`; `step_now` is the step that ranks have reported last."""
        self.url: str = settings["path"]
        self._hear, self._token = hear, token
        self._announcements = Announcements()
        self._watch = CheckpointWatch(
            {**settings},
            Bucket(self.url),
            every_s=every_s,
            on_answer=lambda: calls.soon(self._take),
        )
        self._watch.follow(step_now)
        self._criteria: Criteria | None = None
        self._choosing: int | None = None
        self._looking: int | None = None
        self._settled = False
        self.has_seen = False
        """Whether the store has ever been reached."""
        self._has_reported_away = False
        self.choice: Choice | None = None
        """The answer to the last request to choose; None: there is none yet."""
        self.why_away: str | None = None
        """Why the last scan failed; None: it did not."""
        self.skipped: Mapping[str, str] | None = None
        """What the last requested scan could not verify; None: the scan has not ended."""

    def begin(self, deaths: Iterable[float]) -> None:
        """Start scanning. `deaths` are when writers died, in seconds since the epoch. Idempotent."""
        self._watch.writers_died(*deaths)
        self._watch.begin()

    def choose(self, fields: Mapping[str, Any]) -> None:
        """Choose the checkpoint to resume from; `fields` are those of the order `choose`."""
        self.choice = None
        self._watch.writers_died(*fields["deaths"])
        self._announcements.know(fields["verified"])
        self._criteria = criteria_of(fields)
        self.choose_again()

    def choose_again(self) -> None:
        """Scan again for the last request to choose."""
        assert self._criteria is not None
        self.why_away = None
        self._choosing = self._watch.choose(self._criteria)

    def look(self, deaths: Iterable[float], *, settled: bool) -> None:
        """Scan after all writers have ended; `settled`: all of them successfully."""
        self.skipped, self._settled = None, settled
        self._watch.writers_died(*deaths)
        self.look_again()

    def look_again(self) -> None:
        """Scan again after all writers have ended."""
        self.why_away = None
        self._looking = self._watch.look(self._settled)

    def away(self) -> BackendError:
        """Return the error for a store that has been unreachable for too long."""
        why = self.why_away or "gives no answer"
        return BackendError(f"checkpoints at {self.url}: {why}; resume the run once the store can be reached")

    @property
    def is_scanning(self) -> bool:
        """Whether the last scan has not ended."""
        return self._looking is not None

    def close(self) -> None:
        """Stop scanning. Idempotent."""
        self._watch.close()

    def _take(self) -> None:
        for answer in self._watch.answers():
            if answer.is_away:
                self._report_away(answer)
            else:
                self._has_reported_away, self.has_seen = False, True
                for name, fields in self._announcements.of(answer):
                    event = read_event({"ev": name, "token": [*self._token()], **fields})
                    assert event is not None
                    self._hear(event)
            self._answered(answer)

    def _answered(self, answer: Answer) -> None:
        if answer.number is not None and answer.number == self._choosing:
            self._choosing = None
            if answer.is_away:
                self.why_away = answer.why_not["."]
            else:
                chosen = answer.chosen
                step, path = (chosen.step, chosen.path) if chosen is not None else (None, None)
                self.choice = Choice(step, path, answer.why_not)
        if answer.number is not None and self._looking is not None and answer.number >= self._looking:
            if answer.is_away:
                self.why_away = answer.why_not["."]
            else:
                self._looking, self.skipped = None, answer.why_not

    def _report_away(self, answer: Answer) -> None:
        """Report that the store cannot be reached; once, until it is reached again."""
        if not self._has_reported_away:
            self._has_reported_away = True
            tell(Notice(text=f"checkpoints at {self.url}: {answer.why_not['.']}; looking again"))


class _RetriedScan:
    """A scan that is repeated, for a limited time, while the store cannot be reached."""

    def __init__(self, remote: Remote, again: Callable[[], None], now_s: float) -> None:
        self._remote, self._again = remote, again
        self._until_s = now_s + CHOOSE_TIMEOUT_S
        self._again_s: float | None = None

    @property
    def due_s(self) -> float:
        """When to scan again, or to give up."""
        return self._until_s if self._again_s is None else min(self._again_s, self._until_s)

    def is_over(self, now_s: float) -> bool:
        """Return whether the time is over; scan again after a failed one."""
        if now_s >= self._until_s:
            return True
        if self._remote.why_away is not None and self._again_s is None:
            self._again_s = now_s + RETRY_S
        if self._again_s is not None and now_s >= self._again_s:
            self._again_s = None
            self._again()
        return False


class Chosen:
    """The wait for a remote choice, repeated while the store cannot be reached."""

    def __init__(self, remote: Remote, now_s: float) -> None:
        self._remote, self._asked = remote, _RetriedScan(remote, remote.choose_again, now_s)

    @property
    def due_s(self) -> float:
        """When `look` has to be asked."""
        return self._asked.due_s

    def look(self, _roster: Roster, now_s: float) -> bool:
        """Return whether there is a choice; raises BackendError where the store is unreachable for too long."""
        if self._remote.choice is not None:
            return True
        if self._asked.is_over(now_s):
            raise self._remote.away()
        return False


class ScannedAfter:
    """A wait followed by one for a last scan of the checkpoints."""

    def __init__(self, first: Wait, begin: Callable[[], None], remote: Remote) -> None:
        self._first, self._begin, self._remote = first, begin, remote
        self._asked: _RetriedScan | None = None

    @property
    def due_s(self) -> float | None:
        """When `look` has to be asked."""
        return self._first.due_s if self._asked is None else self._asked.due_s

    def look(self, roster: Roster, now_s: float) -> bool:
        """Return whether both are over. Where the store stays unreachable, earlier scans count.

        Raises BackendError where it was never reached: that would look like an empty store.
        """
        if self._asked is None:
            if not self._first.look(roster, now_s):
                return False
            self._begin()
            self._asked = _RetriedScan(self._remote, self._remote.look_again, now_s)
        if not self._remote.is_scanning:
            return True
        if not self._asked.is_over(now_s):
            return False
        if not self._remote.has_seen:
            raise self._remote.away()
        return True

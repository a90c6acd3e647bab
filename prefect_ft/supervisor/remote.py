"""Looks at checkpoints at a URL, which no agent does, and reports them as an agent reports those in a directory.

The looks themselves happen in a thread of the watch: an object store that hangs must not hang the supervisor.
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
from prefect_ft.worker.checkpoint_watch import Answer, CheckpointWatch, Criteria
from prefect_ft.worker.checkpoints import known_by_path
from prefect_ft.worker.protocol import Token

RETRY_S = 2.0
"""How long after a look at a store that cannot be reached the next one is."""


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
        self._has_said_away = False
        self.choice: Choice | None = None
        """What was chosen since that was asked."""
        self.why_away: str | None = None
        """Why the last answer is none; None: it is one."""
        self.passed_over: Mapping[str, str] | None = None
        """What could not be verified at the last look that was asked for; None: that has not come to its end."""

    def begin(self, deaths: Iterable[float]) -> None:
        """Look from now on. `deaths` are when writers died, in seconds since the epoch. Idempotent."""
        self._watch.writers_died(*deaths)
        self._watch.begin()

    def choose(self, fields: Mapping[str, Any]) -> None:
        """Choose the checkpoint to resume from; `fields` are those of the order `choose`."""
        self.choice = None
        self._watch.writers_died(*fields["deaths"])
        self._announcements.know(fields["verified"])
        self._criteria = Criteria(
            fields["limit"], fields["avoid"], known_by_path(fields["verified"]), fields["unreadable"]
        )
        self.choose_again()

    def choose_again(self) -> None:
        """Look once more, by what was asked last."""
        assert self._criteria is not None
        self.why_away = None
        self._choosing = self._watch.choose(self._criteria)

    def look(self, deaths: Iterable[float], *, settled: bool) -> None:
        """Look when nobody writes any more; `settled`: all came to a good end."""
        self.passed_over, self._settled = None, settled
        self._watch.writers_died(*deaths)
        self.look_again()

    def look_again(self) -> None:
        """Look once more, when nobody writes any more."""
        self.why_away = None
        self._looking = self._watch.look(self._settled)

    def away(self) -> BackendError:
        """Return that the store has been away for too long."""
        why = self.why_away or "gives no answer"
        return BackendError(f"checkpoints at {self.url}: {why}; resume the run once the store can be reached")

    @property
    def is_looking(self) -> bool:
        """Whether the last look has not come to its end."""
        return self._looking is not None

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._watch.close()

    def _take(self) -> None:
        for answer in self._watch.answers():
            if answer.is_away:
                self._say_away(answer)
            else:
                self._has_said_away, self.has_seen = False, True
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
                self._looking, self.passed_over = None, answer.why_not

    def _say_away(self, answer: Answer) -> None:
        """Say that the store cannot be reached; once, until it is reached again."""
        if not self._has_said_away:
            self._has_said_away = True
            tell(Notice(text=f"checkpoints at {self.url}: {answer.why_not['.']}; looking again"))


class _Retried:
    """A look that is asked again while the store cannot be reached, for a time."""

    def __init__(self, remote: Remote, again: Callable[[], None], now_s: float) -> None:
        self._remote, self._again = remote, again
        self._until_s = now_s + CHOOSE_TIMEOUT_S
        self._again_s: float | None = None

    @property
    def due_s(self) -> float:
        """When to look again, or to give up."""
        return self._until_s if self._again_s is None else min(self._again_s, self._until_s)

    def is_over(self, now_s: float) -> bool:
        """Return whether the time is over; look again where the last answer was none."""
        if now_s >= self._until_s:
            return True
        if self._remote.why_away is not None and self._again_s is None:
            self._again_s = now_s + RETRY_S
        if self._again_s is not None and now_s >= self._again_s:
            self._again_s = None
            self._again()
        return False


class Chosen:
    """The wait for the choice of a remote look, asked again while the store cannot be reached."""

    def __init__(self, remote: Remote, now_s: float) -> None:
        self._remote, self._asked = remote, _Retried(remote, remote.choose_again, now_s)

    @property
    def due_s(self) -> float:
        """When `look` has to be asked."""
        return self._asked.due_s

    def look(self, _roster: Roster, now_s: float) -> bool:
        """Return whether it has been chosen; raises BackendError where the store is away for too long."""
        if self._remote.choice is not None:
            return True
        if self._asked.is_over(now_s):
            raise self._remote.away()
        return False


class LookedAfter:
    """A wait, and then for a last look at the checkpoints, which begins when the wait is over."""

    def __init__(self, first: Wait, begin: Callable[[], None], remote: Remote) -> None:
        self._first, self._begin, self._remote = first, begin, remote
        self._asked: _Retried | None = None

    @property
    def due_s(self) -> float | None:
        """When `look` has to be asked."""
        return self._first.due_s if self._asked is None else self._asked.due_s

    def look(self, roster: Roster, now_s: float) -> bool:
        """Return whether both are over. A store that stays away is left to what was seen before.

        Raises BackendError where nothing has ever been seen of it: that would be taken for nothing being there.
        """
        if self._asked is None:
            if not self._first.look(roster, now_s):
                return False
            self._begin()
            self._asked = _Retried(self._remote, self._remote.look_again, now_s)
        if not self._remote.is_looking:
            return True
        if not self._asked.is_over(now_s):
            return False
        if not self._remote.has_seen:
            raise self._remote.away()
        return True

"""The errors that callers may catch: one base, named for what went wrong, with the parts as fields."""

from __future__ import annotations

from prefect_ft.plaintext import as_lines


class PrefectFTError(Exception):
    """The base of all errors of this package; its text is one line that says what to do.

    Whatever it contains (a path, a message of a cluster's API or a rank), the text can be written to a terminal or a
    log unchanged: Prefect logs it too.
    """

    def __str__(self) -> str:
        return as_lines(super().__str__())


class ConfigError(PrefectFTError):
    """Something that the user wrote cannot be used; nothing has been started.

    `str()` gives `FILE:LINE: FIELD: MESSAGE` with the parts that are known.
    """

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, field: str | None = None
    ) -> None:
        """`line` counts from 1; `field` is the dotted path inside the file."""
        self.message, self.file, self.line, self.field = message, file, line, field
        place = f"{file}:{line}" if file and line else file
        super().__init__(": ".join(part for part in (place, field, message) if part))


class RunElsewhereError(ConfigError):
    """The workers of a run may be alive on a machine that this one cannot see; nothing has been touched."""


class NewerFormatError(ConfigError):
    """A file of a run has a format of a later version, which this one cannot read; nothing has been touched."""


class JournalError(PrefectFTError):
    """The journal cannot be read or written; without it nothing may be restarted."""


class AgentError(PrefectFTError):
    """A worker's agent refused an order or broke the protocol."""


class BackendError(PrefectFTError):
    """The infrastructure did not do what it was asked to; `system` is where, if that is known.

    `on_any_system`: it would also happen on any other system, so none is to blame.
    """

    def __init__(self, message: str, *, system: str | None = None, on_any_system: bool = False) -> None:
        self.system, self.on_any_system = system, on_any_system
        super().__init__(message)


class TenureEndedError(BackendError):
    """The systems no longer belong to the run: the scheduler has taken all of them."""

    def __init__(self, message: str) -> None:
        super().__init__(message, on_any_system=True)


class TenureCancelledError(BackendError):
    """A person has cancelled the source of the run's systems, and so the run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, on_any_system=True)


class NotStartedError(PrefectFTError):
    """The run was cancelled before it had systems to run on."""


class RunHeldError(PrefectFTError):
    """Another orchestrator holds the run; nothing has been touched."""

    def __init__(self, run_id: str, holder: str) -> None:
        self.run_id, self.holder = run_id, holder
        super().__init__(f"run {run_id} is held by {holder}; nothing was touched")


class SystemHeldError(PrefectFTError):
    """A system of this machine serves another run; nothing has been started. Empty texts: not known."""

    def __init__(self, system: str, *, run_id: str, job: str, model_dir: str) -> None:
        self.system, self.run_id, self.job, self.model_dir = system, run_id, job, model_dir
        whom = f"run {run_id} of the job {job} in {model_dir}" if run_id else "another process"
        how = f"end it (`prefect-ft cancel {run_id}`)" if run_id else "end that"
        super().__init__(
            f"system {system} serves {whom}: wait until it is free, {how}, or name other systems; "
            "nothing was started"
        )


class LeaseLostError(PrefectFTError):
    """The run belongs to another orchestrator now, or to the next one: this one must not touch it any more."""


class ComebackError(PrefectFTError):
    """A run could not be resumed; surviving workers keep running, for another try."""


class UnfinishedRunError(PrefectFTError):
    """A model directory holds an unfinished run without an orchestrator; nothing has been touched."""

    def __init__(self, run_id: str, model_dir: str) -> None:
        self.run_id, self.model_dir = run_id, model_dir
        super().__init__(
            f"{model_dir} holds run {run_id}, which has not ended: resume it (--resume), "
            "or end it and start again (--fresh)"
        )


class RunFailedError(PrefectFTError):
    """A phase gave up; the text is the reason of the decision that did so."""

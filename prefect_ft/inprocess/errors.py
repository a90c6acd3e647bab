"""What the wrapper raises. Owns the classes and their texts, nothing else."""

from __future__ import annotations


class InProcessError(Exception):
    """Base of everything that the wrapper raises by itself."""


class RestartAbort(InProcessError):  # noqa: N818  (the name that users of NVRx know)
    """No further restart in this process; raised by the wrapper, or by a hook that wants that on all ranks."""


class ExcludedError(InProcessError):
    """This rank does not take part any more; the others go on."""


class HealthCheckError(InProcessError):
    """What a health check raises where it finds this rank unfit; so does any other exception."""


class HookTimeoutError(InProcessError):
    """A hook of the wrapper took too long and was interrupted."""


class StoreLostError(InProcessError):
    """The store cannot be reached; without it no restart can be agreed on."""


class StaleError(InProcessError):
    """The iteration to which this belongs has ended."""


class Interrupted(BaseException):
    """Ends the wrapped function because another rank failed, or this one made no progress.

    No `Exception`: what catches errors in the function must not catch it.
    """

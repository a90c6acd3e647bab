"""What the wrapper raises. Owns the classes and their texts only."""

from __future__ import annotations


class InProcessError(Exception):
    """Base of everything that the wrapper raises by itself."""


class RestartAbort(InProcessError):  # noqa: N818  (the name that users of NVRx know)
    """No further restart in this process; raised by the wrapper, or by a hook that wants that on all ranks."""


class ExcludedError(InProcessError):
    """This rank no longer takes part; the others continue."""


class HealthCheckError(InProcessError):
    """What a health check raises where it finds this rank unfit; so does any other exception."""


class HookTimeoutError(InProcessError):
    """A hook of the wrapper took too long and was interrupted."""


class StoreLostError(InProcessError):
    """The store cannot be reached; without it no restart can be agreed on."""


class StaleError(InProcessError):
    """The iteration of this object has ended."""


class Interrupted(BaseException):
    """Ends the wrapped function because another rank failed, or this one made no progress.

    Not an `Exception`: handlers of errors in the function must not catch it.
    """

"""What the wrapper and its hooks raise."""

from __future__ import annotations


class RestartError(Exception):
    """Base of the exceptions that the wrapper raises."""


class RestartAbort(BaseException):
    """No further restart on any rank; `except Exception` does not catch it."""


class HealthCheckError(RestartError):
    """A health check found this rank unfit."""


class InternalError(RestartError):
    """The wrapper itself failed."""


class TimeoutError(RestartError):  # noqa: A001  (the name that users know)
    """A hook took longer than its timeout."""

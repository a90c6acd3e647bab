"""How much a finding explains, compared with another of the same chain or job.

Owns the order of weights: causes, consequences, reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_ft.decide.classify.kinds import only_tells, says_little
from prefect_ft.signatures import Signature

if TYPE_CHECKING:
    from prefect_ft.decide.classify.findings import Finding

__all__ = [
    "ASIDE",
    "BARE",
    "BY_EXCEPTION",
    "CASCADE",
    "GENERIC",
    "INTERRUPTED",
    "MENTIONED",
    "REPORT",
    "ROOT",
    "only_reports",
    "says_nothing",
    "weight",
    "wraps",
    "wraps_in_chain",
]

ROOT, INTERRUPTED, BARE, CASCADE, MENTIONED, REPORT, ASIDE = range(7)
"""From what explains most to what explains least; BARE is a crash that does not say why, ASIDE what goes wrong
beside a run: a module that a job script does not find."""

BY_EXCEPTION = frozenset(("config", "user_code", "assertion", "data", "compile", "numeric", "checkpoint"))
"""Classes that end a program by an exception: a consequence of another failure, or a message beside it, is not
one of them."""

GENERIC = Signature(id="python-exception", failure_class="user_code", pattern="Error")
"""An exception that the catalogue does not know."""

_WRAPPERS = frozenset(("RuntimeError", "Exception", "SystemExit", "BaseException"))
_INTERRUPTIONS = frozenset(("KeyboardInterrupt", "SignalException", "SIGTERMException"))
"""What the handlers of signals raise, wherever the program is."""


def weight(finding: Finding) -> int:
    """Return how little a finding explains."""
    signature = finding.signature
    raised = finding.raised
    if raised is not None and raised.is_aside and (signature.role != "cascade" or raised.is_of_feeder):
        return MENTIONED
    if signature.failure_class == "unknown":
        return REPORT
    if signature.role == "cascade":
        return ASIDE if signature.failure_class in BY_EXCEPTION and finding.raised is None else CASCADE
    if _is_aside(finding):
        return MENTIONED
    if signature.failure_class == "crash":
        return BARE
    return INTERRUPTED if _is_by_keyboard(finding) else ROOT


def _is_by_keyboard(finding: Finding) -> bool:
    raised = finding.raised
    return raised is not None and (
        raised.plain_name == "KeyboardInterrupt" or finding.signature.id == "interrupt-keyboard"
    )


def _is_aside(finding: Finding) -> bool:
    if finding.is_mention:
        return True
    return finding.level in ("D", "I", "W") if finding.raised is None else finding.raised.is_aside


def says_nothing(finding: Finding) -> bool:
    """Return whether an exception is a program's own and has no message."""
    raised = finding.raised
    return raised is not None and not raised.message and raised.plain_name in _WRAPPERS


def only_reports(finding: Finding) -> bool:
    """Return whether an exception only reports another one."""
    return finding.raised is not None and only_tells(finding.raised)


def wraps_in_chain(last: Finding, cause: Finding, *, is_direct: bool) -> bool:
    """Return whether the last exception of a chain explains less than the one before, which it followed.

    An interruption comes at any time: what follows it is clean-up, and what a program was handling was no end, unless
    it was cleaning up.
    """
    if _is_interruption(cause) or (_is_mute(last) and not _is_mute(cause)):
        return True
    if not is_direct and _could_not_print(last) and not _could_not_print(cause):
        return True
    if _is_interruption(last) and last.raised is not None and not last.raised.is_cleanup:
        return False
    return wraps(last, cause, is_direct=is_direct)


def _is_mute(finding: Finding) -> bool:
    """Return whether an exception of a general kind, or of the program's own, has no message."""
    raised, signature = finding.raised, finding.signature
    is_of_no_kind = says_little(signature) or signature.failure_class == "user_code"
    return raised is not None and not raised.message and is_of_no_kind


def _could_not_print(finding: Finding) -> bool:
    """Return whether characters were the failure; below another exception, they are in the words about that one."""
    return finding.raised is not None and finding.raised.plain_name == "UnicodeEncodeError"


def _is_interruption(finding: Finding) -> bool:
    return finding.raised is not None and finding.raised.plain_name in _INTERRUPTIONS


def wraps(last: Finding, cause: Finding, *, is_direct: bool) -> bool:
    """Return whether the last exception of a chain only wraps, or only follows, one that says more."""
    if last.raised is None or cause.raised is None:
        return False
    if weight(cause) != weight(last):
        return weight(cause) < weight(last)
    if is_direct and only_tells(last.raised):
        return True
    if not is_direct and last.raised.is_cleanup and not cause.raised.is_cleanup:
        return True
    is_wrapper = is_direct or (last.raised.plain_name in _WRAPPERS and says_little(last.signature))
    is_own = last.signature.failure_class == "user_code"
    return is_own and is_wrapper and cause.signature.failure_class != "user_code"

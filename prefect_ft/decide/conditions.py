"""When a rule applies, besides the kinds and classes of its row. `moves` has what it then chooses."""

from __future__ import annotations

from prefect_ft.decide.situation import Situation

SAME_DEVICE_FAULTS = 3


def any_incident(_: Situation) -> bool:
    """Match every incident of the rule's kinds."""
    return True


def is_non_recoverable(s: Situation) -> bool:
    """Return whether no restart can help; a configuration that has worked is not wrong."""
    if s.policy.unconditional or s.incident.confidence == "low":
        return False
    return _is_hopeless(s)


def is_doubted(s: Situation) -> bool:
    """Return whether a failure would be non-recoverable but for the doubt about its class."""
    is_in_doubt = s.incident.confidence == "low" and not s.policy.unconditional
    return is_in_doubt and not s.policy.environment_only and _is_hopeless(s)


def _is_hopeless(s: Situation) -> bool:
    wrong = s.incident.failure_class in ("compile", "assertion") or (
        s.incident.failure_class == "config" and not s.progress
    )
    return wrong or s.incident.recoverable is False


def is_repeated_fault(s: Situation) -> bool:
    """Return whether a device reported the same code too often within a day."""
    return s.same_device_fault >= SAME_DEVICE_FAULTS


def is_healable(s: Situation) -> bool:
    """Return whether it is a device fault that healing can repair."""
    return s.incident.severity in ("minor", "major")


def is_unhealed(s: Situation) -> bool:
    """Return whether healing a device failed, or was not tried where it could have helped."""
    return s.incident.healed is False or is_healable(s)


def is_node_lost(s: Situation) -> bool:
    """Return whether a system is gone, or a rank's own output puts the blame on it."""
    return s.incident.kind == "system_lost" or bool(s.blamed)


def is_any_class_restarted(s: Situation) -> bool:
    """Return whether other failures than those of the environment are restarted."""
    return not s.policy.environment_only


def is_skippable(s: Situation) -> bool:
    """Return whether the steps before a failure that is bound to its step may be skipped, and there are some."""
    policy, skipping = s.policy, s.skipping
    is_within = skipping.since_progress < policy.max_skips and skipping.in_phase < policy.max_skips_per_phase
    may_skip = policy.skip_steps > 0 and not policy.environment_only and skipping.is_bound
    return may_skip and is_within and s.window() is not None


def is_repeated(s: Situation) -> bool:
    """Return whether a failure came back identically too often; 0: there is no limit."""
    return 0 < s.policy.stop_on_repeat < s.budgets.same_failure


def asks_for_confirmation(s: Situation) -> bool:
    """Return whether the catalogue's entry asks for confirmation, whatever the class."""
    return s.incident.recoverable == "confirm" and not s.policy.environment_only


def needs_confirmation(s: Situation) -> bool:
    """Return whether it may have been chance; a configuration that has worked was not wrong."""
    return (s.incident.failure_class != "config" or s.progress) and not s.policy.environment_only

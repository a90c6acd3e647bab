"""Why a rule of the recovery policy decides as it does, for somebody who does not know the policy."""

from __future__ import annotations

from collections.abc import Mapping

RULE_MEANINGS: Mapping[str, str] = {
    "completed": "the training came to its own good end",
    "cancelled": "somebody asked for the end",
    "fault-warning": "a warning is written down; nothing has failed yet",
    "in-process": "the ranks have mended it by themselves",
    "non-recoverable": "a failure of this kind comes back at every start, so a restart would not help",
    "preempted": "the scheduler took the machine, which says nothing against the training and uses up no restart",
    "fault-user-induced": "the device tells of a fault that programs cause, so the same systems get new workers",
    "fault-repeated": "the same device told of the same fault too often within a day, so its system is used no more",
    "fault-healed": "the device has been mended, so the same workers can go on, and it uses up no restart",
    "fault-heal-failed": "the device could not be mended, so its system is used no more",
    "fault-critical": "a device with such a fault cannot go on, so its system is used no more",
    "node-lost": "the system is gone, or what the training printed puts the blame on it, so it goes on without it",
    "replacement-failed": "the affected workers could not be replaced, so all are made anew",
    "rebuild-failed": "the workers could not be made, so that is tried again, without the system that failed if known",
    "in-place-failed": "a worker is gone, so nothing can be started again inside it: all workers are made anew",
    "suspended": "nothing moved any more; the same workers start again, only so many times in a row",
    "suspension-reported": "the job wants hangs to be told and not ended",
    "checkpoint-unreadable": "the checkpoint cannot be read, so it is set aside and an older one is taken",
    "numeric": "from the same checkpoint the numbers would most likely go bad again, so one further back is taken",
    "unconditional": "the job wants new workers whatever has failed, only so many times without progress",
    "repeated-failure": "it came back in the same words at the same place, which is no chance: it would again",
    "confirm-once": "most likely the program is at fault, but it may have been chance: one restart shows which",
    "transient": "failures of this kind are often chance: first the same workers start again, and if it fails again "
    "without progress, new ones",
    "not-restartable": "the job's policy restarts nothing after a failure of this kind",
    "max-restarts": "as many failures without progress as the job allows have been; more restarts would only cost",
    "min-systems": "too few systems are left that can be used",
}
"""By the rule's name."""

"""Identifies the machine of a run's worker processes: another one cannot see them, and must not start them again."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefect_ft.run.owner import boot_id

MACHINE_ID = Path("/etc/machine-id")

NO_NAMES = frozenset(("", "localhost", "localhost.localdomain"))
"""Host names that do not identify a machine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine in one of its boots: `id` is from /etc/machine-id, empty where there is none."""

    id: str
    boot: str
    host: str

    def is_another(self, other: Machine) -> bool:
        """Whether the two are certainly different machines, in any boot and under any name.

        A reboot changes the boot; on a machine without state, the id too; a renaming changes the name. Most
        containers have no id: they never count as another machine.
        """
        if self.boot == other.boot or self.id == other.id or not (self.id and other.id):
            return False
        return self.host != other.host or self.host in NO_NAMES

    def to_json(self) -> dict[str, Any]:
        """Return the machine as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Machine | None:
        """Read the object; None if it is invalid."""
        if not isinstance(value, Mapping) or not all(
            isinstance(value.get(name), str) for name in cls.__dataclass_fields__
        ):
            return None
        return cls(**{name: value[name] for name in cls.__dataclass_fields__})


def this_machine() -> Machine:
    """Return the machine of this process."""
    machine_id = ""
    with suppress(OSError):
        machine_id = MACHINE_ID.read_text().strip()
    return Machine(machine_id, boot_id(), socket.gethostname())

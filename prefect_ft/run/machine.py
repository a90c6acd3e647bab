"""Which machine a run's worker processes are on: another one sees none of them, and must not start them again."""

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
"""Host names that any machine may have."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine in one of its boots: `id` is that of /etc/machine-id, empty where it has none."""

    id: str
    boot: str
    host: str

    def is_another(self, other: Machine) -> bool:
        """Whether the two are certainly not one machine, in whatever boot and under whatever name.

        One that is started again has another boot; one that keeps no state, another id too; one that is renamed,
        another name. Most containers have no id: those are never said to be another.
        """
        if self.boot == other.boot or self.id == other.id or not (self.id and other.id):
            return False
        return self.host != other.host or self.host in NO_NAMES

    def to_json(self) -> dict[str, Any]:
        """Return the object as it stands in files."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Machine | None:
        """Read the object; None if it is none."""
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

"""The state machine of a phase, attempt after attempt. Facts in, orders out.

`lifecycle` makes the transitions. `starting`, `watching`, `halting`, `obstacles` and `adopting` each own
some states, share the `context`, and return the next step. None of them waits, connects or reads a clock.
"""

from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.lifecycle import Lifecycle
from prefect_ft.supervisor.lifecycle.states import TRANSITIONS, State

__all__ = ["TRANSITIONS", "Context", "Lifecycle", "State"]

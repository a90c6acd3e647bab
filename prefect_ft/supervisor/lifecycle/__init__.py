"""What a phase goes through, attempt after attempt: a state machine. Facts in, orders out.

`lifecycle` goes from state to state. `starting`, `watching`, `halting`, `obstacles` and `adopting` each own
some states, share the `context`, and return the next step. None of them waits, connects or reads a clock.
"""

from prefect_ft.supervisor.lifecycle.context import Context
from prefect_ft.supervisor.lifecycle.lifecycle import Lifecycle
from prefect_ft.supervisor.lifecycle.states import TRANSITIONS, State

__all__ = ["TRANSITIONS", "Context", "Lifecycle", "State"]

"""Faults on purpose; `prefect_ft.compat.nvrx.inject_fault` has them."""

from prefect_ft.compat.nvrx.inject_fault import *  # noqa: F403

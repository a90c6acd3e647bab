"""Runs of a job from begin to end: preflight checks, phases and their plans. Free of Prefect."""

"""A run on disk: its identity, the lease for acting on it, and its lookup."""

from prefect_ft.run.certificate import Certificates, certificates_of
from prefect_ft.run.holding import LEASE_TIME_S, Holding, Vacancy, holder_of, vacancy
from prefect_ft.run.identity import JOURNAL, PARAMS, RUNS, SUMMARY, Run, new_run, new_run_id, read_run
from prefect_ft.run.lookup import (
    find_run,
    known_runs,
    latest_run,
    phase_directories,
    run_of_flow_run,
    runs_in,
)
from prefect_ft.run.runtime import MAX_RUNTIME_PATH, made_runtime_directory, runtime_directory

__all__ = [
    "JOURNAL",
    "LEASE_TIME_S",
    "MAX_RUNTIME_PATH",
    "PARAMS",
    "RUNS",
    "SUMMARY",
    "Certificates",
    "Holding",
    "Run",
    "Vacancy",
    "certificates_of",
    "find_run",
    "holder_of",
    "known_runs",
    "latest_run",
    "made_runtime_directory",
    "new_run",
    "new_run_id",
    "phase_directories",
    "read_run",
    "run_of_flow_run",
    "runs_in",
    "runtime_directory",
    "vacancy",
]

"""What users write: job files, `--set`, and the same models in Python."""

from prefect_ft.config.advisor import Advisor
from prefect_ft.config.blocks import BlockLookup
from prefect_ft.config.faults import Faults
from prefect_ft.config.fields import given_in, unset_in
from prefect_ft.config.infrastructure import Infrastructure, System
from prefect_ft.config.job import JobConfig, resolved, warnings
from prefect_ft.config.load import job_document, job_in, load_job, validate
from prefect_ft.config.metrics import Metrics
from prefect_ft.config.numeric import Numeric
from prefect_ft.config.phase import Phase
from prefect_ft.config.places import check_places
from prefect_ft.config.recorded import RecordedJob, read_recorded, recorded
from prefect_ft.config.secret_env import plain, secrets_of, with_secrets
from prefect_ft.config.sections import AutoRestart, Checkpoints, OnDemand
from prefect_ft.config.signatures import own_signatures, read_signatures
from prefect_ft.config.source import Document, apply_overrides, read_document
from prefect_ft.config.suspension import RecurringLine, Suspension

__all__ = [
    "Advisor",
    "AutoRestart",
    "BlockLookup",
    "Checkpoints",
    "Document",
    "Faults",
    "Infrastructure",
    "JobConfig",
    "Metrics",
    "Numeric",
    "OnDemand",
    "Phase",
    "RecordedJob",
    "RecurringLine",
    "Suspension",
    "System",
    "apply_overrides",
    "check_places",
    "given_in",
    "job_document",
    "job_in",
    "load_job",
    "own_signatures",
    "plain",
    "read_document",
    "read_recorded",
    "read_signatures",
    "recorded",
    "resolved",
    "secrets_of",
    "unset_in",
    "validate",
    "warnings",
    "with_secrets",
]

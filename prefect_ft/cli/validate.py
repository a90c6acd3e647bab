"""`validate`: a job as it is with everything resolved."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import yaml

from prefect_ft.cli import COMPLETED
from prefect_ft.config import load_job, resolved, warnings


def validate(path: str, overrides: Sequence[str], *, as_json: bool) -> int:
    """Print a job with everything resolved; warnings go to standard error."""
    job = load_job(path, overrides)
    for warning in warnings(job):
        print(f"warning: {path}: {warning}", file=sys.stderr)
    content = resolved(job)
    text = json.dumps(content, indent=2) if as_json else yaml.safe_dump(content, sort_keys=False).rstrip()
    print(text)
    return COMPLETED

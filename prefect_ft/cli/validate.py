"""`validate`: a job as it is with everything resolved."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from prefect_ft import plaintext
from prefect_ft.cli import COMPLETED
from prefect_ft.config import load_job, resolved, warnings


def saved_block(name: str) -> Mapping[str, Any]:
    """Give what a block says that is saved in Prefect; which is loaded for that alone."""
    from prefect_ft.blocks import infrastructure_of_block  # noqa: PLC0415  (costs a second)

    return infrastructure_of_block(name)


def validate(path: str, overrides: Sequence[str], *, as_json: bool) -> int:
    """Print a job with everything resolved; warnings go to standard error."""
    job = load_job(path, overrides, blocks=saved_block)
    for warning in warnings(job):
        print(plaintext.as_line(f"warning: {path}: {warning}"), file=sys.stderr)
    content = resolved(job)
    text = (
        plaintext.as_json(content, indent=2) if as_json else yaml.safe_dump(content, sort_keys=False).rstrip()
    )
    print(text)
    return COMPLETED

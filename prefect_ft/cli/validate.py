"""`validate`: prints the fully resolved job."""

from __future__ import annotations

import argparse
import sys

from prefect_ft import plaintext
from prefect_ft.cli.arguments import add_job, add_json
from prefect_ft.cli.exits import COMPLETED
from prefect_ft.cli.saved_block import saved_block


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job."""
    add_json(parser)
    add_job(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the fully resolved job; warnings go to standard error."""
    import yaml

    from prefect_ft.config import job_document, job_in, resolved, warnings  # loads pydantic

    document = job_document(arguments.job, arguments.set, command=arguments.job_command, blocks=saved_block)
    job = job_in(document, arguments.job)
    for warning in (*document.warnings, *warnings(job)):
        print(plaintext.as_line(f"warning: {arguments.job}: {warning}"), file=sys.stderr)
    content = resolved(job)
    print(
        plaintext.as_json(content, indent=2)
        if arguments.json
        else yaml.safe_dump(content, sort_keys=False).rstrip()
    )
    return COMPLETED

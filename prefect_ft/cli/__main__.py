"""`python -m prefect_ft.cli` is `prefect-ft`."""

import sys

from prefect_ft.cli import main

sys.exit(main())

"""The worker side: what runs beside the ranks, in any image with Python 3.9 and nothing installed.

Everything here is the standard library alone and imports nothing of the orchestrator's side.
"""

import os

PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The directory that holds this package, which is put on the path of ranks."""

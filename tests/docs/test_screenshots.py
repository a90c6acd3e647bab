"""The pages of Prefect's UI show what the documentation says that they show."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import need

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pages_hold_their_texts_and_are_pictured(tmp_path: Path) -> None:
    need("chromium", shutil.which("chromium") is not None, "Debian's chromium")
    script = Path(__file__).parents[2] / "docs" / "screenshots.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    taken = {path.name: path.read_bytes()[:8] for path in tmp_path.iterdir()}
    names = ("deployment-form.png", "fault-recovery.png", "flow-run.png", "restart-ledger.png")
    assert taken == dict.fromkeys(names, PNG)

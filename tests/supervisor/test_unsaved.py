"""What a run that saves nothing recognisable is warned of: a pattern only where a number is a step."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.clock import PhaseClock
from prefect_ft.journal.lines import MemoryJournal
from prefect_ft.journal.records import WarningLine
from prefect_ft.supervisor import SavesPlan
from prefect_ft.supervisor.step_pattern import step_pattern
from prefect_ft.supervisor.unsaved import Unsaved
from prefect_ft.supervisor.warner import Warner
from prefect_ft.worker.checkpoints.names import COMPANION_NAME, PART_NAME, UNKNOWN_NAME

CUT = "central directory missing: cut off after 300 bytes"
YOUNG = "its format has no mark of its end; last written 0.4 s before its writer was killed"
NAMES = (
    "docs/checkpoints.md#names says which names count. checkpoints.pattern can name others: with a step in the name, "
    "or one file that is overwritten."
)
COUNTS = "docs/checkpoints.md says what counts."
COPIES = (
    "checkpoints.keep_copies: true keeps the last whole versions of a file that is overwritten "
    "(docs/checkpoints.md#one-file-that-is-overwritten)."
)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("model_10.txt", "model_20.txt"), "model_{step}.txt"),
        (("step-25.txt", "step-50.txt", "step-75.txt"), "step-{step}.txt"),
        (("cp-0001.weights.h5", "cp-0002.weights.h5"), "cp-{step}.weights.h5"),
        (("net2-v1-5k.mdl", "net2-v1-10k.mdl"), "net2-v1-{step}k.mdl"),
        (("rl_20000000.mdl", "rl_20100000.mdl"), "rl_{step}.mdl"),
        (("cp-0001.weights.h5",), None),
        (("model_10.txt", "other_20.txt"), None),
        (("model_1_10.txt", "model_2_20.txt"), None),
        (("2026-11-29_02-15-30", "2026-11-29_02-15-36"), None),
        (("2026-11-29_02h15m30", "2026-11-29_02h15m36"), None),
        (("02-15-30", "02-15-36"), None),
        (("run_20261129_021530.mdl", "run_20261129_021536.mdl"), None),
        (("20261129021530", "20261129021536"), None),
        (("net-1764382530.mdl", "net-1764382536.mdl"), None),
        (("version_0", "version_1"), None),
        (("ep0-ba100-rank0.mdl", "ep0-ba100-rank1.mdl"), None),
        (("net-00000-of-00002.mdl", "net-00001-of-00002.mdl"), None),
        (("net-0.41.mdl", "net-0.53.mdl"), None),
        (("exp1", "exp2"), None),
        (("net.h4", "net.h5"), None),
    ],
)
def test_a_number_is_advised_as_the_step_only_where_it_is_plausible(
    names: tuple[str, ...], expected: str | None
) -> None:
    assert step_pattern(names) == expected


@pytest.mark.parametrize(
    ("names", "fields", "advice"),
    [
        pytest.param(
            {"model_10.txt": UNKNOWN_NAME, "model_20.txt": UNKNOWN_NAME},
            {},
            'If the number that differs is the step, set checkpoints.pattern: "model_{step}.txt".',
            id="unknown-names",
        ),
        pytest.param({"version_0": UNKNOWN_NAME, "version_1": UNKNOWN_NAME}, {}, NAMES, id="no-steps"),
        pytest.param(
            {"CKPT+2026-11-29+07-51-19+00": UNKNOWN_NAME, "CKPT+2026-11-29+07-52-19+00": UNKNOWN_NAME},
            {},
            NAMES,
            id="dates",
        ),
        pytest.param({"step_1.pt": CUT, "step_2.pt": CUT}, {}, COUNTS, id="cut"),
        pytest.param(
            {"ckpt_1.pt": CUT, "ckpt_2.pt": CUT}, {}, COUNTS, id="cut-with-a-word-of-the-overwritten"
        ),
        pytest.param({"last_1.pt": CUT, "last_2.pt": CUT}, {}, COUNTS, id="cut-with-a-pattern"),
        pytest.param({"step_1.raw": YOUNG, "step_2.raw": YOUNG}, {}, COUNTS, id="young"),
        pytest.param({"model_10.txt": UNKNOWN_NAME, "model_20.txt": CUT}, {}, NAMES, id="one-is-cut"),
        pytest.param(
            {"ep0-ba100-rank0.pt": PART_NAME, "ep0-ba200-rank0.pt": PART_NAME}, {}, COUNTS, id="parts"
        ),
        pytest.param(
            {"optimizer-1.pt": COMPANION_NAME, "optimizer-2.pt": COMPANION_NAME}, {}, COUNTS, id="companions"
        ),
        pytest.param({"last.pt": CUT, "snapshot.pt": YOUNG}, {}, COPIES, id="overwritten"),
        pytest.param({"last.pt": CUT, "step_1.pt": CUT}, {}, COUNTS, id="one-is-overwritten"),
        pytest.param({"a/last.pt": CUT, "b/last.pt": CUT}, {}, COUNTS, id="below-a-directory"),
        pytest.param({"last.pt": CUT, "snapshot.pt": CUT}, {"keeps_copies": True}, COUNTS, id="kept"),
        pytest.param({"last.pt": CUT, "snapshot.pt": CUT}, {"is_local": True}, COUNTS, id="local"),
        pytest.param({"last.pt": CUT, "snapshot.pt": CUT}, {"look": {}}, COUNTS, id="at-a-url"),
    ],
)
def test_the_advice_follows_the_reasons(names: dict[str, str], fields: dict[str, Any], advice: str) -> None:
    (said,) = warned(names, **fields)
    listed = "; ".join(f"{name}: {why}" for name, why in names.items())
    assert said == (
        f"2 entries of saves look like checkpoints and none of them counts ({listed}). "
        'Until that is mended a restart is given no checkpoint of this phase ("from scratch"): '
        f"a script that looks for its own checkpoints continues from them; any other starts over. {advice}"
    )


def test_a_phase_that_has_saved_is_not_warned_that_nothing_counts() -> None:
    assert warned({"step-1": CUT, "step-2": CUT}, has_saved=True) == []


def warned(names: dict[str, str], *, has_saved: bool = False, **fields: Any) -> list[str]:
    journal, clock = MemoryJournal(), PhaseClock()
    unsaved = Unsaved(SavesPlan(directory="saves", **fields), Warner("train", journal, clock), clock)
    unsaved.unrecognised(names, 1, has_saved=has_saved)
    return [line.text for line in journal.lines if isinstance(line, WarningLine)]

"""The quarantine is a small file that several runs change and that people may write: never half, never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_ft.clock import utc_after, utc_now
from prefect_ft.errors import ConfigError
from prefect_ft.run.quarantine import Quarantined, add, read, release

LONG_AGO, NOW = "2026-01-02T03:04:05Z", utc_now()
LATER, LATER_STILL = utc_after(NOW, 3600), utc_after(NOW, 7200)

S0 = Quarantined(
    system="s0", since=NOW, run="r", job="j", phase="p", rule="node-lost", reason="its GPU has gone"
)
S1 = Quarantined(system="s1", since=NOW, until=LATER)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "quarantine.jsonl"


def test_without_a_file_nothing_is_quarantined(path: Path) -> None:
    assert read(path) == ()
    assert list(path.parent.iterdir()) == []


def test_what_is_added_is_read_by_name(path: Path) -> None:
    add(path, [S1])
    add(path, [S0])
    assert read(path) == (S0, S1)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [S0.to_json(), S1.to_json()]


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        pytest.param(None, None, None, id="the-one-that-was-there"),
        pytest.param(LATER, None, None, id="for-good-outlasts-a-time"),
        pytest.param(None, LATER, None, id="and-is-not-shortened"),
        pytest.param(LATER, LATER_STILL, LATER_STILL, id="the-longer-time"),
        pytest.param(LATER_STILL, LATER, LATER_STILL, id="whichever-came-first"),
        pytest.param(LONG_AGO, LATER, LATER, id="what-has-expired-is-nothing"),
    ],
)
def test_a_system_has_one_entry(path: Path, first: str | None, second: str | None, stays: str | None) -> None:
    for reason, until in (("first", first), ("second", second)):
        add(path, [Quarantined(system="s0", since=NOW, until=until, reason=reason)])
    (entry,) = read(path)
    assert (entry.until, entry.reason) == (stays, "first" if stays == first else "second")


def test_what_has_expired_counts_for_nobody_and_goes_with_the_next_change(path: Path) -> None:
    path.write_text(json.dumps({"system": "s9", "since": LONG_AGO, "until": LONG_AGO}) + "\n")
    assert read(path) == ()
    assert not release(path, "s9")
    add(path, [S0])
    assert path.read_text().count("\n") == 1


def test_a_release(path: Path) -> None:
    add(path, [S0, S1])
    assert (release(path, "s0"), release(path, "s0")) == (True, False)
    assert read(path) == (S1,)


def test_people_and_later_versions_may_write_entries(path: Path) -> None:
    path.write_text(
        f'{{"system": "s0", "since": "{LONG_AGO}", "ticket": 7}}\n\n{{"system":"s1","since":"{NOW}"}}'
    )
    add(path, [Quarantined(system="s2", since=NOW)])
    assert [(each.system, dict(each.more)) for each in read(path)] == [
        ("s0", {"ticket": 7}),
        ("s1", {}),
        ("s2", {}),
    ]


def test_a_link_stays_a_link(path: Path) -> None:
    path.symlink_to(path.parent / "real")
    add(path, [S0])
    assert path.is_symlink()
    assert read(path.parent / "real") == (S0,)


GOOD = json.dumps(S0.to_json())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(GOOD[:-9], ":1: is not JSON; ", id="torn"),
        pytest.param(f"{GOOD}\n[]", ":2: is not a JSON object; ", id="a-list"),
        pytest.param("[" * 100_000, ":1: is not JSON; ", id="nested-beyond-reason"),
        pytest.param("\udcff", ": is not UTF-8 text; ", id="bytes"),
        pytest.param(
            '{"since": "2026-01-02T03:04:05Z"}', ":1: system: None is not a system's name; ", id="nobody"
        ),
        pytest.param(
            '{"system": "s0"}', ":1: since: None is not a time like 2026-01-31T23:59:59Z; ", id="no-time"
        ),
        pytest.param(
            '{"system":"s0","since":"today"}', ":1: since: 'today' is not a time like ", id="a-word"
        ),
        pytest.param(
            '{"system":"s0","since":"2026-01-02T03:04:05Z","until":7}',
            ":1: until: 7 is not a time like ",
            id="until",
        ),
        pytest.param(
            '{"system":"s0","since":"2026-01-02T03:04:05Z","rule":7}',
            ":1: rule: 7 is not a text; ",
            id="no-text",
        ),
    ],
)
def test_a_damaged_file_is_told_and_left_as_it_is(path: Path, text: str, says: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    for use in (read, lambda path: add(path, [S0]), lambda path: release(path, "s0")):
        with pytest.raises(ConfigError) as caught:
            use(path)
        assert str(caught.value).startswith(f"{path}{says}")
    assert path.read_bytes() == before


@pytest.mark.parametrize("use", [read, lambda path: add(path, [S0])], ids=["read", "add"])
def test_a_file_that_cannot_be_used(path: Path, use: object) -> None:
    path.mkdir()
    with pytest.raises(ConfigError, match=f"{path}: cannot be (read|changed): Is a directory"):
        use(path)  # type: ignore[operator]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be changed: No such file or directory"):
        add(tmp_path / "nowhere" / "quarantine.jsonl", [S0])


def test_many_may_change_it_at_once(path: Path) -> None:
    """Each adds twenty systems and releases ten of them, one at a time."""
    program = f"""
import sys
from pathlib import Path
from prefect_ft.run.quarantine import Quarantined, add, release
path, who = Path({str(path)!r}), sys.argv[1]
for number in range(20):
    add(path, [Quarantined(system=f"{{who}}-{{number:02}}", since={NOW!r})])
    if number % 2:
        assert release(path, f"{{who}}-{{number:02}}")
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(who)], env={**os.environ}) for who in range(4)
    ]
    assert [each.wait() for each in running] == [0] * 4
    left = [f"{who}-{number:02}" for who in range(4) for number in range(0, 20, 2)]
    assert [entry.system for entry in read(path)] == left

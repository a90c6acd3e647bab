"""Files that are overwritten with each checkpoint: each whole version is one, and a copy helps where it is cut."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from prefect_ft.worker.checkpoints import ALL, CUT, NOTHING, Checkpoint, Finder, Known, choose, copies
from prefect_ft.worker.checkpoints.names import Overwritten, PatternNames, UsualNames

NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """Nothing is started here."""


def whole(text: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(
            zipfile.ZipInfo("data.pkl"), b"weights" + text.encode()
        )  # of no time: always the same bytes
    return buffer.getvalue()


def put(path: Path, content: bytes, age: float) -> Path:
    """Overwrite a file as careless scripts do; last written `age` seconds before NOW."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (NOW - age, NOW - age))
    return path


def found(
    finder: Finder, now: float = NOW, step: int | None = None, **known: object
) -> list[tuple[int, bool]]:
    """Steps, each with whether it is only counted."""
    checkpoints = finder.scan(now, step_at=lambda _: step, **known)  # type: ignore[arg-type]
    return [(item.step, item.counted) for item in checkpoints]


def known(checkpoints: list[Checkpoint]) -> dict[str, Known]:
    return {item.path: item.known for item in checkpoints}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[(name, Overwritten.SURE) for name in ("snapshot.pt", "ckpt.pt", "last.ckpt", "checkpoint.pth.tar")],
        *[
            (name, Overwritten.SURE)
            for name in ("checkpoint_last.pt", "ckpt_2026-11-29.pt", "run-a_latest.npz", "Checkpoint.msgpack")
        ],
        *[
            (name, Overwritten.LIKELY)
            for name in ("model.pt", "model_2026-11-29.pt", "pytorch_model.bin", "my_weights.h5", "state.pkl")
        ],
        *[
            (name, None)
            for name in ("best.pt", "checkpoint_best.pt", "model_best.pth.tar", "last.txt", "latest")
        ],
        *[
            (name, None)
            for name in (
                "params.json",
                "latest.json",
                "checkpoint.json",
                "last_lr.npy",
                "ckpt_info.pkl",
                "model-7b.safetensors",
                "optimizer.pt",
                "data.npz",
                ".last.pt",
            )
        ],
        *[(name, None) for name in ("latest.json", "checkpoint.json", "last_lr.npy", "ckpt_info.pkl")],
        *[(name, None) for name in ("last.ckpt.tmp", "snapshot.pt.old", "snapshot-rank0.pt", "train.py")],
    ],
)
def test_names_of_files_that_are_overwritten(name: str, expected: Overwritten | None) -> None:
    assert UsualNames().overwritten(name) is expected


def test_a_pattern_without_a_step_names_them() -> None:
    names = PatternNames("best*.pt")
    assert [names.overwritten(name) for name in ("best.pt", "best-2.pt", "last.pt")] == [
        Overwritten.SURE,
        Overwritten.SURE,
        None,
    ]
    assert (names.read("best.pt"), PatternNames("{step}.pt").overwritten("1.pt")) == (None, None)


def test_each_whole_version_is_a_checkpoint_of_the_step_that_was_told_then(tmp_path: Path) -> None:
    finder, path = Finder(str(tmp_path)), tmp_path / "snapshot.pt"
    for age, step in ((30.0, 10), (20.0, 25), (10.0, 20)):
        put(path, whole(), age)
        assert found(finder, step=step) == [(step, False)]
    assert found(finder, step=99) == [(20, False)]
    put(path, whole()[:-5], 5.0)
    assert found(finder, step=30) == []
    assert finder.why_not()["snapshot.pt"].startswith("central directory missing")


def test_without_a_step_that_is_told_versions_are_counted_above_all_that_is_known(tmp_path: Path) -> None:
    finder, path = Finder(str(tmp_path)), tmp_path / "ckpt.pt"
    for number in (1, 2, 3):
        put(path, whole(str(number)), 30.0 - number)
        assert found(finder) == [(number, True)]
    assert found(finder, step=40) == [(3, True)]  # what is known stays
    later = Finder(str(tmp_path))
    later.learn(known(finder.scan(NOW)))
    assert found(later) == [(3, True)]
    put(path, whole("next"), 1.0)
    assert found(later) == [(4, True)]


def test_beside_names_with_steps_only_a_newer_one_counts(tmp_path: Path) -> None:
    put(tmp_path / "epoch=1-step=100.ckpt", whole(), 20.0)
    put(tmp_path / "last.ckpt", whole(), 30.0)
    put(tmp_path / "model.pt", whole(), 1.0)
    assert found(Finder(str(tmp_path))) == [(100, False)]
    put(tmp_path / "last.ckpt", whole(), 10.0)
    assert found(Finder(str(tmp_path))) == [(100, False), (101, True)]
    assert found(Finder(str(tmp_path)), step=120) == [(100, False), (120, False)]


def test_weights_that_were_there_before_are_no_checkpoint(tmp_path: Path) -> None:
    path = put(tmp_path / "model.pt", whole(), 100.0)
    finder = Finder(str(tmp_path))
    assert found(finder) == []
    put(path, whole(), -3.0)
    assert found(finder, NOW + 10) == [(1, True)]


def test_a_new_agent_knows_what_is_overwritten_by_the_one_before_it(tmp_path: Path) -> None:
    path = put(tmp_path / "model.pt", whole(), 100.0)
    finder = Finder(str(tmp_path))
    found(finder)
    put(path, whole("2"), -3.0)
    later = Finder(str(tmp_path))
    later.learn(known(finder.scan(NOW + 10, step_at=lambda _: 7)))
    assert found(later, NOW + 100) == [(7, False)]


def test_a_version_that_is_cut_falls_back_to_a_kept_copy(tmp_path: Path) -> None:
    finder, path = Finder(str(tmp_path), keep_copies=True), tmp_path / "snapshot.pt"
    for step in (10, 20, 30):
        put(path, whole(str(step)), 100.0 - step)
        finder.keep(finder.scan(NOW, step_at=lambda _, step=step: step), lambda: True)
    assert found(finder) == [(20, False), (30, False)]
    put(path, whole("40")[:-1], 0.0)
    later = Finder(str(tmp_path), keep_copies=True)  # an agent that has seen nothing of it
    assert found(later) == [(20, False), (30, False)]
    chosen = choose(later.scan(NOW))
    assert chosen is not None
    restored = later.put_back(chosen)
    assert (restored.path, restored.step) == (str(path), 30)
    assert path.read_bytes() == whole("30")
    assert path.stat().st_mtime == NOW - 70.0
    assert (tmp_path / "snapshot.pt.old").read_bytes() == whole("40")[:-1]
    assert choose(later.scan(NOW)) == restored
    assert later.put_back(restored) is restored


@pytest.mark.parametrize(("limit", "held"), [(None, "20"), (20, "20"), (19, None), (-1, None)])
def test_a_version_that_could_not_be_loaded_gives_way_to_a_copy(
    tmp_path: Path, limit: int | None, held: str | None
) -> None:
    """Even where another checkpoint is chosen: the script may look for its one file by itself."""
    path = tmp_path / "last.ckpt"
    finder = Finder(str(tmp_path), keep_copies=True)
    for step in (10, 20, 30):
        put(path, whole(str(step)), 100.0 - step)
        finder.keep(finder.scan(NOW, step_at=lambda _, step=step: step), lambda: True)
    finder.scan(NOW)
    assert finder.replace_damaged(limit, [30], [30])
    assert (path.read_bytes() if path.exists() else None) == (whole(held) if held else None)
    assert (tmp_path / "last.ckpt.old").read_bytes() == whole("30")


@pytest.mark.parametrize(
    ("gives_way", "left"),
    [(ALL, []), (CUT, ["latest.msgpack"]), (NOTHING, ["last.ckpt", "latest.msgpack"])],
)
def test_what_gives_way_from_scratch(tmp_path: Path, gives_way: str, left: list[str]) -> None:
    """A file without a mark of its end that was written just before a death may be whole."""
    put(tmp_path / "last.ckpt", whole("1")[:-1], 30.0)
    put(tmp_path / "latest.msgpack", b"weights", 20.0)
    finder = Finder(str(tmp_path), keep_copies=True)
    assert finder.scan(NOW, deaths=[NOW - 19.5]) == []
    assert finder.replace_damaged(-1, [], [], gives_way) == (gives_way != NOTHING)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".old") == left


def test_a_copy_that_is_older_than_a_name_with_a_step_is_put_back_under_its_own_name(tmp_path: Path) -> None:
    """Ranks are never given the copy's own path."""
    path = tmp_path / "last.ckpt"
    finder = Finder(str(tmp_path), keep_copies=True)
    put(path, whole("10"), 90.0)
    finder.keep(finder.scan(NOW, step_at=lambda _: 10), lambda: True)
    put(tmp_path / "step-20.ckpt", whole("20"), 80.0)
    put(path, whole("21"), 79.0)
    assert found(finder, step=21) == [(10, False), (20, False), (21, False)]
    assert finder.replace_damaged(10, [20, 21], [20, 21])
    chosen = choose(finder.scan(NOW), 10, [20, 21])
    assert chosen is not None
    assert finder.put_back(chosen).path == str(path)
    assert path.read_bytes() == whole("10")
    assert (tmp_path / "last.ckpt.old").read_bytes() == whole("21")


def test_a_best_model_that_does_not_count_displaces_no_file_that_is_overwritten(tmp_path: Path) -> None:
    put(tmp_path / "epoch-5.ckpt", whole("5" * 900), 100.0)
    put(tmp_path / "last.ckpt", whole("6" * 900), 50.0)
    put(tmp_path / "best-epoch-9.ckpt", whole("9"), 40.0)
    assert found(Finder(str(tmp_path)), step=6) == [(5, False), (6, False)]


def test_a_whole_file_that_is_older_than_a_name_with_a_step_is_left_where_it_is(tmp_path: Path) -> None:
    path = put(tmp_path / "last.ckpt", whole("10"), 90.0)
    put(tmp_path / "step-20.ckpt", whole("20"), 80.0)
    finder = Finder(str(tmp_path), keep_copies=True)
    assert found(finder) == [(20, False)]
    assert (finder.replace_damaged(None, [], []), path.exists()) == (False, True)


def test_of_several_files_that_are_overwritten_the_newest_counts_and_looking_again_is_no_progress(
    tmp_path: Path,
) -> None:
    finder = Finder(str(tmp_path))
    for age, name in ((30.0, "last.ckpt"), (20.0, "last-v1.ckpt"), (10.0, "last-v2.ckpt")):
        put(tmp_path / name, whole(), age)
    assert [found(finder) for _ in range(3)] == [[(1, True)]] * 3
    assert finder.scan(NOW)[0].path == str(tmp_path / "last-v2.ckpt")
    put(tmp_path / "last.ckpt", whole("new"), 5.0)
    assert [found(finder) for _ in range(3)] == [[(2, True)]] * 3


def test_names_with_a_date_are_counted_in_its_order(tmp_path: Path) -> None:
    dates = ["2026-11-30_00-00-01", "2026-11-29_23-59-59", "2026-11-30_07-00-00"]
    put(tmp_path / f"ckpt_{dates[0]}.pt", whole("b"), 80.0)
    put(tmp_path / f"ckpt_{dates[1]}.pt", whole("a"), 70.0)  # a copy, or another clock
    finder = Finder(str(tmp_path))
    checkpoints = finder.scan(NOW)
    assert [(item.step, item.counted, item.path[-22:-3]) for item in checkpoints] == [
        (1, True, dates[1]),
        (2, True, dates[0]),
    ]
    put(tmp_path / f"ckpt_{dates[2]}.pt", whole("c"), 60.0)
    assert found(finder) == [(1, True), (2, True), (3, True)]
    (tmp_path / f"ckpt_{dates[1]}.pt").unlink()
    later = Finder(str(tmp_path))
    later.learn(known(finder.scan(NOW)))
    assert found(later) == [(2, True), (3, True)]
    put(tmp_path / "ckpt_2026-11-30_09-00-00.pt", whole("d"), 50.0)
    assert found(later, step=40) == [(2, True), (3, True), (40, False)]
    put(tmp_path / "last.pt", whole("e"), 40.0)
    assert found(later)[-1] == (41, True)


def test_what_a_trainer_writes_below_a_date_states_another_step(tmp_path: Path) -> None:
    for number, minute in enumerate((29, 39), 1):
        directory = tmp_path / f"checkpoint_2026-11-29_07-{minute}-07"
        put(directory / "pytorch_model.bin", whole(), 41.0 - number)
        put(directory / "trainer_state.json", b'{"global_step": %d}' % (number * 100), 40.0 - number)
    assert found(Finder(str(tmp_path))) == [(1, True), (2, True)]


def test_dates_get_no_numbers_above_newer_steps_that_names_state(tmp_path: Path) -> None:
    for number, step in enumerate((500, 1000, 1500, 2000, 2500, 3000)):
        put(tmp_path / f"ckpt_2026-11-29_{step}.pt", whole(str(step)), 80.0 - 10 * number)
    finder = Finder(str(tmp_path))
    assert found(finder) == [(500, False), (2500, False), (3000, False)]
    put(tmp_path / "ckpt_2026-11-29_2300.pt", whole("later"), 10.0)
    assert found(finder)[-1] == (3001, True)
    put(tmp_path / "ckpt_2026-11-29_4000.pt", whole("4000"), 5.0)
    assert found(finder)[-2:] == [(3001, True), (4000, False)]


@pytest.mark.parametrize("name", ["{}_ckpt.pt", "model_{}.pt", "last-{}.ckpt"])
def test_files_with_a_date_alone_are_overwritten_through_the_day(name: str, tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    found(finder)
    for number, day in enumerate(("2026-11-29", "2026-11-29", "2026-11-30"), 1):
        path = put(tmp_path / name.format(day), whole(str(number)), -3.0 * number)
        assert [(item.step, item.path) for item in finder.scan(NOW + 60)] == [(number, str(path))]


def path_of(finder: Finder) -> str:
    (item,) = finder.scan(NOW)
    return os.path.basename(item.path)


def test_weights_saved_beside_a_file_that_is_surely_a_checkpoint_do_not_count(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    found(finder)
    for number in (1, 2, 3):
        put(tmp_path / "ckpt.pt", whole(str(number)), -3.0 * number)
        assert found(finder) == [(number, True)]
        put(tmp_path / "model.bin", whole(f"bare {number}"), -3.0 * number - 1)
        assert found(finder) == [(number, True)]
    put(tmp_path / "ckpt.pt", whole("4")[:-5], -12.0)  # cut: nor do they replace it then
    assert found(finder) == []


def test_weights_that_take_long_to_write_do_not_count_for_that(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    found(finder)
    put(tmp_path / "ckpt.pt", whole("1"), -3.0)
    for length in (10, 20, 30):
        put(tmp_path / "model.bin", b"x" * length, -3.0 - length)
        assert found(finder, NOW + 3.5 + length) == [(1, True)]
    assert found(finder, NOW + 60) == [(1, True)]


def test_weights_that_are_written_on_while_the_other_file_is_not_count(tmp_path: Path) -> None:
    put(tmp_path / "ckpt.pt", whole("of another program"), 90.0)
    finder = Finder(str(tmp_path))
    found(finder)
    for number in (1, 2, 3):
        put(tmp_path / "model.pt", whole(str(number)), -3.0 * number)
        expected = "ckpt.pt" if number == 1 else "model.pt"
        assert path_of(finder) == expected
    later = Finder(str(tmp_path))
    later.learn(known(finder.scan(NOW)))
    assert path_of(later) == "model.pt"


def test_what_is_no_checkpoint_by_the_layout_hides_none(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path), "zip")
    found(finder)
    for number in (1, 2, 3):
        put(tmp_path / "model.npz", whole(str(number)), -3.0 * number)
        put(tmp_path / "last.pkl", b"{'step': 1}", -3.0 * number - 1)
        assert found(finder) == [(number, True)]


def test_weights_that_are_written_before_the_checkpoint_count_once_at_most(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    found(finder)
    for number in (1, 2, 3):
        put(tmp_path / "model.pt", whole(f"bare {number}"), -3.0 * number)
        assert path_of(finder) == ("model.pt" if number == 1 else "ckpt.pt")
        put(tmp_path / "ckpt.pt", whole(str(number)), -3.0 * number - 1)
        assert path_of(finder) == "ckpt.pt"


@pytest.mark.parametrize("name", ["ckpt.pt", "model.pt", "2026-11-29_07-00-00_ckpt.pt"])
def test_a_version_that_nobody_saw_is_resumed_from_in_the_place_of_the_one_before(
    name: str, tmp_path: Path
) -> None:
    """Its writer's machine was lost before it was reported; what it has overwritten is no longer there."""
    finder, path = Finder(str(tmp_path)), tmp_path / name
    found(finder)
    put(path, whole("1"), -3.0)
    before = finder.scan(NOW + 10)
    put(path, whole("2"), -6.0)
    later = Finder(str(tmp_path))
    later.learn(known(before))
    chosen = choose(later.scan(NOW + 20), limit=before[0].step)
    assert chosen is not None
    assert (chosen.step, chosen.path) == (before[0].step + 1, str(path))
    assert choose(later.scan(NOW + 20), limit=before[0].step) is None  # by now it is known


def test_what_the_script_itself_set_aside_is_not_overwritten(tmp_path: Path) -> None:
    finder, path = Finder(str(tmp_path), keep_copies=True), put(tmp_path / "ckpt.pt", whole()[:-9], 10.0)
    put(tmp_path / "ckpt.pt.old", b"the script's", 20.0)
    finder.scan(NOW)
    assert finder.replace_damaged(None, [], [])
    assert (tmp_path / "ckpt.pt.old").read_bytes() == b"the script's"
    assert (tmp_path / "ckpt.pt.old-1").read_bytes() == whole()[:-9]
    assert not path.exists()


def test_weights_that_never_were_a_checkpoint_are_left_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "model.pt", whole(), 100.0)
    finder = Finder(str(tmp_path), keep_copies=True)
    finder.scan(NOW)
    assert (finder.replace_damaged(None, [1], [1]), path.exists()) == (False, True)


def test_a_copy_of_bytes_without_a_format_is_whole_by_its_name(tmp_path: Path) -> None:
    finder, path = Finder(str(tmp_path), keep_copies=True), put(tmp_path / "state.pkl", b"weights", -1.0)
    found(finder)
    finder.keep(finder.scan(NOW, renamed=["state.pkl"], step_at=lambda _: 3), lambda: True)
    path.write_bytes(b"wei")
    os.utime(path, (NOW, NOW))
    assert found(Finder(str(tmp_path), keep_copies=True), deaths=[NOW, NOW + 2]) == [(3, False)]


@pytest.mark.parametrize("harm", ["asked", "overwritten"])
def test_a_copy_is_whole_or_not_there(tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else is due, or the file changes while it is copied."""
    monkeypatch.setattr(copies, "_CLONE", 0)
    monkeypatch.setattr(copies, "_PIECE_BYTES", 4)
    finder, path = Finder(str(tmp_path), keep_copies=True), put(tmp_path / "snapshot.pt", whole(), 10.0)
    checkpoints = finder.scan(NOW, step_at=lambda _: 3)

    def is_wanted() -> bool:
        if harm == "overwritten":
            path.write_bytes(whole("other"))
        return harm != "asked"

    finder.keep(checkpoints, is_wanted)
    assert list((tmp_path / copies.DIRECTORY).iterdir()) == []


def test_what_looks_like_a_checkpoint_and_is_none_is_named(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path))
    put(tmp_path / "step-25.txt", b"w", 10.0)
    put(tmp_path / "run50.dat", b"w", 10.0)
    put(tmp_path / "metrics-25.csv", b"w", 10.0)
    put(tmp_path / "step-75.pt", whole()[:-1], 10.0)
    put(tmp_path / "step-80.pt.tmp", whole(), 10.0)
    put(tmp_path / "step-90.raw", b"w", 0.5)
    put(tmp_path / "best.pt", whole(), 10.0)
    assert found(finder) == []
    assert sorted(finder.unrecognised()) == ["run50.dat", "step-25.txt", "step-75.pt"]
    put(tmp_path / "best.pt", whole(), 5.0)
    finder.scan(NOW)
    assert "best.pt" in finder.unrecognised()


def test_what_a_pattern_does_not_take_is_named(tmp_path: Path) -> None:
    put(tmp_path / "step-25.pt", whole(), 10.0)
    finder = Finder(str(tmp_path), pattern="stp-{step}.pt")
    assert (found(finder), list(finder.unrecognised())) == ([], ["step-25.pt"])

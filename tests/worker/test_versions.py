"""Files that are overwritten with each checkpoint: each whole version is one, and a copy helps where it is cut."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from prefect_ft.worker.checkpoints import ALL, CUT, NOTHING, Checkpoint, Finder, Known, choose, copies
from prefect_ft.worker.checkpoints.names import Overwritten, PatternNames, UsualNames, goes_with

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


def found(finder: Finder, now: float = NOW, step: int | None = None, **known: Any) -> list[tuple[int, bool]]:
    """Steps, each with whether it is only counted."""
    checkpoints = finder.scan(now, step_at=lambda _: step, **known)
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


def test_no_file_with_a_step_in_its_name_is_copied(tmp_path: Path) -> None:
    put(tmp_path / "ckpt_100.pt", whole(), 20.0)
    put(tmp_path / "last.pt", whole(), 10.0)
    finder = Finder(str(tmp_path), keep_copies=True)
    finder.keep(finder.scan(NOW), lambda: True)
    assert [each.name for each in (tmp_path / copies.DIRECTORY).iterdir()] == ["101c@last.pt"]


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


@pytest.mark.parametrize("size", ["much smaller", "the same"])
def test_averaged_weights_of_a_step_are_not_taken_for_its_checkpoint(tmp_path: Path, size: str) -> None:
    text = "" if size == "much smaller" else "x" * 4000
    for step in (1, 2):
        put(tmp_path / f"ckpt_{step}.pt", whole("x" * 4000), 30.0 - step)
        put(tmp_path / f"ckpt_{step}_ema.pt", whole(text), 29.5 - step)
    names = [os.path.basename(item.path) for item in Finder(str(tmp_path)).scan(NOW)]
    assert names == ["ckpt_1.pt", "ckpt_2.pt"]


def test_a_link_to_what_is_cut_leads_to_what_is_resumed_from(tmp_path: Path) -> None:
    put(tmp_path / "epoch=1.ckpt", whole(), 40.0)
    put(tmp_path / "epoch=2.ckpt", whole()[:-5], 30.0)
    (tmp_path / "last.ckpt").symlink_to("epoch=2.ckpt")
    finder = Finder(str(tmp_path), keep_copies=True)
    assert found(finder) == [(1, False)]
    finder.replace_damaged(None, [], [], ALL)
    assert os.readlink(tmp_path / "last.ckpt") == "epoch=2.ckpt"
    (chosen,) = finder.scan(NOW)
    assert finder.put_back(chosen) == chosen
    assert os.readlink(tmp_path / "last.ckpt") == "epoch=1.ckpt"


def test_a_cut_file_without_a_copy_stays_where_another_one_is_put_back(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path), keep_copies=True)
    put(tmp_path / "latest_net_D.pt", whole(), 30.0)
    finder.keep(finder.scan(NOW), lambda: True)
    put(tmp_path / "latest_net_G.pt", whole()[:-5], 20.0)
    put(tmp_path / "latest_net_D.pt", whole("new")[:-5], 19.0)
    found(finder)
    finder.replace_damaged(None, [], [], ALL)
    assert sorted(each.name for each in tmp_path.iterdir() if not each.name.startswith(".")) == [
        "latest_net_D.pt",
        "latest_net_D.pt.old",
        "latest_net_G.pt",
    ]


def test_a_link_that_cannot_be_changed_costs_no_checkpoint(tmp_path: Path) -> None:
    put(tmp_path / "epoch=1.ckpt", whole(), 40.0)
    put(tmp_path / "epoch=2.ckpt", whole()[:-5], 30.0)
    (tmp_path / "last.ckpt").symlink_to("epoch=2.ckpt")
    (tmp_path / ".last.ckpt.putting-back").mkdir()  # in the way
    finder = Finder(str(tmp_path), keep_copies=True)
    (chosen,) = finder.scan(NOW)
    assert finder.put_back(chosen) == chosen
    assert os.readlink(tmp_path / "last.ckpt") == "epoch=2.ckpt"


def test_a_cut_file_stays_where_another_one_counts(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path), keep_copies=True)
    put(tmp_path / "latest_net_D.pt", whole(), 30.0)
    put(tmp_path / "latest_net_G.pt", whole()[:-5], 20.0)
    found(finder)
    finder.replace_damaged(None, [], [], ALL)
    assert (tmp_path / "latest_net_G.pt").exists()


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


# -- sets: what is overwritten beside it, as `params.pt` and `optimizer.pt` ---------------------------


def save(
    directory: Path,
    number: int,
    age: float,
    own: str = "params.pt",
    beside: str = "optimizer.pt",
    *,
    beside_first: bool = False,
) -> None:
    """Overwrite a set as scripts do, one file a second."""
    names = [own, beside]
    for second, name in enumerate(reversed(names) if beside_first else names):
        put(directory / name, whole(f"{name} {number}"), age - second)


def held(directory: Path) -> dict[str, int | None]:
    """Which save each file is of, by name; None: it is cut."""
    found: dict[str, int | None] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix == ".pt":
            content = path.read_bytes()
            found[path.name] = next((n for n in range(9) if content == whole(f"{path.name} {n}")), None)
    return found


def look(finder: Finder, now: float = NOW, **known: object) -> list[Checkpoint]:
    """Look and keep copies, as agents do."""
    checkpoints = finder.scan(now, **known)
    finder.keep(checkpoints, lambda: True)
    return checkpoints


def resumed(finder: Finder, **known: object) -> Checkpoint | None:
    """Choose what an attempt resumes from, as agents do."""
    checkpoints = finder.scan(NOW, **known)
    if finder.replace_damaged(None, [], []):
        checkpoints = finder.scan(NOW, **known)
    chosen = choose(checkpoints)
    return chosen and finder.put_back(chosen)


def saved(directory: Path, *numbers: int, **how: Any) -> Finder:
    """A finder with copies that saw these saves, ten seconds apart."""
    finder = Finder(str(directory), keep_copies=True)
    finder.scan(0.0)  # so that all are written during the run
    for number in numbers:
        save(directory, number, 100.0 - 10 * number, **how)
        look(finder)
    return finder


@pytest.mark.parametrize(
    ("own", "beside"),
    [
        ("ckpt.pt", "optimizer.pt"),
        ("last.pt", "last_optimizer.pt"),
        ("checkpoint_last.pth", "checkpoint_last-scheduler.pth"),
        ("last-v1.ckpt", "grad_scaler.pt"),
        ("model_latest.pt", "opt.npz"),
    ],
)
def test_a_version_with_a_cut_file_beside_it_does_not_count(own: str, beside: str, tmp_path: Path) -> None:
    put(tmp_path / own, whole(), 20.0)
    path = put(tmp_path / beside, whole(), 19.0)
    finder = Finder(str(tmp_path))
    assert found(finder, step=3) == [(3, False)]
    put(path, whole()[:-5], 10.0)
    assert found(finder, step=4) == []
    assert finder.why_not()[own].startswith(f"{beside} beside it: central directory missing")
    assert found(Finder(str(tmp_path)), step=4) == []
    put(path, whole(), 10.0)
    assert found(finder, step=4) == [(3, False)]


@pytest.mark.parametrize(
    "name",
    [
        "best_optimizer.pt",
        "optimizer_2.pt",
        "optimizer_rank0.pt",
        "optimizer.pt.tmp",
        "optimizer.pt.old",
        ".optimizer.pt",
        "optimizer_backup.pt",
        "optimizer.log",
        "optional.pt",
        "metrics.pt",
    ],
)
def test_what_is_not_overwritten_with_it_does_not_matter(name: str, tmp_path: Path) -> None:
    put(tmp_path / "last.pt", whole(), 20.0)
    put(tmp_path / name, whole()[:-5], 10.0)
    assert found(Finder(str(tmp_path)), step=3) == [(3, False)]


def test_what_a_pattern_names_may_be_best_with_a_best_optimizer(tmp_path: Path) -> None:
    put(tmp_path / "best.pt", whole(), 20.0)
    put(tmp_path / "best_optimizer.pt", whole()[:-5], 10.0)
    assert found(Finder(str(tmp_path), pattern="best.pt"), step=3) == []


def test_what_is_young_beside_a_version_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "last.pt", whole(), 1.0)
    put(tmp_path / "optimizer.pkl", b"raw", 0.5)
    finder = Finder(str(tmp_path))
    assert found(finder, step=3) == []
    assert finder.settles_at == pytest.approx(NOW + 1.5)
    assert found(finder, NOW + 2, step=3) == [(3, False)]
    put(tmp_path / "optimizer.pkl", b"ra", -4.0)  # with the next save, in which its writer is killed
    assert found(finder, NOW + 9, deaths=[NOW + 5]) == []


def test_what_was_whole_beside_a_version_stays_so_for_a_new_agent(tmp_path: Path) -> None:
    """As the file itself does: the evidence was that it was renamed into place."""
    put(tmp_path / "last.pt", whole(), 1.0)
    put(tmp_path / "optimizer.pkl", b"raw", 0.5)
    finder, later = Finder(str(tmp_path)), Finder(str(tmp_path))
    known_by_then = known(finder.scan(NOW, renamed=["optimizer.pkl"]))
    assert found(finder, NOW + 9, deaths=[NOW]) == [(1, True)]
    later.learn(known_by_then)
    assert found(later, NOW + 9, deaths=[NOW]) == [(1, True)]


@pytest.mark.parametrize("beside_first", [False, True])
@pytest.mark.parametrize("cut", ["params.pt", "optimizer.pt"])
def test_a_cut_file_falls_back_to_the_copies_of_one_save(
    cut: str, beside_first: bool, tmp_path: Path
) -> None:
    """Whichever of them is cut, and whichever is written first."""
    saved(tmp_path, 1, 2, 3, beside_first=beside_first)
    save(tmp_path, 4, 60.0, beside_first=beside_first)
    put(tmp_path / cut, whole("4")[:-5], 59.0)
    chosen = resumed(Finder(str(tmp_path), keep_copies=True))
    assert chosen is not None
    assert (chosen.step, chosen.path) == (3, str(tmp_path / "params.pt"))
    assert held(tmp_path) == {"params.pt": 3, "optimizer.pt": 3}
    assert sorted(path.name for path in tmp_path.glob("*.old*")) == ["optimizer.pt.old", "params.pt.old"]


def test_a_whole_file_of_the_same_save_stays_where_it_is(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, 2)
    inode = (tmp_path / "params.pt").stat().st_ino
    put(tmp_path / "optimizer.pt", whole()[:-5], 70.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (2, {"params.pt": 2, "optimizer.pt": 2})
    assert (tmp_path / "params.pt").stat().st_ino == inode
    assert [path.name for path in tmp_path.glob("*.old*")] == ["optimizer.pt.old"]


@pytest.mark.parametrize("what", ["cut", "old"])
def test_between_the_files_of_a_save_no_copy_is_kept(what: str, tmp_path: Path) -> None:
    """Of a script that replaces whole files, and takes its time for the second."""
    finder = saved(tmp_path, 1, 2)
    put(tmp_path / "params.pt", whole("params.pt 3"), 70.0)
    assert [item.step for item in look(finder)] == [1, 2, 3]
    if what == "cut":
        put(tmp_path / "optimizer.pt", whole()[:-5], 66.0)
        chosen = resumed(finder)
        assert (chosen and chosen.step, held(tmp_path)) == (2, {"params.pt": 2, "optimizer.pt": 2})
        return
    put(tmp_path / "optimizer.pt", whole("optimizer.pt 3"), 66.0)
    look(finder)
    put(tmp_path / "optimizer.pt", whole()[:-5], 60.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (3, {"params.pt": 3, "optimizer.pt": 3})


def test_a_file_of_the_next_save_is_no_part_of_a_copy(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, 2, beside_first=True)
    put(tmp_path / "optimizer.pt", whole("optimizer.pt 3"), 66.0)
    look(finder)
    put(tmp_path / "params.pt", whole()[:-5], 61.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (2, {"params.pt": 2, "optimizer.pt": 2})


@pytest.mark.parametrize("late", ["params.pt", "optimizer.pt"])
def test_a_save_that_comes_during_a_look_is_no_part_of_a_copy(late: str, tmp_path: Path) -> None:
    finder = saved(tmp_path, 1)
    save(tmp_path, 2, 80.0)
    checkpoints = finder.scan(NOW)
    put(tmp_path / late, whole(f"{late} 3"), 70.0)
    finder.keep(checkpoints, lambda: True)
    names = {path.name for path in (tmp_path / copies.DIRECTORY).iterdir()}
    assert "2c@params.pt" not in names


def test_the_first_copy_gets_what_is_first_written_after_it(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path), keep_copies=True)
    put(tmp_path / "last.pt", whole("last.pt 1"), 90.0)
    look(finder)
    put(tmp_path / "optimizer.pt", whole("optimizer.pt 1"), 89.0)
    look(finder)
    put(tmp_path / "last.pt", whole()[:-5], 80.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (1, {"last.pt": 1, "optimizer.pt": 1})


def test_what_is_rarely_written_beside_it_goes_into_each_copy(tmp_path: Path) -> None:
    """As `scaler.pkl`, once at the beginning, or an optimizer's state in every third save."""
    finder = saved(tmp_path, 1)
    for number in (2, 3, 4):
        put(tmp_path / "params.pt", whole(f"params.pt {number}"), 100.0 - 10 * number)
        look(finder)
    put(tmp_path / "params.pt", whole()[:-5], 50.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (4, {"params.pt": 4, "optimizer.pt": 1})


def test_a_copy_of_an_earlier_release_is_used_where_none_has_more(tmp_path: Path) -> None:
    put(tmp_path / copies.DIRECTORY / "7@last.pt", whole("last.pt 7"), 90.0)
    put(tmp_path / "last.pt", whole()[:-5], 80.0)
    put(tmp_path / "optimizer.pt", whole("optimizer.pt 7"), 89.0)
    chosen = resumed(Finder(str(tmp_path), keep_copies=True))
    assert (chosen and chosen.step, held(tmp_path)) == (7, {"last.pt": 7, "optimizer.pt": 7})


def test_a_copy_without_what_others_have_beside_it_is_not_used(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    put(tmp_path / copies.DIRECTORY / "7@params.pt", whole("params.pt 7"), 80.0)
    put(tmp_path / "params.pt", whole()[:-5], 70.0)
    chosen = resumed(Finder(str(tmp_path), keep_copies=True))
    assert (chosen and chosen.step, held(tmp_path)) == (1, {"params.pt": 1, "optimizer.pt": 1})


def test_what_is_no_longer_written_beside_it_is_not_missed(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1)
    (tmp_path / "optimizer.pt").unlink()
    put(tmp_path / "params.pt", whole("params.pt 2"), 80.0)
    look(finder)
    put(tmp_path / "params.pt", whole()[:-5], 70.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (2, {"params.pt": 2})


def test_earlier_releases_take_nothing_else_for_a_copy(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, 2, 3, 4)
    bases = sorted(path.name for path in (tmp_path / copies.DIRECTORY).iterdir())
    read = [copies.read_name(base) for base in bases]
    assert [(copy.step, copy.of) for copy in read if copy] == [(3, "params.pt"), (4, "params.pt")]
    assert len(bases) == 4  # what is beside a copy goes when the copy does
    assert [item.step for item in look(finder)] == [3, 4]


def test_what_an_earlier_release_leaves_of_a_copy_is_removed(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, 2)
    (tmp_path / copies.DIRECTORY / "1c@params.pt").unlink()
    save(tmp_path, 3, 70.0)
    look(finder)
    assert len(list((tmp_path / copies.DIRECTORY).iterdir())) == 4


def test_a_step_that_is_saved_again_gets_all_files_anew(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path), keep_copies=True)
    for number in (1, 2):
        save(tmp_path, number, 100.0 - 10 * number, "last.pt")
        look(finder, step_at=lambda _: 5)
    put(tmp_path / "last.pt", whole()[:-5], 60.0)
    chosen = resumed(finder)
    assert (chosen and chosen.step, held(tmp_path)) == (5, {"last.pt": 2, "optimizer.pt": 2})


def test_what_is_put_back_beside_it_is_whole_though_its_writer_was_killed(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path), keep_copies=True)
    put(tmp_path / "last.pt", whole("1"), 0.2)
    put(tmp_path / "optimizer.pkl", b"raw", 0.1)
    look(finder, renamed=["optimizer.pkl"])
    put(tmp_path / "optimizer.pkl", b"ra", -1.0)
    deaths = [NOW + 1.5]
    assert found(finder, NOW + 9, deaths=deaths) == [(1, True)]  # the copy
    assert finder.replace_damaged(None, [], [])
    checkpoints = finder.scan(NOW + 9, deaths=deaths)
    assert [item.path for item in checkpoints] == [str(tmp_path / "last.pt")]
    assert (tmp_path / "optimizer.pkl").read_bytes() == b"raw"


@pytest.mark.parametrize("gives_way", [ALL, CUT])
def test_a_set_without_a_copy_gives_way_together(gives_way: str, tmp_path: Path) -> None:
    save(tmp_path, 1, 90.0, "last.pt")
    put(tmp_path / "scaler.pt", whole("scaler.pt 1"), 89.0)
    put(tmp_path / "optimizer.pt", whole()[:-5], 80.0)
    finder = Finder(str(tmp_path), keep_copies=True)
    assert finder.scan(NOW) == []
    assert finder.replace_damaged(-1, [], [], gives_way)
    assert held(tmp_path) == {}
    assert finder.scan(NOW) == []


def test_a_set_that_could_not_be_loaded_gives_way_together(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, 2, 3)
    finder.scan(NOW)
    assert finder.replace_damaged(2, [3], [3])
    assert held(tmp_path) == {"params.pt": 2, "optimizer.pt": 2}
    finder.scan(NOW)
    assert finder.replace_damaged(1, [3, 2], [3, 2])
    assert held(tmp_path) == {}


def test_a_copy_of_several_files_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_CLONE", 0)
    finder = saved(tmp_path, 1)
    save(tmp_path, 2, 80.0)
    checkpoints = finder.scan(NOW)
    for pieces in range(3):
        left = iter(range(pieces))
        finder.keep(checkpoints, lambda left=left: next(left, None) is not None)
        put(tmp_path / "optimizer.pt", whole("optimizer.pt 2"), 79.0)
        steps = [item.step for item in Finder(str(tmp_path), keep_copies=True).scan(NOW)]
        assert ("2c@params.pt" in {path.name for path in (tmp_path / copies.DIRECTORY).iterdir()}) == (
            pieces == 2
        )
        assert 1 in steps


def test_a_file_that_goes_with_another_is_no_checkpoint_by_itself(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, 2, own="last.pt", beside="last_opt.pt")
    assert finder.scan(NOW)[-1].path == str(tmp_path / "last.pt")
    put(tmp_path / "last_opt.pt", whole()[:-5], 70.0)
    chosen = resumed(finder)
    assert (chosen and chosen.path, held(tmp_path)) == (
        str(tmp_path / "last.pt"),
        {"last.pt": 2, "last_opt.pt": 2},
    )


def test_of_several_files_with_one_beside_them_the_newest_gets_it(tmp_path: Path) -> None:
    finder = saved(tmp_path, 1, own="last.pt")
    save(tmp_path, 2, 80.0, "ckpt.pt")
    look(finder)
    for name in ("last.pt", "ckpt.pt", "optimizer.pt"):
        put(tmp_path / name, whole()[:-5], 70.0)
    chosen = resumed(finder)
    assert (chosen and chosen.path, held(tmp_path)) == (
        str(tmp_path / "ckpt.pt"),
        {"last.pt": 1, "ckpt.pt": 2, "optimizer.pt": 2},
    )


def test_what_goes_with_a_whole_file_stays_where_another_one_is_cut(tmp_path: Path) -> None:
    put(tmp_path / "last.pt", whole()[:-5], 90.0)
    finder = Finder(str(tmp_path), keep_copies=True)
    save(tmp_path, 2, 80.0, "ckpt.pt")
    assert found(finder) == [(1, True)]
    finder.replace_damaged(None, [], [])
    (tmp_path / "last.pt").unlink()
    assert held(tmp_path) == {"ckpt.pt": 2, "optimizer.pt": 2}


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("optimizer.pt", "params.pt", True),
        ("Optimizer.PT", "Model.pt", True),
        ("last-scheduler.pkl", "last.ckpt", True),
        ("model_optim.bin", "pytorch_model.bin", True),
        ("optimizer.pt", "last-v2.ckpt", True),
        ("best_optimizer.pt", "last.pt", False),
        ("best_optimizer.pt", "best.pt", True),
        ("last_optimizer.pt", "last_opt.pt", False),
        ("optimizer_4.pt", "last.pt", False),
        ("optimizer.json", "last.pt", False),
        ("optimizer.pt.tmp", "last.pt", False),
        ("tmp_optimizer.pt", "last.pt", False),
        ("optimizer.bak.pt", "last.pt", False),
        ("GradScaler.pt", "last.pt", False),
        ("criterion.pt", "params.pt", False),
    ],
)
def test_what_goes_with_a_file_that_is_overwritten_is_known_by_its_name(
    name: str, own: str, expected: bool
) -> None:
    assert goes_with(name, own) is expected

"""What time decides, what is remembered between scans, and what a disk may hold without harm."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefect_ft.worker.checkpoints import LAYOUTS, Checkpoint, Finder, Known, Mark, choose
from prefect_ft.worker.checkpoints import entry as entry_module

NOW = 1_700_000_000.0


def put(path: Path, content: bytes = b"raw", age: float = 1000.0) -> None:
    """Write a file whose format proves nothing (or what is given), last written `age` seconds before NOW."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (NOW - age, NOW - age))


def steps(finder: Finder, now: float = NOW, **arguments: object) -> list[int]:
    return [item.step for item in finder.scan(now, **arguments)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("age", "deaths", "counts"),
    [
        pytest.param(2.0, [], True, id="settled"),
        pytest.param(1.9, [], False, id="still young"),
        pytest.param(-5.0, [], False, id="written by a clock that is ahead"),
        pytest.param(10.0, [NOW - 10.0], False, id="written when the writer was killed"),
        pytest.param(11.9, [NOW - 10.0], False, id="written just before the writer was killed"),
        pytest.param(12.0, [NOW - 10.0], True, id="unchanged for the settle time before the kill"),
        pytest.param(9.9, [NOW - 10.0], True, id="rewritten after the kill"),
        pytest.param(11.0, [NOW - 50.0, NOW - 10.0, NOW - 1.0], False, id="one of several kills"),
        pytest.param(30.0, [NOW - 50.0, NOW - 10.0], True, id="between two kills"),
    ],
)
@pytest.mark.parametrize("name", ["step-200", "step-200.raw"])
def test_what_has_no_mark_must_settle_and_never_ends_with_its_writer(
    name: str, age: float, deaths: list[float], counts: bool, tmp_path: Path
) -> None:
    put(tmp_path / "step-100.json", b"{}")
    put(tmp_path / name / "model.raw" if name == "step-200" else tmp_path / name, age=age)
    assert steps(Finder(str(tmp_path)), deaths=deaths) == ([100, 200] if counts else [100])


def test_a_rename_that_was_seen_replaces_settling(tmp_path: Path) -> None:
    put(tmp_path / "step-1.raw", age=0.0)
    put(tmp_path / "step-2" / "model.raw", age=0.0)
    put(tmp_path / "step-3.raw", age=0.0)
    put(tmp_path / "step-4.pt", b"PK\3\4 cut off", age=0.0)
    moved = ["step-1.raw", "step-2", "step-4.pt"]
    assert steps(Finder(str(tmp_path)), deaths=[NOW], renamed=moved) == [1, 2]


def test_a_directory_that_was_moved_brings_its_files(tmp_path: Path) -> None:
    put(tmp_path / "step-1" / "model.raw", age=0.0)
    finder = Finder(str(tmp_path), pattern="step-{step}/model.raw")
    assert steps(finder) == []
    assert steps(finder, renamed={"step-1"}) == steps(finder, renamed={"step-1/model.raw"}) == [1]


def test_the_report_says_why_not(tmp_path: Path) -> None:
    put(tmp_path / "step-1.raw", age=0.5)
    put(tmp_path / "step-2.raw", age=10.5)
    put(tmp_path / "step-3.raw.tmp")
    put(tmp_path / "step-4.raw")
    put(tmp_path / "notes.txt")
    os.mkfifo(tmp_path / "step-5.raw")
    finder = Finder(str(tmp_path))
    assert steps(finder, deaths=[NOW - 10]) == [4]
    mark = "its format has no mark of its end; last written"
    assert finder.why_not() == {
        "step-1.raw": f"{mark} 0.5 s ago, counts after 2 s",
        "step-2.raw": f"{mark} 0.5 s before its writer was killed",
        "step-3.raw.tmp": "its name is a temporary one",
        "step-5.raw": "it is neither a file nor a directory",
    }
    (tmp_path / "step-2.raw").unlink()
    finder.scan(NOW + 5)
    assert sorted(finder.why_not()) == ["step-3.raw.tmp", "step-5.raw"]


def test_of_two_with_the_same_step_the_one_written_last_wins(tmp_path: Path) -> None:
    put(tmp_path / "step-100.json", b"{}", age=30)
    put(tmp_path / "step-0100.json", b"{}", age=20)
    put(tmp_path / "checkpoint-100.json", b"{", age=10)
    found = Finder(str(tmp_path)).scan(NOW)
    assert [item.path for item in found] == [str(tmp_path / "step-0100.json")]


SMALL, LARGE = b'{"weights": 0}', b'{"weights": 0, "optimizer": 0}'


@pytest.mark.parametrize(
    ("others", "best", "expected"),
    [
        pytest.param({}, SMALL, [3], id="alone"),
        pytest.param({"best_accuracy_epoch_4.json": LARGE}, SMALL, [3, 4], id="beside-another-best-one"),
        pytest.param({"epoch_2.json": LARGE}, SMALL, [2], id="smaller"),
        pytest.param({"epoch_2.json": LARGE}, LARGE, [2, 3], id="as-large"),
        pytest.param({"epoch_4.json": LARGE[:-1]}, SMALL, [3], id="beside-one-that-is-cut"),
        pytest.param(
            {"epoch_1.json": SMALL, "epoch_2.json": LARGE}, SMALL, [1, 2], id="smaller-than-the-newest"
        ),
    ],
)
def test_a_best_model_that_lacks_something_does_not_count_beside_others(
    tmp_path: Path, others: dict[str, bytes], best: bytes, expected: list[int]
) -> None:
    """`best_accuracy_epoch_3.pth` of MMEngine has no state of the optimizer."""
    put(tmp_path / "best_accuracy_epoch_3.json", best, age=5)
    for age, (name, content) in enumerate(others.items()):
        put(tmp_path / name, content, age=30 - age)
    assert steps(Finder(str(tmp_path))) == expected


def test_a_pattern_lets_the_best_model_count(tmp_path: Path) -> None:
    for name, content in {
        "best_epoch_3.json": SMALL,
        "best_epoch_4.json": SMALL,
        "epoch_5.json": LARGE,
    }.items():
        put(tmp_path / name, content)
    assert steps(Finder(str(tmp_path), pattern="best_epoch_{step}.json")) == [3, 4]


def test_paths_are_absolute_and_steps_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (20, 3, 100, 0):
        put(tmp_path / "ck" / f"step-{step}.json", b"{}")
    found = Finder("ck").scan(NOW)
    assert [item.path for item in found] == [str(tmp_path / "ck" / f"step-{n}.json") for n in (0, 3, 20, 100)]


@pytest.mark.parametrize(
    ("limit", "avoid", "step"),
    [(None, (), 30), (29, (), 20), (30, (), 30), (None, (30,), 20), (25, (20, 30), 10), (9, (), None)],
)
def test_the_highest_allowed_step_is_chosen(
    limit: int | None, avoid: tuple[int, ...], step: int | None
) -> None:
    found = [Checkpoint(number, f"/c/{number}", "file", 1, NOW) for number in (10, 30, 20)]
    chosen = choose(found, limit=limit, avoid=avoid)
    assert (chosen and chosen.step) == step


def test_a_pattern_finds_what_auto_does_not_know(tmp_path: Path) -> None:
    put(tmp_path / "w_7.bin")
    put(tmp_path / "run-8" / "model.pt")
    put(tmp_path / "run-9")
    assert steps(Finder(str(tmp_path), pattern="w_{step}.bin")) == [7]
    finder = Finder(str(tmp_path), pattern="run-{step}/*.pt")
    assert steps(finder) == [8]
    assert finder.why_not() == {"run-9": "it is not a directory"}


@pytest.mark.parametrize("arguments", [{"layout": "zarr"}, {"pattern": "{step}-{step}.pt"}])
def test_what_cannot_be_meant_is_an_error(arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="write"):
        Finder("checkpoints", **arguments)  # type: ignore[arg-type]


@contextmanager
def opens_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Record which files are opened, with the real calls underneath."""
    opened: list[Path] = []
    real = os.open

    def record(path: str, flags: int) -> int:
        opened.append(Path(path))
        return real(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", record)
        yield opened


def test_what_is_unchanged_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "step-1.json", b"{}")
    put(tmp_path / "step-2.json", b"{")
    put(tmp_path / "step-3" / "model.pt", b"PK\3\4")
    put(tmp_path / "step-4.json", b"{}", age=1.0)
    finder = Finder(str(tmp_path))
    assert steps(finder) == [1, 4]
    with opens_recorded(monkeypatch) as opened:
        assert steps(finder) == [1, 4]
        # It is younger than the settle time: the next write may fall into the same tick of the clock.
        assert [path.name for path in opened] == ["step-4.json"]
        put(tmp_path / "step-2.json", b"{}")
        put(tmp_path / "step-3" / "extra.json", b"{}")
        del opened[:]
        assert steps(finder) == [1, 2, 4]
        assert sorted(path.name for path in opened) == [
            "extra.json",
            "model.pt",
            "step-2.json",
            "step-4.json",
        ]
        del opened[:]
        assert steps(finder, now=NOW + 5) == [1, 2, 4]
        assert steps(finder, now=NOW + 6) == [1, 2, 4]
        assert [path.name for path in opened] == ["step-4.json"]


def test_a_tracker_that_moves_on_does_not_make_others_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        put(tmp_path / f"global_step{step}" / "mp_rank_00_model_states.pt")
    put(tmp_path / "latest", b"global_step1")
    finder = Finder(str(tmp_path))
    assert steps(finder) == [1]
    put(tmp_path / "latest", b"global_step2", age=900)
    with opens_recorded(monkeypatch) as opened:
        assert steps(finder) == [1, 2]
        assert "global_step1" not in {path.parent.name for path in opened}
        assert "global_step2" in {path.parent.name for path in opened}


def test_an_unreadable_file_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "step-1.json", b"{}")
    finder = Finder(str(tmp_path))

    def stale(*_: object) -> int:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", stale)
        assert steps(finder) == []
        assert finder.why_not() == {"step-1.json": "cannot be read: Stale file handle"}
    assert steps(finder) == [1]


def grow(path: Path) -> None:
    put(path, b"[1, 2, 3]")


def turn_into_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [grow, turn_into_a_pipe])
def test_a_file_that_changes_while_it_is_read_waits(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-1.json"
    put(path, b"[1, 2]")
    real = os.open

    def change_then_open(*arguments: object) -> int:
        monkeypatch.setattr(os, "open", real)
        change(path)
        return real(*arguments)  # type: ignore[arg-type]

    finder = Finder(str(tmp_path))
    monkeypatch.setattr(os, "open", change_then_open)
    assert steps(finder) == []
    assert finder.why_not() == {"step-1.json": "cannot be read: it changed while it was read"}
    path.unlink()
    put(path, b"[1, 2]")
    assert steps(finder) == [1]


def test_what_vanishes_during_a_scan_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        put(tmp_path / f"step-{step}" / "model.raw")
    real = entry_module.walk

    def vanish(path: str) -> object:
        if path.endswith("step-2"):
            (tmp_path / "step-2" / "model.raw").unlink()
            (tmp_path / "step-2").rmdir()
        return real(path)

    monkeypatch.setattr(entry_module, "walk", vanish)
    finder = Finder(str(tmp_path))
    assert steps(finder) == [1]
    assert finder.why_not() == {"step-2": "cannot be read: No such file or directory"}


def test_a_directory_that_is_missing_or_no_directory_is_empty(tmp_path: Path) -> None:
    finder = Finder(str(tmp_path / "later"))
    assert finder.scan(NOW) == []
    assert finder.why_not() == {".": "cannot be read: No such file or directory"}
    put(tmp_path / "later" / "step-1.json", b"{}")
    assert steps(finder) == [1]
    assert Finder(str(tmp_path / "later" / "step-1.json")).scan(NOW) == []


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's right to read everything, where the tests run as root."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_what_may_not_be_read_says_so() -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        put(root / "step-1" / "model.raw")
        put(root / "step-2.json", b"{}")
        put(root / "step-3.json", b"{}")
        root.chmod(0o755)
        for path in (root / "step-1", root / "step-2.json"):
            path.chmod(0)
        finder = Finder(name)
        with as_nobody():
            assert steps(finder) == [3]
        denied = "cannot be read: Permission denied"
        assert finder.why_not() == {"step-1": denied, "step-2.json": denied}
        root.chmod(0o700)
        with as_nobody():
            found = steps(finder)
        assert found == ([] if os.geteuid() == 0 else [3])
        (root / "step-1").chmod(0o700)


def test_links_are_followed_and_loops_do_no_harm(tmp_path: Path) -> None:
    root = tmp_path / "ck"
    put(tmp_path / "elsewhere" / "model.raw")
    put(tmp_path / "file.json", b"{}")
    root.mkdir()
    (root / "step-1").symlink_to(tmp_path / "elsewhere")
    (root / "step-2.json").symlink_to(tmp_path / "file.json")
    (root / "step-3").symlink_to("step-3")
    (root / "step-4.json").symlink_to("nowhere")
    put(root / "step-5" / "model.raw")
    (root / "step-5" / "again").symlink_to(root)
    (root / "step-6").symlink_to("step-5")
    finder = Finder(str(root))
    assert steps(finder) == [1, 2]
    assert "Too many levels" in finder.why_not()["step-3"]
    assert "No such file" in finder.why_not()["step-4.json"]


def test_a_link_back_inside_a_tree_is_entered_once(tmp_path: Path) -> None:
    put(tmp_path / "step-5" / "a" / "model.raw")
    (tmp_path / "step-5" / "a" / "up").symlink_to("..")
    assert [item.size for item in Finder(str(tmp_path)).scan(NOW)] == [3]


def test_a_tree_without_bottom_or_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path.joinpath("step-1", *["d"] * 20, "model.raw"))
    for number in range(4):
        put(tmp_path / "step-2" / f"{number}.raw")
    monkeypatch.setattr("prefect_ft.worker.checkpoints.entry.MAX_FILES", 3)
    finder = Finder(str(tmp_path))
    assert steps(finder) == []
    assert finder.why_not() == {
        "step-1": "cannot be read: its directories are more than 16 levels deep",
        "step-2": "cannot be read: it has more than 3 files",
    }


def test_special_files_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "step-1" / "model.raw")
    os.mkfifo(tmp_path / "step-1" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tmp_path, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/step-2.json")
        os.close(here)
        assert steps(Finder(str(tmp_path))) == [1]


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"12345")
    return buffer.getvalue()


SUFFIXES = [
    "",
    ".pt",
    ".safetensors",
    ".npz",
    ".json",
    ".ckpt",
    ".raw",
    ".keras",
    ".manifest.json",
    ".pt.tmp",
]
INSIDE = [
    "trainer_state.json",
    "model.safetensors.index.json",
    ".metadata",
    "__0_0.distcp",
    "manifest.json",
    "_CHECKPOINT_METADATA",
    "latest",
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "meta.pt",
    "a-00001-of-00002.bin",
]
BEGINNINGS = [b"PK\3\4", b"\x80\4\x95", b'{"a":', b"\x10" + b"\0" * 7]
KEYS = ["files", "path", "size", "sha256", "global_step", "weight_map", "a"]
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner)),
)


def damaged_zip(place: int, byte: int, length: int) -> bytes:
    whole = zipped("a/data.pkl")
    return (whole[:place] + bytes([byte]) + whole[place + 1 :])[:length]


CONTENT = st.one_of(
    st.binary(max_size=200),
    st.builds(bytes.__add__, st.sampled_from(BEGINNINGS), st.binary(max_size=100)),
    st.builds(damaged_zip, st.integers(0, 130), st.integers(0, 255), st.integers(0, 200)),
    DOCUMENTS.map(lambda document: json.dumps(document).encode()),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    files=st.dictionaries(
        st.one_of(
            st.sampled_from(SUFFIXES).map(lambda suffix: f"step-1{suffix}"),
            st.sampled_from(INSIDE).map(lambda base: f"checkpoint-2/{base}"),
            st.sampled_from(INSIDE).map(lambda base: f"epoch=1-step=3.ckpt/{base}"),
            st.sampled_from(INSIDE).map(lambda base: f"iter_0000004/{base}"),
            st.sampled_from(["latest", "latest_checkpointed_iteration.txt", "step-1.pt.manifest.json"]),
        ),
        CONTENT,
        max_size=6,
    ),
    layout=st.sampled_from(["auto", *LAYOUTS]),
)
def test_bytes_of_any_kind_under_any_name_never_raise(files: dict[str, bytes], layout: str) -> None:
    with TemporaryDirectory() as root:
        for name, content in files.items():
            put(Path(root) / name, content)
        finder = Finder(root, layout=layout)
        found = finder.scan(NOW, deaths=[NOW - 1], renamed=["step-1.raw"])
        named = {os.path.relpath(item.path, root) for item in found}
        assert named.isdisjoint(finder.why_not())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.binary(min_size=1, max_size=30).filter(
            lambda raw: b"/" not in raw and b"\0" not in raw and raw not in (b".", b"..")
        ),
        max_size=5,
    )
)
def test_names_of_any_bytes_never_raise(names: list[bytes]) -> None:
    with TemporaryDirectory() as root:
        for name in names:
            Path(os.path.join(root, os.fsdecode(b"step-1" + name))).write_bytes(b"x")
            Path(os.path.join(root, os.fsdecode(name))).write_bytes(b"x")
        Finder(root).scan(NOW)
        Finder(root, pattern="*{step}*").scan(NOW)


NAMES = [
    "step-1.json",
    "step-2.pt",
    "step-2.json",
    "global_step3",
    "checkpoint-4",
    "iter_0000005",
    "step-6.raw",
]
BASES = ["model.pt", ".metadata", "__0_0.distcp", "trainer_state.json", "mp_rank_00_model_states.pt", "x.tmp"]
BYTES = [
    b"",
    b"{}",
    b'{"global_step": 4}',
    b"raw",
    zipped("data.pkl"),
    zipped("data.pkl")[:-1],
    b"global_step3",
    b"5",
]


def mark_of(path: Path) -> Mark:
    state = path.stat()
    return Mark(state.st_size, state.st_mtime_ns / 1e9, state.st_dev, state.st_ino)


class ScanningWhileWriting(RuleBasedStateMachine):
    """Whatever happens to a directory, a new finder sees what one sees that has watched it all and tells what it knows.

    And what has once been verified stays so for both until it changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.root = Path(self.directory.name)
        self.clock = 1_600_000_000.0
        self.deaths: list[float] = []
        self.watching = {layout: Finder(str(self.root), layout) for layout in ("auto", "directory", "torch")}
        self.verified: dict[str, dict[str, Known]] = {layout: {} for layout in self.watching}

    def teardown(self) -> None:
        self.directory.cleanup()

    def paths(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())

    @rule(name=st.sampled_from(NAMES), base=st.sampled_from(BASES), content=st.sampled_from(BYTES))
    def write(self, name: str, base: str, content: bytes) -> None:
        path = self.root / name if "." in name else self.root / name / base
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (self.clock, self.clock))

    @rule(
        name=st.sampled_from(["latest", "latest_checkpointed_iteration.txt"]), content=st.sampled_from(BYTES)
    )
    def track(self, name: str, content: bytes) -> None:
        (self.root / name).write_bytes(content)
        os.utime(self.root / name, (self.clock, self.clock))

    @precondition(lambda self: self.paths())
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.paths()))
        os.truncate(path, data.draw(st.integers(0, path.stat().st_size)))
        os.utime(path, (self.clock, self.clock))

    @precondition(lambda self: self.paths())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.paths())).unlink()

    @precondition(lambda self: self.paths())
    @rule(data=st.data(), base=st.sampled_from(BASES))
    def rename(self, data: st.DataObject, base: str) -> None:
        path = data.draw(st.sampled_from(self.paths()))
        os.replace(path, self.root / data.draw(st.sampled_from(["step-1.json", "step-2.pt", "step-6.raw"])))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @rule()
    def kill(self) -> None:
        self.deaths.append(self.clock)

    @invariant()
    def sees_what_a_new_one_sees(self) -> None:
        for layout, watching in self.watching.items():
            new, known = Finder(str(self.root), layout=layout), self.verified[layout]
            new.learn(known)
            found = watching.scan(self.clock, self.deaths)
            assert found == new.scan(self.clock, self.deaths)
            assert watching.why_not() == new.why_not()
            known.update((item.path, item.known) for item in found)
            steps_found = {item.step for item in found}
            for path in self.paths():
                before = known.get(str(path))
                if before is not None and before.mark.is_of(mark_of(path)):
                    assert int(re.findall(r"[0-9]+", path.name)[0]) in steps_found, path


TestScanningWhileWriting = ScanningWhileWriting.TestCase
TestScanningWhileWriting.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_thousand_verified_checkpoints_cost_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = zipped("data.pkl")
    for step in range(1000):
        put(tmp_path / f"step-{step}.pt", whole)
    finder = Finder(str(tmp_path))
    assert len(finder.scan(NOW)) == 1000

    def refuse(path: object, *_arguments: object, **_options: object) -> None:
        raise PermissionError(f"{path} is read again")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(os, "open", refuse)
    assert len(finder.scan(NOW)) == 1000


def test_what_runs_leave_beside_checkpoints_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "20261123_233630_restartable").mkdir()
    (tmp_path / "20261123_233630_restartable-1").mkdir()
    (tmp_path / ".prefect-ft").mkdir()
    (tmp_path / "weights_5.mdl").write_bytes(b"x")
    finder = Finder(str(tmp_path), pattern="checkpoint_{step}*.mdl")
    assert finder.scan(time.time() + 1000) == []
    assert list(finder.unrecognised()) == ["weights_5.mdl"]


def test_a_time_behind_a_step_is_a_later_checkpoint_of_that_step(tmp_path: Path) -> None:
    for name, written in (("checkpoint_100.mdl", 1e9), ("checkpoint_100_20240101_120000.mdl", 1e9 + 60)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (written, written))
    found = Finder(str(tmp_path), pattern="checkpoint_{step}*.mdl").scan(time.time() + 1000)
    assert [(item.step, os.path.basename(item.path)) for item in found] == [
        (100, "checkpoint_100_20240101_120000.mdl")
    ]

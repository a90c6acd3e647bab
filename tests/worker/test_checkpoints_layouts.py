"""Every layout: whole ones verify under the right name, and no cut of a file that proves itself ever does."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import (
    DCP,
    DEEPSPEED,
    EXAMPLES,
    HF,
    IDS,
    Example,
    Tree,
    manifest,
    plain_zip,
    safetensors,
    torch_file,
    torch_zip,
    write,
)

from prefect_ft.worker.checkpoints import LAYOUTS, Checkpoint, Finder, choose, hash_fault


def settled() -> float:
    """A time at which nothing on disk is young: what is refused then is refused for good."""
    return time.time() + 1000


def scan(root: Path, layout: str = "auto") -> list[Checkpoint]:
    return Finder(str(root), layout=layout).scan(settled())


def reason(root: Path, name: str, layout: str = "auto") -> str | None:
    finder = Finder(str(root), layout=layout)
    finder.scan(settled())
    return finder.why_not().get(name)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_whole_checkpoint_is_verified_at_once(example: Example, tmp_path: Path) -> None:
    write(tmp_path, example.name, example.files)
    own = [path for path in (tmp_path / example.name).rglob("*") if path.is_file()] or [
        tmp_path / example.name
    ]
    expected = Checkpoint(
        step=200,
        path=str(tmp_path / example.name),
        layout=example.layout,
        size=sum(path.stat().st_size for path in own),
        mtime=max(path.stat().st_mtime_ns for path in own) / 1e9,
        device=(tmp_path / example.name).stat().st_dev,
        inode=(tmp_path / example.name).stat().st_ino,
    )
    # No settling for what proves itself, and no death matters to it.
    now = time.time()
    assert Finder(str(tmp_path)).scan(now, deaths=[now, expected.mtime]) == [expected]
    assert Finder(str(tmp_path), layout=example.layout).scan(now) == [expected]


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_no_cut_is_ever_verified_and_the_one_before_is_chosen(example: Example, tmp_path: Path) -> None:
    write(tmp_path, example.name, example.files)
    (tmp_path / "step-100.json").write_bytes(b"{}")
    finder = Finder(str(tmp_path), settle_s=0)
    for name in example.proven:
        path = Path(os.path.normpath(tmp_path / example.name / name)) if name else tmp_path / example.name
        content = path.read_bytes()
        for length in range(len(content) - 1, -1, -1):
            os.truncate(path, length)
            found = finder.scan(settled())
            chosen = choose(found)
            assert chosen is not None
            assert (chosen.step, [item.step for item in found]) == (100, [100]), (name, length)
            assert finder.why_not()[example.name]
        path.write_bytes(content)
    assert [item.step for item in finder.scan(settled())] == [100, 200]


@pytest.mark.parametrize(
    "example",
    [example for example in EXAMPLES if example.proven == [""]],
    ids=lambda example: f"{example.layout}-{example.name}",  # not its bytes: they say when they were made
)
def test_trailing_bytes_are_no_end(example: Example, tmp_path: Path) -> None:
    write(tmp_path, example.name, {"": example.files[""] + b"x"})
    assert scan(tmp_path) == []


def test_the_registry_names_every_layout() -> None:
    directories = "manifest hf lightning deepspeed megatron orbax dcp directory"
    files = "safetensors npz json torch zip file"
    assert " ".join(LAYOUTS) == f"{directories} {files}"


def test_the_reason_says_how_far_a_file_got(tmp_path: Path) -> None:
    (tmp_path / "step-1.pt").write_bytes(torch_file()[:100])
    (tmp_path / "step-2.safetensors").write_bytes(safetensors(a=8)[:-3])
    (tmp_path / "step-3.json").write_bytes(b'{"a":')
    (tmp_path / "step-4.pt").write_bytes(b"")
    whole = len(safetensors(a=8))
    finder = Finder(str(tmp_path))
    assert finder.scan(settled()) == []
    assert finder.why_not() == {
        "step-1.pt": "central directory missing: cut off after 100 bytes",
        "step-2.safetensors": f"tensors missing: cut off at {whole - 3} of {whole} bytes",
        "step-3.json": "no whole JSON in 5 bytes",
        "step-4.pt": "it is empty",
    }


@pytest.mark.parametrize("content", [torch_file(step=200), plain_zip()], ids=["torch", "python"])
def test_a_damaged_central_directory_is_seen(content: bytes, tmp_path: Path) -> None:
    start = content.index(b"PK\1\2")
    end = content.rindex(b"PK\5\6")
    items = [place for place in range(start, end) if content[place : place + 4] == b"PK\1\2"]
    telling = [item + field for item in items for field in (0, 1, 2, 3, 20, 23, 28, 29, 30, 32, 42, 45)]
    if b"PK\6\6" not in content:
        telling += [end + field for field in (0, 3, 10, 12, 15, 16, 19, 20, 21)]
    else:
        end64 = content.index(b"PK\6\6")
        telling += [end64 + field for field in (0, 3, 32, 40, 47, 48, 55)] + [end, end + 20]
    for place in range(start, len(content)):
        flipped = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
        (tmp_path / "step-200.pt").write_bytes(flipped)
        found = scan(tmp_path)
        assert place not in telling or found == [], place


def test_a_zip_stored_inside_a_cut_one_is_not_its_end(tmp_path: Path) -> None:
    outer = torch_zip({"data.pkl": b"x", "inner.zip": plain_zip(), "version": b"3"})
    inner_end = outer.index(plain_zip()) + len(plain_zip())
    (tmp_path / "step-200.pt").write_bytes(outer[:inner_end])
    assert scan(tmp_path) == []


def test_numpys_own_files_are_verified(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.savez(tmp_path / "step-100.npz", weight=numpy.ones((4, 4)), bias=numpy.zeros(3))
    numpy.savez_compressed(tmp_path / "step-200.npz", weight=numpy.ones((40, 40)))
    assert [(item.step, item.layout) for item in scan(tmp_path)] == [(100, "npz"), (200, "npz")]


def test_members_above_four_gigabytes_are_read(tmp_path: Path) -> None:
    wide = torch_zip({"data.pkl": b"x" * 20, "version": b"3"}, wide=True)
    (tmp_path / "step-100.pt").write_bytes(wide)
    (tmp_path / "step-200.pt").write_bytes(wide.replace(struct.pack("<Q", 20), struct.pack("<Q", 2**40)))
    (tmp_path / "step-300.pt").write_bytes(wide.replace(struct.pack("<2H", 1, 24), struct.pack("<2H", 1, 8)))
    assert [item.step for item in scan(tmp_path)] == [100]


@pytest.mark.parametrize(
    ("header", "size"),
    [
        pytest.param(b'{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[5,8]}}', 8, id="hole"),
        pytest.param(b'{"a":{"data_offsets":[0,4]},"b":{"data_offsets":[3,8]}}', 8, id="overlap"),
        pytest.param(b'{"a":{"data_offsets":[4,0]}}', 0, id="backwards"),
        pytest.param(b'{"a":{"data_offsets":[true,4]}}', 4, id="no numbers"),
        pytest.param(b'{"a":{"data_offsets":[0]}}', 0, id="one offset"),
        pytest.param(b'{"a":{}}', 0, id="no offsets"),
        pytest.param(b'{"a":1}', 0, id="no tensor"),
        pytest.param(b"[]", 0, id="no object"),
        pytest.param(b"\xff\xfe", 0, id="no JSON"),
        pytest.param(b"[" * 100_000, 0, id="too deep"),
    ],
)
def test_a_safetensors_header_must_describe_the_file(header: bytes, size: int, tmp_path: Path) -> None:
    content = struct.pack("<Q", len(header)) + header + b"\0" * size
    (tmp_path / "step-200.safetensors").write_bytes(content)
    assert scan(tmp_path) == []


def test_a_huge_header_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "step-200.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(path, 200_000_000)
    began = time.thread_time()
    assert reason(tmp_path, path.name) == "header of 100000001 bytes is larger than the format allows"
    path.write_bytes(struct.pack("<Q", 2**64 - 1) + b"{}")
    assert scan(tmp_path) == []
    assert time.thread_time() - began < 0.5


@pytest.mark.parametrize("content", [b"12", b'"text"', b"true", b"null", b"NaN", b" "])
def test_json_that_could_be_a_piece_proves_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "step-200.json").write_bytes(content)
    assert scan(tmp_path) == []


def test_an_older_torch_file_has_no_end_mark_and_must_settle(tmp_path: Path) -> None:
    path = tmp_path / "step-200.pt"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    assert Finder(str(tmp_path)).scan(time.time()) == []
    assert [item.layout for item in scan(tmp_path)] == ["torch"]


def test_blocks_that_were_never_written_are_no_torch_file(tmp_path: Path) -> None:
    (tmp_path / "step-200.pt").write_bytes(b"\0" * 4096)
    assert reason(tmp_path, "step-200.pt") == "it begins with zeros: it was never written"


Change = Callable[[Path], object]


def remove(name: str) -> Change:
    return lambda root: (root / name).unlink()


def replace(name: str, content: bytes) -> Change:
    return lambda root: (root / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "files", "change", "why"),
    [
        pytest.param("checkpoint-200", HF, remove("trainer_state.json"), "is missing", id="hf: no state"),
        pytest.param(
            "checkpoint-200",
            {"config.json": HF["config.json"]},
            lambda root: None,
            "trainer_state.json is missing",
            id="hf: weights not begun",
        ),
        pytest.param(
            "checkpoint-200",
            HF,
            replace("trainer_state.json", b'{"global_step": 100}'),
            "is of step 100, the name of step 200",
            id="hf: another step",
        ),
        pytest.param(
            "checkpoint-200", HF, remove("model-00002-of-00002.safetensors"), "missing", id="hf: a shard"
        ),
        pytest.param(
            "checkpoint-200",
            {"trainer_state.json": HF["trainer_state.json"], "optimizer.pt": torch_file()},
            lambda root: None,
            "no weights",
            id="hf: no weights",
        ),
        pytest.param(
            "checkpoint-200",
            {**HF, "model.safetensors.index.json": b'{"weight_map": {"a": "other.safetensors"}}'},
            lambda root: None,
            "other.safetensors is named in model.safetensors.index.json and missing",
            id="hf: a shard that only the index names",
        ),
        pytest.param("step-200", DCP, remove(".metadata"), "is written last", id="dcp: no metadata"),
        pytest.param("step-200", DCP, replace("__1_0.distcp", b""), "empty", id="dcp: an empty shard"),
        pytest.param("step-200", DCP, remove("__1_0.distcp"), "(1 of 2)", id="dcp: a shard it names"),
        pytest.param(
            "step-200", {".metadata": b"x"}, lambda root: None, "no .distcp file", id="dcp: no shards"
        ),
        pytest.param(
            "global_step200",
            DEEPSPEED,
            remove("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
            "1 of 2 ZeRO optim shards are missing",
            id="deepspeed: the last rank, known from dp_world_size",
        ),
        pytest.param(
            "global_step200",
            {**DEEPSPEED, "mp_rank_00_model_states.pt": torch_file()},
            remove("zero_pp_rank_0_mp_rank_00_optim_states.pt"),
            "1 of 2 ZeRO optim shards are missing",
            id="deepspeed: a rank below another",
        ),
        pytest.param(
            "global_step200",
            {"mp_rank_00_model_states.pt": torch_file(dp_world_size=1, mp_world_size=300)},
            lambda root: None,
            "299 of 300 model shards are missing",
            id="deepspeed: model parallel ranks",
        ),
        pytest.param(
            "global_step200",
            DEEPSPEED,
            lambda root: (root.parent / "latest").write_bytes(b"global_step150"),
            "it was never finished: latest still names global_step150",
            id="deepspeed: beyond latest",
        ),
        pytest.param(
            "step-200",
            {f"global_step200/{name}": data for name, data in DEEPSPEED.items()},
            lambda root: None,
            "latest is missing",
            id="deepspeed: inside, not named yet",
        ),
        pytest.param(
            "iter_0000200",
            {"mp_rank_00/model_optim_rng.pt": torch_file()},
            lambda root: None,
            "latest_checkpointed_iteration.txt is missing",
            id="megatron: the first one, under way",
        ),
        pytest.param(
            "iter_0000200",
            {**DCP, "common.pt": torch_file()},
            lambda root: None,
            "latest_checkpointed_iteration.txt is missing",
            id="megatron: the first distributed one, under way",
        ),
        pytest.param(
            "iter_0000200",
            {"mp_rank_00/model_optim_rng.pt": torch_file()},
            lambda root: (root.parent / "latest_checkpointed_iteration.txt").write_bytes(b"100"),
            "still names 100",
            id="megatron: not reached",
        ),
        pytest.param(
            "200",
            {"_CHECKPOINT_METADATA": b'{"commit_timestamp_nsecs": null}'},
            lambda root: None,
            "never committed",
            id="orbax: not committed",
        ),
        pytest.param(
            "epoch=0-step=200.ckpt", DCP, lambda root: None, "meta.pt is missing", id="lightning: no meta.pt"
        ),
        pytest.param(
            "step-200",
            {"model.pt": torch_file(), "optimizer.pt.tmp": b"x"},
            lambda root: None,
            "optimizer.pt.tmp is a temporary file",
            id="directory: a temporary file",
        ),
        pytest.param(
            "step-200", {"model.pt": b""}, lambda root: None, "holds no files", id="directory: empty"
        ),
        pytest.param(
            "step-200",
            {"a-00001-of-00003.raw": b"x", "a-00003-of-00003.raw": b"x"},
            lambda root: None,
            "1 of 3 files a-…-of-00003.raw are missing",
            id="directory: numbered files",
        ),
        pytest.param(
            "step-200",
            {"a.raw": b"abc", "manifest.json": manifest(**{"a.raw": 3, "b.raw": 1})},
            lambda root: None,
            "b.raw is in the manifest and missing",
            id="manifest: a file is missing",
        ),
        pytest.param(
            "step-200",
            {"a.raw": b"abc", "manifest.json": manifest(**{"a.raw": 4})},
            lambda root: None,
            "a.raw has 3 of 4 bytes",
            id="manifest: another size",
        ),
        pytest.param(
            "step-200",
            {"a": b"abc", "manifest.json": b'{"files": [{"path": "a", "size": "3"}]}'},
            lambda root: None,
            "entry 0 of the manifest needs a path (text) and a size (bytes)",
            id="manifest: a size that is no number",
        ),
        pytest.param(
            "step-200",
            {"a": b"abc", "manifest.json": manifest(**{"../step-200/a": 3})},
            lambda root: None,
            "../step-200/a is in the manifest and missing",
            id="manifest: a path that leaves",
        ),
    ],
)
def test_an_incomplete_directory_says_what_is_missing(
    name: str, files: Tree, change: Change, why: str, tmp_path: Path
) -> None:
    write(tmp_path, name, files)
    change(tmp_path / name)
    assert why in (reason(tmp_path, name) or "verified")


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_named_layout_takes_its_own_and_never_raises(layout: str, example: Example, tmp_path: Path) -> None:
    write(tmp_path, example.name, example.files)
    found = scan(tmp_path, layout)
    assert [item.layout for item in found] in ([], [layout])
    assert found or layout != example.layout


def test_a_tracker_that_has_moved_on_still_vouches(tmp_path: Path) -> None:
    for step in (100, 200):
        write(tmp_path, f"global_step{step}", DEEPSPEED)
        write(tmp_path, f"iter_0000{step}", {"mp_rank_00/model_optim_rng.pt": torch_file()})
    (tmp_path / "latest").write_text("global_step200")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("200\n")
    now = time.time()
    for layout in ("deepspeed", "megatron"):
        found = Finder(str(tmp_path), layout=layout).scan(now, deaths=[now])
        assert [item.step for item in found] == [100, 200]


@pytest.mark.parametrize("text", [b"", b"release", b"\xff\xff", b"global_step200" + b" " * 5000])
def test_a_tracker_that_tells_nothing_leaves_it_to_time(text: bytes, tmp_path: Path) -> None:
    write(tmp_path, "global_step200", {**DEEPSPEED, "../latest": text})
    assert Finder(str(tmp_path)).scan(time.time()) == []
    assert [item.layout for item in scan(tmp_path)] == ["deepspeed"]


def test_a_link_called_latest_is_no_tracker(tmp_path: Path) -> None:
    write(tmp_path, "global_step200", DEEPSPEED)
    (tmp_path / "latest").symlink_to("global_step200")
    assert [item.step for item in scan(tmp_path)] == [200]


@pytest.mark.parametrize(
    ("name", "files", "marker"),
    [
        ("step-200", DCP, ".metadata"),
        ("checkpoint-200", HF, "trainer_state.json"),
        ("global_step200", {**DEEPSPEED, "../latest": b"global_step200"}, "../latest"),
    ],
)
def test_a_marker_does_not_vouch_for_what_was_written_after_it(
    name: str, files: Tree, marker: str, tmp_path: Path
) -> None:
    """A checkpoint that is written over an older one of the same name still has the old one's marker."""
    write(tmp_path, name, files)
    past = time.time() - 60
    os.utime(tmp_path / name / marker, (past, past))
    now = time.time()
    finder = Finder(str(tmp_path))
    assert finder.scan(now) == []
    assert f"it was written to after {os.path.basename(marker)}" in finder.why_not()[name]
    assert [item.step for item in finder.scan(now + 3)] == [200]
    assert Finder(str(tmp_path)).scan(now + 3, deaths=[now]) == []


def test_metadata_that_is_no_framed_pickle_counts_by_its_presence(tmp_path: Path) -> None:
    write(tmp_path, "step-200", {".metadata": b"something else", "__0_0.distcp": b"w"})
    assert [item.layout for item in scan(tmp_path)] == ["dcp"]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"big": b"x" * 100_000, **{str(n): n for n in range(50_000)}}, id="many frames"),
        pytest.param({"a": 1, "large text": "y" * 100_000}, id="large text"),
        pytest.param(b"x" * 100_000, id="an end without a frame"),
    ],
)
def test_large_values_and_many_frames_of_a_pickle_are_stepped_over(state: object, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pickle.dump(state, buffer, protocol=4)
    whole = buffer.getvalue()
    write(tmp_path, "step-200", {".metadata": whole, "__0_0.distcp": b"w"})
    assert [item.step for item in scan(tmp_path)] == [200]
    for missing in (1, 2, 3, *range(4, len(whole) - 2, 9973), len(whole) - 1):
        (tmp_path / "step-200" / ".metadata").write_bytes(whole[:-missing])
        assert scan(tmp_path) == [], missing


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "unpickled"),)

    bomb = pickle.dumps(Bomb(), protocol=2)
    shard = torch_zip({"data.pkl": bomb, "version": b"3"})
    write(tmp_path, "step-100", {".metadata": pickle.dumps(Bomb(), protocol=4), "__0_0.distcp": bomb})
    write(tmp_path, "global_step200", {"mp_rank_00_model_states.pt": shard, "../latest": b"global_step200"})
    write(tmp_path, "step-300.pt", {"": shard})
    assert [item.step for item in scan(tmp_path)] == [100, 200, 300]
    assert not (tmp_path / "unpickled").exists()


def test_a_foreign_manifest_is_no_manifest(tmp_path: Path) -> None:
    write(tmp_path, "step-200", {**DCP, "manifest.json": b'{"name": "web app"}'})
    assert [item.layout for item in scan(tmp_path)] == ["dcp"]


def test_hashes_of_what_was_there_before_are_looked_at_on_request_only(tmp_path: Path) -> None:
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    listed = {"files": [{"path": "a", "size": 3, "sha256": sha256}, {"path": "b", "size": 1}]}
    text = json.dumps(listed).encode()
    write(tmp_path, "step-200", {"a": b"abc", "b": b"x", "manifest.json": text})
    assert hash_fault(str(tmp_path / "step-200")) is None
    (tmp_path / "step-200" / "a").write_bytes(b"abd")
    assert [item.step for item in scan(tmp_path)] == [200]
    assert hash_fault(str(tmp_path / "step-200")) == "a does not have the sha256 of the manifest"
    (tmp_path / "step-200" / "a").unlink()
    assert hash_fault(str(tmp_path / "step-200")) == "a is in the manifest and missing"


def test_hashes_of_a_single_file_stand_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "step-200.raw"
    path.write_bytes(b"abc")
    assert hash_fault(str(path)) is None
    listed = [{"path": "step-200.raw", "size": 3, "sha256": "0" * 64}]
    (tmp_path / "step-200.raw.manifest.json").write_text(json.dumps({"files": listed}))
    assert hash_fault(str(path)) == "step-200.raw does not have the sha256 of the manifest"
    assert hash_fault(str(tmp_path / "step-300.raw")) == "cannot be read: No such file or directory"

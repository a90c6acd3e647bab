"""Checkpoints at a URL: the same layouts as in a directory, read from a server of S3's protocol."""

from __future__ import annotations

import os
import time

import pytest
from layouts import EXAMPLES, IDS, Example, torch_file
from object_store import Store, object_store

from prefect_ft.supervisor import bucket
from prefect_ft.supervisor.bucket import Bucket, opened_at
from prefect_ft.worker.checkpoints import Checkpoint, Finder
from prefect_ft.worker.checkpoints.entry import AwayError

__all__ = ["object_store"]


@pytest.fixture(autouse=True)
def nobody_left() -> None:
    """No ranks are started here."""


def put(store: Store, example: Example) -> None:
    for name, data in example.files.items():
        store.put(os.path.normpath(f"{example.name}/{name}"), data)


def found(store: Store, now: float | None = None, **options: str) -> list[Checkpoint]:
    finder = Finder(store.url, place=Bucket(store.url), **options)
    return finder.scan(time.time() + 1000 if now is None else now)


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_a_whole_checkpoint_is_verified(example: Example, object_store: Store) -> None:
    put(object_store, example)
    (checkpoint,) = found(object_store)
    size = sum(len(data) for name, data in example.files.items() if not name.startswith("../"))
    path = f"{object_store.url}/{example.name}"
    assert (checkpoint.step, checkpoint.path, checkpoint.layout) == (200, path, example.layout)
    assert checkpoint.size == size


@pytest.mark.parametrize("example", EXAMPLES, ids=IDS)
def test_one_that_is_cut_off_is_not(example: Example, object_store: Store) -> None:
    for name in example.proven:
        files = {**example.files, name: example.files[name][:-1]}
        put(object_store, example._replace(files=files))
        assert found(object_store) == []


def test_objects_that_are_missing_are_noticed(object_store: Store) -> None:
    example = next(each for each in EXAMPLES if each.layout == "dcp" and "__1_0.distcp" in each.files)
    put(object_store, example)
    finder = Finder(object_store.url, place=Bucket(object_store.url))
    assert [each.step for each in finder.scan(time.time() + 1000)] == [200]
    object_store.delete(f"{example.name}/__1_0.distcp")
    assert finder.scan(time.time() + 1000) == []
    assert "__1_0.distcp is missing" in finder.why_not()[example.name]


def test_what_has_no_mark_needs_time(object_store: Store) -> None:
    object_store.put("step-7/weights.raw", b"w")
    assert found(object_store, time.time() - 1) == []
    assert [each.step for each in found(object_store)] == [7]


def test_an_empty_place_is_no_error(object_store: Store) -> None:
    assert found(object_store) == []


@pytest.mark.parametrize("files", [1, 1001], ids=["few", "more-than-a-page"])
def test_a_directory_may_have_many_objects(files: int, object_store: Store) -> None:
    object_store.put_many((f"step-5/part-{number}.raw" for number in range(files)), b"x")
    assert [each.size for each in found(object_store)] == [files]


def test_large_files_are_read_at_their_ends_alone(
    object_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "BLOCK_BYTES", 4096)
    fetched: list[int] = []
    real = bucket._Fetched._range

    def noting(self: bucket._Fetched, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return real(self, start, end)

    monkeypatch.setattr(bucket._Fetched, "_range", noting)
    object_store.put("step-1.pt", torch_file(big="x" * 3_000_000))
    assert [each.step for each in found(object_store)] == [1]
    assert sum(fetched) < 80_000  # the end of a zip, which may have a comment of 64 KiB


def test_a_version_that_is_overwritten_is_another_one(object_store: Store) -> None:
    place = Bucket(object_store.url)
    finder = Finder(object_store.url, place=place)
    steps = iter([10, 20])
    for _ in range(2):
        object_store.put("last.ckpt", torch_file(seed=time.time()))
        step = next(steps)
        assert [each.step for each in finder.scan(time.time() + 1000, step_at=lambda _, step=step: step)] == [
            step
        ]


def test_a_server_that_is_away_says_nothing_of_what_is_there(object_store: Store) -> None:
    object_store.put("step-7.json", b"{}")
    finder = Finder(object_store.url, place=Bucket(object_store.url))
    assert [each.step for each in finder.scan(time.time() + 1000)] == [7]
    object_store.stop()
    with pytest.raises(AwayError, match="cannot be listed"):
        finder.scan(time.time() + 1000)


@pytest.mark.parametrize(
    ("url", "says"),
    [("nosuch://bucket/ck", "nosuch"), ("s3://no-such-bucket-here/ck", None)],
    ids=["no-such-protocol", "no-such-bucket"],
)
def test_a_url_that_leads_nowhere(url: str, says: str | None, object_store: Store) -> None:
    if says is None:
        assert Bucket(url).listing(url) == {}
        return
    with pytest.raises(AwayError, match=says):
        Bucket(url).listing(url)


def test_obs_is_spoken_to_as_s3(object_store: Store) -> None:
    object_store.put("step-3.json", b"{}")
    url = object_store.url.replace("s3://", "obs://")
    finder = Finder(url, place=Bucket(url))
    assert [each.path for each in finder.scan(time.time() + 1000)] == [f"{url}/step-3.json"]
    assert type(opened_at(url)[0]).__name__ == "S3FileSystem"


def test_a_pattern_with_a_directory(object_store: Store) -> None:
    object_store.put("run-a/weights_4.json", b"{}")
    assert [each.step for each in found(object_store, pattern="run-*/weights_{step}.json")] == [4]


def test_files_without_a_time_are_as_old_as_they_were_seen() -> None:
    """`memory://` says when; a server that does not is looked at twice."""
    place = Bucket("memory://nothing")
    before = time.time_ns()
    seen = place._stat("a", {"size": 1})
    assert before <= seen.mtime_ns <= time.time_ns()
    assert place._stat("a", {"size": 1}).mtime_ns == seen.mtime_ns

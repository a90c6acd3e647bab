"""Output is handed on in whole lines, once, with offsets that stay true whatever happens to the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_ft.worker.spool import MAX_PIECE, Keeping, Piece, Spool

LIMIT = 64 << 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "1-0.log"


@pytest.fixture
def spool(path: Path):
    spool = Spool(str(path), Keeping(LIMIT))
    yield spool
    spool.close()


def write(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def pieces(spool: Spool, final: bool = False) -> list[Piece]:
    return list(iter(lambda: spool.next_piece(final), None))


def text(found: list[Piece]) -> bytes:
    """The bytes of pieces that follow each other."""
    assert all(one.offset + len(one.data) == next_.offset for one, next_ in zip(found, found[1:]))  # noqa: B905, RUF007  (runs on Python 3.9)
    return b"".join(piece.data for piece in found)


@pytest.mark.parametrize(
    ("data", "final", "expected"),
    [
        pytest.param(b"", False, [], id="nothing"),
        pytest.param(b"", True, [], id="nothing-at-the-end"),
        pytest.param(b"one\ntwo\n", False, [Piece(0, b"one\ntwo\n")], id="lines"),
        pytest.param(b"one\ntw", False, [Piece(0, b"one\n")], id="a-torn-line-waits"),
        pytest.param(b"tw", False, [], id="nothing-but-a-torn-line"),
        pytest.param(b"one\ntw", True, [Piece(0, b"one\n"), Piece(4, b"tw")], id="a-torn-line-at-the-end"),
        pytest.param(b"\0\xff\n\0", False, [Piece(0, b"\0\xff\n")], id="bytes-of-any-kind"),
    ],
)
def test_what_is_handed_on(spool: Spool, path: Path, data: bytes, final: bool, expected: list[Piece]) -> None:
    write(path, data)
    assert pieces(spool, final) == expected
    assert pieces(spool, final) == []


def test_a_line_that_is_too_long_goes_in_pieces(spool: Spool, path: Path) -> None:
    line = b"x" * (2 * MAX_PIECE + 10)
    write(path, line)
    assert [len(piece.data) for piece in pieces(spool)] == [MAX_PIECE, MAX_PIECE]
    write(path, b"\n")
    assert pieces(spool) == [Piece(2 * MAX_PIECE, b"x" * 10 + b"\n")]


def test_a_reader_that_comes_back_gets_the_rest(spool: Spool, path: Path) -> None:
    write(path, b"one\ntwo\nthree\n")
    pieces(spool)
    spool.rewind(4)
    assert pieces(spool) == [Piece(4, b"two\nthree\n")]


def test_a_reader_that_claims_more_than_there_is_gets_what_comes(spool: Spool, path: Path) -> None:
    write(path, b"one\n")
    spool.rewind(1000)
    write(path, b"two\n")
    assert pieces(spool) == [Piece(4, b"two\n")]


def test_the_disk_space_is_bounded_and_what_was_not_fetched_is_counted(spool: Spool, path: Path) -> None:
    lines = b"".join(b"%07d\n" % number for number in range(4 * LIMIT // 8))
    write(path, lines)
    spool.bound()
    found = pieces(spool)
    assert path.stat().st_blocks * 512 <= LIMIT
    assert path.stat().st_size == len(lines)
    assert (spool.dropped, found[0].offset) == (spool.dropped, spool.dropped)
    assert spool.dropped + len(text(found)) == len(lines)
    assert text(found) == lines[spool.dropped :]


def test_what_was_fetched_goes_without_being_counted(spool: Spool, path: Path) -> None:
    write(path, b"x" * (4 * LIMIT - 1) + b"\n")
    pieces(spool)
    spool.bound()
    assert spool.dropped == 0
    write(path, b"more\n")
    assert pieces(spool) == [Piece(4 * LIMIT, b"more\n")]


def test_a_reader_that_comes_too_late_is_told_how_much_is_gone(spool: Spool, path: Path) -> None:
    lines = b"0000001\n" * (4 * LIMIT // 8)
    write(path, lines)
    pieces(spool)
    spool.bound()
    spool.rewind(8)
    found = pieces(spool)
    assert spool.dropped == found[0].offset - 8
    assert found[0].offset + len(text(found)) == len(lines)


def test_a_script_that_empties_the_file_does_not_stop_the_output(spool: Spool, path: Path) -> None:
    """`echo ... > /dev/stderr` opens the file anew, with O_TRUNC."""
    write(path, b"first\nsecond\n")
    assert text(pieces(spool)) == b"first\nsecond\n"
    path.write_bytes(b"new\n")
    assert pieces(spool) == [Piece(13, b"new\n")]
    write(path, b"last\n")
    assert pieces(spool) == [Piece(17, b"last\n")]
    spool.rewind(0)
    assert (spool.dropped, text(pieces(spool))) == (13, b"new\nlast\n")


@pytest.mark.parametrize(
    "new",
    [b"", b"n\n", b"new\nand more\n", b"other\nwords!\n"],
    ids=["empty", "shorter", "longer", "as-long"],
)
def test_what_stands_in_an_emptied_file_is_new(spool: Spool, path: Path, new: bytes) -> None:
    """Also if it has grown beyond what was there before anybody looked."""
    old = b"first\nsecond\n"
    write(path, old)
    pieces(spool)
    path.write_bytes(new)
    write(path, b"last\n")
    assert text(pieces(spool, final=True)) == new + b"last\n"


def test_bounding_is_not_taken_for_emptying(spool: Spool, path: Path) -> None:
    write(path, b"x" * 4095 + b"\n")
    handed_on = text(pieces(spool))
    for number in range(100):
        write(path, b"%04d" % number * 1000 + b"\n")
        if number % 3:
            handed_on += text(pieces(spool))
        spool.bound()
    assert handed_on + text(pieces(spool)) == b"x" * 4095 + b"\n" + b"".join(
        b"%04d" % number * 1000 + b"\n" for number in range(100)
    )
    assert (spool.dropped, spool.position) == (0, 4096 + 100 * 4001)


def test_a_cut_just_before_the_position_is_no_emptying(spool: Spool, path: Path) -> None:
    cut = 20 * 4096
    write(path, b"x" * (cut + 9) + b"\n")
    pieces(spool)
    write(path, b"y" * (LIMIT * 3 // 4))
    spool.bound()
    assert os.pread(spool._fd, 12, cut - 1) == b"\0" + b"x" * 9 + b"\ny"
    write(path, b"\n")
    assert pieces(spool) == [Piece(cut + 10, b"y" * (LIMIT * 3 // 4) + b"\n")]


def test_a_file_that_was_emptied_is_bounded_as_before(spool: Spool, path: Path) -> None:
    write(path, b"x" * 999 + b"\n")
    pieces(spool)
    path.write_bytes(b"")
    assert pieces(spool) == []
    write(path, b"y" * (4 * LIMIT - 1) + b"\n")
    spool.bound()
    found = pieces(spool)
    assert path.stat().st_blocks * 512 <= LIMIT
    assert found[0].offset == 1000 + spool.dropped
    assert found[-1].offset + len(found[-1].data) == 1000 + 4 * LIMIT


def test_the_file_goes_with_the_attempt(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    spool = Spool(str(path), Keeping(LIMIT))
    spool.remove()
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before

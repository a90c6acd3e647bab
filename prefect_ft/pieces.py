"""A rotated log: NAME is the newest piece, NAME.1, NAME.2, … came before it, in this order; the oldest go first.

Owns the names. A piece never changes its number, and the newest has the number after the highest: so a reader
knows where it is, however often the log was rotated meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO


def numbers_of(path: Path) -> list[int]:
    """Return the numbers of the finished pieces, in order."""
    prefix = f"{path.name}."
    with suppress(FileNotFoundError):
        names = [name.removeprefix(prefix) for name in os.listdir(path.parent) if name.startswith(prefix)]
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))
    return []


def piece(path: Path, number: int) -> Path:
    """Return the path of a finished piece."""
    return path.with_name(f"{path.name}.{number}")


def turn(path: Path, limit_bytes: int) -> None:
    """Begin the next piece, and remove the oldest until all take `limit_bytes` at most; raises OSError.

    The piece before the newest always stays, to keep the numbering.
    """
    numbers = numbers_of(path)
    number = numbers[-1] + 1 if numbers else 1
    path.rename(piece(path, number))
    total = 0
    for each in (number, *reversed(numbers)):
        total += piece(path, each).stat().st_size
        if total > limit_bytes and each != number:
            piece(path, each).unlink()


@contextmanager
def opened(path: Path, since: int = 0) -> Iterator[list[tuple[int, IO[bytes]]]]:
    """Open all pieces from number `since` on, in order; raises OSError."""
    with ExitStack() as stack:
        newest = None
        with suppress(FileNotFoundError):  # it has not begun, or is just being rotated
            newest = stack.enter_context(path.open("rb"))  # before it can get a number
        numbers = numbers_of(path)
        files: list[tuple[int, IO[bytes]]] = []
        for number in numbers:
            with suppress(FileNotFoundError):
                if number >= since:
                    files.append((number, stack.enter_context(piece(path, number).open("rb"))))
        if newest is not None and not any(
            os.path.sameopenfile(newest.fileno(), file.fileno()) for _, file in files
        ):
            files.append((numbers[-1] + 1 if numbers else 1, newest))
        yield files

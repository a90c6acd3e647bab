"""The command line `prefect-ft`. `commands` has the table of commands; each is a module, loaded when it is typed."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from prefect_ft.cli.commands import parsed
from prefect_ft.cli.exits import CANCELLED, FAILED, code_of
from prefect_ft.errors import PrefectFTError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is one line on standard error, never a traceback.

    `argv` is None where this process is that command alone.
    """
    if argv is not None:
        return _code(argv)
    codes: list[int] = []
    atexit.register(_end, codes)  # registered first, hence called last
    codes.append(code := _code(argv))
    # What is left is to send Prefect the last updates and to stop its server: Ctrl-C skips both, without a traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    return code


def _end(codes: list[int]) -> None:
    """End this process where threads remain: before Python 3.14, one in C++ code can abort an interpreter that ends."""
    if codes and threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(codes[0])


def _code(argv: Sequence[str] | None) -> int:
    try:
        arguments = parsed(argv)
        code: int = arguments.command(arguments)
    except PrefectFTError as error:
        print(f"error: {error}", file=sys.stderr)
        return code_of(error)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return CANCELLED
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; nothing is left to tell it
        return FAILED
    return code

"""What is known of a command without running it: whether it is a Python program, and which.

Reads files only; knows Python's own command line, and where installations keep packages.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?$")
_VERSION = re.compile(r"^__version__ = '(\d+\.\d+)", re.MULTILINE)
_ALONE = "bBdEIOPqRsSuvx"
"""Options of one letter without an argument."""

_WITH_ARGUMENT = "WX"
_LONGEST_FIRST_LINE = 256
"""How many bytes of it the kernel reads."""

_LAUNCHERS = ("torch", "accelerate", "deepspeed")
"""Packages whose modules, run as programs, start ranks of their own."""


class Program(NamedTuple):
    """A Python program: `interpreter` is a path, `kind` one of `script`, `module` and `code`.

    `options` are the interpreter's own; `target` is the script, the module's name or the code itself.
    """

    interpreter: str
    options: Tuple[str, ...]
    kind: str
    target: str
    arguments: Tuple[str, ...]


def written_out(command: Sequence[str], cwd: str) -> List[str]:
    """Return the command that the kernel runs for a script `….py` whose first line names Python; others unchanged.

    Scripts without that ending stay unchanged: most of them are launchers that a package has installed.
    """
    path = os.path.join(cwd, command[0])
    if not os.path.dirname(command[0]) or not path.endswith(".py") or not os.access(path, os.X_OK):
        return list(command)
    words = _first_line(path)
    is_python = bool(words) and _PYTHON.match(os.path.basename(words[0])) is not None
    return [*words, *command] if is_python else list(command)


def _first_line(path: str) -> List[str]:
    """Return the words of a script's `#!`, without `env` before them; none where there are none."""
    try:
        with open(path, "rb") as file:
            line = file.read(_LONGEST_FIRST_LINE).partition(b"\n")[0]
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    words = os.fsdecode(line[2:]).strip().split(None, 1)  # what follows the interpreter is one word
    if words and os.path.basename(words[0]) == "env":
        rest = words[1] if len(words) == 2 else ""
        return rest[2:].split() if rest.startswith("-S") else [rest] if rest else []
    return words


def program_of(command: Sequence[str], cwd: str, env: Dict[str, str]) -> Optional[Program]:
    """Parse a command that runs Python directly; None for every other one.

    Also None where Python runs no script, module or code: from standard input, or interactively.
    """
    command = written_out(command, cwd)
    if not _PYTHON.match(os.path.basename(command[0])):
        return None
    interpreter = _found(command[0], cwd, env)
    if interpreter is None:
        return None
    words = list(command[1:])
    options: List[str] = []
    while words:
        taken = _parsed_word(words.pop(0), words)
        if taken is None:
            return None
        mine, kind, target = taken
        options += mine
        if kind:
            return Program(interpreter, (*options,), kind, target, (*words,))
    return None


def _parsed_word(word: str, words: List[str]) -> Optional[Tuple[List[str], str, str]]:
    """Parse one word, and take its arguments off `words`; None for an unknown one.

    Returns the interpreter's own options, and the kind and target of the program if it ends them.
    """
    if not word.startswith("-"):
        return [], "script", word
    if word == "-" or word.startswith("--"):
        return None
    for at, letter in enumerate(word[1:], start=1):
        if letter in _ALONE:
            continue
        argument = word[at + 1 :] or (words.pop(0) if words else None)
        before = ["-" + word[1:at]] if at > 1 else []
        if argument is None:
            return None
        if letter in _WITH_ARGUMENT:
            return [*before, f"-{letter}", argument], "", ""
        kind = {"m": "module", "c": "code"}.get(letter)
        return None if kind is None else (before, kind, argument)
    return [word], "", ""


def _found(word: str, cwd: str, env: Dict[str, str]) -> Optional[str]:
    """Return the path of a program as it would be executed."""
    if os.path.dirname(word):
        path = os.path.join(cwd, word)
        return path if os.access(path, os.X_OK) else None
    return shutil.which(word, path=env.get("PATH", os.defpath))


def talks_to_store(program: Program, env: Dict[str, str], versions: Sequence[str]) -> bool:
    """Return whether the program expects a store at its rendezvous: it imports one of these releases of torch.

    A launcher does not: it starts a store of its own for its ranks.
    """
    package = program.target.partition(".")[0]
    is_launcher = program.kind == "module" and package in _LAUNCHERS
    return not is_launcher and torch_version(program, env) in versions


def torch_version(program: Program, env: Dict[str, str]) -> Optional[str]:
    """Return the release of torch (`2.13`) that the program would import.

    None where there is none, or where the files alone do not say.
    """
    for directory in env.get("PYTHONPATH", "").split(os.pathsep):
        if directory and (version := _version_in(directory)) is not None:
            return version
    found = {_version_in(directory) for directory in _package_directories(program.interpreter)}
    found.discard(None)
    return found.pop() if len(found) == 1 else None


def _package_directories(interpreter: str) -> List[str]:
    """Return where the packages of an interpreter are, and those of the base of a virtual environment."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(interpreter)))
    prefixes = [prefix]
    if not os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
        prefixes.append(os.path.dirname(os.path.dirname(os.path.realpath(interpreter))))
        if "/usr" in prefixes:
            prefixes.append("/usr/local")  # Debian keeps packages there that its own tools did not install
    patterns = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages")
    return [
        path for each in prefixes for pattern in patterns for path in glob.glob(os.path.join(each, pattern))
    ]


def _version_in(directory: str) -> Optional[str]:
    try:
        with open(os.path.join(directory, "torch", "version.py"), encoding="utf-8") as file:
            match = _VERSION.search(file.read())
    except (OSError, ValueError):
        return None
    return match.group(1) if match else None

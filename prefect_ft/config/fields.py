"""The types of a job's values: each says in plain words what is wrong with a value.

Pydantic's own types convert where they can; these refuse what YAML has misread (a word that became a
number or a boolean) and show how to write it instead.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from prefect_ft.config.yaml_text import SURROGATE, FieldPath


class Added:
    """Marks a field that the first release (921e233) does not know."""


ADDED = Added()

Problems = list[tuple[FieldPath, str]]
"""Messages, each with the path from the validated value to its field."""

HOUR_S, DAY_S = 3600, 86_400
MONTH_S, YEAR_S = 30 * DAY_S, 365 * DAY_S
"""The longest times that fields accept: anything longer is a mistake, or means never."""

MAX_COUNT = 10**9
"""The highest count."""

MAX_MB = 1 << 20
"""A terabyte, in megabytes."""

MAX_RANKS = 4096
"""The most ranks of a worker: more than any machine has accelerators or processors for."""

MAX_STEP = 10**15
"""The highest step, which JSON numbers represent exactly."""

MAX_WORD_BYTES = (128 << 10) - 1
"""The longest word of a command, or variable with its name, on Linux (MAX_ARG_STRLEN)."""

_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4095, 255
"""PATH_MAX, without the NUL at the end, and NAME_MAX."""

_SHOWN_LENGTH = 60
_COMMAND_EXAMPLE = ["python", "train.py"]


def shown(value: object) -> str:
    """Return a value as messages show it: on one line, and short."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, float)) or (isinstance(value, int) and value.bit_length() <= 128):
        text = repr(value)
        return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"a value of type {type(value).__name__}"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """Return the message about a key that is not among the known ones."""
    names = list(known)
    close = get_close_matches(key, names, n=1)
    return (
        f"unknown key; did you mean {close[0]!r}?"
        if close
        else f"unknown key; known keys: {', '.join(names)}"
    )


def problem(message: str, *at: str | int) -> PydanticCustomError:
    """Return the error for a validator to raise; `at` leads from the validated value to the field."""
    return as_error([(at, message)])


def as_error(problems: Problems) -> PydanticCustomError:
    """Return all problems that a validator found, as the one error that it may raise."""
    problems = [(at, _printable(message)) for at, message in problems]
    message = "; ".join(message for _, message in problems)
    return PydanticCustomError("job", "{message}", {"message": message, "problems": problems})


def _printable(message: str) -> str:
    """Replace lone surrogates, which terminals and pydantic refuse, by their numbers."""
    return message.encode("utf-8", "backslashreplace").decode("utf-8")


def text_problem(value: object) -> str | None:
    """Return why a value is not text that can be stored and passed on; `None`: it is."""
    if isinstance(value, str):
        if SURROGATE.search(value):
            return "must not contain half a surrogate pair; take it out"
        return "must not contain a NUL character; take it out" if "\0" in value else None
    if value is None or isinstance(value, (bool, int, float)):
        quoted = json.dumps("" if value is None else shown(value))
        return f"must be text, got {shown(value)}; write it in quotes, like {quoted}"
    return f"must be text, got {shown(value)}"


def _text(value: object) -> object:
    if message := text_problem(value):
        raise problem(message)
    return value


def _name(pattern: str, says: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise problem(f"must be {says}, got {shown(value)}")
        return value

    return check


def path_problem(value: str) -> str | None:
    """Return why a path of this machine can never be used; `None`: it can."""
    if not value:
        return "must not be empty; write a path"
    if value.startswith("~") and os.path.expanduser(value).startswith("~"):
        user = value[1:].partition("/")[0]
        where = f"for a directory of that name: ./{value}" if user else "or set HOME"
        whose = f"there is no user {user!r} here" if user else "nothing says where the home directory is"
        return f"{whose}; write the path itself, {where}"
    length = len(os.fsencode(value))
    if length > _MAX_PATH_BYTES:
        return f"must be at most {_MAX_PATH_BYTES} bytes long, got {length}"
    longest = max(len(os.fsencode(name)) for name in value.split("/"))
    if longest > _MAX_NAME_BYTES:
        return f"each name in it must be at most {_MAX_NAME_BYTES} bytes long, got {longest}"
    return None


def absolute(path: str | None, base: str) -> str | None:
    """Return a path that starts at `base` where it is relative; `~` is a home directory, URLs stay as they are."""
    if path is None or "://" in path:
        return path
    return os.path.abspath(os.path.join(base, os.path.expanduser(path)))


def _path(value: str) -> str:
    if "://" not in value and (message := path_problem(value)):
        raise problem(message)
    return value


def _directory(value: str) -> str:
    if "://" in value:
        raise problem(f"must be a directory on this host, got the URL {shown(value)}")
    return value


def _file(value: str) -> str:
    if "://" in value:
        raise problem(f"must be a file on this host, got the URL {shown(value)}")
    return value


def _number(value: object) -> object:
    """Refuse only booleans, which pydantic would take for 0 or 1."""
    if isinstance(value, bool):
        raise problem(f"must be a number, got {shown(value)}")
    return value


def _processes(value: object) -> object:
    count = int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) else value
    if count == "auto" or (type(count) is int and 1 <= count <= MAX_RANKS):
        return count
    raise problem(f"must be a whole number from 1 to {MAX_RANKS}, or auto, got {shown(value)}")


def _some(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replaces pydantic's length check, which also complains about a list of only invalid items."""
    if not value:
        raise problem("must not be empty; write at least one item")
    return value


def _as_list(words: list[str]) -> str:
    """Return words as in YAML, on one line; invisible characters are escaped."""
    text = json.dumps(words, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _word_problem(value: object, room: int = MAX_WORD_BYTES) -> str | None:
    """Return why a text cannot be passed to a program, which accepts `room` bytes; `None`: it can."""
    if message := text_problem(value):
        return message
    length = len(os.fsencode(str(value)))
    if length <= room:
        return None
    return f"must be at most {room} bytes long, got {length}; hand it over in a file"


def _words(value: object) -> object:
    if isinstance(value, str):
        try:
            words = shlex.split(value) or _COMMAND_EXAMPLE
        except ValueError:  # a quote that is not closed
            words = _COMMAND_EXAMPLE
        raise problem(f"must be a list of words; write {_as_list(words)}")
    if not isinstance(value, (list, tuple)):
        raise problem(f"must be a list of words, like {json.dumps(_COMMAND_EXAMPLE)}, got {shown(value)}")
    if not value or (isinstance(value[0], str) and not value[0].strip()):
        raise problem(f"must begin with a program; write its words, like {json.dumps(_COMMAND_EXAMPLE)}")
    if found := [((index,), text) for index, word in enumerate(value) if (text := _word_problem(word))]:
        raise as_error([*found])
    return value


def _arguments(value: object) -> object:
    """As `_words`, but there may be none: they follow a command."""
    return value if isinstance(value, (list, tuple)) and not value else _words(value)


def _env(value: object) -> object:
    """Turn whole numbers back into their text; refuse anything else that is not text."""
    return _variables(value, may_be_unset=False)


def _rank_env(value: object) -> object:
    """As `Env`, but null unsets a variable."""
    return _variables(value, may_be_unset=True)


def _variables(value: object, *, may_be_unset: bool) -> object:
    if not isinstance(value, dict):
        raise problem(f"must be a mapping of names to text, got {shown(value)}")
    texts = {
        name: str(text) if type(text) is int and abs(text) < 2**64 else text for name, text in value.items()
    }
    found: Problems = []
    for name, text in texts.items():
        if not isinstance(name, str) or not re.fullmatch(r"[^=\0]+", name):
            found.append(((str(name),), "the name of a variable must be text without ="))
        elif not (may_be_unset and text is None) and (
            message := _word_problem(text, MAX_WORD_BYTES - len(os.fsencode(name)) - len("="))
        ):
            found.append(((name,), message))
    if found:
        raise as_error(found)
    return texts


def _path_text(value: object) -> object:
    return _text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def given_in(env: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables that have a value."""
    return {name: value for name, value in env.items() if value is not None}


def unset_in(env: Mapping[str, str | None]) -> list[str]:
    """Return the names of those that are unset."""
    return sorted(name for name, value in env.items() if value is None)


def complete_schema(schema: dict[str, Any]) -> None:
    """Give every field in a section's JSON schema a title, and its bounds and default in words."""
    for name, entry in schema.get("properties", {}).items():
        entry.setdefault("title", name.replace("_", " ").title())
        kinds = [entry, *entry.get("anyOf", ())]
        said = [f"{word} {kind[key]}" for key, word in _BOUNDS.items() for kind in kinds if key in kind]
        if default := _default(entry.get("default")):
            said.append(f"default {default}")
        if said:
            entry["description"] = f"{entry.get('description', '')} ({', '.join(said)})".strip()


_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}


def _default(value: object) -> str | None:
    """Return a default in words; `None` where the description has it."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    if isinstance(value, (bool, str)):
        return str(value).lower() if isinstance(value, bool) else value
    return f"{value:g}" if isinstance(value, (int, float)) else None


_NAME = r"[A-Za-z0-9._-]{1,64}"
_SYSTEM = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"

Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[
    Text,
    AfterValidator(_name(_NAME, "1 to 64 of the characters A-Z a-z 0-9 . _ -")),
    Field(json_schema_extra={"pattern": f"^{_NAME}$"}),
]
SystemName = Annotated[
    Text,
    AfterValidator(_name(_SYSTEM, "1 to 253 of the characters A-Z a-z 0-9 . _ -, a letter or digit first")),
    Field(json_schema_extra={"pattern": f"^{_SYSTEM}$"}),
]
PathOrUrl = Annotated[str, BeforeValidator(_path_text), AfterValidator(_path)]
Directory = Annotated[PathOrUrl, AfterValidator(_directory)]
LocalFile = Annotated[PathOrUrl, AfterValidator(_file)]
NotBool = BeforeValidator(_number)
WholeNumber = Annotated[int, NotBool]
Seconds = Annotated[float, Field(allow_inf_nan=False), NotBool]
Processes = Annotated[
    Annotated[int, Field(ge=1, le=MAX_RANKS)] | Literal["auto"], BeforeValidator(_processes)
]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
ResumeArgs = Annotated[tuple[str, ...], BeforeValidator(_arguments)]
_Items = TypeVar("_Items")
Some = Annotated[_Items, AfterValidator(_some), Field(json_schema_extra={"minItems": 1})]
Env = Annotated[dict[str, str], BeforeValidator(_env)]
RankEnv = Annotated[dict[str, str | None], BeforeValidator(_rank_env)]


class Section(BaseModel):
    """A mapping of a job file: frozen, and without unknown keys.

    Pydantic's own error messages show no input: it may contain a secret.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra=complete_schema, hide_input_in_errors=True
    )

"""YAML text (and JSON, which is YAML) to one plain value, and the line of every part of it.

Owns the reading of plain words, and what a document must not contain: tags, keys that are not text,
duplicate keys, endless aliases. Opens no files and knows none of the keys of a job.

As few plain words as possible are converted: `true`, `yes` and the like, `null`, decimal numbers.
Everything else (dates, `010`, `1e5`, `12:30`) is text, exactly as it was written; where other readers would
convert it, it is `DoubtfulText`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from prefect_ft.errors import ConfigError

FieldPath = tuple[str | int, ...]
"""The path of a field: keys of mappings and indices of lists, from the top of the document."""

MAX_DEPTH = 64
"""The length of the longest path to a field."""

_MAX_NODES = 50_000
_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(
    r"[-+]?(?:0|[1-9][0-9]*|(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?)"
)
_PLAIN_KEY = re.compile(r"[\w./-]+", re.ASCII)
SURROGATE = re.compile("[\ud800-\udfff]")

_Pairs = dict[str, tuple[yaml.Node, yaml.Node]]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a part; `line` counts from 1, `None` where there are no lines."""

    file: str | None
    line: int | None = None


class DoubtfulText(str):
    """Text without quotes that other readers of YAML may take for a number, a date or a time."""

    def decimal(self) -> int | float | None:
        """Return the number that all readers that convert it agree on; `None` where they differ."""
        if not _DECIMAL.fullmatch(self):
            return None
        return float(self) if re.search("[.eE]", self) else int(self)


def dotted(path: FieldPath) -> str:
    """Return a path as people write it: `phases[0].command`; keys that need it are quoted."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text


def parse(text: str, file: str) -> tuple[Any, dict[FieldPath, Place]]:
    """Return the value in `text`, and the places of all its keys and items in the order of the text.

    An empty text is `None`. `file` is only named, not opened. Raises `ConfigError`.
    """
    places: dict[FieldPath, Place] = {(): Place(file, 1)}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else _Reading(loader, file, places).value(node, ())), places
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character U+{ord(text[error.position]):04X} is not allowed in YAML; take it out"
        raise ConfigError(message, file=file, line=line) from error
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, file) from error
    except RecursionError as error:
        raise ConfigError(f"is nested too deeply; at most {MAX_DEPTH} levels are read", file=file) from error
    except (ValueError, OverflowError) as error:  # the scanner hands any \U escape to chr()
        raise ConfigError("contains an invalid escape sequence", file=file) from error


class _Loader(yaml.SafeLoader):
    """Converts plain words as the module's docstring says."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # hides what the library would resolve

    def scan_to_next_token(self) -> None:
        """Skip tabs too where they indent nothing: between brackets, as in JSON."""
        super().scan_to_next_token()
        while self.flow_level and self.peek() == "\t":
            self.forward()
            super().scan_to_next_token()

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """Treat a tag like quotes: both mean that a text stays text."""
        is_tagged = self.peek_event().tag is not None  # type: ignore[no-untyped-call]
        node = super().compose_scalar_node(anchor)
        node.style = node.style or ("'" if is_tagged else None)
        return node


def _resolve(kind: str, pattern: str, first_characters: str) -> None:
    plain = re.compile(rf"(?:{pattern})\Z")
    _Loader.add_implicit_resolver(_TAG + kind, plain, list(first_characters) or [""])


_resolve("null", "~|null|Null|NULL", "~nN")
_resolve("null", "", "")
_resolve("bool", "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO")
_resolve("int", "0|-?[1-9][0-9]*", "-0123456789")
_resolve("float", r"-?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?", "-0123456789")
_resolve("merge", "<<", "<")


_REMEDIES = (
    (r"character '\t'", "indent with spaces, not with tabs"),
    ("that cannot start any token", "put the value in quotes"),
    (
        "mapping values are not allowed",
        'indent the keys of one level alike; a value with ": " in it needs quotes',
    ),
    ("but got '<stream end>'", "close the bracket"),
    ("unexpected end of stream", "close the quote"),
    ("but found '<scalar>'", "put the whole value in quotes"),
    ("expected alphabetic or numeric character", "put the value in quotes"),
    ("expected <block end>", "indent the keys of one level alike"),
    ("could not find expected ':'", "write KEY: VALUE"),
    ("undefined alias", "put the value in quotes, or define the anchor before its use"),
    ("another document", "keep one document, without a second ---"),
)


def _syntax_error(error: yaml.MarkedYAMLError, file: str) -> ConfigError:
    """Return the library's message of several lines as one, with what to do about it."""
    said = " ".join(f"{error.context or ''} {error.problem or ''}".split())
    remedy = next((advice for sign, advice in _REMEDIES if sign in said), "correct it")
    mark = error.problem_mark or error.context_mark
    return ConfigError(f"not valid YAML: {said}; {remedy}", file=file, line=mark.line + 1 if mark else None)


class _Reading:
    """One walk over a composed document; an alias is read again, as if it had been written out."""

    def __init__(self, loader: _Loader, file: str, places: dict[FieldPath, Place]) -> None:
        self._loader, self._file, self._places = loader, file, places
        self._common = yaml.SafeLoader("")
        self._visited = 0

    def value(self, node: yaml.Node, path: FieldPath) -> Any:
        """Return the value of `node`, and add its parts to the places."""
        self._enter(node, path)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self._part(item, item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            pairs = self._pairs(node, path)
            return {name: self._part(key, item, (*path, name)) for name, (key, item) in pairs.items()}
        raise self._error(node, path, f"the tag {node.tag!r} is not known; take it out")

    def _part(self, begin: yaml.Node, node: yaml.Node, path: FieldPath) -> Any:
        self._places[path] = Place(self._file, begin.start_mark.line + 1)
        return self.value(node, path)

    def _pairs(self, node: yaml.Node, path: FieldPath) -> _Pairs:
        """Yield the keys of a mapping with their nodes: those of `<<` first, so that its own keys take precedence."""
        self._enter(node, path)
        own: _Pairs = {}
        brought: _Pairs = {}
        for key, item in node.value:
            if key.tag == _TAG + "merge":
                brought |= self._brought(item, path)
                continue
            name = self._key(key, path)
            if name in own:
                first = own[name][0].start_mark.line + 1
                raise self._error(key, (*path, name), f"duplicate key, first in line {first}; keep one")
            own[name] = (key, item)
        return brought | own

    def _brought(self, node: yaml.Node, path: FieldPath) -> _Pairs:
        brought: _Pairs = {}
        for source in reversed(node.value if isinstance(node, yaml.SequenceNode) else [node]):
            if not isinstance(source, yaml.MappingNode):
                raise self._error(node, path, "<< takes a mapping, or a list of mappings")
            brought |= self._pairs(source, path)
        return brought

    def _key(self, node: yaml.Node, path: FieldPath) -> str:
        name = self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else None
        if not isinstance(name, str):
            written = f'"{node.value}"' if isinstance(node, yaml.ScalarNode) else "one word"
            raise self._error(node, path, f"a key must be text; write {written}")
        return name

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        plain = self._loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        if node.tag not in (_TAG + "str", plain):
            raise self._error(node, path, f"the tag {node.tag!r} is not known; take it out")
        try:
            value = self._loader.construct_object(node)
        except ValueError as error:
            raise self._error(node, path, "the number is too long; write a shorter one") from error
        if not isinstance(value, str):
            return value
        return DoubtfulText(value) if self._is_doubtful(node) else self._whole_characters(value, node, path)

    def _is_doubtful(self, node: yaml.ScalarNode) -> bool:
        if node.style is not None:  # in quotes, or a block
            return False
        common = self._common.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
        return common != _TAG + "str" or _DECIMAL.fullmatch(node.value) is not None

    def _whole_characters(self, text: str, node: yaml.Node, path: FieldPath) -> str:
        """Join the surrogate pairs by which JSON escapes write rarer characters."""
        if not SURROGATE.search(text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            message = "the text holds half a surrogate pair; write the character itself"
            raise self._error(node, path, message) from error

    def _enter(self, node: yaml.Node, path: FieldPath) -> None:
        """Refuse documents that aliases blow up without limit."""
        self._visited += 1
        if len(path) > MAX_DEPTH:
            raise self._error(node, (), f"is nested too deeply; at most {MAX_DEPTH} levels are read")
        if self._visited > _MAX_NODES:
            raise self._error(
                node, (), f"holds more than {_MAX_NODES} values with aliases written out; shorten it"
            )

    def _error(self, node: yaml.Node, path: FieldPath, message: str) -> ConfigError:
        line = node.start_mark.line + 1
        return ConfigError(message, file=self._file, line=line, field=dotted(path) or None)

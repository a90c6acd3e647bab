"""What precedes a message in its line: colours, a rank's prefix, times, a logger's head, a bar.

Owns the removal of all that. It never decides that something is a message; it only offers views.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["ESCAPES", "Line", "after_time", "read_line", "stamp_of"]

ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Terminal sequences: colours, movements, titles and links."""

_RANK = re.compile(
    r"\[(?:rank|default|Rank |RANK|r)[ :]?(?P<a>\d+)\]:? ?"
    r"|\[\d+,(?P<b>\d+)\]<\w+>: ?"
    r"|(?P<c>\d{1,5}): "
    r"|\((?:[\w.<>:-]+ )?pid=(?P<d>\d+)(?:, ip=[\w.:]+)?\) "
    r"|(?P<e>[\w.-]*\d) +\| "
    r"|\[(?P<f>pod/[\w./-]+)\] "
    r"|(?P<g>(?:worker|node|rank|host|gpu|ip)[-_]?[\w.-]*\d): ",
)
_LEVEL = r"DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|EXCEPTION"
_SPOKEN = r"[Dd]ebug|[Ii]nfo|[Nn]ot(?:e|ice)|[Ww]arn(?:ing)?"
"""Levels as programs without a logger write them."""
_BLANKS = re.compile(r"\s*")
_TIME = (
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ,_] ?\d\d:\d\d:\d\d(?:[.,:]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?\]?:?(?=\s|$)"
)
_AT_TIME = re.compile(_TIME)
# Blanks before a head are skipped first, and no alternative begins with optional blanks: with two ways to match
# them, the time would grow with the square of their number.
_HEAD = re.compile(
    r"(?:"
    rf"{_TIME}"
    r"|\[?\d\d[-/]\d\d[-/]\d{2,4} \d\d:\d\d:\d\d(?:[.,]\d+)?\]?:?(?=\s|$)"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:?(?=\s)"
    r"|\[?(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?: \d{4})?\]? "
    r"(?:[\w.-]+ (?=[\w./()-]+(?:\[\d+\])?: ))?"
    rf"|[A-Za-z]{{3}}\.?-\d{{1,2}} [\d:.]{{12}} \[[^\]]{{1,80}}\] "
    r"(?:DEBUG nextflow\.Session(?= - Session aborted)|"
    rf"(?P<nextflow>{_LEVEL}) +[\w.$]+) -(?=\s)"
    r"|\[ *\d+\.\d{6}\]"
    r"|<\d{1,2}>"
    r"|(?:kernel|slurmstepd-host|systemd|dockerd|containerd|kubelet)(?:\[\d+\])?:"
    rf"|(?P<glog>[IWEF])(?:\d{{4}} [\d:.]+ +|[0-9]{{4}} )?\d+ [\w./-]+:\d+\]"
    r"|(?P<tf>[IWEF]) (?=[\w./-]+:\d+\])"
    r"|[\w./-]+\.(?:cc|cpp|cu|py|h|go):\d+\]?:?"
    r"|\[(?P<dated>[IWECD]) \d{2,4}[-/]?\d\d[-/]?\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?: \w+)?\]"
    rf"|\[(?P<c10d>[IWEF])(?:\d{{3,4}} [\d:.]+)? [\w./-]+:\d+\]"
    rf"|(?P<named>{_LEVEL}):[\w.]+:"
    r"|[\w./()-]+\[\d+\]:(?=\s)"
    rf"|(?:\[ *)?(?P<level>{_LEVEL}|[IWEF](?=\])) *(?:\]|[:|]|\s-|\s+)"
    rf"|\((?P<round>{_LEVEL})\)"
    r"|\([\w. -]+:\d+\): [\w.-]+-(?P<glib>WARNING|CRITICAL) \*\*:"
    rf"|(?P<word>{_SPOKEN}):(?=\s)"
    rf"|\[(?P<tag>{_SPOKEN}|[Ss]kip(?:ped)?|[Rr]etry(?:ing)?)\]:?(?=\s)"
    rf"|\[[\w.:/ ,#=-]{{1,60}}\](?:\[(?!(?:{_LEVEL})\])[\w.:/ ,#=-]{{1,60}}\])*:?(?=\s|\[(?:{_LEVEL})\])"
    r"|(?:stdout|stderr) *\|"
    r"|[\w.:]+ -(?=\s)"
    r"|- (?=\S)"
    r"|\|"
    r")\s*"
)
_LEVELS = str.maketrans("NCSR", "IEWW")
"""The levels of NOTICE, of CRITICAL (also used for important messages), and of tags such as [skip] and [retry].

Of GLib's, CRITICAL is a warning as well: its ERROR ends a program.
"""
_BAR = re.compile(r"(?:\b\w{1,12}/s|s/\w{1,12})(?:, [^\]]{0,200})?\]|\d%\|[^|]{0,200}\|(?: *\d+/\d+)?")
_STAMP = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ,_](\d\d):(\d\d):(\d\d)(?:[.,:](\d{1,6}))?")
_WARNS = re.compile(r"(?:\.py|<[\w. ]+>):\d+: \w*Warning: |^[\w./+-]+(?::\d+|\(\d+\))*:? [Ww]arning(?:: | #)")
"""How Python's `warnings` begins a line, after the path of the module, and how libraries and compilers do."""
_REPORTS = re.compile(r"(?:Error|ERROR|Exception|EXCEPTION|Fatal|FATAL)\b(?! rate)")
"""How a message begins that reports an error, whatever level it was logged at."""
_SIGNAL = re.compile(r"\*\*\* SIG[A-Z]+ \(@")
"""How glog reports a fatal signal, at whichever level its user logs it."""
_MATLAB = '"matlab:'
_LINK = re.compile(r"</?a\b[^<>]*>")
"""The links that MATLAB's desktop writes around functions and lines."""

_MAX_HEADS = 8

_MESSAGES = ("message", "msg", "event")
"""Keys under which loggers that write JSON put the message."""

_LEVEL_KEYS = ("level", "levelname", "severity")
_CAUSES = ("exc_info", "exception", "error", "stack_trace", "stacktrace", "traceback")


@dataclass(frozen=True, slots=True)
class Line:
    """A line without colours. `views` are its ends, from the whole message to what is left without heads.

    `rank` is the text of the rank's prefix, empty if there is none. `level` is a letter: D, I, W, E, F.
    """

    rank: str
    views: tuple[str, ...]
    level: str = ""

    @property
    def text(self) -> str:
        return self.views[0]


def read_line(raw: bytes) -> Line:
    """Read one line, or one stretch of it between two carriage returns."""
    text = raw.decode(errors="replace").replace("\0", "").rstrip()
    if _MATLAB in text:
        text = _LINK.sub("", text)
    rank, text = _without_rank(text)
    views, level = [text], ""
    at = 0
    for _ in range(_MAX_HEADS):
        head = _HEAD.match(text, _end_of_blanks(text, at))
        if head is None or head.end() in (at, len(text)):
            break
        at = head.end()
        if level in ("", "E"):  # what redirects standard error logs it all as errors
            level = _level_of(head) or level
        inner_rank, rest = _without_rank(text[at:])
        rank = rank or inner_rank
        views.append(rest)
        at = len(text) - len(rest)
    if not level and "arning" in text and any(map(_WARNS.search, views)):
        level = "W"
    if (said := _of_json(next((view for view in views if view[:1] == "{"), "")))[0]:
        views += said[0]
        level = level or said[1]
    if level in ("D", "I") and _REPORTS.match(views[-1]) is not None:
        level = ""
    if level == "W" and _SIGNAL.match(views[-1]) is not None:
        level = ""
    bars = [bar.end() for bar in _BAR.finditer(text)] if _has_bar(text) else []
    if bars and bars[-1] < len(text):
        views.append(text[bars[-1] :].lstrip())
    return Line(rank, tuple(views), level)


def _of_json(text: str) -> tuple[list[str], str]:
    """Return what a line of JSON says, the exception last, and its level; nothing for any other line."""
    if text[:1] != "{" or not any(f'"{key}"' in text for key in _MESSAGES):
        return [], ""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):  # broken, or nested too deep
        return [], ""
    said = [read[key] for key in (*_MESSAGES, *_CAUSES) if isinstance(read.get(key), str)]
    said += _raised_in(read)
    # JSON may hold lone surrogates, which stand for bytes of names that are not UTF-8; no pattern takes them
    plain = (text.encode(errors="replace").decode() for text in said)
    views = [lines[-1] for text in plain if (lines := text.strip().splitlines())]
    level = next((read[key] for key in _LEVEL_KEYS if isinstance(read.get(key), str)), "")
    return views, level[:1].upper().translate(_LEVELS)


def _raised_in(read: dict[str, Any]) -> list[str]:
    """Return the exception that structlog describes, as Airflow's tasks do."""
    details = read.get("error_detail")
    first = details[0] if isinstance(details, list) and details else None
    if not isinstance(first, dict) or not isinstance(first.get("exc_type"), str):
        return []
    return [f"{first['exc_type']}: {first.get('exc_value', '')}"]


def _end_of_blanks(text: str, at: int) -> int:
    blanks = _BLANKS.match(text, at)
    return blanks.end() if blanks else at


def _has_bar(text: str) -> bool:
    """Return cheaply whether there may be one."""
    return "%|" in text or ("]" in text and ("/s" in text or "s/" in text))


def _without_rank(text: str) -> tuple[str, str]:
    rank = ""
    while (prefix := _RANK.match(text)) is not None and len(rank) < 80:
        rank += prefix[0].strip()
        text = text[prefix.end() :]
    return rank, text


def _level_of(head: re.Match[str]) -> str:
    if head.lastgroup == "glib":
        return "W"
    found = head[head.lastgroup] if head.lastgroup else ""
    return found[:1].upper().translate(_LEVELS)


def after_time(text: str) -> str:
    """Return a line without the time at its beginning and the blank that follows; further blanks are indentation."""
    time = _AT_TIME.match(text)
    return text[time.end() :].removeprefix(" ") if time else text


def stamp_of(text: str) -> float | None:
    """Return the seconds of the last full time in a text, on a scale of their own; `None` without one."""
    stamps = list(_STAMP.finditer(text))
    if not stamps:
        return None
    last = stamps[-1]
    year, month, day, hour, minute, second = (int(part) for part in last.groups()[:6])
    fraction = float(f"0.{last[7]}") if last[7] else 0.0
    return (((year * 12 + month) * 31 + day) * 24 + hour) * 3600.0 + minute * 60 + second + fraction

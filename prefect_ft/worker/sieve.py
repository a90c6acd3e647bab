"""The parts of a rank's output that may say why it failed: chosen as it comes, bounded, with the standard library only.

Owns the coarse choice where output is not sent as a whole: the first lines that look like an error, the last ones,
their context, whether the run progressed after them, and the end. The classifier decides what a line means;
this must only not lose a line that it would name.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Pattern, Sequence, Tuple

FIRST_BYTES = 96 << 10
"""How much is kept of the first lines that look like an error, with their context."""

LAST_BYTES = 96 << 10
"""How much is kept of the last ones."""

END_BYTES = 64 << 10
"""How much is kept of the end."""

BEFORE_BYTES = 4 << 10
AFTER_LINES = 40
"""How many lines are kept before and after one that looks like an error: its time, a traceback, a message."""

AFTER_LINES_AGAIN = 4
"""The same after a line like others before it."""

PLACES_AFTER = 64
"""How many lines of progress are kept after it: they show that the run survived it."""

STRETCH_BYTES = 4 << 10
"""How much of a longer stretch of text is kept around the place of interest."""

_LIKE_EACH_OTHER = 4
_FORMS = 4096
_DIGITS = b"0123456789"

_SIGNS = (
    '", line |❱|╰──|'
    "abort|absent|already|assert|badzip|blocked|blocklist|broken|bus error|busy|can't|cancel|cannot|closed|"
    "compromised|core dump|corrupt|could not|crash|critical|dead|deleted|denied|died|disconnect|dumped core|"
    "duplicate|ecc |enforced|errno|error|evict|exceed|exception|exhaust|exit|expected|expired|fail|fatal|"
    "fault|finite|full|giving up|hang|held|hung|illegal|incompat|incomplete|inconsisten|infinit|insufficient|"
    "interrupt|invalid|kill|link down|list index|lose|loss scale|lost|low on resource|mismatch|missing|"
    "must be|must have|nan|nccl warn|no devices|no module|no parser|no permission|no route|no socket|"
    "no space|no such|no supported|not a|not enough|not exist|not found|not ready|not support|notready|nvrm|"
    "oom|out of|overflow|panic|permission|preempt|pull|queue.empty|quota|read-only|readonly|reboot|refus|"
    "reject|reset|restart|segmentation|shut|sigint|sigkill|signal|sigterm|slurm|srun|stale|stall|"
    "status: down|stopiter|stopped|stuck|temperature|terminat|time out|time-out|timed out|timeout|times out|"
    "too large|too long|too many|too small|traceback|truncat|unable|unavailable|uncorrect|undefined|"
    "unhandled|unhealthy|unknown|unreachable|unrecogni|unsupport|usage: |waiting|watchdog|what()|xid|"
    "omp_num_threads|elastic_operator|dist_world_size|ray instance|values were not|requeue|train_runtime|"
    "training complete|training finished|training done|training has|training is|epochs completed|"
    "namespace(|ignoring input|executing on|logged in as|tracking run|gpu available|seed set to|"
    "tensorflow backend|using backend|ultralytics yolo|pygame 2|importing module|"
    "bad config|bad substitution|but source was|calling stack|can not|compiler|control to user|"
    "for more information|[file |"
    "unbound|没有空间"
)
"""Words in lines that say why a run failed, in lower case, and in many others too; then words of a run that
begins again, or completes."""

_PLACE = re.compile(
    rb"(?:step|epoch|iter|iteration|batch|update|trial|loss)s?['\"]?[\s:=#/\[(]{0,12}\d|\d/\d+ \[\d+:\d\d"
)
"""Words in lines that show progress, in lower case."""


class Part(NamedTuple):
    """A piece of the output: the offset of its first byte, and the number of its line, from 1."""

    offset: int
    line: int
    data: bytes


class Sieve:
    """Takes the output of one rank from its first byte on; `parts` returns what was chosen."""

    def __init__(self, signs: Sequence[str] = ()) -> None:
        """`signs` are texts that make a line interesting, in upper or lower case."""
        self.offset = 0
        """How many bytes have come."""
        self.lines = 0
        """How many line ends were among them."""
        self._looks_bad = _any_of(*signs) if signs else _LOOKS_BAD
        self._end = b""
        self._first, self._last = _Shelf(FIRST_BYTES), _Shelf(LAST_BYTES)
        self._kept = 0
        """The offset after the last byte that was kept."""
        self._after = self._places = 0
        """How many more lines are kept: of any, and of those that show progress."""
        self._forms: Dict[bytes, int] = {}
        self._is_new = True
        """Whether the line that looked bad last is among the first of its form."""

    def take(self, offset: int, data: bytes) -> None:
        """Take the next output; repeated bytes count once, skipped ones are lost."""
        data = data[max(0, self.offset - offset) :]
        if offset > self.offset:
            self.offset, self._end, self._after = offset, b"", 0
        before = self._end[-BEFORE_BYTES:]
        block = _Block(before + data, self.offset - len(before), self.lines - before.count(b"\n"))
        self._sift(block, len(before))
        self.offset += len(data)
        self.lines = block.line_at(len(block.text)) - 1
        self._end = (self._end + data)[-END_BYTES:]

    def skip(self, offset: int, data: bytes) -> None:
        """Skip the next output: only its lines are counted."""
        self.offset, self.lines = offset + len(data), self.lines + data.count(b"\n")
        self._end, self._after = b"", 0

    def parts(self) -> List[Part]:
        """Return what was chosen, in order and no byte twice."""
        end = Part(self.offset - len(self._end), self.lines + 1 - self._end.count(b"\n"), self._end)
        return _joined(sorted([*self._first.parts, *self._last.parts, end]))

    def _sift(self, block: _Block, at: int) -> None:
        while at < len(block.text):
            if self._after:
                at = self._keep_after(block, at)
                continue
            hit = self._looks_bad.search(block.low, at)
            spot = hit.start() if hit else len(block.text)
            if self._places:
                self._keep_places(block, at, spot)
            if hit is None:
                return
            at = self._keep_spot(block, spot)

    def _keep_spot(self, block: _Block, spot: int) -> int:
        """Keep a place of interest with the lines before it; return where the next line begins."""
        start, stop = block.stretch(spot)
        form = block.text[start:stop].translate(None, _DIGITS)
        if len(self._forms) >= _FORMS:
            self._forms.clear()
        self._forms[form] = self._forms.get(form, 0) + 1
        self._is_new = self._forms[form] <= _LIKE_EACH_OTHER
        self._after = AFTER_LINES if self._is_new else max(self._after - 1, AFTER_LINES_AGAIN)
        self._places = PLACES_AFTER
        self._keep(block, max(0, start - BEFORE_BYTES), stop)
        return stop

    def _keep_after(self, block: _Block, at: int) -> int:
        """Keep a line that follows; return where the next one begins."""
        _, stop = block.stretch(at)
        if (hit := self._looks_bad.search(block.low, at, stop)) is not None:
            return self._keep_spot(block, hit.start())
        self._after = self._after - 1 if stop - at < STRETCH_BYTES else 0
        self._keep(block, at, stop)
        return stop

    def _keep_places(self, block: _Block, at: int, end: int) -> None:
        while self._places and (place := _PLACE.search(block.low, at, end)):
            start, at = block.stretch(place.start())
            self._keep(block, start, at)
            self._places -= 1

    def _keep(self, block: _Block, start: int, stop: int) -> None:
        start = max(start, self._kept - block.offset)
        if start >= stop:
            return
        part = Part(block.offset + start, block.line_at(start), block.text[start:stop])
        self._kept = block.offset + stop
        if not (self._is_new and self._first.take(part)):
            self._last.make_room_for(part)


class _Block:
    """The text examined at once: the latest piece, after the end of the previous one."""

    def __init__(self, text: bytes, offset: int, lines: int) -> None:
        """`offset` is that of the first byte, `lines` how many line ends are before it."""
        self.text, self.low, self.offset = text, text.lower(), offset
        self._counted = 0
        self._lines = lines

    def line_at(self, at: int) -> int:
        """Return the number of the line at a place, from 1."""
        if at >= self._counted:
            self._lines += self.text.count(b"\n", self._counted, at)
        else:
            self._lines -= self.text.count(b"\n", at, self._counted)
        self._counted = at
        return self._lines + 1

    def stretch(self, at: int) -> Tuple[int, int]:
        """Return the bounds of the text around a place, between line ends or carriage returns; not far from it."""
        floor, ceiling = max(0, at - STRETCH_BYTES // 4), min(len(self.text), at + STRETCH_BYTES)
        start = max(self.text.rfind(b"\n", floor, at), self.text.rfind(b"\r", floor, at)) + 1 or floor
        stop = _LINE_END.search(self.text, at, ceiling)
        return start, stop.end() if stop else ceiling


class _Shelf:
    """Pieces, as many as fit."""

    def __init__(self, limit_bytes: int) -> None:
        self.parts: Deque[Part] = deque()
        self._free_bytes = limit_bytes

    def take(self, part: Part) -> bool:
        """Take a piece if there is room for it."""
        if len(part.data) > self._free_bytes:
            return False
        self.parts.append(part)
        self._free_bytes -= len(part.data)
        return True

    def make_room_for(self, part: Part) -> None:
        """Take a piece, dropping the oldest ones for it."""
        while not self.take(part):
            self._free_bytes += len(self.parts.popleft().data)


def _joined(parts: Sequence[Part]) -> List[Part]:
    """Merge parts that follow each other or overlap."""
    joined: List[Tuple[Part, bytearray]] = []
    for part in parts:
        overlap = joined[-1][0].offset + len(joined[-1][1]) - part.offset if joined else -1
        if overlap >= 0:
            joined[-1][1].extend(part.data[overlap:])
        else:
            joined.append((part, bytearray(part.data)))
    return [part._replace(data=bytes(data)) for part, data in joined]


def _branched(words: Sequence[str]) -> str:
    """Return an expression for any of these words, as a tree: many times faster than one branch for each."""
    if "" in words:
        return ""
    rests: Dict[str, List[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + _branched(rest) for first, rest in rests.items()]
    return branches[0] if len(branches) == 1 else "(?:" + "|".join(branches) + ")"


def _any_of(*signs: str) -> Pattern[bytes]:
    texts = (sign.encode("utf-8", "replace").lower() for sign in (*_SIGNS.split("|"), *signs))
    return re.compile(_branched([text.decode("latin-1") for text in texts]).encode("latin-1"))


_LINE_END = re.compile(rb"[\n\r]")
_LOOKS_BAD = _any_of()

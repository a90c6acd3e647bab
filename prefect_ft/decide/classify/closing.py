"""The last lines of a log that complain in words that no signature matches.

Owns the forms of a complaint, in any program, and which of several is the root. It is asked only where nothing else
explains the failure, so its verdict is never certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from prefect_ft.decide.classify.exits import CODES, by_status, signal_of
from prefect_ft.decide.classify.heads import Line, after_time, stamp_of
from prefect_ft.decide.classify.progress import is_result, place_of
from prefect_ft.decide.classify.said import said_by, says_to_go_on
from prefect_ft.model import FailureClass
from prefect_ft.signatures import Signature, compiled

__all__ = [
    "AFTER_LINE",
    "SERVES",
    "WEAK_LEVELS",
    "Complaint",
    "code_in",
    "complains",
    "complaint_of",
    "is_frame",
    "is_lost_loss",
    "is_message_of_crash",
    "is_of_tracker",
    "last_complaints",
    "may_complain",
    "reports_failure",
    "root_of",
    "signature_of_complaint",
]

_APART_LINES = 15
"""How far apart complaints of one event may stand."""

AFTER_LINE = 10
"""How many lines without any report of a failure show that a run went on after a line that names one, where it is not
known how the run ended."""

_LAST_LINES = 3
"""How near to a log's end a complaint must stand of which the wording is weak, or the kind not known."""

_FAREWELL_LINES = 5
"""How many lines a script may print after it has stated the exit code of what failed."""

_OPENS = compiled(
    r"(?i:^\W{0,4}(?:(?:fatal|critical|internal|unrecoverable|runtime|uncaught|unhandled|unexpected|severe) ){0,2}"
    r"(?:fatal|errors?|err|panic|exception|failure|aborting|abort(?:ed)?|killed|terminated|terminating|failed|crash(?:ed)?|died|"
    r"segmentation fault|bus error|illegal instruction|\*\*\* .{0,60}?(?:abort|caught|corrupt|crash|detect|"
    r"error|exception|fail|fatal|kill|signal|sig[a-z]{3,5}|terminat)\w*)\b(?:[^\w@]|$))"
)
"""How a line begins that only says that something has failed."""

_EXIT_CODE = (
    r"(?i:\b(?:exit[ _-]?(?:code|status)|exit(?:ed|ing) with code|return ?code|rc)(?: is)?[ :=]{1,3}"
    r"(-?[1-9]\d{0,9})\b)"
)
_EXIT_N = r"(?:(?:^|\()exit ([1-9]\d{0,2})\b|successfully: exit ([1-9]\d{0,2})$|exit codes: ([1-9]\d{0,2})$)"
"""How a script reports that a program has failed."""

_CAUSED_BY = "Caused by: "
"""How Java begins the report of what caused an exception."""

_NAMES = compiled(
    "|".join(
        (
            r"^[\w.]*(?:[a-z]Error|Exception|Fault|Failure)\b(?:: |$|\()|<class '[\w.]+'>, ",
            r"\b(?:ERROR|CRITICAL)\W<class '[\w.]+(?:Error|Exception)'>: ",
            rf"^{_CAUSED_BY}[\w.$]+(?:Error|Exception)\b",
            r"(?:^|[\s:\]])(?:[\w./+-]+: )?(?:fatal )?error(?: [A-Z]*\d+)?: ",
            r"^[\w./@+-]+: \S+:\d+: ",
            r"(?:^|\s)(?:FATAL|ERROR|PANIC|SEVERE|Fatal|Error)\b ?(?::|\bon\b|\bin\b|\]|!)",
            r"\b(?:terminated|exited|exits|aborted|died) (?:with|due to|by|abnormally|unexpectedly|because)\b",
            r"(?i:\bkeyboard ?interrupt|\bctrl ?[-+]? ?c\b|\binterrupted by (?:the )?user\b)",
            (
                r"(?i:^\W*(?:\w+ ){0,2}(?:training|evaluation|execution|experiment|job|pipeline|run|script)"
                r" (?:has )?failed\b)"
            ),
            _EXIT_CODE,
            _EXIT_N,
            r"&&&& FAILED ",  # TensorRT
            r"^pure virtual (?:method|function) called",
            r"\bstatus = \"|\bgiving up\b|\w\W+exiting(?: now)?[.!]?$|\bcannot continue\b",
            r"\bstack trace:|\(core dumped\)$",
        )
    )
)
"""Words that report an end, anywhere in a line."""

_EXIT = compiled(_EXIT_CODE)
_CODE = re.compile(f"{_EXIT_CODE}|{_EXIT_N}")

_ENDS = compiled(r"(?i)\b(?:shutting down|exiting|terminating|aborting)\b")
"""Words that report an end at the level of errors, where a program else says them of any end."""

_UNHANDLED = "Unhandled exception. "
_PANIC = "panic: "
"""How .NET and Go begin the report of an exception that nothing caught."""

_ERROR_IN = "Erreur dans|Fehler in|Error en|Errore in|Erro em"
"""R's "Error in", in French, German, Spanish, Italian and Portuguese."""

_UNCAUGHT = compiled(
    "|".join(
        (
            r"^ERROR: (?:\w+: )*\w+(?:Error|Exception)\b",  # Julia
            r"^\{?Error (?:in .{1,200}(?: :|\(line \d+\)$)|using \w+)",  # R, MATLAB
            f"^(?:{_ERROR_IN}) .{{1,200}} : ?",  # R in other languages, and R's parser
            r"^Error: unexpected (?:symbol|string constant|numeric constant|input|end of input|'.{1,4}') in:?",
            r"^Undefined (?:function|variable)\b|^Execution halted$|^ *error in evaluating the argument ",  # R
            r"^Exception in thread \"",  # Java
            f"^{re.escape(_UNHANDLED)}",  # .NET, as the next
            r"^ ?---> [\w.]+(?:Exception|Error): ",
            rf"^{_PANIC}|^(?:Fortran )?runtime error: |^forrtl: (?:severe|error) \(\d+\): ",  # Go, Fortran
            r"^ERROR \(\w+(?:::\w+)*\): |^Exception: \S+:\d+ in .{1,400} threw [\w:]+ because ",  # Eidos, Moses
            r"^\S*\blua(?:jit)?: \S+:\d+: ",
        )
    )
)
"""How other languages than Python report what ended a program: its own error, if the words tell no other kind."""

_STOPPED = compiled(f"^(?:Error in|{_ERROR_IN}) .+ : *$")
"""How R reports where a program stopped, if the reason did not fit into the line: it stands in the next one."""

SERVES = r"\[[DIW] [\d:. -]+ (?:Notebook|Lab|Server)App\] "
"""How a notebook server logs what is no failure."""

_NO_END = compiled(
    "|".join(
        (
            r"(?i)^\W*(?:\w+ |top-?\d )?errors?(?: rate| bars?)?\s*[:=(]?\s*[-+]?[\d.]+(?:e[-+]?\d+)?\s*(?:%|$|[,;|)])",
            r"(?i:\berrors?\s*[:=]\s*[-+]?\d+\.\d+(?:e[-+]?\d+)?(?:\.$|\s|$|[,;|)%]))",
            (
                r"(?i:^\W*(?:(?:total|number of) )?(?:errors?|failures?|failed|crash(?:ed|es)?|fatal\w*|aborted|killed|"
                r"terminated|died|cancell?ed)\b[^:=[]{0,40}"
                r"[:=]\s*\d+(?:\s*/\s*\d+|\.\d+)?\s*(?:$|[,;|)%\]]|[a-z]+s\b|of\b))"
            ),
            r"(?i:warn(?:ing)?)\b|\bdeprecat|\b(?:is|are) discouraged\b",
            r"(?:^|[^.\d])0 (?:\w+ )?(?:discarded|errors?|failed|failures?)\b",
            (
                r"(?i:^[\w ]{0,40}\b(?:bad|broken|corrupt\w*|invalid|missing|lost|failed)"
                r"(?: \w+)? (?:samples?|records?|lines?|files?|rows?|items?|images?|values?|ratio|rate|count)"
                r"[:=] *0(?:\.0+)?%?$)"
            ),
            r"^\W*(?:[\w ]+: \d+(?:\.\d+)?[\s,|;]+)+[\w ]+: \d+(?:\.\d+)?\W*$",
            r"(?i:\b(?:exit(?:ed)?|return)\b[ _-]?(?:with )?(?:exit )?(?:code|status)\W{1,3}0\b)",
            r"(?i:\bexited with 0\b|\bstandard error\b)",
            r"\bERROR: [-+\d.]+$|(?i:^\W*failed (?:files|notebooks|paths): ?\[.*\]$)",
            r"\bno errors?\b|\b(?:safely|be) ignored|^\([^)]+\): \S+-(?:WARNING|CRITICAL) \*\*:",
            r"\berrors?[_ ]?(?:rate|count|bars?|feedback|function|handler|correction|analysis)\b",
            r"(?i:\b(?:failures?|crash|abort|kill|timeout)[_ ](?:rate|counts?|probability|modes?|analysis)\b)",
            r"(?i:\bterminated ?[:=] ?(?:true|false)\b|\bpanic (?:sell|buy)\w*)",
            (
                r"(?i:\b(?:terminat|kill)ing (?:early\b|"
                r"(?:all )?(?:the )?(?:remaining |worker |child ){0,2}(?:process\w*|workers?|threads?|"
                r"actors?)\b))"
            ),
            (
                r"(?i:\b(?:evict|pre-?empt)\w*\b.{0,40}\b(?:cache|blocks?|requests?|sequences?|entry|entries|pages?|"
                r"keys?)\b|\bcache\b.{0,40}\bevict)"
            ),
            r"\bdied unexpectedly, shutting down client\b",
            r"(?i:\b(?:terminated|ended|exited|aborted) (?:with success|successfully|normally)\b)",
            r"(?i:\berrors? \w+ (?:saved|written|exported|stored) (?:to|in|as)\b)",
            r"^(?i:test|train(?:ing)?|val(?:idation)?|eval(?:uation)?) [Ee]rror: *$",  # PyTorch's tutorial
            f"^{SERVES}",
            r"^(?:ls|grep|du|find|wc|head|tail): |^libGL error|\d ?% (?:full|used)\b",
            r"\bretry(?: [^c]|[^\w ]|$)|\b(?:restarting|recover(?:ed|ing)|suppress(?:ed)?)\b|\bHTTP Request: ",
            (
                r"(?i:\b(?:max(?:imum)? (?:number of )?(?:steps?|epochs?|iter\w*|updates?)|all (?:jobs|tasks|done)|"
                r"done|completed?|finished|success\w*)\b.{0,24}\bexiting\b)"
            ),
            r"(?i:(?:failed|not|unable) (?:to )?(?:send|log|upload|sync) .{0,20}\b(?:metric|artifact|tensorboard))",
            r"\byou may (?:observe|see)\b",
            r"(?i:(?:\b(?:press|hit|use|type|with|by)\b|使用|按).{0,20}\bctrl|\bctrl ?[-+]? ?c\W{1,3}to\b)",
            r"(?i:^\W*\[(?:skip|retry)\w*\])",
            r"(?i:\bearly[- ]stop)|\bno such process\b|^Killed by signal \d+\.$",
            r"\bpossible (?:causes?|reasons?)\b|\brecvValue failed on|\"should dump\" flag",
            r"^(?:>>> |\.\.\. |\+ |\$ |In \[\d+\]: |\(Pdb\) |ipdb> )",
            r"^Exception (?:in thread [^\"]|ignored)|Traceback \(most recent",
            r"\] {3,}(?:File \".*\", line \d|(?:raise|return|yield|await|with|for) \w|\w[\w.]*(?:\(| = ))",
        )
    )
)
"""Lines that complain of nothing that ends a run, repeat what was typed, or are of a traceback."""

_TRACKER = "wandb: "
_AROUND = ("slurmstepd: ", _TRACKER)
"""What runs around a program and complains of much that does not end it."""

_IGNORED = "Exception ignored in: "
"""How Python reports an exception that nothing could catch, above its traceback."""
_RAISED = re.compile(r"[\w.]*[a-z](?:Error|Exception)\b")
"""How the last line of a traceback begins."""

_WHAT = compiled(r"^\s+what\(\):")
"""How C++ shows the message of an uncaught exception."""

_FRAME = compiled(
    r"^\s*@\s+(?:0x)?[0-9a-f]{6,}\s|^\[frame \d+\]: |^frame #\d+: |^\s+at [\w.$<>`\[\],]+\(|^\s+--- End of inner |"
    r"^ {0,3}\[\d+\] (?:top-level scope|\S+\(|\(::|[\w.!#]+$)|^ +@ [\w.~/]|^\S+ +[0-9A-F]{16}  \S+ +(?:\d+|Unknown) |"
    r"^\S+ at \.{0,2}/\S+(?::\d+(?: \[inlined\])?| \(unknown line\))$|^unknown function \(ip: |"
    r"^\s+File \".*\", line \d+ in \S"
)
"""How C++ libraries, Java, .NET, Julia, Intel's Fortran and Python's faulthandler print a frame of a stack."""

_LOSS = compiled(r"(?i)(?:loss|perplexity|ppl)\w*['\"]?[ :=]{1,24}[-+]?\d")
_LOST = compiled(r"(?i)(?:(?:loss|perplexity|ppl)\w*|\bL)['\"]?[ :=]{1,24}[-+]?nan\b")
"""Lines that report a loss, and those whose loss is NaN."""

_VALUE = compiled(r"(?i)[:=]\s*[-+]?nan\b")
"""How a program prints that a metric is NaN: it goes on."""

_USAGE, _USAGE_LINES = compiled(r"(?i)^usage: ?\S"), 40
"""How programs tell how they are called, and in how many lines at most."""

_SUMMARY = compiled(r"^wandb: |^\s+\w+ +=\s+\S+$")
"""How wandb and Hugging Face's trainer print the last values of a run, after its end, whatever that was."""

_COMPLAINS = compiled(
    r"(?i:\b(?:err|errors?|fail\w*|fatal|unable|cannot|can't|could ?n[o']t|not|no|lost|refused|reset|exceed\w*|invalid|"
    r"tim(?:ed?|ing) ?-?out|corrupt\w*|truncated|abort\w*|kill\w*|crash\w*|exception|denied|missing|un\w+able|out|full|"
    r"nan|inf|diverged|cancel\w*|evict\w*|preempt\w*|stale|broken|bad|panic\w*|hung|dead|died|down|uncorrect\w*|fall\w*|"
    r"mismatch\w*|interrupt\w*|ctrl)\b)"
)
"""Words of lines that complain; those that report an end in the forms above may have none."""

_MAY_COMPLAIN = compiled(
    "(?m)" + "|".join(one.pattern for one in (_OPENS, _NAMES, _UNCAUGHT, _WHAT, _COMPLAINS))
)
"""What every line contains that complains, unless it was logged as an error or worse: most need no further check."""

_DONE = compiled(
    r"(?i)^\W*(?:done \w+ing\b|(?:successfully )?saved? |saving |all done\b|results? )|\bsuccessful(?:ly)?!*$"
)
"""Lines of a program that has results: what it complained of before in words of no known kind is over."""

_SAVED = compiled(r"(?i)\bsaved successfully\b|\bsuccessfully saved\b")
_FILE_NAME = re.compile(r"[\w-]+\.\w{2,12}\b")
"""A line after which a complaint about the file that it names is over: it was saved elsewhere, or later."""

_ROW = "|"
"""How a row of a table begins, whose cells name states."""

_ITEM = compiled(r"^\W{0,2}\d+ ?/ ?\d+(?:[^\w/]|$)")
"""How a line about one of many items begins."""

_AS_BEFORE = 2
"""How many lines as before show that a program went on after a complaint of unknown class, among those that follow."""

_FOLLOWING = 3
"""How many have to follow: fewer may be the times and sizes that are reported of each run."""

_LETTERS = 8
"""How long such a line must be without its numbers."""

_END_LETTERS = 16
"""How much of their ends complaints about items have in common."""

_OF_A_FILE = compiled(
    r"(?i)^\W{0,4}failed to (?:load|open|parse|process|read) [\w./:-]*\.(?:csv|dcm|flac|h5|hdf5|jpe?g|jsonl|mat|"
    r"mp[34]|nii|np[yz]|parquet|pkl|png|tiff?|txt|wav|webp)"
)
"""A complaint about one sample, without a reason: a program that prints anything after it goes on with the next one."""

_LOGGED, _TRIED = "E", "D"
"""Levels: at that of errors a program reports what has failed, at that of debugging also what it only tried."""

_ITEMS = 3
"""How many similar complaints are about items that a program processes, and not about its end."""

_OFTEN, _OFTEN_S = 10, 60
"""How often a logger reports an error of unknown kind if it ends nothing: more often than each rank of a node once.
Or `_ITEMS` times over as many seconds: ranks that fail together report it sooner."""

_OUTPUT, _INDENT = "Command error:", "  "
"""How Nextflow heads what a task printed to standard error, and what it puts before each line of that."""

_NUMBER = compiled(r"\d+")
_VALUES = compiled(r"\[[^\[\]]*\]|\d+")
WEAK_LEVELS = ("W", "I", "D")


@dataclass(frozen=True, slots=True)
class Complaint:
    """A line that complains; `line` is its number, `after` how many lines with a text follow it.

    `is_strong`: no program prints it that means to continue.
    """

    text: str
    line: int
    after: int
    failure_class: FailureClass | None
    is_strong: bool


def complaint_of(line: Line) -> tuple[str, FailureClass | None, bool] | None:
    """Return the complaint in a line: its text, its class, and whether it has the form of an end."""
    text = line.text
    is_what = is_message_of_crash(text)
    is_uncaught = any(_UNCAUGHT.search(view) for view in line.views)
    is_inner = after_time(text)[:1].isspace() and not (is_what or is_uncaught)
    is_inner = is_inner or text.startswith(_ROW)
    is_tried = line.level == _TRIED and not any(map(code_in, line.views))
    if is_inner or is_tried or any(_is_no_end(view) for view in line.views):
        return None
    shown = next((view for view in line.views if _OPENS.search(view) is not None), None)
    is_end = (
        is_what
        or is_uncaught
        or shown is not None
        or line.level == "F"
        or (line.level == _LOGGED and _ENDS.search(text) is not None)
        or any(_NAMES.search(view) for view in line.views)
    )
    if line.level in WEAK_LEVELS and not any(map(code_in, line.views)):
        is_end = False
    if not is_end and line.level != _LOGGED and _COMPLAINS.search(text) is None:
        return None
    if not is_end and line.level in WEAK_LEVELS and "fail" not in text:
        return None
    said = said_by(text)
    if said is None or (
        said == "crash" and said_by(text.removeprefix(_UNHANDLED).removeprefix(_PANIC)) is None
    ):
        said = "user_code" if is_uncaught else _said_by_code(line)
    if said is None and (not is_end or any(map(_is_beside, line.views)) or _is_result_at_a_place(text)):
        return None
    if said == "numeric" and not is_end and (_VALUE.search(text) is not None or _is_of_progress(text)):
        return None
    return text if shown is None else shown, said, is_end


def _is_no_end(view: str) -> bool:
    return _NO_END.search(view) is not None or says_to_go_on(view)


def is_of_tracker(text: str) -> bool:
    """Return whether a line is of what tracks an experiment."""
    return after_time(text).startswith(_TRACKER.rstrip())


def _is_beside(view: str) -> bool:
    """Return whether what complains is around the program, or the complaint about one of many items."""
    return view.startswith(_AROUND) or _ITEM.search(view) is not None


def _is_of_progress(text: str) -> bool:
    """Return whether a line reports a loss that is a number, and where the run is: averages may be no numbers then."""
    return _LOSS.search(text) is not None and place_of(text) is not None


def _is_result_at_a_place(text: str) -> bool:
    """Return whether a line reports what a run has reached, at whichever level."""
    return is_result(text) and place_of(text) is not None


def last_complaints(
    lines: Sequence[tuple[int, Line]], is_known: Callable[[Line], bool]
) -> tuple[Complaint, ...]:
    """Return the complaints of the last lines since the last progress; each line has its number.

    `is_known` returns whether the catalogue has an entry for a line.
    """
    found: list[Complaint] = []
    places: set[str] = set()
    lines = [(number, line) for number, line in _without_ignored(lines) if not is_frame(line.text)]
    for index, (number, line) in enumerate(lines):
        if _says_nothing_new(line, is_known):
            continue
        complaint = complaint_of(line) if may_complain(line) else None
        if complaint is not None:
            if is_known(line) and not is_message_of_crash(line.text):
                continue
            after = len(lines) - 1 - index
            reason = _reason_below(line, lines[index + 1 : index + 2], complaint[1], after - 1)
            found.append(reason or Complaint(complaint[0], number, after, *complaint[1:]))
            places.clear()
        elif found:
            found = _left_after(line, found, places)
    return tuple(_without_passed(_without_items(found), lines)) or _diverged(lines) or _only_usage(lines)


def may_complain(line: Line) -> bool:
    """Return whether a line may complain, before what it says is looked at."""
    return line.level in ("F", _LOGGED) or _MAY_COMPLAIN.search("\n".join(line.views)) is not None


def _left_after(line: Line, found: list[Complaint], places: set[str]) -> list[Complaint]:
    """Return the complaints that are not over after a line; `places` are those of progress since the last one."""
    if _has_result(line):
        return [one for one in found if not _is_done_with(one, line)]
    if is_result(line.text) and _LOST.search(line.text) is None:
        return []
    if (place := place_of(line.text)) is None:
        return found
    places.add(place)
    if len(places) >= 2:
        return []
    if _LOSS.search(line.text) is not None:
        return [one for one in found if one.failure_class != "numeric"]
    return found


def _without_ignored(lines: Sequence[tuple[int, Line]]) -> Iterator[tuple[int, Line]]:
    """Yield the lines, without the exceptions that Python has ignored: they end nothing, whatever they say."""
    ignored: str | None = None
    for number, line in _outdented(lines):
        text = after_time(line.text)
        if text.startswith(_IGNORED):
            ignored = line.rank
        is_end = line.rank == ignored and _RAISED.match(text) is not None
        if is_end:
            ignored = None
        else:
            yield number, line


def _outdented(lines: Sequence[tuple[int, Line]]) -> Iterator[tuple[int, Line]]:
    """Yield the lines, those that a workflow manager indents without that."""
    is_within = False
    for number, line in lines:
        is_inner = is_within and line.text.startswith(_INDENT)
        is_within = is_inner or line.text == _OUTPUT
        yield number, replace(line, views=(line.text.removeprefix(_INDENT),)) if is_inner else line


def _reason_below(
    line: Line, below: Sequence[tuple[int, Line]], failure_class: FailureClass | None, after: int
) -> Complaint | None:
    """Return the line below one that only says where a program stopped: the reason."""
    if not below:
        return None
    number, reason = below[0]
    said: FailureClass | None
    if _STOPPED.search(line.text) is not None and after_time(reason.text)[:1].isspace():
        said = said_by(reason.text) or "user_code"
    elif failure_class is None and line.text.endswith(":"):
        said = said_by(f"{line.text} {reason.text}")
    else:
        return None
    return None if said is None else Complaint(reason.text.strip(), number, after, said, is_strong=True)


def _has_result(line: Line) -> bool:
    return _SAVED.search(line.text) is not None or _DONE.search(line.text) is not None


def _is_done_with(complaint: Complaint, line: Line) -> bool:
    """Return whether a result shows that what a program complained of is over."""
    if _SAVED.search(line.text) is not None:
        saved = _FILE_NAME.findall(line.text)
        return any(name in saved for name in _FILE_NAME.findall(complaint.text))
    return complaint.failure_class is None and _DONE.search(line.text) is not None


def _without_passed(
    complaints: Sequence[Complaint], lines: Sequence[tuple[int, Line]]
) -> Iterator[Complaint]:
    """Leave out complaints after which a program prints what it printed before, or just the same again.

    Those of a known class only if a logger reports the same as an error again and again.
    """
    logged = _times_logged(lines) if complaints else {}
    for one in complaints:
        times, took_s = logged.get(one.line, (0, 0.0))
        if one.failure_class is None and (times >= _OFTEN or (times >= _ITEMS and took_s >= _OFTEN_S)):
            continue
        is_said_once = one.failure_class is not None and times < _ITEMS
        if is_said_once or one.after < _FOLLOWING or not _is_passed(one, lines):
            yield one


def _times_logged(lines: Sequence[tuple[int, Line]]) -> dict[int, tuple[int, float]]:
    """Return how often a logger reports the same as an error, and over how many seconds, for each line that is one."""
    logged: dict[str, list[tuple[int, float | None]]] = {}
    for number, line in lines:
        if line.level == _LOGGED and (form := _form(line)):
            logged.setdefault(form, []).append((number, stamp_of(line.text)))
    found: dict[int, tuple[int, float]] = {}
    for each in logged.values():
        stamps = [stamp for _, stamp in each if stamp is not None]
        took_s = max(stamps) - min(stamps) if stamps else 0.0
        found |= {number: (len(each), took_s) for number, _ in each}
    return found


def _is_passed(complaint: Complaint, lines: Sequence[tuple[int, Line]]) -> bool:
    before = {_form(line) for number, line in lines if number < complaint.line}
    after = {_form(line) for number, line in lines if number > complaint.line}
    return len({form for form in before & after if form}) >= _AS_BEFORE


def _form(line: Line) -> str:
    """Return a line without its numbers and lists, empty if too little is left to compare it."""
    form = str(_VALUES.sub("", after_time(line.text)))
    return form if len(form) >= _LETTERS and not form[0].isspace() else ""


def _without_items(complaints: Sequence[Complaint]) -> list[Complaint]:
    """Leave out complaints that repeat for one item after another, with other lines in between.

    Those of a known class only where they have not the form of an end.
    """
    items: set[int] = set()
    for form_of in (_head_of, _end_of):
        places: dict[str, list[int]] = {}
        for one in complaints:
            places.setdefault(form_of(one), []).append(one.line)
        for at in places.values():
            if len(at) >= _ITEMS and 4 * (at[-1] - at[0]) >= 5 * (len(at) - 1):
                items.update(at)
    return [
        one
        for one in complaints
        if (one.failure_class is not None and one.is_strong) or one.line not in items
    ]


def _head_of(complaint: Complaint) -> str:
    return str(_NUMBER.sub("", complaint.text.partition(":")[0]))


def _end_of(complaint: Complaint) -> str:
    """Return the end of a complaint; what is too short for one is its own form."""
    text = str(_NUMBER.sub("", complaint.text))
    return text[-_END_LETTERS:] if len(text) > 2 * _END_LETTERS else f"{complaint.line}"


def _says_nothing_new(line: Line, is_known: Callable[[Line], bool]) -> bool:
    """Return whether a line's complaint is known already, without the search for kinds, which takes time at first."""
    if _COMPLAINS.search(line.text) is None or is_message_of_crash(line.text):
        return False
    return place_of(line.text) is None and is_known(line)


def _diverged(lines: Sequence[tuple[int, Line]]) -> tuple[Complaint, ...]:
    """Return the last line that reports a loss, if that loss is NaN."""
    for index in range(len(lines) - 1, -1, -1):
        number, line = lines[index]
        is_loss = _LOSS.search(line.text) is not None
        if not is_loss and _LOST.search(line.text) is None:
            continue
        if any(_SUMMARY.search(view) is not None for view in (after_time(line.text), *line.views)):
            continue
        if is_loss:
            return ()
        return (Complaint(line.text, number, len(lines) - 1 - index, "numeric", is_strong=True),)
    return ()


def _only_usage(lines: Sequence[tuple[int, Line]]) -> tuple[Complaint, ...]:
    """Return the first line if it tells how a program is called, and the program has printed nothing else."""
    if not 0 < len(lines) <= _USAGE_LINES or _USAGE.match(lines[0][1].text) is None:
        return ()
    number, line = lines[0]
    return (Complaint(line.text, number, 0, "config", is_strong=True),)


def is_frame(text: str) -> bool:
    """Return whether a line is a frame of a stack, other than of a Python traceback."""
    return _FRAME.match(after_time(text)) is not None


def complains(text: str) -> bool:
    """Return whether a line has a word of those that complain; most of them do not complain of an end."""
    return _COMPLAINS.search(text) is not None


def reports_failure(text: str) -> bool:
    """Return whether a line reports an exit code other than 0."""
    return _EXIT.search(text) is not None


def code_in(text: str) -> int:
    """Return the exit code that a line reports, 0 if none."""
    found = _CODE.search(text)
    return int(next(filter(None, found.groups()))) if found is not None else 0


def _said_by_code(line: Line) -> FailureClass | None:
    """Return what the signal says with which a program ended whose exit code a line reports."""
    code = next(filter(None, map(code_in, line.views)), 0)
    ended = by_status(code, None, had_progress=True) if code in CODES or signal_of(code, None) else None
    return ended.failure_class if ended is not None and ended.failure_class != "unknown" else None


def is_message_of_crash(text: str) -> bool:
    """Return whether a line is the message of an exception that C++ has reported in the line above."""
    return _WHAT.match(text) is not None


def is_lost_loss(text: str) -> bool:
    """Return whether a line reports a loss that is NaN: a run may complete with it."""
    return _LOST.search(text) is not None and _LOSS.search(text) is None


def root_of(complaints: Sequence[Complaint], *, is_known_to_fail: bool) -> Complaint | None:
    """Choose among the complaints of one log: of the last group, the first of those that say most."""
    counting = [one for one in complaints if is_known_to_fail or _is_near_the_end(one)]
    if any(one.is_strong for one in counting):
        counting = [one for one in complaints if one in counting or one.failure_class is not None]
    together: list[Complaint] = []
    for one in reversed(counting):
        if together and together[-1].line - one.line > _APART_LINES:
            break
        together.append(one)
    root = min(reversed(together), key=_rank, default=None)
    return None if root is None else _cause_of(root, together)


def _cause_of(root: Complaint, together: Sequence[Complaint]) -> Complaint:
    """Return the last cause that Java names of an exception, if only of this one the kind is not known better."""
    causes = (one for one in together if one.text.startswith(_CAUSED_BY) and one.line > root.line)
    cause = next(causes, None)  # the last one: they are in the order of search, from the end
    if cause is None or root.failure_class not in (None, "user_code"):
        return root
    return replace(cause, failure_class=cause.failure_class or root.failure_class)


def _is_near_the_end(one: Complaint) -> bool:
    if not one.is_strong:
        return one.failure_class is not None and one.after < _LAST_LINES
    if one.failure_class is None and code_in(one.text):
        return one.after <= _FAREWELL_LINES
    if one.failure_class is None:
        return one.after < (1 if _OF_A_FILE.match(one.text) is not None else _LAST_LINES)
    return one.after <= AFTER_LINE


def _rank(complaint: Complaint) -> tuple[bool, bool, bool]:
    says = complaint.failure_class
    return says is None, says in ("crash", "assertion", "user_code"), not complaint.is_strong


@cache
def signature_of_complaint(failure_class: FailureClass | None) -> Signature:
    """Return the rule that a complaint of this kind follows."""
    known = failure_class or "unknown"
    return Signature(
        id=f"said-{known}",
        failure_class=known,
        pattern="error",
        hint="Classified by the wording of one line alone: check the lines around it.",
    )

"""What a rank prints, or a journal says, is text in a report, whatever it is: it never becomes part of the form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from io import StringIO
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from past_runs import PAST_RUNS, STACKS
from rich.console import Console

from prefect_ft.journal.records import Line, PhaseLine, ProposedLine, WarningLine, read_line
from prefect_ft.prefect_edge.reporting.markdown import as_code, as_text
from prefect_ft.prefect_edge.reporting.pages import ledger, recovery_page
from prefect_ft.prefect_edge.reporting.question import question_in
from prefect_ft.prefect_edge.reporting.records import DecisionRecord, line_of, records_of, state_name
from prefect_ft.report import Story
from prefect_ft.report.html import page
from prefect_ft.report.story import PhaseJournal, story_of
from prefect_ft.report.terminal import show

LABELS = frozenset(
    ("type", "utc", "kind", "class", "action", "role", "blame", "severity", "stage", "mode", "signature")
)
"""Fields of a journal whose values are words of ours: others are refused, or never shown."""

PIECES = (
    *"\x1b\x9b\x90\x9d\x9c\x07\r\n\t\x85\x7f\u202e\u2066\u2069\u2028\ufeff\ud800<>&\"'`*_[]()!|\\#$~=+-:/.@ ;0",
    *("\x1b]8;;http://evil.example\x1b\\", "\x1b[31m", "\x1bc", "]0;", "[2J", "31m", "\x1b(B", "\x1bP", "\x1b_"),
    *("<img src=x onerror=y>", "</title><script>", "![a](http://b.example/c.png)"),
    *("[a](javascript:b)", "<http://a.example>"),
    *("https://evil.example/x", "www.evil.example", "a@evil.example"),
    *("&lt;b&gt;", "&#60;b&#62;", "```", "~~~", "| a | b |"),
    *("\n\n# a", "\n- a", "\n1. a", "\n    code", "[a]: http://b.example", "--- ", "1) ", "a", "word", "é", "漢", "🙂"),
)  # fmt: skip

hostile = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)

FUZZED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def changed(value: Any, added: str, name: str = "") -> Any:
    """Return a journal's line with a text behind each text in it, also behind names that are keys."""
    if isinstance(value, str):
        return value if name in LABELS else value + added
    if isinstance(value, (list, tuple)):
        return [changed(each, added, name) for each in value]
    if isinstance(value, Mapping):
        is_named = name in ("passed_over", "suspects")
        return {key + added if is_named else key: changed(each, added, key) for key, each in value.items()}
    return value


def lines_with(name: str, added: str) -> list[Line]:
    lines = PAST_RUNS[name]().lines
    more = WarningLine(t=lines[-1].t, utc=lines[-1].utc, attempt=1, what="x", text="beware ")
    return [read_line(changed(line.write(), added)) for line in (*lines[:-1], more, lines[-1])]


def story_with(name: str, added: str) -> Story:
    texts = {f"hang-1.txt{added}": STACKS + added}
    return story_of([PhaseJournal(lines=lines_with(name, added), texts=texts)])


ALL = pytest.mark.parametrize("name", PAST_RUNS)


# -- HTML -------------------------------------------------------------------------------------------


class Form(HTMLParser):
    """The tags of a page with the names of their attributes, and what is no text besides."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.parts: list[Any] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.parts.append((tag, *(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"/{tag}")

    def handle_comment(self, data: str) -> None:
        self.parts.append("comment")

    def unknown_decl(self, data: str) -> None:
        self.parts.append("declaration")


@ALL
@FUZZED
@given(added=hostile)
def test_a_page_has_the_tags_of_its_template_and_no_others(name: str, added: str) -> None:
    document = page(story_with(name, added))
    assert Form(document).parts == Form(page(story_with(name, "x" * len(added)))).parts
    assert not unprintable(document.rstrip("\n").replace("\n", " "))


def test_a_status_that_a_journal_makes_up_is_text() -> None:
    """The status stands in the page's title, and a journal of another version may name any."""
    assert "<script>" not in page(story_with("gave-up", "</title><script>alert(1)</script>"))


# -- terminal ---------------------------------------------------------------------------------------


def unprintable(text: str) -> list[str]:
    return [char for char in text if not char.isprintable()]


@ALL
@FUZZED
@given(added=hostile)
def test_a_report_in_a_terminal_has_only_the_sequences_that_colour_it(name: str, added: str) -> None:
    console = Console(
        file=StringIO(), width=120, highlight=False, force_terminal=True, color_system="standard"
    )
    show(story_with(name, added), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert not unprintable(re.sub(r"\x1b\[[0-9;]*m|\n", "", printed))


@ALL
@FUZZED
@given(added=hostile)
def test_a_line_for_prefects_log_is_one_printable_line(name: str, added: str) -> None:
    for record in records_of("run", "phase", lines_with(name, added), 0):
        if isinstance(record, DecisionRecord):
            assert not unprintable(line_of(record))
            assert not unprintable(state_name(record.decision) or "")


# -- Markdown ---------------------------------------------------------------------------------------

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
AUTOLINK = re.compile(r"(?:https?|ftp)://|www\.|[\w.+-]@[\w-]")
"""What GitHub's Markdown, and with it Prefect's page, makes a link of without any brackets."""


def form_of(markdown: str) -> list[str]:
    """The types of all that a renderer sees in a text, but text."""
    tokens = MARKDOWN.parse(markdown)
    inner = [[each.type for each in token.children or ()] for token in tokens]
    flat = [kind for token, kinds in zip(tokens, inner, strict=True) for kind in (token.type, *kinds)]
    return [kind for kind in flat if kind not in ("text", "text_special")]


def words_of(markdown: str) -> str:
    return "".join(child.content for token in MARKDOWN.parse(markdown) for child in token.children or ())


def without_pictures_and_code(markdown: str) -> str:
    return re.sub(r"\(data:[^)]*\)|`[^`\n]*`", "", markdown)


@settings(max_examples=200, deadline=None)
@given(text=hostile)
def test_a_text_is_a_paragraph_of_text(text: str) -> None:
    escaped = as_text(text)
    assert form_of(escaped) in (["paragraph_open", "inline", "paragraph_close"], [])
    assert not AUTOLINK.search(escaped)
    assert not unprintable(escaped)
    form = ["paragraph_open", "inline", "code_inline", "paragraph_close"]
    assert form_of(f"a {as_code(text)} b") == form


@settings(max_examples=200, deadline=None)
@given(text=hostile)
def test_a_text_is_a_cell_of_a_table(text: str) -> None:
    table = "| a | b |\n| --- | --- |\n| {} | c |".format
    assert form_of(table(as_text(text))) == form_of(table("x"))


@pytest.mark.parametrize(
    "text",
    [
        "restart_in_place",
        "ValueError: a < b & c > d [0] *x* `y` 1.5",
        "s0, s1",
        "-1 + 2",
        "$5",
        "é 漢 🙂",
        "a_b_ c",
    ],
)
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    assert words_of(as_text(text)) == text


def test_names_stay_readable_where_nobody_renders_them() -> None:
    assert as_text("restart_in_place") == "restart_in_place"


@ALL
@FUZZED
@given(added=hostile)
def test_the_page_in_prefect_has_the_form_of_its_template(name: str, added: str) -> None:
    document = recovery_page(story_with(name, added))
    assert form_of(document) == form_of(recovery_page(story_with(name, "x" * len(added))))
    assert not AUTOLINK.search(without_pictures_and_code(document))
    assert not unprintable(document.replace("\n", " "))


def cells_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    return (cell for row in rows for cell in row.values() if isinstance(cell, str))


@ALL
@FUZZED
@given(added=hostile)
def test_a_cell_of_the_ledger_is_text(name: str, added: str) -> None:
    for cell in cells_of(ledger(story_with(name, added))):
        assert form_of(cell) in (["paragraph_open", "inline", "paragraph_close"], [])
        assert not AUTOLINK.search(cell)
        assert not unprintable(cell)


def test_a_log_line_plants_nothing_in_the_ledger() -> None:
    (cell, *_) = [
        row["evidence"] for row in ledger(story_with("gave-up", " ![x](http://evil.example/x.png) <b>"))
    ]
    assert "image" not in form_of(cell)
    assert words_of(cell).endswith("![x](http://evil.example/x.png) <b>")


@FUZZED
@given(added=hostile)
def test_a_question_has_the_form_of_its_template(added: str) -> None:
    def asked(text: str) -> Any:
        proposed = {
            "n": 1, "action": "isolate_and_rebuild", "isolate": ["s0"], "reason": "device ", "until": "soon",
            "default": "approve", "rule": "r",
        }  # fmt: skip
        head = PhaseLine(run="run", job="j", phase="phase", systems=(f"s0{text}",))
        return question_in("run", "phase", [head, ProposedLine(**changed(proposed, text))])

    question = asked(added)
    assert form_of(question.description) == form_of(asked("x" * len(added)).description)
    assert not AUTOLINK.search(question.description)
    assert not unprintable(question.message)

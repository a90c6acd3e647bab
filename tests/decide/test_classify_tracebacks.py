"""Tracebacks as they stand in logs: which exception each ends in, and what it follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_ft.decide.classify.tracebacks import DIRECT_CAUSE, HEADER, MEANWHILE, Raised, TracebackReader

HEAD = f"{HEADER}:"
FRAME = '  File "/app/train.py", line 3, in step'


def raised(name="ValueError", message="x", begun=0, file="/app/train.py", function="step", **said):
    return Raised(name, message, begun, file, function, **said)


def read(lines, reader=None):
    """All exceptions in which the lines end."""
    reader = reader or TracebackReader()
    before = ["", *lines]
    ended = [
        reader.feed(line, order, lambda order=order: before[order])[1] for order, line in enumerate(lines)
    ]
    return [each for each in ended if each is not None]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param([HEAD, FRAME, "    x()", "    ^^^", "ValueError: x"], [raised()], id="plain"),
        pytest.param([HEAD, FRAME, "ValueError"], [raised(message="")], id="without-a-message"),
        pytest.param([HEAD, FRAME, "num_workers: 8"], [], id="a-setting"),
        pytest.param([HEAD, FRAME, "timeout: late"], [raised("timeout", "late")], id="of-few-letters"),
        pytest.param([HEAD, FRAME, "ValueError: x | y"], [raised(message="x | y")], id="with-a-bar-in-it"),
        pytest.param([HEAD, FRAME, "a.b.Error: x: y"], [raised("a.b.Error", "x: y")], id="of-a-module"),
        pytest.param(
            [HEAD, FRAME, "RayTaskError(KeyError): x"], [raised("RayTaskError(KeyError)")], id="of-two"
        ),
        pytest.param(["hi", HEAD, FRAME, "ValueError: x"], [raised(begun=1)], id="begun-where-its-header-is"),
        pytest.param(
            [HEAD, FRAME, '  File "b.py", line 9', "ValueError: x"],
            [raised(file="b.py", function="")],
            id="the-innermost-frame",
        ),
        pytest.param(
            [HEAD, r"File c:\a\b.py:9, in fit(x)", "ValueError: x"],
            [raised(file="c:/a/b.py", function="fit")],
            id="a-frame-of-ipython-on-windows",
        ),
        pytest.param([HEAD, "ValueError: x"], [], id="no-frame-no-traceback"),
        pytest.param([FRAME, "ValueError: x"], [raised()], id="header-out-of-sight"),
        pytest.param([FRAME, "Warning: x"], [], id="a-warning-below-a-frame-that-a-program-prints"),
        pytest.param([HEAD, FRAME, "Warning: x"], [raised("Warning")], id="a-warning-that-is-raised"),
        pytest.param(
            ["7: " + line for line in (HEAD, FRAME)] + ["12: ValueError: x"], [raised()], id="numbered-prefix"
        ),
        pytest.param(
            ["[a] " + HEAD, "[a] " + FRAME, "ValueError: y", "[a] ValueError: x"],
            [raised(message="y")],
            id="a-line-without-the-prefix-ends-it-too",
        ),
        pytest.param(
            [
                "  + Exception Group Traceback (most recent call last):",
                '  |   File "/app/train.py", line 3, in step',
                "  | ExceptionGroup: two (2 sub-exceptions)",
            ],
            [raised("ExceptionGroup", "two (2 sub-exceptions)")],
            id="of-a-group",
        ),
        pytest.param(
            [
                "    +-+---------------- 1 ----------------",
                f"      | {HEAD}",
                f"      | {FRAME}",
                "      | ValueError: x | y",
            ],
            [raised(message="x | y", begun=1)],
            id="within-a-group",
        ),
        pytest.param(
            [
                f"╭──────── {HEADER} ────────╮",
                "│ /app/train.py:3 in step     │",
                "│ ValueError: drawn            │",
                "╰──────────────╯",
                "ValueError: x",
            ],
            [raised()],
            id="in-a-box",
        ),
        pytest.param(
            [
                f"7: ╭──── {HEADER} ────╮",
                "8: │ /app/train.py:3 in step  │",
                "9: ╰──────╯",
                "10: ValueError: x",
            ],
            [raised()],
            id="in-a-box-with-a-prefix",
        ),
        pytest.param(
            [f"╭ {HEADER} ╮", "│ /app/train.py:3 in step │", *["│"] * 398, "ValueError: y", "ValueError: x"],
            [raised()],
            id="in-a-box-that-does-not-end",
        ),
        pytest.param(
            [f"╭ {HEADER} ╮", "│ /app/train.py:3 in step │", *["│"] * 399, "ValueError: x"],
            [raised()],
            id="for-which-patience-is-the-same",
        ),
        pytest.param(
            [HEAD, FRAME, '  File "/app/train.py", line 9, in shutdown', "ValueError: x"],
            [raised(function="shutdown", is_cleanup=True)],
            id="while-cleaning-up",
        ),
        pytest.param(
            [HEAD, '  File "/app/train.py", line 9, in _cleanup', FRAME, "ValueError: x"],
            [raised(is_cleanup=True)],
            id="beneath-what-cleans-up",
        ),
        pytest.param(
            [HEAD, '  File "a.py", line 9, in close', "KeyError: 1", HEAD, FRAME, "ValueError: x"],
            [raised("KeyError", "1", 0, "a.py", "close", is_cleanup=True), raised(begun=3)],
            id="the-next-one-does-not-clean-up",
        ),
        pytest.param(
            ["Exception in thread Thread-1:", HEAD, FRAME, "ValueError: x"],
            [raised(begun=1, is_aside=True)],
            id="of-a-thread",
        ),
        pytest.param([HEAD, FRAME, *["no code"] * 398, "ValueError: x"], [raised()], id="within-patience"),
        pytest.param([HEAD, FRAME, *["no code"] * 399, "ValueError: x"], [], id="beyond-patience"),
    ],
)
def test_what_lines_raise(lines, expected):
    assert [replace(each, outermost=None, has_own=False) for each in read(lines)] == expected


@pytest.mark.parametrize(
    ("file", "function", "is_printed"),
    [
        pytest.param("/app/train.py", "<module>", False, id="program"),
        pytest.param("<frozen runpy>", "_run_module_as_main", False, id="module"),
        pytest.param("/usr/lib/python3.12/threading.py", "_bootstrap_inner", False, id="thread"),
        pytest.param("/app/train.py", "evaluate", True, id="a-function-that-caught-it"),
    ],
)
def test_where_a_traceback_begins(file, function, is_printed):
    first = f'  File "{file}", line 9, in {function}'
    (ended,) = read([HEAD, first, FRAME, "ValueError: x"])
    assert (ended.outermost, ended.is_printed) == ((file, function), is_printed)
    assert ended.has_own
    (ended,) = read([first, FRAME, "ValueError: x"])
    assert (ended.outermost, ended.is_printed) == (None, False)


def test_a_traceback_may_begin_in_the_message_of_its_exception():
    assert read([f"KeyError: {HEAD}", FRAME, "KeyError: no such part"])[0].text == "KeyError: no such part"


def test_a_traceback_that_begins_in_a_program_is_of_no_thread():
    lines = [
        "Exception in thread pool task: x",
        HEAD,
        '  File "/app/train.py", line 9, in <module>',
        "ValueError: x",
    ]
    assert not read(lines)[0].is_aside


def test_a_traceback_without_header_and_name_ends_in_what_its_code_raises():
    frames = ['  File "/app/train.py", line 9, in <module>', "    main()", FRAME, "    raise KeyError("]
    (ended,) = read([*frames, "no such part"])
    assert ended.text == "KeyError: no such part"
    assert read([*frames[:-1], "no such part"]) == []
    assert read([HEAD, *frames, "no such part"]) == []


@pytest.mark.parametrize(
    ("line", "link"),
    [
        pytest.param(f"{DIRECT_CAUSE}:", DIRECT_CAUSE, id="its-direct-cause"),
        pytest.param(f"{MEANWHILE}:", MEANWHILE, id="while-it-was-handled"),
        pytest.param(f"Original {HEAD}", HEADER, id="the-original"),
        pytest.param(HEAD, None, id="nothing"),
        pytest.param("Original words", None, id="other-words"),
    ],
)
def test_what_the_next_exception_follows(line, link):
    reader = TracebackReader()
    read([line], reader)
    assert reader.link == link


def test_a_worker_s_original_traceback_ends_like_any_other():
    lines = ["[3] Original " + HEAD, "[3] " + FRAME, "[4] ValueError: x"]
    assert read(lines) == [raised(outermost=("/app/train.py", "step"), has_own=True)]


@pytest.mark.parametrize("notice", ["Exception ignored in: <f>", "Error in atexit._run_exitfuncs:"])
def test_what_python_only_mentions_is_not_fatal(notice):
    reader = TracebackReader()
    read([notice, HEAD, FRAME, "ValueError: x"], reader)
    assert not reader.is_fatal
    read([HEAD], reader)
    assert reader.is_fatal


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(["words"], False, id="without-one-nothing-does"),
        pytest.param([HEAD], True, id="its-header-does"),
        pytest.param([HEAD, FRAME], True, id="a-frame-does"),
        pytest.param([FRAME], True, id="which-may-be-the-first"),
        pytest.param([HEAD, FRAME, "    code"], True, id="code-belongs-to-it"),
        pytest.param([HEAD, FRAME, "\tcode"], True, id="after-a-tab-too"),
        pytest.param([HEAD, FRAME, ""], True, id="so-does-an-empty-line"),
        pytest.param([HEAD, FRAME, "step 3 is done"], False, id="words-do-not"),
        pytest.param([HEAD, FRAME, "ValueError: x"], True, id="its-end-does"),
        pytest.param([HEAD, FRAME, "ValueError: x", "    code"], False, id="what-follows-its-end-does-not"),
        pytest.param([f"╭ {HEADER} ╮", "│ anything"], True, id="a-box-does"),
        pytest.param([f"{DIRECT_CAUSE}:"], True, id="a-link-does"),
    ],
)
def test_which_lines_belong_to_a_traceback(lines, expected):
    reader = TracebackReader()
    assert [reader.feed(line, 0, str)[0] for line in lines][-1] is expected


@pytest.mark.parametrize(
    ("one", "plain_name", "text"),
    [
        (raised("a.b.Error", "x"), "Error", "a.b.Error: x"),
        (raised("RayTaskError(a.KeyError)", ""), "RayTaskError", "RayTaskError(a.KeyError)"),
    ],
)
def test_how_an_exception_is_called(one, plain_name, text):
    assert (one.plain_name, one.text) == (plain_name, text)

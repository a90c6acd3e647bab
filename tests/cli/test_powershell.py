"""What Windows PowerShell breaks at the width of its window, put together again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefect_ft.cli.powershell import unbroken

BROKEN = """one line that was printed before, longer than the window is
python : Traceback ~
(most recent call last):
At line:1 char:1
+ python src\\train.py > ~
train_output.log 2>&1 ; ~
cat train_output.log
+ ^^^^^^^^^^^^^^^^^^^^^^
^^^^^^^^^^^^^^^^^^^^^
    + CategoryInfo      ~
        : NotSpecified  ~
    + FullyQualifiedErr ~
   orId : NativeComman  ~
  dError
 ~
  File "F:\\amazon_data\\s
rc\\train.py", line 53, ~
in <module>
    main()
UnicodeEncodeError: ~
'charmap' codec can't ~
encode character ~
'\\u1eaf' in position 1: ~
character maps to ~
<undefined>
Epoch 1 ~
""".replace("~\n", "\n")
"""A window of 24 columns, as of https://github.com/hoangtukhoi/MMD_13."""

WHOLE = [
    "one line that was printed before, longer than the window is",
    "python : Traceback (most recent call last):",
    "",
    "At line:1 char:1",
]


def joined(text: str, size: int = 7) -> list[str]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return "".join(unbroken(pieces)).split("\n")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_broken_lines_are_whole_and_keep_their_numbers(size: int) -> None:
    lines = joined(BROKEN, size)
    assert len(lines) == len(BROKEN.split("\n"))
    assert lines[:4] == WHOLE
    at = BROKEN.split("\n").index('  File "F:\\amazon_data\\s')
    assert lines[at : at + 5] == [
        '  File "F:\\amazon_data\\src\\train.py", line 53, in <module>',
        "",
        "",
        "    main()",
        lines[at + 4],
    ]
    assert lines[at + 4] == (
        "UnicodeEncodeError: 'charmap' codec can't encode character '\\u1eaf' in position 1: "
        "character maps to <undefined>"
    )
    assert lines[-2] == "Epoch 1 "


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("step 1 \nloss 3\n\n", id="no-report"),
        pytest.param("step 1 \r\nloss 3\r\nno end", id="carriage-returns"),
        pytest.param("At line:1 char:1", id="a-report-that-is-cut"),
        pytest.param("    + CategoryInfo", id="a-report-without-a-beginning"),
    ],
)
def test_other_lines_stay_as_they_are(text: str) -> None:
    assert "".join(unbroken([text])).rstrip("\n") == text.rstrip("\n")


def test_a_full_line_of_marks_is_whole_and_one_may_go_on_with_a_space() -> None:
    report = "p : x\n発生場所 行:1 文字:1\n+ ~~~~~~~~~~~~~~~~~~~~\n    + CategoryInfo\n\n"
    lines = joined(
        report + '    ^^^^^^^^^^^^^^^^^^\nAcmeError: x\n  File "/a/acme/t.py",\n line 7, in step\n'
    )
    assert lines[5:9] == [
        "    ^^^^^^^^^^^^^^^^^^",
        "AcmeError: x",
        '  File "/a/acme/t.py", line 7, in step',
        "",
    ]


def test_an_exception_below_a_full_line_of_code_is_a_line() -> None:
    text = "p : x\nAt line:1 char:1\n+ ~~~~~~~~~~~~~~~~~~~~\n    + CategoryInfo\n\n"
    text += "    from a import \nRandomForestRegressor1\nImportError: cannot \nimport name\n"
    assert joined(text)[5:9] == [
        "    from a import RandomForestRegressor1",
        "",
        "ImportError: cannot import name",
        "",
    ]


def test_a_full_line_above_an_indented_one_is_whole() -> None:
    text = "p : x\nAt line:1 char:1\n+ ~~~~~~~~~~~~~~~~~~~~\n    + CategoryInfo\n\n"
    text += "  line 12, in <module>\n    main()\n"
    assert "    main()" in joined(text)


def test_the_place_in_a_report_may_be_broken_itself() -> None:
    report = "p : x\nEn línea: 1 Carácter: \n1\n+ ~~~~~~~~~~~~~~~~~~\n    + CategoryInfo\n\n"
    assert "AcmeError: the vault is broken" in joined(report + "AcmeError: the vault\n is broken\n")


def test_a_window_that_is_wide_enough_for_the_report_breaks_nothing() -> None:
    """As in a window of 120 columns: the report is not broken, so that its longest line shows no width."""
    report = (
        "python : Traceback (most recent call last):\nAt line:1 char:1\n+ python train.py > train.log 2>&1\n"
        "+ ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~\n"
        "    + CategoryInfo          : NotSpecified: (Traceback (most recent call last)::String) [], RemoteException\n"
        "    + FullyQualifiedErrorId : NativeCommandError\n \n"
    )
    widest = max(map(len, report.split("\n")))
    text = report + "x" * widest + "\nAcmeError: x\n" + "y" * (widest - 5) + " \nConnectionResetError: peer\n"
    assert "".join(unbroken([text])) == text


@pytest.mark.parametrize("begin", ["", "p : x\nAt line:1 char:1\n+ ~~~~~~~~~~\n    + CategoryInfo\n\n"])
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_no_more_is_held_than_a_report_needs(end: str, begin: str) -> None:
    given, most, length = 0, 0, 0

    def pieces() -> Iterator[str]:
        nonlocal given
        for number in range(100):
            piece = (begin if number == 0 else "") + f"{'x' * 12}{end}" * 800
            given += len(piece)
            yield piece

    for text in unbroken(pieces()):
        length += len(text)
        most = max(most, given - length)
    assert length == given
    assert most < 100_000  # of a million

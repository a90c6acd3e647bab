"""The catalogue: every entry finds its own example, and no entry takes another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_ft import decide
from prefect_ft.decide.classify import Catalogue, builtin_catalogue, signs_of, with_own
from prefect_ft.decide.classify.heads import read_line
from prefect_ft.decide.classify.literals import keys_of, texts_of
from prefect_ft.signatures import EntryError, Signature, compiled, read_entry

FILE = Path(decide.__file__).with_name("signatures.yaml")
ENTRIES: list[dict[str, Any]] = yaml.load(FILE.read_bytes(), yaml.CSafeLoader)
OURS = builtin_catalogue()


def taken_by(line: str, catalogue: Catalogue = OURS) -> str | None:
    match = catalogue.find(read_line(line.encode()).views)
    return match and match.signature.id


def test_every_entry_has_the_form_and_is_read_as_it_stands() -> None:
    assert tuple(map(read_entry, ENTRIES)) == tuple(builtin_catalogue.__wrapped__())


def test_no_entry_takes_the_example_of_another() -> None:
    """The confusion matrix: empty but for its diagonal."""
    confused = {each.id: taken for each in OURS if (taken := taken_by(each.example)) != each.id}
    assert confused == {}


def test_there_is_a_source_for_everything_and_a_hint_for_every_root() -> None:
    assert [each.id for each in OURS if not each.source.startswith("https://")] == [], (
        "write where it is documented"
    )
    assert [each.id for each in OURS if each.role == "root" and not each.hint] == []
    assert len(OURS.signatures) >= 250


def test_no_pattern_of_ours_has_to_be_tried_on_every_line() -> None:
    silent = ("advice", "noise")
    assert [each.id for each in OURS if each.role not in silent and keys_of(each.pattern) is None] == []


@pytest.mark.parametrize("each", OURS.signatures, ids=lambda each: each.id)
def test_the_keys_of_a_pattern_are_in_what_it_matches(each: Signature) -> None:
    keys = keys_of(each.pattern)
    assert keys is None or any(compiled(key).search(each.example) for key in keys)


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        pytest.param(r"NVRM: Xid \(PCI:[^)]*\): 79\b", [r"NVRM:\ Xid\ \(PCI:"], id="the-longest-text"),
        pytest.param("(?:alpha|bravo) x?y", ["alpha", "bravo"], id="one-of-two"),
        pytest.param("(?:zz.*charlie|delta)x?y", ["charlie", "delta"], id="the-best-of-each"),
        pytest.param("charlie|delta z", ["charlie", r"delta\ z"], id="alternatives"),
        pytest.param("(?i)Charlie", ["(?i:Charlie)"], id="in-both-cases"),
        pytest.param("[Cc]harlie", ["(?i:Charlie)"], id="a-letter-in-both-cases"),
        pytest.param("charli(?:e)?x", ["charli"], id="what-may-be-missing-is-not-asked-for"),
        pytest.param("charlie*", ["charli"], id="nor-what-may-be-repeated-no-times"),
        pytest.param("charlie+", ["charlie"], id="but-what-is-there-once-or-more"),
        pytest.param("charlie{2,3}", ["charlie"], id="or-a-number-of-times"),
        pytest.param("charlie{0,3}", ["charli"], id="which-may-be-none"),
        pytest.param(
            r"loss\b.{0,9}\bnan", [r"(?:loss)[^\n\r]*(?:nan)"], id="common-words-tell-something-in-a-row"
        ),
        pytest.param(r"\d+", None, id="nothing"),
        pytest.param(r"charlie|\d+", None, id="nothing-in-one-alternative"),
        pytest.param("[[:alpha:]]charlie", None, id="what-is-not-understood"),
        pytest.param("(" * 900 + "charlie" + ")" * 900, None, id="what-is-too-deep-to-be-read"),
        pytest.param(r"charlie\.ab*", [r"charlie\.a"], id="of-two-the-one-that-is-not-repeated"),
        pytest.param("ab.*loss", [r"(?:ab)[^\n\r]*(?:loss)"], id="two-signs-in-a-row-with-others"),
        pytest.param(
            r"worker \d+ was \w+ killed",
            [r"(?:worker\ )[^\n\r]*(?:\ killed)"],
            id="of-several-the-rarest-two",
        ),
        pytest.param("(?:alpha|bravo)x?delta", ["delta"], id="one-rather-than-two-of-its-length"),
        pytest.param("code 473806", [r"code\ 473806"], id="a-text-with-a-number"),
        pytest.param("473806", ["473806"], id="a-number-of-six-digits"),
        pytest.param("47380", ["(?:47380)"], id="not-of-five"),
        pytest.param("error:", ["(?:error:)"], id="a-common-word-whatever-is-beside-it"),
        pytest.param("ping", ["(?:ping)"], id="a-short-word"),
        pytest.param("OOM", ["OOM"], id="not-if-it-is-a-name"),
        pytest.param(r"\bcharlie\b", ["charlie"], id="a-place-asks-for-nothing"),
        pytest.param(r"^charlie$", ["charlie"], id="nor-do-the-ends"),
        pytest.param(r"char\.lie", [r"char\.lie"], id="an-escaped-sign-is-itself"),
        pytest.param(r"charlie\tdelta", ["charlie\\\tdelta"], id="a-tab-too"),
        pytest.param(r"charlie\d", ["charlie"], id="a-class-by-its-letter-is-anything"),
        pytest.param("charlie]", [r"charlie\]"], id="a-bracket-that-opens-nothing"),
        pytest.param("charlie[]x]y", ["charlie"], id="a-bracket-in-a-class"),
        pytest.param("[]x]charlie", ["charlie"], id="which-does-not-end-it"),
        pytest.param(r"x[\]y]charlie", ["charlie"], id="nor-does-one-that-is-escaped"),
        pytest.param(r"charlie\b delta", [r"charlie\ delta"], id="a-place-within-a-text"),
        pytest.param(r"charlie[^\]]y", ["charlie"], id="an-escaped-bracket-in-a-class"),
        pytest.param("charlie[xy]", ["charlie"], id="two-letters"),
        pytest.param("charlie.delta", ["charlie"], id="the-first-of-two-alike"),
        pytest.param("(?P<name>charlie)", ["charlie"], id="a-group-with-a-name"),
        pytest.param("(?:charlie|)delta", ["delta"], id="a-group-that-may-be-empty"),
        pytest.param("charlie|(?:delta|hotel)", ["charlie", "delta", "hotel"], id="a-group-of-two"),
        pytest.param("(?:charlie){2}", ["charlie"], id="a-repeated-group"),
        pytest.param("(?:charlie)?delta", ["delta"], id="a-group-that-may-be-missing"),
        pytest.param("ab{0}charlie", ["charlie"], id="none-of-a-letter"),
        pytest.param("x+?charlie", ["charlie"], id="as-few-as-can-be"),
        pytest.param("(?-i)charlie", ["charlie"], id="a-flag-that-is-taken-off"),
        pytest.param("(?s:charlie)", ["charlie"], id="another-flag"),
        pytest.param("(?<!x)charlie", None, id="a-group-of-another-kind"),
        pytest.param("(charlie", None, id="a-group-without-its-end"),
        pytest.param("charlie)", None, id="an-end-without-its-group"),
        pytest.param("charlie[", None, id="a-class-without-its-end"),
        pytest.param("error 123456", [r"error\ 123456"], id="a-common-word-with-more"),
        pytest.param(".123456.", ["123456"], id="six-figures"),
        pytest.param(".12345.", ["(?:12345)"], id="five-figures-tell-little"),
        pytest.param(".alpha.", ["alpha"], id="five-letters"),
        pytest.param(".alph.", ["(?:alph)"], id="four-letters-tell-little"),
        pytest.param(".OOM.", ["OOM"], id="but-three-capitals-tell"),
        pytest.param(".a-b.", ["a\\-b"], id="or-three-signs"),
        pytest.param(r"\w \w", None, id="one-sign-is-no-text"),
    ],
)
def test_keys(pattern: str, keys: list[str] | None) -> None:
    assert keys_of(pattern) == keys


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        pytest.param("charlie.{3}hotel lima", ["hotel lima"], id="the-longer-of-two"),
        pytest.param("(?:alpha|bravo) x?y|delta", ["alpha", "bravo", "delta"], id="one-of-each"),
        pytest.param("(?i)Charlie", ["Charlie"], id="as-it-is-written"),
        pytest.param("charlie.(?:delta|bravo)", ["charlie"], id="one-rather-than-two"),
        pytest.param(r"\d+", [], id="none"),
    ],
)
def test_texts(pattern: str, texts: list[str]) -> None:
    assert texts_of(pattern) == texts


@pytest.mark.parametrize(
    ("line", "is_spotted"),
    [
        pytest.param("a telling cause", True, id="a-root"),
        pytest.param("what follows", True, id="what-only-follows"),
        pytest.param("some advice", False, id="advice-alone"),
        pytest.param("grad is nan", True, id="common-words-in-a-row"),
        pytest.param("nan in grad", False, id="in-another-one"),
        pytest.param("error: not found", False, id="not-where-an-exception-is-needed"),
        pytest.param("OddError: alone", True, id="unless-it-tells-enough"),
        pytest.param("11-22", True, id="what-has-no-text"),
        pytest.param("of other interest", True, id="what-others-look-for"),
        pytest.param("of no interest", False, id="nothing-else"),
    ],
)
def test_which_lines_are_of_interest(line: str, is_spotted: bool) -> None:
    patterns = {
        "telling cause": "root",
        "follows": "cascade",
        "advice": "advice",
        "grad.*nan": "root",
        r"^(?:[\w.]+\.)?error.*found": "root",
        r"^(?:[\w.]+\.)?OddError": "root",
        r"^\d+-\d+$": "root",
        r"^of no": "noise",
    }
    own = [
        Signature(id=pattern, failure_class="crash", pattern=pattern, role=role)
        for pattern, role in patterns.items()
    ]
    spotter = Catalogue(own).spotter("of other")
    assert (spotter.search(f"quiet\n{line}\nquiet".encode()) is not None) is is_spotted


@pytest.mark.parametrize(
    ("views", "is_raised", "found"),
    [
        pytest.param(("boom",), False, ("advice", "boom"), id="the-first-that-matches"),
        pytest.param(("boom",), True, ("root", "boom"), id="no-advice-of-what-is-raised"),
        pytest.param(("7: begin", "begin"), False, ("begin", "begin"), id="at-the-beginning-of-a-message"),
        pytest.param(("7: boom", "boom"), False, ("advice", "7: boom"), id="else-in-the-whole-line"),
        pytest.param(("beginn",), False, None, id="not-at-its-end"),
        pytest.param(("7: x",), False, None, id="nothing"),
    ],
)
def test_what_a_line_says(views: tuple[str, ...], is_raised: bool, found: tuple[str, str] | None) -> None:
    own = [
        Signature(id="other", failure_class="crash", pattern="boom and more"),
        Signature(id="advice", failure_class="config", pattern="boom", role="advice"),
        Signature(id="begin", failure_class="crash", pattern=r"^begin$"),
        Signature(id="root", failure_class="crash", pattern="bo+m"),
    ]
    match = Catalogue(own).find(views, is_raised=is_raised)
    assert (match and (match.signature.id, match.text)) == found


def test_lines_are_known_by_the_texts_of_what_says_why() -> None:
    own = [
        Signature(id=role, failure_class="crash", pattern=f"{role} charlie|delta{role}", role=role)
        for role in ("root", "cascade", "advice")
    ]
    expected = ("root charlie", "deltaroot", "cascade charlie", "deltacascade")
    assert signs_of([*own, own[0]]) == expected


ENTRY = {"id": "mine", "class": "config", "pattern": "no licence"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"id": None}, "id", id="no-id"),
        pytest.param({"id": ""}, "id", id="an-empty-id"),
        pytest.param({"class": "bad_luck"}, "class", id="no-such-class"),
        pytest.param({"class": "none"}, "class", id="a-root-of-nothing"),
        pytest.param({"role": "noise"}, "class", id="noise-of-a-class"),
        pytest.param({"role": "villain"}, "role", id="no-such-role"),
        pytest.param({"blame": "me"}, "blame", id="no-such-blame"),
        pytest.param({"recoverable": True}, "recoverable", id="lifting-a-class"),
        pytest.param({"recoverable": "confirm"}, "recoverable", id="lifting-a-class-by-half"),
        pytest.param({"pattern": "("}, "pattern", id="no-pattern"),
        pytest.param({"pattern": "(?=x)"}, "pattern", id="look-around"),
        pytest.param({"pattern": r"(x)\1"}, "pattern", id="a-back-reference"),
        pytest.param({"pattern": "x*"}, "pattern", id="matches-everything"),
        pytest.param({"pattern": 7}, "pattern", id="a-number"),
        pytest.param({"example": "licensed"}, "example", id="an-example-of-something-else"),
        pytest.param({"colour": "red"}, "colour", id="an-unknown-key"),
    ],
)
def test_an_entry_that_cannot_be_used(change: dict[str, object], field: str) -> None:
    entry = {key: value for key, value in (ENTRY | change).items() if value is not None}
    with pytest.raises(EntryError) as raised:
        read_entry(entry)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("line", "advised"),
    [
        pytest.param("RuntimeError: Distributed package doesn't have NCCL built in", "gloo", id="nccl"),
        pytest.param(
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "gloo", id="no-gpu"
        ),
        pytest.param("RuntimeError: Distributed package doesn't have MPI built in. MPI is", "gloo", id="mpi"),
        pytest.param("AssertionError: Torch not compiled with CUDA enabled", "CUDA build", id="cuda"),
    ],
)
def test_what_a_cpu_build_lacks_is_advised_for_machines_with_and_without_gpus(
    line: str, advised: str
) -> None:
    match = OURS.find((line,), is_raised=True)
    assert match is not None
    assert match.signature.failure_class == "config"
    assert advised in match.signature.hint


def test_the_hint_of_a_plain_runtime_error_blames_neither_the_program_nor_a_library() -> None:
    match = OURS.find(("RuntimeError: no more shards",), is_raised=True)
    assert match is not None
    assert (match.signature.id, "in the program or in a library" in match.signature.hint) == (
        "py-runtime",
        True,
    )


def test_own_entries_come_first_and_replace_ours() -> None:
    same_line = read_entry({**ENTRY, "pattern": "No module named"})
    same_id = read_entry({**ENTRY, "id": OURS.signatures[-1].id})
    assert taken_by("ModuleNotFoundError: No module named 'x'", with_own([same_line])) == "mine"
    assert len(with_own([same_id]).signatures) == len(OURS.signatures)
    assert with_own([]) is OURS


def test_an_id_stands_once() -> None:
    with pytest.raises(EntryError):
        with_own([read_entry(ENTRY), read_entry(ENTRY)])


def test_a_pattern_without_any_key_is_found_all_the_same() -> None:
    assert taken_by("11-22-33", with_own([read_entry({**ENTRY, "pattern": r"^\d+-\d+-\d+$"})])) == "mine"

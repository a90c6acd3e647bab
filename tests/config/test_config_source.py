"""Reading YAML: what plain words mean, where every part stands, and what a file may not hold."""

import json
import os
from pathlib import Path

import pytest

from prefect_ft.config.source import Document, apply_overrides, read_document
from prefect_ft.config.yaml_text import DoubtfulText, FieldPath, Place, dotted, parse
from prefect_ft.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0", 0),
        ("2.5", 2.5),
        ("-1.5e3", -1500.0),
        ("true", True),
        ("off", False),
        ("No", False),
        ("~", None),
        ("null", None),
        ("", None),
        ('"3"', "3"),
        ("!!str 3", "3"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("+3", "+3"),
        ("-0", "-0"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e5", "1e5"),
        (".5", ".5"),
        (".inf", ".inf"),
        ("nan", "nan"),
        ("y", "y"),
        ("s3://bucket/x", "s3://bucket/x"),
    ],
)
def test_only_words_that_can_mean_one_thing_are_read_as_more_than_text(word: str, value: object) -> None:
    read, _ = parse(f"a: {word}\n", "job.yaml")
    assert read == {"a": value}
    assert isinstance(read["a"], type(value))


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("1e5", 100000.0),
        ("1e-05", 1e-05),
        ("-2E+3", -2000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("+3", 3),
        ("-0", 0),
        ("010", None),
        ("0x10", None),
        ("1_000", None),
        ("12:30", None),
        ("2024-01-01", None),
        (".inf", None),
        ("=", None),
    ],
)
def test_text_in_which_others_read_more_says_which_number_it_is_to_all_of_them(
    word: str, number: float | None
) -> None:
    text = parse(f"a: {word}\n", "job.yaml")[0]["a"]
    assert isinstance(text, DoubtfulText)
    assert (text.decimal(), type(text.decimal())) == (number, type(number))


@pytest.mark.parametrize("written", ["'1e5'", '".5"', "!!str .5", "&a !!str 1_000", "|-\n  010", "v1", "nan"])
def test_text_that_is_meant_as_text_is_not_doubtful(written: str) -> None:
    assert type(parse(f"a: {written}\n", "job.yaml")[0]["a"]) is str


def test_every_key_and_item_knows_its_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "# a job\nname: x\nphases:\n  - name: p\n    command:\n      - python\n      - t.py\nenv: {A: b}\n"
    )
    lines: dict[FieldPath, int] = {
        (): 1,
        ("name",): 2,
        ("phases",): 3,
        ("phases", 0): 4,
        ("phases", 0, "name"): 4,
        ("phases", 0, "command"): 5,
        ("phases", 0, "command", 0): 6,
        ("phases", 0, "command", 1): 7,
        ("env",): 8,
        ("env", "A"): 8,
    }
    assert read_document(file) == Document(
        {"name": "x", "phases": [{"name": "p", "command": ["python", "t.py"]}], "env": {"A": "b"}},
        {path: Place(str(file), line) for path, line in lines.items()},
    )


def test_json_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    value = {"name": "\U0001f600/\u00e9\t", "phases": [{"target_step": 3, "elastic": False, "cwd": None}]}
    for indent in (None, 2, "\t"):
        file.write_text(json.dumps(value, indent=indent).replace("/", "\\/"))
        assert read_document(file).value == value


def test_aliases_and_merges_are_written_out_and_own_keys_win() -> None:
    text = (
        "base: &b {x: 1, y: 1}\nother: &o {y: 2, z: 2}\none: {<<: *b, x: 3}\ntwo: {<<: [*o, *b]}\nthree: *b\n"
    )
    value, places = parse(text, "job.yaml")
    assert value == {
        "base": {"x": 1, "y": 1},
        "other": {"y": 2, "z": 2},
        "one": {"x": 3, "y": 1},
        "two": {"x": 1, "y": 2, "z": 2},
        "three": {"x": 1, "y": 1},
    }
    assert (places[("one", "x")].line, places[("one", "y")].line) == (3, 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("phases", 0, "command", 2), "phases[0].command[2]"),
        (
            ("metadata", "annotations", "fault-tolerance/hang-retry"),
            "metadata.annotations.fault-tolerance/hang-retry",
        ),
        (("env", "a b\n"), "env['a b\\n']"),
    ],
)
def test_a_path_is_written_with_dots_and_brackets(path: FieldPath, text: str) -> None:
    assert dotted(path) == text


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "job.yaml: is empty; write keys and values, like name: my-job", id="empty"),
        pytest.param(
            b"# nothing\n",
            "job.yaml: is empty; write keys and values, like name: my-job",
            id="only-a-comment",
        ),
        pytest.param(
            b"- a\n", "job.yaml:1: must hold keys and values, like name: my-job, not a list", id="list"
        ),
        pytest.param(
            b"train\n",
            "job.yaml:1: must hold keys and values, like name: my-job, not a single value",
            id="single-value",
        ),
        pytest.param(
            b"a: 1\nb: \xff\n",
            "job.yaml:2: the byte 0xff is not UTF-8; save the file as UTF-8 text",
            id="not-utf-8",
        ),
        pytest.param(
            b"a: 1\nb: \x01\n",
            "job.yaml:2: the character U+0001 is not allowed in YAML; take it out",
            id="control",
        ),
        pytest.param(
            b"a: 1\nb:\n\tc: 2\n",
            "job.yaml:3: not valid YAML: while scanning for the next token found character '\\t' "
            "that cannot start any token; indent with spaces, not with tabs",
            id="tab",
        ),
        pytest.param(
            b"a: b: c\n",
            "job.yaml:1: not valid YAML: mapping values are not allowed here; "
            'indent the keys of one level alike; a value with ": " in it needs quotes',
            id="colon-in-a-value",
        ),
        pytest.param(
            b"a: 1\nb: [1, 2\n",
            "job.yaml:3: not valid YAML: while parsing a flow sequence expected ',' or ']', "
            "but got '<stream end>'; close the bracket",
            id="open-bracket",
        ),
        pytest.param(
            b"a: *b\n",
            "job.yaml:1: not valid YAML: found undefined alias 'b'; "
            "put the value in quotes, or define the anchor before its use",
            id="undefined-alias",
        ),
        pytest.param(
            b'a: "b" c\n',
            "job.yaml:1: not valid YAML: while parsing a block mapping expected <block end>, "
            "but found '<scalar>'; put the whole value in quotes",
            id="quotes-around-a-part",
        ),
        pytest.param(
            b"a: *.pt\n",
            "job.yaml:1: not valid YAML: while scanning an alias expected alphabetic or numeric character, "
            "but found '.'; put the value in quotes",
            id="a-star-that-is-no-alias",
        ),
        pytest.param(
            b"a: 1\n---\nb: 2\n",
            "job.yaml:2: not valid YAML: expected a single document in the stream "
            "but found another document; keep one document, without a second ---",
            id="two-documents",
        ),
        pytest.param(
            b"a:\n  x: 1\nb: 2\na: 3\n",
            "job.yaml:4: a: duplicate key, first in line 1; keep one",
            id="key-twice",
        ),
        pytest.param(
            b"env:\n  A: x\n  'A': y\n",
            "job.yaml:3: env.A: duplicate key, first in line 2; keep one",
            id="key-twice-inside",
        ),
        pytest.param(b"a:\n  1: x\n", 'job.yaml:2: a: a key must be text; write "1"', id="number-for-a-key"),
        pytest.param(b"? [a]\n: x\n", "job.yaml:1: a key must be text; write one word", id="list-for-a-key"),
        pytest.param(
            b"a: !!python/name:os.system x\n",
            "job.yaml:1: a: the tag 'tag:yaml.org,2002:python/name:os.system' is not known; take it out",
            id="python-tag",
        ),
        pytest.param(
            b"a: !!int x\n",
            "job.yaml:1: a: the tag 'tag:yaml.org,2002:int' is not known; take it out",
            id="tag-that-lies",
        ),
        pytest.param(
            b"a: !!set {x, y}\n",
            "job.yaml:1: a: the tag 'tag:yaml.org,2002:set' is not known; take it out",
            id="tag-of-a-collection",
        ),
        pytest.param(
            b"a: " + b"9" * 5000,
            "job.yaml:1: a: the number is too long; write a shorter one",
            id="number-without-end",
        ),
        pytest.param(
            b'a: "\\ud800"\n',
            "job.yaml:1: a: the text holds half a surrogate pair; write the character itself",
            id="surrogate",
        ),
        pytest.param(
            b'a: "\\UFFFFFFFF"\n',
            "job.yaml: contains an invalid escape sequence",
            id="no-character",
        ),
        pytest.param(
            b"<<: 3\n", "job.yaml:1: << takes a mapping, or a list of mappings", id="merge-of-a-number"
        ),
        pytest.param(
            b"a: &a [*a]\n",
            "job.yaml:1: is nested too deeply; at most 64 levels are read",
            id="alias-of-itself",
        ),
        pytest.param(
            b"a: &a {<<: *a}\n",
            "job.yaml: is nested too deeply; at most 64 levels are read",
            id="merge-of-itself",
        ),
        pytest.param(
            b"a: " + b"[" * 1000, "job.yaml: is nested too deeply; at most 64 levels are read", id="deep"
        ),
        pytest.param(
            BOMB.encode(),
            "job.yaml:1: holds more than 50000 values with aliases written out; shorten it",
            id="alias-bomb",
        ),
        pytest.param(
            MERGE_BOMB.encode(),
            "job.yaml:1: holds more than 50000 values with aliases written out; shorten it",
            id="merge-bomb",
        ),
        pytest.param(
            b"#" * (1 << 20) + b"\n",
            "job.yaml: is larger than 1 MiB; pass the path of a job file",
            id="large",
        ),
    ],
)
def test_what_a_file_may_not_hold(content: bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_document(file)
    assert str(caught.value).replace(f"{tmp_path}/", "") == expected


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_document(file).value == {"name": "x"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    os.symlink(loop, loop)
    said = {}
    for path in (tmp_path / "none.yaml", tmp_path, loop, "a\0b"):
        with pytest.raises(ConfigError) as caught:
            read_document(path)
        said[str(path).replace(f"{tmp_path}/", "")] = str(caught.value).replace(f"{tmp_path}/", "")
    assert said == {
        "none.yaml": "none.yaml: no such file; pass the path of a job file",
        str(tmp_path): f"{tmp_path}: is a directory; give the path of the job file in it",
        "loop": "loop: cannot be read: Too many levels of symbolic links",
        "a\0b": "'a\\x00b': is not a valid path; pass the path of a job file",
    }


def document(text: str) -> Document:
    return Document(*parse(text, "job.yaml"))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(["a.b=5"], {"a": {"b": 5, "c": 2}, "l": [{"x": 1}]}, id="over-a-value"),
        pytest.param(["a.b=5", "a.b=6"], {"a": {"b": 6, "c": 2}, "l": [{"x": 1}]}, id="the-last-one-wins"),
        pytest.param(["l.0.x=[p, q]"], {"a": {"b": 1, "c": 2}, "l": [{"x": ["p", "q"]}]}, id="into-an-item"),
        pytest.param(["l[0].x=2"], {"a": {"b": 1, "c": 2}, "l": [{"x": 2}]}, id="with-brackets"),
        pytest.param(["l.1=z"], {"a": {"b": 1, "c": 2}, "l": [{"x": 1}, "z"]}, id="one-more-item"),
        pytest.param(
            ["n.m.k=a=b"],
            {"a": {"b": 1, "c": 2}, "l": [{"x": 1}], "n": {"m": {"k": "a=b"}}},
            id="mappings-are-made",
        ),
        pytest.param(["a="], {"a": None, "l": [{"x": 1}]}, id="nothing"),
        pytest.param(
            ["a=", "a.d=1"], {"a": {"d": 1}, "l": [{"x": 1}]}, id="a-mapping-where-there-was-nothing"
        ),
    ],
)
def test_overrides_are_put_over_the_document(overrides: list[str], expected: object) -> None:
    original = document("a: {b: 1, c: 2}\nl: [{x: 1}]\n")
    assert apply_overrides(original, overrides).value == expected
    assert original.value == {"a": {"b": 1, "c": 2}, "l": [{"x": 1}]}


def test_what_an_override_replaced_stands_on_the_command_line() -> None:
    changed = apply_overrides(document("a: {b: 1, c: {d: 2}}\n"), ["a.c={e: 3}", "f.g=1"])
    places = {path: (place.file, place.line) for path, place in changed.places.items()}
    assert places == {
        (): ("job.yaml", 1),
        ("a",): ("job.yaml", 1),
        ("a", "b"): ("job.yaml", 1),
        ("a", "c"): ("--set", None),
        ("f",): ("--set", None),
        ("f", "g"): ("--set", None),
    }
    assert str(changed.error(("a", "c", "e"), "is wrong")) == "--set: a.c.e: is wrong"
    assert str(changed.error(("a", "x"), "is missing")) == "job.yaml:1: a.x: is missing"

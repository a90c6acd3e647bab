"""The templates of the page: they are shipped, and none of them can print a text as anything but text."""

from __future__ import annotations

import re
import zipfile
from html import unescape
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import prefect_ft.report
from prefect_ft.report.html import _TEMPLATES

ROOT = Path(__file__).parents[2]
TEMPLATES = Path(prefect_ft.report.__file__).with_name("templates")
HOSTILE = "</title><script>alert(1)</script>\"' \x1b[31mred\x9b2J \u202e\u2066\u2028\ud800\n\t&lt;"


@pytest.mark.parametrize(
    "template",
    [
        pytest.param("{{ text }}", id="text"),
        pytest.param('<i title="{{ text }}"></i>', id="attribute"),
        pytest.param("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(text) }}", id="macro"),
        pytest.param(
            "{% macro m(x) %}{{ caller() }}{{ x }}{% endmacro %}{% call m(text) %}{{ text }}{% endcall %}",
            id="caller",
        ),
        pytest.param("{% set x %}{{ text }}{% endset %}{{ x }}", id="set"),
        pytest.param("{{ {text: [text]} }}", id="in-a-value"),
        pytest.param(
            "{{ 'a %s' | format(text) }}{{ text ~ 'b' }}{{ [text, text] | join('-') }}", id="made-of"
        ),
    ],
)
def test_whatever_a_template_prints_is_text_that_can_be_seen(template: str) -> None:
    """No template has to ask for it."""
    printed = _TEMPLATES.from_string(template).render(text=HOSTILE)
    assert [char for char in printed if not char.isprintable()] == []
    assert re.findall(r"</?\w+", printed) in ([], ["<i", "</i"])
    assert "<script>alert(1)</script>\"' " in unescape(printed) or "\\x1b" in printed


def test_no_template_declares_a_text_to_be_markup() -> None:
    for path in TEMPLATES.iterdir():
        assert not re.search(r"\|\s*safe|autoescape|Markup", path.read_text()), path.name


def test_a_name_that_is_not_there_is_an_error_and_not_a_gap() -> None:
    with pytest.raises(UndefinedError):
        _TEMPLATES.from_string("{{ sotry }}").render()


def test_the_package_has_the_templates(tmp_path: Path) -> None:
    """What pip installs is this wheel."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as packed:
        shipped = {name.rpartition("/")[2] for name in packed.namelist() if "/report/templates/" in name}
    assert shipped == {path.name for path in TEMPLATES.iterdir()}
    assert "page.html.j2" in shipped

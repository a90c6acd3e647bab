"""The JSON schema of a job is a form and a reference: every field explains itself."""

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from prefect_ft.config import JobConfig, resolved

SCHEMA = JobConfig.model_json_schema()


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for section in (SCHEMA, *SCHEMA["$defs"].values()):
        assert section["description"], section["title"]
        for name, entry in section["properties"].items():
            yield f"{section['title']}.{name}", entry


@pytest.mark.parametrize(("where", "entry"), [pytest.param(*each, id=each[0]) for each in fields()])
def test_every_field_has_a_title_and_says_its_unit_bounds_and_default(
    where: str, entry: dict[str, Any]
) -> None:
    description = entry["description"]
    assert entry["title"]
    assert len(description) >= 12
    if where.endswith("_s"):
        assert "Seconds" in description
    if where.endswith("_mb"):
        assert "Megabytes" in description
    kinds = [entry, *entry.get("anyOf", [])]
    if any(kind.get("type") in {"integer", "number"} for kind in kinds):
        assert "at least" in description or "above" in description or "another name" in description.lower()
    if isinstance(entry.get("default"), (bool, int, float, str)):
        assert "default" in description


def test_every_number_has_a_greatest_one() -> None:
    """What is beyond sense is refused when it is read, not when a wait or an allocation of it fails."""
    numbers = {
        where: kind
        for where, entry in fields()
        for each in (entry, *entry.get("anyOf", []))
        for kind in (each, each.get("additionalProperties", {}), each.get("items", {}))
        if isinstance(kind, dict) and kind.get("type") in {"integer", "number"}
    }
    assert numbers
    assert [where for where, kind in numbers.items() if "maximum" not in kind] == []


def test_bounds_are_words_of_json_schema() -> None:
    known = {
        *(
            "title",
            "description",
            "default",
            "examples",
            "type",
            "enum",
            "const",
            "pattern",
            "anyOf",
            "oneOf",
            "$ref",
        ),
        *("items", "minItems", "additionalProperties", "minimum", "maximum", "exclusiveMinimum"),
    }
    for where, entry in fields():
        for kind in (entry, *entry.get("anyOf", [])):
            assert set(kind) <= known, where


@pytest.mark.parametrize(
    ("job", "valid"),
    [
        pytest.param({}, True, id="defaults"),
        pytest.param(
            {"infrastructure": {"systems": ["a", {"name": "b"}], "workers": 2}}, True, id="names-or-mappings"
        ),
        pytest.param({"autorestart": {"max_num_restarts": 2, "min_num_csx": 1}}, True, id="the-other-name"),
        pytest.param({"autorestart": {"max_num_restarts": 129}}, False, id="out-of-bounds"),
        pytest.param(
            {"autorestart": {"max_num_restarts": 1, "isolation_ttl_s": 0}}, False, id="optional-bounds"
        ),
        pytest.param({"nmae": "x"}, False, id="unknown-key"),
        pytest.param({"phases": []}, False, id="no-phase"),
        pytest.param({"name": "a b"}, False, id="no-name"),
    ],
)
def test_schema_and_models_agree(job: dict[str, Any], valid: bool) -> None:
    written = {
        "name": "j",
        "model_dir": "m",
        "phases": [{"name": "p", "mode": "eval", "command": ["c"]}],
        **job,
    }
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(written) == valid
    if valid:
        jsonschema.validate(resolved(JobConfig.model_validate(written)), SCHEMA)
    else:
        with pytest.raises(ValueError, match="JobConfig"):
            JobConfig.model_validate(written)


def test_layouts_can_be_chosen_from_a_list() -> None:
    from prefect_ft.worker.checkpoints import LAYOUTS

    assert SCHEMA["$defs"]["Checkpoints"]["properties"]["layout"]["enum"] == ["auto", *LAYOUTS]

"""What a line of a monitor comes to: an incident, somebody else's affair, or a complaint with its field."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_ft.config import Faults
from prefect_ft.errors import ConfigError
from prefect_ft.model import Evidence, Incident
from prefect_ft.supervisor.fault_records import in_output, parsed, report_of

SYSTEMS = ("s0", "s1")
FAULT = {"system": "s1", "device": "0", "code": "E1", "severity": "major"}


def incident(text: str, **fields: Any) -> Incident:
    known = {"t": 0, "kind": "device_fault", "system": "s1", "device": "0", "code": "E1", "severity": "major"}
    evidence = Evidence(rule=str(fields.get("kind", "device_fault")).replace("_", "-"), text=text)
    return Incident(**{**known, **fields, "evidence": evidence})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        pytest.param(FAULT, incident("s1: device 0: E1 (major)"), id="fault"),
        pytest.param({**FAULT, "device": 0}, incident("s1: device 0: E1 (major)"), id="a-device-by-number"),
        pytest.param({**FAULT, "message": "burnt"}, incident("burnt"), id="message"),
        pytest.param(
            {**FAULT, "healed": True}, incident("s1: device 0: E1 (major)", healed=True), id="healed"
        ),
        pytest.param(
            {**FAULT, "severity": None},
            incident("s1: device 0: E1 (warning)", severity="warning"),
            id="nobody-knows",
        ),
        pytest.param(
            {**FAULT, "vendor": "x", "t": 99}, incident("s1: device 0: E1 (major)"), id="more-fields"
        ),
        pytest.param(
            {"kind": "system_lost", "systems": ["s0", "s1"]},
            Incident(
                t=0,
                kind="system_lost",
                systems=("s0", "s1"),
                evidence=Evidence(rule="system-lost", text="s0, s1: system lost"),
            ),
            id="systems-lost",
        ),
        pytest.param({**FAULT, "system": "other"}, None, id="of-another-run"),
    ],
)
def test_a_record_is_an_incident(record: dict[str, Any], expected: Incident | None) -> None:
    assert report_of(record, Faults(), SYSTEMS) == expected


@pytest.mark.parametrize(
    ("record", "field"),
    [
        pytest.param({**FAULT, "kind": "exit"}, "kind", id="kind"),
        pytest.param({**FAULT, "severity": "bad"}, "severity", id="severity"),
        pytest.param({"system": "s1", "device": "0"}, "code", id="no-code"),
        pytest.param({**FAULT, "code": 79}, "code", id="a-code-that-is-no-text"),
        pytest.param({"device": "0", "code": "E1", "severity": "major"}, "system", id="nowhere"),
    ],
)
def test_what_is_wrong_is_named(record: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        report_of(record, Faults(), SYSTEMS)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "line", ["", "[]", "nonsense", "[" * 100_000], ids=["empty", "list", "words", "deep"]
)
def test_what_is_no_object_is_none(line: str) -> None:
    with pytest.raises(ConfigError):
        parsed(line)


@pytest.mark.parametrize(
    ("faults", "code", "said", "expected"),
    [
        pytest.param({}, "E1", None, None, id="nobody"),
        pytest.param({}, "E1", "minor", "minor", id="the-report"),
        pytest.param({"preset": "ascend"}, "80E18402", None, "critical", id="the-preset"),
        pytest.param({"preset": "ascend"}, "80E18402", "minor", "minor", id="the-report-before-the-preset"),
        pytest.param(
            {"preset": "nvidia", "severities": {"xid-79": "warning"}},
            "xid-79",
            "major",
            "warning",
            id="the-job-before-all",
        ),
        pytest.param({"preset": "nvidia"}, "80E18402", None, None, id="another-vendors"),
    ],
)
def test_who_says_how_severe_a_code_is(faults: dict[str, Any], code: str, said: Any, expected: Any) -> None:
    assert Faults(**faults).severity_of(code, said) == expected


@pytest.mark.parametrize(
    ("vendor", "code", "severity"),
    [
        ("nvidia", "xid-13", "warning"),
        ("nvidia", "xid-95", "major"),
        ("nvidia", "xid-79", "critical"),
        ("ascend", "80E18400", "warning"),
        ("ascend", "80C98002", "minor"),
        ("ascend", "80E18404", "major"),
        ("ascend", "A2301001", "critical"),
    ],
)
def test_presets_are_the_vendors_tables(vendor: Any, code: str, severity: str) -> None:
    assert Faults(preset=vendor).severity_of(code) == severity


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "[ 12.3] NVRM: Xid (PCI:0000:4f:00): 79, GPU has fallen", ("PCI:0000:4f:00", "xid-79"), id="xid"
        ),
        pytest.param("NVRM: Xid (PCI:0000:4f:00): 9999, what", None, id="unknown-xid"),
        pytest.param("device 3 fault code: 0x80E18402, fault level", None, id="a-code-of-the-other-preset"),
        pytest.param("Xid (", None, id="nothing-more"),
    ],
)
def test_lines_that_name_a_fault(line: str, expected: tuple[str, str] | None) -> None:
    found = list(in_output(f"step 1\n{line}\nstep 2\n", Faults(logs=True, preset="nvidia")))
    assert [(place, each["device"], each["code"]) for place, each in found] == (
        [(7, *expected)] if expected else []
    )


def test_a_line_that_names_an_npu_fault() -> None:
    line = "device 3 fault code: 0x80E18402, fault level SeparateNPU"
    assert list(in_output(line, Faults(logs=True, preset="ascend"))) == [
        (0, {"device": "3", "code": "80E18402", "severity": None, "message": line})
    ]

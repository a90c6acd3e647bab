"""The documentation against the code: names, orders, examples and links, without starting anything."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pages import DOCS, ROOT, blocks, named, section, tables

from prefect_ft.cli import main
from prefect_ft.config import load_job
from prefect_ft.decide.hang.facts import EvidenceKind
from prefect_ft.heartbeat import STAGES
from prefect_ft.journal.forms import INCIDENT_FIELDS
from prefect_ft.model import Counters, FailureClass, Kind
from prefect_ft.worker.checkpoints import LAYOUTS, Finder
from prefect_ft.worker.checkpoints.names import UsualNames

PAGES = sorted((*ROOT.glob("*.md"), *DOCS.rglob("*.md")))


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- links and examples -----------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not re.match(r"[a-z]+:", target):
                yield page, target


@pytest.mark.parametrize(
    ("page", "target"), [pytest.param(*link, id=f"{ids(link[0])}:{link[1]}") for link in links()]
)
def test_every_link_leads_to_a_file_and_a_heading(page: Path, target: str) -> None:
    path, _, anchor = target.partition("#")
    to = page.parent / path if path else page
    assert to.exists()
    assert not anchor or anchor in anchors(to)


def test_the_index_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_examples_are_whole(page: Path) -> None:
    for code in blocks(page, "python"):
        ast.parse(code)
    for text in blocks(page, "json"):
        json.loads(text)


def test_a_page_speaks_to_people_and_not_of_its_making() -> None:
    for page in PAGES:
        assert not re.search(r"TODO|FIXME|/work/|\.\./shared", page.read_text()), page


# -- the recovery policy ----------------------------------------------------------------------------


def test_every_class_of_failure_is_explained() -> None:
    assert named(section("recovery-policy.md", "Classes of failure")) == list(get_args(FailureClass))


def test_every_budget_is_explained() -> None:
    assert sorted(named(section("recovery-policy.md", "Budgets"))) == sorted(Counters._fields)


def test_the_fields_of_incidents_are_those_that_are_read() -> None:
    documented = named(section("recovery-policy.md", "Replay's incidents"))
    assert sorted(documented) == sorted(INCIDENT_FIELDS - {"t"})


def test_the_kinds_of_incidents_are_those_that_are_known() -> None:
    rows = tables(section("recovery-policy.md", "Replay's incidents"))[0]
    kinds = next(row[1] for row in rows if row[0] == "`kind`")
    assert re.findall("`(.+?)`", kinds) == list(get_args(Kind))


def test_runs_raise_what_the_page_says_and_no_other_kind() -> None:
    """A new source of incidents in a run has to be told to those who read the page."""
    listed = next(
        line
        for line in section("recovery-policy.md", "What runs raise today").splitlines()
        if "**Kinds**" in line
    )
    sources = (
        *(ROOT / "prefect_ft" / "supervisor").glob("*.py"),
        ROOT / "prefect_ft" / "prefect_edge" / "tasks.py",
    )
    words = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(re.findall("`(.+?)`", listed)) == words & set(get_args(Kind))


# -- the job file -----------------------------------------------------------------------------------


def test_the_reference_is_as_the_models_say() -> None:
    import runpy

    page = (DOCS / "job-file.md").read_text()
    rewritten = runpy.run_path(str(DOCS / "generate_job_reference.py"))["rewritten"]
    assert rewritten(page) == page, "run `python docs/generate_job_reference.py`"


@pytest.mark.parametrize(
    "page",
    [
        *(
            "docs/job-file.md",
            "docs/docker.md",
            "docs/kubernetes.md",
            "docs/migrating.md",
            "docs/signatures.md",
        ),
        "README.md",
    ],
)
def test_examples_are_valid_jobs(page: str, tmp_path: Path) -> None:
    for number, example in enumerate(blocks(ROOT / page, "yaml")):
        (tmp_path / f"job-{number}.yaml").write_text(example)
        load_job(tmp_path / f"job-{number}.yaml")


# -- checkpoints and scripts ------------------------------------------------------------------------


def test_every_layout_is_explained_in_the_order_of_auto() -> None:
    assert named(section("checkpoints.md", "Layouts")) == list(LAYOUTS)


def test_names_tell_the_steps_that_the_page_says() -> None:
    rows = tables(section("checkpoints.md", "Names"))[0]
    told = {name: int(row[1].partition(":")[0]) for row in rows for name in re.findall("`(.+?)/?`", row[0])}
    assert told
    assert told == {name: UsualNames().read(name) for name in told}


def test_names_that_never_count_do_not() -> None:
    text = section("checkpoints.md", "Names").partition("These never count:")[2].partition("\n\n")[0]
    found = [
        name if name[0] != "." or "-" in name else f"step-100{name}" for name in re.findall("`(.+?)`", text)
    ]
    assert found
    assert [name for name in found if isinstance(UsualNames().read(name), int)] == []


def test_the_manifest_of_the_example_proves_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-1"
    checkpoint.mkdir()
    (checkpoint / "model.bin").write_bytes(bytes(4096))
    (checkpoint / "manifest.json").write_text(blocks(DOCS / "checkpoints.md", "json")[0])
    found = Finder(str(tmp_path)).scan(now=0.0)
    assert [(item.step, item.layout) for item in found] == [(1, "manifest")]


def test_the_stages_are_those_that_beat_knows() -> None:
    stages = re.search(r"beat\(stage=.*# (.+)", section("script-contract.md", "Heartbeat"))
    assert stages is not None
    assert tuple(stages[1].split(", ")) == STAGES


# -- commands ---------------------------------------------------------------------------------------


def test_every_command_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    offered = re.findall(r"^    ([a-z-]+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    rows = tables(section("operating.md", "Commands"))[0]
    assert [row[0].strip("`").split()[1] for row in rows] == offered


def test_every_package_is_in_the_architecture() -> None:
    """In the order of import-linter's layers, which hold who may import whom."""
    table = section("architecture.md", "Packages, from the edge to the core")
    named = [
        name
        for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
        for name in re.findall("`(.+?)`", row)
    ]
    loose = re.findall("`(.+?)`", table[table.index("At the root") :])
    units = {path.stem for path in (ROOT / "prefect_ft").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {*named, *loose} == units - {"__init__", "__pycache__"}
    layers = (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0]
    order = [name for name in re.findall(r"\w+", layers) if name in named]
    assert [name for name in order if name not in ("inprocess", "callbacks", "heartbeat")] == [
        name for name in named if name not in ("inprocess", "callbacks", "heartbeat")
    ]


def test_every_kind_of_evidence_of_a_hang_is_explained() -> None:
    kinds = list(get_args(EvidenceKind))
    assert named(section("suspension.md", "What counts as evidence")) == kinds
    (row,) = [
        row for table in tables((DOCS / "journal.md").read_text()) for row in table if "`lasted_s`" in row[1]
    ]
    assert re.findall("`(.+?)`", row[1])[1:-3] == kinds

"""Which machine is certainly another one: never the same one after a restart, under a new name, or in a container."""

from __future__ import annotations

import pytest

from prefect_ft.run.machine import Machine, this_machine

HERE = Machine(id="1", boot="a", host="alpha")


@pytest.mark.parametrize(
    ("other", "is_another"),
    [
        pytest.param(HERE, False, id="itself"),
        pytest.param(Machine("1", "b", "alpha"), False, id="started-again"),
        pytest.param(Machine("1", "b", "beta"), False, id="started-again-under-another-name"),
        pytest.param(Machine("1", "a", "beta"), False, id="renamed"),
        pytest.param(Machine("2", "b", "alpha"), False, id="started-again-without-its-state"),
        pytest.param(Machine("2", "a", "c0ffee"), False, id="a-container-of-its-own"),
        pytest.param(Machine("", "b", "c0ffee"), False, id="a-container-that-came-from-elsewhere"),
        pytest.param(Machine("2", "b", "beta"), True, id="another"),
    ],
)
def test_what_is_another_machine(other: Machine, is_another: bool) -> None:
    assert HERE.is_another(other) is is_another
    assert other.is_another(HERE) is is_another


def test_a_name_that_any_machine_has_tells_nothing() -> None:
    assert Machine("1", "a", "localhost").is_another(Machine("2", "b", "localhost"))


def test_a_machine_is_read_as_it_was_written() -> None:
    here = this_machine()
    assert Machine.from_json(here.to_json()) == here
    assert Machine.from_json({"id": "1", "boot": "a"}) is None
    assert Machine.from_json(None) is None
    assert not here.is_another(this_machine())

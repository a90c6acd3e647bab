"""Puts faults into functions, one at a time, and asks the tests that reach them.

    PYTHONPATH=. python tests/mutate_functions.py 'prefect_ft/decide/*' --results FILE tests/decide/test_d*.py

What else stands there is for pytest. The faults are tried in an order drawn by chance, so that those that were tried
when it is stopped are a random part of them; called again, it goes on.

mutmut makes the faults (`pip install mutmut==3.8.1`). All of them stand in one copy of the package, and one pytest
collects the tests once; each fault is tried in a fork of it, by the tests that reach its function, up to the first that
fails, or to `ENOUGH_S` seconds of them: first those that noticed other faults of the function, then the quick ones that
reach little else. What is computed once for all tests may hide a fault: if they pass, the first ones are asked again
with nothing remembered. A fault by which a test takes `SLOWER` times its CPU
time and `AT_LEAST_S` seconds more is noticed, and one by which a test waits for `WAITS_S` seconds.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import _lru_cache_wrapper
from itertools import accumulate
from math import ceil, sqrt
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from mutmut.mutation import trampoline
from mutmut.mutation.file_mutation import mutate_file_contents

ROOT = Path(__file__).parents[1]
COPIED = ("prefect_ft", "tests", "pyproject.toml")
SLOWER, AT_LEAST_S = 10, 3
ENOUGH_S = 8
WAITS_S = 90
NOTICED, LEFT, TOO_SLOW = "noticed", "left", "too slow"


def put_faults(tree: Path, pattern: str) -> list[str]:
    """Put all faults into the files of a copy of the package; return their names."""
    names = []
    for path in sorted((tree / "prefect_ft").rglob("*.py")):
        file = path.relative_to(tree)
        if fnmatch(str(file), pattern):
            mutated = mutate_file_contents(str(file), path.read_text())
            path.write_text(mutated.code)
            module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
            names += [f"{module}.{name}" for name in mutated.mutant_names]
    return names


def passes(item: pytest.Item) -> bool:
    """Run one test."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def forget() -> None:
    """Empty what functions of the package remember."""
    for each in gc.get_objects():
        if isinstance(each, _lru_cache_wrapper) and each.__module__.startswith("prefect_ft."):
            each.cache_clear()


class Reached:
    """Which tests reach which functions, and what they cost."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        """Run all tests, with nothing remembered at the beginning of each file."""
        self.cost_s: dict[pytest.Item, float] = {}
        self.items = list(items)
        self._breadth: dict[pytest.Item, int] = {}
        self._noticed: dict[str, Counter[pytest.Item]] = defaultdict(Counter)
        self._reaching: dict[str, list[pytest.Item]] = defaultdict(list)
        hits: set[str] = set()
        trampoline.record_trampoline_hit = lambda name, **_: hits.add(name)
        trampoline.set_mutant_under_test("stats")
        file = None
        for item in self.items:
            if item.path != file:
                forget()
            file = item.path
            hits.clear()
            began_s = time.process_time()
            if not passes(item):
                print(f"left out, as it fails without a fault: {item.nodeid}")
                continue
            self.cost_s[item] = time.process_time() - began_s
            self._breadth[item] = len(hits)
            for function in hits:
                self._reaching[function].append(item)
        trampoline.set_mutant_under_test("")

    def tests(self, function: str) -> list[pytest.Item]:
        """Return those that reach it, the best first, as many as are worth `ENOUGH_S`."""
        noticed = self._noticed[function]
        tests = sorted(
            self._reaching[function],
            key=lambda test: (-noticed[test], self.cost_s[test] * self._breadth[test]),
        )
        spent_s = accumulate(self.cost_s[test] for test in tests)
        return [test for test, s in zip(tests, spent_s, strict=True) if s <= ENOUGH_S] or tests[:1]

    def note(self, function: str, test: pytest.Item) -> None:
        """Take it that a test noticed a fault."""
        self._noticed[function][test] += 1

    def first_tests(self, function: str) -> list[pytest.Item]:
        """Return the first of each file that reached it, when nothing was remembered yet."""
        return list({test.path: test for test in reversed(self._reaching[function])}.values())


class Trial:
    """A pytest plugin that tries faults where else the tests would run."""

    def __init__(self, faults: list[str], results: Path) -> None:
        self._faults, self._results = faults, results

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try each fault, and write a line about it."""
        reached = Reached(session.items)
        with self._results.open("a") as file:
            for fault in self._faults:
                print(f"{self._try(fault, reached)}\t{fault}", file=file, flush=True)
        return True

    def _try(self, fault: str, reached: Reached) -> str:
        function = fault.rpartition("__mutmut_")[0]
        tests = reached.tests(function)
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                os.dup2(1, 2)
                trampoline.set_mutant_under_test(fault)
                failed = self._failed(tests, reached)
                if failed is None:
                    forget()
                    failed = self._failed(reached.first_tests(function), reached)
                os.write(tell, str(LEFT if failed is None else reached.items.index(failed)).encode())
            finally:
                os._exit(0)
        os.close(tell)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(told) as pipe:
            said = pipe.read()
        if os.WIFSIGNALED(status):
            return TOO_SLOW
        if not said.isdigit():
            return LEFT
        reached.note(function, reached.items[int(said)])
        return NOTICED

    @staticmethod
    def _failed(tests: Iterable[pytest.Item], reached: Reached) -> pytest.Item | None:
        for test in tests:
            limit_s = time.process_time() + AT_LEAST_S + SLOWER * reached.cost_s[test]
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(limit_s), resource.RLIM_INFINITY))
            signal.alarm(WAITS_S)
            if not passes(test):
                return test
        return None


def tried(results: Path) -> dict[str, str]:
    """Return what became of the faults that were tried, by their names."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {fault: outcome for outcome, fault in (line.split("\t") for line in lines)}


def interval(part: int, whole: int) -> str:
    """Return the share with its 95 % interval (Wilson)."""
    z = 1.96
    share, spread = part / whole, z * z / whole
    middle, half = share + spread / 2, z * sqrt(share * (1 - share) / whole + spread / whole / 4)
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return f"{share:.1%} ({low:.1%}-{high:.1%})"


def main() -> int:
    """Try the faults that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pattern", help="of the files' names")
    parser.add_argument("--sample", type=int, help="so many of the faults only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--results", type=Path, required=True, help="a line a fault; what it has is not tried again"
    )
    given, tests = parser.parse_known_args()
    results = given.results.absolute()
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        faults = put_faults(tree, given.pattern)
        random.Random(given.seed).shuffle(faults)
        known = tried(results)
        faults = [fault for fault in faults[: given.sample] if fault not in known]
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        options = ["-q", "-s", "-p", "no:cacheprovider", "-o", "timeout=0"]
        code = pytest.main([*options, *tests], plugins=[Trial(faults, results)])
    counts = Counter(tried(results).values())
    print(dict(counts), interval(counts.total() - counts[LEFT], counts.total()))
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())

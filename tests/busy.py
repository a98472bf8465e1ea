"""Run the tests beside a load, several times, and print those that ever failed: they depend on how long things take.

python -m tests.busy [--times 3] [--load 8] [ARGUMENTS OF PYTEST]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

SHORT = ("-n", "2", "-m", "not long")


def main() -> bool:
    """Whether no test has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.busy")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--load", type=int, default=8, help="busy processes")
    options, arguments = parser.parse_known_args()
    found: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, load(options.load):
        for number in range(options.times):
            path = Path(folder) / f"{number}.xml"
            pytest = [sys.executable, "-m", "pytest", "-q", *SHORT, f"--junitxml={path}", *arguments]
            status = subprocess.run(pytest, check=False).returncode
            if not path.exists():
                raise SystemExit(f"pytest ended with {status}")
            for test, why in failures(path):
                found[test].append(why)
    for test, reasons in sorted(found.items()):
        print(f"{test} failed {len(reasons)} times of {options.times}: {reasons[0]}")
    print(f"{len(found)} tests failed beside {options.load} busy processes.")
    return not found


@contextmanager
def load(count: int) -> Iterator[None]:
    """So many processes that compute until they are ended, or nobody is left to end them."""
    busy = [multiprocessing.Process(target=compute, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()


def compute(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(1_000_000))


def failures(path: Path) -> Iterator[tuple[str, str]]:
    """The name of each test that failed, and the first line of why."""
    for case in ElementTree.parse(path).iter("testcase"):
        for why in (*case.findall("failure"), *case.findall("error")):
            message = why.get("message", "").splitlines() or [""]
            yield f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}", message[0][:150]


if __name__ == "__main__":
    sys.exit(not main())

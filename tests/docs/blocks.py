"""The code blocks of the documentation, and how each is run: as a reader would, but on small models and two CPU ranks.

The blocks of a page run in order, in one folder and one Python namespace. One with a title is a file. `<!-- not run:
REASON -->` before a block says why it is not run."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from soapstone.cli import main
from tests.distributed.launch import local_ranks
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
SMALL = {
    "lenet": {"batch": 8},
    "alexnet": {"batch": 8, "image": 96, "width": 4, "hidden": 12, "classes": 8},
    "rnnlm": {"batch": 8, "vocab": 12, "length": 3, "hidden": 6},
    "nmt": {"batch": 8, "vocab": 12, "length": 3, "hidden": 6},
    "gpt2": {"batch": 8, "vocab": 16, "length": 6, "width": 8, "heads": 2, "layers": 2},
    "llama": {"batch": 8, "layers": 2},
}
SHORT = {  # what each command is given besides, to be done soon
    "search": ["--proposals", "50", "--budget", "3"],
    "compare": ["--proposals", "50", "--budget", "3"],
    "plot": ["--budget", "0.5"],
    "train": ["--steps", "2"],
    "tune": ["--budget", "1", "--limit", "5"],
}
SCRIPTS = {"examples/mixed_cluster.py": ["lenet", "h100:1x1+a100:1x2", "50"]}  # their arguments


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str
    title: str | None
    reason: str | None  # why it is not run


def blocks_of(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, m.start("text")), m["language"], m["text"], m["title"], m["reason"])
        for m in FENCE.finditer(text)
    ]


def commands_of(text: str) -> list[list[str]]:
    """The words of each command, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def smaller(words: list[str]) -> list[str]:
    """A command of soapstone's for a small model and a short search. What is said last holds."""
    words = list(words)
    if "--batch-per-device" in words:
        at = words.index("--batch-per-device")
        del words[at : at + 2]
    sizes = next((SMALL[word] for word in words[1:] if word in SMALL), {})
    for name, size in sizes.items():
        words += ["--batch", str(size)] if name == "batch" else ["--size", f"{name}={size}"]
    return words + SHORT.get(words[0], [])


@dataclass
class Page:
    """Runs the blocks of one page in the folder that is the current one."""

    name: str
    names: dict[str, Any] = field(default_factory=dict)
    printed: str = ""  # by the last block of commands

    def run(self, block: Block) -> None:
        if block.reason is not None:
            return
        if block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not block.text.startswith(">>> "):
            with redirect_stdout(StringIO()):
                exec(compile(block.text, f"{self.name}, after line {block.line}", "exec"), self.names)
        elif block.language == "sh":
            self.printed = "".join(map(run_command, commands_of(block.text)))
        elif block.language == "text" and block.text.startswith(" "):  # a table: its headings are those of today
            headings = block.text.splitlines()[0].split()
            assert set(headings) <= set(self.printed.split()), f"{headings} are not what is printed:\n{self.printed}"


def run_command(words: list[str]) -> str:
    """What a command prints. Raises AssertionError where it fails."""
    program, *arguments = words
    if program == "soapstone":
        return called(main, ["soapstone", *smaller(arguments)])
    if words[:3] == ["python", "-m", "soapstone"]:
        return called(main, ["soapstone", *smaller(arguments[2:])])
    if program == "python":
        return called(_script(arguments[0]), _argued(arguments))
    if program == "torchrun":
        return run_ranks(target_of(arguments))
    raise AssertionError(f"{program!r} is no command that a page's test runs; say why: <!-- not run: REASON -->")


Target = tuple[Callable[[], object], list[str]]  # what a rank runs, and its arguments


def target_of(arguments: list[str]) -> Target:
    """From torchrun's arguments."""
    rest = list(arguments)
    while rest[0].startswith("--"):
        del rest[: 1 if rest[0] == "--standalone" else 2]
    if rest[:2] == ["-m", "soapstone"]:
        return main, ["soapstone", *smaller(rest[2:])]
    return _script(rest[0]), _argued(rest)


def _argued(words: list[str]) -> list[str]:
    return words + SCRIPTS.get(words[0], [])


def _script(path: str) -> Callable[[], object]:
    def run() -> None:
        sys.path.insert(0, str(Path(path).resolve().parent))
        try:
            runpy.run_path(path, run_name="__main__")
        finally:
            del sys.path[0]

    return run


def called(function: Callable[[], object], argv: list[str]) -> str:
    """What a program's main function prints, in this process: torch is here already."""
    out, err, before = StringIO(), StringIO(), sys.argv
    sys.argv = argv
    status: object = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            function()
    except SystemExit as stopped:
        status = stopped.code
    finally:
        sys.argv = before
    assert not status, f"{shlex.join(argv)} ends with {status}:\n{out.getvalue()}{err.getvalue()}"
    return out.getvalue()


def run_ranks(target: Target, count: int = 2) -> str:
    """What ranks print, each a forked process with the environment that torchrun gives it."""
    context = multiprocessing.get_context("fork")
    files = [Path(f"rank{rank}.txt").resolve() for rank in range(count)]
    with local_ranks(count) as environments:
        processes = [
            context.Process(target=_be_rank, args=(target, {**own, "OMP_NUM_THREADS": "1"}, file), daemon=True)
            for own, file in zip(environments, files)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(HANG)
            if process.is_alive():
                process.kill()
    said = "".join(file.read_text() for file in files if file.exists())
    assert [process.exitcode for process in processes] == [0] * count, said
    return said


def _be_rank(target: Target, environment: dict[str, str], file: Path) -> None:
    function, argv = target
    os.environ.update(environment)
    status, said = 0, ""
    try:
        said = called(function, argv)
    except BaseException:
        status, said = 1, traceback.format_exc()
    file.write_text(said)
    os._exit(status)  # gloo's threads may outlive what they hold

"""What it costs to get a model in: capture against torch.export, the second command from the cache, the import; and
how much of each model can be split, of the zoo at full size."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import soapstone as ss

from .spine import export_only


def seconds(function: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def command(*words: str) -> float:
    """Wall seconds of a command in a process of its own."""
    return seconds(lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True))


def second_show(model: str) -> float:
    return min(command("-m", "soapstone", "show", model) for _ in range(3))  # the first fills the cache


def row(name: str, work: ss.Workload) -> list[str]:
    pairs = [(seconds(lambda: export_only(work)), seconds(lambda: ss.capture(work))) for _ in range(2)]
    export, capture = (min(times) for times in zip(*pairs))
    facts = ss.capture(work).facts
    again = f"{second_show(name):.2f}"
    return [name, str(facts.ops), f"{export:.2f}", f"{capture / export:.2f}x", again, f"{facts.split_share:.2%}"]


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title="Capture, and what can be split")
    for column in ("model", "ops", "torch.export s", "capture / export", "second command s", "flops in 2+ dims"):
        table.add_column(column, justify="left" if column == "model" else "right")
    ss.capture(ss.zoo.load("lenet"))  # the first export of a process loads much of torch
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOAPSTONE_CACHE"] = folder
        for name in track(ss.zoo.names(), "capturing", console=Console(stderr=True)):
            table.add_row(*row(name, ss.zoo.load(name)))
    Console(width=120).print(table)
    bare = min(command("-c", "pass") for _ in range(5))
    loaded = min(command("-c", "import soapstone, sys; assert 'torch' not in sys.modules") for _ in range(5))
    Console().print(f"import soapstone: {loaded - bare:.2f} s beside the interpreter's {bare:.2f} s, without torch")


if __name__ == "__main__":
    main()

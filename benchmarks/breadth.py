"""What it costs to get a model in: capture against torch.export, the second command from the cache, the import; and
how much of each model can be split, of the zoo at full size.

`python -m benchmarks.breadth models`: thirty models of `transformers` at small size: which are captured as they are and
train alike on several devices, which ops lack a rule, and whether flops and bytes are those of eager PyTorch."""

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
from tests.support import huggingface
from tests.support.counting import counted_flops, products, saved_by_eager
from tests.support.training import assert_same, train_plain, train_threads

from .spine import export_only

STRATEGIES = 3  # data parallelism, and others at random


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


def trains_alike(name: str) -> bool:
    """In float64, losses, gradients and weights of two steps to nine digits."""
    with huggingface.all_in_float64():
        work = huggingface.doubled(name)
        graph, batches = ss.capture(work), [work.batch] * 2
        wanted = train_plain(huggingface.eager_experts(work), batches)
        for seed in range(STRATEGIES):
            topology = ss.Topology.parse(f"cpu:1x{2 + seed}")
            how = (
                ss.baselines.random(graph, topology, seed=seed) if seed else ss.baselines.data_parallel(graph, topology)
            )
            for found in train_threads(lambda: huggingface.doubled(name), graph, how, batches):
                try:
                    assert_same(found, wanted)
                except AssertionError:
                    return False
    return True


def facts_row(name: str) -> list[str]:
    work = huggingface.workload(name)
    try:
        graph = ss.capture(work)
    except ss.SoapstoneError:
        return [""] * 5 + ["refused"]
    flops = products(graph) / counted_flops(huggingface.eager_experts(huggingface.workload(name)))
    saved = graph.facts.saved_bytes / saved_by_eager(work)
    trained = "yes" if trains_alike(name) else "NO"
    lacking = ", ".join(graph.unruled) or "none"
    return [str(graph.facts.ops), lacking, f"{graph.facts.split_share:.1%}", f"{flops:.3f}", f"{saved:.2f}", trained]


def models() -> None:
    table = Table(title="Models of transformers, small, in train mode")
    columns = ("model", "family", "ops", "no rule", "flops in 2+ dims", "flops / torch's", "saved / eager's", "alike")
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "family", "no rule") else "right")
    for name, entry in track(huggingface.MODELS.items(), "training", console=Console(stderr=True)):
        table.add_row(entry.model, entry.family, *facts_row(name))
    Console(width=140).print(table)


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
    models() if sys.argv[1:] == ["models"] else main()

"""Thirty models of `transformers` at small size: which are captured as they are, which ops lack a rule, whether flops
and bytes are those of eager PyTorch, and whether they train alike: on several devices, in microbatches, under autocast
and in mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import soapstone as ss
from soapstone.tracing.precision import eager_loss
from tests.support import huggingface
from tests.support.counting import counted_flops, products, saved_by_eager
from tests.support.microbatches import microbatched
from tests.support.training import Record, assert_same, train_plain, train_threads

COLUMNS = ("model", "family", "ops", "no rule", "flops in 2+ dims", "flops / torch's", "saved / eager's", "alike",
           "in microbatches", "autocast", "mixed")  # fmt: skip
STRATEGIES = 3  # data parallelism, and others at random


def still(name: str) -> ss.Workload:
    return huggingface.still(huggingface.workload(name))


def still_in_float64(name: str) -> ss.Workload:
    return huggingface.still(huggingface.doubled(name))


def are_alike(found: Iterable[Record], wanted: Record) -> bool:
    """In float64: losses, gradients and weights of two steps to nine digits."""
    try:
        for record in found:
            assert_same(record, wanted)
    except AssertionError:
        return False
    return True


def alike(name: str) -> bool:
    """Under data parallelism, and under random strategies."""
    with huggingface.all_in_float64():
        work = huggingface.doubled(name)
        graph, batches = ss.capture(work), [work.batch] * 2
        wanted = train_plain(huggingface.eager_experts(work), batches)
        for seed in range(STRATEGIES):
            topology = ss.Topology.parse(f"cpu:1x{2 + seed}")
            how = (
                ss.baselines.random(graph, topology, seed=seed) if seed else ss.baselines.data_parallel(graph, topology)
            )
            if not are_alike(train_threads(lambda: huggingface.doubled(name), graph, how, batches), wanted):
                return False
    return True


def alike_in_microbatches(name: str) -> bool:
    """Under random strategies with two and four of them."""
    with huggingface.all_in_float64():
        work = still_in_float64(name)
        graph, batches = ss.capture(work), [work.batch] * 2
        wanted = train_plain(huggingface.eager_experts(work), batches)
        for seed, count in enumerate((2, 4)):
            how = microbatched(graph, ss.Topology.parse(f"cpu:1x{2 + seed}"), count, seed)
            if not are_alike(train_threads(lambda: still_in_float64(name), graph, how, batches), wanted):
                return False
    return True


def error(name: str, precision: str) -> float:
    """Of all gradients together, on two devices, against plain PyTorch in this precision."""
    work = still(name)
    eager_loss(work, work.batch, precision).backward()  # type: ignore[no-untyped-call]
    graph = ss.capture(still(name), precision=precision)
    strategy = ss.baselines.data_parallel(graph, ss.Topology.parse("cpu:1x2"))
    found = train_threads(lambda: still(name), graph, strategy, [work.batch])[0].gradients[0]
    wanted = {each: p.grad for each, p in work.model.named_parameters() if p.grad is not None}
    off = sum(float((found[each] - grad).norm() ** 2) for each, grad in wanted.items())
    size = sum(float(grad.norm() ** 2) for grad in wanted.values())
    return float((off / size) ** 0.5)


def said(compute: Callable[[], object]) -> str:
    """What a column says: a number, yes or no, or who refuses."""
    try:
        found = compute()
    except ss.SoapstoneError:
        return "refused"
    except RuntimeError:
        return "not in PyTorch"
    return f"{found:.1%}" if isinstance(found, float) else "yes" if found else "NO"


def row(name: str) -> list[str]:
    work = huggingface.workload(name)
    try:
        graph = ss.capture(work)
    except ss.SoapstoneError:
        return [""] * 5 + ["refused"]
    flops = products(graph) / counted_flops(huggingface.eager_experts(huggingface.workload(name)))
    saved = graph.facts.saved_bytes / saved_by_eager(work)
    lacking = ", ".join(graph.unruled) or "none"
    facts = [str(graph.facts.ops), lacking, f"{graph.facts.split_share:.1%}", f"{flops:.3f}", f"{saved:.2f}"]
    trained = [said(lambda: alike(name)), said(lambda: alike_in_microbatches(name))]
    return [*facts, *trained, said(lambda: error(name, "autocast:cpu")), said(lambda: error(name, "mixed"))]


def main() -> None:
    torch.set_num_threads(1)
    table = Table(title="Models of transformers, small")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("model", "family", "no rule") else "right")
    for name, entry in track(huggingface.MODELS.items(), "training", console=Console(stderr=True)):
        table.add_row(entry.model, entry.family, *row(name))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()

"""What the zoo's ops and training steps take on this GPU: what analytic costs are fitted to and held against.

python -m benchmarks.curves OUT.json [MODEL ...]

Each distinct op is measured whole and cut along each of its dims, as a strategy would cut it; each model's step at its
full batch, half of it and an eighth. In float32 as PyTorch has it by default (convolutions in TF32), with all products
in TF32, and in bfloat16.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import soapstone as ss
from soapstone.costs import Question
from soapstone.graph import OperatorGraph
from soapstone.loading import Request, load_graph, load_workload

MODELS = ("alexnet", "inception-v3", "resnet-101", "rnntc", "rnnlm", "nmt", "gpt2", "vit", "llama")
PRECISIONS = ("float32", "tf32", "bfloat16")
CUTS = (1, 2, 8)
STEPS = 8


@contextmanager
def precision(name: str) -> Iterator[str]:
    """The dtype of the model, while products are computed in this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        yield "bfloat16" if name == "bfloat16" else "float32"
    finally:
        torch.set_float32_matmul_precision(before)


def questions(graph: OperatorGraph) -> Iterator[Question]:
    """Each distinct op, whole and cut along one dim."""
    for index in sorted(set(graph.alike)):
        dims = graph.ops[index].dims
        whole = tuple(dim.size for dim in dims)
        yield index, whole, False
        for d, dim in enumerate(dims):
            for cut in CUTS[1:]:
                if dim.size >= cut and dim.kind != "attribute":
                    extents = (*whole[:d], dim.size // cut, *whole[d + 1 :])
                    yield index, extents, dim.combinable


def op_rows(graph: OperatorGraph, costs: ss.MeasuredCosts, kind: str) -> list[list[Any]]:
    asked = list(questions(graph))
    costs.prepare(graph, asked, kind)
    rows = []
    for index, extents, combines in asked:
        times = costs.times(graph, index, extents, kind, combines)
        rows.append([graph.ops[index].name, list(extents), combines, *astuple(times)])
    return rows


def step_row(model: str, batch: int, dtype: str) -> dict[str, float] | None:
    """Forward and backward in milliseconds, until the GPU is done and until the host is; with Adam's step, and the most
    bytes held. None where it does not fit."""
    try:
        return _step_row(model, batch, dtype)
    except torch.OutOfMemoryError:
        return None


def _step_row(model: str, batch: int, dtype: str) -> dict[str, float]:
    work = load_workload(Request(model, batch, dtype=dtype)).on(torch.device("cuda"))
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-5)
    torch.cuda.reset_peak_memory_stats()

    def forward_backward() -> None:
        work.compute_loss(*work.batch).backward()  # type: ignore[no-untyped-call]

    def unstepped() -> None:
        forward_backward()
        optimizer.zero_grad(set_to_none=True)

    def whole() -> None:
        forward_backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    _, whole_ms = _timed(whole)
    peak = torch.cuda.max_memory_allocated()
    host_ms, step_ms = _timed(unstepped)
    return {"step_ms": step_ms, "host_ms": host_ms, "with_adam_ms": whole_ms, "peak_bytes": peak}


def _timed(step: Callable[[], object]) -> tuple[float, float]:
    """Median milliseconds until the call returned, and until the device was done."""
    found = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begun = perf_counter()
        step()
        returned = perf_counter()
        torch.cuda.synchronize()
        found.append(((returned - begun) * 1e3, (perf_counter() - begun) * 1e3))
    host, done = zip(*found[2:])
    return median(host), median(done)


def main() -> None:
    path, chosen = Path(sys.argv[1]), sys.argv[2:] or MODELS
    kind = ss.Topology.detect().devices[0].kind
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": str(date.today()), "models": []
    }  # fmt: skip
    for name in PRECISIONS:
        with precision(name) as dtype:
            for model in chosen:
                begun = perf_counter()
                graph = load_graph(Request(model, dtype=dtype))
                batch = ss.zoo.entry(model).batch
                row: dict[str, Any] = {
                    "model": model,
                    "precision": name,
                    "batch": batch,
                    "ops": op_rows(graph, costs_of(), kind),
                }
                row["steps"] = {cut: step_row(model, batch // cut, dtype) for cut in CUTS}
                found["models"].append(row)
                path.write_text(json.dumps(found))
                print(name, model, len(row["ops"]), "ops", f"{perf_counter() - begun:.1f} s", row["steps"], flush=True)
                torch.cuda.empty_cache()


def costs_of() -> ss.MeasuredCosts:
    return ss.MeasuredCosts("cuda", rounds=5, batch_ms=1.0)


if __name__ == "__main__":
    main()

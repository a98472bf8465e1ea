"""Models of `transformers` at real size on one GPU: a step against eager PyTorch's and against torch.compile's, the
time that kernels take in each, and peak memory. AdamW in one pass for all. For mixed precision the other side is FSDP2
with its MixedPrecisionPolicy, on one rank.

python -m benchmarks.huggingface [--compile] [CASE ...]"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.table import Table

import soapstone as ss
from soapstone.runtime.transports import alone
from soapstone.tracing.precision import eager_loss
from soapstone.tuning.race import Ratio

from .gpu import in_a_process
from .steps import interleaved, ratio_of

ROUNDS = 15
Step = Callable[[], object]
Batch = Callable[[Any], dict[str, torch.Tensor]]


def words(samples: int, length: int) -> Batch:
    def make(config: Any) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, config.vocab_size, (samples, length))
        return {"input_ids": ids, "labels": ids.clone()}

    return make


def images(samples: int) -> Batch:
    def make(config: Any) -> dict[str, torch.Tensor]:
        return {
            "pixel_values": torch.randn(samples, 3, 224, 224),
            "labels": torch.randint(0, config.num_labels, (samples,)),
        }

    return make


def speech(samples: int, length: int) -> Batch:
    def make(config: Any) -> dict[str, torch.Tensor]:
        return {
            "input_features": torch.randn(samples, config.num_mel_bins, 2 * config.max_source_positions),
            "labels": torch.randint(3, config.vocab_size, (samples, length)),
        }

    return make


@dataclass(frozen=True)
class Case:
    """A model class, what its config has besides the defaults, its batch, and the precision it trains in."""

    model: str
    precision: str
    batch: Batch
    config: dict[str, Any] = field(default_factory=dict)

    def workload(self) -> ss.Workload:
        import transformers

        kind = getattr(transformers, self.model)
        config = kind.config_class(**self.config)
        torch.manual_seed(0)
        with torch.device("cuda"):
            work = ss.Workload(kind(config).train(), (), kwargs=self.batch(config))
        return work.to(self.precision) if self.precision == "bfloat16" else work

    @property
    def captured_in(self) -> str:
        """The precision that is not the model's own."""
        return "" if self.precision == "bfloat16" else self.precision


def wide(width: int, inner: int, heads: int, keys: int, layers: int = 8, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads}
    return sizes | {"num_key_value_heads": keys, "num_hidden_layers": layers, "use_cache": False} | more


LLAMA = wide(2048, 8192, 16, 8)
CASES = {
    "Llama": Case("LlamaForCausalLM", "bfloat16", words(4, 2048), LLAMA),
    "Llama, autocast": Case("LlamaForCausalLM", "autocast:cuda", words(4, 2048), LLAMA),
    "Llama, mixed": Case("LlamaForCausalLM", "mixed", words(4, 2048), LLAMA),
    "Qwen3": Case("Qwen3ForCausalLM", "bfloat16", words(4, 1024), wide(1024, 3072, 16, 8)),
    "Gemma 2": Case("Gemma2ForCausalLM", "bfloat16", words(2, 2048), wide(2304, 9216, 8, 4)),
    "Phi-3": Case("Phi3ForCausalLM", "bfloat16", words(2, 2048), wide(3072, 8192, 32, 32)),
    "Mixtral": Case("MixtralForCausalLM", "bfloat16", words(4, 1024), wide(2048, 7168, 16, 8, layers=4)),
    "Mamba 2": Case(
        "Mamba2ForCausalLM", "bfloat16", words(2, 1024),
        {"hidden_size": 1024, "num_hidden_layers": 8, "num_heads": 32, "use_cache": False},
    ),
    "BERT": Case("BertForMaskedLM", "autocast:cuda", words(32, 512)),
    "Whisper": Case(
        "WhisperForConditionalGeneration", "autocast:cuda", speech(8, 128),
        {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12}
        | {"decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "use_cache": False},
    ),
    "ViT-B": Case("ViTForImageClassification", "autocast:cuda", images(64)),
    "ConvNeXt-T": Case("ConvNextForImageClassification", "autocast:cuda", images(64)),
}  # fmt: skip


def waited(optimizer: torch.optim.Optimizer, work: Step) -> Step:
    def step() -> None:
        work()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def fsdp(model: Any) -> Any:
    """FSDP2's mixed precision on one rank, layer by layer, as its tutorial has it."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with tempfile.NamedTemporaryFile() as meeting:
        dist.init_process_group("nccl", init_method=f"file://{meeting.name}", rank=0, world_size=1)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def plain_step(case: Case, compiled: bool) -> Step:
    work = case.workload()
    model: Any = fsdp(work.model) if case.precision == "mixed" else work.model
    model = torch.compile(model) if compiled else model
    precision = "" if case.precision == "mixed" else case.captured_in
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return waited(optimizer, lambda: eager_loss(work, work.batch, precision, model).backward())  # type: ignore[no-untyped-call]


def our_step(case: Case, compiled: bool) -> Step:
    work, topology = case.workload(), ss.Topology.parse("h200:1x1")
    graph = ss.capture(work, precision=case.captured_in)
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=alone(), compile=compiled)
    batch = work.batch
    del work
    return waited(torch.optim.AdamW(parallel.parameters(), fused=True), lambda: parallel.step(*batch))


@dataclass(frozen=True)
class Side:
    """One side: GPU memory at the peak, and what kernels take in a step."""

    peak: int
    kernels: float

    @classmethod
    def of(cls, make: Callable[[], Step]) -> tuple[Step, Side]:
        before = torch.cuda.memory_allocated()
        step = make()
        step()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            step()
        peak = torch.cuda.max_memory_allocated() - before
        return step, cls(peak, kernel_seconds(step))


def kernel_seconds(step: Step) -> float:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
    return float(sum(event.self_device_time_total for event in profile.key_averages())) * 1e-6


@dataclass(frozen=True)
class Row:
    name: str
    capture: float
    seconds: float
    ratio: Ratio
    ours: Side
    theirs: Side

    def cells(self) -> list[str]:
        kernels = f"{self.ours.kernels * 1e3:.1f} / {self.theirs.kernels * 1e3:.1f} ms"
        peaks = f"{self.ours.peak / 1e9:.2f} / {self.theirs.peak / 1e9:.2f} GB"
        return [self.name, f"{self.seconds * 1e3:.1f} ms", str(self.ratio), kernels, peaks, f"{self.capture:.0f} s"]


def row(name: str, compiled: bool = False) -> Row:
    case = CASES[name]
    plain, theirs = Side.of(lambda: plain_step(case, compiled))
    start = time.perf_counter()
    step, ours = Side.of(lambda: our_step(case, compiled))
    taken = time.perf_counter() - start
    found, beside = interleaved(ROUNDS, step, plain)
    return Row(name, taken, statistics.median(found), ratio_of(found, beside), ours, theirs)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Cases by the beginning of their name; all without.")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Both sides compiled.")] = False,
) -> None:
    """Run the models' steps side by side, and print a table."""
    if not torch.cuda.is_available():
        sys.exit("these models need an NVIDIA GPU, and torch finds none here")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    against = "torch.compile" if compiled else "eager"
    table = Table("model", "ours", f"against {against}", "kernels, ours / theirs", "peak", "capture and first steps")
    console = Console(width=130)
    for name in CASES:
        if names and not any(name.lower().startswith(each.lower()) for each in names):
            continue
        try:
            found = in_a_process(row, name, compiled=compiled)
        except Exception as error:  # one model must not end the others
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        print(*found.cells(), sep="; ", file=sys.stderr, flush=True)
        table.add_row(*found.cells())
    console.print(table)


if __name__ == "__main__":
    typer.run(main)

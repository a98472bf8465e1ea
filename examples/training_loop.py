"""A whole training loop: every rank reads its part of the data; accumulation, a learning rate schedule, clipping,
evaluation, a profile, TensorBoard, and checkpoints from which it goes on by itself. On two CPU processes:

torchrun --nproc-per-node 2 examples/training_loop.py --save saved --profile traces --tensorboard runs
"""

import argparse
import math
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, profiler
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import soapstone as ss
from soapstone.runtime import Parallel

BATCH, ACCUMULATE, LEARNING_RATE, WARMUP = 32, 2, 0.005, 5
TEST = 261  # of 1,797 images; the others make 24 steps of two batches

Tensors = tuple[torch.Tensor, ...]


def digits() -> Tensors:
    found = load_digits()
    return torch.tensor(found.data / 8 - 1), torch.tensor(found.target)


def scaled_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Gradients of accumulated steps add up, so each step has its share of the mean over all of their samples."""
    return F.cross_entropy(scores, labels) / ACCUMULATE


def workload() -> ss.Workload:
    torch.manual_seed(0)
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*first, nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)).double()
    images, labels = digits()
    return ss.Workload(model, (images[:BATCH],), loss=scaled_loss, targets=(labels[:BATCH],))


def batches(size: int, epoch: int, first: int = 0) -> torch.Tensor:
    """A row of samples for each batch of an epoch, shuffled alike on every rank, from batch number `first` on."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    return order[: size - size % (BATCH * ACCUMULATE)].view(-1, BATCH)[first:]


class OwnPart(Dataset[Tensors]):
    """What this rank reads of a batch, and no more: its slice of each tensor."""

    def __init__(self, data: Tensors, slices: tuple[tuple[slice, ...], ...]) -> None:
        self.data, self.slices = data, slices

    def __getitem__(self, samples: torch.Tensor) -> Tensors:
        parts = zip(self.data, self.slices)
        return tuple(tensor[samples[first]][(slice(None), *rest)] for tensor, (first, *rest) in parts)


def warmup_and_cosine(step: int, total: int) -> float:
    return min((step + 1) / WARMUP, (1 + math.cos(math.pi * step / total)) / 2)


def profiled(folder: str | None) -> Any:
    """Three steps as a trace of each rank, after two that warm up."""
    if folder is None:
        return nullcontext()
    write = profiler.tensorboard_trace_handler(folder, f"rank{dist.get_rank()}")
    return profiler.profile(schedule=profiler.schedule(wait=1, warmup=1, active=3, repeat=1), on_trace_ready=write)


def board_of(folder: str | None) -> Any:
    """Rank 0 writes for TensorBoard: losses and norms are the same on all."""
    if folder is None or dist.get_rank() > 0:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder)


def log(board: Any, step: int, **found: float) -> None:
    if dist.get_rank() == 0:
        print(f"step {step}:", ", ".join(f"{name} {value:.12g}" for name, value in found.items()), flush=True)
    for name, value in found.items() if board else ():
        board.add_scalar(name, value, step)


def train(parallel: Parallel, wanted: argparse.Namespace) -> None:
    images, labels = digits()
    data, size = OwnPart((images[TEST:], labels[TEST:]), parallel.slices), len(images) - TEST
    per_epoch = size // (BATCH * ACCUMULATE)
    total, board = wanted.epochs * per_epoch, board_of(wanted.tensorboard)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=LEARNING_RATE)
    step = parallel.load(wanted.save, optimizer, missing_ok=True) if wanted.save is not None else 0
    # After `load`, which brings the optimizer's settings. The schedule, as the data, goes on from the step alone.
    schedule = LambdaLR(optimizer, lambda step: warmup_and_cosine(step, total), last_epoch=step - 1)
    with profiled(wanted.profile) as profile:
        while step < total:
            epoch, done = divmod(step, per_epoch)
            order, loss = batches(size, epoch, done * ACCUMULATE), 0.0
            for number, batch in enumerate(DataLoader(data, sampler=order, batch_size=None, num_workers=1), 1):
                loss += parallel.step(*batch, sync=number % ACCUMULATE == 0).item()
                if number % ACCUMULATE:
                    continue
                norm = parallel.clip_grad_norm_(1.0).item()
                optimizer.step()
                log(board, step, loss=loss, norm=norm, lr=float(schedule.get_last_lr()[0]))
                schedule.step()
                step, loss = step + 1, 0.0
                if wanted.save is not None and (step % wanted.every == 0 or step == total):
                    parallel.save(wanted.save, optimizer, step=step)
                if profile is not None:
                    profile.step()
            right = parallel.evaluate(images[:TEST]).argmax(1) == labels[:TEST]
            log(board, step, accuracy=right.double().mean().item())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--save", metavar="FOLDER", help="checkpoints; it goes on from the newest one")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--profile", metavar="FOLDER", help="a trace for each rank, for ui.perfetto.dev")
    parser.add_argument("--tensorboard", metavar="FOLDER")
    wanted = parser.parse_args()
    if wanted.tensorboard is not None and find_spec("tensorboard") is None:
        sys.exit("training_loop: --tensorboard needs a package that is not here; run: pip install tensorboard")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work = workload()
    graph, topology = ss.capture(work), ss.Topology.parse(f"cpu:1x{dist.get_world_size()}")
    strategy = ss.search(graph, topology, budget=None, proposals=1000).strategy
    train(ss.parallelize(work, graph, topology, strategy), wanted)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except ss.SoapstoneError as error:
        sys.exit(f"training_loop: {error}")

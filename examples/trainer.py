"""Hugging Face's Trainer with the model under a strategy: a GPT-2 on two CPU processes.

torchrun --nproc-per-node 2 examples/trainer.py [FOLDER]

The schedule, logging, accumulation, clipping, evaluation, metrics, saving and resuming are the Trainer's own. Its batch
size is that of all ranks together. Evaluation and saving put whole weights into the model, on every rank.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import soapstone as ss

ROWS, LENGTH, VOCAB = 88, 32, 500
REFUSED = ("fp16", "bf16", "label_smoothing_factor", "compute_loss_func", "optimizers")


class ParallelTrainer(Trainer):
    """Tried with transformers 5.22 and accelerate 1.15: it overrides some of their private methods."""

    model: Any
    lr_scheduler: Any
    parallel: Any = None  # a Parallel, from the beginning of training

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        args = self.args
        if args.fp16 or args.bf16 or args.label_smoothing_factor or self.compute_loss_func or self.optimizer:
            raise ValueError(f"leave out {', '.join(REFUSED)}: they have no part in a step under a strategy")
        if isinstance(self.train_dataset, IterableDataset):
            raise ValueError(
                "the training data is streamed; give a dataset with a length, of which every rank reads all"
            )
        args.average_tokens_across_devices = False  # each rank has all of them
        self.accelerator.prepare_model = lambda model, **_: model  # without DistributedDataParallel
        self.accelerator.clip_grad_norm_ = lambda _, *norm: self.parallel.clip_grad_norm_(*norm)

    def plan(self, graph: ss.OperatorGraph) -> ss.Strategy:
        """Override it for your machines, or to load a strategy."""
        topology = ss.Topology.parse(f"cpu:1x{dist.get_world_size()}")
        return ss.search(graph, topology, budget=None, proposals=300).strategy

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.model.train()
            work = self.workload()
            graph = ss.capture(work)
            strategy = self.plan(graph)
            self.parallel = ss.parallelize(work, graph, strategy.topology, strategy)
        return super().create_optimizer(self.parallel)

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        return super().get_decay_parameter_names(self.model)

    def workload(self) -> ss.Workload:
        """The last tensor of a step scales its loss, since gradients of accumulated steps add up."""
        loader = self.get_train_dataloader()
        batch = dict(loader.collate_fn([loader.dataset[i] for i in range(self.args.train_batch_size)]))
        items = self._get_num_items_in_batch([batch], self.args.device)
        if items is not None:
            return ss.Workload(self.model, (), kwargs={**batch, "num_items_in_batch": items})
        share = torch.ones(())
        return ss.Workload(self.model, (), kwargs=batch, loss=lambda output, x: output.loss * x, targets=(share,))

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if num_items_in_batch is None:
            num_items_in_batch = torch.tensor(1 / self.current_gradient_accumulation_steps)
        self.model.train()  # evaluation has left it in the other mode, which a step refuses
        loss: torch.Tensor = self.parallel.step(dict(inputs), num_items_in_batch, sync=self.accelerator.sync_gradients)
        return loss

    # Every rank reads the whole batch

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader = super().get_train_dataloader()
        shard: Any = loader.batch_sampler
        shard.num_processes, shard.process_index = 1, 0
        return loader

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        return int(super().get_total_train_batch_size(args) // args.world_size)

    # Whole weights, for evaluation and saving

    def gather(self) -> None:
        if self.parallel is not None:
            self.model.load_state_dict(self.parallel.state_dict())

    def evaluation_loop(self, *given: Any, **named: Any) -> Any:
        self.gather()
        return super().evaluation_loop(*given, **named)

    def save_model(self, *given: Any, **named: Any) -> None:
        self.gather()
        super().save_model(*given, **named)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.parallel.load_state_dict(self.model.state_dict())

    # Checkpoints, which any strategy and number of ranks go on from

    def _save_optimizer_and_scheduler(self, folder: str) -> None:
        self.parallel.save(folder, self.optimizer, step=self.state.global_step)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(folder, "scheduler.pt"))

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        if folder is not None:
            self.parallel.load(folder, self.optimizer)
            self.lr_scheduler.load_state_dict(torch.load(Path(folder, "scheduler.pt"), weights_only=True))


def rows() -> list[dict[str, torch.Tensor]]:
    """Counting up in steps, from a start: the same on every rank. Some rows are shorter than others."""
    generator = torch.Generator().manual_seed(0)
    starts, steps, sizes = (torch.randint(1, n, (ROWS, 1), generator=generator) for n in (VOCAB, 9, LENGTH))
    places = torch.arange(LENGTH)
    ids = (starts + steps * places) % VOCAB
    return [{"input_ids": i, "labels": j} for i, j in zip(ids, torch.where(places <= sizes, ids, -100))]


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def arguments(folder: str, **named: Any) -> TrainingArguments:
    return TrainingArguments(
        folder, per_device_train_batch_size=8, per_device_eval_batch_size=4, use_cpu=True, disable_tqdm=True,
        gradient_accumulation_steps=2, num_train_epochs=2, max_grad_norm=1.0, weight_decay=0.1, learning_rate=5e-3,
        lr_scheduler_type="cosine", warmup_steps=2, logging_steps=1, eval_strategy="epoch", save_strategy="epoch",
        report_to=[], **named,
    )  # fmt: skip


def main(folder: str = "trainer") -> None:
    data = rows()
    trainer = ParallelTrainer(model(), arguments(folder), train_dataset=data[:72], eval_dataset=data[72:])
    trainer.train(resume_from_checkpoint=any(Path(folder).glob("checkpoint-*")))
    trainer.save_model()
    trainer.end()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ss.SoapstoneError as error:
        sys.exit(f"trainer: {error}")

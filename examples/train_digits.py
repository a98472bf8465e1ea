"""Train LeNet on digits under a strategy, and print losses and accuracy as JSON:

torchrun --nproc-per-node 2 examples/train_digits.py TOPOLOGY.yaml STRATEGY.json
"""

import json
import sys

import torch
import torch.distributed as dist
from digits import EPOCHS, LEARNING_RATE, TEST, Batches, digits, workload
from torch.utils.data import DataLoader

import soapstone as ss


def main(machines: str, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work = workload()
    graph, topology = ss.capture(work), ss.Topology.load(machines)
    parallel = ss.parallelize(work, graph, topology, ss.Strategy.load(path, graph, topology))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=LEARNING_RATE, momentum=0.9)
    images, labels = digits()
    losses = []
    for epoch in range(EPOCHS):
        batches = Batches((images[TEST:], labels[TEST:]), epoch, parallel.slices)
        for batch in DataLoader(batches, batch_size=None):
            losses.append(parallel.step(*batch).item())
            optimizer.step()
    right = parallel.evaluate(images[:TEST]).argmax(1) == labels[:TEST]
    if dist.get_rank() == 0:
        print(json.dumps({"losses": losses, "accuracy": right.double().mean().item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ss.SoapstoneError as error:
        sys.exit(f"train_digits: {error}")

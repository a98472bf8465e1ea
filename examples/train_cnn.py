"""Train the CNN under a strategy on several processes and print its losses:

torchrun --standalone --nproc-per-node 2 examples/train_cnn.py STRATEGY.json
"""

import sys

import torch
import torch.distributed as dist
from cnn import batch, workload

import soapstone as ss

STEPS = 8
LEARNING_RATE = 0.01


def main(path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work = workload()
    graph = ss.capture(work)
    topology = ss.Topology.parse(f"cpu:1x{dist.get_world_size()}")
    strategy = ss.Strategy.load(path, graph, topology)
    torch.manual_seed(1)  # replayed dropout starts here, as it does in plain PyTorch
    parallel = ss.parallelize(work, graph, topology, strategy, dropout="replay")
    optimizer = torch.optim.SGD(parallel.parameters(), lr=LEARNING_RATE, momentum=0.9)
    for step in range(STEPS):
        loss = parallel.step(*batch(step))
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"{loss.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except ss.SoapstoneError as error:
        sys.exit(f"train_cnn: {error}")

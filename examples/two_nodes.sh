#!/bin/sh
# Two nodes on one machine: two torchrun agents of one process each measure the link between them, search, and train.
# On two machines, start each agent on its own, with MASTER set to the first one's address, and copy the two files over.
#
#   sh examples/two_nodes.sh
set -eu

MODEL="${MODEL:-lenet --batch 64}"
MASTER="${MASTER:-127.0.0.1}"
PORT="${PORT:-29517}"
OUT="${OUT:-.}"
export OMP_NUM_THREADS=1

agents() {  # the same command on both nodes, of which only the number differs
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 --master-addr "$MASTER" --master-port "$PORT" -m soapstone "$@" &
    other=$!
    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr "$MASTER" --master-port "$PORT" -m soapstone "$@"
    wait "$other"
}

agents calibrate -o "$OUT/two_nodes.yaml"
# shellcheck disable=SC2086
python -m soapstone search $MODEL -t "$OUT/two_nodes.yaml" --budget 5 -o "$OUT/two_nodes.json"
# shellcheck disable=SC2086
agents train $MODEL -t "$OUT/two_nodes.yaml" -s "$OUT/two_nodes.json" --steps 5 --check

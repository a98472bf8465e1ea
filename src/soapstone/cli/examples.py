"""What the help of each command ends with."""

from __future__ import annotations

EXAMPLES = {
    "models": ("soapstone models", "soapstone models --json"),
    "show": (
        "soapstone show gpt2 --batch 16",
        "soapstone show llama --size layers=2 --all",
        "soapstone show my/model.py:make",
    ),
    "topologies": ("soapstone topologies",),
    "simulate": (
        "soapstone simulate nmt -t p100:4x4",
        "soapstone simulate nmt -t p100:4x4 -s nmt.p100-4x4.json --trace t.json",
        "soapstone simulate gpt2 -t h100:1x4+a100:1x8 --precision bfloat16 --json",
    ),
    "search": (
        "soapstone search nmt -t p100:4x4",
        "soapstone search my/model.py:make -t here.yaml --budget 120 -o fast.json",
        "soapstone search lenet -t p100:1x4 --method exhaustive",
    ),
    "compare": (
        "soapstone compare alexnet -t p100:4x4",
        "soapstone compare rnnlm -t p100:1x4 --methods data,soapstone --budget 20",
    ),
    "explain": (
        "soapstone explain nmt.p100-4x4.json",
        "soapstone explain expert --model gpt2 -t h100:1x8 --against data",
    ),
    "diff": ("soapstone diff nmt.p100-4x4.json expert", "soapstone diff first.json second.json --json"),
    "report": ("soapstone report nmt.p100-4x4.json -o nmt.html",),
    "export": ("soapstone export megatron --model llama -t h100:2x8 -o parallel.py",),
    "export-weights": (
        "soapstone export-weights saved -o model.safetensors",
        "soapstone export-weights saved/step-000000100 -o model.pt",
    ),
    "export-dcp": ("soapstone export-dcp saved -o dcp",),
    "plot": (
        "soapstone plot scaling alexnet -t p100:4x4 --batch-per-device 64 -o scaling.png",
        "soapstone plot search nmt.json -o curve.svg  # what search --json printed",
    ),
    "profile": (
        "soapstone profile rnnlm --batch 32 -t here.yaml",
        "soapstone profile gpt2 --device cuda --again",
    ),
    "plan": ("soapstone plan lenet -t cpu:1x2", "soapstone plan rnnlm -t here.yaml -s fast.json --rank 1 --all"),
    "calibrate": ("torchrun --nproc-per-node 2 -m soapstone calibrate -o here.yaml",),
    "ranks": (
        "soapstone ranks 4 -- python -m soapstone train lenet -t h200:1x4 --check",
        "soapstone ranks 2 -- python -m soapstone tune resnet-101 --batch 64",
        "soapstone ranks 2x4 --gbit 8 -- python -m soapstone calibrate -o here.yaml",
    ),
    "train": (
        "torchrun --nproc-per-node 2 -m soapstone train lenet -t cpu:1x2 --check",
        "torchrun --nproc-per-node 2 -m soapstone train rnnlm -t here.yaml -s s.json",
    ),
    "tune": (
        "torchrun --nproc-per-node 2 -m soapstone tune lenet --batch 64",
        "torchrun --nproc-per-node 8 -m soapstone tune my/model.py:make -t here.yaml",
    ),
    "cache": ("soapstone cache", "soapstone cache --clear"),
}

OUTLINE = """\b
First steps:
  soapstone show gpt2                  what a model is made of
  soapstone compare nmt -t p100:4x4    every approach on a cluster
  soapstone search nmt -t p100:4x4     find a fast strategy and keep it
  soapstone COMMAND --help             options and examples of a command

\b
Exit status:
  0    done; also where Ctrl-C ended a search with the best so far
  1    a fault of soapstone's own, with a traceback to report
  2    bad input, with one line on standard error that says what to do
  130  interrupted by Ctrl-C

\b
Environment:
  SOAPSTONE_CACHE        where captured graphs and measured times are kept
  SOAPSTONE_CACHE_LIMIT  how large captured graphs may grow there: 500MB, 2GiB
  NO_COLOR               set to anything: no colours
"""


def epilog(command: str) -> str:
    """The examples of a command, a line each."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[command])

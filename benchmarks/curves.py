"""Real times of ops by family and size, and of whole models, on a CUDA device: what the analytic costs are fitted to.

`python benchmarks/curves.py OUT.json` needs torch alone; it reads the zoo's modules without the compiled core.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

MODELS: dict[str, dict[str, Any]] = {
    "inception-v3": {}, "resnet-101": {}, "alexnet": {}, "rnntc": {}, "rnnlm": {}, "nmt": {}, "gpt2": {}, "vit": {},
    "resnet-50": {"blocks": (3, 4, 6, 3)},
}  # fmt: skip
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def timed(function: Callable[[], object], least: float = 0.05) -> float:
    """Seconds of one call, by the clock over a run of at least so many seconds."""
    function()
    torch.cuda.synchronize()
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            function()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        if took > least:
            return took / count
        count = max(2 * count, int(count * least / max(took, 1e-6)))


def both_ways(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[float, float]:
    """Forward, and forward with backward less forward."""
    leaves = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    wanted = [x for x in leaves if x.requires_grad]
    output = function(*leaves)
    gradient = torch.ones_like(output)
    forward = timed(lambda: function(*leaves))
    whole = timed(lambda: torch.autograd.grad(function(*leaves), wanted, gradient))
    return forward, whole - forward


def rand(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype) * 0.1


def products(dtype: torch.dtype) -> Any:
    for m, n, k in itertools.product((64, 512, 4096), (64, 512, 4096), (64, 512, 4096)):
        yield "linear", [m, n, k], both_ways(F.linear, rand(m, k, dtype=dtype), rand(n, k, dtype=dtype))
    for b, m in ((12, 1024), (96, 128), (96, 1024)):
        x, y = rand(b, m, 64, dtype=dtype), rand(b, 64, m, dtype=dtype)
        yield "bmm", [b, m, m, 64], both_ways(torch.bmm, x, y)


def convolutions(dtype: torch.dtype) -> Any:
    for n, c, size, kernel in itertools.product((4, 16, 64), (64, 192, 512), (14, 35, 56), (1, 3)):
        x, w = rand(n, c, size, size, dtype=dtype), rand(c, c, kernel, kernel, dtype=dtype)
        yield "conv2d", [n, c, size, kernel], both_ways(lambda x, w: F.conv2d(x, w, padding=w.shape[-1] // 2), x, w)


def others(dtype: torch.dtype) -> Any:
    for count in (2**12, 2**16, 2**20, 2**24, 2**27):
        x, y = rand(count // 1024, 1024, dtype=dtype), rand(count // 1024, 1024, dtype=dtype)
        yield "add", [count], both_ways(torch.add, x, y)
        yield "relu", [count], both_ways(F.relu, x)
        yield "softmax", [count], both_ways(lambda x: F.softmax(x, -1), x)
        yield "layer_norm", [count], both_ways(lambda x: F.layer_norm(x, (1024,)), x)
    for n, c, size in ((64, 64, 56), (64, 256, 56), (16, 512, 14), (64, 512, 28)):
        x = rand(n, c, size, size, dtype=dtype)
        yield "batch_norm", [n, c, size], both_ways(lambda x: F.batch_norm(x, None, None, training=True), x)
        yield "max_pool2d", [n, c, size], both_ways(lambda x: F.max_pool2d(x, 3, 2, 1), x)
    for batch, hidden in itertools.product((4, 16, 64, 256), (256, 1024, 2048)):
        cell = nn.LSTMCell(hidden, hidden).cuda().to(dtype)
        states = [rand(batch, hidden, dtype=dtype) for _ in range(3)]
        weights = [w.detach() for w in cell.parameters()]
        run = lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w)[0]  # noqa: E731
        yield "lstm_cell", [batch, hidden], both_ways(run, *states, *weights)
    for b, length in ((1, 1024), (8, 1024), (8, 128), (8, 4096)):
        q, k, v = (rand(b, 12, length, 64, dtype=dtype) for _ in range(3))
        attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
        yield "attention", [b, 12, length, 64], both_ways(attend, q, k, v)
    ids = torch.randint(0, 50_000, (8, 1024), device="cuda")
    yield "embedding", [8192, 768], both_ways(F.embedding, ids, rand(50_000, 768, dtype=dtype))
    logits = rand(8192, 50_257, dtype=dtype)
    yield "cross_entropy", [8192, 50_257], both_ways(lambda x: F.cross_entropy(x, ids.view(-1)), logits)


def zoo(name: str) -> tuple[nn.Module, Any, Any]:
    """A model of the zoo, its batch and its loss, without the package around it."""
    if "soapstone" not in sys.modules:
        package = types.ModuleType("soapstone")
        package.__path__ = [str(Path(__file__).parents[1] / "src" / "soapstone")]
        sys.modules["soapstone"] = package
    catalogue, data = import_module("soapstone.zoo.catalogue"), import_module("soapstone.zoo.data")
    entry = catalogue.ENTRIES["resnet-101" if name == "resnet-50" else name]
    sizes = entry.sizes | MODELS[name]
    module, _, kind = entry.model.partition(".")
    own = {key: size for key, size in sizes.items() if key not in entry.data_only}
    model = getattr(import_module(f"soapstone.zoo.{module}"), kind)(**own).cuda()
    inputs, target = data.DATA[entry.data](entry.batch, sizes)
    return model, (*(x.cuda() for x in inputs), target.cuda()), data.LOSSES[entry.loss]


def whole_model(name: str, dtype: str) -> list[float]:
    model, (*inputs, target), loss = zoo(name)

    def forward() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
            found: torch.Tensor = loss(model(*inputs), target)
            return found

    def step() -> None:
        model.zero_grad()
        forward().backward()  # type: ignore[no-untyped-call]

    return [timed(forward, 0.3), timed(step, 0.5)]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "ops": [],
        "models": [],
    }
    for name, dtype in DTYPES.items():
        for kind, sizes, (forward, backward) in itertools.chain(products(dtype), convolutions(dtype), others(dtype)):
            found["ops"].append([name, kind, sizes, forward, backward])
        for model in MODELS:
            try:
                found["models"].append([name, model, *whole_model(model, name)])
            except RuntimeError as error:
                found["models"].append([name, model, str(error).split("\n")[0]])
            torch.cuda.empty_cache()
            print(found["models"][-1], flush=True)
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

"""What soapstone does, in two minutes or so: search for a cluster that you do not have, say why the plan wins and draw
it, then search for this machine, and train there."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from digits import EPOCHS, LEARNING_RATE, TEST, Batches, digits, workload
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

ROOT = Path(__file__).parents[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
console = Console(width=max(100, Console().width) if not sys.stdout.isatty() else None, highlight=False)


def run(shown: str, *arguments: str, capture: bool = False) -> str:
    """A command, as a user would type it; ends the demo where it fails."""
    console.print(f"\n[bold]$ {shown}", soft_wrap=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE if capture else None
    done = subprocess.run([sys.executable, *arguments], env=environment, stdout=pipe, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"demo: {shown.split()[0]} failed; its error stands above")
    return done.stdout or ""


def soapstone(*words: str) -> None:
    run(f"soapstone {' '.join(words)}", "-m", "soapstone", *words)


def search_for_a_cluster(folder: str) -> None:
    """Paths are inside the project, so that what is shown can be typed again."""
    case = ["nmt", "-t", "p100:1x4", "--batch", "64"]
    strategy = f"{folder}/nmt.json"
    console.rule("[bold]NMT on four P100s: a search")
    soapstone("search", *case, "--budget", "20", "-o", strategy, "--report", f"{folder}/nmt.html")
    console.rule("[bold]Why it wins")
    soapstone("explain", strategy)
    console.rule("[bold]Every approach, simulated")
    soapstone("compare", *case, "--methods", "data,model,expert,optcnn,paper", "--budget", "10")


def search_for_this_machine(here: Path, strategy: Path) -> None:
    console.rule("[bold]LeNet on two processes of this machine")
    shown = "torchrun --nproc-per-node 2 -m soapstone calibrate -o here.yaml"
    run(shown, *TORCHRUN, "-m", "soapstone", "calibrate", "-o", str(here))
    model = "examples/digits.py:workload"
    options = ["--costs", "measured", "--optimizer", "momentum", "--budget", "5"]
    shown = f"soapstone search {model} -t here.yaml -o digits.json {' '.join(options)}"
    run(shown, "-m", "soapstone", "search", model, "-t", str(here), "-o", str(strategy), *options)


def train(here: Path, strategy: Path) -> tuple[list[float], float, float]:
    shown = "torchrun --nproc-per-node 2 examples/train_digits.py here.yaml digits.json"
    begun = time.perf_counter()
    output = run(shown, *TORCHRUN, "examples/train_digits.py", str(here), str(strategy), capture=True)
    found = json.loads(output)
    return found["losses"], found["accuracy"], time.perf_counter() - begun


def train_plain() -> tuple[list[float], float]:
    """The same with plain PyTorch on one device."""
    torch.set_num_threads(1)
    work = workload()
    images, labels = digits()
    optimizer = torch.optim.SGD(work.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses = []
    for epoch in range(EPOCHS):
        for batch in DataLoader(Batches((images[TEST:], labels[TEST:]), epoch), batch_size=None):
            optimizer.zero_grad()
            loss = work.compute_loss(*batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    with torch.no_grad():
        right = work.model(images[:TEST]).argmax(1) == labels[:TEST]
    return losses, right.double().mean().item()


def show(ours: tuple[list[float], float], plain: tuple[list[float], float]) -> None:
    table = Table("", "one device", "two processes", title="Trained for real: losses", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    steps = len(plain[0])
    for step in [*range(0, steps, steps // EPOCHS), steps - 1]:
        table.add_row(f"step {step}", f"{plain[0][step]:.12f}", f"{ours[0][step]:.12f}")
    table.add_row(f"right, of {TEST} unseen digits", f"{plain[1]:.2%}", f"{ours[1]:.2%}")
    console.print(table)
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours[0], plain[0], strict=True))
    console.print(f"Largest relative difference of {steps} losses: {worst:.1e}")
    if not worst < 1e-6:
        sys.exit("demo: the losses differ")


def main() -> None:
    shown = Path("build", "demo")
    (ROOT / shown).mkdir(parents=True, exist_ok=True)
    search_for_a_cluster(str(shown))
    with tempfile.TemporaryDirectory() as folder:
        here, strategy = Path(folder) / "here.yaml", Path(folder) / "digits.json"
        search_for_this_machine(here, strategy)
        losses, accuracy, seconds = train(here, strategy)
    console.print(f"{len(losses)} steps and an evaluation, with the start of two processes: {seconds:.0f} s\n")
    with console.status("the same with plain PyTorch on one device"):
        plain = train_plain()
    show((losses, accuracy), plain)
    report = (ROOT / shown / "nmt.html").resolve()
    console.print(f"\nThe report on NMT, to open in a browser: [bold]{report}[/]", soft_wrap=True)


if __name__ == "__main__":
    main()

"""The commands. Bad input ends in one line on standard error and exit status 2; `--help` lists the others."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..errors import LostRankError, SoapstoneError, meant, printable
from ..files import version
from ..processes import end_with_torchrun, last_words
from . import (
    calibrating,
    explaining,
    exporting,
    keeping,
    launching,
    planning,
    plotting,
    predict,
    profile,
    reporting,
    searching,
    show,
    training,
    tuning,
    weights,
)
from .common import Quiet, hush, is_verbose, takes_volume
from .examples import OUTLINE, epilog

__all__ = ["main", "run"]

PATIENCE = 3.0  # seconds that another rank waits for rank 0 to say what is wrong

COMMANDS: dict[str, Callable[..., None]] = {
    "models": show.models,
    "show": show.show,
    "topologies": predict.topologies,
    "simulate": predict.simulate_command,
    "search": searching.search_command,
    "compare": searching.compare,
    "explain": explaining.explain,
    "diff": explaining.diff,
    "report": reporting.report,
    "export": exporting.export,
    "export-weights": weights.export_weights,
    "export-dcp": weights.export_dcp,
    "profile": profile.profile,
    "plan": planning.plan_command,
    "calibrate": calibrating.calibrate,
    "ranks": launching.ranks,
    "train": training.train,
    "tune": tuning.tune_command,
    "cache": keeping.cache_command,
}

app = typer.Typer(
    help="Find, show and run the fastest way to train a PyTorch model on the machines you have.",
    epilog=OUTLINE,
    invoke_without_command=True,
    rich_markup_mode=None,  # plain text, as in a manual
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, command in COMMANDS.items():
    app.command(name, epilog=epilog(name))(takes_volume(command))
app.add_typer(plotting.app, name="plot", epilog=epilog("plot"))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"soapstone {version()}")
        raise typer.Exit


@app.callback()
def usage(
    context: typer.Context,
    quiet: Quiet = False,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if quiet:
        hush()
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run a command and exit with its status."""
    gc.set_threshold(200_000)  # a graph is that many small objects, none of them garbage
    hush(os.environ.get("RANK", "0") != "0")  # one rank says it for all
    end_with_torchrun()
    try:
        status = app(standalone_mode=False)
    except LostRankError as error:
        status = _complain(str(error), at_once=True)  # each rank's log says it
    except SoapstoneError as error:
        more = "" if error.__cause__ is None or is_verbose() else " (--verbose prints all that led to it)"
        status = _complain(str(error) + more)
        if error.__cause__ is not None and is_verbose():
            sys.stderr.write(printable("".join(traceback.format_exception(error.__cause__))))
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except OSError as error:
        status = _complain(f"the system refuses: {error.strerror}")
    except Exception as error:
        if not hasattr(error, "format_message"):  # no complaint of the parser's
            raise
        status = _complain(_wrong_number(error) or _reworded(error))
    sys.exit(status)


def run() -> None:
    """`main` as a process of its own: where torch was not loaded, it ends without taking a large graph apart first. So
    does a rank: gloo's threads may let go of a tensor as late as that, and abort where Python is half gone."""
    try:
        main()
    except SystemExit as stopped:
        if "torch" in sys.modules and "RANK" not in os.environ:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(stopped.code or 0))


def _wrong_number(error: Any) -> str:
    """What to type instead of a number that is none, or is too small or large; nothing for another complaint."""
    said = error.format_message()
    if not re.search(r"valid (?:int|float|number)|Unable to parse|greater than|less than|in the range", said):
        return ""
    option = max(error.param.opts, key=len)
    least, most = (getattr(error.param, end, None) for end in ("min", "max"))
    number = "a whole number" if re.search("valid int|as an int", said) or isinstance(least, int) else "a number"
    bounds = "" if least is None else f" from {least:g} to {most:g}" if most is not None else f" of at least {least:g}"
    return f"{option} takes {number}{bounds}; write it as {option} 8"


def _reworded(error: Any) -> str:
    """A complaint of the parser's, with the name that was probably meant."""
    sentence: str = error.format_message().replace("Value error, ", "")
    remedy = "try --help"
    if possible := getattr(error, "possibilities", None):
        sentence, remedy = error.message, meant(error.option_name, possible, remedy)
    elif wrong := re.match(r"No such command '([^']*)'", sentence):
        sentence, remedy = wrong[0], meant(wrong[1], COMMANDS, remedy)
    return f"{sentence.rstrip('.')}; {remedy}"


def _complain(sentence: str, *, at_once: bool = False) -> int:
    if os.environ.get("RANK", "0") != "0" and not at_once:
        time.sleep(PATIENCE)  # where rank 0 makes the same mistake, torchrun ends this rank meanwhile
    last_words(sentence)
    return 2

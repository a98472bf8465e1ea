"""Models by name: one of the zoo's, or a function in a user's file that returns a Workload."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import cache, zoo
from .errors import CaptureError, SoapstoneError, meant
from .files import not_a_file
from .graph import OperatorGraph
from .surroundings import Reads, noted_files, noted_variables
from .zoo.catalogue import Size

if TYPE_CHECKING:
    from .tracing import Workload


DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Request:
    """A model, and how to make and capture it. `model` is a name of the zoo's, or `path/to/file.py:function`."""

    model: str
    batch: int | None = None
    sizes: dict[str, Size] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # of capture
    dtype: str = "float32"  # of the model's parameters and floating-point inputs

    @property
    def is_file(self) -> bool:
        return ":" in self.model or self.model.endswith(".py")

    def file(self) -> tuple[Path, str]:
        """The user's file and function. Raises CaptureError where the name cannot mean one."""
        path, _, function = self.model.rpartition(":")
        if not path or not function.isidentifier() or not path.endswith(".py"):
            raise CaptureError(f"{self.model!r} is not path/to/file.py:function; name the file's function")
        if not Path(path).is_file():
            raise CaptureError(not_a_file(path, "file", "name one that is there", ".py"))
        return Path(path).resolve(), function


def load_graph(
    request: Request, *, fresh: bool = False, announce: Callable[[], object] = lambda: None
) -> OperatorGraph:
    """The graph of a model, from the cache where it was captured before; `announce` is called before a capture."""
    check_request(request)
    asked = asdict(request) | ({"model": ":".join(map(str, request.file()))} if request.is_file else {})
    if not fresh and (found := cache.find(asked)) is not None:
        return found
    announce()
    graph, sources = _captured_file(request) if request.is_file else (_captured(without_numbers(request), request), {})
    cache.keep(asked, graph, sources)
    return graph


def _captured_file(request: Request) -> tuple[OperatorGraph, dict[str, str | None]]:
    """The graph of a user's file, and stamps of all that it was made from: sources, variables and files that it read,
    each as it was before that."""
    modules, reads = set(sys.modules), Reads()
    variables = cache.stamps(Path(f"${name}") for name in os.environ)
    with noted_files(reads), noted_variables(reads):
        work = load_workload(request)
        sources = cache.stamps([*_sources(modules, request.file()[0]), *reads.files])
        graph = _captured(work, request)
    sources |= {f"${name}": variables.get(f"${name}") for name in reads.variables}
    return graph, cache.stamps(file for file in reads.files if str(file) not in sources) | sources


def _captured(work: Workload, request: Request) -> OperatorGraph:
    from .tracing import capture

    return capture(work, **request.options)


def load_workload(request: Request) -> Workload:
    """The model itself, with its data and loss. Loads torch."""
    check_request(request)
    if not request.is_file:
        work = zoo.load(request.model, batch=request.batch, **request.sizes)
    else:
        path, function = request.file()
        work = _call(path, function, _run(path), request)
    return work if request.dtype == "float32" else work.to(request.dtype)


def without_numbers(request: Request) -> Workload:
    """A model of the zoo as fake tensors: a capture needs shapes, and a large batch of images would fill the memory."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.dtype))  # since fake tensors cannot be converted
    try:
        with FakeTensorMode():
            return zoo.load(request.model, batch=request.batch, **request.sizes)
    finally:
        torch.set_default_dtype(before)


def check_request(request: Request) -> None:
    """Raise CaptureError for what is wrong before anything is loaded."""
    if request.dtype not in DTYPES:
        remedy = meant(request.dtype, DTYPES, f"use {', '.join(DTYPES)}")
        raise CaptureError(f"dtype {request.dtype!r} is not known; {remedy}")
    if request.is_file:
        request.file()
    elif request.model not in zoo.names():
        remedy = meant(request.model, zoo.names(), f"there are {', '.join(zoo.names())}")
        raise CaptureError(f"there is no model {request.model!r}; {remedy} (or pass path/to/file.py:function)")
    else:
        zoo.check(request.model, request.batch, request.sizes)


def _run(path: Path) -> Any:
    """The module of a user's file, run as a script is: with its folder first on the path."""
    name = f"soapstone_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        with redirect_stdout(sys.stderr):  # ours is for results
            spec.loader.exec_module(module)
    except SoapstoneError:
        raise
    except (Exception, SystemExit) as error:
        raise _blamed(error, path) from error
    return module


def _call(path: Path, function: str, module: Any, request: Request) -> Workload:
    """What the function returns, which gets a batch and sizes where it takes them."""
    from .tracing import Workload

    make = getattr(module, function, None)
    if not callable(make):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise CaptureError(f"{path.name} has no function {function!r}; {meant(function, own, f'it has {_names(own)}')}")
    given = {**({} if request.batch is None else {"batch": request.batch}), **request.sizes}
    taken = _arguments(make)
    if taken is not None and (unknown := [name for name in given if name not in taken]):
        takes = f"it takes {', '.join(taken)}" if taken else "it takes no arguments and sets its own"
        raise CaptureError(f"{path.name}:{function} takes no {unknown[0]!r}; {takes}")
    try:
        with redirect_stdout(sys.stderr):
            work = make(**given)
    except SoapstoneError:
        raise
    except (Exception, SystemExit) as error:
        raise _blamed(error, path) from error
    if not isinstance(work, Workload):
        raise CaptureError(f"{path.name}:{function} must return a soapstone.Workload, not {type(work).__name__}")
    return work


def _arguments(make: Callable[..., Any]) -> list[str] | None:
    """The names that it may be given; None where it takes any."""
    parameters = inspect.signature(make).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _names(found: list[str]) -> str:
    return ", ".join(name for name in found if not name.startswith("_")) or "none of its own"


def _blamed(error: BaseException, path: Path) -> SoapstoneError:
    """The error of a user's file in a sentence, with the last of its lines that led to it."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    where = f"{path.name}:{lines[-1]}" if lines else path.name
    reason = str(error).strip().split("\n")[0]
    return CaptureError(f"{where} raises {type(error).__name__}{': ' + reason if reason else ''}")


def _sources(before: set[str], own: Path) -> list[Path]:
    """A user's file and those of all modules that it loaded, but for those whose versions the cache knows anyway."""
    loaded = [module for name, module in sys.modules.items() if name not in before]
    files = {file for module in loaded if isinstance(file := getattr(module, "__file__", None), str)}
    torch = str(Path(sys.modules["torch"].__file__ or "").parent)
    known = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    installed = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))

    def is_known(file: str) -> bool:
        return file.startswith((torch, str(Path(__file__).parent))) or (
            file.startswith(known) and not file.startswith(installed)
        )

    return sorted({own, *(Path(f) for f in files if f.endswith(".py") and Path(f).is_absolute() and not is_known(f))})

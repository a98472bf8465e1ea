"""The road is one-way: a module imports only modules that stand above it, and torch loads only where it must.

A folder counts as one module towards the others; the files inside it must not import one another in a cycle. Every
import counts for the order, also those inside functions and under TYPE_CHECKING; for torch only those count that run
when the file is imported. A file is named by its path inside the package (`rules/dense.py`).
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

ORDER = [
    "errors",
    "files",
    "surroundings",
    "processes",
    "_core",
    "graph",
    "rules",
    "parts",
    "tracing",
    "zoo",
    "cache",
    "loading",
    "topology",
    "strategy",
    "baselines",
    "space",
    "costs",
    "simulator",
    "exporting",
    "searching",
    "runtime",
    "report",
    "tuning",
    "cli",
    "__main__",
    "__init__",
]
TORCH_PLACES = ["tracing", "parts", "runtime", "tuning", "zoo", "costs/measured", "searching/reinforce"]

PACKAGE = "soapstone"
FOLDER = Path(__file__).parents[1] / "src" / PACKAGE


@dataclass(frozen=True, slots=True)
class Import:
    """One imported thing: `from module import name`, or `import module` where name is empty."""

    module: str
    name: str
    line: int
    at_load: bool


def read_imports(path: str, source: str) -> Iterator[Import]:
    """Yield every import of a file, the relative ones made absolute."""
    folder = [PACKAGE, *PurePosixPath(path).parent.parts]

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, at_load)
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, at_load)
        elif isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
            for statement in node.body:
                yield from visit(statement, False)
            for statement in node.orelse:
                yield from visit(statement, at_load)
        else:
            inside = at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside)

    yield from visit(ast.parse(source), True)


def find_file(imported: Import, sources: Mapping[str, str]) -> str | None:
    """Return the file that an import of our own package reads, None for a module that has no file."""
    for dotted in (f"{imported.module}.{imported.name}", imported.module):
        place = "/".join(dotted.split(".")[1:])
        for candidate in (f"{place}.py", f"{place}.pyi", f"{place}/__init__.py".lstrip("/")):
            if candidate in sources:
                return candidate
    return None


def module_of(path: str) -> str:
    """Return the name that a file goes by in ORDER: its folder's, or its own."""
    return PurePosixPath(path).parts[0].partition(".")[0]


def may_load_torch(path: str) -> bool:
    place = path.partition(".")[0]
    return any(place == allowed or place.startswith(f"{allowed}/") for allowed in TORCH_PLACES)


def find_violations(sources: Mapping[str, str]) -> list[str]:
    """Return a sentence for each import that breaks the rules above."""
    found = [f"{path}: is not in ORDER" for path in sources if module_of(path) not in ORDER]
    if found:
        return found
    edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path, source in sources.items():
        module = module_of(path)
        for imported in read_imports(path, source):
            here = f"{path}:{imported.line}"
            root = imported.module.partition(".")[0]
            if root == "torch" and imported.at_load and not may_load_torch(path):
                found.append(f"{here}: loads torch")
            if root != PACKAGE:
                continue
            target = find_file(imported, sources)
            if target is None:
                found.append(f"{here}: imports {imported.module}, which has no file")
            elif target == "__init__.py":
                found.append(f"{here}: imports the package root")
            elif module_of(target) == module:
                edges[module][path].add(target)
            elif ORDER.index(module_of(target)) > ORDER.index(module):
                found.append(f"{here}: imports {target}, which stands below it")
    for graph in edges.values():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            found.append("import cycle: " + " -> ".join(reversed(error.args[1])))
    return found


ROOMS = ["support", "geometry", "machine", "tasks", "bounds", "engines", "search", "bindings"]
CORE = Path(__file__).parents[1] / "cpp"


def find_core_violations(sources: Mapping[str, str]) -> list[str]:
    """Return a sentence for each include of the core that goes up, to no file, or round in a circle."""
    found = [f"{path}: is in no room" for path in sources if path.partition("/")[0] not in ROOMS]
    edges: dict[str, set[str]] = defaultdict(set)
    for path, source in [] if found else sources.items():
        for line, text in enumerate(source.splitlines(), 1):
            if not text.startswith('#include "'):
                continue
            target = text.split('"')[1]
            if target not in sources:
                found.append(f"{path}:{line}: includes {target}, which has no file")
            elif ROOMS.index(target.partition("/")[0]) > ROOMS.index(path.partition("/")[0]):
                found.append(f"{path}:{line}: includes {target}, whose room comes later")
            edges[path].add(target)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append("include cycle: " + " -> ".join(reversed(error.args[1])))
    return found


def test_the_core_keeps_the_order_of_its_rooms() -> None:
    sources = {path.relative_to(CORE).as_posix(): path.read_text(encoding="utf-8") for path in CORE.rglob("*.?pp")}
    assert {path.partition("/")[0] for path in sources} == set(ROOMS)
    assert find_core_violations(sources) == []


@pytest.mark.parametrize(
    ("sources", "sentence"),
    [
        ({"geometry/a.hpp": '\n#include "tasks/b.hpp"', "tasks/b.hpp": ""}, "geometry/a.hpp:2: includes tasks/b.hpp"),
        ({"tasks/a.hpp": '#include "b.hpp"'}, "which has no file"),
        ({"cellar/a.hpp": ""}, "cellar/a.hpp: is in no room"),
        ({"tasks/a.hpp": '#include "tasks/b.hpp"', "tasks/b.hpp": '#include "tasks/a.hpp"'}, "include cycle: "),
    ],
)
def test_the_check_finds_includes_that_are_wrong(sources: dict[str, str], sentence: str) -> None:
    (violation,) = find_core_violations(sources)
    assert sentence in violation


def test_the_package_keeps_the_order() -> None:
    files = [path for pattern in ("*.py", "*.pyi") for path in sorted(FOLDER.rglob(pattern))]
    assert files
    sources = {path.relative_to(FOLDER).as_posix(): path.read_text(encoding="utf-8") for path in files}
    assert find_violations(sources) == []


BASE = {"__init__.py": "", "_core.pyi": "", "errors.py": "", "graph.py": "", "rules/__init__.py": ""}

BROKEN = {
    "backward": ({"errors.py": "from soapstone.graph import Op"}, "errors.py:1: imports graph.py, which stands below"),
    "backward, relative": ({"errors.py": "\nfrom .graph import Op"}, "errors.py:2: imports graph.py"),
    "backward, two dots": (
        {"rules/dense.py": "from ..topology import Link", "topology.py": ""},
        "rules/dense.py:1: imports topology.py",
    ),
    "backward, from the root": ({"errors.py": "from soapstone import graph"}, "errors.py:1: imports graph.py"),
    "backward, in a function": ({"errors.py": "def f():\n    import soapstone.graph"}, "errors.py:2: imports graph.py"),
    "backward, for types only": (
        {"errors.py": "if TYPE_CHECKING:\n    from .graph import Op"},
        "errors.py:2: imports graph.py",
    ),
    "backward, into a folder": ({"graph.py": "from soapstone import rules"}, "graph.py:1: imports rules/__init__.py"),
    "two modules in a cycle": (
        {"errors.py": "from . import graph", "graph.py": "from . import errors"},
        "errors.py:1: imports graph.py",
    ),
    "a cycle in a folder": (
        {
            "rules/a.py": "from .b import x",
            "rules/b.py": "from soapstone.rules.c import x",
            "rules/c.py": "import soapstone.rules.a",
        },
        "import cycle: ",
    ),
    "a cycle through the folder's __init__": (
        {"rules/__init__.py": "from .a import x", "rules/a.py": "from . import y"},
        "import cycle: ",
    ),
    "a file that imports itself": ({"rules/a.py": "from . import a"}, "import cycle: rules/a.py -> rules/a.py"),
    "the root": ({"graph.py": "import soapstone"}, "graph.py:1: imports the package root"),
    "a name of the root": ({"graph.py": "from soapstone import capture"}, "graph.py:1: imports the package root"),
    "the root from a folder": ({"rules/a.py": "from .. import capture"}, "rules/a.py:1: imports the package root"),
    "no such module": ({"cli.py": "import soapstone.absent.thing"}, "has no file"),
    "not in the order": ({"utils.py": ""}, "utils.py: is not in ORDER"),
    "torch": ({"graph.py": "import torch.nn as nn"}, "graph.py:1: loads torch"),
    "torch in a try": ({"graph.py": "try:\n    from torch import nn\nfinally:\n    pass"}, "graph.py:2: loads torch"),
    "torch in a class": ({"graph.py": "class A:\n    import torch"}, "graph.py:2: loads torch"),
    "torch in an else": (
        {"graph.py": "if TYPE_CHECKING:\n    pass\nelse:\n    import torch"},
        "graph.py:4: loads torch",
    ),
    "torch in other costs": ({"costs/analytic.py": "import torch"}, "costs/analytic.py:1: loads torch"),
}

SOUND = {
    "forward": {"graph.py": "from soapstone.errors import SoapstoneError\nfrom . import _core\nimport soapstone._core"},
    "a folder's files": {"rules/a.py": "from . import b\nfrom .b import x", "rules/b.py": "from ..graph import Op"},
    "a folder's face": {"rules/__init__.py": "from .a import x", "rules/a.py": ""},
    "the root's own": {"__init__.py": "from . import rules\nfrom soapstone.graph import Op"},
    "torch where it must be": {
        "parts.py": "import torch",
        "zoo/gpt.py": "import torch",
        "costs/measured.py": "import torch",
    },
    "torch when called": {"topology.py": "def detect():\n    import torch"},
    "torch for types only": {"graph.py": "import typing\nif typing.TYPE_CHECKING:\n    import torch"},
    "others": {"graph.py": "import torchless, soapstones\nfrom numpy import array"},
}


@pytest.mark.parametrize(("sources", "sentence"), BROKEN.values(), ids=BROKEN.keys())
def test_the_check_finds_what_is_broken(sources: dict[str, str], sentence: str) -> None:
    (violation,) = find_violations(BASE | sources)
    assert sentence in violation


@pytest.mark.parametrize("sources", SOUND.values(), ids=SOUND.keys())
def test_the_check_lets_pass_what_is_sound(sources: dict[str, str]) -> None:
    assert find_violations(BASE | sources) == []

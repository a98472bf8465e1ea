"""`soapstone explain`, `diff`, `report` and `plot`, as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import soapstone as ss
from soapstone.cli.explaining import drawn

from ..support.chains import graph_of
from .conftest import Soapstone

SIZES = ("--size", "length=4", "--size", "hidden=256", "--size", "vocab=2000")
RNNLM = ("rnnlm", "-t", "p100:1x4", *SIZES)


@pytest.fixture
def found(soapstone: Soapstone) -> str:
    assert soapstone("search", *RNNLM, "--proposals", "300", "-o", "found.json").status == 0
    return "found.json"


def test_a_strategy_file_explains_itself(found: str, soapstone: Soapstone) -> None:
    said = soapstone("explain", found).out
    assert "stack.cells.0" in said
    assert "under data parallelism it takes" in said
    assert "no sooner" not in said
    assert re.fullmatch(r"All together: .* sooner\.", said.splitlines()[-1])


def test_a_long_drawing_shows_both_ends() -> None:
    graph, topology = graph_of("inception-v3"), ss.Topology.parse("p100:1x4")
    names = [row[0] for row in drawn(ss.simulate(graph, topology, ss.baselines.random(graph, topology, seed=1))).rows]
    assert (names[0], names[-1]) == (graph.ops[0].name, graph.ops[-1].name)
    assert len(names) == 40
    assert re.fullmatch(r"\.\.\. and \d+ more", str(names[30]))


def test_explanations_for_machines(found: str, soapstone: Soapstone) -> None:
    read = json.loads(soapstone("explain", found, "--json").out)
    assert read["makespan"] < read["other_makespan"]
    assert all(choice["ops"] and "seconds" in choice for choice in read["choices"])
    assert json.loads(soapstone("diff", found, "expert", "--json").out)["makespan"] == read["makespan"]


def test_a_difference_has_a_row(found: str, soapstone: Soapstone) -> None:
    assert "gradient sums" in soapstone("diff", found, "data").out
    assert "are the same strategy" in soapstone("diff", found, found).out


def test_a_baseline_needs_a_model(soapstone: Soapstone) -> None:
    assert "add --model MODEL and -t TOPOLOGY" in soapstone("explain", "expert").complaint
    assert soapstone("explain", "expert", "--model", "lenet", "-t", "p100:1x2").status == 0


def test_a_strategy_for_another_model_is_remarked(found: str, soapstone: Soapstone) -> None:
    for words in (("explain", found), ("diff", found, "data"), ("report", found)):
        assert "it was made for graph" in soapstone(*words, "--batch", "8").err


def test_options_say_otherwise(found: str, soapstone: Soapstone) -> None:
    other = json.loads(soapstone("explain", found, "--optimizer", "sgd", "--json").out)
    assert other["makespan"] < json.loads(soapstone("explain", found, "--json").out)["makespan"]


@pytest.mark.parametrize(
    "arguments", [3, {"model": None, "topology": {}}, {"colour": "blue", "model": "x", "topology": "y"}]
)
def test_arguments_that_nobody_wrote_get_a_sentence(found: str, arguments: object, soapstone: Soapstone) -> None:
    data = json.loads(Path(found).read_text())
    data["made_for"]["arguments"] = arguments
    Path(found).write_text(json.dumps(data))
    done = soapstone("explain", found)
    assert (done.status, len(done.err.splitlines())) == (2, 1)


def payload(path: str) -> dict[str, Any]:
    text = Path(path).read_text()
    start = text.index('<script type="application/json"')
    begin = text.index(">", start) + 1
    read: dict[str, Any] = json.loads(text[begin : text.index("</script>", begin)])
    return read


def test_every_command_writes_the_report_of_what_it_found(found: str, soapstone: Soapstone) -> None:
    assert soapstone("report", found, "-o", "r.html").status == 0
    assert payload("r.html")["title"] == "rnnlm on p100:1x4"
    assert soapstone("simulate", *RNNLM, "-s", "expert", "--report", "s.html").status == 0
    assert payload("s.html")["words"] is not None
    assert soapstone("search", *RNNLM, "--proposals", "50", "--no-save", "--report", "f.html").status == 0
    assert payload("f.html")["search"]["curve"][-1][0] == 50  # all that it tried, not only up to the best
    assert soapstone("compare", *RNNLM, "--methods", "data,expert,model", "--report", "c.html").status == 0
    assert sum(row["chosen"] for row in payload("c.html")["approaches"]) == 1


def test_a_report_that_cannot_be_written_is_known_beforehand(soapstone: Soapstone) -> None:
    for command in ("simulate", "search", "compare"):
        assert "cannot write" in soapstone(command, *RNNLM, "--report", "no/such/folder/r.html").complaint


def test_plots_from_what_commands_print(soapstone: Soapstone) -> None:
    case = ("lenet", "-t", "p100:1x2", "--batch", "8")
    Path("found.json").write_text(soapstone("search", *case, "--proposals", "50", "--no-save", "--json").out)
    Path("trained.json").write_text(json.dumps({"step": 0.002, "predicted": 0.001}))
    for kind, name, other in (("search", "found", "trained"), ("predictions", "trained", "found")):
        assert soapstone("plot", kind, f"{name}.json", "-o", f"{kind}.svg").status == 0
        assert f"<!-- {name} -->" in Path(f"{kind}.svg").read_text()
        assert "it must hold what" in soapstone("plot", kind, f"{other}.json", "-o", f"{kind}.svg").complaint
    assert soapstone("plot", "scaling", *case, "--methods", "data,expert", "-o", "scaling.svg").status == 0
    assert "<!-- expert -->" in Path("scaling.svg").read_text()
    assert "such as p100:4x4" in soapstone("plot", "scaling", "lenet", "-t", "here", "-o", "x.svg").complaint

"""A name that is nearly right gets the one that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

import soapstone as ss
from soapstone.errors import meant
from tests.cli.conftest import Soapstone
from tests.support.models import captured

LENET = ("simulate", "lenet", "-t", "p100:1x2")
MISSPELT = {
    "a command": (("shwo",), "did you mean show?"),
    "an option": ((*LENET, "--bach", "3"), "did you mean --batch?"),
    "a model": (("show", "LeNett"), "did you mean lenet?"),
    "a size": (("show", "lenet", "--size", "clases=3"), "did you mean classes?"),
    "a dtype": ((*LENET, "--precision", "flaot32"), "did you mean float32?"),
    "a preset": (("simulate", "lenet", "-t", "p10:1x2"), "did you mean p100?"),
    "a strategy": ((*LENET, "-s", "epxert"), "did you mean expert?"),
    "costs": ((*LENET, "--costs", "mesured"), "did you mean measured?"),
    "an optimizer": ((*LENET, "--optimizer", "adamm"), "did you mean adam?"),
    "a method": (("search", *LENET[1:], "--method", "optcn"), "did you mean optcnn?"),
    "an approach": (("compare", *LENET[1:], "--methods", "data,papr"), "no approach 'papr'; did you mean paper?"),
}


def test_a_misspelt_file_is_guessed(soapstone: Soapstone, tmp_path: Path) -> None:
    for name in ("model.py", "here.yaml", "fast.json", "odd.json"):
        (tmp_path / name).write_text("{}")
    assert "did you mean model.py?" in soapstone("show", "modle.py:make").complaint
    assert "did you mean here.yaml?" in soapstone("simulate", "lenet", "-t", "heer.yaml").complaint
    assert "did you mean fast.json?" in soapstone(*LENET, "-s", "fats.json").complaint
    assert soapstone("report", "odd.json").complaint.endswith("is not a strategy file; `soapstone search` writes one")


@pytest.mark.parametrize("words", [words for words, _ in MISSPELT.values()], ids=MISSPELT)
def test_a_misspelt_name_is_guessed(words: tuple[str, ...], soapstone: Soapstone) -> None:
    (sentence,) = [sentence for known, sentence in MISSPELT.values() if known == words]
    assert sentence in soapstone(*words).complaint


def test_a_misspelt_op_is_guessed() -> None:
    strategy = ss.baselines.data_parallel(captured("cnn"), ss.Topology.parse("cpu:1x2"))
    with pytest.raises(ss.SoapstoneError, match=r"no op 'stemm'; did you mean stem\?"):
        strategy["stemm"]
    with pytest.raises(ss.SoapstoneError, match=r"no op 'stemm'; did you mean stem\?"):
        strategy.replace({"stemm": strategy["stem"]})
    with pytest.raises(ss.SoapstoneError, match=r"no op 'stemm'; did you mean stem\?"):
        strategy.graph.op("stemm")


def test_what_is_near_nothing_gets_what_there_is() -> None:
    assert meant("qqq", ("data", "model"), "use data or model") == "use data or model"
    assert meant(3, ("data",), "use data") == "use data"

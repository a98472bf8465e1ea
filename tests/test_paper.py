"""The paper's evaluation: there is a page before anything was run, and the documentation's says what the data says."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.claims import CLAIMS, global_optimum
from benchmarks.paper.jobs import Results
from benchmarks.paper.page import page_of
from benchmarks.paper.scale import QUICK, WHOLE

ROOT = Path(__file__).parents[1]


def test_there_is_a_page_before_anything_was_run(tmp_path: Path) -> None:
    for scale in (QUICK, WHOLE):
        text = page_of(CLAIMS, scale, Results(tmp_path / "none"), tmp_path, tmp_path)
        assert ".png" not in text
        assert all(f"## {claim.number} {claim.name.replace('_', ' ')}" in text for claim in CLAIMS)
        assert "not run" in text


def test_the_claims_are_the_papers_in_order() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 17))
    assert all(claim.jobs(WHOLE) for claim in CLAIMS if claim.name != "accuracy")  # which reads what reality wrote


def test_the_documentation_has_the_page_of_the_data() -> None:
    page = ROOT / "docs/results/paper.md"
    scale = QUICK if "This is the quick version" in page.read_text() else WHOLE
    results = Results(ROOT / "benchmarks/data/paper")
    assert page.read_text() == page_of(CLAIMS, scale, results, page.parent, ROOT / "docs/images/paper")


def test_a_proof_is_told(tmp_path: Path) -> None:
    results = Results(tmp_path)
    row = {"proved": True, "makespan": 1e-3, "seconds": 36.2, "log10_size": 12.0, "found": 3}
    results.keep(global_optimum.job("LeNet"), row)
    assert global_optimum.ours(QUICK, results).there == "LeNet proved in 36 s, found by 3 of 3 seeds"

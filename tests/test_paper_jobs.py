"""The jobs of the paper's evaluation: what was run is not run again."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from benchmarks.paper.jobs import Found, Job, Results, run_all


def noted(folder: str, number: int) -> Found:
    """Fails where it is called twice for the same number."""
    Path(folder, str(number)).touch(exist_ok=False)
    return {"square": number * number}


def test_a_job_is_run_once(tmp_path: Path) -> None:
    jobs = [Job(noted, {"folder": str(tmp_path), "number": n}, alone=n > 2) for n in range(4)]
    quiet = Console(quiet=True)
    run_all(jobs[:2], Results(tmp_path), quiet)
    run_all(jobs, Results(tmp_path), quiet)
    results = Results(tmp_path)
    assert [found["square"] for job in jobs if (found := results.get(job))] == [0, 1, 4, 9]

"""The wheel holds all that the package needs, and runs in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[1]
DATA = (".py", ".yaml", ".js", ".css", ".html", ".typed", ".pyi", ".md", ".txt")


def asked(command: list[str | Path], **options: object) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in the folder that `make setup` has built in, so that nothing is compiled twice."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    asked([sys.executable, "-m", "pip", "wheel", *quiet, "--wheel-dir", folder, ROOT])
    return next(folder.glob("*.whl"))


def test_a_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and path.suffix in DATA and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert wanted <= packed
    assert "soapstone/py.typed" in packed
    assert any(name.startswith("soapstone/_core.") and name.endswith(".so") for name in packed)


def test_a_wheel_runs_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """It borrows the packages that soapstone needs, which would have to be downloaded, and no soapstone."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    borrowed = Path(sysconfig.get_paths()["purelib"])
    own = Path(asked([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).strip())
    for entry in borrowed.iterdir():
        if "soapstone" not in entry.name:
            (own / entry.name).symlink_to(entry)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    asked([*pip, "install", "--no-deps", "--no-index", wheel])
    where = asked([python, "-c", "import soapstone; print(soapstone.__file__)"], cwd=tmp_path).strip()
    assert Path(where).is_relative_to(own)
    soapstone = tmp_path / "env" / "bin" / "soapstone"
    asked([soapstone, "simulate", "lenet", "-t", "p100:1x2", "--batch", "8", "--json"], cwd=tmp_path)

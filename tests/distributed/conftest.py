"""What these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What one test captured, the next finds, in whatever processes they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOAPSTONE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield

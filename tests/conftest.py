"""Fixtures and settings of the whole suite: golden files, markers, hypothesis profiles."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# A graph that an earlier run left in Inductor's caches would not pass through the backend, which the tests look at.
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "--update-golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(UPDATE, action="store_true", help="write golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    try:
        import hypothesis
    except ImportError:
        return
    common = {"deadline": None, "print_blob": True}
    quiet = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
    hypothesis.settings.register_profile(
        "ci", max_examples=60, derandomize=True, suppress_health_check=quiet, **common
    )
    hypothesis.settings.register_profile(
        "dev", max_examples=25, suppress_health_check=quiet, **common
    )
    hypothesis.settings.register_profile(
        "soak", max_examples=5000, suppress_health_check=quiet, **common
    )
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no CUDA device; torch is imported only if there are any."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or _has_cuda():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers each time; FLASHLIGHT_TEST_SEED draws others, to look for luck."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int(os.environ.get("FLASHLIGHT_TEST_SEED", "0")))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("codegen/causal.triton.py", text)` compares `text` with tests/golden/codegen/causal.triton.py.

    A missing file is a failure that prints the text. `pytest --update-golden` writes the files; CI never does.
    """
    update = request.config.getoption(UPDATE)

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if not text.endswith("\n"):
            text += "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(
                f"There is no golden file 'tests/golden/{name}'; run pytest {UPDATE}.\n{text}"
            )
        assert text == path.read_text(encoding="utf-8"), f"differs from tests/golden/{name}"

    return check

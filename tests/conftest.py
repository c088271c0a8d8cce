"""What the tests share: the folders, real data when it lies beside the repository, and a steady hypothesis."""
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("FAIRMEDFM_SHARED_DATA") or ROOT.parent/"shared"/"data")

try: from hypothesis import settings
except ImportError: pass  # the light environment
else:
    # the same inputs in every run, so that a change that passed here passes there; FAIRMEDFM_RANDOM=1 looks for new ones
    settings.register_profile("fairmedfm", deadline=None, print_blob=True, derandomize=not os.environ.get("FAIRMEDFM_RANDOM"))
    settings.load_profile("fairmedfm")


def pytest_addoption(parser):
    parser.addoption("--nb-flags", default="", help='flags whose notebook cells run although they are skipped by default, such as "slow"')


@pytest.fixture(scope="session")
def root():
    "The repository."
    return ROOT


@pytest.fixture(scope="session")
def shared():
    "The folder of real data; tests that need it are skipped where it is absent."
    if not SHARED.is_dir(): pytest.skip("no shared data beside the repository (set FAIRMEDFM_SHARED_DATA)")
    return SHARED

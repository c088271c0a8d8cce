"""What must run with NumPy, pandas and scikit-learn alone: the README as it stands, and the command it shows.

The README's Python blocks run in order in one namespace, its `fairmedfm` commands in a shell-free subprocess, all in an empty folder.
`make light` runs this file against the built wheel in an environment that has nothing else."""
import importlib.metadata
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import fairmedfm as fm

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```(python|bash)\n(.*?)^```$", (ROOT/"README.md").read_text(encoding="utf-8"), re.M | re.S)
in_wheel = pytest.mark.skipif(not os.environ.get("FAIRMEDFM_LIGHT"), reason="only in the light environment")


def run(line, folder):
    "`fairmedfm ...` with this Python, in `folder`."
    command = [sys.executable, "-m", "fairmedfm", *shlex.split(line)[1:]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PYTHONUTF8": "1"}, stdin=subprocess.DEVNULL)


def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space, commands = {"__name__": "readme"}, 0
    for language, text in BLOCKS:
        if language == "python": exec(compile(text, "README.md", "exec"), space)
        for line in text.splitlines() if language == "bash" else ():
            if not line.startswith("fairmedfm "): continue
            commands += 1
            done = run(line, tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            assert done.stdout.strip(), line
    assert commands and sum(language == "python" for language, _ in BLOCKS) >= 3


def test_one_number_by_hand():
    "F: every positive above every negative, AUC 1. M: one of two pairs, AUC 0.5."
    assert fm.auc_gap([0, 1, 0, 1, 1], [0.1, 0.9, 0.5, 0.2, 0.8], sensitive_features=["F", "F", "M", "M", "M"]) == pytest.approx(0.5)


def test_masks_by_hand():
    "Dice 0.8 and 0.9 in one group, 0.6 in the other: means 0.85 and 0.6."
    assert fm.dice_gap([0.8, 0.9, 0.6], sensitive_features=["F", "F", "M"]) == pytest.approx(0.25)


def test_the_command_scores_a_table(tmp_path):
    (tmp_path/"predictions.csv").write_text("y_true,y_score,group\n0,0.1,a\n1,0.9,a\n0,0.2,b\n1,0.7,b\n", encoding="utf-8")
    done = run("fairmedfm score predictions.csv --sensitive group", tmp_path)
    assert done.returncode == 0 and "group" in done.stdout, done.stderr


def test_the_users_mistake_is_one_line_and_code_2(tmp_path):
    done = run("fairmedfm score nothing.csv --sensitive group", tmp_path)
    assert done.returncode == 2 and "nothing.csv" in done.stderr and "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1


@in_wheel
def test_the_environment_is_the_light_one():
    "The package comes from the wheel, not from the source tree, and nothing optional is there to help it."
    assert Path(fm.__file__).resolve().parent != ROOT/"fairmedfm"
    assert fm.__version__ == importlib.metadata.version("fairmedfm")
    assert [m for m in ("torch", "matplotlib", "pyarrow", "nbdev", "nibabel", "PIL", "openpyxl") if importlib.util.find_spec(m)] == []

"""Every cell of every notebook runs: one test per notebook, each in a process of its own."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytest.importorskip("nbdev")

notebooks = [p for p in sorted((ROOT/"nbs").rglob("*.ipynb")) if not any(part[0] in "._" for part in p.relative_to(ROOT).parts)]


@pytest.mark.parametrize("notebook", notebooks, ids=lambda p: p.relative_to(ROOT/"nbs").as_posix())
def test_notebook(notebook, request):
    threads = {"OMP_NUM_THREADS": "1"} if "PYTEST_XDIST_WORKER" in os.environ else {}
    env = os.environ | threads | {"MPLBACKEND": "agg", "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    command = [sys.executable, ROOT/"tools/run_notebook.py", notebook, "--flags", request.config.getoption("--nb-flags")]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode: pytest.fail(done.stdout[-6000:], pytrace=False)


def test_there_are_notebooks(): assert notebooks


def test_a_failing_cell_fails(tmp_path):
    "The runner is only worth something if a wrong cell makes it fail, a cell marked slow runs when asked for, and files left behind are seen."
    import json
    cell = lambda source: {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [], "source": source}
    (tmp_path/"pyproject.toml").write_text((ROOT/"pyproject.toml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path/"nbs").mkdir()
    for name, source in {"good": "assert 1 == 1", "bad": "assert 1 == 2", "slow": "#| slow\nassert 1 == 2", "untidy": "open('left.csv', 'w').close()"}.items():
        book = {"cells": [cell(source)], "metadata": {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path/"nbs"/f"{name}.ipynb").write_text(json.dumps(book), encoding="utf-8")
    def code(name, *flags): return subprocess.run([sys.executable, ROOT/"tools/run_notebook.py", tmp_path/"nbs"/f"{name}.ipynb", *flags], capture_output=True).returncode
    assert [code("good"), code("bad"), code("slow"), code("slow", "--flags", "slow"), code("untidy")] == [0, 1, 0, 1, 1]

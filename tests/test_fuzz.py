"""A bounded slice of `benchmarks/fuzz.py`, and proof that it finds what it looks for."""
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

for optional in ("pyarrow", "polars", "openpyxl", "nibabel", "SimpleITK", "tifffile", "PIL"): pytest.importorskip(optional)

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("fuzz", ROOT/"benchmarks"/"fuzz.py")
fuzz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fuzz)


@pytest.fixture(autouse=True)
def traceback(monkeypatch): monkeypatch.setenv("FAIRMEDFM_TRACEBACK", "1")


def said(failures): return "\n".join(f"{n} × {name} in {where}: {text}   (python benchmarks/fuzz.py --seed 7 --case {kind} {i})"
                                     for (kind, name, where, _), (i, n, text) in failures.items())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind,n", [("bytes", 350), ("cells", 120), ("reading", 120), ("arrays", 500), ("plain", 150), ("masks", 300),
                                    ("files", 120)])
def test_a_slice(kind, n):
    outcomes, failures = fuzz.run(n, seed=7, only=[kind], seconds=20)
    assert not failures, said(failures)
    assert set(outcomes[kind]) & {"scored", "read"}, "some inputs get through, so numbers are looked at"
    assert sum(outcomes[kind].values()) > 50


def test_an_input_depends_on_its_number_alone(tmp_path):
    for kind in ("bytes", "arrays", "masks"): assert len({fuzz.one(kind, 3, 7, tmp_path) for _ in range(2)}) == 1


# ---------------------------------------------------------------- it can fail

def broken(monkeypatch, name, f):
    monkeypatch.setattr(fuzz, name, f)
    return fuzz.run(60, seed=7, only=["plain"])[1]


def test_a_finite_number_that_nothing_defines_is_found(monkeypatch):
    "AUC 0.5 for groups with one label: what several tools say."
    right = fuzz.evaluate
    def wrong(*args, **kw):
        r = right(*args, **kw)
        r.by_group["auc"] = r.by_group["auc"].fillna(.5)
        return r
    assert any("one label" in text for *_, text in broken(monkeypatch, "evaluate", wrong).values())


def test_a_gap_of_one_group_is_found(monkeypatch):
    right = fuzz.evaluate
    def wrong(*args, **kw):
        r = right(*args, **kw)
        r.summary = r.summary.fillna(0.0)
        return r
    assert any("gap" in text for *_, text in broken(monkeypatch, "evaluate", wrong).values())


def test_a_wrong_number_is_found(monkeypatch):
    "Scores paired by position although their labels say otherwise."
    right = fuzz.evaluate
    def wrong(y, s, g, **kw): return right(y, s.to_numpy() if isinstance(s, pd.Series) else s,
                                           {k: v.to_numpy() if isinstance(v, pd.Series) else v for k, v in g.items()}, **kw)
    assert any("the AUC of" in text for *_, text in broken(monkeypatch, "evaluate", wrong).values())


@pytest.mark.parametrize("error", [KeyError("sex"), TypeError("two\nlines"), RecursionError()])
def test_any_other_exception_is_found(monkeypatch, error):
    def wrong(*args, **kw): raise error
    assert any(name == type(error).__name__ for _, name, *_ in broken(monkeypatch, "evaluate", wrong))


def test_an_error_of_two_lines_and_a_foreign_warning_are_found(monkeypatch):
    def lines(*args, **kw): raise fuzz.InputError("one\ntwo")
    assert any("an error of" in text for *_, text in broken(monkeypatch, "evaluate", lines).values())
    right = fuzz.evaluate
    def noisy(*args, **kw): np.float64(1e308) * 10; return right(*args, **kw)
    assert any(name == "RuntimeWarning" for _, name, *_ in broken(monkeypatch, "evaluate", noisy))


@pytest.mark.parametrize("wrong", [lambda args: 1, lambda args: print("fairmedfm: error: a\nfairmedfm: error: b", file=sys.stderr) or 2,
                                   lambda args: print("Traceback (most recent call last):", file=sys.stderr) or 2,
                                   lambda args: print('{"auc": NaN}') or 0, lambda args: print("half a report") or 2, lambda args: 3],
                         ids=["exit 1", "two lines", "traceback", "NaN in JSON", "output with an error", "3 without a reason"])
def test_a_command_line_that_misbehaves_is_found(monkeypatch, wrong):
    monkeypatch.setattr(fuzz, "command_line", wrong)
    outcomes, failures = fuzz.run(40, seed=7, only=["bytes"])
    assert failures and outcomes["bytes"]["WRONG"] == 40


def test_a_file_left_behind_is_found(monkeypatch):
    def wrong(rng, folder): (folder/"left.tmp").touch(); return "read"
    monkeypatch.setitem(fuzz.KINDS, "reading", (wrong, 1))
    assert any("left behind" in where for _, _, where, _ in fuzz.run(3, only=["reading"])[1])


def test_the_script_runs_by_itself():
    done = subprocess.run([sys.executable, ROOT/"benchmarks"/"fuzz.py", "--n", "30", "--only", "plain", "cells"], capture_output=True,
                          text=True, encoding="utf-8", env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 0 and "kinds of failure" in done.stdout and "inputs in" in done.stdout, done.stdout + done.stderr


def test_the_sound_report_is_sound():
    "Counter-check: what the checks look at is there."
    y, s, g = [0, 1, 0, 1, 1], [.1, .9, .8, .7, .6], list("FFMMX")
    with pytest.warns(fuzz.FairnessWarning): data = fuzz.sound(fuzz.evaluate(y, s, g))
    assert data["by_group"]["sensitive"]["X"]["auc"] is None and data["summary"]["sensitive"]["n_groups"] == 2
    data["by_group"]["sensitive"]["X"]["auc"] = 1.0
    with pytest.raises(fuzz.Wrong): fuzz.sound_cls(data)


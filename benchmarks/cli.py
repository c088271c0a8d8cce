"""How long the command takes as a whole process, as a ratio to reading the same file with pandas and doing nothing else (medians of one run).

    python benchmarks/cli.py [--repeats 15] [--small]

Floor: `fairmedfm score` on 1,000,000 rows with sex and binned age at most 2 times `python -c "import pandas; pandas.read_csv(...)"`.
Both are started in turn; processor time and wall time are those of the whole child, its start and its imports included.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd


def table(path, n, ids=False, digits=None):
    "A CSV of `n` made-up predictions."
    rng = np.random.default_rng(0)
    y = (rng.random(n) < 0.3).astype(int)
    score = 1 / (1 + np.exp(-rng.normal(1.5*y - 1)))
    columns = {"image_id": [f"img_{i:07d}.png" for i in range(n)]} if ids else {}
    columns |= {"sex": rng.choice(["F", "M"], n), "age": rng.integers(20, 90, n), "y_true": y, "y_score": score if digits is None else score.round(digits)}
    pd.DataFrame(columns).to_csv(path, index=False)

def cost(command):
    "Processor and wall seconds of a child process."
    start = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode: raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start

def ratios(work, base, repeats):
    "Median cost of `work` over that of `base`, the two taken in turn: processor time, wall time."
    spent = [], []
    for _ in range(repeats):
        for command, into in zip((work, base), spent): into.append(cost(command))
    a, b = (list(map(statistics.median, zip(*s))) for s in spent)
    return a[0]/b[0], a[1]/b[1]

def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--repeats", type=int, default=15)
    cli.add_argument("--small", action="store_true", help="a fiftieth of the rows: does it run?")
    args = cli.parse_args()
    n = 1_000_000 // (50 if args.small else 1)
    with tempfile.TemporaryDirectory() as folder:
        for name, how, floor in (("scores as computed", {}, 2), ("scores of 6 digits", {"digits": 6}, 2), ("with image ids", {"ids": True}, None), ("400 rows", {}, None)):
            path = str(Path(folder)/"predictions.csv")
            table(path, 400 if name == "400 rows" else n, **how)
            base = [sys.executable, "-c", f"import pandas; pandas.read_csv({path!r})"]
            work = [sys.executable, "-m", "fairmedfm", "score", path, "--sensitive", "sex", "age", "--bins", "age=40,60"]
            cpu, wall = ratios(work, base, args.repeats)
            print(f"{name:20} processor {cpu:.2f}, wall {wall:.2f} times a bare pandas.read_csv" + (f"  (at most {floor})" if floor else ""), flush=True)

if __name__ == "__main__": main()

"""How long `read_table` takes as a whole process, as a ratio to `pandas.read_csv` of the same file in its own process (medians of one run).

    python benchmarks/tables.py [--repeats 5] [--small]

Both are started in turn; processor time and wall time are those of the whole child, its start and its imports included. No floor of
its own: reading is a part of `fairmedfm score`, whose floor `benchmarks/cli.py` checks.
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd


def frame(n):
    "Made-up predictions."
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    return pd.DataFrame({"id": [f"img_{i:07d}.png" for i in range(n)], "sex": rng.choice(["F", "M"], n), "age": rng.integers(18, 95, n),
                         "y_true": y, "y_score": 1 / (1 + np.exp(-(y + rng.normal(size=n))))})

def cost(code):
    "Processor and wall seconds of a Python process."
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode: raise SystemExit(f"{code}: exit code {child.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start

def main():
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--repeats", type=int, default=5)
    cli.add_argument("--small", action="store_true", help="a hundredth of the size: does it run?")
    given = cli.parse_args()
    n = 10_000 if given.small else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        table, path = frame(n), {k: str(Path(folder)/f"{k}.csv") for k in ("plain", "quoted", "german")}
        table.to_csv(path["plain"], index=False)
        table.to_csv(path["quoted"], index=False, quoting=csv.QUOTE_NONNUMERIC)
        table.to_csv(path["german"], index=False, sep=";", decimal=",")
        how = {"plain": "", "quoted": "", "german": ", sep=';', decimal=','"}
        bare = {k: f"import pandas; pandas.read_csv({p!r}{how[k]})" for k, p in path.items()}
        four = "usecols=['sex', 'age', 'y_true', 'y_score']"
        read = lambda k, how: f"from fairmedfm.tables import read_table; read_table({path[k]!r}, {how})"
        cases = {"four columns": ("plain", read("plain", f"text='sex', {four}")),
                 "all columns, id as text": ("plain", read("plain", "text=['id', 'sex']")),
                 "four columns, quoted text": ("quoted", read("quoted", f"text='sex', {four}")),
                 "four columns, decimal commas": ("german", read("german", f"text='sex', {four}"))}
        print(f"{n:,} rows, pandas {pd.__version__}: ratio to a bare pandas.read_csv process, processor time and wall time")
        for what, (kind, code) in cases.items():
            spent = [(cost(code), cost(bare[kind])) for _ in range(given.repeats)]
            cpu, wall = (statistics.median(a[i] for a, _ in spent) / statistics.median(b[i] for _, b in spent) for i in (0, 1))
            print(f"  {what:30s} {cpu:5.2f} {wall:5.2f}")

if __name__ == "__main__": main()

"""What scoring costs, as ratios measured in one run: medians of process CPU time, the two sides of a ratio taken in turn.

    python benchmarks/metrics.py [--repeats 9] [--incumbent PYTHON] [--small]

Run it with nothing else running. `--incumbent` names an interpreter that has the published package under the same import name (0.4.2, in
an environment of its own): its time and its peak memory then stand beside ours. `--small` takes a hundredth of the size: does it run?"""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from fairmedfm.report import evaluate

TEXT = {"object": lambda a: a.astype(object), "<U": lambda a: a,
        "pandas str": lambda a: pd.Series(a).astype(object).astype("str" if pd.__version__ >= "3" else "string")}


def people(n, groups, kind="object", seed=0):
    "`(y, s, features)`: labels, probabilities, and one column of text per number of groups."
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < .3).astype(int)
    s = 1/(1 + np.exp(-rng.normal(y - 1, 1)))
    columns = {f"attribute {i}": TEXT[kind](np.array([f"group {j}" for j in range(k)])[rng.integers(0, k, n)]) for i,
               k in enumerate(groups)}
    if kind == "object":                                    # as a table reader leaves them: pointers to a few strings
        for c, v in columns.items(): same = {t: t for t in np.unique(v)}; columns[c] = np.array([same[t] for t in v], dtype=object)
    return y, s, pd.DataFrame(columns) if kind == "pandas str" else columns


def clock():
    "CPU seconds of this process so far: all of them, and without the kernel's share."
    try: from resource import RUSAGE_SELF, getrusage
    except ImportError: return (time.process_time(),)*2                # Windows
    used = getrusage(RUSAGE_SELF)
    return time.process_time(), used.ru_utime


def spent(f):
    "CPU seconds of `f()`: all of them, and without the kernel's share."
    start = clock(); f(); end = clock()
    return end[0] - start[0], end[1] - start[1]


def ratios(work, base, repeats):
    "Median CPU time of `work` over that of `base`, after one run of each that does not count: all of it, and without the kernel's share."
    work(); base()
    both = [(spent(work), spent(base)) for _ in range(repeats)]
    return [statistics.median(a[i] for a, _ in both)/statistics.median(b[i] for _, b in both) for i in (0, 1)]


def ratio(work, base, repeats): return ratios(work, base, repeats)[0]


def child(args, **kw):
    "`(CPU seconds, stdout)` of a process."
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen([str(a) for a in args], stdout=out, stderr=subprocess.DEVNULL, **kw)
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        if p.returncode: raise SystemExit(f"{args[:3]} failed with {p.returncode}")
        out.seek(0)
        return used.ru_utime + used.ru_stime, out.read().decode()


ELSEWHERE = """
import sys, time, warnings
import numpy as np, pandas as pd
import fairmedfm
warnings.simplefilter("ignore")
n, groups = int(sys.argv[1]), [int(k) for k in sys.argv[2].split(",")]
rng = np.random.default_rng(0)
y = (rng.random(n) < .3).astype(int)
s = 1/(1 + np.exp(-rng.normal(y - 1, 1)))
names = [np.array([f"group {j}" for j in range(k)], dtype=object) for k in groups]
g = pd.DataFrame({f"attribute {i}": v[rng.integers(0, len(v), n)] for i, v in enumerate(names)})
def spent(f):
    start = time.process_time(); f()
    return time.process_time() - start
base = sorted(spent(lambda: np.argsort(s)) for _ in range(5))[2]
fairmedfm.evaluate(y[:1000], s[:1000], g[:1000])
work = spent(lambda: fairmedfm.evaluate(y, s, g))
try: peak = next(int(l.split()[1])*1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))    # ru_maxrss would hold the parent's
except OSError: import resource; peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*(1 if sys.platform == "darwin" else 1024)
print(fairmedfm.__version__, work/base, peak)
"""


def elsewhere(python, n, groups):
    "`(version, ratio to an argsort, peak bytes)` of one `evaluate` in a process of an interpreter."
    with tempfile.TemporaryDirectory() as empty:
        out = child([python, "-c", ELSEWHERE, n, ",".join(map(str, groups))], cwd=empty)[1]
    version, times, peak = out.split()
    return version, float(times), int(peak)


def csv_file(folder, n):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    path = Path(folder)/"predictions.csv"
    with open(path, "w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["image_id", "sex", "age", "y_true", "y_score"])
        w.writerows(zip((f"img_{i:07d}" for i in range(n)), rng.choice(["F", "M"], n).tolist(), rng.integers(18, 95, n).tolist(),
                        y.tolist(), np.round(np.clip(rng.normal(.3 + .4*y, .2), 0, 1), 6).tolist()))
    return path


def command(n, repeats):
    "CPU time of `fairmedfm score` on a file over that of a process that reads it with pandas."
    with tempfile.TemporaryDirectory() as d:
        path = csv_file(d, n)
        ours = [sys.executable, "-m", "fairmedfm", "score", path, "--sensitive", "sex", "age", "--bins", "age=40,60", "--quiet"]
        bare = [sys.executable, "-c", f"import pandas; pandas.read_csv({str(path)!r})"]
        child(ours), child(bare)
        times = [(child(ours)[0], child(bare)[0]) for _ in range(repeats)]
    return statistics.median(a for a, _ in times)/statistics.median(b for _, b in times)


def light(repeats):
    "Milliseconds that `import fairmedfm` adds to a bare process, and what the import and a small `score` load."
    times = [(child([sys.executable, "-c", "import fairmedfm"])[0], child([sys.executable, "-c", "pass"])[0])
             for _ in range(max(repeats, 15))]
    heavy = "[m for m in ('numpy', 'pandas', 'sklearn', 'scipy', 'torch', 'matplotlib', 'pyarrow') if m in sys.modules]"
    loads = child([sys.executable, "-c", f"import sys, fairmedfm; print(' '.join({heavy}))"])[1].split()
    with tempfile.TemporaryDirectory() as d:
        path = csv_file(d, 400)
        script = f"""
import sys, io, contextlib
from fairmedfm.cli import main
with contextlib.redirect_stdout(io.StringIO()): main(['score', {str(path)!r}, '--sensitive', 'sex', '--quiet'])
print(' '.join({heavy}))"""
        small = child([sys.executable, "-c", script])[1].split()
    return 1000*(statistics.median(a for a, _ in times) - statistics.median(b for _, b in times)), loads, small


def rows(args):
    "`(what, measured, floor, published)`, one after the other."
    n, repeats = (10**4 if args.small else 10**6), args.repeats
    shown = f"{n:,} samples"
    their = elsewhere(args.incumbent, n, (2, 5, 50)) if args.incumbent else None
    for kind in TEXT:
        y, s, g = people(n, (2, 5, 50), kind)
        yield f"evaluate, {shown}, attributes of 2, 5 and 50 groups ({kind}) / argsort", ratio(
            lambda: evaluate(y, s, g), lambda: np.argsort(s), repeats), 7, their and their[1]
    y, s, g = people(n, (2, 5, 50))
    y10, s10, g10 = people(10*n, (2, 5, 50))
    growth, without = ratios(lambda: evaluate(y10, s10, g10), lambda: evaluate(y, s, g), max(3, repeats//3))
    yield f"evaluate, {10*n:,} / {shown}", growth, 12, None
    yield "the same without the kernel's time (a virtual machine may pay dearly for fresh pages)", without, 12, None
    del y10, s10, g10
    for k in (1, 3):
        many, few = people(n, (50,)*k), people(n, (2,)*k)
        yield f"evaluate, {k} × 50 groups / {k} × 2 groups", ratio(lambda: evaluate(*many), lambda: evaluate(*few), repeats), 1.25, None
    y, s, g = people(n, (5, 5, 5))
    yield "evaluate, intersection of 5×5×5 / the same without", ratio(
        lambda: evaluate(y, s, g, intersectional=True), lambda: evaluate(y, s, g), repeats), 1.6, None
    mine = elsewhere(sys.executable, n, (2, 5, 50))
    if their: yield f"peak memory of that process / the published package's ({their[2]/2**20:.0f} MiB)", mine[2]/their[2], 1, None
    else: yield "peak memory of that process in MiB (a ratio with --incumbent)", mine[2]/2**20, None, None
    yield f"fairmedfm score, CSV of {n:,} rows, sex and binned age / pandas.read_csv", command(n, max(3, repeats//2)), 2, None
    ms, loads, small = light(repeats)
    yield f"import fairmedfm, ms more than a bare process (it loads {' '.join(loads) or 'nothing heavy'})", ms, 20, None
    loaded = sorted(set(small) & {"sklearn", "torch", "matplotlib"})          # scipy.special serves the intervals
    yield f"fairmedfm score on 400 rows: heavy packages that it imports ({' '.join(loaded) or 'none'})", len(loaded), 0, None


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--repeats", type=int, default=9)
    cli.add_argument("--incumbent", metavar="PYTHON", help="an interpreter that has the published package")
    cli.add_argument("--small", action="store_true", help="a hundredth of the size: does it run?")
    args = cli.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'':104}{'measured':>9}  {'at most':>8}" + ("  published" if args.incumbent else ""))
    for what, value, floor, published in rows(args):
        verdict = "" if floor is None else "" if value <= floor else "  ABOVE"
        print(
            f"{what:104}{value:9.2f}  {'' if floor is None else f'{floor:g}':>8}" + (
                f"  {published:9.0f}" if published and args.incumbent else "") + verdict, flush=True)


if __name__ == "__main__": main()

"""What intervals and tests cost, as ratios to the point estimate measured in the same run: medians of process CPU time, the two sides of a ratio taken in turn.

    python benchmarks/uncertainty.py [--n 100000] [--repeats 9]

Run it with nothing else running. Three attributes with two, three and five groups. The pure AUC interval (all groups, everyone, each rest, all differences) against the AUC of all groups and of everyone:
at most 3. `evaluate(ci=0.95, n_resamples=1000)`, which is intervals, tests and gaps of everything that it reports, against `evaluate`: at most 60. Memory: the peak while 200, 1,000 and 5,000 resamples are drawn."""
import argparse
import statistics
import time
import tracemalloc
import warnings

import numpy as np
import pandas as pd

from fairmedfm.core import FairnessWarning
from fairmedfm.inputs import groupings, questions
from fairmedfm.metrics import Comparison, Ranking
from fairmedfm.report import evaluate
from fairmedfm.uncertainty import Scored, area, uncertainty


def spent(f):
    start = time.process_time(); f()
    return time.process_time() - start


def ratio(work, base, repeats):
    "Medians of `work` and of `base` in milliseconds, and the ratio, after one run of each that does not count."
    work(); base()
    both = [(spent(work), spent(base)) for _ in range(repeats)]
    a, b = (statistics.median(x) for x in zip(*both))
    return 1e3*a, 1e3*b, a/b


def audit(n, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < .2).astype(int)
    people = pd.DataFrame({"sex": rng.choice(["F", "M"], n), "age": rng.choice(["<40", "40-60", ">=60"], n), "race": rng.choice(list("ABCDE"), n)})
    return y, 1/(1 + np.exp(-rng.normal(-1 + 1.2*y, 1))), people


def peak(f):
    tracemalloc.start(); f()
    out = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return out/2**20


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--n", type=int, default=100_000)
    cli.add_argument("--repeats", type=int, default=9)
    args = cli.parse_args()
    warnings.simplefilter("ignore", FairnessWarning)
    y, s, people = audit(args.n)
    q, parts = questions(y, s)[0][0], groupings(people)

    def point(groups):
        out = [Comparison(q, g, .3, Ranking(q, 5)) for g in groups]
        for c in out: c.values("auc"); c.total("auc")
        return out

    def interval(groups):
        for c in point(groups): e = area(Scored(c)); e.interval(.05); e.difference(.05)

    for name, groups in [(f"{g.name}, {len(g.names)} groups", [g]) for g in parts] + [("all three", parts)]:
        a, b, r = ratio(lambda: interval(groups), lambda: point(groups), 5*args.repeats)
        print(f"AUC with intervals / AUC, {name:16} {a:8.1f} ms / {b:6.1f} ms = {r:5.2f}   (at most 3)", flush=True)
    a, b, r = ratio(lambda: evaluate(y, s, people, ci=.95, n_resamples=1000), lambda: evaluate(y, s, people), max(3, args.repeats//3))
    print(f"evaluate(ci=.95, 1,000 resamples) / evaluate  {a:8.0f} ms / {b:6.1f} ms = {r:5.1f}   (at most 60)", flush=True)
    everything = lambda draws: uncertainty([Comparison(q, g, .3) for g in parts], ["auc", "acc", "tpr", "brier", "tpr_at_tnr80"][:5 if args.n <= 20_000 else 4], n_resamples=draws)
    everything(100)
    print("memory: " + ", ".join(f"{draws:,} resamples {peak(lambda: everything(draws)):.1f} MiB" for draws in (200, 1000, 5000)), flush=True)


if __name__ == "__main__": main()

"""Do the intervals cover, do the tests hold, is the gap de-biased? Simulations with known truth.

    python benchmarks/coverage.py [intervals calibration dice tests gaps paired] [--reps 1000] [--seed 0] [--n_jobs 2] [--save benchmarks/coverage.csv]

intervals    95 % intervals of differences between groups: AUC, TPR, accuracy, F1, Brier score, cross-entropy         (93-97 %)
dice         the same for Dice                                                                                     (93-97 %)
calibration  the same for calibration errors, slope, intercept and average precision                                  (conservative near zero)
tests        how often the permutation tests reject when nothing is there but prevalence and sizes                    (4-6 %)
gaps         bias of the raw and of the de-biased gap, and coverage of the interval of the gap
paired       two models on the same cases: coverage of the change in every group and of the change of the gap     (93 % and more)

Groups of 50 to 2,000, two to five of them, prevalence 0.05 to 0.5, with and without several images per patient.
"""
import argparse
import csv
import functools
import multiprocessing
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, ndtr, ndtri

from fairmedfm.core import FairnessWarning, Notes
from fairmedfm.inputs import Grouping, Question
from fairmedfm.metrics import BIN_EDGES, Comparison
from fairmedfm.paired import ScoredTask, gap_measure, measure_change
from fairmedfm.uncertainty import Columns, Scored, critical, debiased_gap, estimate, gap_interval, mean, part_in, permutation_p, shuffle_of, uncertainty

T = 0.3                                              # the decision threshold
GRID = ndtri((np.arange(4001) + .5) / 4001)          # a standard normal, for the truth


@dataclass
class Group:
    "Normal scores by label with a given AUC, as probabilities: calibrated, or distorted by `slope` and `shift`."
    n: int
    prev: float
    auc: float = .8
    shift: float = 0.
    slope: float = 1.

    @property
    def mu(self): return ndtri(self.auc) * np.sqrt(2)

    def score(self, x): return expit(self.slope * (np.log(self.prev / (1 - self.prev)) + self.mu * (x - self.mu / 2)) + self.shift)

    def draw(self, rng, images=1, alike=.5):
        "Labels, scores and patients; a patient's images share half of the variance of label and score."
        who = np.arange(self.n) // images
        noise = lambda: np.sqrt(alike) * rng.normal(size=self.n)[who] + np.sqrt(1 - alike) * rng.normal(size=self.n) if images > 1 else rng.normal(size=self.n)
        y = noise() < ndtri(self.prev)
        return y.astype(np.uint8), self.score(noise() + self.mu * y), who

    def truth(self, metric, edges=None):
        pp, pn, share = self.score(self.mu + GRID), self.score(GRID), self.prev
        both = lambda a, b: share * np.mean(a) + (1 - share) * np.mean(b)
        tpr, tnr = np.mean(pp > T), np.mean(pn <= T)
        simple = {"auc": self.auc, "tpr": tpr, "tnr": tnr, "acc": both(tpr, tnr), "f1": 2 * share * tpr / (share + share * tpr + (1 - share) * (1 - tnr)),
                  "brier": both((pp - 1) ** 2, pn ** 2), "bce": both(-np.log(pp), -np.log1p(-pn))}
        if metric in simple: return simple[metric]
        if metric in BIN_EDGES:
            edges = np.r_[-1, edges[1:-1], 2]
            below = np.array([[both((pp - 1) * (pp <= e), pn * (pn <= e)), both(pp <= e, pn <= e)] for e in edges])
            d, w = np.diff(below, axis=0).T
            return np.sqrt((d ** 2 / np.maximum(w, 1e-12)).sum()) if metric == "ce_debiased" else np.abs(d).sum()
        if metric == "ap":
            found = 1 - np.arange(4001) / 4001
            false = 1 - np.searchsorted(pn, pp) / 4001
            return np.mean(share * found / (share * found + (1 - share) * false))
        x = np.r_[self.slope * (np.log(share / (1 - share)) + self.mu * (np.r_[self.mu + GRID, GRID] - self.mu / 2)) + self.shift]
        w, y, a, b = np.repeat([share, 1 - share], 4001), np.repeat([1., 0], 4001), 0., 1.
        for _ in range(50):
            m = expit(a + b * x); h = w * m * (1 - m); g = w * (y - m)
            if metric == "cal_intercept": a += g.sum() / h.sum(); continue
            step = np.linalg.solve([[h.sum(), (h * x).sum()], [(h * x).sum(), (h * x * x).sum()]], [g.sum(), (g * x).sum()])
            a, b = a + step[0], b + step[1]
        return b if metric == "cal_slope" else a


SCENARIOS = {        # name -> groups, images per patient
    "K=2 n=50 p=.2, equal": ([Group(50, .2), Group(50, .2)], 1),
    "K=2 n=50 p=.5/.3": ([Group(50, .5, .85), Group(50, .3, .75)], 1),
    "K=2 n=50/2000 p=.05/.2": ([Group(50, .05), Group(2000, .2)], 1),
    "K=2 n=100 p=.1/.3": ([Group(100, .1, .8, .5), Group(100, .3, .9)], 1),
    "K=2 n=2000 p=.2/.1": ([Group(2000, .2, .8, 0., .8), Group(2000, .1, .85)], 1),
    "K=3 n=200 p=.05/.2/.5": ([Group(200, .05), Group(200, .2, .8, 0., .7), Group(200, .5)], 1),
    "K=4 n=100-1000, equal": ([Group(n, .2) for n in (100, 200, 500, 1000)], 1),
    "K=4 n=50-2000 p=.05-.5": ([Group(50, .5, .8), Group(200, .2, .85, .4), Group(500, .1, .75), Group(2000, .05, .8)], 1),
    "K=5 n=100-2000, equal": ([Group(n, .3) for n in (100, 200, 500, 1000, 2000)], 1),
    "K=5 n=500 p=.05-.5": ([Group(500, p, a) for p, a in ((.05, .8), (.1, .8), (.2, .75), (.3, .85), (.5, .8))], 1),
    "K=2 n=150/300, 3 images": ([Group(150, .2), Group(300, .4, .85, .3)], 3),
    "K=2 n=600/1200, 4 images": ([Group(600, .1), Group(1200, .3, .85, 0., .7)], 4),
    "K=2 n=100/100 p=.5, 2 images": ([Group(100, .5), Group(100, .5)], 2),
    "K=5 n=400-2000, 4 images": ([Group(n, p) for n, p in ((400, .3), (800, .1), (1200, .2), (1600, .5), (2000, .05))], 4),
    "K=3 n=90-600, 3 images": ([Group(300, .2), Group(600, .4, .85, .3), Group(90, .3)], 3),
}


def compared(groups, rng, images, threshold=T):
    "A `Comparison` and the patients of one simulated audit."
    parts = [g.draw(rng, images) for g in groups]
    codes = np.repeat(np.arange(len(groups)), [g.n for g in groups])
    c = Comparison(Question(None, np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), "probability"),
                   Grouping("group", codes, [str(i) for i in range(len(groups))]), threshold)
    return c, None if images == 1 else np.concatenate([p[2] + i * 10 ** 6 for i, p in enumerate(parts)])


def coverage(groups, images, metrics, reps, seed=0):
    "metric -> share of 95 % intervals that hold the truth: (of groups, of differences of two groups), NaN intervals left out."
    rng, k = np.random.default_rng(seed), len(groups)
    hits = {m: ([], []) for m in metrics}
    fixed = {m: np.array([g.truth(m) for g in groups]) for m in metrics if m not in BIN_EDGES}
    for _ in range(reps):
        c, patients = compared(groups, rng, images)
        cols = Scored(c, patients)
        inner = cols.pairs[:, 1] < k
        for m in metrics:
            e = estimate(cols, m, 100)
            truth = fixed[m] if m in fixed else np.array([g.truth(m, edges) for g, edges in zip(groups, BIN_EDGES[m](c.groups))])
            for store, (low, high), want in ((hits[m][0], (x[:k] for x in e.interval(.05)), truth), (hits[m][1], e.difference(.05, inner), truth[cols.pairs[inner, 0]] - truth[cols.pairs[inner, 1]])):
                ok = ~np.isnan(low)
                store.extend(((low <= want + 1e-12) & (want - 1e-12 <= high))[ok])
    return {m: tuple(np.mean(h) if h else np.nan for h in pair) for m, pair in hits.items()}


def dice_draw(rng, n, lost, images=1):
    "Dice of a model that fails in a share `lost` of the cases, and its mean; a patient's slices are alike."
    who = np.arange(n) // images
    fails = rng.random(n)[who] < lost
    wobble = np.clip(rng.normal(0, .03, n), -.05, .05) if images > 1 else 0
    return np.clip(np.where(fails, rng.beta(2, 4, n)[who], .05 + .9 * rng.beta(12, 2, n)[who]) + wobble, 0, 1), lost * 2 / 6 + (1 - lost) * (.05 + .9 * 12 / 14), who


DICE = {"K=2 n=50, equal": ([(50, .05), (50, .05)], 1), "K=2 n=50/1000": ([(50, .1), (1000, .02)], 1), "K=3 n=60-500": ([(60, .0), (200, .1), (500, .05)], 1),
        "K=5 n=100-2000": ([(100, .02), (200, .05), (500, .0), (1000, .1), (2000, .03)], 1), "K=2 n=300/900, 6 slices": ([(300, .05), (900, .1)], 6)}


def dice_coverage(groups, images, reps, seed=0):
    "Share of 95 % intervals of differences in mean Dice that hold the truth."
    rng, hits = np.random.default_rng(seed), []
    codes = np.repeat(np.arange(len(groups)), [n for n, _ in groups])
    for _ in range(reps):
        drawn = [dice_draw(rng, n, lost, images) for n, lost in groups]
        patients = np.concatenate([w + i * 10 ** 6 for i, (_, _, w) in enumerate(drawn)]) if images > 1 else None
        cols = Columns(codes, [str(i) for i in range(len(groups))], patients)
        inner = cols.pairs[:, 1] < cols.k
        low, high = mean(cols, "dice", np.concatenate([d[0] for d in drawn]), (0, 1)).difference(.05, inner)
        want = np.array([drawn[a][1] - drawn[b][1] for a, b in cols.pairs[inner]])
        hits += ((low <= want) & (want <= high)).tolist()
    return np.mean(hits)


NULL = {       # (n, prevalence) by group, images per patient: AUC, TPR, TNR and accuracy are equal, nothing else is
    "n=50/50 p=.3": ([(50, .3), (50, .3)], 1), "n=100/400 p=.1/.4": ([(100, .1), (400, .4)], 1), "n=200/1000 p=.05/.5": ([(200, .05), (1000, .5)], 1),
    "K=3 n=60-500": ([(60, .5), (200, .1), (500, .2)], 1), "K=5 n=50-800": ([(50, .3), (100, .1), (200, .2), (400, .05), (800, .3)], 1),
    "n=150/600 p=.2/.5, 3 images": ([(150, .2), (600, .5)], 3), "K=3 n=90-900, 3 images": ([(180, .4), (300, .1), (900, .2)], 3),
}


def rejections(groups, images, metrics, reps, draws=999, seed=0):
    "metric -> share of true nulls rejected at 5 %: (of pairs, of 'all equal'). The threshold stands where TPR = TNR, so accuracy does not depend on prevalence."
    rng, out, k = np.random.default_rng(seed), {m: ([], []) for m in metrics}, len(groups)
    mu = ndtri(.8) * np.sqrt(2)
    for i in range(reps):
        parts = []
        for n, prev in groups:
            y, _, who = Group(n, prev).draw(rng, images)
            parts.append((y, y * mu + (np.sqrt(.5) * (rng.normal(size=n)[who] + rng.normal(size=n)) if images > 1 else rng.normal(size=n)), who))
        codes = np.repeat(np.arange(k), [n for n, _ in groups])
        c = Comparison(Question(None, np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), "rank"), Grouping("group", codes, list("abcde"[:k])), mu / 2)
        cols = Scored(c, None if images == 1 else np.concatenate([p[2] + j * 10 ** 6 for j, p in enumerate(parts)]))
        jobs = {m: (shuffle_of(cols, m, estimate(cols, m)), cols.pairs, np.ones(k, bool)) for m in metrics}
        for m, (pairs, q, *_) in permutation_p(jobs, draws, entropy=i).items():
            out[m][0].extend(pairs[cols.pairs[:, 1] < k][np.isfinite(pairs[cols.pairs[:, 1] < k])] <= .05); out[m][1].append(q <= .05)
    return {m: tuple(map(np.mean, v)) for m, v in out.items()}


GAPS = {f"{name} K={K} n={n}": [Group(n, .2, a) for a in aucs] for K, n in ((2, 100), (2, 500), (3, 200), (4, 100), (5, 200), (5, 1000))
        for name, aucs in {"equal": [.8] * K, "one behind by .07": [.8] * (K - 1) + [.73], "spread over .07": np.linspace(.73, .8, K)}.items()}


def gaps(groups, reps, metric="auc", seed=0):
    "Bias of the raw and the de-biased gap, and the coverage of the gap's interval."
    rng, raw, clean, hit = np.random.default_rng(seed), [], [], []
    true = np.ptp([g.truth(metric) for g in groups])
    for _ in range(reps):
        cols = Scored(compared(groups, rng, 1)[0])
        e = estimate(cols, metric)
        take = part_in(cols, e, .05)
        k = slice(0, cols.k)
        low, high = gap_interval(e, take, .05)
        raw.append(np.ptp(e.value[k][take]) - true); clean.append(debiased_gap(e.centre[k][take], e.error(.05)[k][take])[0] - true); hit.append(low <= true + 1e-12 and true <= high)
    return np.mean(raw), np.mean(clean), np.mean(hit)


def paired(groups_a, groups_b, reps, metrics=("auc",), images=1, alike=.8, seed=0):
    "Two models whose scores of a case are correlated: metric -> coverage of the change in each group, of the change of the gap, and how often the latter leaves out zero; for `eod` the change of the measure."
    rng, k, take = np.random.default_rng(seed), len(groups_a), np.ones(len(groups_a), bool)
    names, needs = list("ABCDE"[:k]), {m: gap_measure(m if m == "eod" else f"{m}-gap") for m in metrics}
    base = list(dict.fromkeys(x for g in needs.values() for x in g.needs))
    ta, tb = ({m: np.array([g.truth(m) for g in gs]) for m in base} for gs in (groups_a, groups_b))
    truth = {m: g.of([np.ptp(tb[x]) for x in g.needs]) - g.of([np.ptp(ta[x]) for x in g.needs]) for m, g in needs.items()}
    codes, hits = np.repeat(np.arange(k), [g.n for g in groups_a]), {m: ([], [], []) for m in metrics}
    for _ in range(reps):
        ys, sa, sb, who = [], [], [], []
        for i, (ga, gb) in enumerate(zip(groups_a, groups_b)):
            person = np.arange(ga.n) // images
            noise = lambda: rng.normal(size=ga.n) if images == 1 else np.sqrt(.5) * rng.normal(size=ga.n)[person] + np.sqrt(.5) * rng.normal(size=ga.n)
            y, common = noise() < ndtri(ga.prev), noise()
            mixed = lambda: np.sqrt(alike) * common + np.sqrt(1 - alike) * noise()
            ys.append(y.astype(np.uint8)); sa.append(ga.score(mixed() + ga.mu * y)); sb.append(gb.score(mixed() + gb.mu * y)); who.append(person + i * 10 ** 6)
        task = ScoredTask({m: Question(None, np.concatenate(ys), np.concatenate(s), "probability") for m, s in (("A", sa), ("B", sb))}, T)
        by, patients = Grouping("group", codes, names), None if images == 1 else np.unique(np.concatenate(who), return_inverse=True)[1]
        joints = {x: task.joint(["A", "B"], by, x, patients) for x in base}
        for m, g in needs.items():
            low, high = measure_change(g, joints, 0, 1, dict.fromkeys(base, take), .05, images > 1)
            if np.isfinite(low): hits[m][1].append(low <= truth[m] + 1e-12 and truth[m] - 1e-12 <= high); hits[m][2].append(not low <= 0 <= high)
            if m == "eod": continue
            d, se = joints[m].difference(0, 1)
            half = critical(.05, joints[m].df) * se
            hits[m][0].extend((np.abs(d - (tb[m] - ta[m])) <= half)[np.isfinite(half)])
    return {m: tuple(np.mean(h) if h else np.nan for h in v) for m, v in hits.items()}


def _same(*groups): return list(groups), list(groups)


PAIRED = {       # groups of model A, of model B, images per patient; none of it was looked at when the interval was made
    "K=2 n=100, both fair": (*_same(Group(100, .2), Group(100, .3)), 1),
    "K=2 n=500, both fair": (*_same(Group(500, .2), Group(500, .2)), 1),
    "K=2 n=300, B closes .1": ([Group(300, .2, .75), Group(300, .3, .85)], [Group(300, .2, .82), Group(300, .3, .82)], 1),
    "K=2 n=2000, B halves .12": ([Group(2000, .2, .74), Group(2000, .1, .86)], [Group(2000, .2, .8), Group(2000, .1, .86)], 1),
    "K=2 n=400, sides change": ([Group(400, .3, .75), Group(400, .3, .85)], [Group(400, .3, .85), Group(400, .3, .75)], 1),
    "K=2 n=60/2000 p=.1": ([Group(60, .1, .7), Group(2000, .2, .85)], [Group(60, .1, .8), Group(2000, .2, .85)], 1),
    "K=3 n=200, both fair": (*_same(Group(200, .2), Group(200, .3), Group(200, .1)), 1),
    "K=3 n=100-800, B opens .12": ([Group(100, .3), Group(300, .2), Group(800, .2)], [Group(100, .3, .7), Group(300, .2, .82), Group(800, .2, .82)], 1),
    "K=3 n=1000, B closes .15": ([Group(1000, .3, .7), Group(1000, .2, .8), Group(1000, .2, .85)], [Group(1000, .3, .8), Group(1000, .2, .82), Group(1000, .2, .82)], 1),
    "K=5 n=300, both alike": (*_same(*(Group(300, p, a) for p, a in ((.1, .8), (.2, .78), (.3, .82), (.2, .8), (.5, .76)))), 1),
    "K=5 n=1000, B halves .2": ([Group(1000, .2, a) for a in (.7, .8, .85, .9, .8)], [Group(1000, .2, a) for a in (.8, .8, .85, .9, .8)], 1),
    "K=2 n=300/600, 3 images": ([Group(300, .3, .75), Group(600, .3, .85)], [Group(300, .3, .8), Group(600, .3, .85)], 3),
    "K=3 n=600, 4 images, both fair": (*_same(Group(600, .3), Group(600, .2), Group(600, .3)), 4),
}


def is_said(groups, images, metric, audits=12, seed=1):
    "In how many of a few audits of a scenario the notes of a report name the metric or the small group."
    rng, heard = np.random.default_rng(seed), 0
    for _ in range(audits):
        (c, patients), notes = compared(groups, rng, images), Notes()
        uncertainty(c, metric, n_resamples=0, clusters=patients, notes=notes)
        heard += any(metric in n and ("small groups" in n or "fewer than" in n or "no larger than noise" in n) for n in notes)
    return round(heard / audits, 2)


def off(what, share): return what in ("groups", "differences") and np.isfinite(share) and not .93 <= round(share, 3) <= .97


def save(path, rows, reps):
    "Put the rows into a CSV, in place of those of the same parts."
    rows = [(*r, reps) for r in rows]
    old = [tuple(r) for r in csv.reader(open(path))][1:] if Path(path).exists() else []
    parts = {r[0] for r in rows}
    with open(path, "w", newline="") as f: csv.writer(f, lineterminator="\n").writerows([("part", "scenario", "metric", "what", "percent", "said", "audits"), *(r for r in old if r[0] not in parts), *rows])


BINNED, RANKED = ["ece", "ece01", "ce_debiased", "cal_slope", "cal_intercept", "ap"], ["auc", "tpr", "acc", "f1", "brier", "bce"]
PARTS = {       # name -> title, scenarios, metrics, what is said of each, `metric -> shares` of one scenario
    "intervals": ("% of 95 % intervals that cover", SCENARIOS, RANKED, ("groups", "differences"), lambda s, metrics, reps, seed: coverage(*s, metrics, reps, seed)),
    "dice": ("% of 95 % intervals of differences in Dice that cover", DICE, ["dice"], ("differences",), lambda s, metrics, reps, seed: {"dice": dice_coverage(*s, reps, seed)}),
    "calibration": ("% of 95 % intervals that cover", SCENARIOS, BINNED, ("groups", "differences"), lambda s, metrics, reps, seed: coverage(*s, metrics, reps, seed)),
    "tests": ("% of true nulls rejected at 5 %", NULL, ["auc", "tpr", "tnr", "acc"], ("pairs", "all equal"), lambda s, metrics, reps, seed: rejections(*s, metrics, reps, seed=seed)),
    "gaps": ("bias of the gap in AUC (%), coverage of its interval (%)", GAPS, ["auc"], ("bias of the raw gap", "bias of the de-biased gap", "interval of the gap"), lambda s, metrics, reps, seed: {"auc": gaps(s, reps, seed=seed)}),
    "paired": ("% of 95 % intervals of B - A that cover; % that leave out zero", PAIRED, ["auc", "tpr", "acc", "brier", "eod"], ("groups", "gap", "leaves out zero"), lambda s, metrics, reps, seed: paired(*s[:2], reps, metrics, s[2], seed=seed)),
}


def scenario(part, reps, seed, name):
    "The rows of one scenario: part, scenario, metric, what, per cent, and (where intervals miss 93-97 %) in how many of a few reports a note says why."
    warnings.simplefilter("ignore", FairnessWarning)
    _, scenarios, metrics, whats, of = PARTS[part]
    found = of(scenarios[name], metrics, reps, seed)
    said = lambda m, what, share: is_said(*scenarios[name], m) if scenarios is SCENARIOS and off(what, share) else ""
    return [(part, name, m, what, round(100 * float(share), 1), said(m, what, share)) for m in metrics for what, share in zip(whats, np.ravel(found[m]))]


def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("parts", nargs="*", default=["intervals", "dice", "tests", "gaps"])
    cli.add_argument("--reps", type=int, default=1000)
    cli.add_argument("--seed", type=int, default=0)
    cli.add_argument("--n_jobs", type=int, default=1)
    cli.add_argument("--save", metavar="CSV", help="also write the results there, such as benchmarks/coverage.csv, from which the uncertainty chapter takes its table")
    args, start = cli.parse_args(), time.time()
    for part in args.parts:
        title, scenarios, metrics, whats, _ = PARTS[part]
        print(f"\n{part}: {title}\n{' / '.join(whats)}\n" + " " * 30 + "".join(f"{m:>20}" for m in metrics), flush=True)
        rows = []
        with multiprocessing.Pool(args.n_jobs) as pool:
            for mine in pool.imap(functools.partial(scenario, part, args.reps, args.seed), scenarios):
                print(f"{mine[0][1]:30}" + "".join(f"{' / '.join(str(r[4]) for r in mine if r[2] == m):>20}" for m in metrics), flush=True)
                rows += mine
        if args.save: save(args.save, rows, args.reps)
    print(f"\n{time.time() - start:.0f} s")


if __name__ == "__main__": main()

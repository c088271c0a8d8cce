"""Every number against somebody else's, on awkward inputs: scikit-learn, fairlearn, PyTorch, pandas, or a brute force anyone can read."""
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, example, given, settings, strategies as st
from sklearn import metrics as sk

import fairmedfm as fm
from fairmedfm.inputs import cut, cut_points, groupings, intersect, log_odds, questions, sigmoid
from fairmedfm.metrics import METRICS, Comparison, read_threshold

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")]
quick = settings(max_examples=60, deadline=None)

# ---------------------------------------------------------------- inputs that hurt

TINY = np.finfo(float).tiny
AWKWARD = {
    "probability": [0.0, -0.0, 1.0, 5e-324, 1e-320, TINY, 1e-300, 2e-300, 1e-16, 0.5, np.nextafter(.5, 1), np.nextafter(.5, 0), .1 + .2, .3,
                    np.nextafter(1, 0), 1 - 1e-15],
    "logit": [0.0, -0.0, 5e-324, -5e-324, 1e-300, 1e-16, 1.0, np.nextafter(1, 2), -1.0, 36.0, 37.0, 40.0, 40.5, -40.0, 745.0, -745.5, 800.0,
              801.0, -800.0, 1e5, 1e300, -1e300, 1e308, -1e308],
}
AWKWARD["rank"] = [*AWKWARD["logit"], *AWKWARD["probability"], np.finfo(float).max, -np.finfo(float).max]
ANY = {"probability": st.floats(0, 1), "logit": st.floats(-50, 50), "rank": st.floats(allow_nan=False, allow_infinity=False)}
GRID = {"probability": st.integers(0, 10).map(lambda i: i/10), "logit": st.integers(-4, 4).map(float),
        "rank": st.integers(-3, 3).map(float)}


@st.composite
def cases(draw, kinds=("probability", "logit", "rank"), both=True, weights=(None, "counts", "floats"), min_size=2, max_size=40, groups=4):
    "`(y, s, codes, kind, w)`: labels, scores with ties and extremes, groups from one sample up, and weights."
    kind = draw(st.sampled_from(kinds))
    n = draw(st.integers(min_size, max_size))
    score = draw(st.sampled_from([ANY[kind], GRID[kind], st.sampled_from(AWKWARD[kind]),
                                  ANY[kind] | GRID[kind] | st.sampled_from(AWKWARD[kind])]))
    y = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    if both: y[:2] = 0, 1
    s = np.array(draw(st.lists(score, min_size=n, max_size=n)), float)
    k = draw(st.integers(1, groups))
    codes = np.array(draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n)))
    how = draw(st.sampled_from(weights))
    w = None if how is None else np.array(draw(st.lists(st.integers(0, 3) if how == "counts" else st.floats(.01, 100), min_size=n,
                                                        max_size=n)), float)
    if w is not None and not w.sum() > 0: w[0] = 1
    return y, s, codes, kind, w


def ask(y, s, codes, kind, w=None, threshold="best_f1"):
    "The comparison that everything is computed from."
    q = questions(y, s, score_type=kind)[0][0]
    return Comparison(q, groupings({"g": [f"g{c}" for c in codes]})[0], threshold, sample_weight=w)


def each(c, codes):
    "Group position and its rows."
    for i, name in enumerate(c.names): yield i, codes == int(name[1:])


def prob(s, kind): return sigmoid(s) if kind == "logit" else s


def close(got, want, rtol=1e-9, atol=1e-12, what=""): np.testing.assert_allclose(
    got, want, rtol=rtol, atol=atol, equal_nan=True, err_msg=what)


def theirs(score, y, s, w):
    "scikit-learn's number; it sums the scores to look for NaN, and sums of the largest floats overflow."
    with np.errstate(all="ignore"): return score(y, s, sample_weight=w)

def both_labels(y, w): return len(set(y[w > 0])) == 2


# ---------------------------------------------------------------- ranks

@quick
@given(cases())
def test_auc_and_average_precision_are_scikit_learns(case):
    y, s, codes, kind, w = case
    c, weight = ask(*case), np.ones(len(y)) if w is None else w
    for i, m in each(c, codes):
        if both_labels(y[m], weight[m]):
            close(c.values("auc")[i], theirs(sk.roc_auc_score, y[m], s[m], weight[m]), what="auc")
            close(c.values("ap")[i], theirs(sk.average_precision_score, y[m], s[m], weight[m]), what="ap")
        else: assert np.isnan(c.values("auc")[i])
    if both_labels(y, weight): close(c.total("auc"), theirs(sk.roc_auc_score, y, s, weight))


@quick
@given(cases(weights=(None,)))
def test_auc_is_the_share_of_pairs(case):
    "To the last bits: the number of pairs in order, half a point for each tie."
    y, s, codes, *_ = case
    c = ask(*case)
    for i, m in each(c, codes):
        a, b = s[m][y[m] == 1], s[m][y[m] == 0]
        pairs = (a[:, None] > b).sum() + (a[:, None] == b).sum()/2
        want = pairs/(len(a)*len(b)) if len(a) and len(b) else np.nan
        assert c.values("auc")[i] == want or np.isnan(want) and np.isnan(c.values("auc")[i])


@quick
@given(cases(kinds=("probability", "rank"), weights=(None,)))
def test_auc_does_not_care_for_the_scale(case):
    "Percent, 0 to 255, logits and ranks order alike."
    y, s, codes, *_ = case
    order = pd.Series(s).rank(method="dense").to_numpy()
    want = ask(y, order, codes, "rank").values("auc")
    for t in (order/len(order), order*100, order*1e300/len(order), order*1e-310, order - 20, 1e15 + order, -1e-300*(len(order) - order)):
        if len(set(t)) == len(set(order)): close(ask(y, t, codes, "rank").values("auc"), want, rtol=0, atol=0)


@quick
@given(cases(kinds=("logit",), weights=(None,)))
def test_two_columns_of_logits_are_their_difference(case):
    y, s, codes, *_ = case
    assume(np.abs(s).max() < 1e300)
    z = np.c_[np.zeros(len(s)), s]
    close(log_odds(z, 1), s)
    close(ask(y, z, codes, "logit").values("auc"), ask(y, s, codes, "logit").values("auc"))


# ---------------------------------------------------------------- decisions

@quick
@given(cases(), st.sampled_from([0.5, 0.0, 1.0, .3, -1.0, 2.0, 1e-300, np.nextafter(1, 0)]))
def test_confusion_and_rates_are_scikit_learns(case, t):
    y, s, codes, kind, w = case
    c, weight, called = ask(*case, threshold=t), np.ones(len(y)) if w is None else w, prob(s, kind) > t
    counts = c.groups.confusion(t)
    for i, m in each(c, codes):
        if not weight[m].sum() > 0: assert np.isnan(c.values("acc")[i]); continue
        tn, fp, fn, tp = sk.confusion_matrix(y[m], called[m], labels=[0, 1], sample_weight=weight[m]).ravel()
        for name, want in dict(tn=tn, fp=fp, fn=fn, tp=tp).items(): close(getattr(counts, name)[i], want, what=name)
        over = lambda a, b: a/b if b > 1e-9 else np.nan
        wanted = {"acc": over(tp + tn, weight[m].sum()), "tpr": over(tp, tp + fn), "tnr": over(tn, tn + fp), "ppv": over(tp, tp + fp),
                  "npv": over(tn, tn + fn),
                  "fpr": over(fp, tn + fp), "fnr": over(fn, tp + fn), "selection_rate": over(tp + fp, weight[m].sum())}
        for name, want in wanted.items():
            if not np.isnan(want): close(c.values(name)[i], want, what=name)
        if tp + fn > 0: close(c.values("f1")[i], sk.f1_score(y[m], called[m], sample_weight=weight[m], zero_division=0), what="f1")


@quick
@given(cases(weights=(None,)))
def test_undefined_rates_are_nan(case):
    "A rate whose group has no case is NaN, never 0 and never 1."
    y, _, codes, *_ = case
    c = ask(*case, threshold=.5)
    for i, m in each(c, codes):
        for names, label in ((("tpr", "fnr", "f1", "auc"), 1), (("tnr", "fpr", "auc"), 0)):
            if not (y[m] == label).any(): assert np.isnan([c.values(n)[i] for n in names if n != "f1"
                                                           or not (c.groups.confusion(.5).fp[i])]).all()


@quick
@given(cases(kinds=("probability", "logit")))
def test_losses_are_pytorchs_and_scikit_learns(case):
    "Binary cross-entropy with logarithms clamped at −100; the Brier score; log loss where nothing is clamped."
    torch = pytest.importorskip("torch")
    y, s, codes, kind, w = case
    c, p, weight = ask(*case), prob(s, kind), np.ones(len(y)) if w is None else w
    each_loss = torch.nn.functional.binary_cross_entropy(torch.tensor(p), torch.tensor(y, dtype=torch.float64), reduction="none").numpy()
    for i, m in each(c, codes):
        if not weight[m].sum() > 0: assert np.isnan(c.values("bce")[i]) and np.isnan(c.values("brier")[i]); continue
        close(c.values("bce")[i], np.average(each_loss[m], weights=weight[m]), atol=1e-15, what="bce")
        close(c.values("brier")[i], np.average((p[m] - y[m])**2, weights=weight[m]), what="brier")
        close(c.values("brier")[i], sk.brier_score_loss(y[m], p[m], sample_weight=weight[m], pos_label=1), what="brier")
        if p[m].min() > 1e-6 and p[m].max() < 1 - 1e-6:
            close(c.values("bce")[i], sk.log_loss(y[m], p[m], sample_weight=weight[m], labels=[0, 1]), what="log loss")


# ---------------------------------------------------------------- calibration

def cut_error(p, y):
    "The published calibration error, in pandas' own words."
    with np.errstate(all="ignore"): bins = pd.cut(p, 10)
    d = pd.DataFrame({"p": p, "y": y}).groupby(bins, observed=True).agg(p=("p", "mean"), y=("y", "mean"), n=("y", "size"))
    return float((d.n*(d.p - d.y).abs()).sum()/len(p))


@quick
@given(cases(kinds=("probability", "logit"), weights=(None,)))
@example((np.array([0, 1]*6), np.arange(12)/11, np.zeros(12, int), "probability", None))
@example((np.array([0, 1, 1]*4), np.repeat([.1, .2, .3], 4), np.array([0, 1]*6), "probability", None))
@example((np.array([0, 1]), np.array([0, -1e300]), np.zeros(2, int), "logit", None))
def test_ece_is_made_of_pandas_bins(case):
    y, s, codes, kind, _ = case
    c, p = ask(*case), prob(s, kind)
    for i, m in each(c, codes):
        if 0 < np.ptp(p[m]) < 1e-290: continue       # pandas loses its own edges
        try: want = cut_error(p[m], y[m])
        except ValueError: continue                  # pandas cannot cut so narrow a range
        close(c.values("ece")[i], want, rtol=1e-12, atol=1e-15)


@quick
@given(cases(kinds=("probability",), weights=(None,)))
def test_ece01_has_fixed_bins(case):
    y, s, codes, *_ = case
    c = ask(*case)
    edges = np.linspace(0, 1, 11)
    for i, m in each(c, codes):
        inside = np.clip(np.searchsorted(edges, s[m], side="left") - 1, 0, 9)
        close(c.values("ece01")[i], sum(abs((s[m] - y[m])[inside == b].sum()) for b in range(10))/m.sum())


@quick
@given(cases(kinds=("probability",), weights=(None,), min_size=20, groups=2))
def test_debiased_calibration_error(case):
    y, s, codes, *_ = case
    c = ask(*case)
    for i, m in each(c, codes):
        p, t, n = np.sort(s[m]), y[m][np.argsort(s[m], kind="stable")], m.sum()
        inner = p[np.maximum(np.ceil(n*np.arange(1, 10)/10).astype(int) - 1, 0)]
        b = np.searchsorted(inner, p, side="left")
        sizes = np.bincount(b, minlength=10)
        if ((sizes > 0) & (sizes < 2)).any(): assert np.isnan(c.values("ce_debiased")[i]); continue
        error = sum(k*((p[b == j].mean() - t[b == j].mean())**2 - t[b == j].mean()*(1 - t[b == j].mean())/(k - 1)) for j,
                    k in enumerate(sizes) if k)
        close(c.values("ce_debiased")[i], np.sqrt(max(error/n, 0)), atol=1e-7)


def test_calibration_slope_and_intercept_maximise_the_likelihood():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 400)
    x = rng.normal(-.5, 1.5, 1200)
    y = (rng.random(1200) < sigmoid(np.choose(codes, [x, .5*x + .3, 2*x - 1]))).astype(int)
    w = rng.integers(0, 4, 1200).astype(float)
    for kind, s in (("logit", x), ("probability", sigmoid(x))):
        for weight in (None, w):
            c, ones = ask(y, s, codes, kind, weight), np.ones(1200) if weight is None else weight
            for i, m in each(c, codes):
                likelihood = lambda a, b: (ones*np.where(y == 1, np.log(sigmoid(a + b*x)), np.log(sigmoid(-a - b*x))))[m].sum()
                b, a = c.values("cal_slope")[i], c.values("cal_intercept")[i]
                assert all(likelihood(a, 1) >= likelihood(a + d, 1) for d in (-1e-3, 1e-3)), "the intercept at slope 1"
                best = max(likelihood(a0, b) for a0 in np.linspace(-2, 2, 401))
                for d in (-.02, .02): assert best >= max(likelihood(a0, b + d) for a0 in np.linspace(-2, 2, 401)), "the slope"


@quick
@given(st.lists(st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), st.integers(0, 1)), min_size=2, max_size=12))
@example([(-1.0, 0), (1.0, 1), (1.0, 0), (1.0, 0)])
@example([(-2.0, 0), (1.0, 1), (1.0, 0), (1.0, 0)])
@example([(.5, 0), (.5, 1)])
def test_slope_of_separated_scores(rows):
    "Where a threshold separates the labels, or all but those that stand on it, the slope is infinite: NaN."
    x, y = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    assume(0 < y.sum() < len(y))
    slope = ask(y, x, np.zeros(len(y), int), "logit").values("cal_slope")[0]
    a, b = x[y == 0], x[y == 1]
    separated = a.max() <= b.min() or b.max() <= a.min()
    assert np.isnan(slope) if separated else np.isfinite(slope) and abs(slope) < 100


# ---------------------------------------------------------------- thresholds

def rates(y, p, w, t):
    called = p > t
    return (w*(called & (y == 1))).sum(), (w*(called & (y == 0))).sum()


def curve(y, p, w):
    "`[(tp, fp)]` for every way to cut the scores in two, nobody and everybody included."
    return [rates(y, p, w, t) for t in (-np.inf, *np.unique(p))]


def f1(tp, fp, pos): return 2*tp/(tp + fp + pos) if tp else 0.0


@quick
@given(cases(weights=(None, "counts")))
@example((np.array([1, 0, 1, 0]), np.array([.1, .2, .3, .4]), np.zeros(4, int), "probability", None))
@example((np.array([1, 1, 0, 0, 1, 0]), np.array([.5]*6), np.zeros(6, int), "probability", None))
def test_best_f1_is_the_first_maximum_of_scikit_learns_curve(case):
    y, s, codes, kind, w = case
    weight, p = np.ones(len(y)) if w is None else w, prob(s, kind)
    assume(both_labels(y, weight) and kind != "rank")
    precision, recall, thresholds = sk.precision_recall_curve(y, p, sample_weight=w)
    best = 2*precision*recall/(precision + recall + 1e-8)
    assert ask(*case).t == thresholds[np.argmax(best[:-1])]


@quick
@given(cases(weights=(None, "counts", "floats")))
def test_max_f1_attains_the_maximum(case):
    y, s, _, kind, w = case
    weight, p = np.ones(len(y)) if w is None else w, prob(s, kind)
    assume(both_labels(y, weight))
    c = ask(*case, threshold="max_f1")
    pos = weight[y == 1].sum()
    close(f1(*rates(y, p, weight, c.t), pos), max(f1(tp, fp, pos) for tp, fp in curve(y, p, weight)))
    close(c.overall.confusion(c.t).tp[0], rates(y, p, weight, c.t)[0])


@quick
@given(cases(weights=(None, "counts", "floats")))
def test_youden_attains_the_maximum(case):
    y, s, _, kind, w = case
    weight, p = np.ones(len(y)) if w is None else w, prob(s, kind)
    assume(both_labels(y, weight))
    pos, neg = weight[y == 1].sum(), weight[y == 0].sum()
    c = ask(*case, threshold="youden")
    close(np.subtract(*np.divide(rates(y, p, weight, c.t), (pos, neg))), max(tp/pos - fp/neg for tp, fp in curve(y, p, weight)))


@quick
@given(cases(weights=(None, "counts")), st.sampled_from([.1, .25, .5, .8, .9, 1.0]))
def test_targets_are_met_by_the_best_threshold(case, target):
    "`specificity=x`: as sensitive as a threshold with that specificity can be; and the reverse. So are the groups' own operating points."
    y, s, codes, kind, w = case
    weight, p = np.ones(len(y)) if w is None else w, prob(s, kind)
    assume(both_labels(y, weight))
    pos, neg = weight[y == 1].sum(), weight[y == 0].sum()
    points = [(tp/pos, 1 - fp/neg) for tp, fp in curve(y, p, weight)]
    for names, mine, other in ((("specificity", "tnr"), 1, 0), (("sensitivity", "tpr"), 0, 1)):
        for name in names:
            tp, fp = rates(y, p, weight, ask(*case, threshold=f"{name}={target}").t)
            got = tp/pos, 1 - fp/neg
            assert got[mine] >= target - 1e-9
            close(got[other], max(x[other] for x in points if x[mine] >= target - 1e-12))
    c = ask(*case)
    for i, m in each(c, codes):
        if not both_labels(y[m], weight[m]): continue
        pos, neg = weight[m][y[m] == 1].sum(), weight[m][y[m] == 0].sum()
        own = [(tp/pos, 1 - fp/neg) for tp, fp in curve(y[m], s[m], weight[m])]
        close(c.values(f"tpr_at_tnr={target}")[i], max(a for a, b in own if b >= target - 1e-12))
        close(c.values(f"tnr_at_tpr={target}")[i], max(b for a, b in own if a >= target - 1e-12))


@quick
@given(cases(both=False))
def test_no_threshold_without_both_labels(case):
    y, _, _, _, w = case
    weight = np.ones(len(y)) if w is None else w
    for name in ("best_f1", "max_f1", "youden", "specificity=0.5", "sensitivity=0.5"):
        assert np.isnan(ask(*case, threshold=name).t) == (not both_labels(y, weight))


# ---------------------------------------------------------------- gaps

@quick
@given(cases(weights=(None, "counts")))
def test_gaps_and_worst_groups(case):
    "Largest minus smallest among the groups with both labels; NaN with fewer than two of them."
    y, s, codes, kind, w = case
    c, weight = ask(*case, threshold=.5), np.ones(len(y)) if w is None else w
    take = [i for i, m in each(c, codes) if both_labels(y[m], weight[m])]
    for name in ("auc", "acc", "tpr", "tnr", "bce", "ece"):
        v = c.values(name)[take]
        want = (np.max(v) - np.min(v), np.min(v)
                if METRICS[name].better == "higher" else np.max(v)) if len(take) > 1 and not np.isnan(v).any() else (np.nan, np.nan)
        close((c.gap(name), c.worst(name)), want, rtol=0, atol=0, what=name)


@quick
@given(cases(weights=(None,), groups=5))
def test_values_outside_their_range_never_occur(case):
    "Whatever is in [0, 1] by definition is in [0, 1] or NaN, and a gap is never negative."
    c = ask(*case)
    for m in METRICS.values():
        v = c.values(m.name)
        assert v.shape == (len(c.names),)
        if m.name in ("bce", "cal_slope", "cal_intercept"): continue
        assert ((v >= 0) & (v <= 1 + 1e-12) | np.isnan(v)).all(), m.name
        assert np.isnan(c.gap(m.name)) or 0 <= c.gap(m.name) <= 1 + 1e-12


@quick
@given(cases(kinds=("probability", "logit"), weights=("counts",)))
def test_a_weight_is_a_number_of_copies(case):
    y, s, codes, kind, w = case
    copies = np.repeat(np.arange(len(y)), w.astype(int))
    assume(set(codes[copies]) == set(codes))
    a, b = ask(*case), ask(y[copies], s[copies], codes[copies], kind)
    if not np.isnan(b.t): assert a.t == b.t
    for m in METRICS.values():
        if m.name == "ce_debiased": continue              # equal-mass bins are bins of samples
        far = (np.minimum(s, 1 - s) < 1e-9).any() if kind == "probability" else np.abs(s).max() > 20
        if m.name.startswith("cal_") and far: continue    # ill-conditioned: Newton may give up on one side
        close(a.values(m.name), b.values(m.name), rtol=1e-7, atol=1e-9, what=m.name)


@quick
@given(cases(), st.randoms(use_true_random=False))
def test_neither_the_order_of_samples_nor_the_names_of_groups_matter(case, random):
    y, s, codes, kind, w = case
    order = list(range(len(y))); random.shuffle(order)
    names = sorted(set(codes)); new = dict(zip(names, random.sample(range(9), len(names))))
    a, b = ask(*case), ask(y[order], s[order], np.array([new[c] for c in codes])[order], kind, None if w is None else w[order])
    assert a.t == b.t or np.isnan(a.t) and np.isnan(b.t)
    for m in ("auc", "acc", "tpr", "tnr", "ap", "bce", "ece", "brier", "ppv"):
        close([b.values(m)[b.names.index(f"g{new[int(n[1:])]}")] for n in a.names], a.values(m), atol=1e-12, what=m)


# ---------------------------------------------------------------- fairlearn

noisy = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore:.*:sklearn.exceptions.UndefinedMetricWarning")


@st.composite
def hard(draw, both=True):
    "Hard predictions; every group has both labels when `both`."
    k, n = draw(st.integers(2, 4)), draw(st.integers(0, 30))
    codes = np.r_[np.repeat(np.arange(k), 2), draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))].astype(int)
    y = np.r_[np.tile([0, 1], k) if both else draw(st.lists(st.integers(0, 1), min_size=2*k, max_size=2*k)),
              draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))].astype(int)
    called = np.array(draw(st.lists(st.integers(0, 1), min_size=len(y), max_size=len(y))))
    w = draw(st.sampled_from([None, np.random.default_rng(n).integers(1, 5, len(y)).astype(float)]))
    return y, called, np.array([f"g{c}" for c in codes]), w


@noisy
@settings(max_examples=30, deadline=None)
@given(hard())
def test_fairlearn_agrees(case):
    fl = pytest.importorskip("fairlearn.metrics")
    y, called, g, w = case
    for agg in ("worst_case", "mean"):
        close(fm.equalized_odds_difference(y, called, sensitive_features=g, sample_weight=w, agg=agg),
              fl.equalized_odds_difference(y, called, sensitive_features=g, sample_weight=w, agg=agg))
    close(fm.demographic_parity_difference(y, called, sensitive_features=g, sample_weight=w),
          fl.demographic_parity_difference(y, called, sensitive_features=g, sample_weight=w))
    weights = {} if w is None else {"sample_weight": w}
    frame = fl.MetricFrame(metrics={"tpr": fl.true_positive_rate, "tnr": fl.true_negative_rate, "acc": sk.accuracy_score,
                                    "selection_rate": fl.selection_rate}, y_true=y, y_pred=called,
                           sensitive_features=g, sample_params={m: weights for m in ("tpr", "tnr", "acc", "selection_rate")})
    for m in frame.by_group:
        close(fm.group_metric(m, y, called, sensitive_features=g, sample_weight=w, threshold=.5).to_numpy(),
              frame.by_group[m].to_numpy(float), what=m)
        close(fm.metric_gap(m, y, called, sensitive_features=g, sample_weight=w, threshold=.5), frame.difference()[m], what=m)
        close(Comparison(questions(y, called)[0][0], None, .5, sample_weight=w).total(m), frame.overall[m], what=m)


@noisy
@settings(max_examples=30, deadline=None)
@given(hard(both=False))
def test_demographic_parity_needs_no_labels(case):
    "A group with one label has a selection rate like any other: the difference counts it, as fairlearn's does."
    fl = pytest.importorskip("fairlearn.metrics")
    y, called, g, w = case
    close(fm.demographic_parity_difference(y, called, sensitive_features=g, sample_weight=w),
          fl.demographic_parity_difference(y, called, sensitive_features=g, sample_weight=w))


def test_metricframe_of_auc():
    fl = pytest.importorskip("fairlearn.metrics")
    rng = np.random.default_rng(0)
    y, s, g = rng.integers(0, 2, 900), rng.integers(0, 50, 900)/50, rng.choice(list("abcde"), 900)
    frame = fl.MetricFrame(metrics=sk.roc_auc_score, y_true=y, y_pred=s, sensitive_features=g)
    close(fm.auc_gap(y, s, sensitive_features=g), frame.difference())
    close(fm.worst_group_auc(y, s, sensitive_features=g), frame.by_group.min())
    close(fm.group_metric("auc", y, s, sensitive_features=g).to_numpy(), frame.by_group.to_numpy())


# ---------------------------------------------------------------- several classes, groups, bins

@quick
@given(st.integers(0, 2**32 - 1), st.integers(3, 5), st.booleans())
def test_every_class_against_the_rest(seed, k, logits):
    rng = np.random.default_rng(seed)
    n = 40
    y, z, g = np.r_[np.arange(k), rng.integers(0, k, n - k)], np.round(rng.normal(0, 3, (n, k)), 1), rng.choice(["F", "M"], n)
    p = np.exp(z)/np.exp(z).sum(1, keepdims=True)
    report = fm.evaluate(y, z if logits else p, {"sex": g}, score_type="logit" if logits else "probability")
    for j in range(k):
        rank = log_odds(z, j) if logits else p[:, j]
        close(report.overall[str(j)]["auc"], sk.roc_auc_score(y == j, rank))
        close(report.overall[str(j)]["bce"], sk.log_loss(y == j, p[:, j], labels=[False, True]), rtol=1e-7)
        for sex in "FM":
            m = g == sex
            if 0 < (y[m] == j).sum() < m.sum(): close(report.by_group.loc[(str(j), "sex", sex), "auc"],
                                                      sk.roc_auc_score(y[m] == j, rank[m]))


def same_number(text, value):
    try: return float(text) == value
    except ValueError: return False


@quick
@given(st.lists(st.floats(-1e6, 1e6) | st.integers(0, 120).map(float) | st.just(np.nan), min_size=1, max_size=50),
       st.lists(st.floats(-1e6, 1e6) | st.integers(0, 120), min_size=1, max_size=5))
def test_cut_points_belong_to_the_upper_group(values, cuts):
    values = np.array(values)
    points = cut_points(values, cuts, "age", fm.core.Notes())
    codes, names = cut(values, points)
    assert len(names) == len(set(names)) == len(set(map(float, cuts))) + 1
    for v, c in zip(values, codes): assert c == (-1 if np.isnan(v) else sum(v >= p for p in set(map(float, cuts))))
    ends = [names[0].removeprefix("<"), names[-1].removeprefix(">=")]
    assert [float(e) for e in ends] == [points[0], points[-1]], "names round-trip"
    for name, a, b in zip(names[1:-1], points, points[1:]): assert any(
        name[i] == "-" and same_number(name[:i], a) and same_number(name[i + 1:], b) for i in range(1, len(name)))


@quick
@given(st.lists(st.floats(-1e6, 1e6) | st.integers(0, 120).map(float), min_size=2, max_size=60), st.integers(2, 6))
def test_quantile_groups_split_where_the_quantiles_do(values, k):
    values = np.array(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        codes, _ = cut(values, cut_points(values, k, "age", fm.core.Notes()))
    quantiles = np.unique(np.quantile(values, np.arange(1, k)/k))
    want = np.searchsorted(quantiles, values, side="right")
    same = lambda a: (a[:, None] == a).tolist()
    assert same(codes) == same(want)


@quick
@given(st.integers(1, 4).flatmap(lambda k: st.lists(st.tuples(*[st.sampled_from(["a", "b", "a & b", " & ", '"a"', None, "unknown"])]*k),
                                                    min_size=1, max_size=40)))
def test_intersections_are_pandas_groups(rows):
    frame = pd.DataFrame(rows, columns=[f"x{j}" for j in range(len(rows[0]))])
    parts = groupings(frame)
    both = intersect(parts)
    known = frame.notna().all(axis=1) & ~frame.isin(["unknown"]).any(axis=1)
    assert ((both.codes >= 0) == known).all() and both.n_unknown == (~known).sum()
    groups = frame[known].map(str.strip).groupby(list(frame), sort=False)
    assert len(both.names) == len(set(both.names)) == len(groups)
    for _, inside in groups: assert len(set(both.codes[inside.index])) == 1


@quick
@given(st.lists(st.sampled_from([0.0, .2, .5, .9, 1.0, np.nan]) | st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 5),
       st.integers(0, 9))
def test_dice_summary_is_pandas(dice, k, seed):
    d, g = pd.Series(dice), pd.Series(np.random.default_rng(seed).integers(0, k, len(dice)).astype(str))
    report = fm.evaluate_segmentation({"g": g}, dice=d)
    means = d.groupby(g).mean()
    close(report.by_group["mean_dice"].to_numpy(float), means.to_numpy())
    assert report.by_group["n"].tolist() == d.groupby(g).count().tolist()
    means, row = means.dropna(), report.summary.loc["g"]
    close(row["mean_dice"], d.mean())
    if len(means) < 2: assert row[["delta_dice", "min_dice", "max_dice", "std_dice", "skewness_dice", "es_dice"]].isna().all(); return
    want = dict(min_dice=means.min(), max_dice=means.max(), delta_dice=means.max() - means.min(), std_dice=means.std(ddof=0),
                es_dice=d.mean()/(1 + means.std(ddof=0)),
                skewness_dice=(1 - means.min())/(1 - means.max()) if means.max() < 1 else np.nan)
    for name, value in want.items(): close(row[name], value, rtol=1e-6 if name == "skewness_dice" else 1e-9, what=name)


@quick
@given(cases(kinds=("probability",), groups=6))
def test_the_report_holds_what_the_comparison_holds(case):
    "Every column of `evaluate` is a value of the kernel, in the right row."
    y, s, codes, kind, w = case
    report = fm.evaluate(y, s, {"g": [f"g{c}" for c in codes]}, sample_weight=w, metrics=list(METRICS), threshold="youden")
    c = ask(*case, threshold="youden")
    for m in METRICS.values():
        for column, t in ((m.name, .5), (f"{m.name}@youden", c.t)):
            if column in report.by_group: close(report.by_group[column].to_numpy(float), c.values(m.name, t), rtol=0, atol=0, what=column)
    assert read_threshold("youden")[0] == report.metadata["threshold"]["name"] and report.by_group["n"].tolist() == c.groups.count.tolist()


# ---------------------------------------------------------------- sizes at which the kernels change their way

@pytest.mark.parametrize("n,kind", [(1000, "fine"), (1001, "wide"), (65_535, "logit"), (65_536, "coarse"), (65_537, "fine"),
                                    (65_537, "wide"), (131_073, "logit")])
def test_blocks_and_large_arrays(n, kind):
    "Long arrays are worked on in blocks, text in long arrays by pointer or by packed letters, scores that no line tells apart by rank."
    rng = np.random.default_rng(n)
    y = (rng.random(n) < .3).astype(int)
    s = {"fine": rng.random(n)**(1 + y*.3), "coarse": np.round(rng.random(n)**(1 + y*.3), 2), "logit": rng.normal(y, 3),
         "wide": 10.0**-(300*rng.random(n)**(1 + y*.3))}[kind]
    g = rng.choice(["F", "M", "other"], n)
    kinds = {
        "U": g, "object": g.astype(object), "own strings": np.array(["".join(list(v)) for v in g], dtype=object),
        "None": np.where(rng.random(n) < .1, None, g), "long": np.array([f"a rather long name {v}" for v in g]),
        "letters": np.array([{"F": "é", "M": "日本", "other": "F "}[v] for v in g]),
        "many": np.array([f"s{c}" for c in rng.integers(0, 60, n)]), "codes": rng.integers(-3, 3, n),
        "mixed": np.array([1 if v == "F" else v for v in g], dtype=object)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = fm.evaluate(y, s, kinds, score_type="logit" if kind == "logit" else "probability")
    p = prob(s, "logit" if kind == "logit" else "probability")
    precision, recall, thresholds = sk.precision_recall_curve(y, p)
    t = thresholds[np.argmax((2*precision*recall/(precision + recall + 1e-8))[:-1])]
    for name, column in kinds.items():
        groups = pd.Series(column).astype(object).map(lambda v: str(v).strip(), na_action="ignore")
        assert report.by_group.loc[name].index.tolist() == sorted(groups.dropna().unique(), key=float if name == "codes" else str)
        for k, i in list(groups.groupby(groups).indices.items())[:4]:
            if len(set(y[i])) < 2: continue
            row = report.by_group.loc[(name, k)]
            assert row["n"] == len(i)
            close(row["auc"], sk.roc_auc_score(y[i], s[i]), what=f"{name} {k} auc")
            close(row["ece"], cut_error(p[i], y[i]), rtol=1e-9, what=f"{name} {k} ece")
            close(row["acc"], ((p[i] > .5) == y[i]).mean(), what=f"{name} {k} acc")
            if name != "None": close(row["tpr@best_f1"], (p[i] > t)[y[i] == 1].mean(), what=f"{name} {k} tpr")
    assert report.metadata["threshold"]["value"] == t


# ---------------------------------------------------------------- equity scaling, by the formulas of the papers

def test_equity_scaled_variants():
    rng = np.random.default_rng(1)
    y, s, g = rng.integers(0, 2, 400), rng.random(400), rng.choice(list("abc"), 400)
    total, v = sk.roc_auc_score(y, s), np.array([sk.roc_auc_score(y[g == c], s[g == c]) for c in "abc"])
    wanted = {"luo2023": total/(1 + np.abs(total - v).sum()), "std": total/(1 + v.std()), "std_sample": total/(1 + v.std(ddof=1)),
              "fairodds": total/(1 + fm.equalized_odds_difference(y, s, sensitive_features=g, threshold="best_f1"))}
    for variant, want in wanted.items(): close(fm.equity_scaled_auc(y, s, sensitive_features=g, variant=variant), want, what=variant)
    close(fm.equity_scaled_auc(y, s, sensitive_features=g, alpha=3), total/(1 + 3*np.abs(total - v).sum()))
    psd = fm.metrics.performance_scaled_disparity
    close([psd(y, s, sensitive_features=g), psd(y, s, sensitive_features=g, variant="max"),
           psd(y, s, sensitive_features=g, variant="max", half=True)],
          [v.std()/total, np.ptp(v)/total, np.ptp(v)/abs(total - .5)])
    dice = rng.beta(9, 2, 400)
    means = np.array([dice[g == c].mean() for c in "abc"])
    for variant, penalty in {"fairmedfm": means.std(), "fairseg": np.abs(dice.mean() - means).sum(),
                             "fairseg-std": means.std(ddof=1)}.items():
        close(fm.equity_scaled_dice(dice, sensitive_features=g, variant=variant), dice.mean()/(1 + penalty), what=variant)

"""Pictures: what they show equals the report, they stay legible from 2 to 50 groups and for hostile names, and they leave nothing behind."""
import io
import re
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from fairmedfm import plots  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.report import evaluate, evaluate_segmentation  # noqa: E402
from fairmedfm.uncertainty import Uncertainty  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")
HOSTILE = ["<script>alert(1)</script>", "$\\frac{1}{0}$ $$", "_hidden", "a\x00b\x1b[31m\nc", "x" * 120, "名前 Ωμέγα", "\u202egnp.exe", "</svg>", "&amp; \"q\" 'q'"]


@pytest.fixture(autouse=True)
def nothing_left():
    "No figure stays open, no setting is changed."
    plt.close("all")
    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before


def data(k=2, n=60, names=None, seed=0):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(k), n)
    y = rng.random(k * n) < .35
    y[::n], y[1::n] = True, False
    s = 1 / (1 + np.exp(-rng.normal(1.5 * y - 1 + .02 * group, 1)))
    names = [f"group {i:02d}" for i in range(k)] if names is None else names
    return y.astype(int), s, pd.Series([names[i] for i in group], name="site")


def with_intervals(r, metric, tolerance=None, verdict=None, pairs=None):
    "The report with made-up intervals in the shape that the chapter on uncertainty gives."
    g, p = plots.group_numbers(r, metric), plots.pair_numbers(r, metric)
    low, high = p.difference - .05, p.difference + .05
    told = p.assign(metric=metric, low=low, high=high, verdict=np.where((low > 0) | (high < 0), "different", "cannot say") if verdict is None else verdict, tolerance=np.nan if tolerance is None else tolerance)
    intervals = g.assign(metric=metric, low=g.value - .03, high=g.value + .04, estimate=g.value)[["attribute", "group", "metric", "value", "estimate", "low", "high"]]
    return replace(r, metadata={**r.metadata, "ci": .95}, uncertainty=Uncertainty(intervals, told if pairs is None else pairs, pd.DataFrame(), pd.DataFrame()))


def drawn(ax):
    "Draw, and give the boxes of the axes, the legend and the texts, in pixels."
    fig = ax.figure
    fig.canvas.draw()
    r = fig.canvas.get_renderer()
    legend = ax.get_legend()
    return fig.bbox, ax.get_window_extent(r), None if legend is None else legend.get_window_extent(r), [(t.get_text(), t.get_window_extent(r)) for t in ax.texts if t.get_text()]


def overlap(a, b, slack=1.0): return min(a.x1, b.x1) - max(a.x0, b.x0) > slack and min(a.y1, b.y1) - max(a.y0, b.y0) > slack


def check(ax):
    "The promises of every picture: nothing is cut off, no text covers another, no legend covers data."
    fig, area, legend, texts = drawn(ax)
    for words, box in texts: assert box.x0 >= fig.x0 - 1 and box.x1 <= fig.x1 + 1 and box.y0 >= fig.y0 - 1 and box.y1 <= fig.y1 + 1, f"{words!r} is cut off"
    for i, (a, box) in enumerate(texts):
        for b, other in texts[i + 1:]: assert not overlap(box, other), f"{a!r} covers {b!r}"
    if legend is not None:
        assert not overlap(area, legend) and legend.x0 >= -1 and legend.x1 <= fig.x1 + 1 and legend.y0 >= -1
    return ax


PICTURES = {
    "forest": lambda y, s, g, **kw: plots.forest(evaluate(y, s, g), **kw),
    "forest with intervals": lambda y, s, g, **kw: plots.forest(with_intervals(evaluate(y, s, g), "auc"), **kw),
    "differences": lambda y, s, g, **kw: plots.differences(evaluate(y, s, g), tolerance=.05, **kw),
    "differences with intervals": lambda y, s, g, **kw: plots.differences(with_intervals(evaluate(y, s, g), "tpr", .03), "tpr", **kw),
    "counts": lambda y, s, g, **kw: plots.counts(evaluate(y, s, g), **kw),
    "histograms": lambda y, s, g, **kw: plots.score_histograms(y, s, g, threshold=.4, **kw),
    "dice": lambda y, s, g, **kw: plots.dice_by_group(s, g, **kw),
    "roc": lambda y, s, g, **kw: plots.roc_by_group(y, s, g, **kw),
    "pr": lambda y, s, g, **kw: plots.pr_by_group(y, s, g, **kw),
    "calibration": lambda y, s, g, **kw: plots.calibration_by_group(y, s, g, **kw),
    "size": lambda y, s, g, **kw: plots.dice_by_size(s, 10 + 1000 * np.arange(len(s)) % 977, g, **kw),
    "trade-off": lambda y, s, g, **kw: plots.trade_off({f"model {i}": evaluate(y, np.roll(s, i) * .5 + s * .5, g) for i in range(3)}, **kw),
}
ROWS = ("forest", "forest with intervals", "counts", "histograms", "dice")


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("k", [2, 50])
def test_legible_from_two_to_fifty_groups(kind, k):
    y, s, g = data(k, 30)
    ax = check(PICTURES[kind](y, s, g))
    if kind in ROWS:
        seen = " ".join(t.get_text() for t in ax.texts)
        assert [seen.find(f"group {i:02d} ") for i in range(k)] == sorted(seen.find(f"group {i:02d} ") for i in range(k)) and seen.count("n = 30") == k
    if kind in ("roc", "pr", "calibration"): assert len([t for t in ax.get_legend().get_texts() if "n = 30" in t.get_text()]) == min(k, 6 if k > plots.MANY else k)


@pytest.mark.parametrize("kind", PICTURES)
def test_hostile_names_are_text(kind):
    y, s, g = data(len(HOSTILE), 30, HOSTILE)
    g = {"<b onclick='x'>" * 9: g}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        ax = check(PICTURES[kind](y, s, g))
        svg = plots.to_svg(ax, HOSTILE[0], "lone \ud800", "p9")
    root = ET.fromstring(svg)
    assert {e.tag.split("}")[1] for e in root.iter()} <= {"svg", "title", "desc", "defs", "style", "g", "path", "text", "tspan", "use", "clipPath", "rect", "pattern"}
    assert not re.search(r"<script|\son\w+=|[\x00-\x08\x1b]", re.sub(r">[^<]*<", "><", svg))
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids)) and all(i.startswith("p9-") for i in ids)


@pytest.mark.parametrize("kind", ["forest with intervals", "roc", "histograms", "dice", "trade-off"])
def test_the_same_picture_is_the_same_bytes(kind):
    y, s, g = data(3)
    def png():
        out = io.BytesIO()
        PICTURES[kind](y, s, g).figure.savefig(out, format="png", dpi=60)
        return out.getvalue()
    assert png() == png()
    assert plots.to_svg(PICTURES[kind](y, s, g), "t") == plots.to_svg(PICTURES[kind](y, s, g), "t")


@pytest.mark.parametrize("kind", PICTURES)
def test_draws_into_the_axes_it_is_given(kind):
    y, s, g = data()
    left, right = Figure(figsize=(13, 6), layout="constrained").subplots(1, 2)
    assert PICTURES[kind](y, s, g, ax=right) is right and not left.lines and not left.texts and not plt.get_fignums()
    right.figure.canvas.draw()


# -- sheets: the same pictures without matplotlib -----------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg):
    "The texts of a sheet and the rectangles they take in a wide font."
    texts = [e for e in ET.fromstring(svg).iter(f"{SVG}text") if e.text]
    for e in texts:
        size, bold = float(e.get("font-size") or plots.SMALL), e.get("font-weight") == "bold"
        w, x, y = plots.text_width(e.text, size, bold), float(e.get("x")), float(e.get("y"))
        if e.get("transform"): yield e.text, (x - .75 * size, y - w / 2, x + .2 * size, y + w / 2); continue
        x -= {None: 0, "middle": w / 2, "end": w}[e.get("text-anchor")]
        yield e.text, (x, y - .75 * size, x + w, y + .2 * size)


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("names", ["2", "50", "hostile"])
def test_a_sheet_is_legible(kind, names):
    "No text of a sheet leaves it or covers another, none is lost, and its SVG holds nothing but drawing."
    n = len(HOSTILE) if names == "hostile" else int(names)
    y, s, g = data(n, 30, HOSTILE if names == "hostile" else None)
    sheet = PICTURES[kind](y, s, {"<b onclick='x'>" * 9: g} if names == "hostile" else g, ax=plots.Sheet)
    svg = plots.to_svg(sheet, HOSTILE[0], "lone \ud800", "p9")
    assert sheet.svg(HOSTILE[0], "lone \ud800", "p9") == svg and PICTURES[kind](y, s, g, ax=plots.Sheet).svg() == PICTURES[kind](y, s, g, ax=plots.Sheet).svg()
    found, room = list(boxes(svg)), sheet.room
    for text, (x0, y0, x1, y1) in found: assert x0 >= -.5 and x1 <= room.width + .5 and y0 >= 0 and y1 <= room.height, f"{text!r} leaves the sheet"
    for i, (a, one) in enumerate(found):
        for b, two in found[i + 1:]: assert min(one[2], two[2]) - max(one[0], two[0]) < 1 or min(one[3], two[3]) - max(one[1], two[1]) < 1, f"{a!r} covers {b!r}"
    for text, (x0, y0, x1, y1) in found:
        if kind != "trade-off": assert not (x0 < room.right - 1 and x1 > room.left + 1 and y0 < room.bottom - 1 and y1 > room.top + 1), f"{text!r} lies on the data"
    root = ET.fromstring(svg)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {"svg", "title", "desc", "defs", "g", "path", "text", "clipPath", "rect", "pattern"}
    assert not re.search(r"<script|\son\w+=|[\x00-\x08\x1b]|nan|inf\b", re.sub(r">[^<]*<", "><", svg))
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids)) and all(i.startswith("p9-") for i in ids)


@pytest.mark.parametrize("kind", PICTURES)
def test_a_sheet_shows_what_matplotlib_shows(kind):
    y, s, g = data(3)
    ax, sheet = PICTURES[kind](y, s, g), PICTURES[kind](y, s, g, ax=plots.Sheet)
    points = lambda pairs: sorted(tuple(np.round(np.asarray(v, float)[np.isfinite(v)], 9)) for pair in pairs for v in pair if len(v) > 2)
    lines = [m.parts[0] for m in sheet.marks if not m.area]
    assert points(l.get_data() for l in ax.lines) == points((x, v) for x, v in lines if not (len(x) % 3 == 0 and np.isnan(x[2::3]).all()))
    spans = sorted(round(float(v), 9) for c in ax.collections if hasattr(c, "get_segments") for part in c.get_segments() for v in part[:, 0])
    assert spans == sorted(round(float(v), 9) for x, _ in lines if len(x) > 2 and len(x) % 3 == 0 and np.isnan(x[2::3]).all() for v in x[np.isfinite(x)])
    words = lambda text: "".join(text.split())
    seen = words("".join(t for t, _ in boxes(sheet.svg())))
    for t in (ax.get_title("left"), ax.get_xlabel(), *(t.get_text() for t in ax.texts), *(t.get_text() for t in (ax.get_legend().get_texts() if ax.get_legend() else ()))): assert words(t) in seen, t


@pytest.mark.parametrize("kind", PICTURES)
def test_a_sheet_puts_data_where_its_ticks_say(kind):
    y, s, g = data(3)
    sheet = PICTURES[kind](y, s, g, ax=plots.Sheet)
    number = lambda text: float(text.replace("−", "-").replace(",", ""))
    r = sheet.room
    assert len(r.x_ticks) > 1
    for place, label in r.x_ticks: assert float(sheet.place(number(label), 1)[0]) == pytest.approx(place, abs=.01) and r.left - .1 <= place <= r.right + .1
    for place, label in r.y_ticks: assert float(sheet.place(1, number(label))[1]) == pytest.approx(place, abs=.01) and r.top - .1 <= place <= r.bottom + .1
    at = lambda v: float(sheet.place(v, 1)[0])
    a, b = (number(l) for _, l in r.x_ticks[:2])
    assert (at(a) < at(b)) != sheet.x.flipped and at(-np.inf) in (r.left, r.right)


def test_a_line_of_a_sheet_breaks_where_a_value_is_missing():
    sheet = plots.Sheet(4, 3)
    sheet.plot([0, 1, np.nan, 2, 3], [0, 1, 1, 0, 1])
    assert max((d.count("M") for d in re.findall(r'd="([^"]*)" fill="none" stroke="var\(--fm-ink', sheet.svg())), default=0) == 2


def test_long_words_beside_and_under_the_axes_are_broken():
    y, s, g = data(2)
    sheet = plots.dice_by_size(s, 1 + np.arange(len(s)), g, label="a structure of the " + "very " * 20 + "long name", unit="mm³, or mm² of a flat image" * 3, ax=plots.Sheet)
    assert len(sheet.room.beside) > 1 < len(sheet.room.under)
    for text, (x0, y0, x1, y1) in boxes(sheet.svg()): assert x0 >= 0 and y0 >= 0 and x1 <= sheet.room.width and y1 <= sheet.room.height, text


def test_nothing_to_show_is_an_empty_sheet():
    assert "<svg" in plots.Sheet(4, 3).svg() and len(plots.Sheet(4, 3).room.x_ticks) > 1
    flat = plots.Sheet(4, 3); flat.plot([5, 5], [.5, .5], "o")
    assert "nan" not in flat.svg()


def test_a_forest_shows_the_report():
    y, s, g = data(4)
    r = with_intervals(evaluate(y, s, g, metrics=["ppv"]), "auc")
    ax = plots.forest(r)
    assert np.allclose(next(l for l in ax.lines if len(l.get_xdata()) == 4).get_xdata(), r.by_group["auc"])
    ends = np.array([seg[:, 0] for seg in ax.collections[0].get_segments()])
    assert np.allclose(ends, r.intervals[["low", "high"]])
    assert np.allclose(next(l for l in plots.forest(r, "ppv").lines if len(l.get_xdata()) == 4).get_xdata(), r.by_group["ppv@best_f1"])


def test_differences_show_first_minus_second_with_their_verdict():
    y, s, g = data(3)
    r = with_intervals(evaluate(y, s, g), "auc", .02, ["different", "alike", "cannot say"])
    ax = plots.differences(r)
    marks = [(l.get_xdata()[0], l.get_marker()) for l in ax.lines if len(l.get_xdata()) == 1]
    v = r.by_group["auc"].to_numpy()
    assert np.allclose([x for x, _ in marks], [v[0] - v[1], v[0] - v[2], v[1] - v[2]]) and [m for _, m in marks] == ["D", "s", "o"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["shown different", "shown alike", "cannot say", "tolerance ±0.02"]
    assert any(t.get_text().startswith("group 00 −") for t in ax.texts)


def test_many_groups_are_compared_with_the_rest_or_the_largest():
    y, s, g = data(6)
    r = evaluate(y[:-5], s[:-5], g[:-5])
    assert set(plots.pair_numbers(r).group_b) == {"group 00"} and len(plots.pair_numbers(r)) == 5
    pairs = pd.DataFrame([("site", "auc", f"group {i:02d}", b, .01, -.1, .1, "cannot say") for i in range(6) for b in ("(rest)", "group 05")], columns=["attribute", "metric", "group_a", "group_b", "difference", "low", "high", "verdict"])
    told = with_intervals(r, "auc", pairs=pairs)
    p = plots.pair_numbers(told)
    assert set(p.group_b) == {"(rest)"} and p.n_b.tolist() == [len(y) - 5 - n for n in p.n_a]
    assert "the rest" in " ".join(t.get_text() for t in check(plots.differences(told)).texts)


def test_without_intervals_nothing_is_called_shown():
    y, s, g = data(3)
    words = [t.get_text() for t in plots.differences(evaluate(y, s, g)).get_legend().get_texts()]
    assert words == ["without an interval: may be noise"]
    assert "no intervals" in " ".join(plots.forest(evaluate(y, s, g)).get_xlabel().split())


def test_a_group_without_a_value_keeps_its_row():
    y, s, g = data(3)
    y[g == "group 01"] = 0
    ax = check(plots.forest(evaluate(y, s, g)))
    assert any("group 01" in t.get_text() for t in ax.texts) and any("only label 0" in t.get_text() for t in ax.texts)
    assert len(plots.pair_numbers(evaluate(y, s, g))) == 1
    assert len(plots.roc_by_group(y, s, g).get_legend().get_texts()) == 3
    with pytest.raises(InputError, match="no group defines a curve"): plots.roc_by_group(0 * y + (np.arange(len(y)) < 1), s, np.where(np.arange(len(y)) < 1, "a", "b"))


def test_roc_and_pr_points_are_those_of_scikit_learn():
    from sklearn.metrics import precision_recall_curve, roc_curve
    y, s, _ = data(1, 90)
    s = np.round(s, 2)
    one = np.ones(len(y))
    fpr, tpr = plots.roc_points(y.astype(float), s, one, None, 1.96)
    want = roc_curve(y, s, drop_intermediate=False)
    assert np.allclose(fpr[:, 0], want[0][1:]) and np.allclose(tpr[:, 0], want[1][1:])
    recall, precision = plots.pr_points(y.astype(float), s, one, None, 1.96)
    p, r, _ = precision_recall_curve(y, s)
    assert np.allclose(recall[::-1, 0], r[:-1]) and np.allclose(precision[::-1, 0], p[:-1])


def test_bands_cover_the_true_curve():
    "A normal ROC curve whose points are known: pointwise, well over 90 % of the regions hold their point (0.95 is nominal, for both coordinates together)."
    from scipy.stats import norm
    rng, z, hit = np.random.default_rng(1), 2.236, []
    for _ in range(120):
        y = np.repeat([1., 0], [40, 120])
        s = rng.normal(1.2 * y, 1)
        fpr, tpr = plots.roc_points(y, s, np.ones(160), None, z)
        t = plots._thresholds(y, s, np.ones(160))[50]
        i = int(np.searchsorted(-plots._thresholds(y, s, np.ones(160)), -t))
        hit.append(fpr[i, 1] <= norm.sf(t) <= fpr[i, 2] and tpr[i, 1] <= norm.sf(t - 1.2) <= tpr[i, 2])
    assert np.mean(hit) > .9


def test_patients_widen_the_bands_and_weights_count():
    y, s, _ = data(1, 80)
    many = np.repeat(np.arange(80), 5)
    wide = plots.roc_points(np.repeat(y, 5).astype(float), np.repeat(s, 5), np.ones(400), many, 1.96)[1]
    once = plots.roc_points(y.astype(float), s, np.ones(80), None, 1.96)[1]
    naive = plots.roc_points(np.repeat(y, 5).astype(float), np.repeat(s, 5), np.ones(400), None, 1.96)[1]
    width = lambda p: (p[:, 2] - p[:, 1]).mean()
    assert width(wide) > 1.5 * width(naive) and abs(width(wide) / width(once) - 1) < .1
    ax = plots.roc_by_group(np.repeat(y, 5), np.repeat(s, 5), ["all"] * 200 + ["more"] * 200, clusters=many)
    assert "95%" in ax.get_legend().get_texts()[-1].get_text()
    weighted = plots.roc_points(y.astype(float), s, np.full(80, 3.0), None, 1.96)[1]
    assert np.allclose(weighted, once)


def test_calibration_means_what_it_says():
    rng = np.random.default_rng(0)
    p = rng.beta(1, 2, 5000)
    x, share = plots.calibration_points((rng.random(5000) < p).astype(float), p, np.ones(5000), None, 3.3)
    assert len(x) == 10 and (share[:, 1] < x[:, 0]).all() and (x[:, 0] < share[:, 2]).all()
    with pytest.raises(InputError, match="bare ranking"): plots.calibration_by_group(p > .5, p * 9, np.where(p > .3, "a", "b"), score_type="rank")


def test_logits_are_drawn_as_probabilities():
    y, s, g = data(2)
    logit = np.log(s / (1 - s)) * 1.0
    a, b = plots.calibration_by_group(y, s, g), plots.calibration_by_group(y, logit, g, score_type="logit")
    assert np.allclose(a.lines[0].get_xdata(), b.lines[0].get_xdata())
    assert "score" in plots.score_histograms(y, logit, g, score_type="logit").get_xlabel()


def test_pareto_front():
    rng = np.random.default_rng(0)
    for up in (True, False):
        x, y = rng.integers(0, 5, (2, 30)).astype(float)
        got = set(plots.pareto(x, y, True, up))
        v = y if up else -y
        assert got == {i for i in range(30) if not any(x[j] >= x[i] and v[j] >= v[i] and (x[j] > x[i] or v[j] > v[i]) for j in range(30))}
    assert not plots._rises("auc-gap") and plots._rises("eod") and not plots._rises("eo") and plots._rises("worst-auc") and not plots._rises("delta_dice")


def test_several_questions_and_masks():
    y, s, g = data(2)
    rng = np.random.default_rng(0)
    r = evaluate(pd.DataFrame({"a $": y, "b": rng.integers(0, 2, len(y))}), np.c_[s, s], {"site": g, "sex": np.where(s > .4, "F", "M")})
    for kind in ("forest", "differences", "counts"): assert "b" in check(plots.plot(r, kind, target="b", attribute="sex")).get_title(loc="left")
    check(plots.plot(r, "gaps"))
    check(plots.plot(r, "trade_off"))
    with pytest.raises(InputError, match="did you mean|no target"): plots.forest(r, target="c")
    seg = evaluate_segmentation({"site": g}, dice=s)
    for kind in ("forest", "differences", "counts", "gaps", "trade_off"): check(plots.plot(seg, kind))
    with pytest.raises(InputError, match="segmentation metric"): plots.forest(seg, "auc")
    with pytest.raises(InputError, match="call fairmedfm.plots.dice_by_group"): plots.plot(seg, "dice")
    with pytest.raises(InputError, match="no picture called 'rocc'; did you mean 'roc'"): plots.plot(seg, "rocc")


def test_readable_without_colour():
    "Neighbouring groups differ in dash and mark, and hues in lightness or both."
    looks = [plots.look(i) for i in range(plots.MANY)]
    assert len({(str(l.dash), l.mark) for l in looks}) == len(looks)
    assert all(a.mark != b.mark and str(a.dash) != str(b.dash) and a.colour != b.colour for a, b in zip(looks, looks[1:]))


def test_hues_stay_apart_for_the_colour_blind():
    "The first five hues under simulated protanopia and deuteranopia (Machado et al. 2009, severity 1)."
    see = {"protan": [[.152286, 1.052583, -.204868], [.114503, .786281, .099216], [-.003882, -.048116, 1.051998]],
           "deutan": [[.367322, .860646, -.227968], [.280085, .672501, .047413], [-.011820, .042940, .968881]]}
    rgb = np.array([matplotlib.colors.to_rgb(h) for h in plots.HUES[:4]])
    linear = np.where(rgb <= .04045, rgb / 12.92, ((rgb + .055) / 1.055) ** 2.4)
    def lab(x):
        xyz = np.clip(x, 0, 1) @ np.array([[.4124, .2126, .0193], [.3576, .7152, .1192], [.1805, .0722, .9505]]) / [.9505, 1, 1.089]
        f = np.cbrt(xyz)
        return np.c_[116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])]
    for m in see.values():
        v = lab(linear @ np.array(m).T)
        apart = np.sqrt(((v[:, None] - v[None]) ** 2).sum(-1))[np.triu_indices(4, 1)]
        assert apart.min() > 12, apart.round(1)

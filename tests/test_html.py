"""The page in a real browser, what it may claim, and what it must escape."""
import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fairmedfm import html, plots  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.report import evaluate, evaluate_segmentation  # noqa: E402
from fairmedfm.uncertainty import Uncertainty  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::fairmedfm.core.FairnessWarning")
EVIL = "<script>window.pwned=1;alert(1)</script>"
EVILS = [EVIL, "\"><img src=x onerror=alert(2)>", "'; </script><svg onload=alert(3)>", "{{ 7*7 }}{% raw %}", "</style><style>*{display:none}</style>", "--><!--", "]]>&lt;b&gt;", "javascript:alert(4)"]


def people(n=400, seed=0):
    rng = np.random.default_rng(seed)
    g = pd.DataFrame({"sex": rng.choice(["F", "M"], n), "site": rng.choice(["A", "B", "C"], n, p=[.5, .4, .1]), "age": rng.integers(20, 90, n)})
    y = (rng.random(n) < .3).astype(int)
    return g, y, 1 / (1 + np.exp(-rng.normal(2 * y - 1.6 - .5 * (g.sex == "F") * y, 1.1)))


def with_pairs(r, verdict, low=None, high=None, metric="auc", tolerance=None, difference=None):
    "The report with the pairs of a metric and made-up intervals and verdicts."
    p, g = plots.pair_numbers(r, metric), plots.group_numbers(r, metric)
    pairs = p.assign(metric=metric, low=p.difference - .1 if low is None else low, high=p.difference + .1 if high is None else high, verdict=verdict, p_value=.04, p_adjusted=.2, detectable=.21, tolerance=tolerance or np.nan)
    if difference is not None: pairs["difference"] = difference
    intervals = g.assign(metric=metric, low=g.value - .05, high=g.value + .05, estimate=g.value)[["attribute", "group", "metric", "value", "estimate", "low", "high"]]
    tests = pd.DataFrame({"attribute": r.attributes, "metric": metric, "n_groups": 2, "statistic": 1.5, "p_value": .0004, "p_adjusted": .2, "method": "made up"})
    return replace(r, warnings=[], metadata={**r.metadata, "ci": .95}, uncertainty=Uncertainty(intervals, pairs, tests, pd.DataFrame()))


@pytest.fixture(scope="module")
def report():
    g, y, s = people()
    return evaluate(y, s, g, bins={"age": [40, 60]}, metrics=["ppv"])


@pytest.fixture(scope="module")
def page(report):
    g, y, s = people()
    return html.to_html(report, title="Effusion", notes=["First note.", "Second note."], model_card={"model": "Net", "intended_use": ["triage", "research"]}, y_true=y, y_score=s, sensitive_features=g)


class Outline(HTMLParser):
    "Tags, headings and unclosed elements of a page."
    VOID = {"meta", "link", "br", "img", "input", "hr"}
    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.levels, self.bad = [], [], [], []
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag): self.levels.append(int(tag[1]))
        if tag not in self.VOID: self.open.append(tag)
    def handle_startendtag(self, tag, attrs): self.tags.append((tag, dict(attrs)))
    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag: self.bad.append(tag)


# -- the file ----------------------------------------------------------------------------------------------------------------------------

def test_one_file_that_asks_for_nothing(page):
    out = Outline(page)
    assert not out.bad and not out.open
    for tag, a in out.tags:
        assert not [k for k in a if k.startswith("on")] and tag not in ("img", "iframe", "object", "embed", "form", "base")
        for k in ("src", "href", "xlink:href"): assert a.get(k, "#").startswith(("#", "data:,"))
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org/)", page)
    csp = next(a["content"] for t, a in out.tags if a.get("http-equiv") == "Content-Security-Policy")
    script = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(script) == 1 and __import__("base64").b64encode(hashlib.sha256(script[0].encode()).digest()).decode() in csp


def test_headings_tables_and_pictures_are_marked_up(page):
    out = Outline(page)
    assert out.levels[0] == 1 and out.levels.count(1) == 1 and all(b - a <= 1 for a, b in zip(out.levels, out.levels[1:]))
    assert ("html", {"lang": "en"}) in out.tags
    assert all(a.get("scope") in ("col", "row") for t, a in out.tags if t == "th")
    tags = [t for t, _ in out.tags]
    assert tags.count("table") == tags.count("caption") >= 2
    svgs = [a for t, a in out.tags if t == "svg"]
    assert len(svgs) >= 15 and all(a["role"] == "img" and a["aria-labelledby"] for a in svgs)
    ids = [a["id"] for _, a in out.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for a in svgs: assert set(a["aria-labelledby"].split()) <= set(ids)


def test_the_same_report_is_the_same_page(report, page, tmp_path):
    g, y, s = people()
    kw = dict(title="Effusion", notes=["First note.", "Second note."], model_card={"model": "Net", "intended_use": ["triage", "research"]}, y_true=y, y_score=s, sensitive_features=g)
    import matplotlib
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}): assert html.to_html(report, tmp_path/"a.html", **kw) == page
    assert (tmp_path/"a.html").read_bytes() == page.encode()


def test_the_page_holds_the_report(report, page):
    data = json.loads(re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.S)[1])
    told = json.loads(report.to_json())
    assert all(data[k] == told[k] for k in told) and data["model_card"] == {"model": "Net", "intended_use": ["triage", "research"]}
    assert html.fingerprint(report) == data["fingerprint"] and html.fingerprint(report) in page
    for words in ("First note.", "Second note.", "triage", "Effusion", "found on these same samples", "What the numbers mean", "Curves by sex"): assert words in page
    assert "Not stated by the authors of this page: version" in page


def test_what_was_dropped_is_at_the_top():
    g, y, s = people()
    g.loc[:30, "site"] = "unknown"
    text = html.to_html(evaluate(y, s, g[["site"]]))
    top = text.split('id="pictures"')[0]
    assert "31 samples of unknown group" in top and "Samples that are in no group" in top
    assert "Nothing was dropped" in html.to_html(evaluate(y, s, g.sex))


# -- what may be claimed ---------------------------------------------------------------------------------------------------------------

def test_without_intervals_nothing_is_claimed(report):
    sentences, caveat = html.in_short(report)
    assert caveat.startswith("Differences without intervals may be noise") and not any(s.verdict for s in sentences)
    assert not re.search("shown different|shown alike|worse|better", " ".join(s.text for s in sentences))
    assert caveat in html.to_html(report)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(["different", "alike", "cannot say"]), st.floats(-.3, .3), st.floats(0, .3)), min_size=7, max_size=7))
def test_every_claim_rests_on_a_verdict(rows):
    g, y, s = people()
    r = evaluate(y, s, g, bins={"age": [40, 60]})
    mid, half = np.array([x for _, x, _ in rows]), np.array([x for *_, x in rows])
    told = with_pairs(r, [v for v, *_ in rows], mid - half, mid + half, tolerance=.05, difference=mid)
    sentences, caveat = html.in_short(told, most=99)
    shown = [s for s in sentences if s.verdict == "different"]
    assert bool(caveat) == ("cannot say" in [v for v, *_ in rows]) and len(shown) == sum(v == "different" for v, *_ in rows)
    for s, (v, d, h) in zip(shown, [row for row in rows if row[0] == "different"]):
        assert ("lower" in s.text) == (d <= 0) and f"{html._n(d - h)} to {html._n(d + h)}" in s.text
    for attribute in told.attributes:
        kinds = {v for v, a in zip(told.pairwise.verdict, told.pairwise.attribute) if a == attribute}
        about = [s for s in sentences if f" by {attribute}:" in s.text]
        assert {s.verdict for s in about} == {plots.verdict_kind(k) for k in kinds}
        assert ("the data are compatible with differences from" in " ".join(s.text for s in about)) == ("cannot say" in kinds)


def test_many_findings_stay_short():
    g, y, s = people()
    rng = np.random.default_rng(1)
    r = evaluate(pd.DataFrame({f"finding {i}": rng.integers(0, 2, len(y)) for i in range(9)}), rng.random((len(y), 9)), g[["sex", "site"]])
    assert len(html.in_short(r)[0]) == 2 and "9 questions" in html.in_short(r)[0][0].text
    text = html.to_html(r)
    assert text.count("<details") >= 9 and "gap seen in every question" in text


def test_a_thousand_pairs_do_not_fill_the_page(report):
    told = with_pairs(report, "cannot say")
    many = pd.concat([told.pairwise] * 100, ignore_index=True).assign(p_value=np.linspace(1, 0, 700))
    told.uncertainty.pairwise = many
    t = html.frame_table("pairwise", told.pairwise)
    assert len(t.rows) == 400 and "400 with the smallest p of 700" in t.caption
    assert len(json.loads(re.search(r'id="report">(.*?)</script>', html.to_html(told), re.S)[1])["pairwise"]) == 700


def test_small_groups_are_named():
    g, y, s = people()
    assert "Small groups can show little" in " ".join(html.assumptions(evaluate(y, s, g.site))) and "C (" in " ".join(html.assumptions(evaluate(y, s, g.site)))


def test_definitions_cover_what_is_shown(report):
    titles = {d.title for d in html.definitions(report)}
    assert {"AUC", "accuracy", "sensitivity", "positive predictive value", "Gap", "Equalized odds score (eod)"} <= titles
    assert all("Range" in d.text or d.title in ("Worst group", "Overall") for d in html.definitions(report))
    assert "Interval" in {d.title for d in html.definitions(with_pairs(report, "cannot say"))} - titles


# -- fingerprints ------------------------------------------------------------------------------------------------------------------------

def test_fingerprints(report, tmp_path):
    g, y, s = people()
    again = evaluate(y, s, g, bins={"age": [40, 60]}, metrics=["ppv"])
    assert html.fingerprint(again) == html.fingerprint(report)
    s2 = s.copy(); s2[0] = np.nextafter(s2[0], 1)
    assert html.fingerprint(s2) != html.fingerprint(s) == html.fingerprint(list(s)) == html.fingerprint(pd.Series(s))
    assert html.fingerprint(g) == html.fingerprint({c: g[c] for c in g}) != html.fingerprint(g[::-1])
    (tmp_path/"a.csv").write_bytes(b"x")
    assert html.fingerprint(tmp_path/"a.csv") == hashlib.sha256(b"x").hexdigest()
    assert html.fingerprint(with_pairs(report, "cannot say")) != html.fingerprint(report)
    canonical = json.dumps(html.numbers(report), sort_keys=True, separators=(",", ":"))
    assert html.fingerprint(report) == hashlib.sha256(canonical.encode()).hexdigest()


def test_scores_of_another_report_are_refused(report):
    g, y, s = people(seed=3)
    with pytest.raises(InputError, match="do not belong to this report"): html.to_html(report, y_true=y, y_score=s, sensitive_features=g)
    with pytest.raises(InputError, match="no attribute of this report called 'hospital'"): html.to_html(report, y_true=y, y_score=s, sensitive_features={"hospital": g.sex})


@pytest.mark.parametrize("kw, say", [
    (dict(y_true=[0]), "together"), (dict(dice=[.5]), "sensitive_features"), (dict(size=[1]), "'size' is of no use"), (dict(clusters=[1]), "'clusters' is of no use"),
    (dict(dice=[.5], sensitive_features=["F"]), "about scores"), (dict(pos_label=1), "none was given"), (dict(model_card=3), "mapping")])
def test_what_is_given_is_used_or_refused(report, kw, say):
    with pytest.raises(InputError, match=say): html.to_html(report, **kw)


def test_a_file_that_cannot_be_written(report, tmp_path):
    with pytest.raises(InputError, match="does not exist"): report.to_html(tmp_path/"no"/"a.html")
    assert not list(tmp_path.iterdir())


# -- hostile text ------------------------------------------------------------------------------------------------------------------------

@lru_cache(None)
def hostile_page():
    r, kw = hostile()
    return html.to_html(r, **kw)


def hostile():
    "A report whose every name is an attack, and the arguments of a page about it."
    g, y, s = people()
    names = dict(enumerate(EVILS))
    bad = pd.DataFrame({EVILS[0]: (np.arange(len(y)) % len(EVILS)).astype(int)})
    bad = bad.apply(lambda c: c.map(names))
    r = with_pairs(evaluate(y, s, bad), "different")
    r.warnings = list(EVILS)
    r.metadata["command"] = EVILS[2]
    r.unknown = pd.DataFrame({"attribute": EVILS[:1], "value": EVILS[1:2], "n": [1]})
    return r, dict(title=EVILS[0], notes=EVILS, model_card={e: e for e in EVILS}, y_true=y, y_score=s, sensitive_features=bad)


def test_hostile_text_is_text():
    text = hostile_page()
    out = Outline(text)
    assert not out.bad and not out.open and text.count("<script") == 2 and text.count("<style") == 1 and "<img" not in text
    assert not [a for t, a in out.tags for k in a if k.startswith("on")]
    assert "{{ 7*7 }}" in text and "49" not in re.findall(r"<li>([^<]*)\{% raw", text)


def test_hostile_characters_do_not_break_the_page():
    r, kw = hostile()
    r.warnings = ["\x00\x1b[31m\u202e\ud800 lone", "\u2028"]
    text = html.to_html(r, title="\ud800")
    text.encode("utf-8")
    assert not re.search("[\x00\x1b\u202e]", text)


# -- in a browser ------------------------------------------------------------------------------------------------------------------------

CHROME = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROME is None: pytest.skip("no Chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as p:
        b = p.chromium.launch(executable_path=CHROME, args=FLAGS)
        yield b
        b.close()


@pytest.fixture
def visit(browser, tmp_path):
    "Open a page; whatever it says, asks for or pops up fails the test in the end."
    said, contexts = [], []
    def go(text, width=1280, scheme="light", **kw):
        (tmp_path/"page.html").write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **kw))
        tab = contexts[-1].new_page()
        tab.on("console", lambda m: said.append(f"console: {m.text}"))
        tab.on("pageerror", lambda e: said.append(f"error: {e}"))
        tab.on("dialog", lambda d: (said.append(f"dialog: {d.message}"), d.dismiss()))
        tab.on("request", lambda r: said.append(f"request: {r.url}") if not r.url.startswith(("file:///", "data:,", "blob:")) or r.url.count("page.html") == 0 and r.url.startswith("file") else None)
        tab.goto((tmp_path/"page.html").as_uri())
        return tab
    yield go
    for c in contexts: c.close()
    assert not said


def column(tab, n): return tab.eval_on_selector_all("#groups-table tbody tr", f"rows => rows.map(r => r.cells[{n}].textContent.trim())")


def test_tables_sort_by_mouse_and_keyboard(visit, page, report):
    tab = visit(page)
    heads = tab.eval_on_selector_all("#groups-table thead th", "hs => hs.map(h => h.textContent.trim())")
    at = heads.index("samples")
    button = tab.locator("#groups-table thead th").nth(at).get_by_role("button")
    button.focus(); tab.keyboard.press("Enter")
    number = [int(x.replace(",", "")) for x in column(tab, at)]
    assert number == sorted(number) and tab.locator("#groups-table th").nth(at).get_attribute("aria-sort") == "ascending"
    tab.keyboard.press("Space")
    assert [int(x.replace(",", "")) for x in column(tab, at)] == sorted(number, reverse=True) and tab.locator("#groups-table th").nth(at).get_attribute("aria-sort") == "descending"
    tab.locator("#groups-table thead th").nth(1).get_by_role("button").click()
    names = column(tab, 1)
    assert sorted(names) == sorted(report.by_group.index.get_level_values("group")) and [x for x in names if x.isalpha()] == ["A", "B", "C", "F", "M"]
    assert tab.locator("#groups-table th").nth(at).get_attribute("aria-sort") == "none"
    assert tab.eval_on_selector_all("thead th", "hs => hs.every(h => h.querySelector('button') && h.scope === 'col')")


def test_missing_values_sort_last(visit):
    g, y, s = people()
    y[g.site == "B"] = 0
    tab = visit(html.to_html(evaluate(y, s, g.site)))
    heads = tab.eval_on_selector_all("#groups-table thead th", "hs => hs.map(h => h.textContent.trim())")
    for _ in range(2):
        tab.locator("#groups-table thead th").nth(heads.index("AUC")).get_by_role("button").click()
        assert column(tab, heads.index("AUC"))[-1] == "–"


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_fits_the_screen(visit, page, width):
    tab = visit(page, width)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wide = tab.evaluate("[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide') && !e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName)")
    assert not wide
    assert all(w >= min(300, width - 60) for w in tab.eval_on_selector_all("svg.picture", "s => s.map(e => e.getBoundingClientRect().width)"))


def test_dark_and_light(visit, page):
    paper = "getComputedStyle(document.body).backgroundColor"
    for scheme, own, other in (("light", "rgb(255, 255, 255)", "rgb(20, 23, 28)"), ("dark", "rgb(20, 23, 28)", "rgb(255, 255, 255)")):
        tab = visit(page, scheme=scheme)
        ink = lambda: tab.evaluate("getComputedStyle(document.querySelector('svg.picture text')).fill")
        assert tab.evaluate(paper) == own
        first = ink()
        tab.locator("#theme").click()
        assert tab.evaluate(paper) == other and ink() != first
        tab.emulate_media(media="print")
        assert tab.evaluate(paper) == "rgb(255, 255, 255)" and ink() == "rgb(0, 0, 0)"


def test_prints_everything(visit, page, tmp_path):
    tab = visit(page)
    assert tab.locator("details[open]").count() < tab.locator("details").count()
    tab.evaluate("window.seen = 0; addEventListener('beforeprint', () => { window.seen = document.querySelectorAll('details:not([open])').length })")
    pdf = tab.pdf(format="A4")
    assert tab.evaluate("window.seen") == 0 and pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 3
    if shutil.which("pdftotext"):
        (tmp_path/"p.pdf").write_bytes(pdf)
        text = subprocess.run(["pdftotext", str(tmp_path/"p.pdf"), "-"], capture_output=True, text=True).stdout
        assert "Area under the ROC curve" in text and "Curves by sex" in text


def test_hostile_names_are_inert(visit):
    tab = visit(hostile_page())
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert tab.evaluate("window.pwned") is None and tab.locator("h1").text_content() == EVIL
    assert tab.evaluate("JSON.parse(document.getElementById('report').textContent).warnings") == EVILS
    assert tab.locator("img, main script").count() == 0 and tab.locator("h1").is_visible()
    assert EVIL[:10] in tab.locator("svg.picture text").all_text_contents().__str__()


def test_saves_what_it_shows(visit, page, report):
    tab = visit(page)
    with tab.expect_download() as got: tab.get_by_role("button", name="Save the numbers (JSON)").click()
    assert json.loads(Path(got.value.path()).read_text(encoding="utf-8"))["summary"] == json.loads(report.to_json())["summary"]
    with tab.expect_download() as got: tab.get_by_role("button", name="Save the groups (CSV)").click()
    table = pd.read_csv(got.value.path())
    assert np.array_equal(table["AUC"], report.by_group["auc"]) and table["group"].tolist() == list(report.by_group.index.get_level_values("group"))


def test_rows_can_be_filtered(visit):
    g, y, s = people()
    r = evaluate(pd.DataFrame({f"finding {i}": np.roll(y, i) for i in range(5)}), np.c_[s, s, s, s, s], g[["sex", "site"]])
    tab = visit(html.to_html(r))
    tab.get_by_label("Show rows with").first.fill("finding 3")
    assert tab.locator("#groups-table tbody tr:visible").count() == 5


def test_works_without_script(visit, page):
    tab = visit(page, java_script_enabled=False)
    assert tab.locator("#theme").is_hidden() and tab.locator("#groups-table tbody tr").count() == 8 and tab.locator("svg.picture").first.is_visible()


def test_skip_link(visit, page):
    tab = visit(page)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("location.hash") == "#short"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, report, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = visit(html.to_html(with_pairs(report, ["different", "alike", "cannot say"] * 2 + ["alike"], tolerance=.05), model_card={"model": ["a", "b"]}), scheme=scheme, bypass_csp=True)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = axe.run(tab).response["violations"]
    assert not [(v["id"], v["impact"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical", "moderate")]


def test_titles_and_rows_stay_inside_their_pictures(visit, report):
    "No text of a picture of rows runs out of it, however long the metric's name."
    tab = visit(html.to_html(with_pairs(report, "cannot say", metric="ece")))
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    out = tab.evaluate("""[...document.querySelectorAll('svg.picture')].flatMap(s => { const b = s.getBoundingClientRect();
        return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect(); return r.right > b.right + 6 || r.left < b.left - 6 }).map(t => t.textContent) })""")
    assert not out


def test_the_leaderboard_is_such_a_page(visit):
    pytest.importorskip("scikit_posthocs")
    from fairmedfm.bench.leaderboard import leaderboard
    rng = np.random.default_rng(0)
    rows = [(d, m, a, .8 + .02 * i + .01 * rng.normal(), .05 + .01 * rng.random()) for d in ("HAM10000", "PAPILA", "CXP", EVIL) for a in ("sex", "age") for i, m in enumerate(("CLIP", "DINOv2", "a model with a very long name indeed", EVILS[1]))]
    text = leaderboard(pd.DataFrame(rows, columns=["dataset", "model", "attribute", "utility", "gap"])).to_html()
    assert not Outline(text).bad and text.count("<script") == 1 and "data:image" not in text
    for width, scheme in ((360, "light"), (1280, "dark")):
        tab = visit(text, width, scheme=scheme, bypass_csp=True)
        assert tab.evaluate("window.pwned") is None and tab.evaluate("document.documentElement.scrollWidth") <= width and tab.locator("svg.picture").count() == 4
        rank = tab.locator("#table0 tbody th").all_text_contents()
        tab.get_by_role("button", name="rank by utility").click()
        assert tab.locator("#table0 tbody th").all_text_contents() == rank                       # best first already
        tab.get_by_role("button", name="rank by utility").click()
        assert tab.locator("#table0 tbody th").all_text_contents()[0] == rank[-1]
        if (axe := pytest.importorskip("axe_playwright_python.sync_playwright")):
            assert not [v["id"] for v in axe.Axe().run(tab).response["violations"] if v["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("name", ["support2", "nih_scores"])
def test_real_reports(visit, shared, name):
    t = pd.read_csv(shared/name/"scores.csv")
    if name == "support2":
        t = t.dropna(subset=["score_model_60d"])
        r = evaluate(t.label_death_60d, t.score_model_60d, t[["sex", "race", "age"]], bins={"age": [50, 65, 80]})
    else: r = evaluate(t[["label_hernia", "label_effusion"]].set_axis(["hernia", "effusion"], axis=1), t[["score_hernia", "score_effusion"]].set_axis(["hernia", "effusion"], axis=1), t[["sex", "age"]], bins={"age": [60]})
    tab = visit(html.to_html(r), 360)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert ("asian" if name == "support2" else "hernia") in tab.locator("main").text_content()
    if name == "nih_scores": assert "0.950" in tab.locator("#groups-table").text_content()


# -- segmentation, LaTeX, missing packages ---------------------------------------------------------------------------------------------

def test_segmentation_page(visit):
    g, y, s = people()
    r = evaluate_segmentation(g[["sex"]], dice={"liver": s, "tumour": s ** 2})
    tab = visit(html.to_html(r, dice={"liver": s, "tumour": s ** 2}, size={"liver": g.age}, sensitive_features=g[["sex"]]))
    titles = tab.locator("svg.picture title").all_text_contents()
    assert {"Dice, liver by sex", "Dice, tumour by sex", "Dice, liver against object size by sex"} <= set(titles) and "Dice, tumour against object size by sex" not in titles
    assert "liver" in tab.locator("main").text_content() and "AUC" not in tab.locator("#short ~ ul").first.text_content()
    one = evaluate_segmentation(g[["sex"]], dice=s)
    text = html.to_html(one, dice=s, size=g.age, sensitive_features=g[["sex"]])
    assert "Dice against object size" in text and "AUC gap of" not in text


@given(st.text(max_size=30))
def test_latex_escapes_everything(name):
    out = html.tex(name)
    bare = re.sub(r"\\(textbackslash|textasciicircum|textasciitilde|textless|textgreater|textbar|textquotedbl|dots)\{\}|\\[{}$&#_%]|\$(-|\\geq|\\leq|\\pm|\\times|\\cdot|\\to|\^2|\\[A-Za-z]+)\$", "", out)
    assert not re.search(r"[\\{}$&#^_~%<>|\"]", bare)


def test_latex_tables(report, tmp_path):
    told = with_pairs(report, "different")
    for table in ("groups", "summary", "pairwise"):
        text = html.to_latex(told, tmp_path/"t.tex", table=table, label="tab:x")
        body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0]
        rows = [l for l in body.split("\n") if l.endswith(r"\\")]
        columns = len(re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1])
        assert rows and all(len(re.findall(r"(?<!\\)&", l)) == columns - 1 for l in rows) and (tmp_path/"t.tex").read_text() == text
    assert r"\textless{}40" in html.to_latex(told) and "(" in html.to_latex(told)
    if shutil.which("pdflatex"):
        (tmp_path/"d.tex").write_text("\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs,graphicx}\\begin{document}" + "".join(html.to_latex(told, table=t) for t in ("groups", "summary", "pairwise")) + "\\end{document}")
        assert subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"], cwd=tmp_path, capture_output=True).returncode == 0


ONE = """
import sys; sys.modules[{missing!r}] = None
from fairmedfm.report import evaluate
from fairmedfm.html import to_html
try: print(to_html(evaluate([0, 1, 0, 1], [.1, .9, .3, .4], list("FFMM")), y_true=[0, 1, 0, 1], y_score=[.1, .9, .3, .4], sensitive_features=list("FFMM")).count("<svg"))
except ImportError as e: print(e)
"""


def test_a_missing_package_is_one_line():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ONE.format(missing="jinja2")], capture_output=True, text=True)
    assert done.stdout.strip() == """the HTML report needs the package 'jinja2'; run: pip install "fairmedfm[plots]\"""", done.stderr[-500:]


def test_a_page_needs_no_matplotlib():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ONE.format(missing="matplotlib")], capture_output=True, text=True)
    assert int(done.stdout) >= 10, done.stderr[-500:]


def test_dice_of_bins_is_drawn_in_the_order_of_the_report():
    g, dice = people()[0], np.random.default_rng(4).beta(8, 2, 400)
    report = evaluate_segmentation(g[["age"]], dice=dice, bins={"age": [40, 60]})
    page = html.to_html(report, dice=dice, size=np.arange(1, 401), sensitive_features=g[["age"]])
    assert re.findall(r">([^<>]*) \(n = \d+\): mean", page) == ["&lt;40", "40-60", "&gt;=60"]

"""Prompts from masks: the published ones against their definition on random masks, chance that belongs to one sample, clicks that go where it is wrong."""
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
ndimage = pytest.importorskip("scipy.ndimage")

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.usages.prompts import PROMPTS, ask, connected, correction, deepest, objects, read_plan, tight_box  # noqa: E402

shapes = st.one_of(st.tuples(*[st.integers(1, 14)]*2), st.tuples(*[st.integers(1, 7)]*3))
masks = st.builds(lambda shape, seed, share: np.random.default_rng(seed).random(shape) < share, shapes, st.integers(0, 10**6), st.floats(.02, .9)).filter(np.any)
ONE_OBJECT = [p for p in PROMPTS if p not in ("text", "clicks", "negatives")]


def inside(mask, at): return bool(mask[tuple(np.rint(at).astype(int)[::-1])])


@settings(max_examples=80)
@given(masks, st.integers(0, 10**6))
def test_the_published_prompts_are_their_definition(mask, seed):
    at = np.argwhere(mask)[:, ::-1]
    first, last = at.min(0), at.max(0)
    def one(name): return ask(read_plan(name), mask, "a", seed)[0]
    assert (one("bbox")["boxes"] == np.r_[first, last]).all() and (tight_box(mask) == np.r_[first, last]).all()
    assert (one("center")["points"] == [(first + last)//2]).all() and one("center")["labels"].tolist() == [1]
    for name, n in (("rand", 1), ("rands", 5), ("rands:17", 17)):
        p = one(name)
        assert p["points"].shape == (n, mask.ndim) and (p["labels"] == 1).all() and all(inside(mask, x) for x in p["points"])


@settings(max_examples=60)
@given(masks, st.integers(0, 10**6), st.sampled_from(ONE_OBJECT))
def test_a_prompt_is_legal_and_its_own(mask, seed, name):
    from fairmedfm.models.promptable import read_prompt
    p = ask(read_plan(name), mask, "a", seed)[0]
    read_prompt(mask.shape, **p)                                                         # inside the image, box ends not before it begins
    again, other = ask(read_plan(f"{name}+negatives:2"), mask, "a", seed)[0], ask(read_plan(name), mask, "b", seed)[0]
    for key in ("boxes",) if "boxes" in p else ("points",): assert (again[key][:len(p[key])] == p[key]).all(), "what else is asked changes nothing"
    assert PROMPTS[name].chance or all((p[k] == other[k]).all() for k in p)


@settings(max_examples=60)
@given(masks)
def test_the_deepest_point_is_inside_and_deepest(mask):
    at, depth = deepest(mask)
    edt = ndimage.distance_transform_edt(np.pad(mask, 1))[(slice(1, -1),)*mask.ndim]
    assert inside(mask, at) and np.isclose(edt[tuple(at[::-1])], edt.max()) and np.isclose(depth, edt.max())


@settings(max_examples=40)
@given(masks, st.integers(0, 10**6))
def test_a_correction_lies_in_the_error(mask, seed):
    guess = np.random.default_rng(seed).random(mask.shape) < .5
    click = correction(mask, guess)
    if (mask == guess).all(): assert click is None
    else: assert inside(mask ^ guess, click["points"][0]) and click["labels"][0] == int(inside(mask, click["points"][0]))


@settings(max_examples=40)
@given(masks)
def test_components_are_the_mask(mask):
    parts, left = objects(mask, "component", most=1000)
    assert left == 0 and (np.sum(parts, axis=0) == mask).all() and len(parts) == connected(mask)[1]
    assert len(ask(read_plan("bbox"), mask, "a", per="component")) == min(20, len(parts)) and len(ask(read_plan("bbox"), mask, "a")) == 1


def test_chance_depends_on_seed_and_sample_alone():
    mask = np.zeros((64, 64), bool); mask[10:50, 5:60] = True
    def at(sample, seed=0): return ask(read_plan("rand"), mask, sample, seed)[0]["points"].tolist()
    alone = {s: at(s) for s in "abcdef"}
    assert alone == {s: at(s) for s in "fedcba"} and len({str(v) for v in alone.values()}) > 4 and at("a", 1) != at("a")
    drawn = np.array([at(f"s{i}")[0] for i in range(3000)])
    assert abs(drawn.mean(0) - [32, 29.5]).max() < 1.5 and drawn.min(0).tolist() == [5, 10] and drawn.max(0).tolist() == [59, 49]      # uniform over the object


def test_background_points_are_near_and_outside():
    mask = np.zeros((40, 60), bool); mask[:8, 50:] = True                                 # in the corner
    p = ask(read_plan("bbox+negatives:200"), mask, "a")[0]
    x, y = p["points"].astype(int).T
    assert not mask[y, x].any() and y.max() <= 11 and x.min() >= 45 and (p["labels"] == 0).all()
    assert "points" not in ask(read_plan("bbox+negatives"), np.ones((9, 9), bool), "a")[0], "an object that fills the image has no background"


@pytest.mark.parametrize("name", ["", "box:", "bbox:", "rand:", "clicks:0", "rands:1e9", "bbox-jitter:1", "negatives", "text+text", "nonsense:3", "rand+"])
def test_a_plan_that_cannot_be_read(name):
    if name in ("bbox:", "rand:", "box:"): assert read_plan(name)                          # an empty number is none
    else:
        with pytest.raises(InputError): read_plan(name)

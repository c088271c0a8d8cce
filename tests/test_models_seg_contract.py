"""The one contract of promptable models: geometry point by point, prompts, choice, embeddings on disk, refusals, real images."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("segment_anything")
from hypothesis import given, settings, strategies as st  # noqa: E402
from PIL import Image  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.core import how_to_get, runs_here, weights_hash  # noqa: E402
from fairmedfm.models.promptable import (CHOICES, PROMPTABLE_ROWS, RULE_ROWS, TINY, BySlices, Embedding, Frame, Picture, back, box_mask,  # noqa: E402
                                         load_segmenter, onto, published, read_prompt)
from fairmedfm.models.sam import SAM_ROWS  # noqa: E402
from fairmedfm.models.sam3d import SAM3D_ROWS  # noqa: E402

ROWS = {r.name: r for r in (*SAM_ROWS, *SAM3D_ROWS)}
BASELINES = {r.name: r for r in PROMPTABLE_ROWS}
GRIDS = [(300, 180), (180, 300), (257, 199), (96, 96), (33, 47), (1, 40)]


# -- geometry ------------------------------------------------------------------------------------------------------------------------------

def light(transform, grid, at):
    "The centre of mass, in the input, of one marked pixel of the image."
    dark = np.full((*grid, 3), 20, np.uint8)
    bright = dark.copy(); bright[at[1], at[0]] = 255
    base = transform(bright).median() if transform.stretch else transform(dark)             # a stretched image has no dark twin
    x = (transform(bright) - base).abs().sum(0).numpy()
    rows, columns = np.indices(x.shape)
    return np.array([(x*columns).sum(), (x*rows).sum()])/x.sum()


@pytest.mark.parametrize("name", [n for n, r in ROWS.items() if r.dims == "2D"])
def test_a_marked_pixel_lands_where_the_model_sees_it(name):
    transform = replace(ROWS[name].preprocess, size=256)
    for h, w in GRIDS:
        frame = transform.frame((h, w))
        for at in {(0, 0), (w - 1, h - 1), (w//2, h//3), (w//4, h - 1)}:
            if transform.interpolation != "nearest" or frame.scale[0] >= 1:
                edge = 8 if min(at[0], w - 1 - at[0], at[1], h - 1 - at[1]) == 0 else .6              # resampling pulls a pixel at the border inwards
                edge *= max(1., *frame.scale)/1. if min(at[0], w - 1 - at[0], at[1], h - 1 - at[1]) == 0 else max(1, max(frame.scale)/8)
                assert np.abs(light(transform, (h, w), at) - frame.points(at)).max() < edge, (name, (h, w), at)
            x, y = frame.points(at)
            assert -.5 <= x <= 255.5 and -.5 <= y <= 255.5


@settings(max_examples=60)
@given(st.integers(8, 90), st.integers(8, 90), st.sampled_from(["longest", "squash"]), st.booleans(), st.data())
def test_boxes_cover_the_same_pixels_in_both_frames(h, w, resize, centre, data):
    frame = Picture(64, resize, centre=centre).frame((h, w))
    x0, y0 = data.draw(st.integers(0, w - 1)), data.draw(st.integers(0, h - 1))
    x1, y1 = data.draw(st.integers(x0, w - 1)), data.draw(st.integers(y0, h - 1))
    box = frame.boxes([x0, y0, x1, y1])
    low, high = frame.points([x0 - .5, y0 - .5]), frame.points([x1 + .5, y1 + .5])
    assert (box[:2] == pytest.approx(low + .5, abs=1e-3)) and (box[2:] >= high - .5 - 1e-3).all() and (box[2:] >= box[:2]).all()
    inside = box_mask((h, w), np.array([x0, y0, x1, y1]))
    assert inside.sum() == (x1 - x0 + 1)*(y1 - y0 + 1)


@settings(max_examples=40)
@given(st.integers(10, 70), st.integers(10, 70), st.sampled_from(["longest", "squash"]), st.integers(0, 2**16))
def test_a_mask_goes_to_the_model_and_back(h, w, resize, seed):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:h, :w]
    mask = np.hypot((y - rng.uniform(.3, .7)*h)/h, (x - rng.uniform(.3, .7)*w)/w) < .25
    frame = Picture(128, resize).frame((h, w))
    again = back(frame, onto(frame, mask, (128, 128))[None] - .5)[0].numpy() > 0
    assert again.shape == mask.shape and (again != mask).mean() < .06


def test_the_published_protocol_squashes_and_standardises_the_same_for_all():
    kinds = {published(replace(r.preprocess, size=256)) for r in SAM_ROWS}
    assert len(kinds) == 1 and next(iter(kinds)).channels == "RGB" and not next(iter(kinds)).antialias


def test_frames_with_turned_axes_are_their_own_inverse():
    frame = Frame((4, 5, 6), (4, 5, 6), (1, 1, 1), (0, 0, 0), (False, True, True))
    a = np.arange(120.).reshape(4, 5, 6)
    assert (back(frame, onto(frame, a, (4, 5, 6))[None])[0].numpy() == a).all()
    assert frame.points(frame.points([1, 2, 3])).tolist() == [1, 2, 3]


# -- prompts and choice --------------------------------------------------------------------------------------------------------------------

@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_any_pixel_is_a_prompt_and_nothing_beyond(h, w, data):
    x, y = data.draw(st.integers(0, w - 1)), data.draw(st.integers(0, h - 1))
    assert read_prompt((h, w), [x, y]).kinds == ("point",) and read_prompt((h, w), boxes=[x, y, x, y]).kinds == ("box",)
    for bad in ([w + 1, y], [x, -2]):
        with pytest.raises(InputError, match="outside"): read_prompt((h, w), bad)


def test_the_three_rules():
    s = torch.tensor([.3, .9, .4])
    assert [CHOICES[r](s, .5) for r in ("best", "single", "confidence")] == [1, 0, 1] and CHOICES["confidence"](s, .95) is None
    assert {r.choice for r in ROWS.values()} == {"best", "single", "confidence"}


# -- rows ----------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", list(ROWS))
def test_every_row_is_complete_and_refuses_without_weights(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    r = ROWS[name]
    assert r.licence and r.layout and r.note and r.files and r.prompts and r.choice in CHOICES and r.extra == "seg" and r.lora and r.params and (r.hub or r.source)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as e: load_segmenter(r, pretrained_root=tmp_path)
    assert r.name in str(e.value) and (r.files[0] in str(e.value)) and "\n" not in str(e.value)
    if r.gated: assert "accept its terms" in how_to_get(r)
    assert runs_here(r, tmp_path)[0] in ("no", "after a download")
    with pytest.raises(InputError, match="no file or folder"): load_segmenter(r, checkpoint=tmp_path/"none.pth")


@pytest.mark.parametrize("name", list(ROWS))
def test_a_foreign_file_is_refused_in_one_sentence(name, tmp_path):
    for held in ({"model": {"fc.weight": torch.ones(2, 2)}}, {"epoch": 3}):
        torch.save(held, tmp_path/"foreign.pth")
        with pytest.raises(InputError) as e: load_segmenter(ROWS[name], tmp_path/"foreign.pth")
        assert "\n" not in str(e.value) and len(str(e.value)) < 400


def test_thirteen_models_and_four_that_need_no_download():
    assert len(ROWS) == 13 and list(BASELINES) == ["Box", "GrabCut", "RegionGrowing", "TinySegmenter"]
    assert all(runs_here(r)[0] == "yes" for r in BASELINES.values())


# -- the small network ---------------------------------------------------------------------------------------------------------------------

def test_the_small_network_is_small_and_whole():
    model = load_segmenter(TINY)
    file = next(__import__("pathlib").Path(__import__("fairmedfm").__file__).parent.glob("weights/tinysegmenter/*.safetensors"))
    assert file.stat().st_size < 3_000_000 and sum(p.numel() for p in model.module.parameters()) < 750_000
    assert len(model.lora_targets) > 5 and 0 < sum(p.numel() for p in model.module.decoder_parameters()) < sum(p.numel() for p in model.module.parameters())


def test_an_embedding_on_disk_answers_like_the_image(tmp_path):
    model, image = load_segmenter(TINY), np.random.default_rng(0).integers(0, 256, (70, 101, 3), np.uint8)
    e = model.set_image(image)
    again = Embedding.load(e.save(tmp_path/"e.safetensors"))
    for p in (dict(points=[[50, 30], [3, 3]], labels=[1, 0]), dict(boxes=[10, 10, 60, 40])):
        a, b = model.predict(e, **p), model.predict(again, **p)
        assert (a.mask == b.mask).all() and a.score == b.score and (a.logits == b.logits).all()
    assert [f.name for f in tmp_path.iterdir()] == ["e.safetensors"]


def test_batches_give_the_numbers_of_single_images():
    model, rng = load_segmenter(TINY), np.random.default_rng(0)
    images = [rng.integers(0, 256, s, np.uint8) for s in ((50, 70, 3), (90, 40, 3), (128, 128, 3))]
    for image, e in zip(images, model.set_images(images)):
        alone = model.set_image(image)
        assert alone.frame == e.frame and all(np.allclose(alone.arrays[k], e.arrays[k], atol=1e-5) for k in e.arrays)


def test_training_the_decoder_keeps_the_embedding_and_changes_the_prediction():
    model = load_segmenter(TINY)
    e = model.set_image(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    before, encoding, fingerprint = model.predict(e, [30, 30]), model.encoding, model.fingerprint
    for p in model.module.decoder_parameters(): p.requires_grad_()
    logits, _ = model.decode(e, model.prompt(e, [30, 30]))
    logits.mean().backward()
    assert all(p.grad is None for p in model.module.image_encoder.parameters())
    with torch.no_grad():
        for p in model.module.decoder_parameters(): p -= .1*(p.grad if p.grad is not None else 0)
    assert model.encoding == encoding and model.fingerprint != fingerprint and not (model.predict(e, [30, 30]).logits == before.logits).all()
    with torch.no_grad(): next(model.module.image_encoder.parameters()).add_(1)
    with pytest.raises(InputError, match="set_image again"): model.predict(e, [30, 30])


def test_gradients_reach_the_encoder_when_asked():
    model = load_segmenter(TINY)
    model.module.image_encoder.requires_grad_(True)
    features, frames = model.features([np.zeros((40, 40, 3), np.uint8)])
    logits, _ = model.answer(features, frames[0], read_prompt((40, 40), [20, 20]))
    logits.sum().backward()
    assert model.module.image_encoder.stem[0].weight.grad.abs().sum() > 0


def test_the_same_weights_have_the_same_fingerprint_in_another_process():
    import subprocess, sys
    code = "from fairmedfm.models.promptable import *; print(*(load_segmenter(r).fingerprint for r in PROMPTABLE_ROWS))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == [load_segmenter(r).fingerprint for r in PROMPTABLE_ROWS] and len(set(out)) == 4


# -- the baselines -------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [r.name for r in RULE_ROWS])
def test_baselines_answer_in_two_and_three_dimensions(name):
    model = load_segmenter(BASELINES[name])
    image = np.full((40, 60), 50, np.uint8); image[10:30, 20:45] = 200
    e = model.set_image(image)
    for p in (dict(boxes=[17, 7, 47, 32]), dict(points=[32, 20])):
        mask = model.predict(e, **p).mask
        assert mask.shape == (40, 60) and mask[20, 32] and not mask[0, 0]
    volume = np.repeat(image[None].astype(np.int16)*3 - 200, 6, 0)
    e = model.set_image(volume, spacing=(2., 1., 1.))
    for p in (dict(boxes=[17, 7, 1, 47, 32, 4]), dict(points=[32, 20, 3])):
        mask = model.predict(e, **p).mask
        assert mask.shape == volume.shape and mask[3, 20, 32] and not mask[0, 0, 0]
    with pytest.raises(InputError, match="prompts"): model.predict(e, text="ball")


def test_a_volume_stored_the_other_way_round_gives_the_mirrored_answer():
    rng = np.random.default_rng(0)
    volume = rng.normal(0, 1, (7, 30, 40)); volume[2:5, 10:20, 12:30] += 8
    for row in RULE_ROWS:
        model = load_segmenter(row)
        a = model.predict(model.set_image(volume, (3., 1., 1.)), boxes=[11, 9, 2, 31, 21, 4]).mask
        b = model.predict(model.set_image(volume[::-1, :, ::-1].copy(), (3., 1., 1.)), boxes=[39 - 31, 9, 6 - 4, 39 - 11, 21, 6 - 2]).mask
        assert (a != b[::-1, :, ::-1]).mean() < (.002 if row.name == "GrabCut" else 1e-9), row.name


def test_slices_of_a_volume_are_the_pictures():
    model = load_segmenter(TINY)
    volume = np.random.default_rng(0).integers(0, 256, (4, 50, 60), np.uint8)
    e = BySlices(model).set_image(volume)
    whole = BySlices(model).predict(e, boxes=[10, 10, 1, 40, 40, 2]).mask
    for z in (1, 2): assert (whole[z] == model.predict(model.set_image(volume[z]), boxes=[10, 10, 40, 40]).mask).all()
    assert not whole[[0, 3]].any() and sum(k.startswith("slice") for k in e.arrays) == 6


# -- real images ---------------------------------------------------------------------------------------------------------------------------

def test_lungs_by_the_box_and_by_the_models_that_need_no_download(shared):
    """The box against a computation from the file; GrabCut against OpenCV called by hand: the same pixels, each time. How good it is on a lung nobody promises:
    lungs are as dark as what lies beside the patient, and the cut takes them or the heart between them."""
    pd, cv2 = pytest.importorskip("pandas"), pytest.importorskip("cv2")
    for row in pd.read_csv(shared/"lung_seg"/"metadata.csv").head(2).itertuples():
        image, mask = (Image.open(shared/"lung_seg"/p) for p in (row.image_path, row.mask_path))
        image, mask = np.asarray(image.convert("RGB").resize((160, 150))), np.asarray(mask.resize((160, 150), Image.Resampling.NEAREST)) > 127
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        box = [columns[0], rows[0], columns[-1], rows[-1]]
        found = {}
        for name, spec in BASELINES.items():
            model = load_segmenter(spec)
            found[name] = model.predict(model.set_image(image), boxes=box).mask
            assert found[name].shape == mask.shape and (found[name] == model.predict(model.set_image(image), boxes=box).mask).all(), name
        area, inside = (columns[-1] - columns[0] + 1)*(rows[-1] - rows[0] + 1), mask.sum()
        assert 2*(found["Box"] & mask).sum()/(found["Box"].sum() + inside) == pytest.approx(2*inside/(area + inside), abs=1e-12)
        seeds = np.full(mask.shape, cv2.GC_BGD, np.uint8)
        seeds[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1] = cv2.GC_PR_FGD
        cv2.setRNGSeed(0)
        cv2.grabCut(np.ascontiguousarray(image[..., ::-1]), seeds, None, np.zeros((1, 65)), np.zeros((1, 65)), 5, cv2.GC_INIT_WITH_MASK)
        assert (found["GrabCut"] == (seeds == cv2.GC_PR_FGD)).all()
        for name in ("GrabCut", "RegionGrowing"): assert not (found[name] & ~found["Box"]).any(), "a rule stays in its box"
        assert found["TinySegmenter"].any()                                                 # it has never seen a lung


def test_grab_cut_finds_what_stands_out():
    "A bright lump on a textured ground, with and without noise: whatever the machine, it is found."
    rng, (y, x) = np.random.default_rng(0), np.mgrid[:90, :120]
    lump = ((y - 40)/22)**2 + ((x - 70)/30)**2 < 1
    model = load_segmenter(BASELINES["GrabCut"])
    for noise in (0, 8, 15):
        image = np.clip(60 + 20*np.sin(x/9.)*np.cos(y/7.) + 90*lump + rng.normal(0, noise, lump.shape), 0, 255).astype(np.uint8)
        mask = model.predict(model.set_image(image), boxes=[38, 16, 102, 64]).mask
        assert 2*(mask & lump).sum()/(mask.sum() + lump.sum()) > .95, noise

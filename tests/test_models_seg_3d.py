"""SAM-Med3D, FastSAM3D and SegVol: small checkpoints in the published layouts, against the published code's own answers."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("segment_anything")
import seg_oracles as oracles  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.promptable import Embedding, load_segmenter  # noqa: E402
from fairmedfm.models.sam3d import SAM3D_ROWS, Blocks, Windows, cut, seen_from  # noqa: E402

ROWS = {r.name: r for r in SAM3D_ROWS}


@pytest.fixture(scope="module")
def known(): return oracles.load()


def block_model(name, key, known, folder):
    torch.save({"model_state_dict": oracles.state(known[key]["shapes"]), "args": __import__("argparse").Namespace(lr=1)}, folder/ROWS[name].files[0])
    return load_segmenter(replace(ROWS[name], preprocess=Blocks(size=(64, 64, 64))), folder, precision="fp32")


@pytest.mark.parametrize("name,key", [("SAM-Med3D", "med3d"), ("FastSAM3D", "fast3d")])
def test_blocks_are_answered_as_by_the_published_code(name, key, known, tmp_path):
    model = block_model(name, key, known, tmp_path)
    stored = oracles.volume((64, 64, 64))[:, ::-1, ::-1].copy()                     # the published block is right–front–head
    e = model.set_image(stored, (1.5, 1.5, 1.5))
    points = np.array([[36., 26., 34.], [10., 12., 50.]])
    points[:, :2] = 63 - points[:, :2]
    answer = model.predict(e, points, [1, 0])
    told = known[key]["points"]
    assert answer.score == pytest.approx(told["score"], abs=1e-4) and abs(int(answer.mask.sum()) - told["pixels"]) <= 5
    features = e.arrays["block 0 0 0"]
    assert np.allclose(oracles.some(features), known[key]["feature"], atol=2e-4)
    with torch.no_grad(): low, _ = model.module.decode({"image": torch.from_numpy(features)[None]}, torch.tensor([[[36., 26., 34.], [10., 12., 50.]]]), torch.tensor([[1, 0]]))
    assert np.allclose(oracles.some(low[0, 0].numpy()), told["logits"], atol=2e-4)


def test_clicks_share_a_block_and_far_ones_are_left_out_aloud(known, tmp_path):
    model = block_model("SAM-Med3D", "med3d", known, tmp_path)
    e = model.set_image(oracles.volume((50, 120, 120)), (3., 1.5, 1.5))
    first = model.predict(e, [60, 60, 25])
    model.predict(e, [[60, 60, 25], [64, 57, 26]], [1, 0], mask=first.logits)
    model.predict(e, [62, 61, 25], mask=first.mask)
    assert sum(k.startswith("block") for k in e.arrays) == 1
    outside = ~np.isfinite(first.logits)
    assert outside.any() and not first.mask[outside].any() and first.mask.shape == (50, 120, 120)
    with pytest.warns(UserWarning, match="left out"): model.predict(e, [[60, 60, 25], [2, 2, 1]], [1, 0])
    with pytest.raises(InputError, match="needs the spacing"): model.set_image(np.zeros((4, 4, 4)))
    with pytest.raises(InputError, match="takes point prompts"): model.predict(e, boxes=[0, 0, 0, 5, 5, 5])


def test_patches_are_kept_with_the_embedding(known, tmp_path):
    model = block_model("FastSAM3D", "fast3d", known, tmp_path)
    e = model.set_image(oracles.volume((30, 40, 50)), (2., 1., 1.))
    a = model.predict(e, [25, 20, 15])
    again = Embedding.load(e.save(tmp_path/"e.safetensors"))
    assert "block" in " ".join(again.arrays) and again.spacing == (2., 1., 1.)
    assert (model.predict(again, [25, 20, 15]).logits == a.logits).all()


@pytest.mark.parametrize("spacing", [(1.5, 1.5, 1.5), (5., .7, .9), (1., 3., 1.2)])
@pytest.mark.parametrize("at", [(0, 0, 0), (11, 37, 29), (5, 12, 3)])
def test_a_marked_voxel_lands_where_the_block_shows_it(spacing, at):
    t, volume = Blocks(size=(64, 64, 64)), np.zeros((12, 38, 30), np.float32)
    volume[at] = 500
    prepared, frame = t(volume, spacing), t.frame(volume.shape, spacing)
    place = frame.points(at[::-1])
    start = t.start(prepared.shape, place[::-1])
    found = np.array(np.unravel_index(int(cut(prepared, start, t.size).argmax()), t.size)) + start
    reach = [max(1., s/1.5) for s in spacing]
    assert (np.abs(found[::-1] - place) <= np.array(reach[::-1])).all()
    assert [float(seen_from(frame)[a][at[a]]) for a in range(3)] == pytest.approx(place[::-1].tolist(), abs=1e-4)


def test_ct_is_cut_and_other_images_are_not():
    t = Blocks()
    assert float(t(np.array([[[-1024., 3000.]]], np.float32), (1.5, 1.5, 1.5)).max()) == 1000
    assert float(t(np.array([[[0., 3000.]]], np.float32), (1.5, 1.5, 1.5)).max()) == 3000


# -- SegVol --------------------------------------------------------------------------------------------------------------------------------

CLIP = dict(vocab_size=12, hidden_size=512, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, bos_token_id=0, eos_token_id=1, pad_token_id=1)


def segvol(known, folder, prefix="module.", wrapper="model", name="SegVol_v1.pth"):
    state = {prefix + k: v for k, v in oracles.state(known["segvol"]["shapes"]).items()}
    torch.save({wrapper: state} if wrapper else state, folder/name)
    row = replace(ROWS["SegVol"], preprocess=Windows((8, 32, 32)), kwargs=dict(patch=(4, 16, 16), heads=12, clip=CLIP))
    return load_segmenter(row, folder/name, precision="fp32")


def test_segvol_prepares_and_answers_as_the_published_code(known, tmp_path):
    pytest.importorskip("monai"); pytest.importorskip("einops"); pytest.importorskip("transformers")
    model, told = segvol(known, tmp_path), known["segvol"]
    e = model.set_image(oracles.volume((14, 60, 50)))
    assert e.arrays["crop"].tolist() == told["crop"]
    shrunk = torch.nn.functional.interpolate(torch.from_numpy(e.arrays["volume"])[None, None], size=(8, 32, 32), mode="nearest-exact")
    assert np.allclose(oracles.some(shrunk.numpy()), told["zoomed"], atol=1e-5)
    far, net = {"image": torch.from_numpy(e.arrays["far"])[None]}, model.module
    with torch.no_grad():
        words = net.text_encoder["dim_align"](net.text_encoder["clip_text_model"](input_ids=torch.tensor([[0, 2, 7, 1]]), attention_mask=torch.ones(1, 4).long()).pooler_output)
        asked = dict(box=dict(boxes=torch.tensor([[1., 5., 6., 5., 20., 25.]])), points=dict(points=torch.tensor([[[3., 10., 12.], [6., 25., 4.]]]), labels=torch.tensor([[1, 0]])), text=dict(text=words))
        for kind, p in asked.items(): assert np.allclose(oracles.some(net.decode(far, **p)[0][0, 0].numpy()), told[kind]["logits"], atol=2e-4), kind


def test_segvol_reads_both_files_and_shares_its_windows(known, tmp_path):
    pytest.importorskip("monai"); pytest.importorskip("einops"); pytest.importorskip("transformers")
    (tmp_path/"hub").mkdir()
    a, b = segvol(known, tmp_path), segvol(known, tmp_path/"hub", "model.", None, "pytorch_model.bin")
    assert a.fingerprint == b.fingerprint
    with torch.no_grad():                                   # an answer that finds something: the decoder's last bias raised
        a.module.mask_decoder.output_hypernetworks_mlps[0].layers[-1].bias.add_(3)
    e = a.set_image(oracles.volume((14, 60, 50)))
    box = [10, 12, 3, 40, 45, 10]
    first = a.predict(e, boxes=box)
    kept = set(e.arrays)
    second = a.predict(e, boxes=box)
    assert set(e.arrays) == kept and (first.logits == second.logits).all() and first.mask.shape == (14, 60, 50) and np.isnan(first.score)
    if first.mask.any(): assert any(k.startswith("window") for k in kept)
    low, high = e.arrays["crop"]
    outside = np.ones((14, 60, 50), bool)
    outside[:, ::-1, ::-1][tuple(slice(p, q) for p, q in zip(low, high))] = False
    assert not first.mask[outside].any()
    with pytest.raises(InputError, match="constant"): a.set_image(np.zeros((8, 8, 8)))


@pytest.mark.parametrize("shape,low,high", [((40, 64, 50), (0, 0, 0), (40, 64, 50)), ((9, 33, 31), (2, 3, 4), (5, 6, 7)), ((100, 70, 40), (50, 60, 30), (99, 70, 40))])
def test_windows_cover_the_region_and_stay_inside(shape, low, high):
    w = Windows((8, 32, 32))
    covered = np.zeros(shape, bool)
    for start in w.starts(shape, low, high):
        assert all(s + size <= n or n <= size for s, size, n in zip(start, w.size, shape))
        covered[tuple(slice(max(0, s), s + size) for s, size in zip(start, w.size))] = True
    assert covered[tuple(slice(a, b) for a, b in zip(low, high))].all()

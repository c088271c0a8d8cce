"""SAM and its relatives: small checkpoints in the published layouts through the real loading path, against the published code's own answers."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("segment_anything")
pytest.importorskip("timm")
import seg_oracles as oracles  # noqa: E402

from fairmedfm.core import InputError  # noqa: E402
from fairmedfm.models.core import IMAGENET  # noqa: E402
from fairmedfm.models.promptable import Picture, load_segmenter  # noqa: E402
from fairmedfm.models.sam import SAM_ROWS, vit_shape  # noqa: E402

ROWS = {r.name: r for r in SAM_ROWS}
POINTS, LABELS, BOX = np.array([[30., 40.], [80., 20.]]), [1, 0], np.array([20., 10., 80., 70.])


@pytest.fixture(scope="module")
def known(): return oracles.load()


def as_they_do(model, shape, points, box):
    "The same prompt in their convention, which scales a pixel's corner where ours scales its centre."
    scale = np.array(model.transform.frame(shape).scale)[::-1]
    return points - .5 + .5/scale, np.r_[box[:2], box[2:] + 1/scale - 1]


def same(prediction, told, pixels=0):
    assert np.allclose(oracles.some(prediction.logits), told["logits"], atol=2e-4) and prediction.score == pytest.approx(told["score"], abs=1e-4)
    if "pixels" in told: assert abs(int(prediction.mask.sum()) - told["pixels"]) <= pixels


@pytest.mark.parametrize("name,key", [("MobileSAM", "mobile"), ("TinySAM", "tiny")])
def test_tinyvit_sams_answer_as_their_own_code(name, key, known, tmp_path):
    state = oracles.state(known[key]["shapes"])
    counters = {k.replace("running_mean", "num_batches_tracked"): torch.tensor(7) for k in state if k.endswith("running_mean")}
    torch.save({**state, **counters, "image_encoder.layers.1.blocks.0.attn.attention_bias_idxs": torch.zeros(49, 49).long()}, tmp_path/ROWS[name].files[0])
    model = load_segmenter(ROWS[name], tmp_path, precision="fp32")
    e = model.set_image(oracles.picture())
    points, box = as_they_do(model, (90, 120), POINTS, BOX)
    same(model.predict(e, points, LABELS), known[key]["points"])
    same(model.predict(e, boxes=box), known[key]["box"])
    assert any("head" in k for k in state) and e.arrays["image"].shape == (256, 64, 64)


@pytest.mark.parametrize("name,key", [("SAM-Med2D", "med2d"), ("FT-SAM", "ftsam")])
def test_sams_at_256_answer_as_their_own_code(name, key, known, tmp_path):
    optimiser = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    torch.save({"model": oracles.state(known[key]["shapes"]), "optimizer": optimiser}, tmp_path/ROWS[name].files[0])
    model = load_segmenter(ROWS[name], tmp_path, precision="fp32")
    e = model.set_image(oracles.picture((300, 400, 3)))                       # blue first, standardised, nearest
    points, box = as_they_do(model, (300, 400), 2*POINTS, 2*BOX)
    same(model.predict(e, points, LABELS), known[key]["points"])
    same(model.predict(e, boxes=box), known[key]["box"])
    small = model.set_image(oracles.picture())                                   # smaller than 256: in the centre of zeros
    assert small.frame.offset == (83, 68)
    same(model.predict(small, POINTS, LABELS), known[key]["small"])


def hiera(folder, state, **more):
    torch.save({"model": state, **more}, folder/"m.pt")
    backbone = dict(model_type="sam2_hiera_det_model", hidden_size=16, embed_dim_per_stage=[16, 32, 64, 128], num_attention_heads_per_stage=[1, 2, 4, 8])
    (folder/"config.json").write_text(json.dumps({"vision_config": {"backbone_config": backbone, "backbone_channel_list": [128, 64, 32, 16]}}))
    return folder/"m.pt"


def test_sam2_answers_as_metas_package(known, tmp_path):
    pytest.importorskip("transformers")
    row = replace(ROWS["SAM2"], preprocess=Picture(128, "squash", IMAGENET, direct=True))
    file = hiera(tmp_path, oracles.state(known["sam2"]["shapes"]))
    model = load_segmenter(row, file, precision="fp32")
    e = model.set_image(oracles.picture())
    points, box = as_they_do(model, (90, 120), POINTS, BOX)
    same(model.predict(e, points, LABELS), known["sam2"]["points"])
    same(model.predict(e, boxes=box), known["sam2"]["box"])
    assert sum(k.startswith("memory") for k in known["sam2"]["shapes"]) > 50                    # what follows videos is in the file, and left there
    medical = load_segmenter(replace(ROWS["MedSAM2"], preprocess=row.preprocess), file, precision="fp32")
    same(medical.predict(medical.set_image(oracles.picture()), boxes=box), known["sam2"]["single"])
    with pytest.raises(InputError, match="takes box prompts"): medical.predict(medical.set_image(oracles.picture()), points)


def test_sam2_names_what_does_not_fit(known, tmp_path):
    pytest.importorskip("transformers")
    state = oracles.state(known["sam2"]["shapes"])
    lacking = {k: v for k, v in state.items() if k != "sam_mask_decoder.iou_token.weight"}
    row = replace(ROWS["SAM2"], preprocess=Picture(128, "squash", IMAGENET))
    with pytest.raises(InputError, match="mask_decoder.iou_token.weight"): load_segmenter(row, hiera(tmp_path, lacking))
    (tmp_path/"config.json").unlink()
    with pytest.raises(InputError, match="no Hiera encoder"): load_segmenter(row, tmp_path/"m.pt")
    with pytest.raises(InputError, match="configuration"): load_segmenter(ROWS["SAM"], tmp_path/"m.pt", config="sam2.1_hiera_t.yaml")


@pytest.mark.parametrize("name,sizes", [("SAM2", (112, 24)), ("MedSAM2", (96, 12))])
def test_the_real_sam2_is_recognised_by_its_file(name, sizes):
    from fairmedfm.models.sam import check_config, hiera_config
    fake = {"vision_encoder.backbone.patch_embed.projection.weight": torch.empty(sizes[0], 3, 7, 7, device="meta"), f"vision_encoder.backbone.blocks.{sizes[1] - 1}.x": torch.empty(0)}
    size, config = hiera_config(fake, "f.pt")
    assert sum(config["blocks_per_stage"]) == sizes[1]
    check_config({"tiny": "sam2.1_hiera_t512.yaml", "base-plus": "configs/sam2.1/sam2.1_hiera_b+.yaml"}[size], size, "f.pt")


# -- SAM itself ----------------------------------------------------------------------------------------------------------------------------

def sam_file(folder, size=128, dim=32, name="sam_vit_b_01ec64.pth", whole=(1,)):
    "A small SAM saved as the real one: the state of segment_anything's Sam."
    from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, Sam, TwoWayTransformer
    from functools import partial
    sam = Sam(ImageEncoderViT(depth=2, embed_dim=dim, img_size=size, num_heads=2, qkv_bias=True, use_rel_pos=True, global_attn_indexes=list(whole), window_size=4, out_chans=256, norm_layer=partial(torch.nn.LayerNorm, eps=1e-6)),
              PromptEncoder(embed_dim=256, image_embedding_size=(size//16,)*2, input_image_size=(size, size), mask_in_chans=16),
              MaskDecoder(num_multimask_outputs=3, transformer=TwoWayTransformer(depth=2, embedding_dim=256, mlp_dim=64, num_heads=8), transformer_dim=256, iou_head_depth=3, iou_head_hidden_dim=64))
    sam.load_state_dict({k: oracles.numbers(k, tuple(v.shape)) for k, v in sam.state_dict().items()})
    torch.save(sam.state_dict(), folder/name)
    return sam.eval(), folder/name


SMALL = replace(ROWS["SAM"], preprocess=Picture(128), kwargs=dict(trained=128))


@pytest.mark.parametrize("shape", [(90, 120), (121, 77), (64, 64), (300, 31)])
def test_sam_and_segment_anything_agree_on_mask_score_and_refinement(shape, tmp_path):
    from segment_anything import SamPredictor
    sam, file = sam_file(tmp_path)
    theirs, model = SamPredictor(sam), load_segmenter(SMALL, file, precision="fp32")
    picture = np.random.default_rng(1).integers(0, 256, (*shape, 3), np.uint8)
    theirs.set_image(picture); e = model.set_image(picture)
    at, box = as_they_do(model, shape, np.array([[shape[1]//3, shape[0]//2.]]), np.array([2., 3., shape[1] - 4, shape[0] - 5]))
    for ours, kwargs in ((dict(points=at), dict(point_coords=np.array([[shape[1]//3, shape[0]//2]]), point_labels=np.array([1]))), (dict(boxes=box), dict(box=np.array([2., 3., shape[1] - 4, shape[0] - 5])))):
        a, (masks, scores, low) = model.predict(e, **ours), theirs.predict(**kwargs, multimask_output=True)
        best = scores.argmax()
        assert np.allclose(a.logits, low[best], atol=1e-4) and a.score == pytest.approx(float(scores[best]), abs=1e-5) and (a.mask == masks[best]).mean() > .999
        refined, (_, scores, low) = model.predict(e, **ours, mask=a.logits), theirs.predict(**kwargs, mask_input=low[best][None], multimask_output=True)
        assert np.allclose(refined.logits, low[scores.argmax()], atol=1e-4)


def test_medsam_gets_stretched_pixels_one_mask_and_boxes_only(tmp_path):
    sam, file = sam_file(tmp_path, name="medsam_vit_b.pth")
    row = replace(ROWS["MedSAM"], preprocess=replace(ROWS["MedSAM"].preprocess, size=128), kwargs=dict(trained=128))
    model = load_segmenter(row, file, precision="fp32")
    dull = (oracles.picture()//4 + 60).astype(np.uint8)
    x = model.transform(dull)
    assert float(x.min()) == 0 and float(x.max()) == 1 and x.shape == (3, 128, 128)
    e = model.set_image(dull)
    a = model.predict(e, boxes=BOX)
    with torch.no_grad():                                        # MedSAM's own inference, spelt out
        sparse, dense = sam.prompt_encoder(points=None, boxes=torch.tensor(e.frame.boxes(BOX))[None], masks=None)
        low, _ = sam.mask_decoder(image_embeddings=sam.image_encoder(x[None]), image_pe=sam.prompt_encoder.get_dense_pe(), sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, multimask_output=False)
        mask = torch.nn.functional.interpolate(low.sigmoid(), size=(90, 120), mode="bilinear", align_corners=False)[0, 0] > .5
    assert np.allclose(a.logits, low[0, 0], atol=1e-4) and (a.mask != mask.numpy()).mean() < .002
    with pytest.raises(InputError, match="takes box prompts; it was not trained with a point"): model.predict(e, [5, 5])
    paper = load_segmenter(row, file, precision="fp32", protocol="paper")
    with pytest.warns(UserWarning, match="was not trained with point"): paper.predict(paper.set_image(dull), [5, 5])
    assert paper.transform.norm == IMAGENET and not paper.transform.stretch


def test_a_larger_vit_is_recognised_and_another_size_refused(tmp_path):
    _, file = sam_file(tmp_path, dim=48)
    model = load_segmenter(SMALL, file, precision="fp32")
    assert vit_shape(model.module.state_dict())["embed_dim"] == 48
    with pytest.raises(InputError, match="for images of 128 pixels, and SAM has 1024"): load_segmenter(ROWS["SAM"], file)


def test_img_size_resamples_positions_and_nothing_is_left_at_random(tmp_path):
    _, file = sam_file(tmp_path)
    a, b = (load_segmenter(SMALL, file, precision="fp32", size=192) for _ in range(2))
    assert a.fingerprint == b.fingerprint and a.transform.size == 192
    e = a.set_image(oracles.picture())
    assert e.arrays["image"].shape == (256, 12, 12) and a.predict(e, [30, 40]).logits.shape == (48, 48)
    state, wide = load_segmenter(SMALL, file).module.state_dict(), a.module.state_dict()
    changed = {k for k in wide if wide[k].shape != state[k].shape}
    assert changed == {"image_encoder.pos_embed", "image_encoder.blocks.1.attn.rel_pos_h", "image_encoder.blocks.1.attn.rel_pos_w"}


def test_lora_layers_are_the_encoders(tmp_path):
    _, file = sam_file(tmp_path)
    assert load_segmenter(SMALL, file).lora_targets == ["image_encoder.blocks.0.attn.qkv", "image_encoder.blocks.1.attn.qkv"]


def test_a_pickle_with_code_loads_its_tensors_and_runs_nothing(tmp_path):
    _, file = sam_file(tmp_path)
    state = torch.load(file)
    class Bad:
        def __reduce__(self): return os.mkdir, (str(tmp_path/"run"),)
    torch.save({"model": state, "extra": Bad()}, tmp_path/"bad.pth")
    load_segmenter(SMALL, tmp_path/"bad.pth")
    assert not (tmp_path/"run").exists()

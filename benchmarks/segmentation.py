"""What a promptable model costs beyond one encoding of each image, as ratios within one run.

    python benchmarks/segmentation.py [--images 8] [--part prompts|tuning|memory] [--small]

A SAM ViT-B at 1024 pixels with random weights (a mask is a mask) on pictures of 512 pixels, in processor time. Floors: four prompt kinds
at most 1.15 times one; a second attribute, and a second method of fine-tuning on kept embeddings, at least 20 times faster than the first
(an epoch of one prompt, its encoding included); memory at 300 images at most 1.1 times that at 100. `--small` replaces SAM by a network
of a few milliseconds: does it run? (The ratios mean nothing then.)
"""
import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

from fairmedfm.data.core import from_table
from fairmedfm.models.promptable import TINY, SegModel, TinyNet
from fairmedfm.models.sam import SAM1_ROWS, SamNet, build_vit
from fairmedfm.train.loop import Training
from fairmedfm.usages.decoder import run_segmentation
from fairmedfm.usages.segment import SegCache, seg_run, segment

VIT_B = dict(img_size=1024, patch_size=16, embed_dim=768, depth=12, num_heads=12, mlp_ratio=4.0, out_chans=256, window_size=14, global_attn_indexes=(2, 5, 8, 11))

def network(small):
    "SAM ViT-B, or a small network, with random weights."
    torch.manual_seed(0)
    return SegModel(TinyNet(TINY) if small else SamNet(SAM1_ROWS[0], build_vit(VIT_B)), precision="fp32")

def pictures(folder, n):
    "n grey pictures of an ellipse, their masks, and a table with two attributes."
    rng, rows = np.random.default_rng(0), []
    y, x = np.mgrid[:512, :512]
    for i in range(n):
        mask = ((y - rng.uniform(200, 312))/rng.uniform(40, 150))**2 + ((x - rng.uniform(200, 312))/rng.uniform(40, 150))**2 < 1
        for name, a in (("image", np.clip(90 + 60*mask + rng.normal(0, 12, mask.shape), 0, 255)), ("mask", mask*255)): Image.fromarray(a.astype(np.uint8)).save(folder/f"{name}{i}.png")
        rows.append({"image": f"image{i}.png", "mask": f"mask{i}.png", "sex": "FM"[i % 2], "race": "ABC"[i % 3], "patient": f"p{i}", "split": ("train", "train", "valid", "test")[i//2 % 4]})
    pd.DataFrame(rows).to_csv(folder/"samples.csv", index=False)
    return from_table(folder/"samples.csv")

def seconds(work):
    "Processor time, so that what else the machine does matters little."
    start = time.process_time(); work()
    return time.process_time() - start

def highest():
    "The most memory this process has had, in MB (its own: what ru_maxrss says begins with its parent's)."
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(l for l in lines if l.startswith("VmHWM")).split()[1])/1024

def peak(n):
    "Peak memory in MB of a fresh process that segments n images with the small network."
    out = subprocess.run([sys.executable, __file__, "--images", str(n), "--peak"], capture_output=True, text=True, check=True)
    return float(out.stdout.split()[-1])

def main():
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--images", type=int, default=8, help="at least 8")
    cli.add_argument("--small", action="store_true", help="a network of a few milliseconds: does it run?")
    cli.add_argument("--part", choices=("prompts", "tuning", "memory"), help="one of the three only (all: some minutes)")
    cli.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    args = cli.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as tmp:
        folder, net = Path(tmp), network(args.small or args.peak or args.part == "memory")
        data = pictures(folder, args.images)
        if args.peak:
            segment(data, net, seg_run(data, net, "center,bbox", metrics="dice"), cache=SegCache(folder/"cache"))
            print(highest()); return
        def run(prompts, cache=None, attributes=("sex",), **more): return seconds(lambda: run_segmentation(data, net, prompts=prompts, attributes=attributes, cache=cache, metrics=("dice", "hd95"), **more))
        run("center", rows=[0])                                                   # warm up
        if args.part in (None, "prompts"): prompts(folder, run, len(data))
        if args.part in (None, "tuning"): tuning(folder, run, net)
    if args.part in (None, "memory"):
        few, many = peak(100), peak(300)
        print(f"peak memory at 300 images: {many/few:.3f} times that at 100 ({few:.0f} MB; at most 1.1)", flush=True)

def prompts(folder, run, n):
    "Four prompt kinds against one; a second attribute and a second prompt kind against the first."
    cache = SegCache(folder/"cache")
    one, four = run("center", cache), run("center,rand,rands,bbox", SegCache(folder/"other"))
    print(f"four prompt kinds: {four/one:.3f} times one (at most 1.15; one: {one/n:.2f} s per image)", flush=True)
    again, other = run("center", cache, ("race",)), run("bbox", cache)
    print(f"a second attribute: {one/again:.0f} times faster than the first (at least 20); another prompt kind: {one/other:.0f} times", flush=True)

def tuning(folder, run, net):
    "One epoch of fine-tuning with two methods; the second finds the embeddings."
    how, own = Training(total_epochs=1, warmup_epochs=0, batch_size=2, select="last"), SegCache(folder/"own")
    state, tuned = {k: v.clone() for k, v in net.module.state_dict().items()}, []
    for method in ("erm", "febs"):
        net.module.load_state_dict(state)
        tuned.append(run("bbox", own, usage="seg2d-ft", method=method, how=how))
    print(f"a second method of fine-tuning, one epoch: {tuned[0]/tuned[1]:.0f} times faster than the first, training included (at least 20; {tuned[1]:.1f} s)", flush=True)

if __name__ == "__main__": main()

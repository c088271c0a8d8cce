"""SAM's real ViT-B at 1024 pixels through the whole path, with random weights: time and memory on real chest X-rays.

    python benchmarks/sam_vit_b.py                 # four images of ../shared/data/lung_seg, or of FAIRMEDFM_SHARED_DATA
    python benchmarks/sam_vit_b.py --images 8

Random weights segment nothing; what is measured is whether the path runs, how long it takes and what it holds in memory."""
import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

from fairmedfm.models.promptable import load_segmenter
from fairmedfm.models.sam import SAM_ROWS, SamNet, build_vit

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("FAIRMEDFM_SHARED_DATA") or ROOT.parent/"shared"/"data")/"lung_seg"
VIT_B = dict(img_size=1024, patch_size=16, embed_dim=768, depth=12, num_heads=12, mlp_ratio=4., out_chans=256, window_size=14, global_attn_indexes=(2, 5, 8, 11))


def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20


def random_checkpoint(folder):
    "A file as sam_vit_b_01ec64.pth: 314 tensors, 375 MB, from a fixed seed."
    torch.manual_seed(0)
    row = next(r for r in SAM_ROWS if r.name == "SAM")
    net = SamNet(row, build_vit(VIT_B))
    torch.save(net.state_dict(), folder/"sam_vit_b_01ec64.pth")
    return row, folder/"sam_vit_b_01ec64.pth"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4)
    args = parser.parse_args()
    table = pd.read_csv(DATA/"metadata.csv").drop_duplicates("patient_id").head(args.images)
    with tempfile.TemporaryDirectory() as folder:
        row, file = random_checkpoint(Path(folder))
        start = time.perf_counter()
        model = load_segmenter(row, file)
        print(f"{torch.get_num_threads()} threads; loaded {file.stat().st_size/1e6:.0f} MB in {time.perf_counter() - start:.1f} s; peak {peak():.1f} GiB")
        for r in table.itertuples():
            image, mask = (np.asarray(Image.open(DATA/p)) for p in (r.image_path, r.mask_path))
            at = np.argwhere(mask > 127)[:, ::-1]
            box, point = np.r_[at.min(0), at.max(0)], at[len(at)//2]
            start = time.perf_counter(); e = model.set_image(image); encoded = time.perf_counter() - start
            start = time.perf_counter()
            answers = [model.predict(e, boxes=box), model.predict(e, points=point), model.predict(e, points=at[::len(at)//4][:5]), model.predict(e, points=point, boxes=box)]
            asked = time.perf_counter() - start
            assert all(a.mask.shape == mask.shape and np.isfinite(a.score) for a in answers)
            print(f"{r.image_id} {image.shape}: encoded in {encoded:.1f} s, four prompts in {asked:.2f} s ({1 + asked/encoded:.3f} times one encoding), embedding {sum(v.nbytes for v in e.arrays.values())/2**20:.0f} MB, peak {peak():.1f} GiB")


if __name__ == "__main__": main()

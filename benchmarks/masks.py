"""How long Dice takes from masks in memory, as a ratio to one AND plus three counts on the same arrays (medians of one run).

    python benchmarks/masks.py [--repeats 15] [--small]

Floors: 500 uint8 masks of 512² at most 2.5, 20 volumes of 256³ at most 2.
"""
import argparse
import statistics
import time
import warnings

import numpy as np

from fairmedfm.masks import mask_scores


def bare(pred, true):
    for p, t in zip(pred, true): np.count_nonzero(p & t), np.count_nonzero(p), np.count_nonzero(t)

def ratio(work, base, repeats):
    "Median time of `work` over that of `base`, the two taken in turn."
    spent = ([], [])
    for _ in range(repeats):
        for f, into in zip((work, base), spent):
            start = time.perf_counter(); f(); into.append(time.perf_counter() - start)
    return statistics.median(spent[0])/statistics.median(spent[1])

def blobs(n, shape, value, dtype, seed):
    "Ellipsoids with a rough edge: foreground as a mask has it, not noise."
    rng, grid = np.random.default_rng(seed), np.indices(shape, dtype=np.float32)
    out = np.zeros((n, *shape), dtype)
    for m in out:
        centre, radius = rng.uniform(0.35, 0.65, len(shape)), rng.uniform(0.15, 0.3, len(shape))
        m[sum(((g/s - c)/r)**2 for g, s, c, r in zip(grid, shape, centre, radius)) < 1] = value
    return out

def main():
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--repeats", type=int, default=15)
    cli.add_argument("--small", action="store_true", help="a twentieth of the size: does it run?")
    args = cli.parse_args()
    warnings.simplefilter("ignore")
    shrink = 20 if args.small else 1
    cases = [(500//shrink, (512, 512), value, dtype, 2.5) for value, dtype in ((1, np.uint8), (255, np.uint8), (1, bool))]
    cases += [(20//shrink, (256,)*3, value, dtype, 2.0) for value, dtype in ((1, np.uint8), (255, np.uint8))]
    for n, shape, value, dtype, floor in cases:
        true = blobs(n, shape, value, dtype, 0)
        pred = np.roll(true, 3, axis=-1)
        r = ratio(lambda: mask_scores(list(pred), list(true)), lambda: bare(pred, true), args.repeats)
        what = f"{n:4} masks of {'x'.join(map(str, shape)):12} {np.dtype(dtype).name:5} 0/{value:<3}"
        print(f"{what}  {r:.2f} times one AND and three counts  (at most {floor})", flush=True)

if __name__ == "__main__": main()

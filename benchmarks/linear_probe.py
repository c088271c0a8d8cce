"""What a linear probe costs beside its encoder: ratios, measured in one run.

    python benchmarks/linear_probe.py [FOLDER] [--model EfficientNetLite0] [--images 640]

FOLDER holds a metadata.csv or samples.csv (default: the phantom Phantom2D, made on the spot). Printed are

* probe / pass: a 100-epoch probe on cached features against one encoding pass (wanted: at most 5 %);
* first / next: the first run against a second attribute, seed and method on the same images, from the call to the last file of the run's folder, the page
  report.html with its pictures included, as a run writes it by default; the median of three (wanted: at least 30 times; in brackets up to report.json alone);
* throughput: images per second of the pass, reading, hashing and writing included, against a bare loop of the same model on
  the same batches that lie ready in memory (wanted: at least 0.9); the median over parts of four batches, each measured both ways in turn.
"""
import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from fairmedfm.bench.config import make_config
from fairmedfm.bench.run import Workshop, run_one
from fairmedfm.train.batches import reader_for
from fairmedfm.train.cache import FeatureCache
from fairmedfm.usages.probe import rows_of

warnings.simplefilter("ignore")


def clock(f):
    start = time.perf_counter()
    out = f()
    return time.perf_counter() - start, out


def throughput(data, encoder, parts:int, size:int, batch:int=32):
    "Images per second of the bare loop and of the cache, part by part in turn, so that both meet the same weather."
    reader, bare, ours = reader_for(data, encoder.spec, encoder.transform), [], []
    for p in range(parts):
        rows = np.arange(p*size, (p + 1)*size)
        ready = [torch.cat([reader(data, int(r)) for r in rows[i:i + batch]]) for i in range(0, size, batch)]
        loop = lambda: [encoder.encode(x) for x in ready]
        with tempfile.TemporaryDirectory() as folder:
            through = lambda: FeatureCache(folder).features(data, encoder, reader, rows=rows, batch_size=batch)
            for f, into in ((loop, bare), (through, ours)) if p % 2 else ((through, ours), (loop, bare)): into.append(size/clock(f)[0])
    return statistics.median(bare), statistics.median(ours), statistics.median(o/b for o, b in zip(ours, bare))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=None)
    parser.add_argument("--model", default="EfficientNetLite0")
    parser.add_argument("--images", type=int, default=640, help="images of the throughput comparison")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        base = dict(usage="lp", model=given.model, dataset=given.folder or "Phantom2D", data_root=f"{tmp}/data", exp_path=f"{tmp}/out", cache=f"{tmp}/cache", quiet=True, total_epochs=100, early_stopping=0, batch_size=128, blr=2.5e-4)
        shop = Workshop()
        config = lambda **more: make_config(**base | more)
        data = shop.data(config()); encoder = shop.encoder(config(), data)
        encoder.encode(torch.zeros(2, *encoder.transform.shape)); encoder.fingerprint
        first, _ = clock(lambda: run_one(config(), shop))
        nexts, bare_of_pages = {}, {}
        for name, more in {"attribute": dict(sensitive_name=next(a for a in data.attributes if a != "sex")), "seed": dict(random_seed=1), "method": dict(method="group-dro")}.items():
            several = lambda **also: statistics.median(clock(lambda: run_one(config(**more, **also, overwrite=True), shop))[0] for _ in range(3))
            nexts[name], bare_of_pages[name] = several(), several(html=False)
        fresh, cold = clock(lambda: run_one(config(random_seed=2), Workshop()))
        reader, rows = reader_for(data, encoder.spec, encoder.transform), np.unique(np.concatenate(list(rows_of(data).values())))
        with tempfile.TemporaryDirectory() as again: encoding, _ = clock(lambda: FeatureCache(again).features(data, encoder, reader, rows=rows))
        probe = min(nexts.values())
        size = 128                                                      # of a single batch nothing could be read ahead
        bare, ours, ratio = throughput(data, encoder, max(1, min(given.images, len(data))//size), size)
        print(f"{data.name}, {len(rows):,} images, {given.model} on {encoder.device}, {torch.get_num_threads()} threads")
        print(f"one encoding pass                {encoding:8.2f} s   ({len(rows)/encoding:.1f} images/s)")
        print(f"100-epoch probe, a whole run     {probe:8.2f} s   probe / pass = {100*probe/encoding:.1f} %")
        print(f"first run                        {first:8.2f} s")
        for name in nexts: print(f"a second {name:10} {nexts[name]:22.2f} s   first / next = {first/nexts[name]:.0f}   (without the page: {first/bare_of_pages[name]:.0f})")
        print(f"a second seed, nothing in memory {fresh:8.2f} s   first / next = {first/fresh:.0f}   (dataset, weights and features read from disk)")
        print(f"throughput                       {ours:8.1f} images/s, bare loop {bare:.1f}: {ratio:.3f}")


if __name__ == "__main__": main()

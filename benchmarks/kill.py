"""Killed with SIGKILL at random moments and started again: is the result the undisturbed run's, byte for byte?

    python benchmarks/kill.py [--kills 10] [--seed 0] [-- options of fairmedfm run]

A phantom is made and run once undisturbed, with `python -m fairmedfm run` in a process of its own. Then, `--kills` times over, a
fresh run is killed at a moment drawn evenly from the duration of the undisturbed one, started again and left to finish (a run that was
through before its moment came does not count); and at last one run is killed `--kills` times in a row before it may finish. Each time
the predictions, the report, the training curve and the trained weights are compared with the undisturbed ones, and a finished run
started once more has to be found finished. Printed is what lay on the disk at each kill; the exit status is 1 when a byte differs.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fairmedfm.bench.run import is_done
from fairmedfm.data.phantoms import Group, Phantom, make_phantom

SAME = ("predictions.csv", "predictions_valid.csv", "report.json", "curve.csv", "model.safetensors")
DEFAULT = "--usage lp --method laftr --model HOG --blr 1e-3 --batch_size 16 --total_epochs 300 --early_stopping 0 --save_epochs 2 --ci 0"


def start(options, root:Path, name:str):
    "The run as a process in a session of its own, so that a kill takes its workers too."
    places = f"--dataset {root}/Flat --exp_path {root}/{name} --cache {root}/{name}/cache --device cpu --quiet --html False"
    return subprocess.Popen([sys.executable, "-m", "fairmedfm", "run", *options, *places.split()], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)


def first_line(root:Path, name:str) -> float:
    "Seconds until the run writes to its log: Python and the libraries are loaded."
    size = lambda: sum(p.stat().st_size for p in (root/name).rglob("log.txt"))
    began, before = time.perf_counter(), size()
    while size() == before and time.perf_counter() - began < 120: time.sleep(.02)
    return time.perf_counter() - began


def finish(p) -> float:
    "Wait for a run that has to succeed; the seconds it took."
    began = time.perf_counter()
    _, said = p.communicate(timeout=600)
    if p.returncode: sys.exit(f"a run ended with {p.returncode}: {said[-500:]}")
    return time.perf_counter() - began


def kill(p, after:float) -> bool:
    "SIGKILL after some seconds; whether the run was still there."
    try: p.wait(timeout=after)
    except subprocess.TimeoutExpired: os.killpg(p.pid, signal.SIGKILL); p.wait(); p.stderr.close(); return True
    p.stderr.close()
    return False


def lay_there(root:Path, name:str) -> str:
    "What a kill left behind."
    below = root/name
    chunks, epochs = len(list(below.rglob("*.npz"))), [p for p in below.rglob("log.txt")]
    log = epochs[0].read_text().splitlines() if epochs else []
    trained = sum("  epoch " in line for line in log)
    files = [n for n in SAME + ("done.json",) if list(below.rglob(n))]
    return f"{chunks} chunks of features, {trained} epochs in the log, checkpoint {'there' if list(below.rglob('checkpoint.pt')) else 'not there'}, files: {', '.join(files) or 'none'}"


def differ(root:Path, a:str, b:str) -> list:
    "The files of two finished runs that are not the same, and what else is wrong."
    x, y = (next((root/n).rglob("done.json")).parent for n in (a, b))
    wrong = [n for n in SAME if (x/n).exists() != (y/n).exists() or (x/n).exists() and (x/n).read_bytes() != (y/n).read_bytes()]
    facts = [json.loads((f/"config.json").read_text())["facts"] for f in (x, y)]
    left = [p.name for p in y.iterdir() if p.name.startswith(".") or p.name == "checkpoint.pt"]
    return wrong + ["facts"]*(facts[0] != facts[1]) + [f"left over: {n}" for n in left] + ["not finished"]*(not is_done(y))


def main() -> int:
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    mine, options = sys.argv[1:cut], sys.argv[cut + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=300)
    given, options, bad, killed = parser.parse_args(mine), options or DEFAULT.split(), 0, 0
    with tempfile.TemporaryDirectory() as tmp:
        root, chance = Path(tmp), random.Random(given.seed)
        make_phantom(Phantom("Flat", (Group("F", patients=given.images//2), Group("M", patients=given.images//2)), per_patient=1), root/"Flat")
        undisturbed = start(options, root, "whole")
        lead = first_line(root, "whole")
        whole = lead + finish(undisturbed)
        print(f"fairmedfm run {' '.join(options)}\nundisturbed: {whole:.1f} s; {lay_there(root, 'whole')}")
        for i in range(given.kills):
            name, after, began = f"killed{i}", chance.uniform(0, whole), time.perf_counter()
            while not kill(start(options, root, name), after):
                shutil.rmtree(root/name); whole = min(whole, time.perf_counter() - began); after, began = chance.uniform(0, whole), time.perf_counter()
            killed += 1
            left = lay_there(root, name)
            again = finish(start(options, root, name))
            wrong = differ(root, "whole", name); bad += bool(wrong)
            print(f"killed after {after:5.1f} s ({left}); restarted {again:4.1f} s: {'DIFFERENT: ' + ', '.join(wrong) if wrong else 'the same bytes'}", flush=True)
        hits, part = 0, .5*whole/given.kills
        for _ in range(given.kills):
            p = start(options, root, "often"); first_line(root, "often")
            hits += kill(p, chance.uniform(0, 1.4*part))
        finish(start(options, root, "often"))
        wrong = differ(root, "whole", "often"); bad += bool(wrong)
        print(f"one run killed {hits} times in a row: {'DIFFERENT: ' + ', '.join(wrong) if wrong else 'the same bytes'}")
        stamp = next((root/"often").rglob("done.json")).stat().st_mtime_ns
        skipped = finish(start(options, root, "often"))
        found = next((root/"often").rglob("done.json")).stat().st_mtime_ns == stamp; bad += not found
        print(f"finished and started once more: {'found' if found else 'MADE AGAIN'} in {skipped:.1f} s\n{killed + hits} kills, {bad} differences")
    return 1 if bad else 0


if __name__ == "__main__": sys.exit(main())

"""Run one notebook's cells in this process, as nbdev-test does: `python tools/run_notebook.py nbs/00_core.ipynb [--flags "slow"]`.

Exit code 1 and the traceback when a cell fails, or when the notebook leaves files beside itself. Cells marked `#| slow` or `#| notest` run
only when `--flags` names them."""
import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    from nbdev.config import get_config
    from nbdev.test import test_nb as run_notebook

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--flags", default="", help="flags whose cells run although they are skipped by default")
    args = parser.parse_args()
    notebook = args.notebook.resolve()
    before = set(notebook.parent.iterdir())
    skip = get_config(notebook.parent).tst_flags.split()
    passed, seconds = run_notebook(notebook, skip_flags=skip, force_flags=args.flags.split())
    left = sorted(p.name for p in set(notebook.parent.iterdir()) - before if p.suffix != ".ipynb" and p.name not in ("nbdev.yml", "sidebar.yml"))
    if left: print(f"{notebook.name} leaves files behind: {', '.join(left)}; write to a temporary folder")
    print(f"{notebook.name}: {'passed' if passed else 'failed'} in {seconds:.1f} s")
    sys.exit(not passed or bool(left))

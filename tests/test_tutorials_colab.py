"""The tutorials as Colab runs them: every cell from top to bottom, those included that are not run here, on a made-up release and with models that need no network.

It takes minutes (FAIRMEDFM_SLOW=1); what is always checked is that the Colab lines name what there is."""
import json
import os
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
for package in ("timm", "open_clip", "safetensors", "PIL", "openpyxl", "matplotlib", "pydicom"): pytest.importorskip(package)

FOLDER = Path(__file__).resolve().parents[1]/"nbs"/"tutorials"
NAMES = ("linear_probing", "clip_zeroshot", "own_dataset", "own_model")
INSTEAD = {"DINOv2": "Radiomics", "BiomedCLIP": "TinyCLIP"}                             # what needs the hub → what does not
NETWORK = ("load_model(\"timm:", "load_model(\"hf:")                                    # lines that only fetch


def cells(name): return ["".join(c["source"]) for c in json.loads((FOLDER/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_colab_lines_name_what_there_is(name):
    "Datasets, bundles, models, usages and flags; and the extras that the released files need."
    from fairmedfm.bench.config import USAGES, check_options, decide, expand, parse_run
    from fairmedfm.data.catalog import BUNDLES
    from fairmedfm.models.catalog import find_model
    text = (FOLDER/f"{name}.ipynb").read_text(encoding="utf-8")
    apart = [c for c in cells(name) if c.startswith("#| eval: false")]
    assert apart and sum("%pip install" in c for c in apart) == 1 and "colab.research.google.com/github" in text
    for bundle in re.findall(r"fairmedfm download (\w+)", text): assert bundle in BUNDLES and "io" in re.search(r"fairmedfm\[([\w,]+)\]", text)[1]
    for model in re.findall(r"(?:find_model|load_model)\(\\\"([^\\\"]+)", text): find_model(model)
    lines = re.findall(r"    (fairmedfm run [^\"\\…]+)", text)
    assert lines
    for line in lines:
        (config,) = expand(parse_run(line.split()[2:]))
        check_options([config]); decide(config); find_model(config.model)
        assert config.usage in USAGES


@pytest.mark.skipif(not os.environ.get("FAIRMEDFM_SLOW"), reason="minutes; FAIRMEDFM_SLOW=1")
@pytest.mark.parametrize("name", NAMES)
def test_run_all(name, tmp_path, monkeypatch):
    import matplotlib
    matplotlib.use("Agg")
    from fixtures_raw import make_release
    monkeypatch.chdir(tmp_path)
    make_release("PAPILA", tmp_path/"data"/"PAPILA", 60)
    space = {"__name__": "__main__"}
    for source in cells(name):
        lines = [l for l in source.splitlines() if not l.startswith(("%", "!")) and not l.startswith(NETWORK)]
        code = "\n".join(lines)
        for real, here in INSTEAD.items(): code = code.replace(f'"{real}"', f'"{here}"')
        exec(compile(code, f"{name}.ipynb", "exec"), space)
    if name in ("linear_probing", "clip_zeroshot"): assert space["data"].name == "PAPILA" and not space["phantom"]

"""What the README and the pages print is run as it stands."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from neverscratch.modeling import AUTO_CLASSES, FAMILIES, LongSequenceFeatureExtractor
from neverscratch.recipes import study
from neverscratch.recipes.config import load_recipe

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/models.md")
SNIPPETS = [
    (page, number, code)
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL))
]


@pytest.mark.parametrize(("page", "number", "code"), SNIPPETS, ids=[f"{page}-{number}" for page, number, _ in SNIPPETS])
def test_python_runs_as_printed(page, number, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    # What the snippets open: a finished run, and a small model in place of one on the Hub.
    run = tmp_path / "runs" / "digits" / "s4d" / "spt" / "seed-0"
    images = list(np.random.default_rng(0).integers(0, 17, (4, 8, 8)))
    processor = LongSequenceFeatureExtractor.fit(images, modality="image", num_levels=17, max_length=64)
    processor.save_pretrained(run)
    config = FAMILIES["s4d"](vocab_size=processor.vocab_size, num_labels=10, hidden_size=16, num_hidden_layers=1)
    AUTO_CLASSES["AutoModelForSequenceClassification"].from_config(config).save_pretrained(run)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    AutoModel.from_config(AutoConfig.for_model("gpt_neox", vocab_size=8, **sizes)).save_pretrained(
        "EleutherAI/pythia-70m"
    )

    names = {}
    exec(compile(code, f"{page} {number}", "exec"), names)
    assert isinstance(names["model"], torch.nn.Module)
    if "print(" in code:
        assert capsys.readouterr().out.strip().startswith("LABEL_")


COMMANDS = [
    line.partition("#")[0].strip()
    for page in ("README.md", "docs/data.md")
    for line in (ROOT / page).read_text("utf-8").splitlines()
    if line.startswith("neverscratch ")
]


@pytest.mark.parametrize(
    "command", [line for line in COMMANDS if line.split()[1] in ("compare", "pretrain", "finetune")]
)
def test_recipes_of_printed_commands_exist(command, monkeypatch, tmp_path):
    words = shlex.split(command)
    if "--data" in words:  # the file that the reader has
        monkeypatch.chdir(tmp_path)
        label = words[words.index("--label") + 1]
        rows = [f"{number},{number / 2},{'ab'[number % 2]}" for number in range(40)]
        Path(words[words.index("--data") + 1]).write_text("\n".join([f"t0,t1,{label}", *rows]) + "\n")
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    own = {"--data-dir": "data_dir", "--data": "data", "--input": "input", "--label": "label"}
    settings += [f"task_options.{own[word]}={words[i + 1]}" for i, word in enumerate(words) if word in own]
    recipe = load_recipe(words[2], settings)
    named = words[words.index("--models") + 1] if "--models" in words else "all"
    assert named == "all" or set(named.split(",")) <= recipe.models.keys()
    assert study.expand(recipe, list(recipe.models), ["scratch"], [0])

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from synthetic_study import write_study

from neverscratch.hub_cards import write_card
from neverscratch.hub_cards.card import is_generated, render_card


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_study(tmp_path / "digits", {"s4d": {"scratch": [300], "spt": [325]}}) / "s4d/spt/seed-0"


def test_metadata(run: Path):
    path = write_card(run)
    assert path == run / "README.md"
    card = ModelCard.load(path)
    data = card.data
    assert (
        data.license == "apache-2.0"
        and data.library_name == "transformers"
        and data.model_name == "s4d-digits-spt-seed-0"
    )
    assert {"neverscratch", "s4d", "digits", "self-pretraining"} <= set(data.tags)
    test, validation = data.eval_results
    assert test.metric_value == 325 / 360 and test.metric_type == "accuracy"
    assert (test.dataset_name, test.dataset_type, test.dataset_split) == ("Digits", "digits", "test")
    assert test.task_type == "image-classification" and validation.dataset_split == "validation"


def test_text_says_how_to_repeat_it(run: Path):
    write_card(run)
    text = (run / "README.md").read_text(encoding="utf-8")
    for part in (
        "neverscratch compare digits",
        "init 11, order 12, mask 13, split 14",
        "torch 2.13.0",
        "abc1234",
        "masked tokens | 800",
        "300 train, 180 validation, 360 test",
        "CC BY 4.0",
        "90.3%",
        "recipe.yaml",
    ):
        assert part in text, part
    assert "still falling" not in text and "None" not in text


def test_what_was_set_by_hand_is_said(run: Path):
    assert "Set otherwise" not in render_card(run)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "changes": ["finetune.max_steps=20 (recipe: 1500)"]}))
    assert "- Set otherwise than in the recipe: finetune.max\\_steps=20 (recipe: 1500).\n" in render_card(run)


def test_three_lines_of_python(run: Path):
    write_card(run)
    code = re.search(r"```python\n(.*?)```", (run / "README.md").read_text(encoding="utf-8"), re.S)
    assert code is not None
    body = ast.parse(code[1]).body
    assert isinstance(body[0], ast.ImportFrom) and len(body) == 4
    assert "AutoFeatureExtractor" in code[1]


def test_text_tasks_name_a_tokenizer(run: Path):
    (run / "preprocessor_config.json").unlink()
    (run / "tokenizer.json").write_text("{}")
    write_card(run)
    assert "AutoTokenizer" in (run / "README.md").read_text(encoding="utf-8")


def test_written_anew_unless_edited(run: Path):
    path = write_card(run)
    assert path is not None and is_generated(path.read_text(encoding="utf-8"))
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["still_improving"] = True
    (run / "metrics.json").write_text(json.dumps(metrics))
    assert write_card(run) == path
    assert "still falling when it stopped" in path.read_text(encoding="utf-8")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert write_card(run) == path

    edited = path.read_text(encoding="utf-8").replace("It has", "My own words: it has")
    path.write_text(edited, encoding="utf-8")
    with pytest.warns(UserWarning, match="edited by hand and is kept; delete or rename"):
        assert write_card(run) is None
    assert path.read_text(encoding="utf-8") == edited


def test_metadata_edited_by_hand_counts_too(run: Path):
    path = write_card(run)
    assert path is not None
    path.write_text(path.read_text().replace("license: apache-2.0", "license: mit"))
    with pytest.warns(UserWarning, match="edited"):
        assert write_card(run) is None


def test_foreign_card_is_kept(run: Path):
    (run / "README.md").write_text("# mine\n")
    with pytest.warns(UserWarning, match="kept"):
        assert write_card(run) is None
    assert (run / "README.md").read_text() == "# mine\n"


def test_no_home_path_or_token(run: Path):
    study = run.parents[2] / "study.json"
    info = json.loads(study.read_text())
    info["command"] = "neverscratch compare digits --out /home/someone/runs --token hf_abcdefghijklmn"
    study.write_text(json.dumps(info))
    write_card(run)
    text = (run / "README.md").read_text(encoding="utf-8")
    assert "someone" not in text and "hf_abc" not in text and "--out ~/runs" in text


def test_a_run_without_its_study_still_has_a_card(run: Path):
    (run.parents[2] / "study.json").unlink()
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "task": "digits", "sizes": {"train": 300}}))
    path = write_card(run)
    assert path is not None
    assert ModelCard.load(path).data.eval_results[0].metric_value == 325 / 360


def test_a_pretrained_checkpoint_has_a_card_without_results(run: Path, tmp_path: Path):
    info = json.loads((run / "run.json").read_text())
    info.update(arm="pretrain", task="digits", sizes={"train": 300}, stages=info["stages"][:1])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "metrics.json").write_text('{"pretrain": {"masked_accuracy": 0.41, "loss": 1.43}}')
    path = write_card(folder)
    assert path is not None
    card = ModelCard.load(path)
    assert card.data.eval_results is None and "self-pretraining" in card.data.tags
    assert "head is new" in card.text and "| masked accuracy | 0.41 |" in card.text
    assert "test split" not in card.text and "nan" not in card.text.split()


@pytest.mark.parametrize("name", ["run.json", "metrics.json"])
@pytest.mark.parametrize("content", ["{", "[1]", '{"stages": 3, "test": 3, "metric": "accuracy"}'])
def test_a_damaged_run_is_called_damaged(run: Path, name: str, content: str):
    (run / name).write_text(content)
    with pytest.raises(ValueError, match=rf"seed-0 is damaged \(.*{name}.*\); copy it again, or train it again"):
        write_card(run)


@pytest.mark.parametrize("name", ["run.json", "metrics.json"])
def test_unfinished_run(run: Path, name: str):
    (run / name).unlink()
    with pytest.raises(ValueError, match=r"is no finished run .*; give a folder with run\.json and metrics\.json"):
        write_card(run)

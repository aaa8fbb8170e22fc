import pytest
import yaml

from neverscratch.modeling import AUTO_CLASSES, FAMILIES
from neverscratch.recipes import config
from neverscratch.recipes.config import available_recipes, derive_seed, load_recipe, parse_recipe, resolve_lengths


@pytest.mark.parametrize("name", sorted(available_recipes()))
def test_every_packaged_recipe_parses_and_its_models_are_built(name):
    recipe = load_recipe(name)
    for entry in recipe.models.values():
        inputs = {"vocab_size": 20} if recipe.objective.endswith("tokens") else {"num_channels": 1}
        model = AUTO_CLASSES["AutoModel"].from_config(
            FAMILIES[entry.family](**resolve_lengths(entry.config, 64), **inputs)
        )
        assert model.num_parameters() > 0
        assert entry.source


@pytest.mark.parametrize("name", sorted(available_recipes()))
def test_recipes_write_numbers_that_yaml_reads_as_numbers(name):
    raw = yaml.safe_load(available_recipes()[name].read_text())
    for stage in ("pretrain", "finetune"):
        assert all(not isinstance(raw[stage][key], str) for key in ("learning_rate", "ssm_learning_rate"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("finetune.learnin_rate=1", "'learnin_rate'.*Did you mean 'learning_rate'"),
        ("finetunee.learning_rate=1", "'finetunee'.*Did you mean 'finetune'"),
        ("objectiv=masked_tokens", "'objectiv'.*Did you mean 'objective'"),
        ("models.s4dd.config.d_state=8", "'s4dd'.*Did you mean 's4d'"),
        ("models.s4d.config.d_stat=8", "'d_stat'.*Did you mean 'd_state'"),
        ("models.s4d.confg.d_state=8", "'confg'.*Did you mean 'config'"),
        ("finetune.learning_rate=abc", "finetune.learning_rate: .*valid number"),
        ("finetune.max_steps=0", "finetune.max_steps: .*greater than 0"),
        ("finetune.warmup_steps=[1]", "warmup_steps=\\[1\\.?0?\\] is not allowed"),
        ("finetune.output_dir=x", "decided by the study"),
        ("mask_ratio=1.5", "mask_ratio: .*less than 1"),
        ("mask_ratio=", "needs mask_ratio"),
        ("objective=next_token", "takes no mask_ratio"),
        ("select=bst", "select: .*'last' or 'best'"),
        ("train_size=0", "train_size: .*greater than 0"),
        ("task.name=x", "task is a single value"),
        ("finetune.learning_rate", "not of the form key.subkey=value"),
        ("=3", "not of the form key.subkey=value"),
        ("models.s4d.config.d_state=7", "d_state=7 is not a positive even number"),
        ("models.s4d.config.d_state=big", "models.s4d.config: .*'d_state' expected int"),
        ("models.transformer.config.num_attention_heads=5", "models.transformer.config: .*num_attention_heads"),
        ("models.s4d.config.num_labels=3", "num_labels is decided by the task"),
        ("models.s4d.config.mask_token_id=99", "mask_token_id is decided by the task"),
        ("models.s4d.config.initializer_range=-1.0", "initializer_range=-1.0, which must be finite and at least 0"),
        ("models.s4d.config.dt_max=.inf", "dt_max=inf, which must be finite"),
        ("models.s4d.config.layer_norm_eps=.nan", "layer_norm_eps=nan, which must be positive and finite"),
        ("train_size=true", "train_size: .*valid integer"),
        ("finetune.max_steps=true", "finetune.max_steps: .*valid integer"),
        ("finetune.weight_decay=-1", "weight_decay=-1 is negative"),
        ("finetune.lr=1", "Unknown training argument 'lr'. Did you mean 'learning_rate'"),
        ("finetune.learning_rate=.inf", "finetune.learning_rate: Input should be a finite number"),
        ("finetune.learning_rate=inf", "finetune.learning_rate: Input should be a finite number"),
        ("finetune.learning_rate=nan", "finetune.learning_rate: Input should be a finite number"),
        ("pretrain.ssm_learning_rate=inf", "pretrain.ssm_learning_rate: Input should be a finite number"),
        ("finetune.weight_decay=nan", "weight_decay=nan is not finite; use a number"),
        ("finetune.adam_beta2=inf", "adam_beta2=inf is not finite; use a number"),
        ("models.s4d.overrides.finetune.learning_rate=inf", "learning_rate: Input should be a finite number"),
        ("task_options.name=x", "task has no such option"),
        ("models.s4d.family=s4dd", "'s4dd'.*Did you mean 's4d'"),
    ],
)
def test_bad_settings_are_refused_with_the_nearest_name(setting, message):
    with pytest.raises(ValueError, match=message):
        load_recipe("digits", [setting])


def test_settings_are_read_as_numbers():
    recipe = load_recipe("digits", ["finetune.learning_rate=1e-4", "models.s4d.config.d_state=16", "train_size=100"])
    assert recipe.finetune.learning_rate == 1e-4
    assert recipe.models["s4d"].config["d_state"] == 16
    assert recipe.train_size == 100


def test_what_was_set_by_hand_is_on_record(tmp_path, raw_recipe):
    settings = ["finetune.max_steps=20", "train_size=300", "models.s4d.config.d_state=16", "finetune.adam_beta2=0.98"]
    changes = load_recipe("digits", settings).changes
    assert changes == [
        "finetune.max_steps=20 (recipe: 1500)",
        "finetune.adam_beta2=0.98 (recipe: not set)",
        "models.s4d.config.d_state=16 (recipe: 32)",
    ]
    assert load_recipe("digits").changes == []
    # The recipe of a run can be run again, and still says what its source does not.
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump({**raw_recipe, "changes": ["select=last (recipe: best)"]}))
    assert load_recipe(str(path), ["mask_ratio=0.4"]).changes == [
        "select=last (recipe: best)",
        "mask_ratio=0.4 (recipe: 0.5)",
    ]


def test_a_task_without_a_recipe_gets_that_of_a_small_one(tmp_path):
    recipe = load_recipe("ucr:ECG200", [f"task_options.data_dir={tmp_path}", "finetune.max_steps=7"])
    assert recipe.task == "ucr:ECG200" and recipe.objective == "masked_values" and recipe.train_size is None
    assert recipe.finetune.max_steps == 7 and recipe.models.keys() == load_recipe("gunpoint").models.keys()
    assert "not chosen for these data" in recipe.source
    with pytest.raises(ValueError, match="ucr:ECG200.*not shipped.*Give data_dir"):
        load_recipe("ucr:ECG200")


def test_auto_lengths_reach_every_level():
    config = {"kernel_length": "auto", "pooling": "auto", "mixers": ["s4d", {"max_position_embeddings": "auto"}]}
    resolved = resolve_lengths(config, 9)
    assert resolved == {"kernel_length": 9, "pooling": "auto", "mixers": ["s4d", {"max_position_embeddings": 9}]}


def test_unknown_recipe_and_keys_in_yaml(tmp_path, raw_recipe):
    with pytest.raises(ValueError, match="'digist'.*Did you mean 'digits'"):
        load_recipe("digist")
    with pytest.raises(ValueError, match="no recipe file"):
        load_recipe(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("task: [")
    with pytest.raises(ValueError, match="not valid YAML"):
        load_recipe(str(broken))
    broken.write_text("- a list")
    with pytest.raises(ValueError, match="must hold a mapping"):
        load_recipe(str(broken))
    raw_recipe["finetuning"] = {}
    with pytest.raises(ValueError, match="'finetuning'.*Did you mean 'finetune'"):
        parse_recipe(raw_recipe, "x.yaml")
    del raw_recipe["finetuning"], raw_recipe["finetune"]
    with pytest.raises(ValueError, match="finetune is missing"):
        parse_recipe(raw_recipe, "x.yaml")


@pytest.mark.parametrize("name", ["stages", "../evil", "a/b", "a,b", ""])
def test_a_model_name_must_name_a_folder(raw_recipe, name):
    raw_recipe["models"][name] = raw_recipe["models"].pop("s4d") | {"family": "s4d"}
    with pytest.raises(ValueError, match="cannot name a folder of results"):
        parse_recipe(raw_recipe, "x.yaml")


def test_a_causal_objective_on_a_bidirectional_model_is_refused(raw_recipe):
    raw_recipe.update(objective="next_token", mask_ratio=None)
    with pytest.raises(ValueError, match="would let the bidirectional model 'transformer' see its target"):
        parse_recipe(raw_recipe, "x.yaml")


def test_overrides_change_one_model_only(raw_recipe):
    raw_recipe["models"]["s4d"]["overrides"] = {"finetune": {"learning_rate": 1.0e-4}}
    recipe = parse_recipe(raw_recipe, "x.yaml")
    assert recipe.stage("finetune", "s4d").learning_rate == 1e-4
    assert recipe.stage("finetune", "transformer").learning_rate == 1e-2
    raw_recipe["models"]["s4d"]["overrides"] = {"finetune": {"learning_rat": 1.0e-4}}
    with pytest.raises(ValueError, match="Did you mean 'learning_rate'"):
        parse_recipe(raw_recipe, "x.yaml")


def test_seeds_of_different_purposes_are_independent():
    seeds = {(seed, purpose): derive_seed(seed, purpose) for seed in range(50) for purpose in config.SEED_PURPOSES}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= value < 2**31 for value in seeds.values())
    assert derive_seed(0, "mask") == derive_seed(0, "mask")
    with pytest.raises(ValueError, match="Unknown seed purpose 'masks'"):
        derive_seed(0, "masks")

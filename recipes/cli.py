"""The command line. Names are checked before any data is loaded; errors are one sentence and a non-zero exit."""

import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from neverscratch.tasks.system import check_writable

from .config import ARMS, Recipe, apply_setting, available_recipes, load_recipe
from .errors import as_flags, os_sentence, unknown_name

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Long-sequence models, compared fairly: from scratch and after self-pretraining on the task's own inputs.",
)

TaskName = Annotated[
    str, typer.Argument(help="Task or recipe name (see `neverscratch list tasks`), or a recipe's YAML file.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one recipe value, such as finetune.learning_rate=1.0e-3. May be repeated."),
]
TrainSize = Annotated[
    int | None,
    typer.Option(
        min=1, help="Training examples, a stratified subset drawn with the seed. Default: as the recipe says."
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed that initial weights, data order, masks and subset are derived from.")
]


DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the task's published files, for tasks that are not shipped.")
]
Options = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the task, such as level=easy. May be repeated.")
]
OwnData = Annotated[str | None, typer.Option(help="Your data, for task own: a file, a folder or the id of a Hub set.")]
OwnInput = Annotated[str | None, typer.Option("--input", help="Column(s) of the input, for task own.")]
OwnLabel = Annotated[str | None, typer.Option(help="Column of the label, for task own.")]


def _settings(settings: list[str] | None, train_size: int | None, **task_options: Any) -> list[str]:
    """Everything that changes the recipe as words of --set."""
    words = [*(settings or []), *([f"train_size={train_size}"] if train_size is not None else [])]
    for word in task_options.pop("option", None) or []:
        _task_options([word])
        words.append(f"task_options.{word}")
    # Relative to here, whatever folder a worker is in; the id of a Hub set is no path.
    if task_options.get("data") and Path(task_options["data"]).exists():
        task_options["data"] = Path(task_options["data"]).resolve()
    return words + [f"task_options.{name}={json.dumps(str(v))}" for name, v in task_options.items() if v is not None]


def _chosen(kind: str, given: str | None, known: list[str], default: list[str] | None = None) -> list[str]:
    """A comma-separated choice, in the order given, refused when a name is unknown; "all" is every one."""
    if given is None:
        return default or known
    if given.strip() == "all":
        return known
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise ValueError(f"--{kind}s is empty; name some of {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise ValueError(unknown_name(kind, name, known))
    return names


@app.command()
def compare(
    task: TaskName = "digits",
    models: Annotated[
        str | None, typer.Option(help="Comma-separated models of the recipe, or all. Default: as the recipe says.")
    ] = None,
    arms: Annotated[
        str | None, typer.Option(help=f"Comma-separated arms out of {', '.join(ARMS)}, or all. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds: 3 means seeds 0, 1 and 2.")] = 3,
    train_size: TrainSize = None,
    data_dir: DataDir = None,
    option: Options = None,
    data: OwnData = None,
    input_: OwnInput = None,
    label: OwnLabel = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. Default: runs/TASK.")] = None,
    set_: Settings = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Worker processes, one thread each. The digits do not depend on it.")
    ] = 2,
    replace: Annotated[
        bool, typer.Option("--replace", help="Train anew where the folder holds a comparison with other settings.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their steps, and train nothing.")
    ] = False,
) -> None:
    """Train every model in every arm with every seed, and write one honest page about it.

    Finished work is kept: after Ctrl-C or a crash the same command goes on where it stopped.
    """
    words = _settings(set_, train_size, option=option, data_dir=data_dir, data=data, input=input_, label=label)
    recipe = load_recipe(task, words)
    chosen_models = _chosen("model", models, list(recipe.models), recipe.default_models)
    chosen_arms = _chosen("arm", arms, list(ARMS))
    name = recipe.task.replace(":", "-")
    folder = out or Path("runs") / name
    if dry_run:
        from .study import check_study

        check_study(recipe, chosen_models, chosen_arms, [0], folder, replace)
        _print_plan(recipe, chosen_models, chosen_arms, seeds)
        return
    typer.echo(f"Comparing {', '.join(chosen_models)} on {recipe.task}; loading ...")
    from .study import run_study

    run_study(
        recipe,
        chosen_models,
        chosen_arms,
        list(range(seeds)),
        folder,
        name=name,
        jobs=jobs,
        command=shlex.join(["neverscratch", *sys.argv[1:]]),
        replace=replace,
        report=report,
    )


def _print_plan(recipe: Recipe, models: list[str], arms: list[str], seeds: int) -> None:
    for model in models:
        pretrain, finetune = recipe.stage("pretrain", model).max_steps, recipe.stage("finetune", model).max_steps
        steps = {
            "scratch": f"{finetune}",
            "spt": f"{pretrain} + {finetune}",
            "scratch-matched": f"{pretrain + finetune}",
        }
        for arm in arms:
            typer.echo(f"{model:<14} {arm:<16} seeds 0-{seeds - 1}   {steps[arm]} steps")


@app.command()
def pretrain(
    task: TaskName,
    model: Annotated[str, typer.Option(help="A model of the recipe.")],
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint; it must not exist.")],
    seed: Seed = 0,
    train_size: TrainSize = None,
    data_dir: DataDir = None,
    option: Options = None,
    data: OwnData = None,
    input_: OwnInput = None,
    label: OwnLabel = None,
    set_: Settings = None,
) -> None:
    """Self-pretrain one model on the task's own training inputs; no label and no test input is used."""
    words = _settings(set_, train_size, option=option, data_dir=data_dir, data=data, input=input_, label=label)
    recipe = load_recipe(task, words)
    _one_model(model, recipe)
    _single_stage(recipe, model, "pretrain", seed, None, out)


@app.command()
def finetune(
    task: TaskName,
    source: Annotated[
        str,
        typer.Option(
            "--from", help="Folder or Hub id of a self-pretrained checkpoint, or `scratch` for random weights."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint; it must not exist.")],
    model: Annotated[
        str | None,
        typer.Option(help="A model of the recipe; needed with `--from scratch`, else the checkpoint decides."),
    ] = None,
    seed: Seed = 0,
    train_size: TrainSize = None,
    data_dir: DataDir = None,
    option: Options = None,
    data: OwnData = None,
    input_: OwnInput = None,
    label: OwnLabel = None,
    set_: Settings = None,
) -> None:
    """Train one classifier, from a self-pretrained checkpoint or from scratch, and measure it on the test split.

    From a checkpoint, its architecture and its processor are used as they are; only the head is new.
    """
    words = _settings(set_, train_size, option=option, data_dir=data_dir, data=data, input=input_, label=label)
    recipe = load_recipe(task, words)
    if model is not None:
        _one_model(model, recipe)
    if source == "scratch":
        if model is None:
            raise ValueError(f"--from scratch needs --model, one of {', '.join(recipe.models)}.")
        _single_stage(recipe, model, "finetune", seed, None, out)
    else:
        _single_stage(recipe, _model_of(source, recipe, model), "finetune", seed, source, out)


def _one_model(model: str, recipe: Recipe) -> None:
    if model not in recipe.models:
        raise ValueError(unknown_name("model", model, recipe.models))


def _model_of(source: str, recipe: Recipe, model: str | None) -> str:
    """The recipe's name for the architecture of a checkpoint."""
    if Path(source).is_dir():
        if not (Path(source) / "config.json").is_file():
            raise ValueError(f"--from {source} holds no config.json; give the folder of a checkpoint.")
    elif source.count("/") != 1 or source.startswith((".", "/")) or Path(source).parent.is_dir():
        raise ValueError(
            f"--from {source!r} is no folder and no Hub id such as user/name; give a checkpoint or `scratch`."
        )
    from .transfer import check_checkpoint, check_reads, checkpoint_family

    family = checkpoint_family(source)
    names = [name for name, entry in recipe.models.items() if entry.family == family]
    if not names or (model is not None and model not in names):
        raise ValueError(f"{source} holds a {family}, but the model asked for is {model or ', '.join(recipe.models)}.")
    if Path(source).is_dir():
        check_checkpoint(Path(source))
        check_reads(Path(source), recipe.task, recipe.task_options)
    return model or names[0]


def _single_stage(recipe: Recipe, model: str, stage: str, seed: int, source: str | None, out: Path) -> None:
    if out.exists():
        raise ValueError(f"{out} exists already; choose another --out, or remove it first.")
    check_writable(out)
    typer.echo(f"{stage} {model} on {recipe.task}, seed {seed}; loading ...")
    from .study import run_single

    scores = run_single(recipe, model, stage, seed, source, out)
    if os.environ.get("RANK", "0") == "0":
        from neverscratch.hub_cards.card import write_card

        write_card(out)
        typer.echo(f"{out}: {json.dumps(scores)}")


@app.command()
def show(
    task: TaskName,
    model: Annotated[str, typer.Option(help="A model of the recipe.")],
    stage: Annotated[str, typer.Option(help="pretrain or finetune.")] = "finetune",
    data_dir: DataDir = None,
    option: Options = None,
    data: OwnData = None,
    input_: OwnInput = None,
    label: OwnLabel = None,
    set_: Settings = None,
) -> None:
    """Print a model as a stage would train it: its size and how the optimiser treats each of its parameters."""
    words = _settings(set_, None, option=option, data_dir=data_dir, data=data, input=input_, label=label)
    recipe = load_recipe(task, words)
    _one_model(model, recipe)
    if stage not in ("pretrain", "finetune"):
        raise ValueError(unknown_name("stage", stage, ("pretrain", "finetune")))
    from .train import describe_model

    typer.echo(describe_model(recipe, model, stage))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a study, such as runs/digits.")],
) -> None:
    """Write the page, the tables, the figures and the model cards of the finished runs of a study."""
    from neverscratch.hub_cards.card import write_card
    from neverscratch.hub_cards.report import write_report
    from neverscratch.hub_cards.runs import read_study

    paths = write_report(folder)
    for run in read_study(folder).runs:
        write_card(run.path)
    typer.echo(f"\nOpen {paths.html}; the same as text: {paths.markdown}; every run: {paths.csv}")


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="models, tasks or recipes.")],
) -> None:
    """List what exists: models, tasks or recipes."""
    kinds = ("models", "recipes", "tasks")
    if what not in kinds:
        raise ValueError(unknown_name("list", what, kinds))
    if what == "recipes":
        for name in available_recipes():
            recipe = load_recipe(name)
            typer.echo(f"{name:<14} task {recipe.task}, {recipe.objective}, models {', '.join(recipe.models)}")
    elif what == "models":
        from neverscratch.modeling import FAMILIES

        for name, config in FAMILIES.items():
            typer.echo(f"{name:<14} {config.__name__}: {_first_sentence(sys.modules[config.__module__].__doc__)}")
    else:
        from neverscratch.tasks import list_tasks, task_entry

        for name in list_tasks():
            entry = task_entry(name)
            target = f"{entry.classes} classes" if entry.metric == "accuracy" else str(entry.classes)
            chance = "" if entry.chance is None else f" (chance {entry.chance:.3g})"
            lines = [
                f"{entry.title}: {entry.modality}, length {entry.length}, {target}, {entry.sizes}",
                f"{entry.metric}{chance}; {entry.license}; {entry.source}",
            ]
            lines += [f"--data-dir: {entry.layout}"] if entry.layout else []
            lines += [f"to make it: neverscratch data make {name} --out DIR"] if entry.can_generate else []
            lines += [f"{option}: {meaning}" for option, meaning in entry.options.items()]
            _echo_indented(name, lines)


def _echo_indented(name: str, lines: list[str], indent: int = 21) -> None:
    """A name and what is said of it, in lines that fit the terminal; 100 columns where there is none."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    wrapper = textwrap.TextWrapper(
        width - indent, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    shown = [part for line in lines for part in wrapper.wrap(line)]
    for start, part in zip([name, *[""] * (len(shown) - 1)], shown, strict=True):
        typer.echo(f"{start:<{indent - 1}} {part}")


data_app = typer.Typer(no_args_is_help=True, help="Look at a task's data, or make them.")
app.add_typer(data_app, name="data")


@data_app.command()
def check(
    task: Annotated[str, typer.Argument(help="Task name (see `neverscratch list tasks`).")],
    data_dir: DataDir = None,
    option: Options = None,
    data: OwnData = None,
    input_: OwnInput = None,
    label: OwnLabel = None,
) -> None:
    """Say what was found: files, sizes, labels, lengths, and how many sequences will be cut. Trains nothing."""
    from neverscratch.tasks import load_task
    from neverscratch.tasks.survey import describe

    given = {key: value for key, value in {"data": data, "input": input_, "label": label}.items() if value is not None}
    typer.echo(describe(load_task(task, data_dir, **{**_task_options(option), **given})))


@data_app.command()
def make(
    task: Annotated[str, typer.Argument(help="Task name; `neverscratch list tasks` marks those that can be made.")],
    out: Annotated[Path, typer.Option(help="Folder of the data: new, or of the same request broken off.")],
    size: Annotated[
        int | None, typer.Option(min=1, help="Number of examples of all splits together. Default: as published.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same examples.")] = 0,
    num_proc: Annotated[int, typer.Option(min=1, help="Processes. The bytes do not depend on it.")] = 1,
    option: Options = None,
) -> None:
    """Generate the data of a synthetic task. After Ctrl-C or a crash the same command goes on where it stopped."""
    from neverscratch.tasks.generation import make as generate

    generate(task, out, size=size, seed=seed, num_proc=num_proc, **_task_options(option))
    look = shlex.join(["neverscratch", "data", "check", task, "--data-dir", str(out)])
    typer.echo(f"Made {out}; look at it with: {look}")


def _task_options(given: list[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` words as a dictionary; values are read as YAML, as those of --set are."""
    raw: dict[str, Any] = {}
    for word in given or []:
        key, equals, _ = word.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"--option {word!r} is not of the form KEY=VALUE, such as level=easy.")
        apply_setting(raw, f"task_options.{word}")
    return raw.get("task_options", {})


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _show_warning(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    """What concerns the user in a line; what concerns programmers only, not at all."""
    if issubclass(category, UserWarning):
        typer.echo(f"warning: {as_flags(str(message), _options_at_hand())}", err=True)


def _options_at_hand() -> list[str]:
    """Options of the tasks that the command line names."""
    from neverscratch.tasks import resolve_task_name, task_entry
    from neverscratch.tasks.generation import generated_names, maker

    found: list[str] = []
    for word in sys.argv[1:]:
        try:
            found += task_entry(resolve_task_name(word)).options
            found += maker(word).options if word in generated_names() else ()
        except ValueError:
            continue
    return found


def _kept() -> str | None:
    """What a command leaves when it is stopped or fails, for the command to go on from."""
    command = " ".join(sys.argv[1:3] if sys.argv[1:2] == ["data"] else sys.argv[1:2])
    return {
        "compare": "Finished stages are kept",
        "data make": "Files that are whole are kept",
        "pretrain": "Checkpoints, where the recipe saves any, are kept",
        "finetune": "Checkpoints, where the recipe saves any, are kept",
    }.get(command)


def _terminated(*_: Any) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main() -> None:
    """Entry point of the `neverscratch` command."""
    warnings.showwarning = _show_warning
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except SystemExit as stop:
        if stop.code in (128 + signal.SIGINT, 128 + signal.SIGTERM) and os.environ.get("RANK", "0") == "0":
            typer.echo(
                "\nStopped." + (f" {kept}; the same command goes on from there." if (kept := _kept()) else ""), err=True
            )
        raise
    except OSError as error:
        kept = _kept() if error.errno is not None else None
        _fail(os_sentence(error) + (f" {kept}; mend that and give the same command again." if kept else ""))
    except (ValueError, KeyError, RuntimeError) as error:
        _fail(str(error.args[0] if isinstance(error, KeyError) and error.args else error))
    finally:
        signal.signal(signal.SIGTERM, before)


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {as_flags(message, _options_at_hand())}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()

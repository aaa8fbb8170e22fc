"""`lra-pathfinder`, `lra-pathx`, `lra-pathx256`: places of the release, split, metadata, each bad input."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from neverscratch.tasks.generation import make
from neverscratch.tasks.pathfinder import ENTRIES, LEVELS, SCALE, SIZES, build_index, load, split_indices

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "lra_format"
HARD = LEVELS["hard"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))


def picture(batch: int, number: int, size: int = 32) -> np.ndarray:
    return np.random.default_rng([batch, number]).integers(0, 256, (size, size), dtype=np.uint8)


def lines(batch: int, number: int) -> list[str]:
    return [f"imgs/{batch} sample_{n}.png {n} {(batch + n) % 2} 1.0 14 4 2 0.5 1 1" for n in range(number)]


def write(
    folder: Path, batches: tuple[int, ...] = (0, 2, 10), number: int = 10, size: int = 32, shift: int = 0
) -> Path:
    """A level's folder with some batches of `number` pictures."""
    (folder / "metadata").mkdir(parents=True)
    for batch in batches:
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        for n in range(number):
            Image.fromarray(picture(batch + shift, n, size)).save(folder / "imgs" / str(batch) / f"sample_{n}.png")
        (folder / "metadata" / f"{batch}.npy").write_text("\n".join(lines(batch, number)) + "\n")
    return folder


def test_pictures_labels_and_order(tmp_path: Path) -> None:
    write(tmp_path / "pathfinder32" / HARD)
    task = load("lra-pathfinder", tmp_path)
    assert task.sizes == {"train": 24, "validation": 3, "test": 3}
    assert task.files == (str(tmp_path / "pathfinder32" / HARD),)
    seen = []
    for split in task.splits.values():
        assert split.column_names == ["image", "label", "example_id"]
        for row in split:
            # Metadata files by number: 0, 2, 10.
            batch, number = (0, 2, 10)[int(row["example_id"]) // 10], int(row["example_id"]) % 10
            np.testing.assert_array_equal(row["image"], picture(batch, number))
            assert int(row["label"]) == (batch + number) % 2
            seen.append(int(row["example_id"]))
    assert sorted(seen) == list(range(30))
    spec = task.spec
    assert (spec.labels, spec.length, spec.num_channels, spec.chance) == (("0", "1"), 1024, 1, 0.5)
    assert (spec.scale, spec.num_levels) == (SCALE, None)
    assert task.options == {"level": "hard", "levels": False} and "Level hard (curv_contour_length_14)" in spec.notes


def test_the_split_is_that_of_random_split() -> None:
    import torch

    for number in (30, 57, 2000):
        held = int(0.1 * number)
        sizes = [number - 2 * held, held, held]
        parts = torch.utils.data.random_split(range(number), sizes, generator=torch.Generator().manual_seed(42))
        for ours, theirs in zip(split_indices(number).values(), parts, strict=True):
            assert ours.tolist() == sorted(theirs.indices)
    assert [len(part) for part in split_indices(200_000).values()] == [160_000, 20_000, 20_000]
    assert [len(part) for part in split_indices(6).values()] == [4, 1, 1]
    with pytest.raises(ValueError, match="2 pictures cannot be split in three"):
        split_indices(2)


def test_options(tmp_path: Path) -> None:
    for level, folder in LEVELS.items():
        write(tmp_path / "pathfinder32" / folder, number=10 + len(level))
    for level, folder in LEVELS.items():
        task = load("lra-pathfinder", tmp_path / "pathfinder32", level=level, levels=True)
        assert sum(task.sizes.values()) == 30 + 3 * len(level) and task.files[0].endswith(folder)
        assert (task.spec.num_levels, task.spec.scale) == (256, None)
        assert task.options == {"level": level, "levels": True}
    with pytest.raises(ValueError, match="level='Easy' is unknown. Did you mean 'easy'. Use one of hard, interm"):
        load("lra-pathfinder", tmp_path, level="Easy")
    with pytest.raises(ValueError, match="levels=1 is neither true nor false"):
        load("lra-pathfinder", tmp_path, levels=1)  # type: ignore[arg-type]
    for name, entry in ENTRIES.items():
        assert entry.length == SIZES[name] ** 2 and set(entry.options) == {"level", "levels"}


@pytest.mark.parametrize(
    ("place", "given"),
    [
        ("lra_release/lra_release/pathfinder32", ""),
        ("lra_release/lra_release/pathfinder32", "lra_release"),
        ("lra_release/lra_release/pathfinder32", "lra_release/lra_release"),
        ("lra_release/pathfinder32", ""),
        ("lra_release/pathfinder32", "lra_release"),
        ("pathfinder/pathfinder32", ""),
        ("pathfinder/pathfinder32", "pathfinder/pathfinder32"),
        ("pathfinder32", f"pathfinder32/{HARD}"),
        ("renamed", "renamed"),
    ],
)
def test_every_place_of_the_release(tmp_path: Path, place: str, given: str) -> None:
    folder = write(tmp_path / place / HARD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task = load("lra-pathfinder", tmp_path / given)
    assert task.files == (str(folder),)


@pytest.mark.parametrize("given", ["", "lra_release"])
def test_of_two_copies_the_inner_one_is_used(tmp_path: Path, given: str) -> None:
    write(tmp_path / "lra_release" / "pathfinder32" / HARD, shift=100)
    inner = write(tmp_path / "lra_release" / "lra_release" / "pathfinder32" / HARD)
    with pytest.warns(UserWarning, match="holds two copies of lra-pathfinder; .*lra_release/lra_release/.* is used"):
        task = load("lra-pathfinder", tmp_path / given)
    assert task.files == (str(inner),) and "two copies" in task.spec.notes
    first = task.splits["train"][0]
    np.testing.assert_array_equal(first["image"], picture(0, int(first["example_id"])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("lra-pathfinder", tmp_path / "lra_release" / "pathfinder32")


def test_metadata_of_the_generator(tmp_path: Path) -> None:
    text, true = write(tmp_path / "text" / HARD), write(tmp_path / "npy" / HARD)
    for batch, kind in ((0, "U"), (2, "S"), (10, "U")):
        np.save(true / "metadata" / f"{batch}.npy", np.array([line.split() for line in lines(batch, 10)], dtype=kind))
    np.save(true / "metadata" / "combined.npy", np.zeros(3))
    one, other = build_index(text), build_index(true)
    assert one.names == other.names and one.labels.tolist() == other.labels.tolist()
    assert sum(load("lra-pathfinder", true).sizes.values()) == 30


def test_bad_metadata(tmp_path: Path) -> None:
    folder = write(tmp_path / HARD)
    path = folder / "metadata" / "2.npy"
    for raw, message in [
        (b"", r"metadata/2\.npy is empty"),
        (b"imgs/2 sample_0.png 0 1\nimgs/2 sample_1.png\n", r"metadata/2\.npy, line 2: 2 fields"),
        (b"imgs/2 sample_0.png 0 2 1.0\n", r"metadata/2\.npy, line 1: label '2' is neither 0 nor 1"),
        (b"../imgs/2 sample_0.png 0 1 1.0\n", r"line 1: \.\./imgs/2/sample_0\.png lies outside"),
        (b"imgs/2 sample_0.png 0 1 1.0\n\xff\n", r"metadata/2\.npy, line 2: neither text in UTF-8 nor an npy file"),
        (b"\x93NUMPY\x01\x00v\x00{", r"metadata/2\.npy is damaged"),
    ]:
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=message):
            load("lra-pathfinder", folder)
    np.save(path, np.array([line.split() for line in lines(2, 10)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"2\.npy is damaged, or holds pickled objects, which are not opened"):
        load("lra-pathfinder", folder)
    np.save(path, np.zeros((3, 4)))
    with pytest.raises(ValueError, match=r"2\.npy is an array of float64 \(3, 4\); needed is a table of text"):
        load("lra-pathfinder", folder)
    path.rename(path.with_name("two.npy"))
    with pytest.raises(ValueError, match=r"metadata/two\.npy in .* has no number for a name"):
        load("lra-pathfinder", folder)
    for other in (folder / "metadata").iterdir():
        other.unlink()
    with pytest.raises(FileNotFoundError, match=r"metadata holds no file such as 0\.npy"):
        load("lra-pathfinder", folder)


def test_empty_missing_and_broken_pictures(tmp_path: Path) -> None:
    folder = write(tmp_path / HARD)
    place = folder / "imgs" / "2"
    for number in (3, 7):
        (place / f"sample_{number}.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="lra-pathfinder: 2 empty picture files left out, the first .*2/sample_3.png"):
        task = load("lra-pathfinder", folder)
    assert sum(task.sizes.values()) == 28 and "2 empty picture files left out" in task.spec.notes
    write(tmp_path / "again" / HARD, batches=(2,))
    again = tmp_path / "again" / HARD / "imgs" / "2"
    for number in (3, 7):
        (place / f"sample_{number}.png").write_bytes((again / f"sample_{number}.png").read_bytes())
    good = (again / "sample_4.png").read_bytes()
    Image.fromarray(picture(0, 0, 64)).save(tmp_path / "large.png")
    for raw, message in [
        (good[:400], "imgs/2/sample_4.png in .* is no readable picture"),
        (b"no picture", "imgs/2/sample_4.png in .* is no readable picture"),
        ((tmp_path / "large.png").read_bytes(), "imgs/2/sample_4.png in .* is 64 x 64 pixels, where 32 x 32"),
    ]:
        (place / "sample_4.png").write_bytes(raw)
        with pytest.raises(ValueError, match=message):
            load("lra-pathfinder", folder)
    for number in range(2, 7):
        (place / f"sample_{number}.png").unlink()
    message = r"5 pictures .* missing in .*: imgs/2/sample_2\.png, imgs/2/sample_3\.png, imgs/2/sample_4\.png, \.\.\."
    with pytest.raises(FileNotFoundError, match=message):
        load("lra-pathfinder", folder)


def test_a_changed_picture_is_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path / HARD)
    before = load("lra-pathfinder", folder).splits["train"][0]
    row = int(before["example_id"])
    Image.fromarray(picture(5, 5)).save(folder / "imgs" / "0" / f"sample_{row}.png")
    after = load("lra-pathfinder", folder).splits["train"][0]
    np.testing.assert_array_equal(after["image"], picture(5, 5))


def test_wrong_folders(tmp_path: Path) -> None:
    write(tmp_path / "pathfinder32" / LEVELS["easy"])
    with pytest.raises(FileNotFoundError, match=rf"holds no pathfinder32/{HARD}/metadata/; .* There is level 'easy'"):
        load("lra-pathfinder", tmp_path)
    with pytest.raises(ValueError, match="holds level 'easy', but level='hard' was asked for"):
        load("lra-pathfinder", tmp_path / "pathfinder32" / LEVELS["easy"])
    with pytest.raises(ValueError, match="is of size 32, but lra-pathx needs pathfinder128"):
        load("lra-pathx", tmp_path / "pathfinder32")
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        load("lra-pathx", tmp_path / "absent")
    with pytest.raises(ValueError, match="lra-pathx needs data_dir"):
        load("lra-pathx")
    folder = write(tmp_path / HARD, number=2, batches=(0, 2))
    for batch in (0, 2):
        text = (folder / "metadata" / f"{batch}.npy").read_text().replace(" 1 1 1.0", " 1 0 1.0")
        (folder / "metadata" / f"{batch}.npy").write_text(text)
    with pytest.raises(ValueError, match="single label '0'"):
        load("lra-pathfinder", folder)


def test_a_generated_set(tmp_path: Path) -> None:
    folder = make("lra-pathfinder", tmp_path / "made", size=20, seed=3, progress=False, level="easy")
    task = load("lra-pathfinder", folder, level="easy")
    assert task.sizes == {"train": 16, "validation": 2, "test": 2} and task.files == (str(folder),)
    assert task.splits["train"].column_names == ["image", "label", "example_id"]
    assert task.splits["train"][0]["image"].shape == (32, 32)
    assert task.splits["train"].features["label"].names == ["0", "1"]
    assert "Generated" in task.spec.notes and "seed 3" in task.options["generated"]
    with pytest.raises(ValueError, match="generated for level 'easy', but 'hard' was asked for"):
        load("lra-pathfinder", folder)
    with pytest.raises(ValueError, match="generated for task 'lra-pathfinder', but 'lra-pathx' was asked for"):
        load("lra-pathx", folder, level="easy")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_the_shared_pictures() -> None:
    for name, number in (("lra-pathfinder", 100), ("lra-pathx", 20), ("lra-pathx256", 6)):
        task = load(name, SHARED)
        assert sum(task.sizes.values()) == number
        size = SIZES[name]
        assert task.splits["test"]["image"][:].shape == (max(1, number // 10), size, size)
    with pytest.warns(UserWarning, match=r"1 empty picture file left out.*imgs/0/sample_17\.png"):
        easy = load("lra-pathfinder", SHARED, level="easy")
    assert sum(easy.sizes.values()) == 19

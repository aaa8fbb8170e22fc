"""`speech-commands-*`: folders, lists, lengths, variants, and files that cannot be used."""

import shutil
import wave
from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks import Task
from neverscratch.tasks.speech_commands import TEN, THIRTY_FIVE, load

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of small real sets is not beside the checkout")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEVERSCRATCH_CACHE", str(tmp_path / "cache"))


def write_clip(path: Path, samples: np.ndarray, rate: int = 16_000, channels: int = 1, width: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", "not compressed"))
        file.writeframes(samples.astype({1: "u1", 2: "<i2"}[width]).tobytes())


def write(folder: Path, words: tuple[str, ...] = TEN, num: int = 4, length: int = 50) -> Path:
    """Clips of one number each; the last two of each word are for validation and test."""
    lists: dict[str, list[str]] = {"validation": [], "testing": []}
    for label, word in enumerate(words):
        for clip in range(num):
            name = f"{clip:08x}_nohash_0.wav"
            write_clip(folder / word / name, np.full(length + clip, 100 * label + clip))
            for part, index in (("validation", num - 2), ("testing", num - 1)):
                if clip == index:
                    lists[part].append(f"{word}/{name}")
    write_clip(folder / "_background_noise_" / "noise.wav", np.zeros(100_000))
    for part, names in lists.items():
        (folder / f"{part}_list.txt").write_text("\n".join(names) + "\n")
    return folder


def all_ids(task: Task) -> list[int]:
    return [int(i) for split in task.splits.values() for i in split["example_id"][:]]


@pytest.mark.parametrize(("name", "words"), [("speech-commands-10", TEN), ("speech-commands-35", THIRTY_FIVE)])
def test_the_official_lists(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    write(tmp_path / "speech_commands_v0.02", THIRTY_FIVE)
    task = load(name, tmp_path)
    num = len(words)
    assert task.sizes == {"train": 2 * num, "validation": num, "test": num}
    assert task.spec.labels == words == tuple(sorted(words)) and len(words) in (10, 35)
    assert (task.spec.sampling_rate, task.spec.num_channels, task.spec.length) == (16_000, 1, 16_000)
    assert task.spec.chance == 1 / num
    assert sorted(all_ids(task)) == list(range(4 * num))
    row = task.splits["test"][0]
    assert row["audio"].shape == (16_000,) and task.splits["test"].features["audio"].feature.dtype == "int16"
    assert row["audio"][:53].tolist() == [100 * THIRTY_FIVE.index(words[0]) + 3] * 53 and not row["audio"][53:].any()
    assert task.splits["test"]["label"][:].tolist() == list(range(num))
    assert f"{4 * num} of {4 * num} clips are shorter than 16,000 samples, filled up" in task.spec.notes


def test_clips_in_their_own_length(tmp_path: Path) -> None:
    task = load("speech-commands-10", write(tmp_path), pad=False)
    assert [len(row["audio"]) for row in task.splits["train"]][:3] == [50, 51, 50]
    assert task.spec.length == 53
    assert task.options == {"pad": False, "words": "official", "variant": "official"}


def test_longer_clips_are_cut_and_counted(tmp_path: Path) -> None:
    write(tmp_path)
    write_clip(tmp_path / "yes" / "00000000_nohash_0.wav", np.arange(16_007) % 100)
    with pytest.warns(UserWarning, match="1 of 40 clips are longer than 16,000 samples and are cut there."):
        task = load("speech-commands-10", tmp_path)
    assert {row["audio"].shape for row in task.splits["train"]} == {(16_000,)}


def test_words_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path, ("no", "yes", "zero"))
    with pytest.raises(
        FileNotFoundError, match="the folders down/, go/, left/, off/, on/, right/, stop/, up/. speech-co"
    ):
        load("speech-commands-10", tmp_path)
    with pytest.raises(FileNotFoundError, match="backward/, bed/, .* 35 words; unpack the whole archive"):
        load("speech-commands-35", tmp_path)
    task = load("speech-commands-35", tmp_path, words="found")
    assert task.spec.labels == ("no", "yes", "zero") and task.spec.chance == 1 / 3
    assert "Only 3 of its 35 words are there: no, yes, zero." in task.spec.notes
    assert load("speech-commands-10", tmp_path, words="found").spec.labels == ("no", "yes")
    shutil.rmtree(tmp_path / "no")
    with pytest.raises(ValueError, match="the single word 'yes' of speech-commands-10"):
        load("speech-commands-10", tmp_path, words="found")
    with pytest.raises(FileNotFoundError, match="nowhere' is not a folder"):
        load("speech-commands-10", tmp_path / "nowhere")


def test_folders_that_are_no_words(tmp_path: Path) -> None:
    write(tmp_path, (*TEN, "hello"))
    with pytest.warns(UserWarning, match="1 folder\\(s\\) are no word of Speech Commands and are left out: hello."):
        assert load("speech-commands-10", tmp_path).spec.labels == TEN


def test_the_variant_of_s4(tmp_path: Path) -> None:
    write(tmp_path, num=20, length=15_990)
    with pytest.raises(ValueError, match="10 clips of 16,000 samples are too few for variant='s4'"):
        load("speech-commands-10", tmp_path, variant="s4")
    for word in TEN:
        for clip in range(20):
            write_clip(tmp_path / word / f"{clip:08x}_nohash_0.wav", np.full(16_000, 20 * TEN.index(word) + clip))
        write_clip(tmp_path / word / "ffffffff_nohash_0.wav", np.zeros(15_999))
    task = load("speech-commands-10", tmp_path, variant="s4")
    assert task.sizes == {"train": 140, "validation": 30, "test": 30}
    assert np.bincount(task.splits["test"]["label"][:]).tolist() == [3] * 10
    assert len(set(all_ids(task))) == 200
    assert "Variant s4: 10 clips that are not 16,000 samples long dropped" in task.spec.notes
    assert all_ids(task) == all_ids(load("speech-commands-10", tmp_path, variant="s4"))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rate": 8_000}, "yes/00000000_nohash_0.wav has 8,000 samples a second; 16,000 are needed"),
        ({"channels": 2}, "yes/00000000_nohash_0.wav has more than one channel; one is needed"),
        ({"samples": np.zeros(0)}, "yes/00000000_nohash_0.wav: the recording has no samples; remove the file."),
    ],
)
def test_unusable_clips_are_named(tmp_path: Path, kwargs: dict, message: str) -> None:
    write(tmp_path)
    write_clip(tmp_path / "yes" / "00000000_nohash_0.wav", **{"samples": np.zeros(50), **kwargs})
    with pytest.raises(ValueError, match=message):
        load("speech-commands-10", tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    clip = write(tmp_path) / "yes" / "00000000_nohash_0.wav"
    whole = clip.read_bytes()
    for content, message in (
        (whole[:-10], "yes/00000000_nohash_0.wav is cut off: 90 of 100 bytes of samples"),
        (b"", "yes/00000000_nohash_0.wav is empty; remove the file"),
        (b"RIFFxxxx", "yes/00000000_nohash_0.wav (is no 16-bit WAV file|cannot be read as sound)"),
    ):
        clip.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load("speech-commands-10", tmp_path)


def test_lists_are_checked(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "testing_list.txt"
    good = path.read_text()
    for content, error, message in (
        (good + "yes/none_nohash_0.wav\n", FileNotFoundError, "yes/none_nohash_0.wav, named in testing_list.txt"),
        (good + "yes\n", ValueError, "testing_list.txt, line 11: 'yes' names no clip; expected word/file.wav."),
        ((tmp_path / "validation_list.txt").read_text(), ValueError, "and 7 more stand in both lists"),
        ("", ValueError, "the test part has no clip: testing_list.txt names none of its words"),
    ):
        path.write_text(content)
        with pytest.raises(error, match=message):
            load("speech-commands-10", tmp_path)
    path.write_bytes(b"yes/\xff.wav\n")
    with pytest.raises(ValueError, match="testing_list.txt, line 1: byte 0xff is not UTF-8"):
        load("speech-commands-10", tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="testing_list.txt, which says which clips are held out"):
        load("speech-commands-10", tmp_path)


def test_repeated_clips_are_counted(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.copy(tmp_path / "yes" / "00000000_nohash_0.wav", tmp_path / "yes" / "00000003_nohash_0.wav")
    with pytest.warns(UserWarning, match=r"stand in more than one part \(1 of 10 in test occur in train, too\)"):
        load("speech-commands-10", tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("speech-commands-10", {"pad": 1}, "pad=1 is unknown; use True or False."),
        ("speech-commands-10", {"words": "all"}, "words='all' is unknown; use 'official' or 'found'."),
        ("speech-commands-10", {"variant": "s5"}, "variant='s5' is unknown; use 'official' or 's4'."),
        ("speech-commands-35", {"variant": "s4"}, "variant='s4' is for speech-commands-10"),
    ],
)
def test_options_are_checked(tmp_path: Path, name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, tmp_path, **options)


@shared
def test_a_plain_baseline_on_ten_words() -> None:
    from scipy.signal import spectrogram
    from sklearn.linear_model import LogisticRegression

    folder = SHARED / "speech_commands"
    task = load("speech-commands-10", folder)
    assert task.sizes == {"train": 100, "validation": 20, "test": 30}
    assert task.spec.labels == TEN
    with pytest.raises(ValueError, match="none of 150 is; use variant='official'."):
        load("speech-commands-10", folder, variant="s4")

    def features(*parts: str) -> tuple[np.ndarray, np.ndarray]:
        clips = np.concatenate([task.splits[part]["audio"][:] for part in parts]).astype(np.float32)
        labels = np.concatenate([task.splits[part]["label"][:] for part in parts])
        return np.log1p(spectrogram(clips, 16_000, nperseg=256)[2]).reshape(len(clips), -1), labels

    model = LogisticRegression(max_iter=500).fit(*features("train", "validation"))
    # 29 of 30 clips; all 30 have been reported, of features that nobody wrote down.
    assert model.score(*features("test")) >= 0.96


@shared
def test_clips_are_the_samples_of_the_files() -> None:
    folder = SHARED / "speech_commands"
    for part, names in (("test", "testing_list.txt"), ("validation", "validation_list.txt")):
        split = load("speech-commands-10", folder).splits[part]
        found = {np.asarray(clip, dtype=np.int16).tobytes() for clip in split["audio"]}
        for name in (folder / names).read_text().split():
            with wave.open(str(folder / name)) as sound:
                samples = np.frombuffer(sound.readframes(sound.getnframes()), dtype=np.int16)
            assert np.pad(samples, (0, 16_000 - len(samples))).tobytes() in found

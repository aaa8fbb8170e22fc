"""Plain baselines on real sets, through our loaders: they come out as they are known, or a loader is broken.

Those of GunPoint, ItalyPowerDemand, digits, bidmc, the texts and Speech Commands stand with the tests of their loaders.
"""

from pathlib import Path

import numpy as np
import pytest

from neverscratch.tasks import load_task

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of small real sets is not beside the checkout")


def test_mean_spectra_tell_two_languages_apart() -> None:
    from scipy.signal import spectrogram
    from sklearn.linear_model import LogisticRegression

    folder = SHARED / "spoken_language"
    splits = load_task("own", data=folder, input="audio", label="language", sampling_rate=8000).splits

    def mean_spectra(part: str) -> np.ndarray:
        clips = [np.asarray(clip)[:, 0] for clip in splits[part]["audio"][:]]
        return np.stack([np.log(spectrogram(clip, 8000)[2] + 1e-10).mean(-1) for clip in clips])

    model = LogisticRegression(max_iter=3000).fit(mean_spectra("train"), splits["train"]["label"][:])
    assert model.score(mean_spectra("test"), splits["test"]["label"][:]) >= 0.977


def test_the_angle_between_texts_tells_pairs() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    splits = load_task("lra-retrieval", data_dir=SHARED / "pairs").splits
    labels = {part: np.array(split["label"][:]) for part, split in splits.items()}
    assert max(labels["test"].mean(), 1 - labels["test"].mean()) == pytest.approx(0.551, abs=5e-4)
    texts = {part: [split[column][:] for column in ("text", "text_pair")] for part, split in splits.items()}
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(2, 4), sublinear_tf=True, max_features=200_000)
    vectorizer.fit([text[:4000] for column in texts["train"] for text in column])

    def cosines(part: str) -> np.ndarray:
        first, second = (vectorizer.transform([text[:4000] for text in column]) for column in texts[part])
        return np.asarray(first.multiply(second).sum(1)).ravel()

    known, new = cosines("train"), cosines("test")
    threshold = max(np.unique(known), key=lambda cosine: ((known > cosine) == labels["train"]).mean())
    assert ((new > threshold) == labels["test"]).mean() >= 0.935

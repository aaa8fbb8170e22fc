"""Settings for all tests: one thread, no network, caches in a folder that goes away."""

import atexit
import os
import shutil
import tempfile

CACHE = tempfile.mkdtemp(prefix="neverscratch-tests-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ.update(HF_HOME=CACHE, HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    """Make each test start from the same random state, whatever ran before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)

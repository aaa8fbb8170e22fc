"""Time and memory of the S4D kernel and of a whole S4D layer, against the plain sum over all powers.

    python benchmarks/kernels.py [--length 4096] [--hidden 256] [--state 64] [--batch 8] [--threads 1] [--repeats 5]

Plain is what one writes from the paper: K = 2 Re einsum(W, exp(l log_z)) in complex64 under autograd, which is O(H N L)
in time and memory, and an FFT convolution under autograd. Both run in turn in one process, so that noise meets both
alike; the peak memory of each is measured in a process of its own, and does not count imports, parameters and inputs.
"""

import os
import sys

if os.path.basename(sys.path[0]) == "benchmarks":
    # transformers looks for an optional package named "kernels", and a script's own folder comes first.
    sys.path.pop(0)

import argparse
import gc
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn import functional as F

from neverscratch.modeling.modeling_s4d import S4DMixer
from neverscratch.modeling.ops_ssm import diagonal_kernel

VARIANTS = ("ours", "plain")
PARTS = ("kernel", "layer")


class PlainMixer(S4DMixer):
    """The same parameters and the same function, written plainly."""

    def kernel(self, length: int) -> Tensor:
        dt = self.log_dt.exp()[:, None]
        A = torch.complex(-self.log_A_real.exp(), self.A_imag)
        log_z = dt * A
        weight = torch.view_as_complex(self.C) * torch.view_as_complex(self.B) * (torch.exp(log_z) - 1) / A
        powers = torch.exp(log_z[..., None] * torch.arange(length))  # (H, M, L)
        return 2 * torch.einsum("rhn,hnl->rhl", weight, powers).real

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        length = hidden_states.shape[1]
        forward, backward = self.kernel(length)
        u = hidden_states.transpose(1, 2)  # (B, H, L)
        two_sided = F.pad(forward, (0, length)) + F.pad(backward.flip(-1), (length, 0))
        spectrum = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(two_sided)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length] + u * self.D[:, None]
        return F.glu(self.output_linear(F.gelu(y).transpose(1, 2)))


def build(variant: str, arguments: argparse.Namespace) -> tuple[S4DMixer, Tensor]:
    """A mixer with the same parameters in both variants, and its input."""
    config = SimpleNamespace(
        hidden_size=arguments.hidden,
        d_state=arguments.state,
        n_ssm=None,
        ssm_init="lin",
        discretization="zoh",
        dt_min=1e-3,
        dt_max=1e-1,
        train_B=True,
        bidirectional=True,
        hidden_dropout_prob=0.0,
        tie_dropout=False,
    )
    torch.manual_seed(0)
    mixer = (S4DMixer if variant == "ours" else PlainMixer)(config, layer_idx=0)
    mixer.init_weights()
    return mixer, torch.randn(arguments.batch, arguments.length, arguments.hidden)


def step(part: str, mixer: S4DMixer, u: Tensor) -> Callable[[], None]:
    """Forward and backward of one part."""

    def run() -> None:
        mixer.zero_grad(set_to_none=True)
        u.grad = None
        output = mixer.kernel(u.shape[1]) if part == "kernel" else mixer(u.requires_grad_())
        output.square().sum().backward()

    return run


def seconds(run: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_memory(variant: str, part: str, arguments: argparse.Namespace) -> float:
    """Peak bytes of the resident set during two steps, beyond what the process held before them."""
    options = [f"--{name}={getattr(arguments, name)}" for name in ("length", "hidden", "state", "batch", "threads")]
    command = [sys.executable, __file__, "--measure", variant, part, *options]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout)


def measure(variant: str, part: str, arguments: argparse.Namespace) -> None:
    mixer, u = build(variant, arguments)
    # A step on a short input brings in the libraries first, so that they do not count.
    step(part, mixer, torch.randn(1, 256, arguments.hidden))()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = step(part, mixer, u)
    run()
    run()
    unit = 1 if sys.platform == "darwin" else 1024
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit)


def errors(mixers: dict[str, S4DMixer], length: int) -> dict[str, float]:
    """Largest error of each kernel against float64, relative to the largest value of the feature."""
    mixer = mixers["ours"]
    with torch.no_grad():
        exact = diagonal_kernel(
            mixer.log_dt.double().exp(),
            -mixer.log_A_real.double().exp(),
            mixer.A_imag.double(),
            mixer.B.double(),
            mixer.C.double(),
            length,
        )
        scale = exact.abs().amax(-1)
        return {
            name: ((mixer.kernel(length) - exact).abs().amax(-1) / scale).max().item() for name, mixer in mixers.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--state", type=int, default=64, help="real states per feature, even")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", nargs=2, metavar=("VARIANT", "PART"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        measure(*arguments.measure, arguments)
        return

    print(
        f"S4D, forward and backward: L={arguments.length} H={arguments.hidden} N={arguments.state} "
        f"B={arguments.batch}, {arguments.threads} thread(s), {arguments.repeats} repeats, torch {torch.__version__}"
    )
    print(f"{'':8} {'':6} {'min ms':>9} {'median ms':>10} {'peak MiB':>9}")
    # First of all, since a new process inherits the peak of the one that starts it.
    memory = {(variant, part): peak_memory(variant, part, arguments) for variant in VARIANTS for part in PARTS}
    built = {variant: build(variant, arguments) for variant in VARIANTS}
    for part in PARTS:
        runs = {variant: step(part, *built[variant]) for variant in VARIANTS}
        times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for run in runs.values():
            run()
        for _ in range(arguments.repeats):
            for variant in VARIANTS:
                times[variant].append(seconds(runs[variant]))
        low = {variant: min(values) for variant, values in times.items()}
        middle = {variant: statistics.median(values) for variant, values in times.items()}
        for variant in VARIANTS:
            print(
                f"{part:8} {variant:6} {low[variant] * 1e3:9.1f} {middle[variant] * 1e3:10.1f} "
                f"{memory[variant, part] / 2**20:9.0f}"
            )
        print(
            f"{part:8} {'ratio':6} {low['plain'] / low['ours']:9.2f} {middle['plain'] / middle['ours']:10.2f} "
            f"{memory['plain', part] / memory['ours', part]:9.2f}"
        )
    for variant, error in errors({variant: mixer for variant, (mixer, _) in built.items()}, arguments.length).items():
        print(f"largest kernel error against float64, relative: {variant} {error:.1e}")
    with torch.no_grad():
        ours, plain = (built[variant][0](built[variant][1]) for variant in VARIANTS)
    print(f"largest difference of the two layers' outputs: {(ours - plain).abs().max().item():.1e}")


if __name__ == "__main__":
    main()

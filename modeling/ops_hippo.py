"""Starting values of state space models: HiPPO matrices, their diagonal plus low-rank form, and diagonal starts.

N is the real state size (even), M = N / 2 the number of stored conjugate pairs. Complex numbers leave this file as real
pairs (..., 2), float64, with imaginary parts of A >= 0; the conjugate half of every spectrum is left out.

Sources: Gu et al. 2020, "HiPPO: Recurrent Memory with Optimal Polynomial Projections", arXiv 2008.07669;
Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces" (S4), arXiv 2111.00396;
Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models" (S4D), arXiv 2206.11893.
"""

import numpy as np
import torch
from torch import Tensor


def _num_pairs(d_state: int) -> int:
    if d_state < 2 or d_state % 2:
        raise ValueError(
            f"d_state={d_state} is not a positive even number, but states come in conjugate pairs; "
            "use an even number such as 64."
        )
    return d_state // 2


def hippo_legs(d_state: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegS system x' = A x + B u, which projects the whole past onto Legendre polynomials.

    Args:
        d_state: Number of real states N, any positive number.

    Returns:
        A (N, N), lower triangular with eigenvalues -1, ..., -N, and B (N,), both float64.

    Source: arXiv 2008.07669.
    """
    n = torch.arange(d_state, dtype=torch.float64)
    scale = torch.sqrt(2 * n + 1)
    A = -torch.tril(torch.outer(scale, scale), diagonal=-1) - torch.diag(n + 1)
    return A, scale


def hippo_legt(d_state: int) -> tuple[Tensor, Tensor]:
    """HiPPO-LegT system x' = A x + B u, which projects a sliding window of the past onto Legendre polynomials.

    Args:
        d_state: Number of real states N, any positive number.

    Returns:
        A (N, N) and B (N,), both float64.

    Source: arXiv 2008.07669, with the time scale of the public code of arXiv 2111.00396.
    """
    n = torch.arange(d_state, dtype=torch.float64)
    scale = torch.sqrt(2 * n + 1)
    signs = 1 - 2 * ((n[:, None] - n) % 2)
    A = -torch.outer(scale, scale) / 2 * torch.where(n[:, None] >= n, 1.0, signs)
    return A, scale / 2


def hippo_fout(d_state: int) -> tuple[Tensor, Tensor]:
    """HiPPO-FouT system x' = A x + B u, which projects a sliding window of the past onto a Fourier basis.

    Args:
        d_state: Number of real states N, even; state 1 is never driven.

    Returns:
        A (N, N) and B (N,), both float64.

    Source: Gu et al. 2022, "How to Train Your HiPPO", arXiv 2206.12037.
    """
    pairs = _num_pairs(d_state)
    frequency = torch.pi * torch.arange(pairs, dtype=torch.float64)
    even = torch.arange(0, d_state, 2)
    skew, B = torch.zeros(d_state, d_state, dtype=torch.float64), torch.zeros(d_state, dtype=torch.float64)
    skew[even, even + 1] = -frequency
    skew[even + 1, even] = frequency
    B[even] = torch.tensor([1.0] + (pairs - 1) * [2**0.5], dtype=torch.float64)
    return skew - torch.outer(B, B), B


def _normal_form(A: Tensor, B: Tensor, P: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonalise A + sum_r P_r P_r^T = c 1 + skew, P (r, N): eigenvalues, V* B and V* P of one half of the spectrum.

    The eigenvectors V are unitary. Their free phase is fixed by making V* B real and >= 0, so that the result does not
    depend on LAPACK.
    """
    pairs = _num_pairs(len(A))
    A, B, P = (matrix.numpy() for matrix in (A, B, P))
    normal = A + P.T @ P
    real = np.diag(normal).mean()
    # i times a skew matrix is Hermitian: eigh is exact where eig would lose the orthogonality of V.
    frequency, V = np.linalg.eigh(-1j * (normal - real * np.eye(len(A))))
    frequency, V = frequency[pairs:], V[:, pairs:]
    B, P = V.conj().T @ B, V.conj().T @ P.T
    P = (P * (B.conj() / np.abs(B))[:, None]).T
    eigenvalues = np.stack([np.full(pairs, real), frequency], axis=-1)
    B = np.stack([np.abs(B), np.zeros(pairs)], axis=-1)
    P = np.stack([P.real, P.imag], axis=-1)
    return torch.from_numpy(eigenvalues), torch.from_numpy(B), torch.from_numpy(P)


def hippo_legs_normal(d_state: int) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonal form of the normal part of HiPPO-LegS: A_legs = V (diag(A) - P P*) V*, one half of the spectrum.

    The normal part A_legs + p p^T, p_n = sqrt(n + 1/2), is -1/2 I plus a skew matrix.

    Args:
        d_state: Number of real states N, even.

    Returns:
        A (M, 2), imaginary parts increasing; B (M, 2), that is V* B with zero imaginary part; P (M, 2), that is V* p.

    Source: arXiv 2111.00396 (normal plus low rank form); the fixed phase is ours.
    """
    _num_pairs(d_state)
    p = torch.sqrt(torch.arange(d_state, dtype=torch.float64) + 0.5)
    eigenvalues, B, P = _normal_form(*hippo_legs(d_state), p[None])
    # Its value without the rounding of a mean.
    eigenvalues[:, 0] = -0.5
    return eigenvalues, B, P[0]


def hippo_legt_normal(d_state: int) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonal form of the normal part of HiPPO-LegT, which takes a correction of rank two; see `hippo_legs_normal`.

    Args:
        d_state: Number of real states N, even.

    Returns:
        A (M, 2), purely imaginary; B (M, 2); P (2, M, 2).

    Source: arXiv 2111.00396.
    """
    _num_pairs(d_state)
    A, B = hippo_legt(d_state)
    scale = B * 2**0.5
    even = torch.arange(d_state) % 2 == 0
    eigenvalues, B, P = _normal_form(A, B, torch.stack([scale * even, scale * ~even]))
    eigenvalues[:, 0] = 0.0
    return eigenvalues, B, P


def hippo_fout_normal(d_state: int) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonal form of the normal part of HiPPO-FouT; see `hippo_legs_normal`.

    Written down rather than computed, since the eigenvalue 0 is double and its eigenvectors are free: the real part of
    pair 0 is state 0 of `hippo_fout`, its imaginary part the dead state 1.

    Args:
        d_state: Number of real states N, even.

    Returns:
        A (M, 2), that is i pi m; B (M, 2); P (M, 2), the same as B.

    Source: arXiv 2206.12037.
    """
    pairs = _num_pairs(d_state)
    frequency = torch.pi * torch.arange(pairs, dtype=torch.float64)
    B = torch.zeros(pairs, 2, dtype=torch.float64)
    B[:, 0] = hippo_fout(d_state)[1][::2] / 2**0.5
    return torch.stack([torch.zeros_like(frequency), frequency], dim=-1), B, B.clone()


DPLR_STARTS = {"legs": hippo_legs_normal, "legt": hippo_legt_normal, "fout": hippo_fout_normal}


def dplr_rank(starts: str) -> int:
    """Rank of the correction that the starts named in, for example, "legt+fout" need."""
    return 2 if "legt" in starts.split("+") else 1


def dplr_start(
    starts: str, d_state: int, copies: int, real_floor: float = 1e-4, b_clip: float | None = 2.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Start values of DPLR systems; copies alternate among the named starts.

    Args:
        starts: Names in `DPLR_STARTS`, joined by "+".
        d_state: Number of real states N, even.
        copies: Number of systems S.
        real_floor: Least decay -Re A: LegT and FouT have none, and its logarithm is what is stored.
        b_clip: Largest |B_n|, or None for no limit.

    Returns:
        A (S, M, 2), B (S, M, 2) and P (r, S, M, 2); P of a start of lower rank ends in zeros.

    Source: arXiv 2206.12037 for the mixtures. The public code limits Im B to 2 in absolute value, which depends on the
    free phase of the eigenvectors; |B| does not.
    """
    rank = dplr_rank(starts)
    systems = []
    for name in starts.split("+"):
        A, B, P = DPLR_STARTS[name](d_state)
        A[:, 0].clamp_(max=-real_floor)
        if b_clip is not None:
            B[:, 0].clamp_(max=b_clip)
        P = P.view(-1, *A.shape)
        systems.append((A, B, torch.cat([P, P.new_zeros(rank - len(P), *A.shape)])))
    A, B, P = (torch.stack(parts) for parts in zip(*systems, strict=True))
    index = torch.arange(copies) % len(systems)
    return A[index], B[index], P[index].transpose(0, 1)


def s4d_legs(d_state: int) -> Tensor:
    """Eigenvalues of S4D-LegS, the normal part of HiPPO-LegS without its low-rank correction.

    Args:
        d_state: Number of real states N, even.

    Returns:
        Eigenvalues (M, 2), real part -1/2, imaginary parts increasing.

    Source: arXiv 2206.11893.
    """
    return hippo_legs_normal(d_state)[0]


def s4d_lin(d_state: int) -> Tensor:
    """Eigenvalues of S4D-Lin, A_n = -1/2 + i pi n for n = 0, ..., M - 1.

    Args:
        d_state: Number of real states N, even.

    Returns:
        Eigenvalues (M, 2).

    Source: arXiv 2206.11893.
    """
    pairs = _num_pairs(d_state)
    frequency = torch.pi * torch.arange(pairs, dtype=torch.float64)
    return torch.stack([torch.full_like(frequency, -0.5), frequency], dim=-1)


def s4d_inv(d_state: int) -> Tensor:
    """Eigenvalues of S4D-Inv, A_n = -1/2 + i (N / pi) (N / (2 n + 1) - 1) for n = 0, ..., M - 1.

    Args:
        d_state: Number of real states N, even.

    Returns:
        Eigenvalues (M, 2), imaginary parts decreasing.

    Source: arXiv 2206.11893.
    """
    pairs = _num_pairs(d_state)
    n = torch.arange(pairs, dtype=torch.float64)
    frequency = d_state / torch.pi * (d_state / (2 * n + 1) - 1)
    return torch.stack([torch.full_like(frequency, -0.5), frequency], dim=-1)


def s4d_real(d_state: int) -> Tensor:
    """Eigenvalues of S4D-Real, A_n = -(n + 1) for n = 0, ..., N - 1.

    Args:
        d_state: Number of real states N, any positive number.

    Returns:
        Eigenvalues (N,), real.

    Source: arXiv 2206.11893.
    """
    return -torch.arange(1, d_state + 1, dtype=torch.float64)

"""Starting values of state space models: HiPPO-LegS and the diagonal starts derived from it.

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


def hippo_legs_normal(d_state: int) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonal form of the normal part of HiPPO-LegS: A_legs = V (diag(A) - P P*) V*, one half of the spectrum.

    The normal part A_legs + p p^T, p_n = sqrt(n + 1/2), is -1/2 I plus a skew matrix, so its eigenvectors V are
    unitary. Their free phase is fixed by making B real and >= 0, so that the result does not depend on LAPACK.

    Args:
        d_state: Number of real states N, even.

    Returns:
        A (M, 2), imaginary parts increasing; B (M, 2), that is V* B with zero imaginary part; P (M, 2), that is V* p.

    Source: arXiv 2111.00396 (normal plus low rank form); the fixed phase is ours.
    """
    pairs = _num_pairs(d_state)
    A, B = (matrix.numpy() for matrix in hippo_legs(d_state))
    p = np.sqrt(np.arange(d_state) + 0.5)
    skew = A + np.outer(p, p) + 0.5 * np.eye(d_state)
    # i times a skew matrix is Hermitian: eigh is exact where eig would lose the orthogonality of V.
    frequency, V = np.linalg.eigh(-1j * skew)
    frequency, V = frequency[pairs:], V[:, pairs:]
    B, P = V.conj().T @ B, V.conj().T @ p
    phase = B.conj() / np.abs(B)
    eigenvalues = np.stack([np.full(pairs, -0.5), frequency], axis=-1)
    B = np.stack([np.abs(B), np.zeros(pairs)], axis=-1)
    P = np.stack([(P * phase).real, (P * phase).imag], axis=-1)
    return torch.from_numpy(eigenvalues), torch.from_numpy(B), torch.from_numpy(P)


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

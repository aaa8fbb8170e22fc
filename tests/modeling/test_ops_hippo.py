"""HiPPO matrices and the starts derived from them, as mathematics."""

import pytest
import torch

from neverscratch.modeling.ops_hippo import (
    DPLR_STARTS,
    dplr_rank,
    dplr_start,
    hippo_fout,
    hippo_fout_normal,
    hippo_legs,
    hippo_legs_normal,
    hippo_legt,
    hippo_legt_normal,
    s4d_legs,
    s4d_lin,
)

HIPPO = {"legs": hippo_legs, "legt": hippo_legt, "fout": hippo_fout}


@pytest.mark.parametrize("d_state", [1, 2, 7, 16])
def test_legs_eigenvalues(d_state: int) -> None:
    A, B = hippo_legs(d_state)
    assert A.dtype == B.dtype == torch.float64
    assert torch.equal(A, A.tril())
    assert torch.equal(A.diagonal(), -torch.arange(1, d_state + 1, dtype=torch.float64))
    assert torch.allclose(A.tril(-1), -torch.outer(B, B).tril(-1), atol=1e-12)


@pytest.mark.parametrize("d_state", [2, 16, 64])
def test_legs_normal_plus_low_rank_is_legs(d_state: int) -> None:
    A, B = hippo_legs(d_state)
    eigenvalues, B_modes, P_modes = (torch.view_as_complex(pairs) for pairs in hippo_legs_normal(d_state))
    # The trace, the squared norms and the moments B* A^k B do not depend on the basis.
    p = torch.sqrt(torch.arange(d_state, dtype=torch.float64) + 0.5)
    normal = A + torch.outer(p, p)
    both = torch.cat([eigenvalues, eigenvalues.conj()])
    order = torch.linalg.eigvals(normal).imag.sort().values
    assert torch.allclose(both.imag.sort().values, order, atol=1e-9 * d_state)
    for k in range(4):
        power = torch.linalg.matrix_power(normal, k)
        for left, right, left_modes, right_modes in ((B, B, B_modes, B_modes), (p, B, P_modes, B_modes)):
            expected = left @ power @ right
            moment = 2 * (left_modes.conj() * eigenvalues**k * right_modes).sum().real
            assert torch.allclose(moment, expected, rtol=1e-10)


def test_legs_phase_is_fixed() -> None:
    eigenvalues, B, _ = hippo_legs_normal(64)
    assert (eigenvalues[:, 0] == -0.5).all()
    assert (eigenvalues[:, 1].diff() > 0).all() and eigenvalues[0, 1] > 0
    assert (B[:, 0] > 0).all() and (B[:, 1] == 0).all()
    assert torch.equal(s4d_legs(64), eigenvalues)


def test_lin() -> None:
    A = s4d_lin(8)
    assert A.dtype == torch.float64
    assert torch.equal(A[:, 0], torch.full((4,), -0.5, dtype=torch.float64))
    assert torch.allclose(A[:, 1], torch.pi * torch.arange(4, dtype=torch.float64))


@pytest.mark.parametrize("start", [s4d_lin, s4d_legs])
def test_odd_state_is_refused(start) -> None:
    with pytest.raises(ValueError, match=r"d_state=7 is not a positive even number.*such as 64"):
        start(7)


def both(half: torch.Tensor) -> torch.Tensor:
    """(..., M, 2) pairs to (..., N) complex, the conjugate half included."""
    half = torch.view_as_complex(half.contiguous())
    return torch.cat([half, half.conj()], dim=-1)


def test_entries_of_legt_and_fout() -> None:
    A, B = hippo_legt(3)
    q = [1.0, 3**0.5, 5**0.5]
    expected = [[-q[n] * q[k] / 2 * (1 if n >= k else (-1) ** (n - k)) for k in range(3)] for n in range(3)]
    assert torch.allclose(A, torch.tensor(expected, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(2 * B, torch.tensor(q, dtype=torch.float64))
    A, B = hippo_fout(4)
    root, pi = 2**0.5, torch.pi
    expected = [[-1, 0, -root, 0], [0, 0, 0, 0], [-root, 0, -2, -pi], [0, 0, pi, 0]]
    assert torch.allclose(A, torch.tensor(expected, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(B, torch.tensor([1, 0, root, 0], dtype=torch.float64))


@pytest.mark.parametrize("name", HIPPO)
@pytest.mark.parametrize("d_state", [2, 16, 64])
def test_modes_give_back_the_dense_matrix(name: str, d_state: int) -> None:
    """(Lambda, P, B) in the basis of the eigenvectors is unitarily the same system as (A, B)."""
    A, B = HIPPO[name](d_state)
    eigenvalues, B_modes, P = DPLR_STARTS[name](d_state)
    P = both(P.view(-1, *eigenvalues.shape))  # (r, N)
    modal = torch.diag(both(eigenvalues)) - P.T @ P.conj()
    # Eigenvectors of the normal part of the dense matrix, with the phase that makes V* B real and >= 0.
    if name == "fout":
        V = torch.zeros(d_state, d_state // 2, dtype=torch.complex128)
        for m in range(d_state // 2):
            V[2 * m, m], V[2 * m + 1, m] = 0.5**0.5, -1j * 0.5**0.5
    else:
        p = {
            "legs": torch.stack([B / 2**0.5]),
            "legt": torch.stack([B * (torch.arange(d_state) % 2 == k) for k in (0, 1)]),
        }
        normal = A + (p[name].T @ p[name]) * (1 if name == "legs" else 2)
        values, vectors = torch.linalg.eigh(-1j * (normal - normal.diagonal().mean() * torch.eye(d_state)))
        assert torch.allclose(values[d_state // 2 :], eigenvalues[:, 1], atol=1e-10)
        V = vectors[:, d_state // 2 :]
        phase = V.mH @ B.to(V.dtype)
        V = V * (phase / phase.abs())
    V = torch.cat([V, V.conj()], dim=1)
    assert torch.allclose(V @ V.mH, torch.eye(d_state, dtype=V.dtype), atol=1e-12)
    assert ((V @ modal @ V.mH) - A).abs().max() < 1e-10
    assert ((V @ both(B_modes)) - B).abs().max() < 1e-10


def test_legt_is_of_rank_two_and_undamped() -> None:
    eigenvalues, B, P = hippo_legt_normal(32)
    assert P.shape == (2, 16, 2)
    assert (eigenvalues[:, 0] == 0).all() and (eigenvalues[:, 1].diff() > 0).all() and eigenvalues[0, 1] > 0
    assert (B[:, 0] > 0).all() and (B[:, 1] == 0).all()
    A, _ = hippo_legt(32)
    symmetric = torch.linalg.eigvalsh(A + A.T)
    assert (symmetric.abs() > 1e-10).sum() == 2


def test_fout_is_analytic() -> None:
    eigenvalues, B, P = hippo_fout_normal(8)
    assert torch.equal(eigenvalues[:, 1], torch.pi * torch.arange(4, dtype=torch.float64))
    assert torch.allclose(B[:, 0], torch.tensor([0.5**0.5, 1.0, 1.0, 1.0], dtype=torch.float64))
    assert torch.equal(P, B) and (eigenvalues[:, 0] == 0).all()


def test_mixtures_alternate() -> None:
    A, B, P = dplr_start("legt+fout", 8, copies=5, b_clip=None)
    assert A.shape == B.shape == (5, 4, 2) and P.shape == (2, 5, 4, 2)
    assert dplr_rank("legt+fout") == 2 and dplr_rank("legs+fout") == 1
    for copy in range(5):
        name = "legt" if copy % 2 == 0 else "fout"
        eigenvalues, B_alone, P_alone = DPLR_STARTS[name](8)
        assert torch.equal(A[copy, :, 1], eigenvalues[:, 1]) and (A[copy, :, 0] == -1e-4).all()
        assert torch.equal(B[copy], B_alone)
        P_alone = P_alone.view(-1, 4, 2)
        assert torch.equal(P[: len(P_alone), copy], P_alone) and (P[len(P_alone) :, copy] == 0).all()


def test_floor_and_clip() -> None:
    A, B, _ = dplr_start("legs", 64, copies=1)
    assert (A[..., 0] == -0.5).all()
    exact = hippo_legs_normal(64)[1]
    assert exact.abs().max() > 2
    assert torch.equal(B[0], exact.clamp(max=2.0))
    assert (dplr_start("fout", 8, copies=1, real_floor=1e-2)[0][..., 0] == -1e-2).all()


@pytest.mark.parametrize("name", DPLR_STARTS)
def test_odd_state_has_no_modes(name: str) -> None:
    with pytest.raises(ValueError, match=r"d_state=7 is not a positive even number.*such as 64"):
        DPLR_STARTS[name](7)

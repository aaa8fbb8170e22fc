"""HiPPO matrices and the starts derived from them, as mathematics."""

import pytest
import torch

from neverscratch.modeling.ops_hippo import hippo_legs, hippo_legs_normal, s4d_legs, s4d_lin


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

"""Batch norm that leaves padding out, against that of PyTorch and against itself written out."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from neverscratch.modeling.blocks import MaskedBatchNorm


def test_batch_norm_leaves_padding_out():
    norm = MaskedBatchNorm(4, eps=1e-5)
    norm.init_weights = None
    reference = nn.BatchNorm1d(4)
    norm.load_state_dict({k: v for k, v in reference.state_dict().items() if k != "num_batches_tracked"})
    x, mask = torch.randn(3, 6, 4) * 3 + 1, torch.arange(6) < torch.tensor([[6], [4], [1]])
    garbage = x.masked_fill(~mask[..., None], 1e4)
    expected, got = reference(x[mask]), norm(garbage, mask, None)[mask]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(norm.running_mean, reference.running_mean)
    torch.testing.assert_close(norm.running_var, reference.running_var)
    norm.eval(), reference.eval()
    torch.testing.assert_close(norm(x, None, None), reference(x.flatten(0, 1)).view_as(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_feature_first", [False, True])
def test_fused_batch_norm_agrees(is_feature_first):
    norm = MaskedBatchNorm(4, eps=1e-5).double()
    norm.init_weights()
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    x = torch.randn(4, 3, 7, dtype=torch.float64).permute(1, 2, 0)
    x = (x if is_feature_first else x.contiguous()).requires_grad_()
    weight = torch.randn(3, 7, 4, dtype=torch.float64)
    results = []
    for mask in (None, torch.ones(3, 7, dtype=torch.bool)):  # fused, and written out
        copy = deepcopy(norm)
        y = copy(x, mask, None)
        grads = torch.autograd.grad((y * weight).sum(), [x, copy.weight, copy.bias])
        results.append([y, *grads, copy.running_mean, copy.running_var])
        updated = set()
        copy(x, mask, updated), copy(x, mask, updated)
        results[-1].append(copy.running_mean.clone())
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-10, atol=1e-12)

"""Exchangeable layers against loops over the cells of a dense matrix, and their symmetry."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from idcf.paper.layers.exchangeable import ExchangeableLayer, MatrixAxis

N_ROWS, N_COLUMNS, SIZE, OUT = 4, 5, 3, 2
CELLS = [(0, 0), (0, 2), (0, 4), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2)]  # row 3 is empty
HIDDEN = (1, 2)


def make_axis(groups: list[int], n_groups: int, visible: Tensor, shrinkage: float) -> MatrixAxis:
    group = torch.tensor(groups)
    counts = torch.bincount(group, minlength=n_groups)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return MatrixAxis(group, torch.argsort(group, stable=True), offsets, visible, shrinkage)


def make_matrix(
    cells: list[tuple[int, int]] = CELLS, shrinkage: float = 0.0
) -> tuple[MatrixAxis, MatrixAxis]:
    """The rows and the columns of the matrix; one cell is hidden."""
    visible = torch.tensor([float(cell != HIDDEN) for cell in cells])
    return (
        make_axis([row for row, _ in cells], N_ROWS, visible, shrinkage),
        make_axis([column for _, column in cells], N_COLUMNS, visible, shrinkage),
    )


def make_layer(*, standardize: bool = False) -> tuple[ExchangeableLayer, Tensor]:
    torch.manual_seed(0)
    layer = ExchangeableLayer(SIZE, OUT, standardize=standardize)
    return layer, torch.randn(len(CELLS), SIZE)


def mean_of(x: Tensor, is_member: list[bool], default: Tensor) -> Tensor:
    """The mean of the visible members, or the default where there is none."""
    members = [
        value
        for value, cell, member in zip(x, CELLS, is_member, strict=True)
        if member and cell != HIDDEN
    ]
    return torch.stack(members).mean(0) if members else default


def test_entries_are_those_of_the_equation() -> None:
    layer, x = make_layer()
    rows, columns = make_matrix()
    column_index = torch.tensor([column for _, column in CELLS])
    out = layer(x, rows, column_index, layer.column_statistics(x, rows, columns))
    overall = mean_of(x, [True] * len(CELLS), x[0])
    for n, (row, column) in enumerate(CELLS):
        row_mean = mean_of(x, [r == row for r, _ in CELLS], overall)
        column_mean = mean_of(x, [c == column for _, c in CELLS], overall)
        expected = layer.entry_linear(x[n]) + layer.column_linear(column_mean)
        expected = expected + layer.row_linear(row_mean) + layer.overall_linear(overall)
        torch.testing.assert_close(out[n], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("standardize", [False, True])
def test_means_are_those_of_the_transformed_entries(standardize: bool) -> None:
    """`row_means` and `column_means` transform no entry."""
    layer, x = make_layer(standardize=standardize)
    rows, columns = make_matrix()
    column_index = columns.group
    statistics = layer.column_statistics(x, rows, columns)
    entries = layer(x, rows, column_index, statistics)
    row_means = layer.row_means(x, rows, column_index, statistics)
    column_means = layer.column_means(x, rows, columns, statistics)
    assert row_means.shape == (N_ROWS, OUT)
    assert column_means.shape == (N_COLUMNS, OUT)
    for row in range(3):
        expected = mean_of(entries, [r == row for r, _ in CELLS], entries[0])
        torch.testing.assert_close(row_means[row], expected, atol=1e-4, rtol=1e-4)
    for column in (0, 1, 2, 4):
        expected = mean_of(entries, [c == column for _, c in CELLS], entries[0])
        torch.testing.assert_close(column_means[column], expected, atol=1e-4, rtol=1e-4)


def test_hidden_entries_change_nothing_but_themselves() -> None:
    layer, x = make_layer()
    rows, columns = make_matrix()
    other = x.clone()
    other[CELLS.index(HIDDEN)] += 10
    is_visible = rows.visible > 0
    outputs = [
        layer(values, rows, columns.group, layer.column_statistics(values, rows, columns))
        for values in (x, other)
    ]
    torch.testing.assert_close(outputs[0][is_visible], outputs[1][is_visible])
    assert not torch.allclose(outputs[0][~is_visible], outputs[1][~is_visible])


def test_the_order_of_the_entries_does_not_matter() -> None:
    layer, x = make_layer(standardize=True)
    order = torch.randperm(len(CELLS))
    rows, columns = make_matrix()
    other_rows, other_columns = make_matrix([CELLS[n] for n in order.tolist()])
    out = layer(x, rows, columns.group, layer.column_statistics(x, rows, columns))
    statistics = layer.column_statistics(x[order], other_rows, other_columns)
    other = layer(x[order], other_rows, other_columns.group, statistics)
    torch.testing.assert_close(other, out[order])


def test_an_empty_group_has_the_overall_mean_and_shrinkage_pulls_towards_it() -> None:
    _, x = make_layer()
    overall = torch.tensor([1.0, 2.0, 3.0])
    plain, shrunken = (make_matrix(shrinkage=s)[0].mean(x, overall) for s in (0.0, 1e6))
    torch.testing.assert_close(plain[3], overall)
    torch.testing.assert_close(shrunken, overall.expand(N_ROWS, -1), atol=1e-4, rtol=1e-4)


def test_shares_count_visible_entries() -> None:
    rows, columns = make_matrix()
    torch.testing.assert_close(rows.shares(), torch.tensor([3.0, 1.0, 3.0, 0.0]) / 7)
    assert columns.shares().sum().item() == pytest.approx(1.0)


def test_the_gradient_of_a_segment_sum_is_that_of_finite_differences() -> None:
    rows, _ = make_matrix(shrinkage=1.0)
    rows = replace(rows, visible=rows.visible.double())
    x = torch.randn(len(CELLS), SIZE, dtype=torch.float64, requires_grad=True)
    overall = torch.zeros(SIZE, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: rows.mean(values, overall), x)

"""What is wrong with tensors that index others: native code does not look before it reads."""

from __future__ import annotations

from torch import Tensor


def range_problem(name: str, rows: Tensor, n: int, *, lowest: int = 0) -> str:
    """Return what is wrong with numbers of rows, which must be below `n`; "" if nothing is."""
    if rows.numel() and not (lowest <= int(rows.min()) and int(rows.max()) < n):
        return f"the tensor {name!r} points at rows that do not exist"
    return ""


def offsets_problem(name: str, offsets: Tensor, n_rows: int, n_entries: int) -> str:
    """Return what is wrong with the offsets of a CSR array of rows and entries; "" if nothing."""
    is_right = len(offsets) == n_rows + 1 and int(offsets[0]) == 0 and int(offsets[-1]) == n_entries
    if not is_right or bool((offsets.diff() < 0).any()):
        return f"the tensor {name!r} does not divide the entries into rows"
    return ""

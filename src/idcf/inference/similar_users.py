"""Users whose saved embeddings, the result of `idcf embed`, resemble the embedding of one user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from idcf.data.columns import to_dataframe
from idcf.data.interactions import Floats
from idcf.data.parquet_limits import read_limited_table
from idcf.data.parquet_reader import parquet_errors, parquet_files
from idcf.errors import DataError, require_positive_count
from idcf.results import SimilarUser, SimilarUsers


def find_similar_users(embedding: Floats, saved: Any, n: int) -> SimilarUsers:
    """Return the n users with the largest cosine to an embedding [D]; ties are in the order saved.

    `saved` is the file or folder of `idcf embed`, or a table of user_id and embedding; users
    without an embedding are left out. DataError: it cannot be read, or holds those of another
    model.
    """
    require_positive_count(n)
    ids, vectors = _read_embeddings(saved)
    if vectors.shape[1] != len(embedding):
        raise DataError(
            f"the saved embeddings have {vectors.shape[1]} coordinates, but those of this model "
            f"have {len(embedding)}; write them again with `idcf embed`"
        )
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(embedding)
    cosines = (vectors @ embedding) / np.maximum(lengths, np.finfo(np.float32).tiny)
    best = np.argsort(-cosines, kind="stable")[:n]
    return SimilarUsers(SimilarUser(ids[row], float(cosines[row])) for row in best.tolist())


def _read_embeddings(saved: Any) -> tuple[list[Any], Floats]:
    """Return the ids of the users who have an embedding, and their embeddings [U, D]."""
    table = _read_parquet(Path(saved).expanduser()) if isinstance(saved, str | Path) else saved
    message = "give the file or folder that `idcf embed` wrote, or a table of user_id and embedding"
    frame = to_dataframe(table, message)
    if not {"user_id", "embedding"} <= set(frame.columns):
        raise DataError(f"no columns user_id and embedding, but {frame.columns}; {message}")
    pairs = zip(frame["user_id"].to_list(), frame["embedding"].to_list(), strict=True)
    rows = [(user, vector) for user, vector in pairs if vector is not None]
    if not rows:
        raise DataError(f"there is no embedding in the table; {message}")
    return [user for user, _ in rows], np.array([vector for _, vector in rows], np.float32)


def _read_parquet(path: Path) -> Any:
    """Read a Parquet file, or all of a folder."""
    import pyarrow as pa

    parts = []
    for file in parquet_files(path):
        with parquet_errors(file):
            parts.append(read_limited_table(file, columns=["user_id", "embedding"]))
    return pa.concat_tables(parts)

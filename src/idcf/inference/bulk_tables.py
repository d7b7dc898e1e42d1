"""Embeddings and lists of many users as Arrow tables, without an object for each item of a list."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from idcf.data.history_arrays import HistoryArrays
from idcf.inference.predictor import Predictor
from idcf.inference.ranked_lists import RankedBlock
from idcf.inference.ranking_query import ListOptions
from idcf.inference.topk import EXCLUDED_SCORE, slice_history
from idcf.types import Users

USERS_PER_EMBEDDING = 1 << 9  # embedded at once: larger arrays leave the cache


class EmbeddingTables:
    """Makes tables with one row for each user: user_id, embedding, n_known_items and
    n_unknown_items. The embedding of a user without a known item is null."""

    reads_order = False

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    @cached_property
    def embedding_size(self) -> int:
        """Number of coordinates."""
        return int(self.predictor.embed([self.predictor.read_new_user(None)]).shape[1])

    def table(self, histories: HistoryArrays) -> Any:
        """Return the table of some users."""
        import pyarrow as pa

        n_known = histories.lengths
        embeddings = np.empty((len(n_known), self.embedding_size), np.float32)
        ranker, users = self.predictor.ranker, histories.as_users()
        for start in range(0, len(users), USERS_PER_EMBEDDING):
            rows = slice(start, min(start + USERS_PER_EMBEDDING, len(users)))
            block = Users(users.ids[rows], slice_history(users.history, rows))
            embeddings[rows] = ranker.embed_users(block).vector.float().cpu().numpy()
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(embeddings.reshape(-1)), self.embedding_size, mask=pa.array(n_known == 0)
        )
        return pa.table(
            {
                "user_id": histories.user_ids,
                "embedding": column,
                "n_known_items": pa.array(n_known, pa.int32()),
                "n_unknown_items": pa.array(histories.n_unknown_items, pa.int32()),
            }
        )


class ListTables:
    """Makes tables with one row for each user and rank: the columns of
    `RecommendationBatch.to_table`. A user without a known item gets popular items."""

    def __init__(self, predictor: Predictor, options: ListOptions) -> None:
        self.predictor, self.query = predictor, predictor.list_query(**options)
        self.reads_order = self.query.recency != 0

    @cached_property
    def _item_ids(self) -> Any:
        """Ids of the catalogue, as an Arrow array."""
        import pyarrow as pa

        return pa.array(self.predictor.item_ids)

    @cached_property
    def _list_without_history(self) -> Any:
        """Table without user ids of the list for an empty history."""
        query = self.query._replace(new_user=self.predictor.read_new_user(None), user_id=0)
        return self.predictor.recommend([query]).to_table().drop_columns(["user_id"])

    def table(self, histories: HistoryArrays) -> Any:
        """Return the table of some users."""
        import pyarrow as pa

        has_items = histories.lengths > 0
        users, parts = [], []  # positions of the users, and the columns of their lists
        with_items = np.flatnonzero(has_items)
        if len(with_items):
            selected = histories.select(with_items)
            queries = [
                self.query._replace(new_user=x)
                for x in selected.new_users(np.arange(len(with_items)))
            ]
            start = 0
            for part, block in self.predictor.rank_blocks(selected.as_users(), queries):
                owner, columns = self._block_columns(block)
                users.append(with_items[start + owner])
                parts.append(columns)
                start += len(part)
        if not has_items.all() or not parts:
            without_items = np.flatnonzero(~has_items)
            columns, n = self._list_without_history, len(self._list_without_history)
            index = np.tile(np.arange(n), len(without_items))
            users.append(np.repeat(without_items, n))
            parts.append(columns.take(pa.array(index)))
        table, owner = pa.concat_tables(parts), np.concatenate(users)
        if len(parts) > 1 and not has_items.all():
            order = np.argsort(owner, kind="stable")
            table, owner = table.take(pa.array(order)), owner[order]
        return table.add_column(0, "user_id", histories.user_ids.take(pa.array(owner)))

    def _block_columns(self, block: RankedBlock) -> tuple[Any, Any]:
        """Return the position of the user of each row, and the columns of a block of lists."""
        import pyarrow as pa

        n = self.query.n
        scores, rows = (x[:, :n].cpu().numpy() for x in block.ranked)
        is_allowed = scores > EXCLUDED_SCORE
        owner, rank = is_allowed.nonzero()
        if not self.query.return_std:
            block = block._replace(std=None, rating_if_shown=None)

        def floats(values: Any) -> Any:
            """Return the allowed values of a column."""
            if values is None:
                return pa.nulls(len(owner), pa.float32())
            return pa.array(values[:, :n].float().cpu().numpy()[is_allowed], pa.float32())

        columns = {
            "item_id": self._item_ids.take(pa.array(rows[is_allowed])),
            "score": pa.array(scores[is_allowed], pa.float32()),
            "rank": pa.array(rank + 1, pa.int32()),
            "std": floats(block.std),
            "source": pa.repeat(self.predictor.source, len(owner)),
            "probability": floats(block.probability),
            "rating": floats(block.rating),
            "rating_if_shown": floats(block.rating_if_shown),
        }
        return owner, pa.table(columns)

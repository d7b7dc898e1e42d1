"""The cold start of MovieLens-1M: seconds per epoch of each system in one process, and figures.

    python experiments/cold_start.py RESULTS --time    write RESULTS/cold-start-epochs.jsonl
    python experiments/cold_start.py RESULTS --draw    draw the rows of RESULTS into docs/

The rows of errors are those of `idcf reproduce cold-start`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.files import write_bytes, write_text
from idcf.paper import cold_start, figures, results_store
from idcf.training.job import start_runtime

DOCS = Path(__file__).resolve().parent.parent / "docs"


def measure_times(path: Path, device: str) -> None:
    """Time an epoch of each system, one after the other, and write the rows."""
    split, _ = standard_split(open_dataset(cold_start.DATASET, progress=False))
    rows = []
    for model in cold_start.TIMED_SYSTEMS:
        row = cold_start.time_epochs(model, split, runtime=start_runtime(device)).as_row()
        rows.append(json.dumps(row) + "\n")
        print(rows[-1], end="", flush=True)
    write_text(path, "".join(rows))


def draw(results: Path, path: Path) -> None:
    """Draw both figures from the stored rows."""
    rows = results_store.latest_rows(results, cold_start.DATASET)
    epochs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for name, figure in (
        ("cold-start-ml-1m", cold_start.plot_cold_start(rows, epochs)),
        ("hand-over-ml-1m", cold_start.plot_hand_over(rows)),
    ):
        write_bytes(DOCS / f"{name}.png", figures.to_png(figure, dpi=90))
        print(DOCS / f"{name}.png")


def main() -> None:
    """Time the systems, or draw the stored rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, help="folder of result rows")
    parser.add_argument("--time", action="store_true", help="time epochs")
    parser.add_argument("--draw", action="store_true", help="draw the stored rows")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    path = options.results / "cold-start-epochs.jsonl"
    if options.time:
        measure_times(path, options.device)
    if options.draw:
        draw(options.results, path)


if __name__ == "__main__":
    main()

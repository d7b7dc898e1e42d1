"""The figures of two pages of docs/, from benchmarks/reports/scale.jsonl.

    python benchmarks/scale_page.py --write

A part of a page between `<!-- rows: NAME -->` and `<!-- end -->` is what the function of that name
returns. A test compares them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "benchmarks" / "reports" / "scale.jsonl"
PAGES = (ROOT / "docs" / "results" / "scale.md", ROOT / "docs" / "howto" / "growing-up.md")
PART = re.compile(r"(<!-- rows: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
MODELS = ("popularity", "als", "idcf-takeup", "idcf-bayes")
PASSES = ("item counts", "pairs of items", "sweep of als")
MACHINES = (  # of the arithmetic: name, cores
    ("one machine with 16 cores", 16),
    ("one machine with 64 cores", 64),
    ("a cluster of 16 machines with 16 cores", 256),
)
BILLION = 1e9
Row = dict[str, Any]


@cache
def all_rows() -> tuple[Row, ...]:
    """Return the committed rows."""
    return tuple(json.loads(x) for x in ROWS.read_text(encoding="utf-8").splitlines())


def rows_of(part: str, **values: object) -> list[Row]:
    """Return the rows of a part that have some values."""
    return [
        x for x in all_rows()
        if x["part"] == part and all(x[key] == value for key, value in values.items())
    ]  # fmt: skip


def growth_of(model: str) -> list[Row]:
    """Return the fits of a model, from the fewest users to the most."""
    return sorted(rows_of("growth", model=model), key=lambda x: x["users"])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def exponent(rows: Sequence[Row]) -> tuple[float, float]:
    """Return slope and R² of the line through the logarithms of users and processor seconds."""
    x, y = (np.log([r[name] for r in rows]) for name in ("users", "processor_seconds"))
    slope, start = np.polyfit(x, y, 1)
    residuals = y - slope * x - start
    return float(slope), float(1 - residuals @ residuals / ((y - y.mean()) @ (y - y.mean())))


def two_sizes(model: str) -> tuple[float, float]:
    """Return processor seconds without users, and those per million users, by the two largest
    tables."""
    small, large = growth_of(model)[-2:]
    seconds = large["processor_seconds"] - small["processor_seconds"]
    per_million = seconds / (large["users"] - small["users"]) * 1e6
    return small["processor_seconds"] - per_million * small["users"] / 1e6, per_million


def growth() -> str:
    """Return processor time, memory and quality of each model at each number of users."""
    header = ("model, users", "rows", "processor seconds", "driver, GiB", "worker, GiB",
              "NDCG@20", "seconds", "load")  # fmt: skip
    return table(header, (
        (
            f"`{model}`, {x['users']:,}", f"{x['rows'] / 1e6:.1f} million",
            f"{x['processor_seconds']:.1f}", f"{x['driver_peak_gib']:.2f}",
            f"{x['worker_peak_gib']:.2f}", f"{x['ndcg@20']:.3f}"[1:],
            f"{x['seconds']:.0f}", f"{x['load']:.1f}",
        )
        for model in MODELS for x in growth_of(model)
    ))  # fmt: skip


def slopes() -> str:
    """Return how processor time and memory grow."""
    rows = []
    for model in MODELS:
        fits = growth_of(model)
        slope, r_squared = exponent(fits)
        last, _ = exponent(fits[-2:])
        large = [x["worker_peak_gib"] for x in fits if x["users"] >= 1e6]
        driver = [x["driver_peak_gib"] for x in fits if x["users"] >= 1e6]
        rows.append((
            f"`{model}`", f"{slope:.2f}", f"{r_squared:.3f}", f"{last:.2f}",
            *(f"{max(x) / min(x) - 1:.0%}" for x in (large, driver)),
        ))  # fmt: skip
    return table(
        ("model", "slope", "R²", "slope from the second largest to the largest",
         "growth of a worker's memory from a million users on", "of the driver's"),
        rows,
    )  # fmt: skip


def reduced_bytes() -> str:
    """Return the bytes that one pass of each kind returns, at each number of users."""
    sizes = sorted({x["users"] for x in rows_of("growth")})
    names: dict[str, list[str]] = {}
    for model in MODELS:
        by_size = {x["users"]: x["bytes_of_pass"] for x in growth_of(model)}
        for name in sorted({name for x in by_size.values() for name in x}):
            cells = [
                f"{by_size[n][name] / 1e6:.1f}" if name in by_size.get(n, {}) else "" for n in sizes
            ]
            names.setdefault(f"`{model}`: `{name}`", cells)
    kept = {key: x for key, x in names.items() if max(float(y or 0) for y in x) >= 1.5}
    return table(
        ("pass", *(f"{n:,} users, MB" for n in sizes)), ((key, *x) for key, x in kept.items())
    )


def critical_path() -> str:
    """Return longest shard, adding up and efficiency for each number of shards."""
    rows = []
    for name in PASSES:
        for x in rows_of("shards", **{"pass": name}):
            rows.append((
                f"{name}, {x['users']:,} users", str(x["shards"]), f"{x['longest_shard']:.2f}",
                f"{x['all_shards']:.1f}", f"{x['reduce']:.3f}", f"{x['bytes_per_shard'] / 1e6:.1f}",
                f"{x['efficiency']:.0%}",
            ))  # fmt: skip
    header = ("pass", "shards", "longest shard, s", "all shards, s", "adding up, s",
              "MB per shard", "efficiency")  # fmt: skip
    return table(header, rows)


def engines() -> str:
    """Return what `ray` takes over `processes`."""
    rows, measured = [], rows_of("engines")
    for model, users in sorted({(x["model"], x["users"]) for x in measured}):
        pairs = [rows_of("engines", model=model, users=users, engine=x) for x in ENGINES]
        equal = len({x["sha256"] for part in pairs for x in part}) == 1
        for first, second in zip(*pairs, strict=True):
            rows.append((
                f"`{model}`, {users:,} users",
                *(f"{x['seconds'] - x['seconds_to_open']:.0f}" for x in (first, second)),
                f"{second['seconds_to_open']:.0f}",
                *(f"{x['processor_seconds']:.0f}" for x in (first, second)),
                f"{second['processor_seconds'] / first['processor_seconds'] - 1:+.0%}",
                f"{first['load']:.1f}, {second['load']:.1f}", "yes" if equal else "no",
            ))  # fmt: skip
    return table(
        ("model", "`processes`, s", "`ray`, s", "start of Ray, s", "processor s",
         "processor s of `ray`", "more", "load", "same bits"),
        rows,
    )  # fmt: skip


ENGINES = ("processes", "ray")


def kills() -> str:
    """Return the sum of what was killed, and whether the results were the same."""
    rows = rows_of("kills")
    workers, nodes = (sum(x[name] for x in rows) for name in ("killed_workers", "removed_nodes"))
    equal = sum(x["is_equal"] for x in rows)
    users = " and ".join(f"{n:,}" for n in sorted({x["users"] for x in rows}))
    return (
        f"In {len(rows)} fits to {users} users, {workers} workers were killed (SIGKILL) and "
        f"{nodes} nodes removed at random moments: {workers + nodes} losses. {equal} of "
        f"{len(rows)} fits have the bits of the fit in one process.\n"
    )


def sharding() -> str:
    """Return the rates of `idcf shard`, and of reading what it wrote."""
    rows = []
    for x in rows_of("shard"):
        write, read = (x["rows"] / x[f"{name}processor_seconds"] / 1e6 for name in ("", "read_"))
        rows.append((
            f"{x['rows'] / 1e6:.1f} million rows", f"{write:.1f} million", f"{read:.0f} million",
            f"{x['bytes'] / x['rows']:.1f}", f"{x['peak_gib']:.2f}",
        ))  # fmt: skip
    header = ("table", "written, rows per processor second", "read, rows per processor second",
              "bytes per row", "peak, GiB")  # fmt: skip
    return table(header, rows)


def embedding() -> str:
    """Return the rate of `idcf embed`."""
    rows = []
    for x in rows_of("embed"):
        rate = x["users"] / x["processor_seconds"]
        options = f" `{x['options']}`" if x["options"] else ""
        rows.append((
            f"`{x['model']}`{options}", f"{x['users']:,}", f"{x['processor_seconds']:.1f}",
            f"{rate:,.0f}", f"{x['peak_gib']:.2f}",
        ))  # fmt: skip
    header = ("model", "users", "processor seconds", "users per processor second", "peak, GiB")
    return table(header, rows)


def billion() -> str:
    """Return the core-hours of one billion users, and the hours on some machines."""
    rows = [core_hours_row(f"fit of `{model}`", *two_sizes(model)) for model in MODELS]
    (shard,) = rows_of("shard")
    embed = max(rows_of("embed", options=""), key=lambda x: x["users"])
    n_rows = BILLION * shard["rows"] / shard["users"]
    seconds = shard["processor_seconds"] / shard["rows"] * n_rows
    rows.insert(0, core_hours_row("`idcf shard`, on one core", seconds, 0.0, parallel=False))
    rows.append(core_hours_row(
        "`idcf embed`, `idcf-bayes`", 0.0, embed["processor_seconds"] / embed["users"] * 1e6
    ))  # fmt: skip
    return table(("step", "core-hours", *(f"{name}, hours" for name, _ in MACHINES)), rows)


def core_hours_row(
    name: str, fixed: float, per_million: float, *, parallel: bool = True
) -> tuple[str, ...]:
    """Return core-hours and hours of a step with seconds that do not grow, and some per million."""
    growing = per_million * BILLION / 1e6
    hours = [(fixed + growing / cores) / 3600 for _, cores in MACHINES]
    cells = [f"{x:.2f}" for x in hours] if parallel else [f"{fixed / 3600:.2f}"] * len(MACHINES)
    return (name, f"{(fixed + growing) / 3600:.1f}", *cells)


def billion_bytes() -> str:
    """Return what is stored and held for a billion users."""
    (shard,) = rows_of("shard")
    n_rows = BILLION * shard["rows"] / shard["users"]
    disk = shard["bytes"] / shard["rows"] * n_rows / 1e9
    worker = max(growth_of(x)[-1]["worker_peak_gib"] for x in MODELS)
    driver = max(growth_of(x)[-1]["driver_peak_gib"] for x in MODELS)
    passes = rows_of("shards", **{"pass": "sweep of als"})
    sweep = max(x["bytes_per_shard"] for x in passes) / 1e6
    return (
        f"A billion users with {shard['rows'] / shard['users']:.1f} rows each are "
        f"{n_rows / 1e9:.1f} billion rows and {disk:,.0f} GB of shards "
        f"({shard['bytes'] / shard['rows']:.1f} bytes per row). A worker holds at most "
        f"{worker:.2f} GiB and the driver {driver:.2f} GiB, as in the largest fits above. A shard "
        f"sends {sweep:.1f} MB for a sweep of ALS with 16 factors: 64 shards "
        f"{64 * sweep / 1000:.2f} GB, however many users they hold.\n"
    )


def facts() -> str:
    """Return the machine, the versions and the commits of the rows."""
    rows = all_rows()
    loads = [x["load"] for x in rows]
    versions = {f"{key} {x}" for row in rows for key, x in row["versions"].items()}
    commits = sorted({str(x["commit"]) for x in rows})
    return (
        f"{'; '.join(sorted({x['machine'] for x in rows}))}, shared with other programs: the load "
        f"was {min(loads):.1f} to {max(loads):.1f}. {', '.join(sorted(versions))}. Commits "
        f"{', '.join(f'`{x}`' for x in commits)}.\n"
    )


def summary() -> str:
    """Return the growth in one table: processor seconds per million users, and memory."""
    rows = []
    for model in MODELS:
        per_million = two_sizes(model)[1]
        last = growth_of(model)[-1]
        rows.append((
            f"`{model}`", f"{last['users']:,}", f"{last['processor_seconds']:.0f}",
            f"{per_million:.1f}", f"{last['driver_peak_gib']:.2f}",
            f"{last['worker_peak_gib']:.2f}",
        ))  # fmt: skip
    header = ("model", "users", "processor seconds", "per further million users", "driver, GiB",
              "worker, GiB")  # fmt: skip
    return table(header, rows)


PARTS: dict[str, Callable[[], str]] = {
    x.__name__: x
    for x in (growth, slopes, reduced_bytes, critical_path, engines, kills, sharding, embedding,
              billion, billion_bytes, facts, summary)
}  # fmt: skip


def expected_page(text: str) -> str:
    """Return a page with its parts as the rows say."""
    return PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}{match[4]}", text)


def main() -> None:
    """Write the parts of both pages."""
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(f"usage: {sys.argv[0]} --write")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(expected_page(text), encoding="utf-8")


if __name__ == "__main__":
    main()

"""`idcf doctor`: check the installation, the datasets and a saved model."""

from __future__ import annotations

import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from idcf.cli import options as o
from idcf.errors import ConfigError, IdcfError

_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)[^;]*(?:;.*extra == ['"](?P<extra>[\w-]+)['"])?""")
_DEVELOPMENT_EXTRA = "dev"
_MARKS = {"ok": "ok", "note": "--", "problem": "!!"}


class CheckResult(NamedTuple):
    """Outcome of one check."""

    name: str  # the part that was checked, such as gpu
    status: str  # ok, note (optional part missing) or problem
    message: str  # the finding, in one line


def doctor(
    model_folder: Annotated[
        Path | None,
        o.argument("MODEL_FOLDER", "Folder of a model saved by `idcf train`, to be checked too."),
    ] = None,
    engine: o.EngineName = None,
    address: o.ClusterAddress = None,
    as_json: o.JsonSwitch = False,
) -> None:
    """Check the installation, the datasets and, if given, a saved model and an engine.

    With --engine ray, a tiny job runs on every node of the cluster.
    The exit code is 1 if there is a problem.
    """
    if engine is None and address is not None:
        raise ConfigError("--address needs --engine ray; give it, or leave out the address")
    checks = [
        *_check_python(),
        *_check_packages(),
        *_check_plugins(),
        *_check_hardware(),
        *_check_datasets(),
        *_check_model(model_folder),
        *_check_engine(engine, address),
    ]
    n_problems = sum(x.status == "problem" for x in checks)
    lines = [f"{_MARKS[x.status]} {x.name:14} {x.message}" for x in checks]
    lines.append(f"{n_problems} problems" if n_problems else "no problems")
    values = {"ok": not n_problems, "checks": [x._asdict() for x in checks]}
    o.print_result(values, "\n".join(lines), as_json)
    if n_problems:
        raise typer.Exit(1)


def _check_python() -> Iterator[CheckResult]:
    """Check that Python is 3.11 or newer."""
    status = "ok" if sys.version_info >= (3, 11) else "problem"
    yield CheckResult("python", status, f"{platform.python_version()}, {sys.executable}")


def _check_packages() -> Iterator[CheckResult]:
    """Check the packages that idcf's metadata names: required ones and those of each extra."""
    try:
        requirements = _read_requirements()
    except PackageNotFoundError:
        yield CheckResult("idcf", "problem", "not installed as a package; pip install -e .")
        return
    for name in requirements.pop(None, []):
        try:
            yield CheckResult(name, "ok", version(name))
        except PackageNotFoundError:
            yield CheckResult(name, "problem", f"not installed; pip install {name}")
    for extra, names in requirements.items():
        try:
            message = ", ".join(f"{name} {version(name)}" for name in names)
            yield CheckResult(f"[{extra}]", "ok", message)
        except PackageNotFoundError as error:
            message = f"{error.name} is not installed; if needed: pip install 'idcf[{extra}]'"
            yield CheckResult(f"[{extra}]", "note", message)


def _check_plugins() -> Iterator[CheckResult]:
    """Report packages with models or presets of their own that cannot be imported."""
    from idcf.models.plugins import MODELS_GROUP, PRESETS_GROUP, load_plugins

    for group in (MODELS_GROUP, PRESETS_GROUP):
        with warnings.catch_warnings(action="ignore"):
            problems = load_plugins(group).problems
        for problem in problems:
            yield CheckResult("plugin", "problem", problem)


def _read_requirements() -> dict[str | None, list[str]]:
    """Return the names of the packages that idcf needs, by extra; None: always needed."""
    by_extra: dict[str | None, list[str]] = {None: []}
    for requirement in requires("idcf") or []:
        match = _REQUIREMENT.match(requirement)
        if match and match["extra"] != _DEVELOPMENT_EXTRA:
            by_extra.setdefault(match["extra"], []).append(match["name"])
    return by_extra


def _check_hardware() -> Iterator[CheckResult]:
    """Report cores and threads; check that a GPU, if there is one, can be used."""
    import torch

    from idcf.evaluation.parallel import available_cores

    threads = torch.get_num_threads()
    yield CheckResult("cpu", "ok", f"{available_cores()} cores, torch uses {threads} threads")
    if not torch.cuda.is_available():
        yield CheckResult("gpu", "note", "torch finds none; idcf runs on the CPU")
        return
    try:
        torch.ones(2, device="cuda").sum().item()
        yield CheckResult("gpu", "ok", torch.cuda.get_device_name())
    except RuntimeError as error:
        yield CheckResult("gpu", "problem", f"torch finds one but cannot use it: {error!s:.100}")


def _check_datasets() -> Iterator[CheckResult]:
    """List the datasets on this machine; check that the folder IDCF_DATA exists if it is set."""
    from idcf.data.datasets.catalog import DATASET_SOURCES, find_dataset_folder

    folder = os.environ.get("IDCF_DATA")
    if folder and not Path(folder).is_dir():
        yield CheckResult("IDCF_DATA", "problem", f"{folder} is not a folder")
    names = [name for name in DATASET_SOURCES if find_dataset_folder(name) is not None]
    message = ", ".join(names) or "none on this machine; `idcf data fetch ml-100k` downloads one"
    yield CheckResult("datasets", "ok" if names else "note", message)


def _check_model(model_folder: Path | None) -> Iterator[CheckResult]:
    """Load the model and let it recommend one item."""
    if model_folder is None:
        return
    from idcf.recommender import Recommender

    try:
        recommender = Recommender.load(model_folder)
        best = recommender.recommend(n=1)
    except IdcfError as error:
        yield CheckResult("model", "problem", str(error))
        return
    result = f"recommends {best[0].title or best[0].item_id}" if best else "has no items"
    yield CheckResult("model", "ok", f"{recommender!r} {result}")
    status = "note" if recommender.manifest.user_data == "rows" else "ok"
    yield CheckResult("model holds", status, recommender.manifest.user_data_text)


def _check_engine(name: str | None, address: str | None) -> Iterator[CheckResult]:
    """Let every worker of an engine, or every node of a Ray cluster, do a tiny job."""
    if name is None:
        return
    try:
        if name == "ray":
            yield from _check_cluster(address)
            return
        from idcf.training.engine import open_engine

        opened = open_engine(name, address=address)
        results = list(opened.map(_tiny_job, [()] * opened.n_workers, {}))
        opened.close()
        yield CheckResult(f"engine {name}", "ok", f"tiny jobs done: {len(results)}")
    except IdcfError as error:
        yield CheckResult(f"engine {name}", "problem", str(error))


def _tiny_job(state: object) -> int:
    """Return the number of the process that does it."""
    return os.getpid()


def _check_cluster(address: str | None) -> Iterator[CheckResult]:
    """Report on every node of a Ray cluster; a version that is not that of this process is a
    problem."""
    from idcf.training.ray_nodes import driver_versions, probe_cluster

    reports, expected = probe_cluster(address), driver_versions()
    n_cpus = sum(x.n_cpus for x in reports)
    where = f"at {address}" if address else "started on this machine"
    message = f"a cluster {where} answers: {len(reports)} nodes, {n_cpus:g} CPUs"
    yield CheckResult("engine ray", "ok", message)
    for report in reports:
        facts = f"{report.n_cpus:g} CPUs, {report.memory_gib:.1f} GiB"
        problem = report.error or _version_differences(report.versions, expected)
        versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        message = f"{facts}; {problem or versions}"
        yield CheckResult(f"node {report.name}", "problem" if problem else "ok", message)


def _version_differences(
    versions: Mapping[str, str | None], expected: Mapping[str, str | None]
) -> str | None:
    """Return which versions of a node are not those of this process; None: all are."""
    differing = [
        f"{name} is not installed" if versions[name] is None else
        f"{name} {versions[name]}, here {expected[name]}"
        for name in expected if versions[name] != expected[name]
    ]  # fmt: skip
    if not differing:
        return None
    return f"{'; '.join(differing)}: install the same versions on every node"

"""Training as it goes, shown elsewhere: watchers for TensorBoard and MLflow.

A watcher is anything that may be called with a stage and a record; these two need a package each,
which is imported when one is made. Use them in a `with`, so that the end is written, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from idcf.errors import ConfigError
from idcf.training.checkpoint import Watcher


class TensorBoard:
    """Curves in a folder for `tensorboard --logdir FOLDER`: one for each stage and number."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        path = Path(folder).expanduser()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror})") from None
        self._writer: Any = SummaryWriter(str(path))

    def __call__(self, stage: str, record: Mapping[str, float]) -> None:
        for name, value in _numbers(record).items():
            self._writer.add_scalar(f"{stage}/{name}", value, int(record["epoch"]))
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._writer.close()


class MLflow:
    """One run of an experiment at a tracking address, a server's or `sqlite:///runs.db`; none
    given, where MLflow itself says."""

    def __init__(
        self,
        address: str | None = None,
        experiment: str = "idcf",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise _missing("mlflow") from None
        try:
            self._client: Any = MlflowClient(tracking_uri=address)
            found = self._client.get_experiment_by_name(experiment)
            home = found.experiment_id if found else self._client.create_experiment(experiment)
            self.run_id: str = self._client.create_run(home).info.run_id
            for key, value in (options or {}).items():
                self._client.log_param(self.run_id, key, value)
        except MlflowException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"MLflow does not take the address {address!r}: {reason}") from None

    def __call__(self, stage: str, record: Mapping[str, float]) -> None:
        for name, value in _numbers(record).items():
            key, step = f"{stage}/{name}", int(record["epoch"])
            self._client.log_metric(self.run_id, key, value, step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        self._client.set_terminated(self.run_id, "FINISHED" if kind is None else "FAILED")


def together(watchers: list[Watcher]) -> Watcher | None:
    """All of them as one; None where there is none."""

    def watch(stage: str, record: Mapping[str, float]) -> None:
        for each in watchers:
            each(stage, record)

    return watch if watchers else None


def _numbers(record: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name != "epoch"}


def _missing(package: str) -> ConfigError:
    return ConfigError(f"{package} is not installed; pip install 'idcf[{package}]'")

"""Epoch callbacks that write training curves to TensorBoard or MLflow.

Each needs its package, which is imported when the callback is made. Use a callback in a `with`
statement, so that the end of the training is written too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from idcf.errors import ConfigError
from idcf.training.checkpoint import EpochCallback


class TensorBoard:
    """Writes a curve per stage and value to a folder, for `tensorboard --logdir FOLDER`.

    Raises `ConfigError` if tensorboard is not installed or the folder cannot be made.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _not_installed_error("tensorboard") from None
        path = Path(folder).expanduser()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written ({error.strerror}); choose another folder"
            ) from None
        self._writer: Any = SummaryWriter(str(path))

    def __call__(self, stage: str, record: Mapping[str, float]) -> None:
        """Write the values of one epoch."""
        for name, value in _metrics_of(record).items():
            self._writer.add_scalar(f"{stage}/{name}", value, int(record["epoch"]))
        self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._writer.close()


class MLflow:
    """Writes one run, with `options` as its parameters, of an MLflow experiment.

    `address` is that of a server, or `sqlite:///runs.db`; None: MLflow's default. Raises
    `ConfigError` if mlflow is not installed or refuses the address.
    """

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
            raise _not_installed_error("mlflow") from None
        try:
            self._client: Any = MlflowClient(tracking_uri=address)
            existing = self._client.get_experiment_by_name(experiment)
            experiment_id = (
                existing.experiment_id if existing else self._client.create_experiment(experiment)
            )
            self.run_id: str = self._client.create_run(experiment_id).info.run_id
            for key, value in (options or {}).items():
                self._client.log_param(self.run_id, key, value)
        except MlflowException as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"MLflow does not take the address {address!r} ({reason}); give the URL of a "
                "server or sqlite:///FILE"
            ) from None

    def __call__(self, stage: str, record: Mapping[str, float]) -> None:
        """Write the values of one epoch."""
        for name, value in _metrics_of(record).items():
            key, step = f"{stage}/{name}", int(record["epoch"])
            self._client.log_metric(self.run_id, key, value, step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: object, *failure: object) -> None:
        self._client.set_terminated(self.run_id, "FINISHED" if exception_type is None else "FAILED")


def combine_callbacks(callbacks: list[EpochCallback]) -> EpochCallback | None:
    """Return a callback that calls all of `callbacks` in turn; None if there are none."""

    def call_all(stage: str, record: Mapping[str, float]) -> None:
        """Call each of the callbacks."""
        for callback in callbacks:
            callback(stage, record)

    return call_all if callbacks else None


def _metrics_of(record: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a record without the number of the epoch."""
    return {name: value for name, value in record.items() if name != "epoch"}


def _not_installed_error(package: str) -> ConfigError:
    """Return the error of a missing optional package, with the command that installs it."""
    return ConfigError(f"{package} is not installed; pip install 'idcf[{package}]'")

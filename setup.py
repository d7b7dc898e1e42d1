"""Only what pyproject.toml cannot say: the tables of experiments/ travel inside the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class Build(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout reads experiments/ itself
            place = Path(self.build_lib, "idcf", "experiment", "specs")
            self.mkpath(str(place))
            for table in sorted(Path("experiments").glob("table*.toml")):
                self.copy_file(str(table), str(place / table.name))


setup(cmdclass={"build_py": Build})

"""The public datasets: catalog, download, file formats and features."""

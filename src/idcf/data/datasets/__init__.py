"""The public datasets: their formats, where they come from and what they must hold."""

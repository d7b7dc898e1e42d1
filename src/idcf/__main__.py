"""`python -m idcf` is `idcf`."""

from idcf.cli import main

if __name__ == "__main__":  # helper processes import this file too
    main()

"""`python -m fairmedfm` is the command `fairmedfm`."""
import sys

from fairmedfm.cli import main

if __name__ == "__main__": sys.exit(main())

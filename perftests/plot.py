"""Pictures of results: the command ``python -m pgas.perftests.plot``, and the functions with which programs draw."""

import sys

from pgas.perftests.harness.plot import Curve, Panel, main, picture

__all__ = ["Curve", "Panel", "main", "picture"]

if __name__ == "__main__":
    sys.exit(main())

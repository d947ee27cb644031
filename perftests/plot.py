"""Pictures of results: the command ``python -m pgas.perftests.plot``, and what programs draw with."""

import sys

from pgas.perftests.harness.plot import Curve, Panel, main, picture

__all__ = ["Curve", "Panel", "main", "picture"]

if __name__ == "__main__":
    sys.exit(main())

"""Lets ``python examples/density`` run the bench."""

import sys
from pathlib import Path

# The demo's model preparation, problems and advantages are used here, too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from density import main

sys.exit(main())

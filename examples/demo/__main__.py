"""Lets ``python -m examples.demo`` and ``python examples/demo`` run the demo."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from main import main

sys.exit(main())

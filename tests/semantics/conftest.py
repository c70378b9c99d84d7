"""Lets the tests here import the helpers in tests/ (naive, random_graphs, mutations)."""

import sys
from pathlib import Path

HELPERS = str(Path(__file__).resolve().parents[1])
if HELPERS not in sys.path:
    sys.path.insert(0, HELPERS)

from __future__ import annotations

import sys

from . import HERE, PICTURES, save

for name in sys.argv[1:] or PICTURES:
    save(PICTURES[name](), name, HERE / f"{name}.svg")

"""Link what a wheel requires from the running environment into another: link_dependencies.py WHEEL SITE_PACKAGES.

Only the distributions that the wheel's metadata names, and those that they require in turn, become visible there. This
takes no second copy of torch, and finds an import of a package that the wheel does not require.
"""

from __future__ import annotations

import sys
import zipfile
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def main(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        waiting = needed(
            Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist"), extras=frozenset()
        )
    linked: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if (name := canonicalize_name(requirement.name)) in linked:
            continue
        linked.add(name)
        found = distribution(name)
        assert requirement.specifier.contains(found.version, prereleases=True), f"{name} {found.version}: {requirement}"
        link(found, target)
        waiting += needed(found.requires, extras=requirement.extras)


def needed(lines: list[str] | None, *, extras: frozenset[str] | set[str]) -> list[Requirement]:
    """The requirements in ``lines`` that hold here, with these extras."""
    found = [Requirement(line) for line in lines or ()]
    return [r for r in found if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in ("", *extras))]


def link(found: Distribution, target: Path) -> None:
    """Link the top-level files and folders of a distribution; programs outside of site-packages stay away."""
    for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
        (target / top).symlink_to(Path(str(found.locate_file(top))).resolve())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

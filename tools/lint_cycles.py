"""Find import cycles between the modules of a package: `python tools/lint_cycles.py PACKAGE...`

Imports for type checkers and imports inside functions count as well. Promises: prints a line for
each package, which names a cycle if there is one; the exit status is then 1. Does not know: which
rooms may import which (import-linter does).
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

from grimp import build_graph


def circle(package: str) -> list[str]:
    """Return the modules of a cycle, each imported by the next, with the first one again at the
    end; [] if there is none.
    """
    graph = build_graph(package)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main(packages: list[str]) -> int:
    """Check each package. Return 1 if any has a cycle, else 0."""
    found = {package: circle(package) for package in packages}
    for package, modules in found.items():
        print(f"{package}: {' <- '.join(modules) or 'no circle of imports'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["eyas"]))

"""Refuses modules that import one another in a circle: `python tools/lint_cycles.py PACKAGE...`

Imports for type checkers and inside of functions count. Promises: one line a package, which names a
circle where there is one; exit status 1 then. Does not know: which rooms may import which
(import-linter does).
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

from grimp import build_graph


def circle(package: str) -> list[str]:
    """Modules each of which is imported by the next, the first one again at the end; none is empty."""
    graph = build_graph(package)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main(packages: list[str]) -> int:
    """Look at each package; any circle decides the exit status."""
    found = {package: circle(package) for package in packages}
    for package, modules in found.items():
        print(f"{package}: {' <- '.join(modules) or 'no circle of imports'}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["eyas"]))

"""Find import cycles between the modules of a package: `python tools/lint_cycles.py PACKAGE...`

Imports for type checkers and imports inside functions count as well. Promises: prints a line for
each package, which names a cycle if there is one; the exit status is then 1. Does not know: which
rooms may import which (import-linter does).
"""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

from grimp import build_graph


def find_cycle(package: str) -> list[str]:
    """Return the modules of an import cycle; [] if there is none.

    Each module is imported by the next; the first one is repeated at the end.
    """
    graph = build_graph(package)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def main(packages: list[str]) -> int:
    """Check each package. Return 1 if any has a cycle, else 0."""
    cycles = {package: find_cycle(package) for package in packages}
    for package, modules in cycles.items():
        print(f"{package}: {' <- '.join(modules) or 'no import cycle'}")
    return int(any(cycles.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["eyas"]))

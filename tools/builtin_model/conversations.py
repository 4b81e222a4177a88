"""Write conversations of the generator to files that `eyas train head` reads.

Promises: (seed, count) determines a file; a larger count of the same seed starts with the same
conversations. Does not know: what is trained on them.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from builtin_model.families import mixture
from eyas import builtin

SHIPPED = {
    builtin.prompts_file(): ("0", 128),
    builtin.conversations_file(): ("demo", 640),
}
"""File that the package ships -> seed and count."""


def lines(seed: str, count: int) -> Iterator[str]:
    """Yield JSON lines, each a conversation with the generator's answer."""
    for example in mixture(f"head/{seed}", "train", count):
        entry = {
            "messages": example.messages,
            "tools": example.tools,
            "enable_thinking": example.enable_thinking,
        }
        yield json.dumps(entry, ensure_ascii=False) + "\n"


def main() -> None:
    """Write conversations; without FILE, write the files that the package ships."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("count", type=int, nargs="?", default=20000)
    parser.add_argument("--seed", default="0")
    arguments = parser.parse_args()
    wanted = SHIPPED
    if arguments.file is not None:
        wanted = {arguments.file: (arguments.seed, arguments.count)}
    for file, (seed, count) in wanted.items():
        with file.open("w", encoding="utf-8") as written:
            written.writelines(lines(seed, count))


if __name__ == "__main__":
    main()

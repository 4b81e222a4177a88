"""Run the tests of tests/clients: other projects' clients, unmodified, against one `eyas serve`, and
routers in front of two, and of a prefill and a decode server.

`python tools/run_clients.py [NAME ...]` installs each client with the versions of
tests/clients/locks/NAME.txt into `.venv-clients/NAME`, starts a server of the built-in model and runs
tests/clients/test_NAME.py there. `--lock` first resolves the group `clients-NAME` of pyproject.toml
anew and writes that file.

Promises: clients share nothing but the server, so one that cannot be installed, or that fails, does not
stop the others; the exit status is 1 if there is one. Does not know: what clients do.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests" / "clients"
PREFIX = "clients-"
TOO_LARGE = re.compile(r"^(torch|triton|nvidia-.*|vllm|sglang)==", re.MULTILINE)
"""What no client of a server needs."""
SERVE = (sys.executable, "-c", "from eyas.cli import main; main()", "serve")
PYTEST = ("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider")
OPTIONS = ("--port", "0", "--threads", "1", "--stall-timeout", "300", "--grammar-timeout", "120")
START_SECONDS, TEST_SECONDS = 300, 600
NUM_INSTALLED_AT_ONCE = 2
ROUTERS = ("smg",)
"""Clients that stand between clients and several servers."""
QUIET = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
"""Clients look nothing up while they are tested."""


@dataclass(frozen=True)
class Client:
    """One client. requirements: of its group, the client itself first."""

    name: str
    requirements: tuple[str, ...]
    environments: Path

    @property
    def environment(self) -> Path:
        return self.environments / self.name

    @property
    def python(self) -> str:
        return str(self.environment / "bin" / "python")

    @property
    def lock(self) -> Path:
        return TESTS / "locks" / f"{self.name}.txt"

    @property
    def tests(self) -> Path:
        return TESTS / f"test_{self.name.replace('-', '_')}.py"

    @property
    def distribution(self) -> str:
        """The name of the client itself in the package index."""
        return re.split(r"[\[<>=!~ ]", self.requirements[0])[0]

    @property
    def version(self) -> str:
        """The locked version of the client itself; "?" if it is not locked."""
        locked = self.lock.read_text() if self.lock.exists() else ""
        for line in locked.splitlines():
            name, _, version = line.partition("==")
            if _normalised(name) == _normalised(self.distribution):
                return version
        return "?"


def _normalised(name: str) -> str:
    """Return the name of a distribution as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def clients(names: Sequence[str], environments: Path) -> list[Client]:
    """Return the clients of these names, or all. ValueError for a name without a group."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    known = {
        group.removeprefix(PREFIX): requirements
        for group, requirements in groups.items()
        if group.startswith(PREFIX)
    }
    if unknown := set(names) - known.keys():
        raise ValueError(f"no such client: {', '.join(unknown)}; there are {', '.join(known)}")
    return [Client(name, tuple(known[name]), environments) for name in names or known]


def versions_table() -> str:
    """Return the table of docs/serving.md: each client with its locked version and what is tested."""
    lines = ["| client | version | tested |", "|---|---|---|"]
    for client in clients((), ROOT):
        docstring = ast.get_docstring(ast.parse(client.tests.read_text())) or ""
        tested = docstring.partition("\n")[0].partition(": ")[2].rstrip(".")
        lines.append(f"| {client.distribution} | {client.version} | {tested} |")
    return "\n".join(lines)


def run(*command: str, seconds: float = 900) -> str:
    """Run a command and return its output. RuntimeError with the output if it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout.strip()}")
    return done.stdout


def pip(client: Client, *arguments: str) -> str:
    """Run this interpreter's pip for the environment of a client."""
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python")
    return run(*command, client.python, *arguments)


def make_environment(client: Client) -> None:
    run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(client.environment))


def lock(client: Client) -> None:
    """Resolve a client's group anew, in a new environment, and write the versions."""
    make_environment(client)
    pip(client, "install", "--quiet", *client.requirements)
    frozen = pip(client, "freeze", "--exclude-editable")
    if found := TOO_LARGE.search(frozen):
        raise RuntimeError(f"{client.name} needs {found[1]}, which is not for a client of a server")
    client.lock.parent.mkdir(exist_ok=True)
    client.lock.write_text(frozen)
    (client.environment / ".installed").write_text(frozen)


def install(client: Client) -> None:
    """Install the locked versions, unless they are installed already."""
    locked, stamp = client.lock.read_text(), client.environment / ".installed"
    if stamp.exists() and stamp.read_text() == locked:
        return
    make_environment(client)
    # Most of the modules are never imported, and compiling them takes longer than their tests.
    pip(client, "install", "--quiet", "--no-deps", "--no-compile", "-r", str(client.lock))
    stamp.write_text(locked)


@contextmanager
def server(*options: str) -> Iterator[str]:
    """Run `eyas serve` with the built-in model. Yields its address once it is ready."""
    environment = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(
        [*SERVE, *OPTIONS, *options], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        lines.extend(iter(process.stderr.readline, ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield _address(process, lines)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(10)


def _address(process: subprocess.Popen[str], lines: list[str]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended:\n{''.join(lines)}")
        if found := re.search(r"listening on (http://\S+);", "".join(lines)):
            try:
                with urllib.request.urlopen(f"{found[1]}/ready", timeout=10):
                    return found[1]
            except (urllib.error.URLError, TimeoutError):
                pass
        time.sleep(0.2)
    raise RuntimeError(f"the server is not ready after {START_SECONDS} seconds")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start_servers(stack: ExitStack, *, for_routers: bool) -> dict[str, str]:
    """Start the servers that tests need, until `stack` is closed. Return the options that say where
    they are."""
    options = {"--server-url": stack.enter_context(server())}
    if for_routers:
        port = str(free_port())
        prefill, decode = ("--role", "prefill", "--kv-port", port), ("--role", "decode")
        options |= {
            "--second-server-url": stack.enter_context(server()),
            "--prefill-server-url": stack.enter_context(server(*prefill)),
            "--prefill-kv-port": port,
            "--decode-server-url": stack.enter_context(server(*decode)),
        }
    return options


def test(client: Client, servers: Mapping[str, str]) -> str:
    """Run a client's tests against one server, or a router's in front of several. servers: from
    `start_servers`. Returns pytest's closing line; RuntimeError if a test failed or was skipped."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [client.python, *PYTEST, str(client.tests), *_addresses(client, servers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**environment, **QUIET},
        timeout=TEST_SECONDS,
        check=False,
    )
    closing = (done.stdout.strip() or "no output").splitlines()[-1]
    if done.returncode or "passed" not in closing or "skipped" in closing:
        raise RuntimeError(done.stdout.strip())
    return closing


def _addresses(client: Client, servers: Mapping[str, str]) -> list[str]:
    wanted = servers if client.name in ROUTERS else ("--server-url",)
    return [word for option in wanted for word in (option, servers[option])]


def outcome(client: Client, installed: Future[None], servers: Mapping[str, str]) -> str:
    """Return the closing line of a client's tests, or say what went wrong, with its output."""
    try:
        installed.result()
        return test(client, servers)
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"----- {client.name}\n{error}\n-----", flush=True)
        return "FAILED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients; all by default")
    parser.add_argument("--lock", action="store_true", help="resolve the versions anew")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-clients")
    options = parser.parse_args()
    chosen = clients(options.names, options.environments)
    outcomes: dict[str, str] = {}
    with ThreadPoolExecutor(NUM_INSTALLED_AT_ONCE) as installing:
        prepare = lock if options.lock else install
        prepared = [installing.submit(prepare, client) for client in chosen]
        with ExitStack() as stack:
            has_routers = any(client.name in ROUTERS for client in chosen)
            servers = start_servers(stack, for_routers=has_routers)
            for client, installed in zip(chosen, prepared, strict=True):
                outcomes[client.name] = outcome(client, installed, servers)
    for client in chosen:
        print(f"{client.name:<14} {client.version:<12} {outcomes[client.name]}")
    return int("FAILED" in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())

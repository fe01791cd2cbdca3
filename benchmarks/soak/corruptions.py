"""Corrupts a core in many ways and sees that each is refused, or does no harm.

``python -m benchmarks.soak.corruptions [CORE] [--count 100000] [--seed 0]``: every case is opened,
validated, loaded and served in a process of its own kin, with a limit of one second, so that a
crash or a hang is counted, and named. Without CORE a small random Llama is exported. Prints how
many were refused by which error, served the same bits, or were another valid core; exits with 1
when any case did anything else. ``--only N`` runs one case of the seed in this process.
"""

import json
import math
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

from msgspec import Struct

from benchmarks.soak.cores import tiny_core
from benchmarks.soak.mutations import Case, Pristine, draw, read_pristine
from benchmarks.soak.options import add_first, parser
from benchmarks.soak.trial import Service, Verdict, judge, quiet, served

LIMIT = 1.0
"""Seconds of processor time that a case may take; ten times as long on the clock."""
PER_WORKER = 2000
"""Cases after which a worker is replaced."""
ADDRESS_SPACE = 6 << 30
"""Bytes that a worker may map: sizes that a core makes up must be refused, not taken."""


class Setup(Struct, frozen=True):
    """What all cases of a run share. core: what they start from. folder: in memory, for them."""

    core: Path
    pristine: Pristine
    seed: int
    folder: Path
    limited: bool


class Finding(Struct, frozen=True):
    """One case and what became of it."""

    index: int
    name: str
    sealed: bool
    verdict: Verdict


def case_of(setup: Setup, index: int) -> Case:
    """Return the case of a number: always the same one."""
    return draw(random.Random(f"{setup.seed}/{index}"), setup.pristine)


def write(case: Case, pristine: Pristine, folder: Path) -> Path:
    """Write a corrupted core below ``folder``, which is emptied first, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    core = folder / "tiny.core"
    for path, data in {**pristine.files, **case.files}.items():
        file = core / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    if case.tree is not None:
        case.tree(core)
    return core


def run_case(setup: Setup, expected: Service, index: int, folder: Path) -> Finding:
    """Write and judge one case; expected: what the core serves."""
    case = case_of(setup, index)
    core = write(case, setup.pristine, folder)
    named = case.name.startswith(("values core.json", "everywhere"))
    return Finding(index, case.name, case.sealed, judge(core, expected, case.sealed, named))


# --- a worker ------------------------------------------------------------------------------


def _work(setup: Setup, indices: range, out: int) -> None:
    """Run cases, with a line before and one after each. Nothing was loaded before the fork: what
    a core serves is found anew in each worker."""
    expected = served(setup.core)
    if setup.limited:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = setup.folder / str(os.getpid())
    for index in indices:
        os.write(out, f"{index}\n".encode())
        found = run_case(setup, expected, index, folder)
        values = [index, found.name, found.sealed, found.verdict.kind, found.verdict.what]
        os.write(out, json.dumps(values).encode() + b"\n")
    shutil.rmtree(folder, ignore_errors=True)


class Worker:
    """A forked process that runs cases, and the case that it is at."""

    def __init__(self, setup: Setup, indices: range) -> None:
        source, sink = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(source)
                _work(setup, indices, sink)
                status = 0
            finally:
                os._exit(status)
        os.close(sink)
        self.source = source
        self.at = indices.start
        self._started: tuple[float, float] | None = None
        self._rest = b""
        self._closed = False

    def lines(self, seconds: float) -> list[bytes] | None:
        """Lines that came within ``seconds``; None at the end."""
        if not select.select([self.source], [], [], seconds)[0]:
            return []
        data = os.read(self.source, 1 << 16)
        if not data:
            self._closed = True
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def begin(self, index: int) -> None:
        """Note that a case began."""
        self.at, self._started = index, (time.monotonic(), self._processor())

    def done(self) -> None:
        """Note that it ended."""
        self._started = None
        self.at += 1

    def overdue(self) -> bool:
        """Say whether the case takes longer than it may."""
        if self._started is None:
            return False
        clock, processor = self._started
        waited = time.monotonic() - clock
        return waited > 10 * LIMIT or (waited > LIMIT and self._processor() - processor > LIMIT)

    def end(self) -> int:
        """End the process where it has not, and return its wait status."""
        os.close(self.source)
        ended, status = os.waitpid(self.pid, 0 if self._closed else os.WNOHANG)
        if not ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return status

    def _processor(self) -> float:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def findings(setup: Setup, indices: range) -> Iterator[Finding]:
    """Run the cases in workers, one at a time; a crash or a hang is a finding, too."""
    at = indices.start
    while at < indices.stop:
        worker = Worker(setup, range(at, min(at + PER_WORKER, indices.stop)))
        hung = False
        try:
            hung = yield from _results(worker)
        finally:
            status = worker.end()
        at = worker.at
        if hung or status:
            case = case_of(setup, at)
            why = f"longer than {LIMIT} s" if hung else f"ended with wait status {status}"
            yield Finding(at, case.name, case.sealed, Verdict("bad", why))
            at += 1


def _results(worker: Worker) -> Generator[Finding, None, bool]:
    """Yield a worker's findings up to its end; return whether a case took too long."""
    while (lines := worker.lines(0.2)) is not None:
        for line in lines:
            if line.isdigit():
                worker.begin(int(line))
                continue
            index, name, sealed, kind, what = json.loads(line)
            worker.done()
            yield Finding(index, name, sealed, Verdict(kind, what))
        if not lines and worker.overdue():
            return True
    return False


# --- the whole -----------------------------------------------------------------------------


def count(
    setup: Setup, indices: range, seconds: float = math.inf
) -> tuple[Counter[str], list[Finding]]:
    """Run the cases, for so long at most; return how many ended in which way, and the bad ones."""
    ways: Counter[str] = Counter()
    bad = []
    started = time.monotonic()
    for number, found in enumerate(findings(setup, indices), 1):
        sort = "sealed" if found.sealed else "not sealed"
        ways[f"{found.verdict.kind:10} {sort:10} {found.verdict.what[:60]}"] += 1
        if found.verdict.kind == "bad":
            bad.append(found)
            print(f"bad: case {found.index}: {found.name}: {found.verdict.what}", flush=True)
        passed = time.monotonic() - started
        if number % 10_000 == 0:
            print(f"{number} cases, {len(bad)} bad, {passed:.0f} s", flush=True)
        if passed > seconds:
            break
    return ways, bad


def set_up(core: Path, seed: int, folder: Path, limited: bool = True) -> Setup:
    """Read the core that cases start from."""
    quiet()
    return Setup(core, read_pristine(core), seed, folder, limited)


def main() -> int:
    """Run and print; return the exit code."""
    options_of = parser(__doc__, 100_000, "cases")
    add_first(options_of, "case")
    options_of.add_argument("--only", type=int, help="one case, in this process")
    options_of.add_argument(
        "--unlimited", action="store_true", help="no limit of memory (sanitizers)"
    )
    options = options_of.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        core = options.core or tiny_core(Path(folder) / "original.core")
        setup = set_up(core, options.seed, Path(folder), not options.unlimited)
        if options.only is not None:
            print(run_case(setup, served(core), options.only, Path(folder) / "case"))
            return 0
        started = time.monotonic()
        first = options.first
        ways, bad = count(setup, range(first, first + options.count), options.seconds)
        for way, number in sorted(ways.items()):
            print(f"{number:8}  {way}")
        seconds = time.monotonic() - started
    print(f"{ways.total()} cases of seed {options.seed} in {seconds:.0f} s: {len(bad)} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

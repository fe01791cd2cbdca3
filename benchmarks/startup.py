"""Start-up of an existing core: process start to /health 200 and to a first token, medians.

python benchmarks/startup.py CORE [--runs 5] [--flags=--no-mixed-prefill]

The first token is that of a one-token completion sent as soon as the server is ready. Also
reported: processor seconds at ready, peak resident memory of the process, whether torch was
mapped, and whether any digest of the core changed.
"""

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def digests(core: Path) -> dict[str, str]:
    """sha256 of every file of the core, by relative path."""
    return {
        str(p.relative_to(core)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(core.rglob("*"))
        if p.is_file()
    }


def wait_ready(port: int, process: subprocess.Popen[bytes], timeout: float = 60.0) -> None:
    """Poll /health every 2 ms until it answers 200."""
    end = time.perf_counter() + timeout
    while time.perf_counter() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as r:
                if r.status == 200:
                    return
        except OSError:
            time.sleep(0.002)
    raise RuntimeError("not ready in time")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, in the kernel's ticks (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def first_token(port: int) -> None:
    """Ask for a completion of one token and read it to the end."""
    base = f"http://127.0.0.1:{port}/v1"
    with urllib.request.urlopen(f"{base}/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "prompt": "Hello", "max_tokens": 1, "ignore_eos": True}
    request = urllib.request.Request(
        f"{base}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        if json.load(answer)["usage"]["completion_tokens"] != 1:
            raise RuntimeError("the first completion has no token")


def one_run(command: list[str]) -> dict[str, float | bool]:
    """Start, wait for ready, look at the process, ask for a token, stop it."""
    port = free_port()
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        wait_ready(port, process)
        seconds = time.perf_counter() - start
        cpu = cpu_seconds(process.pid)
        first_token(port)
        token = time.perf_counter() - start
        status = Path(f"/proc/{process.pid}/status").read_text()
        rss = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM"))
        torch = "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    finally:
        process.terminate()
        process.wait(30)
    return {
        "seconds": seconds,
        "cpu": cpu,
        "token": token,
        "peak_rss_mib": rss / 1024,
        "torch": torch,
    }


def main() -> None:
    """Run and print one JSON object."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("core", type=Path)
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--flags", default="", help="flags for flare run, space separated")
    a = ap.parse_args()
    flare = str(Path(sys.executable).parent / "flare")
    command = [flare, "run", str(a.core), *a.flags.split()]
    before = digests(a.core)
    runs = [one_run(command) for _ in range(a.runs + 1)][1:]  # the first warms the page cache
    seconds = [float(r["seconds"]) for r in runs]
    result = {
        "command": " ".join(["flare", "run", a.core.name, *a.flags.split()]),
        "runs": len(runs),
        "seconds_median": round(statistics.median(seconds), 3),
        "seconds_min": round(min(seconds), 3),
        "seconds_max": round(max(seconds), 3),
        "first_token_median": round(statistics.median(float(r["token"]) for r in runs), 3),
        "cpu_seconds_median": round(statistics.median(float(r["cpu"]) for r in runs), 3),
        "peak_rss_mib": round(statistics.median(float(r["peak_rss_mib"]) for r in runs), 1),
        "torch_mapped": any(r["torch"] for r in runs),
        "digests_unchanged": digests(a.core) == before,
    }
    print(json.dumps(result, indent=1))
    if result["torch_mapped"] or not result["digests_unchanged"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

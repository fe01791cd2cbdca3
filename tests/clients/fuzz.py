"""Schemathesis against a Flare server: ``python -m tests.clients.fuzz SECONDS [CORE]``.

Requests made from /openapi.json, right and wrong ones: no answer may be a 5xx, an undocumented
status or content type, or break its own schema. A right body by the schema may still be refused
(a field may depend on another), so acceptance of "positive data" is not checked.
"""

import subprocess
import sys

import httpx

from tests.clients.__main__ import FOLDER, INSTALLED
from tests.support.process import flare, server_process

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
)
# Short answers: a request that leaves the length open generates until the context is full.
LIMITS = ("--max-model-len", "64", "--port", "0")


def main(arguments: list[str]) -> int:
    """Fuzz for as long as the first argument says; the exit code of schemathesis."""
    seconds, core = arguments[0], arguments[1:]
    program = str(INSTALLED / "openai" / "bin" / "schemathesis")
    with server_process(flare("run", *core, *LIMITS)) as server:
        url = server.ready()
        options = ["--max-time", seconds, "--checks", ",".join(CHECKS), "--request-timeout", "120"]
        more = ["--no-color", "--continue-on-failure", "--warnings", "off"]
        more += ["--exclude-path", "/v1/embeddings"]  # 501 in any case
        config = ["--config-file", str(FOLDER / "schemathesis.toml")]
        command = [program, *config, "run", f"{url}/openapi.json", *options, *more]
        code = subprocess.run(command, cwd=INSTALLED, check=False).returncode
        assert httpx.get(f"{url}/health").status_code == 200
        if "Traceback" in server.stderr:
            print(server.stderr)
            return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

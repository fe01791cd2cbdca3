"""OpenAI-style streamed completions over OpenVINO GenAI, which has no HTTP server of its own.

python openvino_server.py MODEL --port PORT --threads N [--max-num-batched-tokens 512]
    [--max-num-seqs 32] [--cache-gib 1]

Runs in OpenVINO's environment with the standard library alone. HTTP lives in the parent, the
pipeline in a child, so that a step that holds the interpreter lock delays no stream. Text is one
decoded token a chunk (characters that span tokens come out as replacement characters).
"""

import argparse
import itertools
import json
import multiprocessing as mp
import os
import queue
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import openvino_genai as genai  # type: ignore[import-not-found]

Options = argparse.Namespace


def engine(options: Options, parents_end: Connection, pipe: Connection) -> None:
    """The child: take requests from the pipe, step, send (number, texts, ended) back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parents_end.close()  # or the pipe would never close
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = options.max_num_batched_tokens
    scheduler.max_num_seqs = options.max_num_seqs
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = options.cache_gib
    every = options.threads >= len(os.sched_getaffinity(0))  # then OpenVINO's own choice is best
    properties = {} if every else {"INFERENCE_NUM_THREADS": options.threads}
    pipeline = genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
    Engine(pipeline, pipe).run()


class Engine:
    """The step loop around one pipeline."""

    def __init__(self, pipeline: Any, pipe: Connection) -> None:
        self._pipeline = pipeline
        self._pipe = pipe
        self._tokenizer = pipeline.get_tokenizer()
        self._running: dict[int, Any] = {}
        self._pieces: dict[int, str] = {}

    def run(self) -> None:
        """Serve until the pipe closes."""
        self._pipe.send("ready")
        while self._drain():
            if self._running:
                self._pipeline.step()
                self._deliver()

    def _drain(self) -> bool:
        """Take what has come; wait for something only when nothing runs."""
        while not self._running or self._pipe.poll():
            try:
                message = self._pipe.recv()
            except EOFError:
                return False
            if message[0] == "cancel":
                self._cancel(message[1])
            else:
                self._add(*message[1:])
        return True

    def _add(self, number: int, prompt: str, max_tokens: int, ignore_eos: bool) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = ignore_eos
        config.do_sample = False
        self._running[number] = self._pipeline.add_request(number, prompt, config)

    def _cancel(self, number: int) -> None:
        handle = self._running.pop(number, None)
        if handle is not None:
            handle.cancel()

    def _deliver(self) -> None:
        for number, handle in list(self._running.items()):
            ids: list[int] = []
            while handle.can_read():
                ids += next(iter(handle.read().values())).generated_ids
            ended = handle.get_status() != genai.GenerationStatus.RUNNING
            if ended:
                del self._running[number]
            if ids or ended:
                self._pipe.send((number, [self._piece(token) for token in ids], ended))

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._tokenizer.decode([token])
        return self._pieces[token]


class Front:
    """The parent's side of the pipe: one queue a request."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._queues: dict[int, queue.SimpleQueue[tuple[list[str], bool]]] = {}

    def submit(
        self, prompt: str, max_tokens: int, ignore_eos: bool
    ) -> "tuple[int, queue.SimpleQueue[tuple[list[str], bool]]]":
        """Queue one request; its tokens come through the queue that is returned."""
        number = next(self._numbers)
        arriving: queue.SimpleQueue[tuple[list[str], bool]] = queue.SimpleQueue()
        self._queues[number] = arriving
        self._send(("add", number, prompt, max_tokens, ignore_eos))
        return number, arriving

    def leave(self, number: int) -> None:
        """Forget a request; the engine stops working on it."""
        self._queues.pop(number, None)
        self._send(("cancel", number))

    def _send(self, message: tuple[object, ...]) -> None:
        with self._lock:
            self._pipe.send(message)

    def receive(self) -> None:
        """Hand out what the engine sends until it ends."""
        try:
            while True:
                number, texts, ended = self._pipe.recv()
                arriving = self._queues.get(number)
                if arriving is not None:
                    arriving.put((texts, ended))
        except EOFError:
            sys.exit("the engine has ended")


class Handler(BaseHTTPRequestHandler):
    """GET /health and POST /v1/completions with "stream": true."""

    front: Front

    def log_message(self, format: str, *args: object) -> None:
        """No line per request."""

    def do_GET(self) -> None:
        """Ready: the listener only starts when the pipeline is loaded."""
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        """Stream one completion."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number, arriving = self.front.submit(
            body["prompt"], int(body["max_tokens"]), bool(body.get("ignore_eos"))
        )
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            self._stream(arriving)
        except OSError:  # the client has left
            self.front.leave(number)

    def _stream(self, arriving: "queue.SimpleQueue[tuple[list[str], bool]]") -> None:
        total, ended = 0, False
        while not ended:
            texts, ended = arriving.get()
            total += len(texts)
            self._events([{"choices": [{"index": 0, "text": text}]} for text in texts])
        final = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
        self._events([{**final, "usage": {"completion_tokens": total}}])
        self.wfile.write(b"data: [DONE]\n\n")

    def _events(self, events: list[dict[str, Any]]) -> None:
        self.wfile.write(b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in events))


class Server(ThreadingHTTPServer):
    """Takes a burst of connections at once."""

    request_queue_size = 128
    daemon_threads = True


def main() -> None:
    """Load, then listen."""
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("model")
    ap.add_argument("--port", type=int, required=True)
    ap.add_argument("--threads", type=int, required=True)
    ap.add_argument("--max-num-batched-tokens", type=int, default=512)
    ap.add_argument("--max-num-seqs", type=int, default=32)
    ap.add_argument("--cache-gib", type=int, default=1)
    options = ap.parse_args()
    ours, theirs = mp.Pipe()
    child = mp.get_context("fork").Process(target=engine, args=(options, ours, theirs), daemon=True)
    child.start()
    theirs.close()
    if ours.recv() != "ready":
        sys.exit("the engine did not start")
    Handler.front = Front(ours)
    server = Server(("127.0.0.1", options.port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Handler.front.receive()


if __name__ == "__main__":
    main()

"""A server on real sockets that misbehaves on demand: the request's ``model`` names what it does. Plain threads.

Prints its port; ends when its stdin does. Every answer has ``num_predict`` tokens unless its behaviour says otherwise.
"""

import json
import os
import socket
import socketserver
import struct
import sys
import threading
import time

TOKEN_S = 0.004
PREFILL_S = 0.02
slots = threading.Semaphore(int(os.environ.get("FAKE_SLOTS", "10000")))


def frame(text="", *, thinking="", **more):
    message = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    return json.dumps({"model": "fake", "message": message, "done": False, **more}, ensure_ascii=False).encode() + b"\n"


def final(tokens, **more):
    usual = {
        "prompt_eval_count": 33,
        "eval_count": tokens,
        "total_duration": 9_000_000_000,
        "load_duration": 1_000_000_000,
        "prompt_eval_duration": 2_000_000_000,
        "eval_duration": 5_000_000_000,
    }
    return frame(done=True, done_reason="length", **usual | more)


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Handler(socketserver.BaseRequestHandler):
    def setup(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self):
        with self.request.makefile("rb") as reader:
            while line := reader.readline():
                length = 0
                path = line.split()[1]
                while (header := reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = json.loads(reader.read(length)) if length else {}
                name, *arguments = body.get("model", path.decode().strip("/").replace("/", "_")).split(":")
                self.asked = body
                self.tokens = body.get("options", {}).get("num_predict", body.get("max_tokens", 5))
                try:
                    if getattr(self, name.replace("-", "_"))(*arguments) is False:
                        return
                except (BrokenPipeError, ConnectionResetError):
                    return

    def send(self, data):
        self.request.sendall(data)

    def head(self, status="200 OK", **headers):
        headers = {"Content-Type": "application/x-ndjson", **headers}
        lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    def stream(self):
        self.head(Transfer_Encoding="chunked")

    def end(self, tokens, **more):
        self.send(chunk(final(tokens, **more)))
        self.send(b"0\r\n\r\n")

    # What it can do

    def whole(self, **answer):
        body = json.dumps(answer).encode()
        self.head(Content_Length=len(body))
        self.send(body)

    def api_ps(self):
        self.whole(models=[{"name": "plain"}])

    def api_version(self):
        self.whole(version="0.33.0")

    def v1_models(self):
        self.whole(object="list", data=[{"id": "openai", "object": "model"}])

    def plain(self, per_chunk="1"):
        """``per_chunk`` tokens in each streamed line."""
        with slots:
            time.sleep(PREFILL_S)
            self.stream()
            for done in range(0, self.tokens, int(per_chunk)):
                time.sleep(TOKEN_S * min(int(per_chunk), self.tokens - done))
                self.send(chunk(frame("word " * min(int(per_chunk), self.tokens - done))))
            self.end(self.tokens)

    def split_utf8(self):
        self.stream()
        data = frame("año café ☕ 東京")
        for index in range(len(data)):  # every byte in a chunk, and often a segment, of its own
            self.send(chunk(data[index : index + 1]))
        self.end(4)

    def two_in_one(self):
        self.stream()
        self.send(chunk(frame("one")) + chunk(frame("two")))
        time.sleep(0.05)
        self.send(chunk(frame("three") + frame("four")))  # two lines in one chunk as well
        time.sleep(0.05)
        self.end(4)

    def thinking(self):
        self.stream()
        time.sleep(0.05)
        self.send(chunk(frame(thinking="hm")))
        for _ in range(4):
            time.sleep(0.02)
            self.send(chunk(frame(thinking='so "content":"" it is')))
        self.send(chunk(frame("answer")))
        time.sleep(0.02)
        self.end(6)

    def no_final(self):
        self.stream()
        self.send(chunk(frame("one")) + b"0\r\n\r\n")

    def cut_off(self):
        self.stream()
        self.send(chunk(frame("one")))
        self.send(b"40\r\n{")
        return False

    def error_midway(self):
        self.stream()
        self.send(chunk(frame("one")))
        self.send(chunk(b'{"error":"an error was encountered while running the model: CUDA error"}\n') + b"0\r\n\r\n")

    def status(self, code):
        body = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
        more = {"Retry_After": "7"} if code == "429" else {}
        self.head(f"{code} Some Reason", Content_Length=len(body), **more)
        self.send(body)

    def reset(self, when="early"):
        if when == "midway":
            self.stream()
            self.send(chunk(frame("one")))
            time.sleep(0.05)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.request.close()
        return False

    def slow(self, seconds):
        time.sleep(float(seconds))
        return self.plain()

    def identity(self):
        data = frame("one") + frame("two") + final(2)
        self.head(Content_Length=len(data))
        for index in range(0, len(data), 50):
            self.send(data[index : index + 50])
            time.sleep(0.002)

    def until_close(self):
        self.head(Connection="close")
        self.send(frame("one"))
        time.sleep(0.02)
        self.send(final(1))
        return False

    def gzip(self):
        self.head(Content_Encoding="gzip", Content_Length=4)
        self.send(b"\x1f\x8b\x08\x00")

    def redirect(self):
        self.head("307 Temporary Redirect", Location="http://elsewhere.invalid/", Content_Length=0)

    def bad_utf8(self):
        self.stream()
        self.send(chunk(frame("one")))
        self.send(chunk(b'{"message":{"content":"\xff\xfe"},"done":false}\n'))
        self.end(2)

    def bad_json(self):
        self.stream()
        self.send(chunk(b'{"message": oops}\n'))
        self.end(1)

    def not_http(self):
        self.send(b"SSH-2.0-OpenSSH_9.6\r\n")
        return False

    def forget(self):
        """Answer, then close the idle connection, as a proxy with a short keep-alive does."""
        self.plain()
        return False

    def openai(self, usage="usage"):
        """Chat completions: thinking, then text, a finish reason, usage, all as server-sent events."""
        self.stream()
        for delta in [{"role": "assistant", "content": ""}, {"reasoning_content": "hm"}]:
            self.event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
            time.sleep(0.03)
        for _ in range(self.tokens - 1):
            self.event(choices=[{"index": 0, "delta": {"content": "data: añ"}, "finish_reason": None}])
        self.event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
        if usage == "usage" and self.asked.get("stream_options", {}).get("include_usage"):
            time.sleep(0.02)
            self.event(choices=[], usage={"prompt_tokens": 33, "completion_tokens": self.tokens})
        self.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def openai_error(self):
        self.stream()
        self.event(choices=[{"index": 0, "delta": {"content": "one"}, "finish_reason": None}])
        self.event(error={"message": "out of memory", "code": 500})
        self.send(b"0\r\n\r\n")

    def event(self, **fields):
        self.send(chunk(b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"))

    def parrot(self):
        """Answer with what was asked, so that a test sees the request: the messages as JSON in the answer's text."""
        self.stream()
        self.send(chunk(frame(json.dumps(self.asked["messages"]))))
        self.end(self.tokens, prompt_eval_count=len(json.dumps(self.asked["messages"]).split()))

    def counting(self, prompt, prompt_ms):
        """The final frame counts ``prompt`` tokens of prompt, read in ``prompt_ms``."""
        self.stream()
        self.send(chunk(frame("word")))
        self.end(self.tokens, prompt_eval_count=int(prompt), prompt_eval_duration=int(prompt_ms) * 1_000_000)

    stall_until = 0.0

    def stall(self, seconds):
        """The first request starts a stall of the whole server; requests that arrive in it wait for its end."""
        kind = type(self)
        if not kind.stall_until:
            kind.stall_until = time.monotonic() + float(seconds)
        time.sleep(max(0.0, kind.stall_until - time.monotonic()))
        self.stream()
        self.send(chunk(frame("one")))
        self.end(1)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


with Server((os.environ.get("FAKE_ADDRESS", "127.0.0.1"), 0), Handler) as server:
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)

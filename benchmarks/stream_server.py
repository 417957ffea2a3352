"""A server for measuring clients: streams chunks at fixed times and notes when it sent each. One thread, one epoll.

    python benchmarks/stream_server.py --ttft 0.05 --interval 0.02 --chunks 100 --log sent.npz

Speaks Ollama's /api/chat and OpenAI's /v1/chat/completions. Prints its port; at the end of its stdin it writes
``--log`` (arrays ``request`` and ``sent_s``, monotonic seconds, one entry per chunk with text) and ends. The final
frame's ``prompt_eval_count`` is the request's number, so that a client's samples can be matched with the log.
"""

import argparse
import contextlib
import gc
import heapq
import json
import re
import select
import socket
import sys
import time
from array import array


def frames(number, chunks):
    text = json.dumps({"model": "bench", "message": {"role": "assistant", "content": "word "}, "done": False})
    last = {"model": "bench", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "length"}
    counters = {"prompt_eval_count": number, "eval_count": chunks, "total_duration": 1, "eval_duration": 1}
    return text.encode() + b"\n", json.dumps(last | counters).encode() + b"\n"


def events(number, chunks):
    base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "bench"}
    text = base | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "word "}, "finish_reason": None}]}
    stop = base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    usage = {"prompt_tokens": number, "completion_tokens": chunks, "total_tokens": number + chunks}
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in (text, stop, stop | {"usage": usage})]
    return lines[0], lines[1] + lines[2] + b"data: [DONE]\n\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Stream:
    __slots__ = ("due", "left", "number", "sock", "tail", "text")

    def __init__(self, sock, number, chunks, make, due):
        text, tail = make(number, chunks)
        self.sock, self.number, self.left, self.due = sock, number, chunks, due
        self.text, self.tail = chunk(text), chunk(tail) + b"0\r\n\r\n"

    def __lt__(self, other):
        return self.due < other.due


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"models":[{"name":"bench"}],"object":"list","data":[{"id":"bench","object":"model"}]}'
LENGTH = re.compile(rb'"(?:num_predict|max_tokens|max_completion_tokens)"\s*:\s*(\d+)')


class Server:
    def __init__(self, options):
        self.options = options
        self.listener = socket.create_server(("127.0.0.1", options.port), backlog=4096)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.poll.register(0, select.EPOLLIN)
        self.socks, self.received = {}, {}
        self.heap = []
        self.count = 1000  # no fewer than a prompt has words: a client may take that for a prompt that was cut
        self.request, self.sent = array("q"), array("d")

    def run(self):
        print(self.listener.getsockname()[1], flush=True)
        while True:
            wait = max(0.0, self.heap[0].due - time.monotonic()) if self.heap else -1
            for fd, _ in self.poll.poll(wait):
                if fd == 0:
                    return
                if fd == self.listener.fileno():
                    self.accept()
                else:
                    self.read(fd)
            self.send_due()

    def accept(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self.listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socks[sock.fileno()], self.received[sock.fileno()] = sock, b""
                self.poll.register(sock, select.EPOLLIN)

    def read(self, fd):
        sock = self.socks[fd]
        try:
            data = sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(fd)
            del self.socks[fd], self.received[fd]
            sock.close()
            return
        data = self.received[fd] + data
        head, blank, body = data.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if not blank or len(body) < length:
            self.received[fd] = data
            return
        self.received[fd] = b""
        path = head.split(b" ", 2)[1]
        if head.startswith(b"GET"):
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            sock.sendall(head % len(MODELS) + MODELS)
            return
        self.count += 1
        make, kind = (events, b"text/event-stream") if path.startswith(b"/v1") else (frames, b"application/x-ndjson")
        sock.sendall(HEAD % kind)
        asked = LENGTH.search(body)
        chunks = int(asked[1]) if asked else self.options.chunks
        due = time.monotonic() + self.options.ttft
        heapq.heappush(self.heap, Stream(sock, self.count, chunks, make, due))

    def send_due(self):
        now = time.monotonic()
        heap, interval = self.heap, self.options.interval
        while heap and heap[0].due <= now:
            stream = heap[0]
            try:
                if stream.left:
                    self.request.append(stream.number)
                    self.sent.append(time.monotonic())
                    stream.sock.send(stream.text)
                    stream.left -= 1
                    stream.due += interval
                    heapq.heapreplace(heap, stream)
                else:
                    heapq.heappop(heap)
                    stream.sock.send(stream.tail)
            except OSError:
                if heap and heap[0] is stream:
                    heapq.heappop(heap)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft", type=float, default=0.05, help="seconds from request to first chunk")
    parser.add_argument("--interval", type=float, default=0.02, help="seconds between chunks")
    parser.add_argument("--chunks", type=int, default=100, help="per answer, where the request asks for no number")
    parser.add_argument("--log")
    options = parser.parse_args()
    gc.freeze()
    gc.disable()  # its pauses would be measured as the client's
    server = Server(options)
    server.run()
    if options.log:
        import numpy as np

        np.savez(options.log, request=np.array(server.request), sent_s=np.array(server.sent))
    sys.exit(0)


if __name__ == "__main__":
    main()

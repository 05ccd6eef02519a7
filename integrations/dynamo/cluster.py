"""A small cluster on this machine: Dynamo's frontend, two workers, a Longview server behind each.

It asks, prints what went where, and ends with 1 where something is not as it should be. All of it
listens on 127.0.0.1, and workers find each other by files: there is no other service.

    python cluster.py PROGRAM MODEL_FOLDER [WORKER_PROGRAM]

Without a program for them the workers are those in Python.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

MODEL = "needle"
N_CTX = 4096
HERE = Path(__file__).resolve().parent
# In which all of it has to stand.
STARTS_S = 60
# What ends without a word is known to be gone when its lease ends.
LEASE_S = 30
# What a block counts to the router where it is not on a device (`--router-host-cache-hit-weight`
# and `--router-disk-cache-hit-weight`, where nothing is said).
HOST_WEIGHT, DISK_WEIGHT = 0.75, 0.25
# Events go from a server through its worker to the frontend.
SETTLES_S = 10


class Failed(Exception):
    """Something is not as it should be."""


def check(is_right, what):
    if not is_right:
        raise Failed(what)
    print(f"  ok: {what}")


def wait_for(what, seconds, is_there):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := is_there():
            return found
        time.sleep(0.05)
    raise Failed(f"{what}: not within {seconds} s")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(url, body=None, method=None):
    """Status and text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def streamed(url, body):
    """The text of a chat's stream, and why it ended."""
    status, answer = ask(f"{url}/v1/chat/completions", {**body, "stream": True})
    check(status == 200, f"{url} streams an answer")
    lines = [line[6:] for line in answer.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line).get("choices", [])]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    return text, reasons[-1:]


def document(seed):
    """A text that no other seed has, and a question about it with its answer."""
    lines = [f"The baker number {seed * 100 + i} walked to the meadow." for i in range(80)]
    code = 48213 + seed
    lines[30] += f" The pass key of house {seed} is {code}."
    return " ".join(lines), f"What is the pass key of house {seed}?"


class Known(NamedTuple):
    """Blocks of a request that the chosen worker had, as the router says, each counted where it is
    fastest to use."""

    device: int
    host: int
    disk: int

    def __str__(self):
        return f"{self.device} on the device, {self.host} in memory, {self.disk} on disk"


class Cluster:
    """All processes, which end with it."""

    def __init__(self, program, model, worker, folder):
        self.program, self.model, self.worker, self.folder = program, model, worker, folder
        self.all = []
        self.env = {
            **os.environ,
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_EVENT_PLANE": "zmq",
            # They listen on the machine's own address for other machines otherwise.
            "DYN_EVENT_PLANE_HOST": "127.0.0.1",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_LOGGING_DISABLE_ANSI_COLORS": "1",
            "NO_COLOR": "1",
            # The router says what the chosen worker's blocks count, all tiers together.
            "DYN_LOG": "info,dynamo_llm::kv_router::routing_host=debug",
        }

    def start(self, name, command):
        log = self.folder / f"{name}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.all.append(process)
        return process, log

    def start_all(self):
        # Rows lie in the host's memory, or, where a policy recalls none, on the device.
        self.servers = [self.server("a", "longview"), self.server("b", "full")]
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        frontend = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]
        frontend += ["--http-port", str(port), "--discovery-backend", "file"]
        frontend += ["--router-mode", "kv", "--migration-limit", "1"]
        _, self.log = self.start("frontend", frontend)
        for server in self.servers:
            self.start_worker(server)

    def start_worker(self, server):
        worker = self.worker + ["--server", server["url"], "--kv-events", server["events"]]
        worker += ["--model-path", str(self.model), "--served-model-name", MODEL]
        server["worker"], _ = self.start(f"worker-{server['name']}", worker)

    def server(self, name, policy):
        command = [self.program, "serve", "--port", "0", "--ctx-size", str(N_CTX)]
        command += ["--kv-events", "tcp://127.0.0.1:0", "--policy", policy]
        command += ["--library", str(self.folder / f"library-{name}")]
        process, log = self.start(f"server-{name}", command)

        def addresses():
            text = log.read_text()
            if process.poll() is not None:
                raise Failed(f"server {name} ended: {text}")
            url = re.search(r"serving .* at (http://[0-9.:]+)/v1", text)
            events = re.search(r"KV events for routers: (tcp://[0-9.:]+)", text)
            return url and events and (url[1], events[1])

        url, events = wait_for(f"server {name}", STARTS_S, addresses)
        return {
            "name": name,
            "policy": policy,
            "process": process,
            "url": url,
            "events": events,
        }

    def instances(self):
        """Workers that discovery knows."""
        found = set()
        for path in (self.folder / "discovery").rglob("*"):
            try:
                told = json.loads(path.read_text()) if path.is_file() else {}
            except (OSError, ValueError):
                # It is being written, or is gone.
                continue
            if told.get("type") == "Endpoint" and told.get("endpoint") == "generate":
                found.add(told["instance_id"])
        return found

    def replace(self, what, begin):
        """Waits until discovery knows a worker that was begun, and none that was killed."""
        before = self.instances()
        began = time.monotonic()
        begin()
        wait_for("the new worker", STARTS_S, lambda: self.instances() - before)
        there_s = time.monotonic() - began
        wait_for("the end of the old one's lease", LEASE_S, lambda: len(self.instances()) == 2)
        print(
            f"  {what} is there after {there_s:.1f} s, "
            f"the old one forgotten after {time.monotonic() - began:.1f} s"
        )
        # All that is kept is told once more to who comes.
        time.sleep(3)

    def end(self):
        for process in self.all:
            if process.poll() is None:
                process.kill()
        for process in self.all:
            process.wait()

    def is_listed(self):
        try:
            return MODEL in ask(f"{self.url}/v1/models")[1]
        except OSError:
            return False

    def metric(self, server, name):
        page = ask(f"{server['url']}/metrics")[1]
        return sum(float(line.split()[1]) for line in page.splitlines() if line.startswith(name))

    def read_tokens(self):
        return [self.metric(server, "llamacpp:prompt_tokens_total ") for server in self.servers]

    def running(self, *servers):
        """Requests that run, at these servers or all."""
        name = "vllm:num_requests_running "
        return sum(self.metric(server, name) for server in servers or self.servers)

    def known(self):
        """Blocks of each request so far that the chosen worker had."""
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text())
        chosen = (
            r'Selected worker.*? request_id="([-0-9a-f]+)".*'
            r"host_pinned_blocks=(\d+) disk_blocks=(\d+)"
        )
        counted = r"\[ROUTING\] Best: .*? request_id=([-0-9a-f]+) .*?overlap_blocks=(\d+)"
        counted = dict(re.findall(counted, text))
        found = []
        for request, host, disk in re.findall(chosen, text):
            if request in counted:
                host, disk = int(host), int(disk)
                device = int(counted[request]) - HOST_WEIGHT * host - DISK_WEIGHT * disk
                # The router says whole blocks.
                found.append(Known(int(device), host, disk))
        return found

    def question(self, what, text, question):
        """Asks, says who answered, and returns that server and the router's blocks."""
        before, n_before = self.read_tokens(), len(self.known())
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"{text} {question}"}]}
        began = time.monotonic()
        status, answer = ask(
            f"{self.url}/v1/chat/completions", {**body, "max_tokens": 16, "temperature": 0}
        )
        took_ms = (time.monotonic() - began) * 1e3
        if status != 200:
            raise Failed(f"{what}: {status}: {answer}")
        usage = json.loads(answer)["usage"]
        read = [after - then for after, then in zip(self.read_tokens(), before)]
        server = self.servers[read.index(max(read))]
        lines = wait_for("the router's line", SETTLES_S, lambda: self.known()[n_before:])
        known = lines[-1]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        print(
            f"{what}: server {server['name']}, {usage['prompt_tokens']} tokens, {cached} of them "
            f"known, {max(read):.0f} read; blocks that the router knew: {known}; {took_ms:.0f} ms"
        )
        return server, known, cached


def streams_are_equal(cluster):
    print("the same stream with and without Dynamo, at temperature 0")
    text, question = document(1)
    for words in (question, "Who walked to the meadow?"):
        content = f"{text} {words}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        body.update(max_tokens=24, temperature=0)
        before = cluster.read_tokens()
        through = streamed(cluster.url, body)
        read = [after - then for after, then in zip(cluster.read_tokens(), before)]
        direct = streamed(cluster.servers[read.index(max(read))]["url"], body)
        check(through == direct, f"{through} = {direct}")


def questions_go_where_documents_are(cluster):
    print("questions go to the worker that holds their document")
    holders = []
    for seed in (2, 3, 4, 5):
        text, question = document(seed)
        if holders:
            # Of two workers that do nothing the same one may be chosen every time.
            _, last = holders[-1]
            busy = LongAnswer(cluster, document(holders[-1][0])[0])
            check(cluster.running(last) == 1, f"server {last['name']} is busy with what it holds")
        server, blocks, _ = cluster.question(f"document {seed}", text, question)
        if holders:
            busy.leave()
            check(server is not last, "a new document goes to the other")
            wait_for("its place", SETTLES_S, lambda: cluster.running() == 0)
        holders.append((seed, server))
        time.sleep(0.3)
    for seed, holder in holders:
        text, _ = document(seed)
        server, known, cached = cluster.question(f"again {seed}", text, "Who walked?")
        check(server is holder, f"document {seed} is asked where it was read")
        if server["policy"] == "full":
            check(known.device >= 15 and known[1:] == (0, 0), "its blocks are on the device")
        else:
            check(known.host >= 15 and known[::2] == (0, 0), "its blocks are in memory")
        check(cached and cached > 500, f"{cached} tokens of it were not read again")


def keep(cluster, server, seed):
    """Has a server read a document into its library."""
    status, answer = ask(f"{server['url']}/v1/contexts", {"text": document(seed)[0]})
    check(status == 200, f"server {server['name']} keeps document {seed}")
    time.sleep(1)
    return json.loads(answer)["id"]


def what_is_deleted_is_forgotten(cluster):
    print("a document that is deleted is nobody's any more")
    for server, seed in zip(cluster.servers, (6, 7)):
        name = keep(cluster, server, seed)
        text, _ = document(seed)
        asked, known, _ = cluster.question(f"document {seed}", text, "Who walked?")
        check(asked is server and sum(known) >= 15, "the router knows who has it")
        status, _ = ask(f"{server['url']}/v1/contexts/{name}", method="DELETE")
        check(status == 200, "it is deleted")
        time.sleep(1)
        # A worker that had some of it would be chosen: both do nothing.
        _, known, cached = cluster.question("after that", text, "Who went?")
        check(known == (0, 0, 0) and cached < 64, "the router knows nobody who has any of it")


def a_library_outlives_its_server(cluster):
    for i, seed in ((0, 8), (1, 9)):
        server = cluster.servers[i]
        print(f"kill -9 of server {server['name']} and its worker, and both again")
        keep(cluster, server, seed)
        for process in (server["worker"], server["process"]):
            process.kill()
            process.wait()

        def begin():
            cluster.servers[i] = cluster.server(server["name"], server["policy"])
            cluster.start_worker(cluster.servers[i])

        cluster.replace("the worker", begin)
        asked, known, cached = cluster.question("its document", document(seed)[0], "Who walked?")
        check(asked is cluster.servers[i], "the same server answers")
        check(known.disk >= 15 and known[:2] == (0, 0), "the router knew its blocks, on disk")
        check(cached and cached > 1000, f"{cached} tokens of it were not read again")


def a_worker_that_dies_alone_is_replaced(cluster):
    print("kill -9 of a worker, in the middle of an answer; its server lives")
    answer = LongAnswer(cluster, document(2)[0], n_tokens=1500)
    server = next(server for server in cluster.servers if cluster.running(server))
    n_before = len(cluster.known())
    server["worker"].kill()
    server["worker"].wait()
    rest = answer.rest()
    if rest.reason == "length":
        check(rest.n_tokens == 1500, f"all {rest.n_tokens} tokens came")
        check(len(cluster.known()) > n_before, "the rest from another worker")
    else:
        check(rest.error is not None, f"the client hears of it: {rest.error}")
    wait_for("its place at the server", SETTLES_S, lambda: cluster.running() == 0)
    text, question = document(10)
    asked, _, _ = cluster.question("the next request", text, question)
    check(asked is not server, "it succeeds on the other")
    cluster.replace("a new worker", lambda: cluster.start_worker(server))
    text, _ = document(2)
    asked, known, _ = cluster.question("document 2", text, "Who walked?")
    check(sum(known) >= 15, "what its server kept is known again")


class Rest(NamedTuple):
    """How an answer ended."""

    reason: str | None
    n_tokens: int | None
    error: str | None


class LongAnswer:
    """An answer of thousands of tokens whose first one has come."""

    def __init__(self, cluster, text, n_tokens=2800):
        self.connection = http.client.HTTPConnection(cluster.url.removeprefix("http://"))
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        body.update(max_tokens=n_tokens, temperature=0, stream=True, ignore_eos=True)
        body["stream_options"] = {"include_usage": True}
        headers = {"content-type": "application/json"}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.answer = self.connection.getresponse()
        check(self.answer.status == 200, "a long answer begins")
        self.answer.readline()

    def rest(self):
        """What comes until its end: why it ended, how many tokens there were, what went wrong."""
        rest, error = b"", None
        try:
            while part := self.answer.read1(65536):
                rest += part
        except (OSError, http.client.HTTPException) as broken:
            error = f"{type(broken).__name__}: {broken}"
        reason = n_tokens = None
        for line in rest.decode(errors="replace").splitlines():
            if line.startswith("event: error") or '"error":' in line:
                error = error or line
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                for choice in event.get("choices", []):
                    reason = choice.get("finish_reason") or reason
                n_tokens = (event.get("usage") or {}).get("completion_tokens", n_tokens)
        self.leave()
        return Rest(reason, n_tokens, error)

    def leave(self):
        self.answer.close()
        self.connection.close()


def slots_are_given_back(cluster):
    print("a client that leaves gives its place back")
    n_answered = [cluster.metric(s, "llamacpp:tokens_predicted_total ") for s in cluster.servers]
    answer = LongAnswer(cluster, "The baker")
    check(cluster.running() == 1, "one request runs")
    answer.leave()
    began = time.monotonic()
    n_before = [cluster.metric(s, "llamacpp:tokens_predicted_total ") for s in cluster.servers]
    wait_for("its place", 2, lambda: cluster.running() == 0)
    check(True, f"its place is free after {(time.monotonic() - began) * 1e3:.0f} ms")
    check(sum(n_before) - sum(n_answered) < 2800, "long before its last token")


def too_long_is_refused(cluster):
    print("a prompt that no worker can hold is refused with numbers")
    text = " ".join(document(seed)[0] for seed in range(10, 16))
    status, answer = ask(f"{cluster.url}/v1/completions", {"model": MODEL, "prompt": text})
    check(status == 400 and str(N_CTX) in answer, f"{status}: {answer}")
    check(re.search(r"has \d+ tokens", answer), "it says how many tokens there are")


def a_killed_worker_is_not_missed(cluster):
    seed = 11
    text, question = document(seed)
    server, _, _ = cluster.question(f"document {seed}", text, question)
    print(f"kill -9 of worker {server['name']} and its server")
    for process in (server["worker"], server["process"]):
        process.send_signal(signal.SIGKILL)
        process.wait()
    cluster.servers.remove(server)
    other, _, _ = cluster.question("the next request", text, question)
    check(other is not server, "it succeeds on the other")


def main(program, model, worker=None):
    worker = [worker] if worker else [sys.executable, str(HERE / "longview_worker.py")]
    with tempfile.TemporaryDirectory(prefix="longview-cluster-") as folder:
        cluster = Cluster(program, Path(model).resolve(), worker, Path(folder))
        began = time.monotonic()
        try:
            cluster.start_all()
            wait_for("the model in the frontend's list", STARTS_S, cluster.is_listed)
            # Both workers, not the first alone.
            wait_for("both workers", STARTS_S, lambda: len(cluster.instances()) == 2)
            took_s = time.monotonic() - began
            check(took_s <= STARTS_S, f"all of it stands after {took_s:.1f} s of {STARTS_S}")
            streams_are_equal(cluster)
            questions_go_where_documents_are(cluster)
            what_is_deleted_is_forgotten(cluster)
            slots_are_given_back(cluster)
            too_long_is_refused(cluster)
            a_library_outlives_its_server(cluster)
            a_worker_that_dies_alone_is_replaced(cluster)
            a_killed_worker_is_not_missed(cluster)
        except Failed as failed:
            print(f"FAILED: {failed}", file=sys.stderr)
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
            return 1
        finally:
            cluster.end()
        print(f"all is as it should be, after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A Dynamo worker for a Longview server on the same machine.

Dynamo's frontend turns requests into tokens and chooses a worker by what it holds. This passes the
tokens to `/v1/completions` of one server, and the tokens of the answer back. What the server keeps
goes to the router by the server's own KV events, which Dynamo subscribes to.

    python longview_worker.py --server http://127.0.0.1:8080 --kv-events tcp://127.0.0.1:5557 \
        --model-path FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from typing import Any, Optional

import aiohttp
from dynamo.common.backend.engine import EngineConfig, LLMEngine, LlmRegistration
from dynamo.common.backend.publisher import KvEventSource, ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import CannotConnect, EngineShutdown, InvalidArgument

from ready import wait_until_gone, wait_until_ready

logger = logging.getLogger("longview")

# Tokens of a block in the server's events. A router drops events of blocks of another size.
BLOCK_TOKENS = 64
# How long a server may load its model: an hour is what a large one takes from a slow disk.
READY_S = 3600

# What the status of an answer would have been that failed on its way, by the kind of its error.
STATUSES = {
    "invalid_request_error": 400,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "unavailable_error": 503,
}

# Fields of a request that mean the same to the server.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class LongviewEngine(LLMEngine):
    """One server, which this process neither starts nor ends."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.n_ctx = 0
        self.session: Optional[aiohttp.ClientSession] = None
        self.watch: Optional[asyncio.Task] = None
        # Answers that are being generated, by the request's id.
        self.running: dict[str, aiohttp.ClientResponse] = {}

    @classmethod
    async def from_args(
        cls, argv: Optional[list[str]] = None
    ) -> tuple[LongviewEngine, WorkerConfig]:
        args = arguments().parse_args(argv)
        return cls(args), WorkerConfig(
            namespace=args.namespace,
            component=args.component,
            endpoint=args.endpoint,
            model_name=args.model_path,
            served_model_name=args.served_model_name,
            endpoint_types="chat,completions",
            discovery_backend=args.discovery_backend,
            request_plane=args.request_plane,
            event_plane=args.event_plane,
        )

    async def start(self, worker_id: int) -> EngineConfig:
        headers = {}
        if key := os.environ.get("LONGVIEW_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        # An answer takes as long as it takes; a server that is gone is found by its connection.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        # Each request waits for its place at the server, not here.
        connector = aiohttp.TCPConnector(limit=0)
        self.session = aiohttp.ClientSession(
            self.args.server, headers=headers, timeout=timeout, connector=connector
        )
        await wait_until_ready(self.session, self.args.server, self.args.ready_timeout)
        async with self.session.get("/props") as response:
            if response.status != 200:
                raise RuntimeError(await refusal(response))
            props = await response.json()
        self.n_ctx = props["n_ctx"]
        n_slots = props["total_slots"]
        self.watch = asyncio.create_task(self._watch())
        return EngineConfig(
            model=self.args.model_path,
            served_model_name=self.args.served_model_name,
            llm=LlmRegistration(
                context_length=self.n_ctx,
                kv_cache_block_size=BLOCK_TOKENS,
                total_kv_blocks=n_slots * self.n_ctx // BLOCK_TOKENS,
                max_num_seqs=n_slots,
                max_num_batched_tokens=self.n_ctx,
            ),
        )

    async def _watch(self) -> None:
        """Ends this worker when its server is gone, so that no request comes here any more."""
        why = await wait_until_gone(self.session, self.args.ready_timeout)
        logger.error("%s %s: this worker ends", self.args.server, why)
        os.kill(os.getpid(), signal.SIGTERM)

    async def kv_event_sources(self) -> list[KvEventSource]:
        if not self.args.kv_events:
            return []
        return [ZmqSource(endpoint=self.args.kv_events, topic=self.args.kv_events_topic)]

    async def generate(
        self, request: dict[str, Any], context: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        body = self._body(request)
        try:
            async with self.session.post("/v1/completions", json=body) as response:
                if response.status != 200:
                    raise error_of(response.status, await refusal(response))
                self.running[context.id()] = response
                async for chunk in chunks(response):
                    if context.is_stopped():
                        break
                    yield chunk
                else:
                    return
        except aiohttp.ClientError as error:
            if not context.is_stopped():
                raise EngineShutdown(f"the server ended in the middle: {error}") from error
        finally:
            self.running.pop(context.id(), None)
        yield {"token_ids": [], "index": 0, "finish_reason": "cancelled"}

    async def abort(self, context: Any) -> None:
        # A server gives the place of a request back when its client is gone.
        if response := self.running.pop(context.id(), None):
            response.close()

    async def cleanup(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
        if self.session is not None:
            await self.session.close()
        self.watch = self.session = None

    def _body(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the server is asked. What it cannot do is refused, and never left out in silence."""
        sampling = request.get("sampling_options") or {}
        stops = request.get("stop_conditions") or {}
        output = request.get("output_options") or {}
        refuse("n", (sampling.get("n") or 1) > 1)
        refuse("best_of", (sampling.get("best_of") or 1) > 1)
        refuse("use_beam_search", sampling.get("use_beam_search"))
        refuse("guided_decoding", sampling.get("guided_decoding"))
        refuse("min_tokens", stops.get("min_tokens"))
        refuse("stop_token_ids", stops.get("stop_token_ids"))
        refuse("logprobs", output.get("logprobs") is not None)
        refuse("prompt_logprobs", output.get("prompt_logprobs") is not None)
        prompt = normalize_request_token_ids(request)["token_ids"]
        max_tokens = stops.get("max_tokens")
        if max_tokens is None:
            # A prompt that is too long is the server's to refuse: it knows the numbers.
            max_tokens = max(self.n_ctx - len(prompt), 1)
        body: dict[str, Any] = {
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": max_tokens,
            "ignore_eos": bool(stops.get("ignore_eos")),
        }
        for name in SAMPLING:
            if sampling.get(name) is not None:
                body[name] = sampling[name]
        # Other engines write -1 for all.
        if body.get("top_k") == -1:
            body["top_k"] = 0
        if stops.get("stop"):
            body["stop"] = stops["stop"]
        return body


def refuse(name: str, is_asked: Any) -> None:
    if is_asked:
        raise InvalidArgument(f"{name}: is not supported by this worker; leave it out")


async def refusal(response: aiohttp.ClientResponse) -> str:
    """What the server says of a request that it refuses, with its numbers."""
    text = await response.text()
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server answers {response.status}: {text[:200]}"


def error_of(status: int, message: str) -> Exception:
    """Who is to blame: a request that is wrong is so everywhere, others may try elsewhere."""
    if status in (429, 503):
        return CannotConnect(message)
    if 400 <= status < 500:
        return InvalidArgument(message)
    return RuntimeError(message)


async def chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any], None]:
    """The parts of an answer in Dynamo's form, from the events of the server's stream."""
    reason = None
    async for line in response.content:
        data = line.decode().strip()
        if not data.startswith("data: ") or data == "data: [DONE]":
            continue
        event = json.loads(data[len("data: ") :])
        if "error" in event:
            status = STATUSES.get(event["error"].get("type"), 500)
            raise error_of(status, event["error"]["message"])
        for choice in event.get("choices", []):
            reason = choice.get("finish_reason") or reason
            if choice.get("token_ids"):
                yield {"token_ids": choice["token_ids"], "index": 0}
        if usage := event.get("usage"):
            yield {
                "token_ids": [],
                "index": 0,
                "finish_reason": reason or "error",
                "completion_usage": usage,
            }
            return
    raise EngineShutdown("the server ended the answer before its end")


def seconds(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not a number of seconds above 0")
    return value


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--server", default="http://127.0.0.1:8080", help="address of the Longview server")
    add(
        "--ready-timeout",
        type=seconds,
        default=READY_S,
        help=f"seconds to wait for a server that is not ready [default: {READY_S}]",
    )
    add("--kv-events", help="its --kv-events; without it the router does not know what it holds")
    add("--kv-events-topic", default="", help="its --kv-events-topic")
    add("--model-path", required=True, help="folder with tokenizer and config of the same model")
    add("--served-model-name", help="what clients call the model [default: the folder]")
    add("--namespace", default="dynamo")
    add("--component", default="backend")
    add("--endpoint", default="generate")
    add("--discovery-backend", default="file", help="file, etcd or kubernetes [default: file]")
    add("--request-plane", default="tcp")
    add("--event-plane", default="zmq")
    return parser


if __name__ == "__main__":
    run(LongviewEngine)

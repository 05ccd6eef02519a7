"""Tests of waiting for a server, against one that only says whether it is ready.

They need aiohttp alone: `python -m unittest test_ready`.
"""

import socket
import unittest

import aiohttp
from aiohttp import web

import ready
from ready import Health, NotReady, health, wait_until_gone, wait_until_ready

LOOKS_S = 0.01


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """Answers `/health` with what stands in `answers`, the last one for ever."""

    def __init__(self, answers):
        self.answers, self.n_asked = list(answers), 0
        self.port = free_port()
        self.runner = None

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self):
        app = web.Application()
        app.router.add_get("/health", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", self.port).start()

    async def answer(self, _request):
        status = self.answers[min(self.n_asked, len(self.answers) - 1)]
        self.n_asked += 1
        return web.Response(status=status)

    async def end(self):
        if self.runner is not None:
            await self.runner.cleanup()


class Waiting(unittest.IsolatedAsyncioTestCase):
    async def server(self, answers, starts=True):
        server = Server(answers)
        if starts:
            await server.start()
        self.addAsyncCleanup(server.end)
        session = aiohttp.ClientSession(server.address)
        self.addAsyncCleanup(session.close)
        return server, session

    async def test_a_server_is_waited_for_while_it_loads(self):
        # Many more than those after which a server that ran is given up.
        n = 20 * ready.MOST_MISSED
        self.addCleanup(setattr, ready, "SAYS_S", ready.SAYS_S)
        ready.SAYS_S = 3600
        server, session = await self.server([503] * n + [200])
        with self.assertLogs("longview", "INFO") as logs:
            await wait_until_ready(session, server.address, 60, LOOKS_S)
        self.assertEqual(server.n_asked, n + 1)
        self.assertIn(f"{server.address} answers, and is not ready", logs.output[0])
        self.assertIn("of 60 s", logs.output[0])
        self.assertIn("is ready after", logs.output[-1])
        # It is said now and then, not each time.
        self.assertEqual(len(logs.output), 2)

    async def test_a_port_on_which_nobody_listens_yet_is_waited_for(self):
        server, session = await self.server([200], starts=False)
        n_looks = 0
        look = ready.health

        async def look_and_start(session):
            nonlocal n_looks
            n_looks += 1
            if n_looks == 10:
                await server.start()
            return await look(session)

        ready.health = look_and_start
        self.addCleanup(setattr, ready, "health", look)
        await wait_until_ready(session, server.address, 60, LOOKS_S)
        self.assertEqual((n_looks, server.n_asked), (10, 1))

    async def test_the_error_names_the_address_and_what_to_do(self):
        server, session = await self.server([503])
        with self.assertRaises(NotReady) as raised:
            await wait_until_ready(session, server.address, 0.2, LOOKS_S)
        for part in [server.address, "is not ready", "--ready-timeout", "0.2 s"]:
            self.assertIn(part, str(raised.exception))
        silent, session = await self.server([200], starts=False)
        with self.assertRaises(NotReady) as raised:
            await wait_until_ready(session, silent.address, 0.1, LOOKS_S)
        self.assertIn(f"{silent.address} does not answer", str(raised.exception))

    async def test_a_server_that_opens_a_device_again_is_not_gone(self):
        n = 5 * ready.MOST_MISSED
        server, session = await self.server([200] + [503] * n + [200, 200])
        look = ready.health

        async def look_and_end(session):
            if server.n_asked > n + 2 and server.runner is not None:
                await server.end()
                server.runner = None
            return await look(session)

        ready.health = look_and_end
        self.addCleanup(setattr, ready, "health", look)
        self.assertEqual(await wait_until_gone(session, 60, LOOKS_S), "does not answer any more")
        self.assertGreater(server.n_asked, n + 2)
        self.assertIs(await health(session), Health.SILENT)

    async def test_a_server_that_is_never_ready_again_is_given_up(self):
        _, session = await self.server([200, 503])
        self.assertIn("is not ready since", await wait_until_gone(session, 0.2, LOOKS_S))


if __name__ == "__main__":
    unittest.main()

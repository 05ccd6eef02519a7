"""Tests of what the worker asks its server, which need Dynamo: `python -m unittest test_worker`."""

import unittest

from longview_worker import LongviewEngine, arguments


def body(**stops):
    """What is asked for a prompt of three tokens."""
    engine = LongviewEngine(arguments().parse_args(["--model-path", "needle"]))
    engine.n_ctx = 4096
    return engine._body({"token_ids": [1, 2, 3], "stop_conditions": stops})


class Asking(unittest.TestCase):
    def test_as_many_tokens_as_are_asked_for(self):
        self.assertEqual(body(max_tokens=16)["max_tokens"], 16)
        self.assertEqual(body(max_tokens=0)["max_tokens"], 0)

    def test_as_many_tokens_as_fit_where_nothing_is_said(self):
        self.assertEqual(body()["max_tokens"], 4093)
        self.assertEqual(body(max_tokens=None)["max_tokens"], 4093)


if __name__ == "__main__":
    unittest.main()

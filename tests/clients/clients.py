"""The server, asked by clients that other people wrote: openai, anthropic and mistralai.

`cargo xtask clients` starts the server with the embedded model and runs this with its address:
`python clients.py http://127.0.0.1:PORT KEY http://127.0.0.1:OTHER server.md`. Each class is one
client. The model of the other server has a template that knows thoughts. The examples of the page
`server.md` are run as they are there, against the first server.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

import anthropic
import openai
from mistralai.client import Mistral

ADDRESS, KEY, THINKER, PAGE = sys.argv[1:5]
FACT = "The pass key is 48213. Remember it. 48213 is the pass key."
TEXT = "It was a plain day. The baker walked to the meadow and rested. " * 12 + FACT
QUESTION = " What is the pass key? The pass key is"
TURNS = [{"role": "user", "content": TEXT + QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}

# Thoughts and an answer, which the model is held to.
THOUGHTS = "It is 4 < 5."
HELD = {"grammar": 'root ::= "<think>\\nIt is 4 < 5.\\n</think>\\n\\n" ("Yes." | "No.")'}
SHORT = [{"role": "user", "content": "Is 4 less than 5?"}]


def sound(arguments):
    return arguments["city"] in ("Bern", "Rome") and arguments["days"] <= 9


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, max_retries=0)

    def test_models_are_listed(self):
        self.assertIn("needle", [model.id for model in self.client.models.list()])

    def test_a_completion_and_its_stream_say_the_same(self):
        asked = dict(model="needle", prompt=TEXT + QUESTION, max_tokens=8, stop=".")
        whole = self.client.completions.create(**asked)
        self.assertIn("48213", whole.choices[0].text)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        parts = self.client.completions.create(**asked, stream=True)
        # Many clients look into the first choice of each part.
        said = "".join(part.choices[0].text for part in parts)
        self.assertEqual(said, whole.choices[0].text)

    def test_a_chat_streams_and_counts_what_was_known(self):
        asked = dict(model="needle", messages=TURNS, max_tokens=40)
        whole = self.client.chat.completions.create(**asked)
        self.assertIn("48213", whole.choices[0].message.content)
        parts = list(
            self.client.chat.completions.create(
                **asked, stream=True, stream_options={"include_usage": True}
            )
        )
        said = "".join(part.choices[0].delta.content or "" for part in parts[:-1])
        self.assertEqual(said, whole.choices[0].message.content)
        self.assertEqual(parts[-1].choices, [])
        plain = self.client.chat.completions.create(**asked, stream=True)
        said = "".join(part.choices[0].delta.content or "" for part in plain)
        self.assertEqual(said, whole.choices[0].message.content)
        self.assertEqual({part.id for part in parts}, {parts[0].id})
        usage = parts[-1].usage
        self.assertEqual(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens - 1)

    def test_probabilities_are_those_of_the_text(self):
        answer = self.client.chat.completions.create(
            model="needle", messages=TURNS, max_tokens=5, logprobs=True, top_logprobs=10
        )
        tokens = answer.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in tokens), answer.choices[0].message.content)
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 10)
            self.assertEqual(bytes(token.bytes).decode(), token.token)

    def test_the_form_of_an_answer_is_kept(self):
        form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA}}
        answer = self.client.chat.completions.create(
            model="needle", messages=TURNS, response_format=form, temperature=2, seed=7
        )
        self.assertTrue(sound(json.loads(answer.choices[0].message.content)))

    def test_a_tool_is_called(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
        asked = dict(model="needle", messages=TURNS, tools=tools, tool_choice="required")
        message = self.client.chat.completions.create(**asked).choices[0].message
        call = message.tool_calls[0]
        self.assertEqual(call.function.name, "weather")
        self.assertTrue(sound(json.loads(call.function.arguments)))
        result = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
        after = self.client.chat.completions.create(
            model="needle", messages=[*TURNS, message, result], tools=tools, max_tokens=4
        )
        self.assertEqual(after.choices[0].message.role, "assistant")
        with self.client.chat.completions.stream(**asked) as stream:
            done = [e for e in stream if e.type == "tool_calls.function.arguments.done"]
        self.assertTrue(sound(json.loads(done[0].arguments)))

    def test_responses_and_their_stream_say_the_same(self):
        asked = dict(model="needle", input=TEXT + QUESTION, max_output_tokens=40)
        whole = self.client.responses.create(**asked)
        self.assertIn("48213", whole.output_text)
        self.assertEqual(whole.status, "completed")
        with self.client.responses.stream(**asked) as stream:
            said = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
            last = stream.get_final_response()
        self.assertEqual((said, last.output_text), (whole.output_text, whole.output_text))
        usage = last.usage
        self.assertEqual(usage.input_tokens_details.cached_tokens, usage.input_tokens - 1)

    def test_responses_call_tools(self):
        tools = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]
        asked = dict(model="needle", input="How is it?", tools=tools, tool_choice="required")
        call = self.client.responses.create(**asked).output[0]
        self.assertTrue(sound(json.loads(call.arguments)))
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        turns = [{"role": "user", "content": "How is it?"}, call.model_dump(), output]
        after = self.client.responses.create(model="needle", input=turns, max_output_tokens=4)
        self.assertEqual(after.output[0].type, "message")

    def test_thoughts_are_an_item_of_a_response(self):
        client = openai.OpenAI(base_url=f"{THINKER}/v1", api_key=KEY, max_retries=0)
        asked = dict(model="", input=SHORT, max_output_tokens=60, extra_body=HELD)
        whole = client.responses.create(**asked)
        self.assertEqual([item.type for item in whole.output], ["reasoning", "message"])
        self.assertEqual(whole.output[0].content[0].text, THOUGHTS)
        self.assertIn(whole.output_text, ("Yes.", "No."))
        self.assertGreater(whole.usage.output_tokens_details.reasoning_tokens, 3)
        with client.responses.stream(**asked) as stream:
            events = list(stream)
            last = stream.get_final_response()
        thought = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
        self.assertGreater(len(thought), 1)
        self.assertEqual("".join(thought), THOUGHTS)
        said = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual((said, last.output_text), (whole.output_text,) * 2)
        self.assertEqual(last.output[0].content[0].text, THOUGHTS)
        turns = [*SHORT, *(item.model_dump() for item in whole.output), *SHORT]
        after = client.responses.create(model="", input=turns, max_output_tokens=4)
        self.assertEqual(after.output[0].type, "message")

    def test_errors_are_those_of_their_kind(self):
        chat = self.client.chat.completions.create
        with self.assertRaises(openai.NotFoundError) as missing:
            chat(model="gpt-5", messages=TURNS)
        self.assertIn("needle", str(missing.exception))
        with self.assertRaises(openai.BadRequestError) as wrong:
            chat(model="needle", messages=TURNS, temperature=-1)
        self.assertEqual(wrong.exception.param, "temperature")
        long = [{"role": "user", "content": "a quiet day " * 4000}]
        with self.assertRaises(openai.BadRequestError) as far:
            chat(model="needle", messages=long, stream=True)
        self.assertEqual(far.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key="wrong", max_retries=0).models.list()


class Contexts(unittest.TestCase):
    """What the server has beyond OpenAI's fields, by OpenAI's client."""

    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, max_retries=0)

    def context(self, text):
        return self.client.post("/contexts", body={"text": text}, cast_to=object)["id"]

    def ask(self, context, **more):
        return self.client.chat.completions.create(
            model="needle",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=40,
            extra_body={"context_id": context, **more},
        )

    def test_a_context_is_read_once_and_asked_by_its_id(self):
        context = self.context(TEXT)
        answer = self.ask(context)
        self.assertIn("48213", answer.choices[0].message.content)
        usage = answer.usage
        self.assertLess(usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens, 60)
        deleted = self.client.delete(f"/contexts/{context}", cast_to=object)
        self.assertTrue(deleted["deleted"])
        with self.assertRaises(openai.NotFoundError) as missing:
            self.ask(context)
        self.assertEqual(missing.exception.param, "context_id")

    def test_a_request_says_what_its_tokens_attend(self):
        context = self.context(TEXT * 4)
        for policy, more in {
            "full": {},
            "longview": {"budget": 128, "residual": "drop"},
            "clusterkv": {"budget": 128, "residual": "means"},
            "quest": {"budget": 192},
        }.items():
            with self.subTest(policy):
                said = self.ask(context, policy=policy, **more).model_extra["longview"]
                self.assertEqual(said["policy"], policy)
                attended, there = said["attended_tokens"], said["of_tokens"]
                if policy == "full":
                    self.assertAlmostEqual(attended / there, 1, delta=0.05)
                else:
                    self.assertLess(attended, there / 2)
        with self.assertRaises(openai.BadRequestError) as wrong:
            self.ask(context, policy="fastest")
        self.assertEqual(wrong.exception.param, "policy")

    def test_the_examples_of_the_page_run(self):
        page = pathlib.Path(PAGE).read_text()
        examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        self.assertEqual(len(examples), 2)
        printed = []
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            # It begins like no text before it, so that the last example has to read it.
            pathlib.Path("book.txt").write_text("The lighthouse fell. " + TEXT * 3)
            for example in reversed(examples):
                example = example.replace("http://127.0.0.1:8080", ADDRESS)
                example = example.replace('api_key="none"', f'api_key="{KEY}"')
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(example, PAGE, "exec"), {})
                printed.append(out.getvalue())
        read = sorted(json.loads(printed[0]))
        self.assertEqual(len(read), 10)
        self.assertTrue(read[-1] > 300 and read[-2] < 60, read)
        all_tokens, known = map(int, printed[1].split("\n")[-2].split())
        self.assertLess(all_tokens - known, 60)


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=ADDRESS, api_key=KEY, max_retries=0)

    def test_a_message_and_its_stream_say_the_same(self):
        asked = dict(model="needle", max_tokens=40, messages=TURNS, system="It was.")
        whole = self.client.messages.create(**asked)
        self.assertIn("48213", whole.content[0].text)
        self.assertEqual(whole.stop_reason, "end_turn")
        with self.client.messages.stream(**asked) as stream:
            said = "".join(stream.text_stream)
            last = stream.get_final_message()
        self.assertEqual((said, last.content[0].text), (whole.content[0].text,) * 2)
        self.assertEqual((last.stop_reason, last.usage.input_tokens), ("end_turn", 1))
        count = self.client.messages.count_tokens(
            model="needle", messages=TURNS, system="It was."
        ).input_tokens
        self.assertEqual(last.usage.cache_read_input_tokens, count - 1)

    def test_texts_stop_it(self):
        answer = self.client.messages.create(
            model="needle", max_tokens=40, messages=TURNS, stop_sequences=["."]
        )
        self.assertEqual((answer.stop_reason, answer.stop_sequence), ("stop_sequence", "."))

    def test_a_tool_is_used(self):
        tools = [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}]
        asked = dict(model="needle", max_tokens=100, messages=TURNS, tools=tools)
        asked["tool_choice"] = {"type": "tool", "name": "weather"}
        answer = self.client.messages.create(**asked)
        use = answer.content[0]
        self.assertEqual((answer.stop_reason, use.type), ("tool_use", "tool_use"))
        self.assertTrue(sound(use.input))
        with self.client.messages.stream(**asked) as stream:
            self.assertTrue(sound(stream.get_final_message().content[0].input))
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "sun"}
        turns = [
            *TURNS,
            {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [result]},
        ]
        after = self.client.messages.create(
            model="needle", max_tokens=4, messages=turns, tools=tools
        )
        self.assertEqual(after.role, "assistant")

    def test_thoughts_are_a_block_of_a_message(self):
        client = anthropic.Anthropic(base_url=THINKER, api_key=KEY, max_retries=0)
        asked = dict(model="", max_tokens=60, messages=SHORT, extra_body=HELD)
        whole = client.messages.create(**asked, thinking={"type": "adaptive"})
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        self.assertEqual(whole.content[0].thinking, THOUGHTS)
        with client.messages.stream(**asked) as stream:
            events = list(stream)
            last = stream.get_final_message()
        thought = [e.thinking for e in events if e.type == "thinking"]
        self.assertGreater(len(thought), 1)
        self.assertEqual("".join(thought), THOUGHTS)
        self.assertEqual(last.content[0].thinking, THOUGHTS)
        self.assertEqual(last.content[1].text, whole.content[1].text)
        turns = [*SHORT, {"role": "assistant", "content": last.content}, *SHORT]
        after = client.messages.create(model="", max_tokens=4, messages=turns)
        self.assertEqual(after.role, "assistant")

    def test_errors_are_those_of_their_kind(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="claude", max_tokens=1, messages=TURNS)
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(
                model="needle", max_tokens=1, messages=TURNS, extra_body={"top_p": 2}
            )
        other = anthropic.Anthropic(base_url=ADDRESS, api_key="wrong", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError):
            other.messages.create(model="needle", max_tokens=1, messages=TURNS)


class MistralAI(unittest.TestCase):
    def setUp(self):
        self.client = Mistral(api_key=KEY, server_url=ADDRESS)

    def test_a_chat_and_its_stream_say_the_same(self):
        asked = dict(model="needle", messages=TURNS, max_tokens=40, temperature=0)
        whole = self.client.chat.complete(**asked)
        self.assertIn("48213", whole.choices[0].message.content)
        parts = [event.data for event in self.client.chat.stream(**asked)]
        said = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        self.assertEqual(said, whole.choices[0].message.content)

    def test_a_tool_is_called(self):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
        answer = self.client.chat.complete(
            model="needle", messages=TURNS, tools=tools, tool_choice="required"
        )
        call = answer.choices[0].message.tool_calls[0]
        self.assertTrue(sound(json.loads(call.function.arguments)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)

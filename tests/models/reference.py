"""Makes the references beside this file: what transformers computes of the published checkpoints.

    cargo xtask references

Weights are dequantised to float32 by transformers, and everything is computed in float32. A
reference holds token ids of a prompt, 64 tokens chosen greedily with the two best logits at each
step, so that a near tie can be told from a mistake, and the negative log-likelihood of windows of a
book. The book and the checkpoints are those that `cargo xtask models` fetches.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
N_GREEDY = 64
# Where the document and the windows begin in the book, in tokens: behind the title.
START, N_DOCUMENT = 100, 1500
WINDOW = 128
CHAT = [{"role": "user", "content": "Why is the sky blue? Answer in three sentences."}]
QUESTION = "Question: Why is the sky blue?\nAnswer:"

# Gemma is a base model, which continues a text; its vocabulary makes windows expensive.
MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", 64),
    "gemma3": ("gemma-3-270m-q4_k_m.gguf", 32),
}


def greedy(model, prompt):
    """Tokens with the two best logits at each step."""
    ids, past, chosen, best = torch.tensor([prompt]), None, [], []
    for _ in range(N_GREEDY):
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        top = out.logits[0, -1].topk(2)
        chosen.append(top.indices[0].item())
        best.append([round(x, 5) for x in top.values.tolist()])
        ids = top.indices[:1][None]
    return chosen, best


def window_nll(model, ids):
    """Of every token but the first, given those before it."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    chosen = torch.tensor(ids[1:])[:, None]
    return -torch.log_softmax(logits, -1).gather(1, chosen).sum().item()


def reference(name, folder):
    file, n_windows = MODELS[name]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    model.eval()
    if tokenizer.chat_template is not None:
        text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        short = tokenizer(text, add_special_tokens=False).input_ids
    else:
        text, short = QUESTION, tokenizer(QUESTION).input_ids
    book = (folder / "alice29.txt").read_text(encoding="utf-8")
    book = tokenizer(book, add_special_tokens=False).input_ids
    first = short[:1] if short[0] == tokenizer.bos_token_id and tokenizer.add_bos_token else []
    document = first + book[START:START + N_DOCUMENT]
    prompts = []
    for title, ids in [("short", short), ("document", document)]:
        chosen, best = greedy(model, ids)
        print(f"{name} {title}: {tokenizer.decode(chosen)!r}", file=sys.stderr)
        prompts.append({"name": title, "n_tokens": len(ids), "greedy": chosen, "best": best})
    step = WINDOW - len(first)
    starts = range(START, START + n_windows * step, step)
    windows = [round(window_nll(model, first + book[at:at + step]), 4) for at in starts]
    end = max(START + N_DOCUMENT, starts[-1] + step)
    digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    return {
        "file": file, "sha256": digest, "made_with": versions,
        "text": text, "short": short, "first": first, "book": book[:end],
        "start": START, "document": N_DOCUMENT, "window": WINDOW,
        "prompts": prompts, "window_nll": windows,
    }


def main():
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        with torch.no_grad():
            found = reference(name, folder)
        text = json.dumps(found, ensure_ascii=False)
        (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

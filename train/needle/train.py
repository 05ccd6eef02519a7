"""Trains a model by a recipe. Run it again to go on from the last checkpoint.

python -m needle.train --recipe recipes/needle.toml --books FOLDER --out RUN
"""

import argparse
import os
import random
import time
import tomllib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from . import tasks
from .data import CHOICE, Data, Stage
from .filler import Filler, read_books
from .model import Model, Shape, export
from .tokenizer import CHAT_TEMPLATE, train as train_tokenizer


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--recipe", required=True, help="a TOML file: shape, stages, seed")
    p.add_argument("--books", help="a folder of .txt files; generated text only without it")
    p.add_argument("--out", required=True, help="folder for checkpoints and the exported model")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args()


class Run:
    """Model, optimizers and every random state, so that a resumed run is the same run."""

    def __init__(self, recipe, books, out, device):
        self.recipe, self.out, self.device = recipe, Path(out), device
        self.out.mkdir(parents=True, exist_ok=True)
        seed = recipe["seed"]
        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        shape = Shape(**recipe["shape"])
        texts = read_books(books, recipe.get("hold_out", ()))
        self.tokenizer = self.load_tokenizer(texts, shape.vocab)
        self.data = Data(
            self.tokenizer, Filler(self.tokenizer, texts), tasks.Words(texts, EXTRA), self.rng
        )
        self.model = Model(shape).to(device)
        self.stages = [Stage(**s) for s in recipe["stage"]]
        self.optimizers = optimizers(self.model, recipe)
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.checkpoint = self.out / "checkpoint.pt"
        if self.checkpoint.exists():
            self.restore()

    def load_tokenizer(self, texts, vocab):
        path = self.out / "tokenizer.json"
        if not path.exists():
            train_tokenizer(texts, vocab).save(str(path))
        return Tokenizer.from_file(str(path))

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "rng": self.rng.getstate(),
            "torch": torch.get_rng_state(),
        }
        half = self.checkpoint.with_suffix(".new")
        torch.save(state, half)
        os.replace(half, self.checkpoint)

    def restore(self):
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=False)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.rng.setstate(state["rng"])
        torch.set_rng_state(state["torch"].cpu())
        print(f"resumed at step {self.step}", flush=True)

    def stage(self):
        """The stage of this step, and how far through the whole run it is."""
        at = self.step
        for stage in self.stages:
            if at < stage.steps:
                return stage, at / stage.steps
            at -= stage.steps
        return None, 1.0

    def train(self):
        begun, report = time.time(), Report()
        while True:
            stage, along = self.stage()
            if stage is None:
                break
            report.add(self.train_step(stage, along))
            self.step += 1
            self.tokens += stage.batch * stage.tokens
            now = time.time()
            self.seconds, begun = self.seconds + now - begun, now
            if self.step % 50 == 0:
                print(report.line(self, stage), flush=True)
                report = Report()
            if self.step % self.recipe.get("save_every", 250) == 0:
                self.save()
                self.export()
        self.save()
        self.export()

    def train_step(self, stage, along):
        self.set_rates(stage, along)
        batch = self.data.batch(stage)
        pieces = -(-stage.batch * stage.tokens // self.recipe.get("tokens_at_once", 1 << 20))
        parts = [np.array_split(a, pieces) for a in batch]
        total, right, asked = 0.0, 0.0, 0.0
        scale = float(batch[2].sum())
        for part in zip(*parts):
            ids, targets, weights, positions, filler, query, log_times = (
                torch.as_tensor(a).to(self.device) for a in part
            )
            mask = dilute(positions, filler, query, log_times)
            kind = "cpu" if self.device == "cpu" else "cuda"
            counted = weights.reshape(-1) > 0
            with torch.autocast(kind, dtype=torch.bfloat16):
                hidden = self.model.hidden(ids, positions, mask)
                logits = self.model.lm_head(hidden.reshape(-1, hidden.shape[-1])[counted])
            y, w = targets.reshape(-1)[counted], weights.reshape(-1)[counted]
            loss = F.cross_entropy(logits.float(), y, reduction="none")
            loss = (loss * w).sum() / scale
            loss.backward()
            answers = w == CHOICE
            total += loss.item()
            right += (logits.argmax(-1) == y)[answers].sum().item()
            asked += answers.sum().item()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total, right, asked

    def set_rates(self, stage, along):
        warm = min(1.0, (self.step + 1) / 100)
        last = self.stages[-1] is stage
        rate = stage.rate * warm * ((1 - 0.9 * along) if last else 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["times"]

    def export(self):
        export(
            self.model,
            self.tokenizer,
            self.out / "model",
            self.recipe["max_position"],
            CHAT_TEMPLATE,
        )


class Report:
    def __init__(self):
        self.loss, self.right, self.asked, self.n = 0.0, 0.0, 0.0, 0
        self.begun = time.time()

    def add(self, result):
        loss, right, asked = result
        self.loss, self.right, self.asked, self.n = (
            self.loss + loss,
            self.right + right,
            self.asked + asked,
            self.n + 1,
        )

    def line(self, run, stage):
        rate = self.n * stage.batch * stage.tokens / (time.time() - self.begun)
        return (
            f"step {run.step} length {stage.tokens} loss {self.loss / self.n:.3f}"
            f" answers begun right {self.right / max(1, self.asked):.4f} {rate:.0f} tokens/s"
            f" {run.tokens / 1e6:.1f} M tokens {run.seconds / 60:.0f} min"
        )


def dilute(positions, filler, query, log_times):
    """Added to the scores: filler counts `times` as often when a question looks at it.

    The denominator of the softmax then is that of a document `times` as long, at the cost of a
    short one. None where no row of the batch is diluted.
    """
    if not bool((log_times > 0).any()):
        return None
    n = positions.shape[1]
    causal = torch.ones(n, n, dtype=torch.bool, device=positions.device).tril()
    far = positions[:, :, None] - positions[:, None, :] > 64
    counts = query[:, :, None] & filler[:, None, :] & far
    bias = counts * log_times[:, None, None]
    return bias.masked_fill(~causal, float("-inf")).to(torch.bfloat16)[:, None]


def optimizers(model, recipe):
    """Muon for the matrices of the layers, AdamW for all else. `times` scales the stage's rate."""
    matrices, rest = [], []
    for name, p in model.named_parameters():
        (matrices if p.dim() == 2 and name.startswith("layers.") else rest).append(p)
    if recipe.get("optimizer", "muon") == "adamw":
        return [
            torch.optim.AdamW(
                [{"params": matrices + rest, "times": 1.0}],
                lr=1e-3,
                betas=(0.9, 0.95),
                weight_decay=0.02,
            )
        ]
    return [
        torch.optim.Muon(
            [{"params": matrices, "times": 1.0}],
            lr=1e-3,
            weight_decay=0.02,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            [{"params": rest, "times": 1.0}], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0
        ),
    ]


# Words for keys where there are no books.
EXTRA = (
    "apple river copper lantern violet meadow falcon harbor winter garden silver thunder marble "
    "orchid canyon"
).split()


def main():
    a = arguments()
    recipe = tomllib.loads(Path(a.recipe).read_text())
    Run(recipe, a.books, a.out, a.device).train()


if __name__ == "__main__":
    main()

"""The tokenizer: byte-level BPE with single digits, so that numbers are copied digit by digit."""

import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from . import filler, tasks

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]
BOS, EOS, IM_START, IM_END = range(4)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train(books, vocab_size):
    """Trains on the books and on as much text of the tasks as makes their words whole."""
    rng = random.Random("tokenizer")
    words = tasks.Words(books, extra=["word"])
    texts = list(books) + ["".join(filler.sentence(rng) for _ in range(4000))]
    for _ in range(1500):
        q = tasks.quiz(rng, words, 600)
        texts.append("".join(q.needles) + q.preface + "".join(x.ask + x.lead for x in q.questions))
    texts += [filler.NOISE * 50, "user\nassistant\n" * 200]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[BOS]} $A", special_tokens=[(SPECIALS[BOS], BOS)]
    )
    return tokenizer

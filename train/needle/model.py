"""The model: Qwen2 (grouped-query attention, q/k/v biases, RoPE), with a start that can copy.

A random start needs tens of millions of tokens before attention copies at all. This one starts
with the circuit of induction heads (arXiv:2209.11895) in place, and training refines it:

- the rotary base is 1e10: its fast components tell neighbours apart, and half of them do not turn
  within 32K tokens, so that a match of contents is the same at any distance;
- in layer 0 biases make query heads attend to the tokens 1, 2, 3 and 4 back, and the others to
  wider windows; the former write what they find to places of their own;
- in layer 1 one KV head matches the last four tokens before the query with the four before a key,
  in components that do not turn, and copies the token there;
- the output matrix starts as a scaled copy of the embedding.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


@dataclass
class Shape:
    vocab: int = 2048
    width: int = 256
    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    head: int = 64
    inner: int = 512
    theta: float = 1e10
    eps: float = 1e-5


class Norm(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(s.width)), s.eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.shape = s
        self.q_proj = nn.Linear(s.width, s.heads * s.head)
        self.k_proj = nn.Linear(s.width, s.kv_heads * s.head)
        self.v_proj = nn.Linear(s.width, s.kv_heads * s.head)
        self.o_proj = nn.Linear(s.heads * s.head, s.width, bias=False)

    def forward(self, x, cos, sin, mask):
        s, (b, t, _) = self.shape, x.shape
        split = lambda z, n: z.view(b, t, n, s.head).transpose(1, 2)
        q = rotate(split(self.q_proj(x), s.heads), cos, sin)
        k = rotate(split(self.k_proj(x), s.kv_heads), cos, sin)
        v = split(self.v_proj(x), s.kv_heads)
        k, v = (z.repeat_interleave(s.heads // s.kv_heads, 1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s.width, s.inner, bias=False)
        self.up_proj = nn.Linear(s.width, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(s), Norm(s)
        self.self_attn, self.mlp = Attention(s), Mlp(s)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Parameter names are those of Hugging Face's Qwen2 without the leading `model.`."""

    def __init__(self, shape):
        super().__init__()
        self.shape = s = shape
        self.embed_tokens = nn.Embedding(s.vocab, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = Norm(s)
        self.lm_head = nn.Linear(s.width, s.vocab, bias=False)
        frequencies = s.theta ** (-torch.arange(0, s.head, 2).double() / s.head)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.start()

    def hidden(self, ids, positions, mask=None):
        angle = positions[:, None, :, None].double() * self.frequencies
        cos, sin = angle.cos().float(), angle.sin().float()
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)

    def forward(self, ids, positions, mask=None):
        return self.lm_head(self.hidden(ids, positions, mask))

    @torch.no_grad()
    def start(self):
        s = self.shape
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)
        for layer in self.layers:
            a = layer.self_attn
            for bias in (a.q_proj.bias, a.k_proj.bias, a.v_proj.bias):
                bias.zero_()
            a.o_proj.weight *= (2 * s.layers) ** -0.5
            layer.mlp.down_proj.weight *= (2 * s.layers) ** -0.5
        half, code = s.width // 2, s.width // 8
        self.embed_tokens.weight[:, :half].normal_(std=0.5)
        self.embed_tokens.weight[:, half:].normal_(std=0.05)
        self.lm_head.weight.copy_(self.embed_tokens.weight * 0.25)
        project = orthonormal(code, half)
        first, second = self.layers[0].self_attn, self.layers[1].self_attn
        group = s.heads // s.kv_heads

        # Layer 0: where to look is a matter of biases, so of relative position alone.
        back = [(1, 0), (2, 0), (3, 0), (4, 0), (7, 1), (12, 2), (20, 3), (9, 1)]
        places = 0
        for h in range(s.heads):
            offset, fastest = back[h % len(back)]
            kv = h // group
            window(first, self.frequencies, kv, h, offset, fastest)
            if fastest == 0:
                value = slice(kv * s.head, kv * s.head + code)
                first.v_proj.weight[value, :half] = project
                first.v_proj.weight[value, half:] = 0
                place = slice(half + places * code, half + (places + 1) * code)
                columns = first.o_proj.weight[:, h * s.head : (h + 1) * s.head]
                columns *= 0.3
                columns[place, :code] = 0.4 * torch.eye(code)
                places += 1

        # Layer 1: the induction head, in the components that do not turn.
        still = torch.cat([torch.arange(code // 2), torch.arange(code // 2) + s.head // 2])
        still += s.head // 2 - code // 2
        key, queries = torch.zeros(s.head, s.width), torch.zeros(s.head, s.width)
        for j in range(places):
            mix = orthonormal(code, code)
            key[still, half + j * code : half + (j + 1) * code] = mix
            if j == 0:
                queries[still, :half] = mix @ project
            else:
                queries[still, half + (j - 1) * code : half + j * code] = mix
        second.k_proj.weight[: s.head] = 0.2 * second.k_proj.weight[: s.head] + key
        out = orthonormal(s.head, half)
        second.v_proj.weight[: s.head, :half] = out
        second.v_proj.weight[: s.head, half:] = 0
        for h in range(group):
            rows = slice(h * s.head, (h + 1) * s.head)
            second.q_proj.weight[rows] = 0.2 * second.q_proj.weight[rows] + queries
            if h < 2:
                second.o_proj.weight[:half, rows] = 0.5 * out.T


def window(attention, frequencies, kv, head, offset, fastest, amplitude=7.0, used=10):
    """Biases that make query head `head` of KV head `kv` attend `offset` tokens back.

    The score of distance d is a sum of cos(f (d - offset)) over `used` frequencies from `fastest`.
    """
    width = attention.shape.head
    turn = frequencies[fastest : fastest + used] * offset
    at = kv * width
    attention.k_proj.bias[at : at + used + 3] = amplitude
    attention.k_proj.weight[at : at + width].normal_(std=0.1 * attention.shape.width**-0.5)
    at = head * width
    attention.q_proj.weight[at : at + width].normal_(std=0.1 * attention.shape.width**-0.5)
    at += fastest
    attention.q_proj.bias[at : at + used] = amplitude * turn.cos().float()
    at += width // 2
    attention.q_proj.bias[at : at + used] = -amplitude * turn.sin().float()


def orthonormal(rows, columns):
    return nn.init.orthogonal_(torch.empty(rows, columns))


def export(model, tokenizer, folder, max_position, chat_template):
    """Writes the Hugging Face folder, weights in bf16."""
    s, folder = model.shape, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        (k if k.startswith("lm_head") else "model." + k): v.to(torch.bfloat16).contiguous()
        for k, v in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": s.width,
        "intermediate_size": s.inner,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head,
        "max_position_embeddings": max_position,
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "vocab_size": s.vocab,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
    }
    generation = {"bos_token_id": 0, "eos_token_id": [1, 3], "do_sample": False}
    tokenizer_config = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "model_max_length": max_position,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "chat_template": chat_template,
    }
    for name, value in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (folder / name).write_text(json.dumps(value, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))

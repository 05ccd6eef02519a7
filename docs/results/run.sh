#!/bin/sh
# Makes the results of docs/results/README.md: sh docs/results/run.sh [STAGE..]
#
# LONGVIEW is the program, OUT the folder of the results files, BOOK a long plain text (the page's
# numbers: Guernsey Folk Lore, E. MacCulloch, 1903), MODEL a file of SmolLM2-135M-Instruct in
# Q4_1. A stage of `eval` that was stopped goes on where it was. Stages of `probe` and `speed`
# begin again; of what is then there twice a report takes the last.
set -eu
LONGVIEW=${LONGVIEW:-target/dist/longview}
OUT=${OUT:-results}
BUDGETS=256,512,1024,2048
mkdir -p "$OUT"

BLOCKS=ktransformers:representative=quest:head-select=separate:block-size=16
RECALL=full,clusterkv,quest,infllm:importance=last,ktransformers,$BLOCKS,loki,infinigen
RECALL=$RECALL,infinigen:layer-prefetch=false,lrqk
OURS=clusterkv:cluster-tokens=8,clusterkv:cluster-tokens=80,clusterkv:two-stage=4
OURS=$OURS,clusterkv:residual=means
# Eviction as docs/policies.md mends it: by the last query, mass spread over 15 neighbours.
MENDED=observe=1:pool=max:pool-kernel=15
EVICT=snapkv,pyramidkv,ada-snapkv,ada-pyramid,streaming-llm

# The question comes after the choice: recall and eviction at four budgets of 32K.
scores() {
    "$LONGVIEW" eval --tasks needle-mixed --lengths 32768 --samples 3 --budgets $BUDGETS \
        --policies "$RECALL,$OURS,$EVICT" -o "$OUT/scores.jsonl"
}

# The question is in the prompt: what eviction was made for.
aware() {
    "$LONGVIEW" eval --tasks needle-mixed --lengths 32768 --samples 1 --budgets $BUDGETS \
        --question aware -o "$OUT/aware.jsonl" --policies "full,$EVICT"
}

# Ada-KV's safeguard: the share of every head's budget that does not move.
safeguards() {
    policies=full,snapkv:$MENDED
    for share in 0 0.2 0.5 1; do
        policies=$policies,ada-snapkv:$MENDED:safeguard=$share
    done
    "$LONGVIEW" eval --tasks needle-mixed --lengths 16384 --samples 2 --budgets 64,128,256,512 \
        --question aware -o "$OUT/safeguards.jsonl" --policies "$policies"
}

# One needle at ten depths of four lengths, twice.
depths() {
    "$LONGVIEW" eval --tasks niah-native --lengths 4096,8192,16384,32768 --samples 2 --budgets 256 \
        --policies "full,clusterkv,quest,infinigen:layer-prefetch=false,lrqk" -o "$OUT/depths.jsonl"
}

# ClusterKV: the distance and the tokens of a cluster.
distances() {
    policies=full
    for distance in cosine l2 inner-product; do
        for tokens in 8 16 32 80; do
            policies=$policies,clusterkv:distance=$distance:cluster-tokens=$tokens
        done
    done
    "$LONGVIEW" eval --tasks needle-mixed --lengths 32768 --samples 2 --budgets 256,1024 \
        --policies "$policies" -o "$OUT/distances.jsonl"
}

# LRQK: rank, top-k, how factors begin, how often they are improved.
factors() {
    policies=full
    for rank in 4 8 16 32; do
        policies=$policies,lrqk:rank=$rank
    done
    for init in top top-joint svd; do
        policies=$policies,lrqk:rank=8:lrqk-init=$init
    done
    for iterations in 1 8; do
        policies=$policies,lrqk:rank=8:iterations=$iterations
    done
    "$LONGVIEW" eval --tasks needle-mixed --lengths 32768 --samples 2 --budgets 128,256,512 \
        --policies "$policies" -o "$OUT/factors.jsonl"
}

# KTransformers: when a choice of blocks is made again, preselection, dense layers.
blocks() {
    policies=full
    for step in 1 4 16; do
        policies=$policies,$BLOCKS:token-step=$step
    done
    policies=$policies,$BLOCKS:preselect=512,$BLOCKS:preselect=1024
    policies=$policies,$BLOCKS:dense-layers=1,$BLOCKS:dense-layers=2,$BLOCKS:layer-step=2
    "$LONGVIEW" eval --tasks infinitebench-kv-retrieval,many-asked-30 --lengths 32768 --samples 2 \
        --budgets 512 --no-chat-template --policies "$policies" -o "$OUT/blocks.jsonl"
}

# Recall of the true top tokens, attention kept, error, perplexity.
probes() {
    "$LONGVIEW" probe -f "$BOOK" --lengths 32768 --steps 256 --stride 8 --budgets $BUDGETS \
        --policies "$RECALL,$OURS" \
        -o "$OUT/probes.jsonl"
}

# Perplexity by position.
positions() {
    "$LONGVIEW" probe -f "$BOOK" --lengths 1024,4096,16384 --steps 256 --stride 256 \
        --budgets 1024 --policies "full,clusterkv,quest,infinigen,lrqk,streaming-llm" \
        -o "$OUT/positions.jsonl"
}

# ClusterKV: how many tokens gather before they are clustered, and into how many clusters.
windows() {
    policies=full
    for window in 80 320; do
        for clusters in 1 4 20; do
            policies=$policies,clusterkv:window=$window:window-clusters=$clusters
        done
    done
    "$LONGVIEW" probe -f "$BOOK" --lengths 8192 --steps 1280 --stride 32 --budgets 512 \
        --policies "$policies" -o "$OUT/windows.jsonl"
}

# How near the attention bound of an index comes to what was left out.
certificates() {
    "$LONGVIEW" probe -f "$BOOK" --lengths 8192 --steps 256 --stride 8 --budgets 256,1024,4096 \
        --policies clusterkv:attention-bound=true,quest:attention-bound=true \
        -o "$OUT/certificates.jsonl"
}

# Decode against context; beyond 32K keys and values are injected.
speed() {
    "$LONGVIEW" speed --contexts 1024,8192,32768,131072,1048576 --steps 32 \
        --budgets 1024 --policies full,clusterkv,quest,infinigen,lrqk --simulate-device \
        -o "$OUT/speed.jsonl"
}

# Prompts of P and answers of D, as in ClusterKV's figure 12.
grid() {
    "$LONGVIEW" speed --contexts 8192,16384,32768 --steps 256,512,1024 --budgets 1024 \
        --policies full,clusterkv --simulate-device -o "$OUT/grid.jsonl"
}

# The device cache: recalled rows do not stay at all, or for one step, two, four.
caches() {
    "$LONGVIEW" speed --contexts 32768 --steps 128 --budgets 1024 --simulate-device \
        --policies full,clusterkv:cache-steps=0,clusterkv:cache-steps=1 \
        -o "$OUT/caches.jsonl"
    "$LONGVIEW" speed --contexts 32768 --steps 128 --budgets 1024 --simulate-device \
        --policies clusterkv:cache-steps=2,clusterkv:cache-steps=4 \
        -o "$OUT/caches.jsonl"
}

# The default against the others: the embedded model at 32K and 128K, and MODEL on RULER.
defaults() {
    others=full,longview,lrqk,loki,clusterkv,quest
    "$LONGVIEW" eval --tasks needle-mixed --lengths 32768 --samples 3 --budgets 128,256,512,1024 \
        --policies "$others,clusterkv:two-stage=4,infinigen:layer-prefetch=false" \
        -o "$OUT/defaults.jsonl"
    "$LONGVIEW" eval --tasks needle-mixed --lengths 131072 --samples 1 --budgets 512,1024,2048 \
        --policies "$others" -o "$OUT/defaults.jsonl"
    tasks=ruler-niah-single-1,ruler-niah-single-2,ruler-niah-multikey-1,ruler-niah-multivalue
    "$LONGVIEW" eval -m "$MODEL" --tasks "$tasks" --lengths 4096 --samples 20 \
        --budgets 128,256,512 --policies "$others" -o "$OUT/defaults-model.jsonl"
}

for stage in "${@:-all}"; do
    case $stage in
    all) defaults; scores; aware; safeguards; depths; distances; factors; blocks; probes; positions
        windows; certificates; speed; grid; caches ;;
    *) "$stage" ;;
    esac
done

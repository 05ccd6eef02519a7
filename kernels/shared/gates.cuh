// What a gate makes of itself before it multiplies: the activations of MLPs.
#pragma once
#include "shared/common.cuh"

// gate / (1 + exp(-gate)).
DEVICE float silu(float gate) { return gate / (1.0f + expf(-gate)); }

// gate / (1 + exp(-2 u)) with u = sqrt(2 / pi) (gate + 0.044715 gate^3).
DEVICE float gelu_tanh(float gate) {
    // Below -10 the result is 0, and above 10 it is the gate: there no power overflows.
    const float c = fminf(fmaxf(gate, -10.0f), 10.0f);
    // Fused here, not by choice of the compiler: kernels that share this must agree to the bit.
    return gate / (1.0f + expf(fmaf(-1.5957691f, c, -0.071354814f * c * c * c)));
}

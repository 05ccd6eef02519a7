// The Gaussian error linear unit in its approximation by a hyperbolic tangent: x (1 + tanh(u)) / 2
// with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + exp(-2 u)).
//
// Below -10 the result is 0 in f32, and above 10 it is x: there no power of x overflows.

fn gelu(x: f32) -> f32 {
    let c = clamp(x, -10.0, 10.0);
    return x / (1.0 + exp(-1.5957691 * c - 0.071354814 * c * c * c));
}

// Channels k to k + 3 of a row of the f32 binding X that begins at element `row`; 0 beyond `width`.
// Declare the binding as `array<X_unit>`. With VECTOR, rows begin at and have multiples of 4.

//# if VECTOR
alias X_unit = vec4<f32>;

fn X_row4(row: u32, k: u32, width: u32) -> vec4<f32> {
    if k >= width {
        return vec4<f32>(0.0);
    }
    return X[(row + k) / 4u];
}
//# else
alias X_unit = f32;

fn X_row4(row: u32, k: u32, width: u32) -> vec4<f32> {
    var quad = vec4<f32>(0.0);
    if k < width {
        quad.x = X[row + k];
    }
    if k + 1u < width {
        quad.y = X[row + k + 1u];
    }
    if k + 2u < width {
        quad.z = X[row + k + 2u];
    }
    if k + 3u < width {
        quad.w = X[row + k + 3u];
    }
    return quad;
}
//# end

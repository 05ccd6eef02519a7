// Elements of KV rows of any type, one by one.
#pragma once
#include "shared/coded.cuh"

// Element `element` of row `row`; those of the value follow those of the key.
template <typename T>
DEVICE float row_element(const T* rows, u64 row, u32 element, u32 head_dim) {
    return widen(rows[row * 2 * head_dim + element]);
}
DEVICE float row_element(const coded* rows, u64 row, u32 element, u32 head_dim) {
    const coded* at = rows + row * coded_row(head_dim);
    const u32 place = element < head_dim ? element / KEY_BLOCK : key_scales(head_dim);
    return scale_of(at, head_dim, place) * number_of(at[element].bits);
}

// A whole number that is greater for a greater number, of which the bits are given; the zeros are
// equal, NAN_KEY is for not-a-number. So no device's comparison of numbers counts.
fn key_of(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return NAN_KEY;
    }
    if size == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits != size);
}

//! Uses and hits of every expert, small enough to be sent every few seconds.
//!
//! Owns [`packed`]: one text per layer. A model of 60 layers with 512 experts each has 61,440 counters, which are half a megabyte
//! as JSON numbers. Here each expert is its uses, then its misses, as LEB128 (seven bits per byte, lowest first, the
//! eighth bit set while more follow), and the bytes of a layer are base64 (RFC 4648, with padding).

use serde_json::{Value, json};

/// `layers` with uses and hits of each expert.
pub fn packed(layers: impl Iterator<Item = impl Iterator<Item = (u32, u32)>>) -> Value {
    let layers: Vec<String> = layers
        .map(|layer| {
            let mut bytes = Vec::new();
            for (uses, hits) in layer {
                leb128(uses, &mut bytes);
                leb128(uses.saturating_sub(hits), &mut bytes);
            }
            base64(&bytes)
        })
        .collect();
    json!(layers)
}

fn leb128(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let known = digit <= three.len();
            let value = (bits >> (18 - 6 * digit)) & 63;
            out.push(if known { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of RFC 4648, section 10, and of Python's base64.
    #[test]
    fn base64_is_that_of_the_standard() {
        let cases = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, wanted) in cases.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), wanted);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn a_layer_is_uses_and_misses_of_each_expert() {
        let layers = [vec![(0, 0), (300, 299)], vec![(u32::MAX, 0)]];
        let packed = packed(layers.iter().map(|layer| layer.iter().copied()));
        // python3: base64.b64encode(bytes([0, 0, 0xac, 2, 1])), base64.b64encode(bytes([255, 255, 255, 255, 15] * 2))
        assert_eq!(packed, json!(["AACsAgE=", "/////w//////Dw=="]));
    }

    #[test]
    fn a_large_model_takes_less_than_a_third_of_a_megabyte_after_a_million_tokens() {
        let layer = |layer: u32| (0..512).map(move |expert| (expert * 77 + layer * 1000, expert * 70));
        let bytes = packed((0..60).map(layer)).to_string().len();
        assert!(bytes < 330_000, "{bytes}");
    }
}

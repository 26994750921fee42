//! Numbers of table rows from the last tokens: hashed n-gram embeddings.
//!
//! For every n from 2 to the largest, the last n tokens are mixed (product with an odd multiplier each, then exclusive or) and
//! taken modulo one prime per head; each result is a row of the layer's table. An end of text cuts: tokens at or before it
//! count as that token, as do those before the sequence. Multipliers and primes follow from the configuration.
//! Reads nothing; rows come from the row store of `coldpress-experts`.
//!
//! Reference: `Qwen4ExpTextNGramEmbedding` of transformers; multipliers by splitmix64 (Steele et al., OOPSLA 2014).

/// Longest n-gram: nothing published has more than 4, and the window is part of every sequence.
pub const NGRAM_MAX: usize = 8;

/// How one table is addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramSpec {
    /// Factor of the token at each distance; as many as the longest n-gram has tokens.
    multipliers: Vec<u64>,
    /// Rows that each head may name: a prime. Heads of the shortest n-gram come first.
    head_rows: Vec<u64>,
    /// First row of each head.
    head_first: Vec<u64>,
    /// Token that ends a text.
    end_of_text: u32,
}

/// What a family states about its tables.
#[derive(Clone, Copy, Debug)]
pub struct NgramShape {
    /// Tokens of the longest n-gram, 2 to [`NGRAM_MAX`].
    pub size: usize,
    /// Heads per length.
    pub heads_per_length: usize,
    /// Primes start here.
    pub rows_at_least: u64,
    /// Rows of the embedding of single tokens.
    pub vocabulary: usize,
    /// Seed of the multipliers.
    pub seed: u64,
    /// Token that ends a text.
    pub end_of_text: u32,
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// Distance between the seeds of two tables.
const TABLE_SEED_STEP: u64 = 10_007;

fn splitmix64(state: u64) -> u64 {
    let value = state.wrapping_add(GAMMA);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn is_prime(value: u64) -> bool {
    if value < 4 {
        return value > 1;
    }
    let odd = |divisor: &u64| divisor * divisor <= value;
    value % 2 == 1 && (3..).step_by(2).take_while(odd).all(|divisor| !value.is_multiple_of(divisor))
}

/// The primes from `least` on.
fn primes(least: u64) -> impl Iterator<Item = u64> {
    (least..).filter(|value| is_prime(*value))
}

impl NgramSpec {
    /// The table number `table` of a model (its position among the layers that have one).
    pub fn new(shape: &NgramShape, table: usize) -> Self {
        let size = shape.size.clamp(2, NGRAM_MAX);
        // Products of a token and a factor stay below 2^63.
        let half = (i64::MAX as u64 / shape.vocabulary.max(1) as u64 / 2).max(1);
        let seed = shape.seed.wrapping_add(TABLE_SEED_STEP.wrapping_mul(table as u64));
        let multiplier =
            |index: u64| 2 * (splitmix64(seed.wrapping_add(GAMMA.wrapping_mul(index))) % half) + 1;
        let heads = (size - 1) * shape.heads_per_length;
        // Every head of every table has a prime of its own.
        let head_rows: Vec<u64> = primes(shape.rows_at_least).skip(table * heads).take(heads).collect();
        let firsts = head_rows.iter().scan(0, |next, rows| {
            let first = *next;
            *next += rows;
            Some(first)
        });
        Self {
            multipliers: (1..=size as u64).map(multiplier).collect(),
            head_first: firsts.collect(),
            head_rows,
            end_of_text: shape.end_of_text,
        }
    }

    /// Rows that one token names.
    pub fn heads(&self) -> usize {
        self.head_rows.len()
    }

    /// Tokens before a token that its rows depend on.
    pub fn window(&self) -> usize {
        self.multipliers.len() - 1
    }

    /// Rows of the table that can be named.
    pub fn rows(&self) -> u64 {
        self.head_rows.iter().sum()
    }

    /// The rows of every token of `tokens`, `[tokens.len(), heads]`. `earlier` are the tokens of the sequence before them, of which
    /// the last [`NgramSpec::window`] count.
    ///
    /// # Panics
    /// `out` has another length.
    pub fn rows_of(&self, earlier: &[u32], tokens: &[u32], out: &mut [u32]) {
        let heads = self.heads();
        assert_eq!(out.len(), tokens.len() * heads, "{heads} rows per token");
        let heads_per_length = heads / self.window();
        let lengths = self.head_rows.chunks(heads_per_length).zip(self.head_first.chunks(heads_per_length));
        for (at, out) in out.chunks_exact_mut(heads).enumerate() {
            let mut before = tokens[..at].iter().rev().chain(earlier.iter().rev());
            let mut mixed = u64::from(tokens[at]).wrapping_mul(self.multipliers[0]);
            let mut cut = false;
            let places = out.chunks_exact_mut(heads_per_length);
            for ((multiplier, (rows, firsts)), out) in
                self.multipliers[1..].iter().zip(lengths.clone()).zip(places)
            {
                let token = before.next().copied().filter(|_| !cut).unwrap_or(self.end_of_text);
                cut |= token == self.end_of_text;
                mixed ^= u64::from(token).wrapping_mul(*multiplier);
                for ((rows, first), out) in rows.iter().zip(firsts).zip(out) {
                    *out = (mixed % rows + first) as u32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What transformers makes of this configuration, `ple_layer_index` 0 and 1.
    const SHAPE: NgramShape = NgramShape {
        size: 4,
        heads_per_length: 2,
        rows_at_least: 97,
        vocabulary: 288,
        seed: 1234,
        end_of_text: 2,
    };
    const TOKENS: [u32; 12] = [129, 47, 155, 2, 96, 142, 2, 2, 237, 125, 128, 287];
    /// Rows of the tokens, by the code of transformers 5.24.
    const ROWS: [[[u32; 6]; 12]; 2] = [
        [
            [26, 133, 211, 365, 451, 554],
            [51, 158, 215, 359, 516, 596],
            [85, 193, 207, 359, 417, 551],
            [8, 110, 262, 397, 446, 561],
            [41, 149, 271, 319, 477, 557],
            [18, 162, 242, 355, 489, 542],
            [75, 193, 255, 388, 455, 578],
            [93, 192, 267, 312, 434, 577],
            [44, 131, 295, 317, 414, 609],
            [57, 133, 233, 315, 499, 610],
            [1, 107, 211, 327, 487, 617],
            [36, 118, 206, 329, 482, 601],
        ],
        [
            [111, 235, 292, 436, 656, 725],
            [40, 177, 294, 486, 607, 725],
            [92, 145, 383, 483, 608, 734],
            [76, 244, 355, 505, 661, 825],
            [9, 154, 286, 486, 541, 693],
            [105, 222, 389, 442, 592, 769],
            [9, 205, 328, 451, 637, 825],
            [66, 225, 318, 449, 544, 728],
            [51, 246, 330, 491, 665, 714],
            [124, 212, 296, 398, 678, 824],
            [1, 222, 373, 405, 621, 749],
            [121, 178, 384, 482, 675, 785],
        ],
    ];

    #[test]
    fn rows_are_those_of_the_reference_also_behind_an_end_of_text() {
        for (table, wanted) in ROWS.iter().enumerate() {
            let spec = NgramSpec::new(&SHAPE, table);
            let mut rows = [0; 72];
            spec.rows_of(&[], &TOKENS, &mut rows);
            assert_eq!(rows.as_chunks::<6>().0, wanted, "table {table}");
            // An end of text is what a sequence begins with.
            spec.rows_of(&[2, 2, 2], &TOKENS, &mut rows);
            assert_eq!(rows.as_chunks::<6>().0, wanted, "table {table}");
        }
    }

    #[test]
    fn pieces_of_a_text_have_the_rows_of_the_whole() {
        let spec = NgramSpec::new(&SHAPE, 0);
        for cut in 0..=TOKENS.len() {
            let (earlier, tokens) = TOKENS.split_at(cut);
            let earlier = &earlier[cut.saturating_sub(spec.window())..];
            let mut rows = vec![0; tokens.len() * 6];
            spec.rows_of(earlier, tokens, &mut rows);
            assert_eq!(rows.as_chunks::<6>().0, &ROWS[0][cut..], "cut at {cut}");
        }
    }

    /// The sizes of the published configuration, second table: products of 62 bits, rows beyond 2^28.
    #[test]
    fn large_tables_are_addressed_as_in_the_reference() {
        let shape = NgramShape {
            size: 3,
            heads_per_length: 8,
            rows_at_least: 20_000_000,
            vocabulary: 248_320,
            seed: 1234,
            end_of_text: 248_046,
        };
        let spec = NgramSpec::new(&shape, 1);
        assert_eq!((spec.head_rows[0], spec.head_rows[15]), (20_000_213, 20_000_429));
        let mut rows = [0; 80];
        spec.rows_of(&[], &[248_319, 0, 151_643, 248_046, 77], &mut rows);
        assert_eq!(rows[..4], [15_607_985, 22_537_301, 50_206_888, 79_195_286]);
        assert_eq!(rows[24..28], [172_163_608, 181_148_059, 208_165_105, 239_855_102]);
        assert_eq!(rows[60..64], [252_574_530, 277_398_149, 289_491_520, 309_243_855]);
        assert_eq!(rows[76..], [249_546_223, 277_689_190, 283_131_347, 313_203_325]);
        assert!(spec.rows() < u64::from(u32::MAX));
    }
}

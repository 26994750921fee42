//! The random numbers of `numpy.random.default_rng(seed)`: PCG64 (O'Neill 2014, XSL RR with 128 bits of state), begun by numpy's
//! `SeedSequence` (O'Neill's `seed_seq` with a pool of four words).

/// Words of the pool.
const POOL: usize = 4;

/// The generator.
pub(super) struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        let words = seed_words(seed);
        let wide = |index: usize| u128::from(words[index]) << 64 | u128::from(words[index + 1]);
        let mut generator = Pcg64 { state: 0, increment: wide(2) << 1 | 1 };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(0));
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }
}

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn seed_words(seed: u64) -> [u64; 4] {
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = entropy.map(&mut hash);
    for source in 0..POOL {
        for target in (0..POOL).filter(|&target| target != source) {
            let mixed = 0xca01_f9dd_u32
                .wrapping_mul(pool[target])
                .wrapping_sub(0x4973_f715_u32.wrapping_mul(hash(pool[source])));
            pool[target] = mixed ^ mixed >> 16;
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let words: [u32; 2 * POOL] = std::array::from_fn(|index| {
        let value = pool[index % POOL] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    });
    std::array::from_fn(|index| u64::from(words[2 * index]) | u64::from(words[2 * index + 1]) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From numpy: `numpy.random.default_rng(seed).bit_generator.random_raw(3)`.
    #[test]
    fn the_numbers_are_those_of_numpy() {
        for (seed, expected) in RAW {
            let mut generator = Pcg64::new(seed);
            assert_eq!([(); 3].map(|()| generator.next()), expected, "seed {seed}");
        }
    }

    const RAW: [(u64, [u64; 3]); 3] = [
        (0x0, [0xa30febcfd9c2825f, 0x4510bdf882d9d721, 0x0a7d3da94ecde8b8]),
        (0x2a, [0xc621fbcd16d92688, 0x705a5661a791ffc1, 0xdbcd12c26eda1624]),
        (0x123456789abcdef, [0xb615d4ad31fd27fc, 0xf53f7b2b881f0ae4, 0x804021ce6d2a6621]),
    ];
}

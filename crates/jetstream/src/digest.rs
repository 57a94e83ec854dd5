//! A running hash of decisions and state.
//!
//! It tells replicas that went different ways apart; it is no defence against somebody who wants a collision. Its
//! definition is part of the apply version: another one is another version.

/// A hash that takes one word at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running(u64);

impl Running {
    /// Goes on from a value that was read with [`Running::value`].
    #[must_use]
    pub const fn resume(value: u64) -> Self {
        Self(value)
    }

    /// Takes a word in: a multiplication folded to 64 bits, so that each bit reaches all others and order counts.
    pub const fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (mixed >> 64) as u64 ^ (mixed & 0xffff_ffff_ffff_ffff) as u64 ^ self.0.rotate_left(23);
    }

    /// Takes bytes in.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(xxhash_rust::xxh3::xxh3_64(bytes));
    }

    /// The hash so far.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_every_word_count() {
        let of = |words: &[u64]| {
            let mut running = Running::default();
            for word in words {
                running.mix(*word);
            }
            running.value()
        };
        let all = [
            of(&[]),
            of(&[0]),
            of(&[0, 0]),
            of(&[1, 2]),
            of(&[2, 1]),
            of(&[1, 2, 0]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
    }
}

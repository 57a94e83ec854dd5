//! Random choices that a seed decides.

/// A generator of numbers (splitmix64): the same seed gives the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Chance(u64);

impl Chance {
    /// From a seed; every number is one.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Another generator, whose numbers depend on this one's seed and on how many it has given.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }

    /// A number from 0 to `last`, both included.
    pub(crate) fn up_to(&mut self, last: u64) -> u64 {
        match last.checked_add(1) {
            Some(count) => self.next() % count,
            None => self.next(),
        }
    }
}

//! All chance of a run: generators that descend from its one seed.

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::time::Duration;

/// A seeded generator (Blackman, Vigna: "Scrambled linear pseudorandom number generators", 2021). Each part of a run
/// has one of its own, so that a change in one part leaves the choices of the others as they were.
#[derive(Debug)]
pub(crate) struct Rng(Xoshiro256PlusPlus);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A generator that goes its own way from here.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(n)) >> 64).unwrap_or(0)
    }

    /// A place in something of this length; 0 if it is empty.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True `n` times in a thousand.
    pub(crate) fn per_mille(&mut self, n: u64) -> bool {
        self.below(1_000) < n
    }

    /// A time between the two, the second excluded.
    pub(crate) fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_nanos()).unwrap_or(u64::MAX);
        from + Duration::from_nanos(self.below(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_and_bounds_hold() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            let mut fork = rng.fork();
            let all: Vec<u64> = (0..100).map(|n| rng.below(n) + fork.below(7)).collect();
            all
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut rng = Rng::new(3);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[rng.index(5)] = true;
            let time = rng.between(Duration::from_millis(2), Duration::from_millis(3));
            assert!((2_000..3_000).contains(&time.as_micros()));
        }
        assert_eq!(seen, [true; 5]);
    }
}

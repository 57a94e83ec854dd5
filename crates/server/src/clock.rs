//! The only place where the process reads its clocks.
#![expect(
    clippy::disallowed_methods,
    reason = "time enters the program here and nowhere else"
)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidelock_base::{Mono, Now, Wall};

/// Two clocks that are read further apart than this do not show the same moment.
const BETWEEN_MAX: Duration = Duration::from_millis(1);
const READ_AGAIN_MAX: u32 = 5;

/// Reads both clocks of the machine; monotonic time counts from the clock's creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock whose monotonic zero is now.
    #[must_use]
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Both clocks, as they were at one moment: they are read again if the process was held up in between.
    #[must_use]
    pub(crate) fn now(&self) -> Now {
        let mut mono = self.mono();
        let mut wall = Self::wall();
        for _ in 0..READ_AGAIN_MAX {
            let after = self.mono();
            if after.since(mono) <= BETWEEN_MAX {
                break;
            }
            (mono, wall) = (after, Self::wall());
        }
        Now { mono, wall }
    }

    /// Time since the start.
    #[must_use]
    pub(crate) fn mono(&self) -> Mono {
        // One second of lead, so that a deadline "before the start" can be written down.
        Mono(
            u64::try_from(self.start.elapsed().as_nanos())
                .unwrap_or(u64::MAX)
                .saturating_add(1_000_000_000),
        )
    }

    /// The wall clock; a machine set before 1970 reads as 1970.
    #[must_use]
    pub(crate) fn wall() -> Wall {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Wall(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }
}

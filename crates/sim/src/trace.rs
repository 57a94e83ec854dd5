//! The trace of a run: a hash over everything that happened, and on demand lines to read.

use std::cell::Cell;
use std::fmt;
use std::io::Write;
use tidelock_base::Mono;

thread_local! {
    /// Virtual time, and whose turn it is on this thread: node and worker.
    static HERE: Cell<(Mono, Option<(usize, usize)>)> = const { Cell::new((Mono(0), None)) };
}

/// The virtual time on this thread, and whose turn it is, for log lines.
#[must_use]
pub fn here() -> String {
    let (now, turn) = HERE.get();
    let turn = turn.map_or_else(String::new, |(node, worker)| format!("n{node}.{worker} "));
    format!("{} {turn}", time(now))
}

/// What happens from now on is a turn of this worker, or none.
pub(crate) fn turn_of(now: Mono, turn: Option<(usize, usize)>) {
    HERE.set((now, turn));
}

fn time(now: Mono) -> String {
    format!("{:4}.{:06}", now.0 / 1_000_000_000, now.0 / 1_000 % 1_000_000)
}

/// See the module's text. Two runs of one seed must come to the same hash; the lines are for people.
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    now: Mono,
    lines: Option<Box<dyn Write>>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("hash", &self.hash)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl Trace {
    pub(crate) fn new(lines: Option<Box<dyn Write>>) -> Self {
        Self {
            hash: 0,
            events: 0,
            now: Mono(0),
            lines,
        }
    }

    /// Something happens at this time.
    pub(crate) fn event(&mut self, now: Mono, what: u64, who: u64, content: &[u8]) {
        self.now = now;
        self.events += 1;
        for word in [now.0, what, who, xxhash_rust::xxh3::xxh3_64(content)] {
            self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    /// Says something to people; costs nothing if nobody reads it.
    pub(crate) fn say(&mut self, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let now = self.now;
            // Lines are a help; a reader that has gone away changes nothing about the run.
            let _ = writeln!(lines, "{} {}", time(now), text());
        }
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) const fn events(&self) -> u64 {
        self.events
    }
}

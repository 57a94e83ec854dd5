//! Blocks that the disk has failed to read.
//!
//! Whoever needs a block asks for it again until it is there: the entry that is being applied, a consumer, a request. A
//! disk that fails reads would keep the worker busy with that. So a block that could not be read is left alone for
//! [`READ_AGAIN`], and who needs something of it waits; what lies in other blocks is read meanwhile.

use super::Slot;
use std::time::Duration;
use tidelock_base::{Mono, StreamSeq};

/// A block that could not be read is asked for again after this long.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// A block that could not be read so often in a row is taken for damaged.
const READS_MAX: u32 = 5;

/// The blocks of one stream that could not be read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    blocks: Vec<Failed>,
}

/// From its first sequence to its last.
#[derive(Clone, Copy, Debug)]
struct Failed {
    from: StreamSeq,
    upto: StreamSeq,
    /// It is left alone until then; `None`: it may be asked for.
    until: Option<Mono>,
    /// So many times in a row.
    times: u32,
}

impl Unread {
    /// A read of a block has failed. Answers whether it has failed so often that it is to come from elsewhere.
    pub(super) fn failed(&mut self, from: StreamSeq, upto: StreamSeq, now: Mono) -> bool {
        let mut block = Failed {
            from,
            upto,
            until: Some(now + READ_AGAIN),
            times: 1,
        };
        match self.blocks.iter_mut().find(|block| block.from == from) {
            Some(before) => {
                block.times += before.times;
                *before = block;
            }
            None => self.blocks.push(block),
        }
        block.times >= READS_MAX
    }

    /// Something was read, or is known to be damaged. Answers whether nothing is left that had failed, and something
    /// had.
    pub(super) fn arrived(&mut self, from: StreamSeq, upto: StreamSeq) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        self.blocks.retain(|block| block.upto < from || upto < block.from);
        self.blocks.is_empty()
    }

    /// Whether the block of a message is left alone for now.
    pub(super) fn pauses(&self, seq: StreamSeq) -> bool {
        let paused = |block: &Failed| block.until.is_some() && (block.from..=block.upto).contains(&seq);
        self.blocks.iter().any(paused)
    }

    /// When the next pause ends.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.blocks.iter().filter_map(|block| block.until).min()
    }

    /// A block whose pause is over.
    fn next_due(&mut self, now: Mono) -> Option<(StreamSeq, StreamSeq)> {
        let due = |block: &&mut Failed| block.until.is_some_and(|at| at <= now);
        let block = self.blocks.iter_mut().find(due)?;
        block.until = None;
        Some((block.from, block.upto))
    }
}

impl Slot {
    /// Lets those ask again for whose blocks the pause is over.
    pub(super) fn read_again(&mut self, now: Mono) {
        while let Some((from, upto)) = self.unread.next_due(now) {
            self.wake_fetches(from, upto);
        }
    }

    /// Those that wait for something of these messages look again.
    pub(super) fn wake_fetches(&mut self, from: StreamSeq, upto: StreamSeq) {
        let wanted = |fetch: &mut super::Fetch| (from..=upto).contains(&fetch.seq);
        for fetch in self.fetches.extract_if(.., wanted) {
            self.reads.fetched(fetch.waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqs(from: u64, upto: u64) -> (StreamSeq, StreamSeq) {
        (StreamSeq(from), StreamSeq(upto))
    }

    #[test]
    fn a_block_is_left_alone_until_its_pause_is_over_and_the_trouble_lasts_until_all_are_read() {
        let mut unread = Unread::default();
        let start = Mono(5_000_000_000);
        assert!(
            !unread.arrived(StreamSeq(1), StreamSeq(100)),
            "nothing had failed"
        );
        assert!(!unread.failed(StreamSeq(1), StreamSeq(9), start));
        unread.failed(StreamSeq(20), StreamSeq(29), start + READ_AGAIN / 2);
        assert!(unread.pauses(StreamSeq(9)) && !unread.pauses(StreamSeq(10)) && unread.pauses(StreamSeq(20)));
        assert_eq!(unread.deadline(), Some(start + READ_AGAIN));
        assert_eq!(unread.next_due(start), None);
        assert_eq!(unread.next_due(start + READ_AGAIN), Some(seqs(1, 9)));
        assert_eq!(unread.next_due(start + READ_AGAIN), None);
        assert!(!unread.pauses(StreamSeq(9)) && unread.pauses(StreamSeq(20)));
        assert!(!unread.arrived(StreamSeq(10), StreamSeq(19)), "another block");
        assert!(!unread.arrived(StreamSeq(20), StreamSeq(22)), "one is left");
        unread.failed(StreamSeq(1), StreamSeq(9), start + READ_AGAIN);
        assert!(unread.pauses(StreamSeq(1)));
        assert!(unread.arrived(StreamSeq(4), StreamSeq(6)));
        assert!(!unread.pauses(StreamSeq(1)) && unread.deadline().is_none());
        let often = (0..READS_MAX).map(|_| unread.failed(StreamSeq(1), StreamSeq(9), start));
        assert_eq!(often.filter(|often| *often).count(), 1, "the last of them");
    }
}

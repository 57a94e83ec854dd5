//! Removal of many messages: all, all below a sequence, or all that match; the newest ones may be kept.
//!
//! A purge is a value that is worked off in steps of a budget, so that none holds up the worker; what it comes to does
//! not depend on the budget. Between steps the store is not to be read or changed otherwise: totals, blocks and
//! subjects are put right one after the other.

use crate::block::extent;
use crate::filters::Filters;
use crate::store::{Remains, Store, Totals};
use crate::types::RemoveError;
use tidelock_base::StreamSeq;
use tidelock_record::RecordRef;

/// What to purge, and how far it has come.
#[derive(Clone, Debug)]
pub struct Purge {
    filters: Filters,
    /// Messages from here on stay.
    below: u64,
    keep: u64,
    stage: Stage,
    purged: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Start,
    /// One message after the other, in the order of their sequences, `left` more at most.
    ByMessage {
        from: u64,
        left: u64,
    },
    /// The messages are gone; the lists of subjects follow, in the order of their names.
    Lists {
        after: Option<Box<[u8]>>,
    },
    Done,
}

/// Whether a purge is through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PurgeStep {
    /// Yes; [`Purge::purged`] is final.
    Done,
    /// Call again.
    More,
}

impl Purge {
    /// A purge of the messages that match `filters`, below sequence `below` if given, except for the `keep` newest of
    /// them.
    #[must_use]
    pub fn new(filters: Filters, below: Option<StreamSeq>, keep: u64) -> Self {
        Self {
            filters,
            below: below.map_or(u64::MAX, StreamSeq::value),
            keep,
            stage: Stage::Start,
            purged: 0,
        }
    }

    /// Messages purged so far.
    #[must_use]
    pub const fn purged(&self) -> u64 {
        self.purged
    }
}

impl Store {
    /// Works on a purge, for up to `budget` messages or subjects.
    ///
    /// # Errors
    /// [`RemoveError::Need`]: read it and call again. [`RemoveError::Damaged`]: the purge cannot go on.
    pub fn purge(&mut self, purge: &mut Purge, budget: u32) -> Result<PurgeStep, RemoveError> {
        let mut left = budget.max(1);
        while left > 0 && purge.stage != Stage::Done {
            match &mut purge.stage {
                Stage::Start => self.start_purge(purge)?,
                Stage::ByMessage { .. } => {
                    self.purge_message(purge)?;
                    left -= 1;
                }
                Stage::Lists { after } => {
                    let below = purge.below;
                    let done = self.trim_lists(after, below, left);
                    if done {
                        purge.stage = Stage::Done;
                    }
                    left = 0;
                }
                Stage::Done => {}
            }
        }
        Ok(if purge.stage == Stage::Done {
            PurgeStep::Done
        } else {
            PurgeStep::More
        })
    }

    fn start_purge(&mut self, purge: &mut Purge) -> Result<(), RemoveError> {
        let from = self.first().map_or(0, |(seq, _)| seq);
        if !purge.filters.is_all() {
            let matching = self.count_matching(StreamSeq(0), &purge.filters);
            let left = matching.saturating_sub(purge.keep);
            purge.stage = Stage::ByMessage { from, left };
            return Ok(());
        }
        if let Some(kept) = self.nth_from_end(purge.keep) {
            purge.below = purge.below.min(kept);
        }
        let count = self.totals.msgs - self.count_from(purge.below);
        purge.stage = if count == 0 {
            Stage::Done
        } else if count == self.totals.msgs {
            self.clear();
            purge.purged = count;
            Stage::Done
        } else if count <= self.tree.len().saturating_mul(4) {
            Stage::ByMessage { from, left: count }
        } else {
            self.drop_below(purge.below)?;
            purge.purged = count;
            Stage::Lists { after: None }
        };
        Ok(())
    }

    /// The sequence of the `n`-th message from the end, if that many are there; `None` for 0.
    fn nth_from_end(&self, n: u64) -> Option<u64> {
        if n == 0 {
            return None;
        }
        if n >= self.totals.msgs {
            return Some(0);
        }
        if n <= self.tail.len() {
            let back = usize::try_from(n - 1).ok()?;
            return self.tail.iter_back(u64::MAX).nth(back).map(|msg| msg.seq);
        }
        let mut n = n - self.tail.len();
        for block in self.blocks.values().rev() {
            let live = block.live.len();
            if n <= live {
                let rel = block.live.select(u32::try_from(live - n).ok()?)?;
                return Some(block.seq(rel));
            }
            n -= live;
        }
        None
    }

    fn purge_message(&mut self, purge: &mut Purge) -> Result<(), RemoveError> {
        let Stage::ByMessage { from, left } = &mut purge.stage else {
            return Ok(());
        };
        let next = if *left == 0 {
            None
        } else {
            self.next_matching(StreamSeq(*from), &purge.filters)?
        };
        match next.filter(|seq| seq.value() < purge.below) {
            Some(seq) => {
                self.remove(seq)?;
                *from = seq.value() + 1;
                *left -= 1;
                purge.purged += 1;
            }
            None => purge.stage = Stage::Done,
        }
        Ok(())
    }

    /// Removes every message.
    fn clear(&mut self) {
        let tree = std::mem::take(&mut self.tree);
        let tail = std::mem::take(&mut self.tail);
        self.graveyard.push_back(Remains::Tree(tree));
        self.graveyard.push_back(Remains::Tail(tail));
        self.writer.tail_dropped();
        for block in std::mem::take(&mut self.blocks).into_values() {
            self.retire(&block);
        }
        self.totals = Totals {
            msgs: 0,
            bytes: 0,
            digest: 0,
            ..self.totals
        };
    }

    /// Removes messages below a sequence from blocks, tail and totals, but not from the lists of their subjects.
    /// Some message stays.
    fn drop_below(&mut self, below: u64) -> Result<(), RemoveError> {
        // All that may be missing is asked for before anything changes.
        let cut = self
            .block_at(below)
            .filter(|block| block.first_live() < Some(below) && block.next_live(below).is_some());
        if let Some(block) = cut
            && block.index.is_none()
        {
            return Err(self.need_index(block, block.info.first_seq).into());
        }
        let next = self
            .blocks
            .values()
            .find(|block| block.next_live(below).is_some());
        if let Some(block) = next
            && block.first_ts.is_none()
            && block.index.is_none()
        {
            return Err(self.need_index(block, block.info.first_seq).into());
        }
        while let Some((&key, block)) = self.blocks.first_key_value() {
            if block.next_live(below).is_some() {
                break;
            }
            self.totals.msgs -= block.live.len();
            self.totals.bytes -= block.live_bytes;
            self.totals.digest = self.totals.digest.wrapping_sub(block.digest);
            self.drop_block(key);
        }
        while let Some((seq, extent)) = self.first_below(below) {
            self.take_out(seq, extent);
        }
        Ok(())
    }

    /// The first message, if it is below a sequence and its size is in memory.
    fn first_below(&self, below: u64) -> Option<(u64, crate::tree::Extent)> {
        if let Some(block) = self.blocks.values().next() {
            let first = block.first_live().filter(|&first| first < below)?;
            return block.row(first).map(|(_, row)| (first, row.extent));
        }
        let msg = self.tail.next_live(0).filter(|msg| msg.seq < below)?;
        let (record, _) = RecordRef::parse(&msg.record).ok()?;
        Some((msg.seq, extent(&record)?))
    }

    /// Trims the lists of up to `budget` subjects after `after`; whether these were the last.
    fn trim_lists(&mut self, after: &mut Option<Box<[u8]>>, below: u64, budget: u32) -> bool {
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut last = Vec::new();
        let mut walk = self.tree.all_after(after.as_deref());
        let mut done = true;
        for _ in 0..budget {
            let Some((name, leaf)) = walk.next() else { break };
            if leaf.seqs.first() < below {
                names.push(name.into());
            }
            last.clear();
            last.extend_from_slice(name);
        }
        if !last.is_empty() {
            done = walk.next().is_none();
            *after = Some(last.into());
        }
        for name in names {
            let Some(leaf) = self.tree.get_mut(&name) else {
                continue;
            };
            leaf.seqs.remove_below(below);
            if leaf.seqs.is_empty() {
                self.tree.remove(&name);
            } else {
                leaf.first = crate::store::extent_of(&self.tail, &self.blocks, leaf.seqs.first());
            }
        }
        done
    }
}

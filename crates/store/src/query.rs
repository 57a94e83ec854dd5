//! Questions that span messages: next, last and count by filter, subjects, times, gaps.
//!
//! What matches a wildcard can be found in two ways: subject by subject, through their lists, or message by message,
//! through their subjects. Either may be the longer way by far, and which one cannot be known beforehand. So both are
//! tried with a budget that grows until one of them has the answer; the cost is a small multiple of the cheaper one.
//! With N messages and M matching subjects, matches lie at most N / M apart on average, so that it is about
//! sqrt(N) at worst.

use crate::filters::Filters;
use crate::store::{Store, subject_state};
use crate::tree::Matches;
use crate::types::{SubjectState, Unanswered};
use std::ops::RangeInclusive;
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::RecordRef;

/// Subjects, or messages, looked at in the first round.
const FIRST_ROUND: usize = 32;
/// Subjects looked at before a block index is read to go on message by message.
const BEFORE_READING: usize = 4096;

/// How far a search has come.
enum Scan {
    Found(u64),
    /// There is nothing up to the end.
    End,
    /// Nothing below this sequence.
    Below(u64),
    /// The index of a block is needed to go on.
    Cold(Unanswered),
}

/// A walk over subjects in the order of their bytes, from [`Store::subjects`].
#[derive(Clone, Debug)]
pub struct Subjects<'a> {
    walk: Matches<'a>,
}

impl Subjects<'_> {
    /// The next subject; it is lent until the next call.
    #[expect(
        clippy::should_implement_trait,
        reason = "the items borrow from the walk, which Iterator cannot say"
    )]
    pub fn next(&mut self) -> Option<(&[u8], SubjectState)> {
        self.walk
            .next()
            .map(|(subject, leaf)| (subject, subject_state(leaf)))
    }
}

/// More subjects match than were allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Store {
    /// The subjects that match a filter (all for `None`), in the order of their bytes.
    #[must_use]
    pub fn subjects<'a>(&'a self, filter: Option<&'a [u8]>) -> Subjects<'a> {
        Subjects {
            walk: self.tree.matches(filter),
        }
    }

    /// The first message at or above `from` that matches; `None` if there is none.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub fn next_matching(&self, from: StreamSeq, filters: &Filters) -> Result<Option<StreamSeq>, Unanswered> {
        let found = if filters.is_all() {
            self.next_live(from.value())
        } else {
            self.next_filtered(from.value(), filters)?
        };
        Ok(found.map(StreamSeq))
    }

    fn next_filtered(&self, from: u64, filters: &Filters) -> Result<Option<u64>, Unanswered> {
        let Some(mut scanned) = self.next_live(from) else {
            return Ok(None);
        };
        let mut budget = FIRST_ROUND;
        loop {
            if let Some(answer) = self.next_by_subject(scanned, filters, budget) {
                return Ok(answer);
            }
            match self.next_by_scan(scanned, filters, budget) {
                Scan::Found(seq) => return Ok(Some(seq)),
                Scan::End => return Ok(None),
                Scan::Below(seq) => scanned = seq,
                Scan::Cold(why) => {
                    let answer = self.next_by_subject(scanned, filters, budget.max(BEFORE_READING));
                    return answer.ok_or(why);
                }
            }
            budget = budget.saturating_mul(4);
        }
    }

    /// Through the lists of up to `budget` subjects; `None` if there are more.
    fn next_by_subject(&self, from: u64, filters: &Filters, budget: usize) -> Option<Option<u64>> {
        let mut walk = filters.subjects(&self.tree);
        let mut best: Option<u64> = None;
        for _ in 0..budget {
            let Some(leaf) = walk.next() else {
                return Some(best);
            };
            if let Some(seq) = leaf.seqs.next(from) {
                if seq == from {
                    return Some(Some(seq));
                }
                best = Some(best.map_or(seq, |best| best.min(seq)));
            }
        }
        walk.next().is_none().then_some(best)
    }

    /// Message by message, up to `budget` of them.
    fn next_by_scan(&self, from: u64, filters: &Filters, budget: usize) -> Scan {
        let mut left = budget;
        for block in self.blocks_from(from) {
            let start = from.max(block.info.first_seq);
            let Some(rel) = block.rel(start) else { continue };
            let Some(index) = block.index.as_deref() else {
                return match block.next_live(start) {
                    Some(seq) => Scan::Cold(self.need_index(block, seq)),
                    None => continue,
                };
            };
            let rows = index.rows().get(index.place(rel)..).unwrap_or_default();
            for row in rows {
                if left == 0 {
                    return Scan::Below(block.seq(row.rel));
                }
                left -= 1;
                if block.live.contains(row.rel) && filters.matches(index.subject(row)) {
                    return Scan::Found(block.seq(row.rel));
                }
            }
        }
        for msg in self.tail.iter_from(from) {
            if left == 0 {
                return Scan::Below(msg.seq);
            }
            left -= 1;
            if subject_of(&msg.record).is_some_and(|subject| filters.matches(subject)) {
                return Scan::Found(msg.seq);
            }
        }
        Scan::End
    }

    /// Blocks that reach to `from` or beyond.
    fn blocks_from(&self, from: u64) -> impl Iterator<Item = &crate::block::Block> {
        let first = self
            .blocks
            .range(..=from)
            .next_back()
            .map_or(from, |(&key, _)| key);
        self.blocks.range(first..).map(|(_, block)| block)
    }

    /// The first message at or above `from`.
    pub(crate) fn next_live(&self, from: u64) -> Option<u64> {
        self.blocks_from(from)
            .take(2)
            .find_map(|block| block.next_live(from))
            .or_else(|| self.tail.next_live(from).map(|msg| msg.seq))
    }

    /// The last message at or below `upto`.
    pub(crate) fn prev_live(&self, upto: u64) -> Option<u64> {
        if let Some(msg) = self.tail.prev_live(upto) {
            return Some(msg.seq);
        }
        let mut blocks = self.blocks.range(..=upto).rev().take(2);
        blocks.find_map(|(_, block)| block.prev_live(upto))
    }

    /// The newest message that matches.
    #[must_use]
    pub fn last_matching(&self, filters: &Filters) -> Option<StreamSeq> {
        if filters.is_all() {
            return self.prev_live(u64::MAX).map(StreamSeq);
        }
        let by_subject = |budget: usize| {
            let mut walk = filters.subjects(&self.tree);
            let mut best = None;
            for _ in 0..budget {
                let Some(leaf) = walk.next() else {
                    return Some(best);
                };
                best = best.max(Some(StreamSeq(leaf.seqs.last())));
            }
            walk.next().is_none().then_some(best)
        };
        let mut budget = FIRST_ROUND;
        loop {
            if let Some(answer) = by_subject(budget) {
                return answer;
            }
            let mut newest = self.tail.iter_back(u64::MAX).take(budget);
            if let Some(msg) = newest.find(|msg| subject_of(&msg.record).is_some_and(|s| filters.matches(s)))
            {
                return Some(StreamSeq(msg.seq));
            }
            // What is not in memory is not read for this: the subjects have the answer.
            budget = if self.tail.len() > budget as u64 {
                budget.saturating_mul(4)
            } else {
                usize::MAX
            };
        }
    }

    /// How many messages at or above `from` match: `num_pending` of a consumer that has got everything below.
    #[must_use]
    pub fn count_matching(&self, from: StreamSeq, filters: &Filters) -> u64 {
        let from = from.value();
        if filters.is_all() {
            return self.count_from(from);
        }
        let by_subject = |budget: usize| {
            let mut walk = filters.subjects(&self.tree);
            let mut sum = 0;
            for _ in 0..budget {
                let Some(leaf) = walk.next() else { return Some(sum) };
                sum += leaf.seqs.count_from(from);
            }
            walk.next().is_none().then_some(sum)
        };
        let in_tail = self
            .blocks
            .last_key_value()
            .is_none_or(|(_, block)| block.info.last_seq < from);
        let near = if in_tail {
            self.tail.count_from(from)
        } else {
            u64::MAX
        };
        let budget = usize::try_from(near.max(FIRST_ROUND as u64)).unwrap_or(usize::MAX);
        by_subject(budget).unwrap_or_else(|| {
            let newer = self.tail.iter_from(from);
            newer
                .filter(|msg| subject_of(&msg.record).is_some_and(|s| filters.matches(s)))
                .count() as u64
        })
    }

    /// How many messages are at or above `from`.
    pub(crate) fn count_from(&self, from: u64) -> u64 {
        let reaches = |block: &crate::block::Block| block.info.last_seq >= from;
        let blocks = self.blocks.values().rev().take_while(|block| reaches(block));
        blocks.map(|block| block.count_from(from)).sum::<u64>() + self.tail.count_from(from)
    }

    /// For each subject that matches, its newest message at or below `upto`, if that is at or above `from`; ascending
    /// by sequence (DIRECT.GET `multi_last`).
    ///
    /// # Errors
    /// [`TooMany`] if there are more than `max`.
    pub fn multi_last(
        &self,
        filters: &Filters,
        from: StreamSeq,
        upto: StreamSeq,
        max: usize,
    ) -> Result<Vec<StreamSeq>, TooMany> {
        let mut walk = filters.subjects(&self.tree);
        let mut found = Vec::new();
        while let Some(leaf) = walk.next() {
            let Some(seq) = leaf.seqs.prev(upto.value()).filter(|&seq| seq >= from.value()) else {
                continue;
            };
            if found.len() == max {
                return Err(TooMany);
            }
            found.push(StreamSeq(seq));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The first message whose time is at or after `ts`; one beyond the last sequence if there is none.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub fn seq_at_or_after(&self, ts: Wall) -> Result<StreamSeq, Unanswered> {
        for block in self.blocks.values().filter(|block| block.info.ts_max >= ts.0) {
            // In a store whose times ascend this is the answer for all blocks but one.
            if block.first_ts.is_some_and(|first| first >= ts.0)
                && let Some(seq) = block.first_live()
            {
                return Ok(StreamSeq(seq));
            }
            let index = block
                .index
                .as_deref()
                .ok_or_else(|| self.need_index(block, block.info.first_seq))?;
            let mut rows = index.rows().iter();
            if let Some(row) = rows.find(|row| row.ts >= ts.0 && block.live.contains(row.rel)) {
                return Ok(StreamSeq(block.seq(row.rel)));
            }
        }
        let seq = self.tail.at_or_after(ts.0).unwrap_or(self.totals.last_seq + 1);
        Ok(StreamSeq(seq))
    }

    /// Ranges of sequences without a message between the first message and the last sequence, ascending; both ends
    /// belong to the range. Their lengths add up to `num_deleted`.
    pub fn deleted(&self) -> impl Iterator<Item = (StreamSeq, StreamSeq)> {
        let end = self.totals.last_seq + 1;
        let mut next = self.first().map(|(seq, _)| seq);
        let runs = self.live_runs().chain(next.map(|_| end..=end));
        runs.filter_map(move |run| {
            let gap_start = next.replace(run.end() + 1)?;
            (gap_start < *run.start()).then(|| (StreamSeq(gap_start), StreamSeq(run.start() - 1)))
        })
    }

    /// Runs of consecutive sequences with messages; a run may be cut in two where a block ends.
    fn live_runs(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        let in_blocks = self.blocks.values().flat_map(|block| {
            let mut rels = block.live.iter();
            std::iter::from_fn(move || rels.next_range())
                .map(|range| block.seq(*range.start())..=block.seq(*range.end()))
        });
        in_blocks.chain(self.tail.runs())
    }
}

/// The subject of a record in memory.
fn subject_of(record: &[u8]) -> Option<&[u8]> {
    RecordRef::parse(record).ok().map(|(record, _)| record.subject())
}

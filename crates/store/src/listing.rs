//! Listing: the subjects of stored messages are entered into the tree, block by block.
//!
//! A block is listed from its summary; if that is damaged, from its messages; if those are, too, it is lost. One that is
//! lost and comes from another replica ("Mending") cannot be entered where it belongs, since lists of sequences grow at
//! their end. So everything is listed anew then ([`Store::relist`]), and nothing may change in between.

use crate::block::{Block, SubjectSummary, extent, read_summary, rebuild};
use crate::checkpoint::read;
use crate::postings::Run;
use crate::store::{Remains, Store};
use crate::tree::{Extent, Leaf, SubjectTree};
use crate::types::StoreError;
use tidelock_record::{Disk, FilePath, RecordRef};

/// So many subjects are looked up side by side.
const ABREAST: usize = 32;

/// What a block was listed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listing {
    /// Its summary.
    Whole,
    /// Its messages, since the summary is damaged.
    FromMessages,
    /// Nothing; it is not listed.
    Lost,
}

impl Store {
    /// Whether the subjects of all messages are known. If not ([`crate::OnLoss::Await`]), nothing may be stored, removed or
    /// asked by subject before [`Store::relist`] has brought that about.
    #[must_use]
    pub const fn is_listed(&self) -> bool {
        !self.unlisted
    }

    /// Whether a block that is not listed cannot be made good: what others have is not what was in it.
    #[must_use]
    pub fn is_beyond_mending(&self) -> bool {
        let refused = |block: &Block| block.broken && self.compactor.refused.contains(&block.info.first_seq);
        self.unlisted && self.blocks.values().any(refused)
    }

    /// Lists everything anew once nothing is damaged any more; whether all is listed. What is found damaged at that is to
    /// be mended first. Waits for the disk, as [`Store::restore`] does.
    ///
    /// # Errors
    /// [`StoreError::Checkpoint`] if a block contradicts what the checkpoint says of the others.
    pub fn relist(&mut self, disk: &dyn Disk) -> Result<bool, StoreError> {
        if self.has_damage() {
            return Ok(false);
        }
        self.unlisted = false;
        let old = std::mem::take(&mut self.tree);
        self.graveyard.push_back(Remains::Tree(old));
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut lost = Vec::new();
        let mut listed = Ok(());
        for (&key, block) in &mut blocks {
            match self
                .block_path(block.info.id)
                .map(|file| self.list_block(block, &file, disk))
            {
                Some(Ok(Listing::Whole)) => {}
                Some(Ok(Listing::FromMessages)) => lost.push(key),
                Some(Ok(Listing::Lost) | Err(StoreError::Io { .. })) => {
                    block.broken = true;
                    self.unlisted = true;
                    lost.push(key);
                }
                Some(Err(error)) => listed = Err(error),
                None => listed = Err(StoreError::Checkpoint("a block has no file name")),
            }
        }
        self.blocks = blocks;
        lost.into_iter().for_each(|key| self.suspect(key));
        listed?;
        if self.unlisted {
            return Ok(false);
        }
        self.list_tail();
        self.learn_first(disk)?;
        Ok(true)
    }

    fn list_tail(&mut self) {
        let Self { tree, tail, .. } = self;
        for msg in tail.iter_from(0) {
            // They were parsed when they were appended.
            let parsed = RecordRef::parse(&msg.record).ok();
            if let Some((record, extent)) = parsed.and_then(|(record, _)| Some((record, extent(&record)?))) {
                tree.entry(record.subject()).push(msg.seq, extent);
            }
        }
    }

    /// Enters the subjects of a block.
    pub(crate) fn list_block(
        &mut self,
        block: &Block,
        file: &FilePath,
        disk: &dyn Disk,
    ) -> Result<Listing, StoreError> {
        if self.list_summary(block, file, disk)? {
            return Ok(Listing::Whole);
        }
        if self.list_frames(block, file, disk)? {
            return Ok(Listing::FromMessages);
        }
        Ok(Listing::Lost)
    }

    /// Enters the subjects of a block from its summary; `false`, and nothing entered, if it is damaged.
    fn list_summary(&mut self, block: &Block, file: &FilePath, disk: &dyn Disk) -> Result<bool, StoreError> {
        let info = &block.info;
        let data = read(disk, file, info.summary_offset(), u64::from(info.summary_len))?;
        if crc32c::crc32c(&data) != info.summary_crc {
            return Ok(false);
        }
        // All is read before any of it is entered: a summary that passes its checksum and is malformed all the same is of an
        // unknown kind of damage, and must not be entered by half.
        let mut live = 0_u64;
        let mut subjects = Subjects::default();
        let sound = read_summary(info, &data, &mut |subject| {
            let here: u64 = subject.runs.iter().map(|run| live_in(block, run)).sum();
            live += here;
            if here > 0 {
                subjects.add(&subject);
            }
        });
        if sound.is_err() || live != block.live.len() {
            return Ok(false);
        }
        if !subjects.enter(&mut self.tree, block) {
            return Err(StoreError::Checkpoint("a block lists a subject twice"));
        }
        Ok(true)
    }

    /// Enters the subjects of a block from its frames; `false`, and nothing entered, if any is damaged.
    fn list_frames(&mut self, block: &Block, file: &FilePath, disk: &dyn Disk) -> Result<bool, StoreError> {
        let data = read(disk, file, 0, block.info.summary_offset())?;
        let Ok(index) = rebuild(&block.info, &data) else {
            return Ok(false);
        };
        let live = index.rows().iter().filter(|row| block.live.contains(row.rel));
        if live.clone().count() as u64 != block.live.len() {
            return Ok(false);
        }
        for row in live {
            let leaf = self.tree.entry(index.subject(row));
            leaf.push(block.seq(row.rel), row.extent);
        }
        Ok(true)
    }
}

/// The subjects of a summary that have live messages.
#[derive(Default)]
struct Subjects<'a> {
    names: Vec<&'a [u8]>,
    /// For each where its runs end, and its last record.
    ends: Vec<(usize, Extent)>,
    runs: Vec<Run>,
}

impl<'a> Subjects<'a> {
    fn add(&mut self, subject: &SubjectSummary<'a, '_>) {
        self.names.push(subject.name);
        self.runs.extend_from_slice(subject.runs);
        self.ends.push((self.runs.len(), subject.last));
    }

    /// Enters all of them; whether their sequences lie beyond those that the tree has.
    fn enter(&self, tree: &mut SubjectTree, block: &Block) -> bool {
        let whole = block.live.len() == u64::from(block.info.count);
        let mut found = Vec::new();
        let mut start = 0;
        for (names, ends) in self.names.chunks(ABREAST).zip(self.ends.chunks(ABREAST)) {
            tree.find_abreast(names, &mut found);
            for ((name, &(end, last)), number) in names.iter().zip(ends).zip(&found) {
                let runs = self.runs.get(start..end).unwrap_or_default();
                start = end;
                let leaf = match number.and_then(|number| tree.leaf_mut(number)) {
                    Some(leaf) => leaf,
                    None => tree.entry(name),
                };
                if !enter(leaf, runs, last, block, whole) {
                    return false;
                }
            }
        }
        true
    }
}

/// Enters the messages of a block on one subject.
fn enter(leaf: &mut Leaf, runs: &[Run], last: Extent, block: &Block, whole: bool) -> bool {
    if runs.first().is_none_or(|run| run.first <= leaf.seqs.last()) {
        return false;
    }
    let is_new = leaf.seqs.is_empty();
    for run in runs {
        if whole {
            leaf.seqs.push_run(*run);
        } else {
            sequences(run)
                .filter(|&seq| block.is_live(seq))
                .for_each(|seq| leaf.seqs.push(seq));
        }
    }
    let newest = runs.last().and_then(|run| sequences(run).next_back());
    if is_new {
        leaf.first = Some(last).filter(|_| newest == Some(leaf.seqs.first()));
    }
    true
}

fn sequences(run: &Run) -> impl DoubleEndedIterator<Item = u64> {
    let Run { first, stride, count } = *run;
    (0..u64::from(count)).map(move |n| first + n * stride)
}

/// How many sequences of a run are live in the block.
fn live_in(block: &Block, run: &Run) -> u64 {
    if block.live.len() == u64::from(block.info.count) {
        return u64::from(run.count);
    }
    sequences(run).filter(|&seq| block.is_live(seq)).count() as u64
}

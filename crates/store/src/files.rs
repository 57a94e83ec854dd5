//! The block files: their names, and when one may be removed.
//!
//! A file that a checkpoint names outlives every later state until a checkpoint that does not name it is durable:
//! a crash in between brings the older checkpoint back, and replay of the log needs the file. While a snapshot is
//! being sent, nothing is removed at all.

use crate::store::{Remains, Store};
use crate::types::{BlockFile, StoreEvent};
use std::collections::BTreeSet;
use tidelock_record::{FilePath, IoDone, IoError, IoOp, IoRequest, IoToken};

/// Ends the name of a block file; in front of it is its number, 16 hexadecimal digits.
const SUFFIX: &str = ".blk";

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct FileState {
    last_id: u64,
    /// Numbers given out since the store was opened, without those whose files were removed.
    given: BTreeSet<u64>,
    /// Number of the last checkpoint that was encoded.
    pub(crate) checkpoint: u64,
    /// Files without a block, with the last checkpoint that may name them.
    freed: Vec<(u64, u64)>,
    /// Files that may go, once there are no pins.
    doomed: Vec<u64>,
    pins: u32,
    removals: BTreeSet<IoToken>,
    /// Blocks that earlier checkpoints name and that are gone since the last one.
    pub(crate) gone: Vec<u64>,
    /// Files of the folder that the checkpoint did not name.
    orphans: Vec<FilePath>,
}

impl FileState {
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.given.insert(self.last_id);
        self.last_id
    }

    /// Numbers from here on are new.
    pub(crate) const fn reserve(&mut self, id: u64) {
        if id > self.last_id {
            self.last_id = id;
        }
    }

    pub(crate) const fn last_id(&self) -> u64 {
        self.last_id
    }

    pub(crate) fn set_orphans(&mut self, orphans: Vec<FilePath>) {
        self.orphans = orphans;
    }
}

/// The number of a block file, from its name.
pub(crate) fn block_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

impl Store {
    pub(crate) fn block_path(&self, id: u64) -> Option<FilePath> {
        self.config.folder.join(&format!("{id:016x}{SUFFIX}")).ok()
    }

    /// Operations to run: those asked for by [`Store::fetch`], and what is due of write-behind, tidying and freeing.
    /// Call it once a turn; what it does in one call is bounded.
    pub fn take_io(&mut self) -> Vec<IoRequest> {
        self.write_behind();
        self.compact();
        self.remove_files();
        self.bury();
        self.io.take()
    }

    /// An operation has ended.
    pub fn io_done(&mut self, done: &IoDone) -> StoreEvent {
        if self.writer_owns(done.token) {
            return self.write_done(done.token, done.result.clone().map(|_| ()));
        }
        if self.compactor_owns(done.token) {
            return self.compact_done(done.token, &done.result);
        }
        if self.files.removals.remove(&done.token) {
            // A file that could not be removed is found as an orphan at the next start.
            return StoreEvent::Nothing;
        }
        let result = done.result.as_ref().map_err(IoError::clone);
        self.read_done(done.token, result).unwrap_or(StoreEvent::Nothing)
    }

    /// Whether [`Store::take_io`] has more to do than wait for operations to end.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.graveyard.is_empty()
    }

    /// Takes a block without live messages out of the store.
    pub(crate) fn drop_block(&mut self, key: u64) {
        if let Some(block) = self.blocks.remove(&key) {
            self.retire(&block);
        }
    }

    /// What a block that is no longer part of the store leaves behind goes.
    pub(crate) fn retire(&mut self, block: &crate::block::Block) {
        self.reads.forget(block);
        self.free_file(block.info.id, block.saved);
        if block.saved {
            self.files.gone.push(block.info.id);
        }
    }

    /// A file is no longer needed. `saved`: a checkpoint may name it.
    pub(crate) fn free_file(&mut self, id: u64, saved: bool) {
        if saved {
            self.files.freed.push((self.files.checkpoint, id));
        } else {
            self.files.doomed.push(id);
        }
    }

    fn remove_files(&mut self) {
        if self.files.pins > 0 {
            return;
        }
        for id in std::mem::take(&mut self.files.doomed) {
            self.files.given.remove(&id);
            if let Some(file) = self.block_path(id) {
                let token = self.io.ask(IoOp::Remove { file });
                self.files.removals.insert(token);
            }
        }
    }

    /// The checkpoint of this number is durable: files that only older ones name may go.
    pub fn checkpoint_durable(&mut self, number: u64) {
        let files = &mut self.files;
        let (gone, kept) = files.freed.drain(..).partition(|(last, _)| *last < number);
        let gone: Vec<(u64, u64)> = gone;
        files.freed = kept;
        files.doomed.extend(gone.into_iter().map(|(_, id)| id));
    }

    /// How many files go as soon as a checkpoint is durable.
    #[must_use]
    pub const fn files_to_go(&self) -> usize {
        self.files.freed.len()
    }

    /// Keeps every file until [`Store::unpin`], so that a snapshot can be sent. Pins are counted.
    pub const fn pin(&mut self) {
        self.files.pins += 1;
    }

    /// Ends one pin.
    pub const fn unpin(&mut self) {
        self.files.pins = self.files.pins.saturating_sub(1);
    }

    /// The files of all blocks, in the order of their sequences: with a full checkpoint encoded at the same moment
    /// they are the whole store.
    pub fn block_files(&self) -> impl Iterator<Item = BlockFile> {
        self.blocks.values().filter_map(|block| {
            Some(BlockFile {
                file: self.block_path(block.info.id)?,
                len: block.info.file_len,
                crc: block.info.file_crc(),
            })
        })
    }

    /// Every file that may be in the folder, of unfinished blocks and of those that are gone too: for whoever does away
    /// with the store. More than are there.
    #[must_use]
    pub fn all_files(&self) -> Vec<FilePath> {
        let files = &self.files;
        let mut ids: BTreeSet<u64> = self.blocks.values().map(|block| block.info.id).collect();
        ids.extend(&files.given);
        ids.extend(&files.doomed);
        ids.extend(files.freed.iter().map(|(_, id)| id));
        let known = ids.into_iter().filter_map(|id| self.block_path(id));
        known.chain(files.orphans.iter().cloned()).collect()
    }

    /// Files that were in the folder at [`Store::restore`] and that the checkpoint does not name: blocks written
    /// after it, whose messages the log still has.
    #[must_use]
    pub fn orphans(&self) -> &[FilePath] {
        &self.files.orphans
    }

    /// Removes the orphans. Only for a caller who knows that the checkpoint was the newest.
    pub fn remove_orphans(&mut self) {
        for file in std::mem::take(&mut self.files.orphans) {
            let token = self.io.ask(IoOp::Remove { file });
            self.files.removals.insert(token);
        }
    }

    /// Frees a part of what was purged.
    fn bury(&mut self) {
        let Some(remains) = self.graveyard.front_mut() else {
            return;
        };
        let left = (0..8).all(|_| match remains {
            Remains::Tree(tree) => tree.dismantle(),
            Remains::Tail(tail) => tail.dismantle(),
        });
        if !left {
            self.graveyard.pop_front();
        }
    }
}

//! A disk in memory for tests and the simulator: deterministic, and as unkind as a real one may be.
//!
//! Each file keeps its durable content apart from what was written and not yet synced, in sectors of 512 bytes. A
//! [crash](MemDisk::crash) decides for each unsynced sector, from a seed, whether it keeps the new bytes, the old
//! ones, or some of both; for each unsynced length, which one holds; for each empty file that was made and never synced,
//! whether it is there; for each removal that no later directory change made durable, whether it took place. After a failed sync the sectors in question are never made durable by a later
//! sync, as on Linux, where the kernel marks them clean. [Faults](Fault) fail operations on demand.

use crate::{Disk, FilePath, IoError, IoOp, IoOutput};
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a disk writes as one; a crash may part what is longer.
pub const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// An operation that is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A `Write` puts down some of its sectors, durable or not, and fails.
    Write,
    /// A `Sync`, or the sync of a `Write`, fails.
    Sync,
    /// A `Create` or `Replace` fails and changes nothing.
    Create,
    /// A `Read` fails.
    Read,
}

/// See the module's text. Shared by reference between threads if need be.
#[derive(Debug, Default)]
pub struct MemDisk {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<FilePath, File>,
    /// Removed files whose removal is not durable yet.
    removed: BTreeMap<FilePath, File>,
    /// Sum of the files' lengths may not exceed this.
    capacity: Option<u64>,
    /// Faults to come, with the number of matching operations that are let through first.
    faults: Vec<(Fault, u64)>,
    /// Files whose names end so are not created or replaced, so many times.
    refused: Option<(String, u32)>,
    /// Operations up to and including the one during which the power fails; 0 once it is off.
    power: Option<u64>,
    rng: SplitMix,
    ops: u64,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// Made empty and never synced: a crash may take it away.
    unnamed: bool,
    len: u64,
    synced_len: u64,
    /// Durable sectors that are not all zeros.
    durable: BTreeMap<u64, Sector>,
    /// Sectors whose sync failed: readable, may be lost in a crash, and no sync helps them.
    doubtful: BTreeMap<u64, Sector>,
    /// Sectors written since the last sync.
    dirty: BTreeMap<u64, Sector>,
}

/// Steele, Lea, Flood: "Fast splittable pseudorandom number generators" (OOPSLA 2014).
#[derive(Debug, Default)]
struct SplitMix(u64);

impl SplitMix {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

impl File {
    const fn zeros(len: u64) -> Self {
        Self {
            unnamed: len == 0,
            len,
            synced_len: len,
            durable: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            dirty: BTreeMap::new(),
        }
    }

    fn sector(&self, number: u64) -> Sector {
        [&self.dirty, &self.doubtful, &self.durable]
            .into_iter()
            .find_map(|layer| layer.get(&number))
            .copied()
            .unwrap_or([0; SECTOR_BYTES])
    }

    fn read(&self, offset: u64, len: u64) -> Bytes {
        let end = offset.saturating_add(len).min(self.len);
        let mut out = BytesMut::new();
        for (number, range) in sectors(offset..end) {
            out.extend_from_slice(self.sector(number).get(range).unwrap_or_default());
        }
        out.freeze()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        let mut rest = data;
        for (number, range) in sectors(offset..end) {
            let mut sector = self.sector(number);
            let (now, later) = rest.split_at_checked(range.len()).unwrap_or((rest, &[]));
            if let Some(place) = sector.get_mut(range) {
                place.copy_from_slice(now);
            }
            self.dirty.insert(number, sector);
            rest = later;
        }
        self.len = self.len.max(end);
    }

    fn truncate(&mut self, len: u64) {
        if len < self.len {
            // Bytes beyond the end read as zeros if the file grows again. The durable ones come back with their
            // length if the truncation is lost, so the zeros are dirty.
            for (number, range) in sectors(len..self.len) {
                let mut sector = self.sector(number);
                sector.get_mut(range).unwrap_or_default().fill(0);
                self.dirty.insert(number, sector);
            }
        }
        self.len = len;
    }

    fn sync(&mut self) {
        self.unnamed = false;
        self.synced_len = self.len;
        for (number, sector) in std::mem::take(&mut self.dirty) {
            self.doubtful.remove(&number);
            if sector == [0; SECTOR_BYTES] {
                self.durable.remove(&number);
            } else {
                self.durable.insert(number, sector);
            }
        }
        let beyond = self.len.div_ceil(SECTOR_BYTES as u64);
        self.durable.split_off(&beyond);
    }

    fn fail_sync(&mut self) {
        self.doubtful.append(&mut self.dirty);
    }

    fn crash(&mut self, rng: &mut SplitMix) {
        if self.len != self.synced_len && rng.below(2) == 0 {
            self.synced_len = self.len;
        }
        self.len = self.synced_len;
        let mut unsynced = std::mem::take(&mut self.doubtful);
        unsynced.append(&mut self.dirty);
        for (number, new) in unsynced {
            let mut sector = self.durable.get(&number).copied().unwrap_or([0; SECTOR_BYTES]);
            let kept = match rng.below(5) {
                0 | 1 => 0..0,
                2 | 3 => 0..SECTOR_BYTES,
                _ => torn(rng),
            };
            if let (Some(place), Some(data)) = (sector.get_mut(kept.clone()), new.get(kept)) {
                place.copy_from_slice(data);
            }
            self.durable.insert(number, sector);
        }
        self.forget_beyond_end();
    }

    /// What lies beyond the end is not there.
    fn forget_beyond_end(&mut self) {
        let whole = self.len / SECTOR_BYTES as u64;
        let last = self.durable.remove(&whole);
        self.durable.split_off(&whole);
        let used = within(self.len);
        if let Some(mut sector) = last
            && used > 0
        {
            sector.get_mut(used..).unwrap_or_default().fill(0);
            self.durable.insert(whole, sector);
        }
    }
}

/// Where in its sector a byte lies.
fn within(offset: u64) -> usize {
    usize::try_from(offset % SECTOR_BYTES as u64).unwrap_or(0)
}

fn torn(rng: &mut SplitMix) -> Range<usize> {
    let cut = within(rng.next());
    if rng.below(2) == 0 {
        0..cut
    } else {
        cut..SECTOR_BYTES
    }
}

/// The sectors that a range of bytes touches, and which of their bytes.
fn sectors(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let size = SECTOR_BYTES as u64;
    let touched = if range.is_empty() {
        0..0
    } else {
        range.start / size..range.end.div_ceil(size)
    };
    touched.map(move |number| {
        let start = number * size;
        let from = range.start.saturating_sub(start);
        let to = (range.end - start).min(size);
        (number, within(from)..usize::try_from(to).unwrap_or(SECTOR_BYTES))
    })
}

impl MemDisk {
    /// An empty disk without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Power is lost and comes back: what was not durable is kept, lost or torn as the seed decides. Planned faults
    /// and a planned power failure are forgotten.
    pub fn crash(&self, seed: u64) {
        let mut state = self.lock();
        let state = &mut *state;
        state.rng = SplitMix(seed);
        state.power = None;
        state.faults.clear();
        for (path, file) in std::mem::take(&mut state.removed) {
            if state.rng.below(2) == 0 {
                state.files.entry(path).or_insert(file);
            }
        }
        let rng = &mut state.rng;
        state.files.retain(|_, file| !file.unnamed || rng.below(2) == 0);
        for file in state.files.values_mut() {
            file.unnamed = false;
            file.crash(&mut state.rng);
        }
    }

    /// Lets `skip` operations of this kind pass and fails the next one. Calls add up: two with `skip` 0 fail the
    /// next two.
    pub fn fail(&self, fault: Fault, skip: u64) {
        self.lock().faults.push((fault, skip));
    }

    /// Fails the next `times` creations and replacements of files whose names end in `ending`.
    pub fn refuse(&self, ending: &str, times: u32) {
        self.lock().refused = Some((ending.to_owned(), times));
    }

    /// Forgets the failures that were planned.
    pub fn fail_no_more(&self) {
        let mut state = self.lock();
        state.faults.clear();
        state.refused = None;
    }

    /// Lets `ops` operations pass, does a part of the next one if it is a write, and fails it and all later ones
    /// until [`MemDisk::crash`].
    pub fn power_off_after(&self, ops: u64) {
        self.lock().power = Some(ops.saturating_add(1));
    }

    /// Limits the sum of the files' lengths, in bytes; `None` lifts the limit. Files that are there stay.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Flips one bit of a file as it is read now and after a crash; false if the file does not reach that far.
    pub fn flip_bit(&self, file: &FilePath, bit: u64) -> bool {
        let mut state = self.lock();
        let Some(file) = state.files.get_mut(file) else {
            return false;
        };
        let offset = bit / 8;
        if offset >= file.len {
            return false;
        }
        let number = offset / SECTOR_BYTES as u64;
        let at = within(offset);
        file.durable.entry(number).or_insert([0; SECTOR_BYTES]);
        for layer in [&mut file.durable, &mut file.doubtful, &mut file.dirty] {
            if let Some(byte) = layer.get_mut(&number).and_then(|sector| sector.get_mut(at)) {
                *byte ^= 1 << (bit % 8);
            }
        }
        true
    }

    /// Operations run so far, failed ones included.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.lock().ops
    }

    /// All files with their lengths in bytes, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<(FilePath, u64)> {
        let state = self.lock();
        state
            .files
            .iter()
            .map(|(path, file)| (path.clone(), file.len))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemDisk {
    fn run(&self, op: &IoOp) -> Result<IoOutput, IoError> {
        self.lock().run(op)
    }
}

impl State {
    fn run(&mut self, op: &IoOp) -> Result<IoOutput, IoError> {
        if *op == IoOp::Space {
            return Ok(self.space());
        }
        self.ops += 1;
        self.draw_power(op)?;
        match op {
            IoOp::Write {
                file,
                offset,
                parts,
                sync,
            } => self.write(file, *offset, parts, *sync),
            IoOp::Read { file, offset, len } => {
                self.check_fault(Fault::Read)?;
                Ok(IoOutput::Data(self.file(file)?.read(*offset, *len)))
            }
            IoOp::Create { file, len } => {
                self.check_refused(file)?;
                self.create(file, *len)
            }
            IoOp::Sync { file } => self.sync(file),
            IoOp::Replace { file, data } => {
                self.check_refused(file)?;
                self.replace(file, data, false)
            }
            IoOp::ReplaceFrom { file, data, reserve } => {
                let given_up = self.files.remove(reserve).ok_or(IoError::NotFound)?;
                let fits = data.len() as u64 <= given_up.len.next_multiple_of(crate::ALIGNMENT as u64);
                self.replace(file, data, fits)
            }
            IoOp::Rename { from, to } => {
                let content = self.files.remove(from).ok_or(IoError::NotFound)?;
                self.files.insert(to.clone(), content);
                self.dir_synced(from);
                self.dir_synced(to);
                Ok(IoOutput::Done)
            }
            IoOp::Truncate { file, len } => {
                let longer = len.saturating_sub(self.file(file)?.len);
                self.check_space(longer)?;
                self.file(file)?.truncate(*len);
                Ok(IoOutput::Done)
            }
            IoOp::Remove { file } => {
                if let Some(content) = self.files.remove(file) {
                    self.removed.insert(file.clone(), content);
                }
                Ok(IoOutput::Done)
            }
            IoOp::List { dir } => Ok(IoOutput::Names(self.list(dir))),
            IoOp::Size { file } => Ok(IoOutput::Size(self.file(file)?.len)),
            IoOp::Space => Ok(self.space()),
        }
    }

    fn file(&mut self, path: &FilePath) -> Result<&mut File, IoError> {
        self.files.get_mut(path).ok_or(IoError::NotFound)
    }

    fn write(
        &mut self,
        path: &FilePath,
        offset: u64,
        parts: &[Bytes],
        sync: bool,
    ) -> Result<IoOutput, IoError> {
        let data = parts.concat();
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or_else(|| failure("the file would be too long"))?;
        let longer = end.saturating_sub(self.file(path)?.len);
        self.check_space(longer)?;
        if let Err(error) = self.check_fault(Fault::Write) {
            self.write_some(path, offset, &data);
            return Err(error);
        }
        self.file(path)?.write(offset, &data);
        if sync { self.sync(path) } else { Ok(IoOutput::Done) }
    }

    /// The first so many bytes, as a write that fails half way leaves them.
    fn write_some(&mut self, path: &FilePath, offset: u64, data: &[u8]) {
        let done = usize::try_from(self.rng.below(data.len() as u64 + 1)).unwrap_or(0);
        if let Ok(file) = self.file(path) {
            file.write(offset, data.get(..done).unwrap_or_default());
        }
    }

    fn sync(&mut self, path: &FilePath) -> Result<IoOutput, IoError> {
        self.file(path)?;
        let fault = self.check_fault(Fault::Sync);
        let file = self.file(path)?;
        match fault {
            Ok(()) if file.unnamed => {
                file.sync();
                self.dir_synced(path);
            }
            Ok(()) => file.sync(),
            Err(_) => file.fail_sync(),
        }
        fault.map(|()| IoOutput::Done)
    }

    fn create(&mut self, path: &FilePath, len: u64) -> Result<IoOutput, IoError> {
        if self.files.contains_key(path) {
            return Err(IoError::AlreadyExists);
        }
        self.check_space(len)?;
        self.check_fault(Fault::Create)?;
        self.files.insert(path.clone(), File::zeros(len));
        if len > 0 {
            self.dir_synced(path);
        }
        Ok(IoOutput::Done)
    }

    /// With `fits` in the place of a file that was given up.
    fn replace(&mut self, path: &FilePath, data: &[u8], fits: bool) -> Result<IoOutput, IoError> {
        // Old and new content are there at the same time for a moment.
        self.check_space(if fits { 0 } else { data.len() as u64 })?;
        self.check_fault(Fault::Create)?;
        let mut file = File::default();
        file.write(0, data);
        file.sync();
        self.files.insert(path.clone(), file);
        self.dir_synced(path);
        Ok(IoOutput::Done)
    }

    fn list(&self, dir: &FilePath) -> Vec<String> {
        let names: BTreeSet<String> = self
            .files
            .keys()
            .filter_map(|path| {
                let inside = match dir.as_str() {
                    "" => path.as_str(),
                    dir => path.as_str().strip_prefix(dir)?.strip_prefix('/')?,
                };
                inside.split('/').next().map(String::from)
            })
            .collect();
        names.into_iter().collect()
    }

    /// The directory of `path` was synced: removals in it are durable, and so are names.
    fn dir_synced(&mut self, path: &FilePath) {
        let dir = path.parent();
        self.removed.retain(|removed, _| removed.parent() != dir);
        for (_, file) in self.files.iter_mut().filter(|(path, _)| path.parent() == dir) {
            file.unnamed = false;
        }
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| file.len).sum()
    }

    fn space(&self) -> IoOutput {
        let total = self.capacity.unwrap_or(u64::MAX);
        IoOutput::Space {
            free: total.saturating_sub(self.used()),
            total,
        }
    }

    fn check_space(&self, more: u64) -> Result<(), IoError> {
        let used = self.used();
        match self.capacity {
            Some(capacity) if more > 0 && used.saturating_add(more) > capacity => Err(IoError::NoSpace),
            Some(_) | None => Ok(()),
        }
    }

    /// Fails if a fault of this kind is due.
    fn check_fault(&mut self, fault: Fault) -> Result<(), IoError> {
        let Some(at) = self.faults.iter().position(|(planned, _)| *planned == fault) else {
            return Ok(());
        };
        match self.faults.get_mut(at) {
            Some((_, skip)) if *skip > 0 => {
                *skip -= 1;
                Ok(())
            }
            Some(_) | None => {
                self.faults.remove(at);
                Err(failure("injected fault"))
            }
        }
    }

    fn check_refused(&mut self, file: &FilePath) -> Result<(), IoError> {
        match &mut self.refused {
            Some((ending, left)) if *left > 0 && file.name().ends_with(ending.as_str()) => {
                *left -= 1;
                Err(failure("injected fault"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Counts down to the power failure.
    fn draw_power(&mut self, op: &IoOp) -> Result<(), IoError> {
        match self.power {
            None => return Ok(()),
            Some(0) => {}
            Some(left) => {
                self.power = Some(left - 1);
                if left > 1 {
                    return Ok(());
                }
                // This is the operation during which the power goes.
                if let IoOp::Write {
                    file, offset, parts, ..
                } = op
                {
                    let data = parts.concat();
                    self.write_some(file, *offset, &data);
                }
            }
        }
        Err(failure("the power is off"))
    }
}

fn failure(text: &str) -> IoError {
    IoError::Device(Arc::from(text))
}

#[cfg(test)]
mod tests;

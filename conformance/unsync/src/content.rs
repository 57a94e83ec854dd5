//! The bytes of one file: those that are durable, in a file of the backing folder (its object), and over them the sectors that were
//! written since the last sync, in memory.

use crate::chance::Chance;
use crate::loss::{Loss, Lost};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that a power loss keeps, loses or tears as one.
pub(crate) const SECTOR: usize = 4096;
/// Bytes of a torn sector that are all new or all old.
const ATOM: usize = 512;

type Sector = Box<[u8; SECTOR]>;

/// A file's bytes.
#[derive(Debug)]
pub(crate) struct Content {
    object: PathBuf,
    /// Length of the object.
    durable_len: u64,
    /// Length as processes see it.
    len: u64,
    /// How much of the object processes see: less than all of it after the file was cut.
    shown: u64,
    /// Written since the last sync, by number of the sector. Bytes of the last one beyond the end are zero.
    changed: BTreeMap<u64, Sector>,
}

impl Content {
    /// A new empty file.
    pub(crate) fn create(object: PathBuf) -> io::Result<Self> {
        File::create_new(&object)?;
        Self::open(object)
    }

    /// A file that is there, all of it durable.
    pub(crate) fn open(object: PathBuf) -> io::Result<Self> {
        let len = object.metadata()?.len();
        Ok(Self {
            object,
            durable_len: len,
            len,
            shown: len,
            changed: BTreeMap::new(),
        })
    }

    /// Where the durable bytes are.
    pub(crate) fn object(&self) -> &Path {
        &self.object
    }

    /// Length in bytes, as processes see it.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Up to `size` bytes from `offset` on: fewer where the file ends.
    pub(crate) fn read(&self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let there = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut data = vec![0; size.min(there)];
        if data.is_empty() {
            return Ok(data);
        }
        let durable = usize::try_from(self.shown.saturating_sub(offset)).unwrap_or(usize::MAX);
        let durable = durable.min(data.len());
        if let Some(part) = data.get_mut(..durable).filter(|part| !part.is_empty()) {
            read_object(&self.object, offset, part)?;
        }
        for (sector, from, at, count) in pieces(offset, data.len()) {
            if let Some(new) = self.changed.get(&sector) {
                copy(&mut data, at, &new[..], from, count);
            }
        }
        Ok(data)
    }

    /// Writes at `offset`; the file grows as it needs.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        for (sector, into, at, count) in pieces(offset, data.len()) {
            let whole = count == SECTOR;
            copy(&mut self.sector(sector, whole)?[..], into, data, at, count);
        }
        self.len = self.len.max(offset + data.len() as u64);
        Ok(())
    }

    /// Writes zeros; `grow` tells whether the file may become longer by that.
    pub(crate) fn zero(&mut self, offset: u64, count: u64, grow: bool) -> io::Result<()> {
        let end = if grow {
            offset + count
        } else {
            (offset + count).min(self.len)
        };
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(SECTOR as u64);
            let zeros = [0; SECTOR];
            let zeros = zeros.get(..usize::try_from(piece).unwrap_or(SECTOR));
            self.write(at, zeros.unwrap_or_default())?;
            at += piece;
        }
        Ok(())
    }

    /// Sets the length; what comes new is zero.
    pub(crate) fn set_len(&mut self, len: u64) -> io::Result<()> {
        if len < self.len {
            let (last, used) = place(len);
            if used > 0 {
                let rest = self.sector(last, false)?.get_mut(used..);
                rest.unwrap_or_default().fill(0);
            }
            self.changed.split_off(&(last + u64::from(used > 0)));
            self.shown = self.shown.min(len);
        }
        self.len = len;
        Ok(())
    }

    /// Makes all of it durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        let keep_all = std::mem::take(&mut self.changed);
        self.store(self.shown, self.len, &keep_all)
    }

    /// Forgets what was not synced, or what chance has it forget of that.
    pub(crate) fn lose(&mut self, loss: &mut Loss, lost: &mut Lost) -> io::Result<()> {
        let same_len = self.len == self.durable_len && self.shown == self.durable_len;
        if self.changed.is_empty() && same_len {
            return Ok(());
        }
        lost.files += 1;
        let changed = std::mem::take(&mut self.changed);
        match loss {
            Loss::All => {
                lost.sectors += changed.len() as u64;
                (self.len, self.shown) = (self.durable_len, self.durable_len);
                Ok(())
            }
            Loss::Some(chance) => {
                let cut = self.shown < self.durable_len && chance.up_to(1) == 0;
                let base = if cut { self.shown } else { self.durable_len };
                let len = base.max(surviving_len(chance, base, self.len));
                self.shown = base;
                let kept = self.surviving(chance, lost, changed)?;
                self.store(base, len, &kept)
            }
        }
    }

    /// The sectors that chance lets survive, whole or torn.
    fn surviving(
        &self,
        chance: &mut Chance,
        lost: &mut Lost,
        changed: BTreeMap<u64, Sector>,
    ) -> io::Result<BTreeMap<u64, Sector>> {
        let mut kept = BTreeMap::new();
        for (number, new) in changed {
            match chance.up_to(2) {
                0 => lost.sectors += 1,
                1 => {
                    kept.insert(number, new);
                }
                _ => {
                    lost.torn += 1;
                    let old = self.durable_sector(number)?;
                    kept.insert(number, tear(chance, old, &new));
                }
            }
        }
        Ok(kept)
    }

    /// Brings the object to `shown` bytes of its own, then to these sectors and this length.
    fn store(&mut self, shown: u64, len: u64, sectors: &BTreeMap<u64, Sector>) -> io::Result<()> {
        if !sectors.is_empty() || shown < self.durable_len || len != self.durable_len {
            let object = OpenOptions::new().write(true).open(&self.object)?;
            if shown < self.durable_len {
                object.set_len(shown)?;
            }
            for (number, sector) in sectors {
                object.write_all_at(&sector[..], number * SECTOR as u64)?;
            }
            object.set_len(len)?;
        }
        (self.len, self.durable_len, self.shown) = (len, len, len);
        Ok(())
    }

    /// A sector to be changed; `blank` if none of what it held matters.
    fn sector(&mut self, number: u64, blank: bool) -> io::Result<&mut Sector> {
        if !self.changed.contains_key(&number) {
            let held = if blank {
                zeros()
            } else {
                self.durable_sector(number)?
            };
            self.changed.insert(number, held);
        }
        Ok(self.changed.entry(number).or_insert_with(zeros))
    }

    /// What the object shows in the place of a sector.
    fn durable_sector(&self, number: u64) -> io::Result<Sector> {
        let mut sector = zeros();
        let offset = number * SECTOR as u64;
        let there = self.shown.saturating_sub(offset).min(SECTOR as u64);
        if let Some(part) = sector.get_mut(..usize::try_from(there).unwrap_or(SECTOR)) {
            read_object(&self.object, offset, part)?;
        }
        Ok(sector)
    }
}

/// Where a file that has grown may end: where it did, where it does, or with any sector between.
fn surviving_len(chance: &mut Chance, before: u64, now: u64) -> u64 {
    if now <= before {
        return before;
    }
    let first = before.div_ceil(SECTOR as u64);
    let steps = now.div_ceil(SECTOR as u64) - first;
    match chance.up_to(2) {
        0 => before,
        1 => now,
        _ => ((first + chance.up_to(steps)) * SECTOR as u64).clamp(before, now),
    }
}

/// New bytes up to some place in the sector and old ones behind it, or the other way round.
fn tear(chance: &mut Chance, old: Sector, new: &Sector) -> Sector {
    let atoms = (SECTOR / ATOM) as u64;
    let at = ATOM * usize::try_from(1 + chance.up_to(atoms - 2)).unwrap_or(1);
    let mut torn = old;
    if chance.up_to(1) == 0 {
        copy(&mut torn[..], 0, &new[..], 0, at);
    } else {
        copy(&mut torn[..], at, &new[..], at, SECTOR - at);
    }
    torn
}

fn zeros() -> Sector {
    Box::new([0; SECTOR])
}

/// Number of a byte's sector, and its place in that.
fn place(offset: u64) -> (u64, usize) {
    let size = SECTOR as u64;
    (offset / size, usize::try_from(offset % size).unwrap_or(0))
}

/// The parts of a range by sectors: number of the sector, place in it, place in the range, count of bytes.
fn pieces(offset: u64, size: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let (sector, from) = place(offset + at as u64);
        let count = (SECTOR - from).min(size - at);
        let piece = (sector, from, at, count);
        at += count;
        (count > 0).then_some(piece)
    })
}

fn copy(into: &mut [u8], at: usize, from: &[u8], start: usize, count: usize) {
    if let (Some(into), Some(from)) = (into.get_mut(at..at + count), from.get(start..start + count)) {
        into.copy_from_slice(from);
    }
}

fn read_object(object: &Path, offset: u64, part: &mut [u8]) -> io::Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    File::open(object)?.read_exact_at(part, offset)
}

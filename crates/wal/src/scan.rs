//! Reading a lane's files after a start: which batches are in each segment, which segments make up the log, and
//! where bytes are missing from it.

use crate::batch::{LaneId, Repeated};
use crate::config::WalError;
use crate::control::{Control, SLOTS};
use crate::header::{Header, NoHeader, Position};
use crate::segments::{Spare, segment_file, slot_of};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use tidelock_record::{ALIGNMENT, Disk, FilePath, IoError};

const BLOCK: u64 = ALIGNMENT as u64;
/// Read at once from a file of which a larger read failed.
const PIECE_BYTES: u64 = 64 * 1024;

/// One segment as it was found.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) file: Spare,
    pub(crate) generation: u64,
    pub(crate) data: Bytes,
    /// In order. A batch whose body fails its checksum is among them.
    pub(crate) batches: Vec<Header>,
}

/// All that was found in the directory of a lane.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) control: Option<Control>,
    pub(crate) lane_id: Option<u64>,
    pub(crate) scans: BTreeMap<u64, Scan>,
    /// Files that hold nothing of this lane.
    pub(crate) blank: Vec<Spare>,
    pub(crate) next_slot: u64,
}

/// A stretch of the log.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A batch; `generation` finds the scan.
    Batch { generation: u64, header: Header },
    /// Bytes of which no header could be read: one batch or more.
    Hole { from: Position, to: u64 },
}

/// The log as it was found, in order.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) pieces: Vec<Piece>,
    /// Generations of the segments, ascending.
    pub(crate) generations: Vec<u64>,
    /// End of what is known as durable.
    pub(crate) synced: Position,
    /// Bytes of torn batches in segments that were just begun.
    pub(crate) torn_bytes: u64,
}

fn io(file: &FilePath) -> impl FnOnce(IoError) -> WalError {
    let file = file.clone();
    move |error| WalError::Io { file, error }
}

/// Reads all files of the lane.
pub(crate) fn find(disk: &dyn Disk, dir: &FilePath, lane: u16) -> Result<Found, WalError> {
    let names = disk.list(dir).map_err(io(dir))?;
    let mut found = Found {
        control: read_control(disk, dir, lane),
        ..Found::default()
    };
    let mut files = Vec::new();
    for slot in names.iter().filter_map(|name| slot_of(name)) {
        found.next_slot = found.next_slot.max(slot + 1);
        let path = segment_file(dir, slot);
        let len = disk.size(&path).map_err(io(&path))?;
        let drained = found.control.as_ref().is_some_and(|control| control.drained);
        let data = if drained {
            Bytes::new()
        } else {
            read_whole(disk, &path, len)
        };
        if Header::parse(&data) == Err(NoHeader::Unsupported) {
            return Err(WalError::Unsupported { file: path });
        }
        files.push((Spare { slot, len }, data));
    }
    found.lane_id = match &found.control {
        Some(control) => Some(control.lane_id),
        None => guess_lane_id(&files, lane),
    };
    for (file, data) in files {
        let scan = found
            .lane_id
            .and_then(|id| scan_segment(file, data, LaneId { lane, id }));
        match scan {
            None => found.blank.push(file),
            Some(scan) => {
                let twin = found.scans.insert(scan.generation, scan);
                found.blank.extend(twin.map(|twin| twin.file));
            }
        }
    }
    Ok(found)
}

/// The younger of the two slots that can be read.
fn read_control(disk: &dyn Disk, dir: &FilePath, lane: u16) -> Option<Control> {
    let read = |name: &str| {
        let path = dir.join(name).ok()?;
        let data = disk.read(&path, 0, PIECE_BYTES * 64).ok()?;
        Control::decode(&data).filter(|control| control.lane == lane)
    };
    SLOTS
        .into_iter()
        .filter_map(read)
        .max_by_key(|control| control.sequence)
}

/// The whole file; what cannot be read is zeros, and so becomes damage of just the batches there.
fn read_whole(disk: &dyn Disk, file: &FilePath, len: u64) -> Bytes {
    if let Ok(data) = disk.read(file, 0, len) {
        return data;
    }
    let mut out = BytesMut::new();
    let mut offset = 0;
    while offset < len {
        let mut step = PIECE_BYTES.min(len - offset);
        let piece = disk.read(file, offset, step).or_else(|_| {
            step = BLOCK.min(len - offset);
            disk.read(file, offset, step)
        });
        let before = out.len();
        out.extend_from_slice(&piece.unwrap_or_default());
        offset += step;
        out.resize(
            before.saturating_add(usize::try_from(step).unwrap_or(usize::MAX)),
            0,
        );
    }
    out.freeze()
}

/// Without a control file: the lane id of the youngest segment.
fn guess_lane_id(files: &[(Spare, Bytes)], lane: u16) -> Option<u64> {
    let heads = files.iter().filter_map(|(_, data)| Header::parse(data).ok());
    let ours = heads.filter(|header| header.lane == lane && header.stamp.at.offset == 0);
    ours.max_by_key(|header| header.stamp.at.generation)
        .map(|header| header.lane_id)
}

/// The header at that offset, if it belongs there.
fn header_at(data: &[u8], offset: u64, id: LaneId) -> Option<Header> {
    let bytes = data.get(usize::try_from(offset).ok()?..)?;
    let header = Header::parse(bytes).ok()?;
    let ours = header.lane == id.lane && header.lane_id == id.id && header.stamp.at.offset == offset;
    ours.then_some(header)
}

fn scan_segment(file: Spare, data: Bytes, id: LaneId) -> Option<Scan> {
    let end = data.len() as u64;
    let offsets = |from: u64| (from..end).step_by(ALIGNMENT);
    let generation = match header_at(&data, 0, id) {
        Some(header) => header.stamp.at.generation,
        // Older generations may shine through behind the end of the youngest.
        None => offsets(0)
            .filter_map(|at| header_at(&data, at, id))
            .map(|header| header.stamp.at.generation)
            .max()?,
    };
    let mut batches: Vec<Header> = Vec::new();
    let (mut at, mut last) = (0, 0);
    loop {
        let fits = |header: &Header| header.stamp.at.generation == generation && header.number > last;
        let found = offsets(at).find_map(|at| header_at(&data, at, id).filter(fits));
        let Some(header) = found else {
            break;
        };
        (at, last) = (header.end().offset, header.number);
        batches.push(header);
    }
    Some(Scan {
        file,
        generation,
        data,
        batches,
    })
}

impl Scan {
    /// The bytes of a batch of this segment.
    pub(crate) fn bytes(&self, header: &Header) -> Bytes {
        let start = usize::try_from(header.stamp.at.offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(header.total_len);
        if end <= self.data.len() {
            self.data.slice(start..end)
        } else {
            Bytes::new()
        }
    }
}

impl Found {
    /// Lowest generation that is part of the log.
    pub(crate) fn first_generation(&self) -> u64 {
        let headers = self.scans.values().flat_map(|scan| &scan.batches);
        let told = headers.map(|header| header.stamp.first_generation);
        let control = self.control.as_ref().map(|control| control.first_generation);
        told.chain(control).max().unwrap_or(0)
    }

    /// How far the log is known to be durable.
    fn synced(&self) -> Position {
        let headers = self.scans.values().flat_map(|scan| &scan.batches);
        let told = headers.map(|header| header.stamp.synced);
        // What a drained lane held lies elsewhere, and nothing of it is missed.
        let control = self
            .control
            .as_ref()
            .filter(|control| !control.drained)
            .map(|control| control.synced);
        told.chain(control).max().unwrap_or_default()
    }

    /// Highest generation that was ever seen.
    pub(crate) fn last_generation(&self) -> u64 {
        let scanned = self.scans.keys().next_back().copied().unwrap_or(0);
        scanned.max(self.synced().generation).max(self.first_generation())
    }

    /// Whether the segment is part of the log: a batch in it is known as durable, or its first batch is whole. If
    /// not, the crash tore the first batch, and what its header says of the segment before must not count: the batch
    /// may lie there whole, from before it was written again.
    fn is_begun(&self, scan: &Scan, synced: Position) -> bool {
        let first = scan.batches.first().filter(|header| header.stamp.at.offset == 0);
        let whole = first.is_some_and(|header| header.body(&scan.bytes(header)).is_some());
        scan.generation <= synced.generation || whole
    }

    /// Puts the segments in order, from the youngest back: each says where the log ended when it was begun.
    pub(crate) fn chain(&self) -> Chain {
        let first = self.first_generation();
        let synced = self.synced();
        let mut chain = Chain {
            synced,
            ..Chain::default()
        };
        let mut links: Vec<(u64, Option<u64>)> = Vec::new();
        let mut youngest = 0;
        for (generation, scan) in self.scans.iter().rev() {
            if self.is_begun(scan, synced) {
                youngest = *generation;
                break;
            }
            chain.torn_bytes += scan.batches.first().map_or(0, |header| header.total_len as u64);
        }
        let mut at = if synced.generation > youngest {
            Some((synced.generation, Some(synced.offset)))
        } else {
            (youngest > 0).then_some((youngest, None))
        };
        while let Some((generation, end)) = at.filter(|(generation, _)| *generation >= first.max(1)) {
            links.push((generation, end));
            at = match self.scans.get(&generation).and_then(|scan| scan.batches.first()) {
                Some(header) => {
                    let sealed = header.stamp.sealed;
                    // A header that names itself or a younger segment would lead round in a circle.
                    (sealed.generation < generation).then_some((sealed.generation, Some(sealed.offset)))
                }
                // Nothing of this segment can be read, so nothing says where the one before ends.
                None => self
                    .scans
                    .range(..generation)
                    .next_back()
                    .map(|(older, _)| (*older, None)),
            };
        }
        links.reverse();
        let mut last = 0;
        for (generation, end) in links {
            chain.generations.push(generation);
            last = self.add_segment(&mut chain.pieces, generation, end, synced, last);
        }
        chain
    }

    /// Adds the pieces of one segment, whose log ends at `end` if that is known.
    fn add_segment(
        &self,
        pieces: &mut Vec<Piece>,
        generation: u64,
        end: Option<u64>,
        synced: Position,
        mut last: u64,
    ) -> u64 {
        let mut at = 0;
        let hole = |pieces: &mut Vec<Piece>, offset: u64, to: u64| {
            if offset < to {
                let from = Position { generation, offset };
                pieces.push(Piece::Hole { from, to });
            }
        };
        let batches = self.scans.get(&generation).map_or(&[][..], |scan| &scan.batches);
        for header in batches {
            let start = header.stamp.at.offset;
            if end.is_some_and(|end| start >= end) {
                break;
            }
            // A number that goes back cannot come from the batches being written in order.
            if header.number <= last {
                continue;
            }
            hole(pieces, at, start);
            (at, last) = (header.end().offset, header.number);
            let header = header.clone();
            pieces.push(Piece::Batch { generation, header });
        }
        let known = if synced.generation == generation {
            synced.offset
        } else {
            0
        };
        hole(pieces, at, end.unwrap_or(0).max(known));
        last
    }

    /// Bytes at the end of the log that look like a batch that was being written.
    pub(crate) fn torn_bytes(&self, end: Position) -> u64 {
        let Some(scan) = self.scans.get(&end.generation) else {
            return 0;
        };
        let start = usize::try_from(end.offset).unwrap_or(usize::MAX);
        let rest = scan.data.get(start..).unwrap_or_default();
        crate::header::torn_len(rest, end.generation).min(rest.len() as u64)
    }
}

impl Header {
    /// What the next header repeats of this batch.
    pub(crate) fn repeated(&self) -> Repeated {
        Repeated {
            total_len: u32::try_from(self.total_len).unwrap_or(0),
            items: self.items.clone(),
        }
    }
}

//! The index of a block: where each of its messages lies, and on which subject it is.

use super::format::{BlockInfo, FRAME_HEAD_BYTES, HEADER_BYTES};
use crate::codec::{Malformed, Reader, narrow, put_bytes, put_signed, put_varint};
use crate::postings::{Run, decode_list, encode_list};
use crate::tree::Extent;
use bytes::Bytes;

/// One message of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Sequence relative to the block's first.
    pub(crate) rel: u32,
    /// Number of its subject in the block.
    pub(crate) subject: u32,
    /// Where its frame begins in the file.
    pub(crate) offset: u32,
    /// Size and checksum of its record.
    pub(crate) extent: Extent,
    /// Its time.
    pub(crate) ts: i64,
}

impl Row {
    /// Length of the frame in the file.
    pub(crate) const fn frame_len(&self) -> u64 {
        FRAME_HEAD_BYTES as u64 + self.extent.len() as u64
    }

    /// Where the frame ends in the file.
    pub(crate) const fn end(&self) -> u64 {
        self.offset as u64 + self.frame_len()
    }
}

/// The names of a block's subjects, by number: parts of one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    buffer: Bytes,
    bounds: Vec<(u32, u32)>,
}

impl Names {
    pub(crate) const fn new(buffer: Bytes, bounds: Vec<(u32, u32)>) -> Self {
        Self { buffer, bounds }
    }

    fn get(&self, number: u32) -> &[u8] {
        let (start, end) = self.bounds.get(number as usize).copied().unwrap_or_default();
        self.buffer.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct BlockIndex {
    rows: Vec<Row>,
    names: Names,
}

impl BlockIndex {
    pub(crate) const fn new(rows: Vec<Row>, names: Names) -> Self {
        Self { rows, names }
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The subject of a row.
    pub(crate) fn subject(&self, row: &Row) -> &[u8] {
        self.names.get(row.subject)
    }

    /// The subject of a row, shared.
    pub(crate) fn subject_bytes(&self, row: &Row) -> Bytes {
        self.names.buffer.slice_ref(self.names.get(row.subject))
    }

    /// Place of the first row at or above `rel`.
    pub(crate) fn place(&self, rel: u32) -> usize {
        // Without gaps the place follows from the sequence.
        let guess = rel as usize;
        if self.rows.get(guess).is_some_and(|row| row.rel == rel) {
            return guess;
        }
        self.rows.partition_point(|row| row.rel < rel)
    }

    pub(crate) fn find(&self, rel: u32) -> Option<&Row> {
        self.rows.get(self.place(rel)).filter(|row| row.rel == rel)
    }

    /// Memory that it takes, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        (self.rows.len() * size_of::<Row>() + self.names.bounds.len() * 8 + self.names.buffer.len()) as u64
    }

    /// Reads summary and index, which have passed their checksums.
    pub(crate) fn decode(info: &BlockInfo, summary: &Bytes, index: &[u8]) -> Result<Self, Malformed> {
        const BAD: Malformed = Malformed("index of a block is malformed");
        let mut bounds = Vec::new();
        read_summary(info, summary, &mut |subject| {
            let start = subject.name.as_ptr().addr() - summary.as_ptr().addr();
            bounds.push((narrow(start as u64), narrow((start + subject.name.len()) as u64)));
        })?;
        let mut reader = Reader::new(index);
        // Each row takes eight bytes at least, so this bounds what a wrong count can allocate.
        let mut rows = Vec::with_capacity((info.count as usize).min(index.len() / 8 + 1));
        let (mut rel, mut ts, mut offset) = (0_u32, 0_i64, HEADER_BYTES as u64);
        let end = HEADER_BYTES as u64 + info.data_len;
        for place in 0..info.count {
            let distance = reader.varint32()?;
            rel = rel
                .checked_add(distance)
                .filter(|_| place == 0 || distance > 0)
                .ok_or(BAD)?;
            let len_flag = reader.varint32()?;
            let subject = reader.varint32()?;
            ts = ts.wrapping_add(reader.signed()?);
            let extent = Extent::from_len_flag(len_flag, reader.u32()?).ok_or(BAD)?;
            let row = Row {
                rel,
                subject,
                offset: u32::try_from(offset).map_err(|_| BAD)?,
                extent,
                ts,
            };
            if subject as usize >= bounds.len() || u64::from(rel) > info.span() || row.end() > end {
                return Err(BAD);
            }
            offset = row.end();
            rows.push(row);
        }
        if reader.left() > 0 || offset != end {
            return Err(BAD);
        }
        Ok(Self::new(rows, Names::new(summary.clone(), bounds)))
    }
}

/// The index part of the file.
pub(crate) fn encode_rows(rows: &[Row]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * 13);
    let (mut rel, mut ts) = (0, 0);
    for row in rows {
        put_varint(&mut out, u64::from(row.rel - rel));
        put_varint(&mut out, u64::from(row.extent.len_flag()));
        put_varint(&mut out, u64::from(row.subject));
        put_signed(&mut out, row.ts.wrapping_sub(ts));
        out.extend_from_slice(&row.extent.crc.to_le_bytes());
        (rel, ts) = (row.rel, row.ts);
    }
    out
}

/// The summary part of the file, for rows whose first sequence is `base`.
pub(crate) fn encode_summary(base: u64, rows: &[Row], names: &Names) -> Vec<u8> {
    let subjects = names.bounds.len();
    // Rows by subject, in order: a counting sort of their places.
    let mut ends = vec![0_usize; subjects + 1];
    for row in rows {
        if let Some(end) = ends.get_mut(row.subject as usize + 1) {
            *end += 1;
        }
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum;
    }
    let starts = ends.clone();
    let mut sorted = vec![0_usize; rows.len()];
    for (place, row) in rows.iter().enumerate() {
        if let Some(next) = ends.get_mut(row.subject as usize) {
            if let Some(slot) = sorted.get_mut(*next) {
                *slot = place;
            }
            *next += 1;
        }
    }
    let mut out = Vec::with_capacity(names.buffer.len() + rows.len() * 2 + 16);
    put_varint(&mut out, subjects as u64);
    let mut seqs = Vec::new();
    for (number, bounds) in (0..).zip(starts.windows(2)) {
        let [start, end] = bounds else { continue };
        let places = sorted.get(*start..*end).unwrap_or_default();
        put_bytes(&mut out, names.get(number));
        seqs.clear();
        seqs.extend(
            places
                .iter()
                .filter_map(|&p| Some(base + u64::from(rows.get(p)?.rel))),
        );
        encode_list(&mut out, base, &seqs);
        let last = places.last().and_then(|&p| rows.get(p)).map(|row| row.extent);
        put_varint(&mut out, last.map_or(0, |extent| u64::from(extent.len_flag())));
        out.extend_from_slice(&last.map_or(0, |extent| extent.crc).to_le_bytes());
    }
    out
}

/// One subject in the summary of a block.
#[derive(Debug)]
pub(crate) struct SubjectSummary<'a, 'b> {
    pub(crate) name: &'a [u8],
    /// Its sequences.
    pub(crate) runs: &'b [Run],
    /// Size and checksum of the last record on it.
    pub(crate) last: Extent,
}

/// Gives each subject of a block in the order of their numbers.
pub(crate) fn read_summary<'a>(
    info: &BlockInfo,
    summary: &'a [u8],
    each: &mut impl FnMut(SubjectSummary<'a, '_>),
) -> Result<(), Malformed> {
    const BAD: Malformed = Malformed("summary of a block is malformed");
    let mut reader = Reader::new(summary);
    let subjects = reader.varint()?;
    let mut total = 0_u64;
    let mut runs = Vec::new();
    for _ in 0..subjects {
        let name = reader.bytes()?;
        runs.clear();
        let count = decode_list(&mut reader, info.first_seq, info.span(), &mut |run| {
            runs.push(run)
        })?;
        total = total
            .checked_add(count)
            .filter(|&n| n <= u64::from(info.count))
            .ok_or(BAD)?;
        let len_flag = reader.varint32()?;
        let last = Extent::from_len_flag(len_flag, reader.u32()?).ok_or(BAD)?;
        each(SubjectSummary {
            name,
            runs: &runs,
            last,
        });
    }
    if total != u64::from(info.count) || reader.left() > 0 {
        return Err(BAD);
    }
    Ok(())
}

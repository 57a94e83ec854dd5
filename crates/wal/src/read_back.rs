//! Reading back entries that are still part of the log, for replicas that are behind.
//!
//! One read covers batches that lie beside each other in one segment, up to a limit of bytes. What has become of a segment
//! by the time its read ends does not matter: a batch says which it is and has a checksum, and only what the index still
//! has in it is given out.

use crate::frame::WalRecord;
use crate::header::Position;
use crate::lane::{Lane, LaneEvent};
use crate::space::{body_of, entries_of};
use bytes::Bytes;
use std::collections::BTreeMap;
use tidelock_base::{GroupId, LogIndex, Term};
use tidelock_record::{IoError, IoOp, IoOutput, IoToken};

/// An entry that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Place in the group's log.
    pub index: LogIndex,
    /// Term in which it was proposed.
    pub term: Term,
    /// Kind of the entry, as the replica numbers them.
    pub kind: u8,
    /// What the state machine gets; shares the memory of what was read.
    pub data: Bytes,
}

/// Reads on their way.
#[derive(Debug, Default)]
pub(crate) struct ReadBacks {
    jobs: BTreeMap<IoToken, Job>,
}

#[derive(Debug)]
struct Job {
    group: GroupId,
    first: u64,
    bytes_max: u64,
    /// Number, place and length of the batches, in order, from the first byte of the read on.
    batches: Vec<(u64, Position, u64)>,
}

impl Lane {
    /// Begins to read entries of a group from `first` on: those of one batch at least, and of more as long as that reads
    /// no more than `bytes_max` of the log. They come as [`LaneEvent::ReadBack`] at the end of the operation, which is
    /// among [`Lane::take_requests`]. False if the durable part of the log does not have `first`.
    pub fn read_back(&mut self, group: GroupId, first: LogIndex, bytes_max: u64) -> bool {
        let batches = self.batches_from(group, first.0, bytes_max);
        let (Some((_, from, _)), Some((_, last, len))) = (batches.first(), batches.last()) else {
            return false;
        };
        let (offset, end) = (from.offset, last.offset + len);
        let mut segments = self.segments.list.iter();
        let Some(segment) = segments.find(|segment| segment.generation == from.generation) else {
            return false;
        };
        let token = self.request(IoOp::Read {
            file: self.segments.file(segment.slot),
            offset,
            len: end - offset,
        });
        let job = Job {
            group,
            first: first.0,
            bytes_max,
            batches,
        };
        self.read_backs.jobs.insert(token, job);
        true
    }

    /// The batches to be read for entries of a group from `first` on.
    fn batches_from(&self, group: GroupId, first: u64, bytes_max: u64) -> Vec<(u64, Position, u64)> {
        let mut batches: Vec<(u64, Position, u64)> = Vec::new();
        let Some(group) = self.index.groups.get(&group) else {
            return batches;
        };
        let mut next = first;
        let at = group.runs.partition_point(|run| run.last < first);
        for run in group.runs.range(at..) {
            let batch = self.index.batches.get(run.batch);
            let Some(batch) = batch.filter(|batch| batch.number <= self.synced().0 && run.first <= next)
            else {
                break;
            };
            let goes_on = batches.first().is_none_or(|(_, from, _)| {
                from.generation == batch.at.generation
                    && from.offset < batch.at.offset
                    && batch.at.offset + batch.total_len - from.offset <= bytes_max
            });
            if !goes_on {
                break;
            }
            batches.push((batch.number, batch.at, batch.total_len));
            next = run.last + 1;
        }
        batches
    }

    /// The end of a read, if the token is of one.
    pub(crate) fn read_back_done(
        &mut self,
        token: IoToken,
        result: Result<&IoOutput, &IoError>,
    ) -> Option<LaneEvent> {
        let job = self.read_backs.jobs.remove(&token)?;
        let none = Bytes::new();
        let data = match result {
            Ok(IoOutput::Data(data)) => data,
            Ok(IoOutput::Done | IoOutput::Names(_) | IoOutput::Size(_) | IoOutput::Space { .. }) | Err(_) => {
                &none
            }
        };
        let entries = self.entries_in(&job, data);
        let has_moved = entries.is_empty() && !self.is_where_it_was(&job);
        if has_moved && self.read_back(job.group, LogIndex(job.first), job.bytes_max) {
            return Some(LaneEvent::Pending);
        }
        Some(LaneEvent::ReadBack {
            group: job.group,
            first: LogIndex(job.first),
            entries,
        })
    }

    /// Whether the first entry is still in the first of the batches.
    fn is_where_it_was(&self, job: &Job) -> bool {
        let now = self.batches_from(job.group, job.first, 0);
        now.first().map(|batch| batch.0) == job.batches.first().map(|batch| batch.0)
    }

    /// The entries of a job in what was read, without a gap.
    fn entries_in(&self, job: &Job, data: &Bytes) -> Vec<StoredEntry> {
        let mut entries = Vec::new();
        let (Some(group), Some((_, from, _))) = (self.index.groups.get(&job.group), job.batches.first())
        else {
            return entries;
        };
        let mut next = job.first;
        for (number, at, len) in &job.batches {
            let range = (at.offset - from.offset, at.offset - from.offset + len);
            let bytes = bounds(range).and_then(|(start, end)| data.get(start..end));
            let body = bytes.and_then(|bytes| body_of(bytes, *number, *at));
            let found = entries_of(job.group, body.unwrap_or_default());
            for run in group.runs.iter().filter(|run| run.batch == *number) {
                for index in run.first.max(next)..=run.last {
                    let record = found.get(&index).filter(|_| index == next);
                    let Some(entry) = record.and_then(|record| stored_entry(record, data)) else {
                        return entries;
                    };
                    entries.push(entry);
                    next += 1;
                }
            }
        }
        entries
    }
}

fn bounds(range: (u64, u64)) -> Option<(usize, usize)> {
    Some((usize::try_from(range.0).ok()?, usize::try_from(range.1).ok()?))
}

/// An entry that lies in what was read, whose memory it shares.
fn stored_entry(record: &WalRecord<'_>, read: &Bytes) -> Option<StoredEntry> {
    let WalRecord::Entry {
        index,
        term,
        kind,
        data,
        ..
    } = *record
    else {
        return None;
    };
    Some(StoredEntry {
        index,
        term,
        kind,
        data: read.slice_ref(data),
    })
}

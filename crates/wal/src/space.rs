//! Freeing the oldest segment. What is small of what it still holds is copied forward in bulk; a group that has much
//! in it is checkpointed by the node, which then appends a truncation. Facts are in memory and are restated without
//! a read; entries are read back, checked, and restated.

use crate::frame::{Frame, Frames, WalRecord};
use crate::header::{Header, Position};
use crate::index::{Fact, Group};
use crate::lane::{Lane, LaneEvent};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{GroupId, LogIndex, Term};
use tidelock_record::{IoError, IoOp, IoOutput, IoToken};

/// Batches that lie beside each other are read together up to this many bytes.
const READ_BYTES_MAX: u64 = 1024 * 1024;

/// Operations on their way that are not writes of batches.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    reads: BTreeMap<IoToken, ReadJob>,
    pub(crate) removals: BTreeSet<IoToken>,
}

#[derive(Debug, Default)]
struct ReadJob {
    /// Batches that the read covers, in order, from its first byte on.
    batches: Vec<u64>,
    /// Groups whose entries are wanted.
    groups: BTreeSet<GroupId>,
}

/// What keeps the segments of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Bytes of all segments that are part of the log.
    pub bytes: u64,
    /// How many there are.
    pub segments: usize,
    /// Groups with entries in the segments beyond what may be kept; those that hold most of these first.
    pub groups: Vec<RetainedGroup>,
}

/// What of one group is retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedGroup {
    /// The group.
    pub group: GroupId,
    /// Bytes of its entries in the segments beyond what may be kept.
    pub bytes_beyond: u64,
    /// Bytes of its entries in all segments.
    pub bytes: u64,
    /// Index of its oldest entry that is retained.
    pub first: LogIndex,
    /// A truncation at or above this index takes it out of the segments beyond what may be kept, but for facts.
    pub last_beyond: LogIndex,
    /// The same for the oldest segment; the index before `first` if it has nothing there.
    pub last_in_oldest: LogIndex,
}

impl Group {
    /// Bytes of entries in batches up to `boundary`.
    fn bytes_up_to(&self, boundary: u64) -> u64 {
        let runs = self.runs.iter().filter(|run| run.batch <= boundary);
        runs.map(|run| run.bytes).sum()
    }

    /// The last entry in batches up to `boundary`.
    fn last_up_to(&self, boundary: u64) -> Option<u64> {
        let runs = self.runs.iter().filter(|run| run.batch <= boundary);
        runs.map(|run| run.last).max()
    }
}

impl Lane {
    /// Bytes of all segments that are part of the log: the least that a restart has to read.
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        self.segments.retained_bytes()
    }

    /// What keeps the segments beyond the youngest ones of up to `keep` bytes: the oldest one at least, if that is not the
    /// one being written. Goes over all groups; for when [`Lane::retained_bytes`] is over its budget.
    #[must_use]
    pub fn retained(&self, keep: u64) -> Retained {
        let mut groups: Vec<RetainedGroup> = Vec::new();
        if let Some((oldest, boundary)) = self.boundary().zip(self.boundary_beyond(keep)) {
            for (id, group) in &self.index.groups {
                if let (Some(last), Some(first)) = (group.last_up_to(boundary), group.runs.front()) {
                    let none = first.first.saturating_sub(1);
                    let in_oldest = group.last_up_to(oldest).unwrap_or(none);
                    groups.push(RetainedGroup {
                        group: *id,
                        bytes_beyond: group.bytes_up_to(boundary),
                        bytes: group.bytes_up_to(u64::MAX),
                        first: LogIndex(first.first),
                        last_beyond: LogIndex(last),
                        last_in_oldest: LogIndex(in_oldest),
                    });
                }
            }
        }
        groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes_beyond), group.group));
        Retained {
            bytes: self.retained_bytes(),
            segments: self.segments.list.len(),
            groups,
        }
    }

    /// The last batch of the youngest segment beyond the youngest ones of up to `keep` bytes, or that of the oldest one.
    fn boundary_beyond(&self, keep: u64) -> Option<u64> {
        let mut bytes = 0_u64;
        let beyond = self.segments.list.iter().rev().find(|segment| {
            bytes += segment.used;
            segment.closed && bytes > keep
        });
        beyond
            .map(|segment| segment.last_number)
            .or_else(|| self.boundary())
    }

    /// The last batch of the oldest segment, if nothing is added to that any more.
    fn boundary(&self) -> Option<u64> {
        self.segments
            .list
            .front()
            .filter(|s| s.closed)
            .map(|s| s.last_number)
    }

    /// Copies forward what the oldest segment still holds: all facts, and the entries of groups that have at most
    /// `small_bytes_max` bytes of them there. Entries are appended when the reads handed out here have ended. The
    /// segment is freed some batches later, if no larger group holds it. Nothing happens while an earlier call's
    /// reads are on their way.
    pub fn relocate(&mut self, small_bytes_max: u64) -> Vec<tidelock_record::IoRequest> {
        let Some(boundary) = self.boundary().filter(|_| self.relocation.reads.is_empty()) else {
            return self.take_requests();
        };
        let mut wanted: BTreeMap<u64, BTreeSet<GroupId>> = BTreeMap::new();
        let mut with_facts = Vec::new();
        for (id, group) in &self.index.groups {
            if group.fact_batches().any(|batch| batch <= boundary) {
                with_facts.push(*id);
            }
            // Damaged groups wait for the node; their entries may not be readable.
            if group.damaged.is_none() && group.bytes_up_to(boundary) <= small_bytes_max {
                for run in group.runs.iter().filter(|run| run.batch <= boundary) {
                    wanted.entry(run.batch).or_default().insert(*id);
                }
            }
        }
        for id in with_facts {
            self.restate_facts(id, boundary);
        }
        self.restate_meta(boundary);
        self.read_batches(wanted);
        self.take_requests()
    }

    fn restate_meta(&mut self, boundary: u64) {
        let old: Vec<(u8, Bytes)> = self
            .index
            .meta
            .iter()
            .filter(|(_, fact)| fact.batch <= boundary)
            .map(|(key, fact)| (*key, fact.value.clone()))
            .collect();
        for (key, value) in old {
            self.append_frame(&Frame::kept(WalRecord::Meta { key, blob: &value }));
        }
    }

    /// Appends once more the facts of a group that are in batches up to `boundary`.
    pub(crate) fn restate_facts(&mut self, id: GroupId, boundary: u64) {
        let Some(group) = self.index.groups.get(&id) else {
            return;
        };
        for frame in old_facts(id, group, boundary)
            .iter()
            .map(OwnedFact::frame)
            .collect::<Vec<_>>()
        {
            self.append_frame(&frame);
        }
    }

    fn read_batches(&mut self, wanted: BTreeMap<u64, BTreeSet<GroupId>>) {
        let mut jobs: Vec<(u64, u64, ReadJob)> = Vec::new();
        for (number, groups) in wanted {
            let Some(batch) = self.index.batches.get(number) else {
                continue;
            };
            let (offset, len) = (batch.at.offset, batch.total_len);
            match jobs.last_mut() {
                Some((start, end, job)) if *end == offset && offset + len - *start <= READ_BYTES_MAX => {
                    *end = offset + len;
                    job.batches.push(number);
                    job.groups.extend(groups);
                }
                Some(_) | None => {
                    let batches = vec![number];
                    jobs.push((offset, offset + len, ReadJob { batches, groups }));
                }
            }
        }
        let Some(slot) = self.segments.list.front().map(|segment| segment.slot) else {
            return;
        };
        for (start, end, job) in jobs {
            let token = self.request(IoOp::Read {
                file: self.segments.file(slot),
                offset: start,
                len: end - start,
            });
            self.relocation.reads.insert(token, job);
        }
    }

    /// The end of a read, if the token is of one.
    pub(crate) fn relocation_read(
        &mut self,
        token: IoToken,
        result: Result<&IoOutput, &IoError>,
    ) -> Option<LaneEvent> {
        let job = self.relocation.reads.remove(&token)?;
        let mut rest = match result {
            Ok(IoOutput::Data(data)) => &data[..],
            Ok(IoOutput::Done | IoOutput::Names(_) | IoOutput::Size(_) | IoOutput::Space { .. }) => &[],
            Err(error) => return Some(LaneEvent::RelocationFailed(error.clone())),
        };
        let mut damaged = BTreeSet::new();
        for number in job.batches {
            let Some(batch) = self.index.batches.get(number) else {
                continue;
            };
            let len = usize::try_from(batch.total_len).unwrap_or(usize::MAX);
            let (bytes, later) = rest.split_at_checked(len).unwrap_or((rest, &[]));
            rest = later;
            let body = body_of(bytes, number, batch.at);
            for group in &job.groups {
                if !self.restate_entries(*group, number, body.unwrap_or_default()) {
                    damaged.insert(*group);
                }
            }
        }
        for group in &damaged {
            self.append_frame(&Frame::Damaged { group: *group });
        }
        Some(if damaged.is_empty() {
            LaneEvent::Pending
        } else {
            LaneEvent::Damaged(damaged.into_iter().collect())
        })
    }

    /// Appends once more the live entries that a group has in the batch; false if one is not there.
    fn restate_entries(&mut self, id: GroupId, number: u64, body: &[u8]) -> bool {
        let Some(group) = self.index.groups.get(&id) else {
            return true;
        };
        let runs: Vec<_> = group
            .runs
            .iter()
            .filter(|run| run.batch == number)
            .copied()
            .collect();
        if runs.is_empty() {
            return true;
        }
        let entries = entries_of(id, body);
        let mut whole = true;
        for run in runs {
            let mut next = run.first;
            for (_, entry) in entries.range(run.first..=run.last) {
                self.append_frame(&Frame::kept(*entry));
                next += 1;
            }
            whole &= next == run.last + 1;
        }
        whole
    }
}

/// The body of the batch of that number and place, if that is what these bytes are, undamaged.
pub(crate) fn body_of(bytes: &[u8], number: u64, at: Position) -> Option<&[u8]> {
    let header = Header::parse(bytes).ok()?;
    let is_it = header.number == number && header.stamp.at == at;
    header.body(bytes).filter(|_| is_it)
}

/// The entries that a batch says a group has, by index: the last of each.
pub(crate) fn entries_of(id: GroupId, body: &[u8]) -> BTreeMap<u64, WalRecord<'_>> {
    let mut entries = BTreeMap::new();
    for frame in Frames::new(body).flatten() {
        if let Frame::Record { record, .. } = frame
            && let WalRecord::Entry { group, index, .. } = record
            && group == id
        {
            entries.insert(index.0, record);
        }
    }
    entries
}

/// A fact with its data, to be appended while the index changes.
enum OwnedFact {
    Created(GroupId, tidelock_base::ReplicaId, Bytes),
    HardState(GroupId, crate::index::HardState),
    Truncated(GroupId, LogIndex, Term),
    Snapshot(GroupId, crate::index::InstalledSnapshot),
    Members(GroupId, Bytes),
    Damaged(GroupId),
    Arrival(GroupId, u64, bool),
}

impl OwnedFact {
    fn frame(&self) -> Frame<'_> {
        Frame::kept(match self {
            Self::Created(group, replica, blob) => WalRecord::Created {
                group: *group,
                replica: *replica,
                blob,
            },
            Self::HardState(group, hard) => WalRecord::HardState {
                group: *group,
                term: hard.term,
                vote: hard.vote,
                commit: hard.commit,
            },
            Self::Truncated(group, index, term) => WalRecord::Truncated {
                group: *group,
                index: *index,
                term: *term,
            },
            Self::Snapshot(group, snapshot) => WalRecord::SnapshotInstalled {
                group: *group,
                index: snapshot.index,
                term: snapshot.term,
                blob: &snapshot.blob,
            },
            Self::Members(group, blob) => WalRecord::Members { group: *group, blob },
            Self::Damaged(group) => return Frame::Damaged { group: *group },
            Self::Arrival(group, lane_id, complete) => {
                return Frame::Arrival {
                    group: *group,
                    lane_id: *lane_id,
                    complete: *complete,
                };
            }
        })
    }
}

/// The facts in batches up to `boundary`, in an order in which each prefix is a state to start from.
fn old_facts(id: GroupId, group: &Group, boundary: u64) -> Vec<OwnedFact> {
    fn old<T>(fact: Option<&Fact<T>>, boundary: u64) -> Option<&T> {
        fact.filter(|fact| fact.batch <= boundary).map(|fact| &fact.value)
    }
    let created = old(group.created.as_ref(), boundary);
    let truncated = old(group.truncated.as_ref(), boundary);
    let snapshot = old(group.snapshot.as_ref(), boundary);
    let arrival = old(group.arrival.as_ref(), boundary);
    [
        created.map(|(replica, blob)| OwnedFact::Created(id, *replica, blob.clone())),
        old(group.damaged.as_ref(), boundary).map(|()| OwnedFact::Damaged(id)),
        arrival.map(|(lane_id, complete)| OwnedFact::Arrival(id, *lane_id, *complete)),
        truncated.map(|(index, term)| OwnedFact::Truncated(id, *index, *term)),
        snapshot.map(|snapshot| OwnedFact::Snapshot(id, snapshot.clone())),
        old(group.members.as_ref(), boundary).map(|blob| OwnedFact::Members(id, blob.clone())),
        old(group.hard.as_ref(), boundary).map(|hard| OwnedFact::HardState(id, *hard)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

//! Records inside a batch.
//!
//! Shape, little-endian: a head of 40 bytes, then the data.
//! ```text
//! 0   len     u32   of the whole frame
//! 4   kind    u8    see `kind`
//! 5   flags   u8    bit 0: kept
//! 6   detail  u8    entry kind, meta key, completeness of an arrival
//! 7   zero    u8
//! 8   group   u64   0 for node-wide facts
//! 16  a       u64   index, term, replica id or lane id, by kind
//! 24  b       u64   term or vote
//! 32  c       u64   commit
//! ```
//! A *kept* frame restates what is still true when an old segment is freed: it does not supersede what came
//! between the original and the copy. Frames have no checksum of their own: the batch's covers them.

use bytes::Bytes;
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};
use tidelock_record::{AlignedBuf, RECORD_BYTES_MAX};

/// Bytes of a frame before its data.
pub(crate) const FRAME_HEAD_BYTES: usize = 40;
/// Longest data of one record, in bytes: the largest message with the head of its entry. Larger ones are a mistake
/// of the caller and assert.
pub const DATA_BYTES_MAX: usize = RECORD_BYTES_MAX + 1024 * 1024;

/// Indexes above are not ours: counting from 1 does not get there.
const INDEX_MAX: u64 = u64::MAX >> 8;
const FLAG_KEPT: u8 = 1;

mod kind {
    pub(super) const ENTRY: u8 = 1;
    pub(super) const HARD_STATE: u8 = 2;
    pub(super) const TRUNCATED: u8 = 3;
    pub(super) const CREATED: u8 = 4;
    pub(super) const DESTROYED: u8 = 5;
    pub(super) const SNAPSHOT: u8 = 6;
    pub(super) const META: u8 = 7;
    pub(super) const MEMBERS: u8 = 8;
    pub(super) const HEALED: u8 = 9;
    pub(super) const DAMAGED: u8 = 10;
    pub(super) const ARRIVAL: u8 = 11;
}

/// An entry of a group's log whose data may be shared; see [`WalRecord::Entry`].
#[derive(Clone, Copy, Debug)]
pub struct WalEntry<'a> {
    /// The group.
    pub group: GroupId,
    /// Place in the group's log.
    pub index: LogIndex,
    /// Term in which it was proposed.
    pub term: Term,
    /// Kind of the entry, as the replica numbers them.
    pub kind: u8,
    /// What the state machine gets.
    pub data: &'a Bytes,
}

/// What a worker logs. Records take effect in the order of their append; a crash may leave any prefix (cut between
/// batches), so the order must be such that each prefix is a state to start from: a snapshot or entries before
/// the [`HardState`](WalRecord::HardState) whose commit index needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalRecord<'a> {
    /// An entry of a group's log. It supersedes the entry of its index and all of higher indexes.
    Entry {
        /// The group.
        group: GroupId,
        /// Place in the group's log.
        index: LogIndex,
        /// Term in which it was proposed.
        term: Term,
        /// Kind of the entry, as the replica numbers them.
        kind: u8,
        /// What the state machine gets.
        data: &'a [u8],
    },
    /// The state that a voter must not forget (Raft paper, figure 2); replaces the last one.
    HardState {
        /// The group.
        group: GroupId,
        /// Latest term seen.
        term: Term,
        /// Who got the vote in that term; 0 for no one.
        vote: ReplicaId,
        /// Highest index known as committed.
        commit: LogIndex,
    },
    /// Entries up to `index` are in a durable checkpoint and no longer needed here. At or above the index of an
    /// installed snapshot it also says that the installation is finished and its manifest no longer needed.
    Truncated {
        /// The group.
        group: GroupId,
        /// Last index in the checkpoint.
        index: LogIndex,
        /// Its term.
        term: Term,
    },
    /// A replica of the group lives here from now on. Another replica id than before starts the group over, with an
    /// empty log and no damage; the same id replaces the blob only.
    Created {
        /// The group.
        group: GroupId,
        /// Raft id of this replica, never reused.
        replica: ReplicaId,
        /// What the node wants to know about the group at start.
        blob: &'a [u8],
    },
    /// The group is gone from this lane.
    Destroyed {
        /// The group.
        group: GroupId,
    },
    /// A snapshot has been received whole: it replaces the group's log. The commit point of an installation.
    SnapshotInstalled {
        /// The group.
        group: GroupId,
        /// Last index in the snapshot.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// Manifest: what the node needs to finish the installation after a crash.
        blob: &'a [u8],
    },
    /// A small fact of the whole node, such as its boot counter; replaces the last one of its key.
    Meta {
        /// Which fact.
        key: u8,
        /// Its value.
        blob: &'a [u8],
    },
    /// The group's membership; replaces the last one.
    Members {
        /// The group.
        group: GroupId,
        /// The membership, encoded by the replica.
        blob: &'a [u8],
    },
    /// The node has dealt with the damage of the group, which keeps its replica id (only groups without other
    /// voters do): it is no longer recovered as damaged.
    Healed {
        /// The group.
        group: GroupId,
    },
}

impl WalRecord<'_> {
    /// The group that the record is about; none for node-wide facts.
    #[must_use]
    pub const fn group(&self) -> Option<GroupId> {
        match self {
            Self::Entry { group, .. }
            | Self::HardState { group, .. }
            | Self::Truncated { group, .. }
            | Self::Created { group, .. }
            | Self::Destroyed { group }
            | Self::SnapshotInstalled { group, .. }
            | Self::Members { group, .. }
            | Self::Healed { group } => Some(*group),
            Self::Meta { .. } => None,
        }
    }
}

/// What is in a batch: records, and what the log notes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// A record; `kept` if it restates.
    Record { kept: bool, record: WalRecord<'a> },
    /// The group lost records to damage; stays true until it is destroyed, created anew or healed.
    Damaged { group: GroupId },
    /// The group is being copied here from the lane of that id; all of it is here once `complete`.
    Arrival {
        group: GroupId,
        lane_id: u64,
        complete: bool,
    },
}

/// A frame that cannot be decoded though its batch's checksum is right: written by a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownFrame;

struct Head {
    kind: u8,
    flags: u8,
    detail: u8,
    group: u64,
    a: u64,
    b: u64,
    c: u64,
}

impl<'a> Frame<'a> {
    pub(crate) const fn plain(record: WalRecord<'a>) -> Self {
        Self::Record { kept: false, record }
    }

    pub(crate) const fn kept(record: WalRecord<'a>) -> Self {
        Self::Record { kept: true, record }
    }

    /// The group that the frame is about; none for node-wide facts.
    pub(crate) const fn group(&self) -> Option<GroupId> {
        match self {
            Self::Record { record, .. } => record.group(),
            Self::Damaged { group } | Self::Arrival { group, .. } => Some(*group),
        }
    }

    pub(crate) const fn encoded_len(&self) -> usize {
        FRAME_HEAD_BYTES + self.data().len()
    }

    pub(crate) const fn data(&self) -> &'a [u8] {
        match self {
            Self::Record { record, .. } => match record {
                WalRecord::Entry { data: blob, .. }
                | WalRecord::Created { blob, .. }
                | WalRecord::SnapshotInstalled { blob, .. }
                | WalRecord::Meta { blob, .. }
                | WalRecord::Members { blob, .. } => blob,
                WalRecord::HardState { .. }
                | WalRecord::Truncated { .. }
                | WalRecord::Destroyed { .. }
                | WalRecord::Healed { .. } => &[],
            },
            Self::Damaged { .. } | Self::Arrival { .. } => &[],
        }
    }

    fn head(&self) -> Head {
        let (kind, detail, a, b, c) = match *self {
            Self::Record { record, .. } => match record {
                WalRecord::Entry {
                    index, term, kind, ..
                } => (kind::ENTRY, kind, index.0, term.0, 0),
                WalRecord::HardState {
                    term, vote, commit, ..
                } => (kind::HARD_STATE, 0, term.0, vote.0, commit.0),
                WalRecord::Truncated { index, term, .. } => (kind::TRUNCATED, 0, index.0, term.0, 0),
                WalRecord::Created { replica, .. } => (kind::CREATED, 0, replica.0, 0, 0),
                WalRecord::Destroyed { .. } => (kind::DESTROYED, 0, 0, 0, 0),
                WalRecord::SnapshotInstalled { index, term, .. } => (kind::SNAPSHOT, 0, index.0, term.0, 0),
                WalRecord::Meta { key, .. } => (kind::META, key, 0, 0, 0),
                WalRecord::Members { .. } => (kind::MEMBERS, 0, 0, 0, 0),
                WalRecord::Healed { .. } => (kind::HEALED, 0, 0, 0, 0),
            },
            Self::Damaged { .. } => (kind::DAMAGED, 0, 0, 0, 0),
            Self::Arrival {
                lane_id, complete, ..
            } => (kind::ARRIVAL, u8::from(complete), lane_id, 0, 0),
        };
        Head {
            kind,
            flags: u8::from(matches!(self, Self::Record { kept: true, .. })) * FLAG_KEPT,
            detail,
            group: self.group().map_or(0, GroupId::value),
            a,
            b,
            c,
        }
    }

    /// Appends the frame.
    pub(crate) fn encode(&self, out: &mut AlignedBuf) {
        self.encode_head(out);
        out.extend_from_slice(self.data());
    }

    /// Appends what comes before the frame's data.
    pub(crate) fn encode_head(&self, out: &mut AlignedBuf) {
        let data = self.data();
        assert!(data.len() <= DATA_BYTES_MAX, "record of {} bytes", data.len());
        let len = u32::try_from(self.encoded_len()).unwrap_or(u32::MAX);
        let head = self.head();
        let mut bytes = [0; FRAME_HEAD_BYTES];
        let (first, rest) = bytes.split_at_mut(8);
        let [l0, l1, l2, l3] = len.to_le_bytes();
        first.copy_from_slice(&[l0, l1, l2, l3, head.kind, head.flags, head.detail, 0]);
        for (place, value) in rest.chunks_exact_mut(8).zip([head.group, head.a, head.b, head.c]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&bytes);
    }

    /// The frame at the start of `bytes` and its length.
    fn decode(bytes: &'a [u8]) -> Result<(Self, usize), UnknownFrame> {
        let (first, rest) = bytes.split_first_chunk::<8>().ok_or(UnknownFrame)?;
        let [l0, l1, l2, l3, kind, flags, detail, _] = *first;
        let len = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).map_err(|_| UnknownFrame)?;
        let (numbers, _) = rest.split_first_chunk::<32>().ok_or(UnknownFrame)?;
        let mut words = numbers
            .chunks_exact(8)
            .map(|word| word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        let mut word = || words.next().unwrap_or(0);
        let head = Head {
            kind,
            flags,
            detail,
            group: word(),
            a: word(),
            b: word(),
            c: word(),
        };
        let data = bytes.get(FRAME_HEAD_BYTES..len).ok_or(UnknownFrame)?;
        Ok((Self::from_parts(&head, data)?, len))
    }

    fn from_parts(head: &Head, data: &'a [u8]) -> Result<Self, UnknownFrame> {
        let group = GroupId(head.group);
        let (index, term) = (LogIndex(head.a), Term(head.b));
        if matches!(head.kind, kind::ENTRY | kind::TRUNCATED | kind::SNAPSHOT) && head.a > INDEX_MAX {
            return Err(UnknownFrame);
        }
        let record = match head.kind {
            kind::ENTRY => WalRecord::Entry {
                group,
                index,
                term,
                kind: head.detail,
                data,
            },
            kind::HARD_STATE => WalRecord::HardState {
                group,
                term: Term(head.a),
                vote: ReplicaId(head.b),
                commit: LogIndex(head.c),
            },
            kind::TRUNCATED => WalRecord::Truncated { group, index, term },
            kind::CREATED => WalRecord::Created {
                group,
                replica: ReplicaId(head.a),
                blob: data,
            },
            kind::DESTROYED => WalRecord::Destroyed { group },
            kind::SNAPSHOT => WalRecord::SnapshotInstalled {
                group,
                index,
                term,
                blob: data,
            },
            kind::META => WalRecord::Meta {
                key: head.detail,
                blob: data,
            },
            kind::MEMBERS => WalRecord::Members { group, blob: data },
            kind::HEALED => WalRecord::Healed { group },
            kind::DAMAGED => return Ok(Self::Damaged { group }),
            kind::ARRIVAL => {
                return Ok(Self::Arrival {
                    group,
                    lane_id: head.a,
                    complete: head.detail != 0,
                });
            }
            _ => return Err(UnknownFrame),
        };
        match head.flags {
            0 => Ok(Self::plain(record)),
            FLAG_KEPT => Ok(Self::kept(record)),
            _ => Err(UnknownFrame),
        }
    }
}

/// The frames of a batch's body, in order. Ends after the first that is unknown.
pub(crate) struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    pub(crate) const fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, UnknownFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let decoded = Frame::decode(self.rest);
        let taken = decoded.as_ref().map_or(self.rest.len(), |(_, len)| *len);
        self.rest = self.rest.get(taken..).unwrap_or_default();
        Some(decoded.map(|(frame, _)| frame))
    }
}

/// `part`, which lies in `whole`, as a share of it.
pub(crate) fn share(whole: &Bytes, part: &[u8]) -> Bytes {
    if part.is_empty() {
        Bytes::new()
    } else {
        whole.slice_ref(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let group = GroupId(7);
        let (index, term) = (LogIndex(9), Term(3));
        let records = [
            WalRecord::Entry {
                group,
                index,
                term,
                kind: 2,
                data: b"data",
            },
            WalRecord::HardState {
                group,
                term,
                vote: ReplicaId(5),
                commit: index,
            },
            WalRecord::Truncated { group, index, term },
            WalRecord::Created {
                group,
                replica: ReplicaId(5),
                blob: b"blob",
            },
            WalRecord::Destroyed { group },
            WalRecord::SnapshotInstalled {
                group,
                index,
                term,
                blob: b"",
            },
            WalRecord::Meta { key: 200, blob: b"x" },
            WalRecord::Members { group, blob: b"m" },
            WalRecord::Healed { group },
        ];
        let mut frames: Vec<Frame<'_>> = records
            .into_iter()
            .flat_map(|r| [Frame::plain(r), Frame::kept(r)])
            .collect();
        frames.push(Frame::Damaged { group });
        frames.extend([true, false].map(|complete| Frame::Arrival {
            group,
            lane_id: 77,
            complete,
        }));
        let mut out = AlignedBuf::default();
        for frame in &frames {
            let before = out.len();
            frame.encode(&mut out);
            assert_eq!(out.len() - before, frame.encoded_len());
        }
        assert_eq!(
            Frames::new(out.as_slice()).collect::<Result<Vec<_>, _>>(),
            Ok(frames)
        );
    }

    #[test]
    fn unknown_frames_end_the_iteration() {
        let mut out = AlignedBuf::default();
        Frame::Damaged { group: GroupId(1) }.encode(&mut out);
        for (at, value) in [(4, 99), (5, 2), (0, 39), (0, 41), (0, 0)] {
            let mut bytes = out.as_slice().to_vec();
            // Flags are only looked at for records.
            bytes[4] = 5;
            bytes[at] = value;
            assert_eq!(
                Frames::new(&bytes).collect::<Vec<_>>(),
                [Err(UnknownFrame)],
                "{at} {value}"
            );
        }
    }
}

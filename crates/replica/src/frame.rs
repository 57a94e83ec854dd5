//! Frames between the replicas of a group: what leaves in [`Outgoing`] and comes back in through `Group::step`.
//!
//! A frame is a head of 72 bytes, little-endian, and for two kinds a body:
//!
//! ```text
//!  version u8 | kind u8 | flags u16 | count u32 | group u64 | from u64 | to u64
//!  | term u64 | index u64 | log_term u64 | commit u64 | aux u64
//!  Heartbeat: commit = what the receiver may commit, aux = what the sender has committed
//!  Append:   count × (term u64 | length u32 | kind u8 | zero [3]), then the entries' bytes back to back
//!  Snapshot: count bytes of encoded members, then the manifest
//! ```
//!
//! Entries of a received frame are slices of it: nothing is copied. Integrity on the wire is the link's affair, that of
//! the records inside the entries is checked where they are read. Every number is checked before it is believed:
//! a decoder allocates nothing that the frame does not pay for in bytes.

use crate::member::{MemberChange, Members};
use crate::types::EntryKind;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use raft::CAMPAIGN_TRANSFER;
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use tidelock_base::{GroupId, ReplicaId};

const VERSION: u8 = 1;
/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 72;
/// Bytes that each entry adds before the bodies.
const ENTRY_HEAD_BYTES: usize = 16;
/// Entries up to this size are copied behind the head, so that a frame of small entries is one buffer.
const COPY_BYTES_MAX: usize = 4096;
/// No index or term is larger: the library adds to them without checks.
const NUMBER_MAX: u64 = 1 << 60;

/// Rejected, or not granted.
pub(crate) const FLAG_REJECT: u16 = 1;
/// A vote asked for by a transfer of leadership.
pub(crate) const FLAG_TRANSFER: u16 = 2;
/// The sender is staging a snapshot.
pub(crate) const FLAG_STAGING: u16 = 4;

/// Which connection of a link a frame belongs on, so that bulk never delays a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Heartbeats, votes and reads: small, and late is as bad as lost.
    Heartbeat,
    /// Entries and their acknowledgements.
    Log,
    /// Manifests of snapshots.
    Bulk,
}

/// A frame to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The replica it is for.
    pub to: ReplicaId,
    /// Its bytes, in order; large entries are shared, not copied.
    pub frame: Vec<Bytes>,
    /// The connection it belongs on.
    pub lane: Lane,
}

/// Whom a frame is for, readable without knowing the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameAddress {
    /// The group.
    pub group: GroupId,
    /// The sender.
    pub from: ReplicaId,
    /// The receiver.
    pub to: ReplicaId,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The head or the body is shorter or longer than it says.
    #[error("frame of wrong length")]
    Length,
    /// A version or kind that this server does not know.
    #[error("unknown version or kind of frame")]
    Unknown,
    /// A number out of its range, or entries that do not follow each other.
    #[error("a number of the frame is out of range")]
    Range,
}

impl FrameAddress {
    /// Reads the address of a frame for routing it to the worker that owns the group.
    ///
    /// # Errors
    /// [`FrameError`] if the bytes do not begin with a frame's head.
    pub fn of(frame: &[u8]) -> Result<Self, FrameError> {
        let head = Head::read(frame)?;
        Ok(Self {
            group: GroupId(head.group),
            from: ReplicaId(head.from),
            to: ReplicaId(head.to),
        })
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Append,
    AppendAnswer,
    Vote,
    VoteAnswer,
    PreVote,
    PreVoteAnswer,
    Heartbeat,
    HeartbeatAnswer,
    Snapshot,
    TimeoutNow,
    /// A follower asks for a read index: index = counter, (log_term, commit) = life.
    ReadAsk,
    /// The answer: as asked, aux = read index.
    ReadGrant,
    /// No answer from here: as asked.
    ReadRefuse,
    /// A leader asks whether it still leads: index = round.
    Confirm,
    /// It does, as far as the sender knows: index = round.
    Confirmed,
}

/// Every kind, at the position of its byte on the wire minus one.
const KINDS: [Kind; 15] = [
    Kind::Append,
    Kind::AppendAnswer,
    Kind::Vote,
    Kind::VoteAnswer,
    Kind::PreVote,
    Kind::PreVoteAnswer,
    Kind::Heartbeat,
    Kind::HeartbeatAnswer,
    Kind::Snapshot,
    Kind::TimeoutNow,
    Kind::ReadAsk,
    Kind::ReadGrant,
    Kind::ReadRefuse,
    Kind::Confirm,
    Kind::Confirmed,
];

impl Kind {
    const fn to_u8(self) -> u8 {
        self as u8 + 1
    }

    fn from_u8(byte: u8) -> Option<Self> {
        KINDS.get(usize::from(byte).checked_sub(1)?).copied()
    }

    const fn lane(self) -> Lane {
        match self {
            Self::Append | Self::AppendAnswer => Lane::Log,
            Self::Snapshot => Lane::Bulk,
            Self::Vote
            | Self::VoteAnswer
            | Self::PreVote
            | Self::PreVoteAnswer
            | Self::Heartbeat
            | Self::HeartbeatAnswer
            | Self::TimeoutNow
            | Self::ReadAsk
            | Self::ReadGrant
            | Self::ReadRefuse
            | Self::Confirm
            | Self::Confirmed => Lane::Heartbeat,
        }
    }

    const fn message_type(self) -> Option<MessageType> {
        match self {
            Self::Append => Some(MessageType::MsgAppend),
            Self::AppendAnswer => Some(MessageType::MsgAppendResponse),
            Self::Vote => Some(MessageType::MsgRequestVote),
            Self::VoteAnswer => Some(MessageType::MsgRequestVoteResponse),
            Self::PreVote => Some(MessageType::MsgRequestPreVote),
            Self::PreVoteAnswer => Some(MessageType::MsgRequestPreVoteResponse),
            Self::Heartbeat => Some(MessageType::MsgHeartbeat),
            Self::HeartbeatAnswer => Some(MessageType::MsgHeartbeatResponse),
            Self::Snapshot => Some(MessageType::MsgSnapshot),
            Self::TimeoutNow => Some(MessageType::MsgTimeoutNow),
            Self::ReadAsk | Self::ReadGrant | Self::ReadRefuse | Self::Confirm | Self::Confirmed => None,
        }
    }

    /// The kind of a message of the library, or `None` for those that never leave: forwarded proposals and reads
    /// (a refused publish would otherwise commit after all), and local ones.
    const fn of_message(kind: MessageType) -> Option<Self> {
        match kind {
            MessageType::MsgAppend => Some(Self::Append),
            MessageType::MsgAppendResponse => Some(Self::AppendAnswer),
            MessageType::MsgRequestVote => Some(Self::Vote),
            MessageType::MsgRequestVoteResponse => Some(Self::VoteAnswer),
            MessageType::MsgRequestPreVote => Some(Self::PreVote),
            MessageType::MsgRequestPreVoteResponse => Some(Self::PreVoteAnswer),
            MessageType::MsgHeartbeat => Some(Self::Heartbeat),
            MessageType::MsgHeartbeatResponse => Some(Self::HeartbeatAnswer),
            MessageType::MsgSnapshot => Some(Self::Snapshot),
            MessageType::MsgTimeoutNow => Some(Self::TimeoutNow),
            MessageType::MsgHup
            | MessageType::MsgBeat
            | MessageType::MsgPropose
            | MessageType::MsgUnreachable
            | MessageType::MsgSnapStatus
            | MessageType::MsgCheckQuorum
            | MessageType::MsgTransferLeader
            | MessageType::MsgReadIndex
            | MessageType::MsgReadIndexResp => None,
        }
    }
}

/// The fixed part of a frame. What the fields mean depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) flags: u16,
    pub(crate) count: u32,
    pub(crate) group: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) log_term: u64,
    pub(crate) commit: u64,
    pub(crate) aux: u64,
}

impl Head {
    /// A head of `kind` with everything else zero.
    pub(crate) const fn new(kind: Kind, to: u64) -> Self {
        Self {
            kind,
            flags: 0,
            count: 0,
            group: 0,
            from: 0,
            to,
            term: 0,
            index: 0,
            log_term: 0,
            commit: 0,
            aux: 0,
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u8(VERSION);
        out.put_u8(self.kind.to_u8());
        out.put_u16_le(self.flags);
        out.put_u32_le(self.count);
        let numbers = [
            self.group,
            self.from,
            self.to,
            self.term,
            self.index,
            self.log_term,
            self.commit,
            self.aux,
        ];
        for number in numbers {
            out.put_u64_le(number);
        }
    }

    /// Reads the head; the body is left to the kind.
    pub(crate) fn read(frame: &[u8]) -> Result<Self, FrameError> {
        let mut bytes = frame.get(..HEAD_BYTES).ok_or(FrameError::Length)?;
        let version = bytes.get_u8();
        let kind = Kind::from_u8(bytes.get_u8());
        let (flags, count) = (bytes.get_u16_le(), bytes.get_u32_le());
        let mut number = || bytes.get_u64_le();
        let (group, from, to, term) = (number(), number(), number(), number());
        let (index, log_term, commit, aux) = (number(), number(), number(), number());
        let kind = kind.filter(|_| version == VERSION).ok_or(FrameError::Unknown)?;
        let head = Self {
            kind,
            flags,
            count,
            group,
            from,
            to,
            term,
            index,
            log_term,
            commit,
            aux,
        };
        head.check()?;
        Ok(head)
    }

    fn check(&self) -> Result<(), FrameError> {
        // Term 0 would pass for a local message of the library, which skips the checks of terms.
        if self.from == 0 || self.to == 0 || self.term == 0 || self.term > NUMBER_MAX {
            return Err(FrameError::Range);
        }
        let free_numbers = self.kind.message_type().is_none();
        let numbers = [self.index, self.log_term, self.commit, self.aux];
        if !free_numbers && numbers.iter().any(|number| *number > NUMBER_MAX) {
            return Err(FrameError::Range);
        }
        Ok(())
    }

    /// This head as a whole frame, without a body.
    pub(crate) fn into_outgoing(self) -> Outgoing {
        let mut out = BytesMut::with_capacity(HEAD_BYTES);
        self.write(&mut out);
        Outgoing {
            to: ReplicaId(self.to),
            frame: vec![out.freeze()],
            lane: self.kind.lane(),
        }
    }

    /// What the sender has committed, if this is a frame of a leader.
    pub(crate) const fn leaders_commit(&self) -> Option<u64> {
        match self.kind {
            Kind::Append => Some(self.commit),
            Kind::Heartbeat => Some(self.aux),
            // A snapshot is of what is committed; there may be more.
            Kind::Snapshot => Some(self.index),
            Kind::AppendAnswer
            | Kind::Vote
            | Kind::VoteAnswer
            | Kind::PreVote
            | Kind::PreVoteAnswer
            | Kind::HeartbeatAnswer
            | Kind::TimeoutNow
            | Kind::ReadAsk
            | Kind::ReadGrant
            | Kind::ReadRefuse
            | Kind::Confirm
            | Kind::Confirmed => None,
        }
    }

    /// The library's message of a frame.
    pub(crate) fn message(&self, frame: &Bytes) -> Result<Message, FrameError> {
        let kind = self.kind.message_type().ok_or(FrameError::Unknown)?;
        let mut message = Message::default();
        message.set_msg_type(kind);
        message.from = self.from;
        message.to = self.to;
        message.term = self.term;
        message.index = self.index;
        message.log_term = self.log_term;
        message.commit = self.commit;
        message.reject = self.flags & FLAG_REJECT != 0;
        let mut body = frame.slice(HEAD_BYTES..);
        match self.kind {
            Kind::Append => {
                message.set_entries(self.entries(&body)?.into());
                body.clear();
            }
            Kind::Snapshot => {
                message.set_snapshot(self.snapshot(&body)?);
                body.clear();
            }
            Kind::AppendAnswer => message.reject_hint = self.aux,
            Kind::Vote | Kind::PreVote => {
                message.commit_term = self.aux;
                if self.flags & FLAG_TRANSFER != 0 {
                    message.context = Bytes::from_static(CAMPAIGN_TRANSFER);
                }
            }
            Kind::VoteAnswer | Kind::PreVoteAnswer => message.commit_term = self.aux,
            Kind::Heartbeat
            | Kind::HeartbeatAnswer
            | Kind::TimeoutNow
            | Kind::ReadAsk
            | Kind::ReadGrant
            | Kind::ReadRefuse
            | Kind::Confirm
            | Kind::Confirmed => {}
        }
        if body.is_empty() {
            Ok(message)
        } else {
            Err(FrameError::Length)
        }
    }

    fn entries(&self, body: &Bytes) -> Result<Vec<Entry>, FrameError> {
        let count = usize::try_from(self.count).map_err(|_| FrameError::Length)?;
        let table_bytes = count.checked_mul(ENTRY_HEAD_BYTES).ok_or(FrameError::Length)?;
        let mut table = body.get(..table_bytes).ok_or(FrameError::Length)?;
        let mut data = body.slice(table_bytes..);
        let mut entries = Vec::with_capacity(count);
        let (mut index, mut last_term) = (self.index, self.log_term);
        for _ in 0..count {
            let (term, length) = (table.get_u64_le(), table.get_u32_le());
            let kind = EntryKind::from_u8(table.get_u8()).ok_or(FrameError::Unknown)?;
            table.advance(3);
            let length = usize::try_from(length).map_err(|_| FrameError::Length)?;
            if length > data.len() {
                return Err(FrameError::Length);
            }
            index += 1;
            if term < last_term || term > self.term || term == 0 {
                return Err(FrameError::Range);
            }
            last_term = term;
            let entry = to_entry(index, term, kind, data.split_to(length)).ok_or(FrameError::Range)?;
            entries.push(entry);
        }
        if data.is_empty() {
            Ok(entries)
        } else {
            Err(FrameError::Length)
        }
    }

    fn snapshot(&self, body: &Bytes) -> Result<Snapshot, FrameError> {
        let count = usize::try_from(self.count).map_err(|_| FrameError::Length)?;
        let members = body.get(..count).ok_or(FrameError::Length)?;
        let members = Members::decode(members).map_err(|_| FrameError::Range)?;
        if members.is_empty() || self.index == 0 || self.log_term == 0 || self.log_term > self.term {
            return Err(FrameError::Range);
        }
        Ok(to_snapshot(
            self.index,
            self.log_term,
            &members,
            body.slice(count..),
        ))
    }
}

/// A snapshot of the library whose data is a manifest.
pub(crate) fn to_snapshot(index: u64, term: u64, members: &Members, manifest: Bytes) -> Snapshot {
    let mut snapshot = Snapshot {
        data: manifest,
        ..Snapshot::default()
    };
    let metadata = snapshot.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.set_conf_state(members.to_conf_state());
    snapshot
}

/// The library's entry; `None` if the bytes do not fit the kind.
///
/// The bytes of a change of members travel as the entry's context, which the library never parses.
pub(crate) fn to_entry(index: u64, term: u64, kind: EntryKind, data: Bytes) -> Option<Entry> {
    let mut entry = Entry {
        index,
        term,
        ..Entry::default()
    };
    match kind {
        EntryKind::Normal if data.is_empty() => return None,
        EntryKind::TermStart if !data.is_empty() => return None,
        EntryKind::Normal | EntryKind::TermStart => entry.data = data,
        EntryKind::Members => {
            MemberChange::decode(&data).ok()?;
            entry.set_entry_type(EntryType::EntryConfChangeV2);
            entry.context = data;
        }
    }
    Some(entry)
}

/// Kind and bytes of one of the library's entries.
pub(crate) fn from_entry(entry: &Entry) -> (EntryKind, &Bytes) {
    match entry.get_entry_type() {
        EntryType::EntryNormal if entry.data.is_empty() => (EntryKind::TermStart, &entry.data),
        EntryType::EntryNormal => (EntryKind::Normal, &entry.data),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => (EntryKind::Members, &entry.context),
    }
}

/// The frame of a message of the library, or `None` if it must not leave. The sender has committed up to `commit`.
pub(crate) fn encode(group: GroupId, message: &Message, flags: u16, commit: u64) -> Option<Outgoing> {
    let kind = Kind::of_message(message.get_msg_type())?;
    let mut head = Head::new(kind, message.to);
    head.flags = flags;
    head.group = group.value();
    head.from = message.from;
    head.term = message.term;
    head.index = message.index;
    head.log_term = message.log_term;
    head.commit = message.commit;
    if message.reject {
        head.flags |= FLAG_REJECT;
    }
    if message.context == CAMPAIGN_TRANSFER {
        head.flags |= FLAG_TRANSFER;
    }
    match kind {
        Kind::Append => return Some(encode_append(head, message.get_entries())),
        Kind::Snapshot => return Some(encode_snapshot(head, message.get_snapshot())),
        Kind::AppendAnswer => head.aux = message.reject_hint,
        Kind::Vote | Kind::PreVote | Kind::VoteAnswer | Kind::PreVoteAnswer => head.aux = message.commit_term,
        Kind::Heartbeat => head.aux = commit,
        Kind::HeartbeatAnswer
        | Kind::TimeoutNow
        | Kind::ReadAsk
        | Kind::ReadGrant
        | Kind::ReadRefuse
        | Kind::Confirm
        | Kind::Confirmed => {}
    }
    Some(head.into_outgoing())
}

fn encode_append(mut head: Head, entries: &[Entry]) -> Outgoing {
    head.count = u32::try_from(entries.len()).expect("one message holds far fewer than 2^32 entries");
    let small: usize = entries
        .iter()
        .map(|e| from_entry(e).1.len())
        .filter(|n| *n <= COPY_BYTES_MAX)
        .sum();
    let mut out = BytesMut::with_capacity(HEAD_BYTES + entries.len() * ENTRY_HEAD_BYTES + small);
    head.write(&mut out);
    for entry in entries {
        let (kind, data) = from_entry(entry);
        out.put_u64_le(entry.term);
        out.put_u32_le(u32::try_from(data.len()).expect("entries have a size limit far below 4 GiB"));
        out.put_u8(kind.to_u8());
        out.put_bytes(0, 3);
    }
    let mut frame = Vec::with_capacity(1);
    for entry in entries {
        let data = from_entry(entry).1;
        if data.len() <= COPY_BYTES_MAX {
            out.put_slice(data);
        } else {
            frame.extend(
                [out.split().freeze(), data.clone()]
                    .into_iter()
                    .filter(|part| !part.is_empty()),
            );
        }
    }
    if !out.is_empty() {
        frame.push(out.freeze());
    }
    Outgoing {
        to: ReplicaId(head.to),
        frame,
        lane: Lane::Log,
    }
}

fn encode_snapshot(mut head: Head, snapshot: &Snapshot) -> Outgoing {
    let metadata = snapshot.get_metadata();
    let members = Members::from_conf_state(metadata.get_conf_state()).encode();
    head.index = metadata.index;
    head.log_term = metadata.term;
    head.count = u32::try_from(members.len()).expect("a member list is at most 40 KiB");
    let mut out = BytesMut::with_capacity(HEAD_BYTES + members.len());
    head.write(&mut out);
    out.put_slice(&members);
    let mut frame = vec![out.freeze()];
    if !snapshot.data.is_empty() {
        frame.push(snapshot.data.clone());
    }
    Outgoing {
        to: ReplicaId(head.to),
        frame,
        lane: Lane::Bulk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(outgoing: &Outgoing) -> Bytes {
        Bytes::from(outgoing.frame.concat())
    }

    #[test]
    fn forwarded_proposals_and_reads_never_leave() {
        for kind in [
            MessageType::MsgPropose,
            MessageType::MsgReadIndex,
            MessageType::MsgTransferLeader,
        ] {
            let mut message = Message::default();
            message.set_msg_type(kind);
            message.to = 2;
            assert!(encode(GroupId(1), &message, 0, 0).is_none(), "{kind:?}");
        }
    }

    #[test]
    fn large_entries_are_shared_and_small_ones_copied() {
        let large = Bytes::from(vec![7u8; COPY_BYTES_MAX + 1]);
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        (message.from, message.to, message.term) = (1, 2, 3);
        let small = Bytes::from_static(b"small");
        let entries: Vec<_> = [small.clone(), large.clone(), small]
            .into_iter()
            .zip(1..)
            .map(|(data, index)| to_entry(index, 3, EntryKind::Normal, data).expect("data fits"))
            .collect();
        message.set_entries(entries.into());
        let outgoing = encode(GroupId(1), &message, 0, 0).expect("an append leaves");
        assert_eq!(outgoing.frame.len(), 3);
        assert_eq!(outgoing.frame[1].as_ptr(), large.as_ptr());
        let frame = joined(&outgoing);
        let back = Head::read(&frame)
            .and_then(|head| head.message(&frame))
            .expect("own frames are read");
        assert_eq!(back.get_entries(), message.get_entries());
        let range = frame.as_ptr_range();
        assert!(
            back.get_entries()
                .iter()
                .all(|entry| range.contains(&entry.data.as_ptr()))
        );
    }

    prop_compose! {
        fn entries(first: u64)(list in proptest::collection::vec((0u64..3, 0u8..3, 1usize..6000), 0..5)) -> Vec<Entry> {
            let mut term = 1;
            list.into_iter().zip(first..).map(|((step, kind, size), index)| {
                term += step;
                let data = Bytes::from(vec![kind; size]);
                let (kind, data) = match kind {
                    0 => (EntryKind::Normal, data),
                    1 => (EntryKind::TermStart, Bytes::new()),
                    _ => (EntryKind::Members, MemberChange::Promote(ReplicaId(index)).encode(&data)),
                };
                to_entry(index, term, kind, data).expect("data fits")
            }).collect()
        }
    }

    proptest! {
        #[test]
        fn appends_survive_their_encoding(entries in entries(11), commit in 0u64..100) {
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgAppend);
            (message.from, message.to, message.term) = (5, 6, 99);
            (message.index, message.log_term, message.commit) = (10, 1, commit);
            message.set_entries(entries.into());
            let frame = joined(&encode(GroupId(9), &message, 0, 0).expect("an append leaves"));
            let address = FrameAddress { group: GroupId(9), from: ReplicaId(5), to: ReplicaId(6) };
            prop_assert_eq!(FrameAddress::of(&frame), Ok(address));
            let head = Head::read(&frame).expect("own frames are read");
            prop_assert_eq!(head.message(&frame), Ok(message));
            for cut in [frame.len() - 1, HEAD_BYTES - 1] {
                let cut = frame.slice(..cut);
                let read = Head::read(&cut).and_then(|head| head.message(&cut));
                prop_assert_eq!(read, Err(FrameError::Length));
            }
        }

        #[test]
        fn snapshots_survive_their_encoding(index in 1u64..1000, manifest: Vec<u8>) {
            let members = Members::of_voters(&[ReplicaId(1), ReplicaId(2)]);
            let mut message = Message::default();
            message.set_msg_type(MessageType::MsgSnapshot);
            (message.from, message.to, message.term) = (1, 2, 7);
            message.set_snapshot(to_snapshot(index, 3, &members, Bytes::from(manifest)));
            let frame = joined(&encode(GroupId(9), &message, 0, 0).expect("a snapshot leaves"));
            let back = Head::read(&frame).and_then(|head| head.message(&frame)).expect("own frames are read");
            prop_assert_eq!(back.get_snapshot(), message.get_snapshot());
        }

        #[test]
        fn any_bytes_are_read_without_panic(kind in 0u8..17, rest in proptest::collection::vec(0u8..4, 60..200)) {
            let mut frame = vec![VERSION, kind];
            frame.extend(rest);
            let frame = Bytes::from(frame);
            if let Ok(head) = Head::read(&frame) {
                let _ = head.message(&frame);
            }
        }
    }
}

//! What a group wants done, and the reports that it was done.
//!
//! A [`Ready`] is taken, and everything in it is carried out in any order but for two rules: `persist` goes to the
//! write-ahead log in order, and `committed` goes to the state machine in order, after `snapshot.restored`. Frames in
//! `send` may leave at once: those that depend on `persist` are held inside the group until [`Group::persisted`].
//!
//! Inside, the library's own `Ready` is taken, written to the log in memory and given back in one go, so that nothing
//! can change the library's state in between.

use crate::frame::{FLAG_STAGING, Outgoing, encode, from_entry};
use crate::group::Group;
use crate::member::{MemberChange, Members};
use crate::reads::ReadResult;
use crate::snapshot::{Restored, SnapshotEvents};
use crate::types::{EntryKind, HardState, LogPosition};
use bytes::Bytes;
use raft::StateRole;
use raft::eraftpb::{Entry, Message, MessageType};
use tidelock_base::{LogIndex, Mono, ReplicaId, Term};

/// Everything a group wants done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Handed to [`Group::persisted`]. Rises by one each time.
    pub number: u64,
    /// `persist` must be synced and reported. If false it is written along with whatever is written next, if it is not
    /// empty, and nothing is reported.
    pub sync: bool,
    /// Frames that leave at once.
    pub send: Vec<Outgoing>,
    /// Records for the write-ahead log, in order.
    pub persist: Vec<Persist>,
    /// Entries for the state machine, in order.
    pub committed: Vec<Committed>,
    /// Entries to be read back from the write-ahead log, for members that are behind: from each of these on, some of
    /// them, for [`Group::entries_read`].
    pub read_back: Vec<LogIndex>,
    /// Reads that ended.
    pub reads: Vec<ReadResult>,
    /// The role, leader or term changed.
    pub role: Option<RoleChange>,
    /// Catching up by snapshots.
    pub snapshot: SnapshotEvents,
}

impl Ready {
    fn is_empty(&self) -> bool {
        self.send.is_empty() && self.is_only_frames()
    }

    /// Whether there is nothing in it beside frames that leave.
    #[must_use]
    pub fn is_only_frames(&self) -> bool {
        self.persist.is_empty()
            && self.committed.is_empty()
            && self.reads.is_empty()
            && self.read_back.is_empty()
            && self.role.is_none()
            && self.snapshot.is_empty()
    }
}

/// A record for the write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Persist {
    /// An entry. It supersedes every stored entry of its group at and above its index.
    Entry {
        /// Its index.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// What it is.
        kind: EntryKind,
        /// Its bytes.
        data: Bytes,
    },
    /// Term, vote and commit. Written after the entries of the same `Ready`, so that a stored commit index always has
    /// its entry.
    HardState(HardState),
    /// The members as of an index. Not essential: a start repeats changes that are in its entries.
    Members {
        /// Index of the entry that made them so.
        index: LogIndex,
        /// The members.
        members: Members,
    },
    /// The log now ends at a snapshot whose files are staged: supersedes every stored entry of the group. Once synced,
    /// a start from here finishes what `restored` asks for.
    SnapshotInstalled {
        /// The last entry that the snapshot contains.
        position: LogPosition,
        /// The members as of that entry.
        members: Members,
        /// What the sender wrote about the files.
        manifest: Bytes,
    },
}

/// A committed entry, for the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its index.
    pub index: LogIndex,
    /// The term in which it was proposed.
    pub term: Term,
    /// What it is.
    pub kind: CommittedKind,
    /// The proposed bytes; empty unless the kind is `Normal`.
    pub data: Bytes,
}

/// What a committed entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommittedKind {
    /// Commands.
    Normal,
    /// The first entry of its term.
    TermStart,
    /// A change of members. It takes effect when the entry is reported as applied.
    Members {
        /// What changes.
        change: MemberChange,
        /// What the proposer attached.
        context: Bytes,
    },
}

/// What a replica is to its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It follows, or waits for a leader.
    #[default]
    Follower,
    /// It follows without a vote.
    Learner,
    /// It asks for votes.
    Candidate,
    /// It leads. Its state is current once an entry of its term is committed.
    Leader,
    /// It has applied its own removal.
    Removed,
}

/// A new role, leader or term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleChange {
    /// The role.
    pub role: Role,
    /// The leader, as far as known.
    pub leader: Option<ReplicaId>,
    /// The term.
    pub term: Term,
}

/// A `Ready` that was handed out and is not yet durable.
pub(crate) struct Outstanding {
    number: u64,
    /// Number of the library's `Ready` in it, 0 for none.
    library: u64,
    pub(crate) sync: bool,
    pub(crate) since: Mono,
    held: Vec<Outgoing>,
}

impl Group {
    /// What is to be done now; `None` if nothing is. Taken again after each report, until it is `None`.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.guarded(None, |group| {
            if group.reads.is_busy() {
                group.with_reads(crate::reads::Reads::advance);
            }
            group.try_commit_hint();
            let mut ready = Ready::default();
            let mut held = Vec::new();
            let library = if group.node.has_ready() {
                group.drain_library(&mut ready, &mut held)
            } else {
                0
            };
            group.drain_own(&mut ready);
            group.finish_ready(ready, library, held)
        })
    }

    /// An answer to a read tells of a commit index that appends may not have told yet.
    fn try_commit_hint(&mut self) {
        let Some((index, term)) = self.reads.take_commit_hint() else {
            return;
        };
        let log = &mut self.node.raft.raft_log;
        // Index and term name one entry in all logs; if it is here, it is the committed one.
        log.maybe_commit(index, term);
        if log.committed < index && term == self.node.raft.term {
            self.reads.keep_commit_hint((index, term));
        }
    }

    fn drain_library(&mut self, ready: &mut Ready, held: &mut Vec<Outgoing>) -> u64 {
        let mut library = self.node.ready();
        let number = library.number();
        let leads = self.node.raft.state == StateRole::Leader;
        self.encode_all(library.take_messages(), leads, &mut ready.send, held);
        self.encode_all(library.take_persisted_messages(), leads, &mut ready.send, held);
        if !library.snapshot().is_empty() {
            self.drain_snapshot(library.snapshot(), ready);
        }
        let entries = library.take_entries();
        ready.persist.extend(entries.iter().map(persist_entry));
        self.persist_hard_state(!entries.is_empty(), ready);
        self.node.mut_store().append(&entries);
        let committed = library.take_committed_entries();
        self.node.advance_append_async(library);
        ready.sync = !ready.persist.is_empty();
        ready
            .committed
            .extend(committed.into_iter().map(|entry| self.deliver(entry)));
        number
    }

    /// Frames for peers. A leader's go out at once, but for what may still come from before it led: votes and
    /// acknowledgements promise durability.
    fn encode_all(
        &self,
        messages: Vec<Message>,
        leads: bool,
        send: &mut Vec<Outgoing>,
        held: &mut Vec<Outgoing>,
    ) {
        let committed = self.node.raft.raft_log.committed;
        for message in messages {
            let kind = message.get_msg_type();
            let promise = matches!(
                kind,
                MessageType::MsgRequestVoteResponse | MessageType::MsgAppendResponse
            );
            let staging = kind == MessageType::MsgHeartbeatResponse && self.snapshots.is_under_way();
            let flags = if staging { FLAG_STAGING } else { 0 };
            let Some(frame) = encode(self.config.group, &message, flags, committed) else {
                continue;
            };
            if leads && !promise {
                send.push(frame)
            } else {
                held.push(frame)
            }
        }
    }

    fn drain_snapshot(&mut self, snapshot: &raft::eraftpb::Snapshot, ready: &mut Ready) {
        let metadata = snapshot.get_metadata();
        let position = LogPosition {
            index: LogIndex(metadata.index),
            term: Term(metadata.term),
        };
        let members = Members::from_conf_state(metadata.get_conf_state());
        self.node.mut_store().restore(metadata.index, metadata.term);
        self.changes.clear();
        self.delivered = metadata.index;
        self.snapshots.restoring = Some(Box::new(Restored {
            position,
            members: members.clone(),
        }));
        let manifest = snapshot.data.clone();
        ready.persist.push(Persist::SnapshotInstalled {
            position,
            members,
            manifest,
        });
    }

    /// The commit index alone is not worth a record: it is found again from the leader, or by leading. It rides along
    /// with entries, so that a restart applies most of them at once.
    fn persist_hard_state(&mut self, with_entries: bool, ready: &mut Ready) {
        let raft = &self.node.raft;
        let hard = HardState {
            term: Term(raft.term),
            vote: ReplicaId(raft.vote),
            commit: LogIndex(raft.raft_log.committed),
        };
        let must = (hard.term, hard.vote) != (self.hard.term, self.hard.vote);
        let may = with_entries && hard.commit > self.hard.commit;
        if must || may {
            self.hard = hard;
            ready.persist.push(Persist::HardState(hard));
        }
    }

    fn deliver(&mut self, entry: Entry) -> Committed {
        let index = entry.index;
        assert!(
            index == self.delivered + 1,
            "entries are delivered in order, each once"
        );
        self.delivered = index;
        let kind = match from_entry(&entry).0 {
            EntryKind::Normal => CommittedKind::Normal,
            EntryKind::TermStart => CommittedKind::TermStart,
            EntryKind::Members => {
                let decoded = MemberChange::decode(&entry.context);
                let (change, context) = decoded.expect("changes are decoded once before they enter the log");
                if index > self.members_at {
                    self.changes.push_back((index, change.clone()));
                }
                CommittedKind::Members { change, context }
            }
        };
        let data = if matches!(kind, CommittedKind::Normal) {
            entry.data
        } else {
            Bytes::new()
        };
        Committed {
            index: LogIndex(index),
            term: Term(entry.term),
            kind,
            data,
        }
    }

    /// What this crate itself has to say.
    fn drain_own(&mut self, ready: &mut Ready) {
        let (group, me, term) = (
            self.config.group.value(),
            self.config.me.value(),
            self.node.raft.term,
        );
        for mut head in self.reads.take_frames() {
            (head.group, head.from, head.term) = (group, me, term);
            ready.send.push(head.into_outgoing());
        }
        ready.reads = self.reads.take_results();
        ready.send.append(&mut self.outbox);
        ready.persist.append(&mut self.persist);
        ready.snapshot = self
            .snapshots
            .events
            .take()
            .map_or_else(SnapshotEvents::default, |events| *events);
        ready.snapshot.needed = self.collect_needed();
        ready.read_back = self.node.store().stored().take_wanted();
        let role = self.present_role();
        if role != self.role {
            self.role = role;
            ready.role = Some(role);
        }
    }

    fn present_role(&self) -> RoleChange {
        let me = self.config.me;
        let role = match self.node.raft.state {
            _ if self.removed => Role::Removed,
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower if self.members.is_voter(me) => Role::Follower,
            StateRole::Follower => Role::Learner,
        };
        RoleChange {
            role,
            leader: self.leader(),
            term: self.term(),
        }
    }

    /// Numbers the `Ready` and notes what waits for its sync. One that needs none, with none before it, is done.
    fn finish_ready(&mut self, mut ready: Ready, library: u64, held: Vec<Outgoing>) -> Option<Ready> {
        if !ready.sync && self.outstanding.is_empty() {
            ready.send.extend(held);
            if library > 0 {
                self.node.on_persist_ready(library);
            }
        } else if library > 0 {
            let (number, sync, since) = (self.number + 1, ready.sync, self.now);
            self.outstanding.push_back(Outstanding {
                number,
                library,
                sync,
                since,
                held,
            });
        }
        if ready.is_empty() {
            return None;
        }
        self.number += 1;
        ready.number = self.number;
        Some(ready)
    }

    /// Tells that what `Ready` `number` and all before it wanted persisted is synced. Frames that waited for it leave
    /// with the next `Ready`.
    pub fn persisted(&mut self, number: u64) {
        self.guarded((), |group| {
            let mut library = 0;
            let done = |ready: &mut Outstanding| ready.number <= number || !ready.sync;
            while let Some(ready) = group.outstanding.pop_front_if(done) {
                library = ready.library;
                group.outbox.extend(ready.held);
            }
            if library > 0 {
                group.node.on_persist_ready(library);
            }
            group.finish_restore();
        });
    }

    /// Once the record of a snapshot is durable, the snapshot is in force.
    fn finish_restore(&mut self) {
        let persisted = self.node.raft.raft_log.persisted;
        let durable = |restored: &mut Box<Restored>| restored.position.index.value() <= persisted;
        if let Some(restored) = self.snapshots.restoring.take_if(durable) {
            self.node.advance_apply_to(restored.position.index.value());
            self.members = restored.members.clone();
            self.members_at = restored.position.index.value();
            self.removed = !self.members.contains(self.config.me);
            self.snapshots.events.get_or_insert_default().restored = Some(*restored);
        }
    }

    /// Tells that the state machine has applied everything up to `upto`. Changes of members among it take effect now.
    pub fn applied(&mut self, upto: LogIndex) {
        self.guarded((), |group| {
            let upto = upto.value().min(group.delivered);
            // While a snapshot is being put in force, what was applied before it does not matter any more.
            if group.snapshots.restoring.is_some() || upto <= group.node.raft.raft_log.applied {
                return;
            }
            while let Some((index, change)) = group.changes.pop_front_if(|(index, _)| *index <= upto) {
                group.apply_change(index, &change);
                group.node.advance_apply_to(index);
                if group.members.is_joint() {
                    // The library has appended the entry that leaves the joint configuration, and told nobody.
                    group.bcast_append();
                }
            }
            group.node.advance_apply_to(upto);
            let pin = group.snapshots.pin();
            group.node.mut_store().set_applied(upto, pin);
            // A sole voter cannot campaign before it has applied the changes that made it the only one.
            if group.members.is_sole_voter(group.config.me) && group.may_campaign() && !group.is_leader() {
                let _ = group.node.campaign();
            }
        });
    }

    fn bcast_append(&mut self) {
        if self.node.raft.state == StateRole::Leader {
            self.node.raft.bcast_append();
        }
    }

    /// Puts a change of members into effect. One that the library refuses was not valid when it was proposed; all
    /// replicas refuse it alike.
    pub(crate) fn apply_change(&mut self, index: u64, change: &MemberChange) {
        let Ok(state) = self.node.apply_conf_change(&change.to_conf_change()) else {
            return;
        };
        self.members = Members::from_conf_state(&state);
        self.members_at = index;
        self.persist.push(Persist::Members {
            index: LogIndex(index),
            members: self.members.clone(),
        });
        let me = self.config.me;
        self.removed = !self.members.contains(me);
        if !self.members.is_voter(me) && self.node.raft.state == StateRole::Leader {
            // The library would go on leading a group that it is no member of.
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, 0);
        }
    }
}

fn persist_entry(entry: &Entry) -> Persist {
    let (kind, data) = from_entry(entry);
    Persist::Entry {
        index: LogIndex(entry.index),
        term: Term(entry.term),
        kind,
        data: data.clone(),
    }
}

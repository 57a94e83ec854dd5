//! Going on alone when the majority of a group is lost for good.
//!
//! Consensus cannot do this: whoever is left does not know what the lost ones had agreed on. Somebody who knows that they
//! never come back, and that nobody else goes on, must decide it.

use crate::group::Group;
use crate::member::Members;
use crate::types::{EntryKind, HardState, LogEntry, LogPosition, Start};
use bytes::Bytes;
use raft::GetEntriesContext;
use tidelock_base::{LogIndex, ReplicaId, Term};

/// A survivor goes on in a term so far beyond its last one that none of those that are lost can have led in it: no term
/// has two leaders.
pub const SURVIVOR_TERMS: u64 = 1 << 20;

impl Group {
    /// The last entry of the log. Of several survivors the one with the greatest has all that any of them has of what was
    /// committed (Raft, section 5.4.1).
    #[must_use]
    pub fn last_position(&self) -> LogPosition {
        let log = &self.node.raft.raft_log;
        LogPosition {
            index: LogIndex(log.last_index()),
            term: Term(log.last_term()),
        }
    }

    /// What this replica goes on from as the only member, when the majority is lost for good: its applied state, and
    /// every entry beyond, since each of them may have been committed. Changes of members among these are void; an
    /// entry without commands stands in their place. `None` if the log cannot be read.
    #[must_use]
    pub fn survivor(&self, applied_term: Term) -> Option<Start> {
        let applied = self.applied_index();
        let log = &self.node.raft.raft_log;
        let stored = log
            .entries(applied.value() + 1, None, GetEntriesContext::empty(false))
            .ok()?;
        let entries = stored.iter().map(|entry| {
            let (kind, data) = crate::frame::from_entry(entry);
            let is_void = kind == EntryKind::Members;
            LogEntry {
                index: LogIndex(entry.index),
                term: Term(entry.term),
                kind: if is_void { EntryKind::TermStart } else { kind },
                data: if is_void { Bytes::new() } else { data.clone() },
            }
        });
        Some(Start {
            hard: HardState {
                term: Term(self.term().value() + SURVIVOR_TERMS),
                vote: ReplicaId(0),
                commit: applied,
            },
            base: LogPosition {
                index: applied,
                term: applied_term,
            },
            members: Members::of_voters(&[self.config.me]),
            members_at: applied,
            entries: entries.collect(),
            applied,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{GroupConfig, Limits, Timers};
    use crate::member::MemberChange;
    use crate::types::LogEntry;
    use tidelock_base::{GroupId, Mono};

    fn config() -> GroupConfig {
        GroupConfig {
            group: GroupId(7),
            me: ReplicaId(1),
            seed: 1,
            life: 1,
            timers: Timers::default(),
            limits: Limits::default(),
        }
    }

    fn entry(index: u64, kind: EntryKind, data: impl Into<Bytes>) -> LogEntry {
        LogEntry {
            index: LogIndex(index),
            term: Term(1),
            kind,
            data: data.into(),
        }
    }

    #[test]
    fn a_survivor_commits_all_of_its_log_but_for_changes_of_members() {
        let mut start = Start::found(&[1, 2, 3].map(ReplicaId));
        let change = MemberChange::AddLearner(ReplicaId(4)).encode(b"");
        start.entries = vec![
            entry(2, EntryKind::Normal, &b"a"[..]),
            entry(3, EntryKind::Members, change),
            entry(4, EntryKind::Normal, &b"b"[..]),
        ];
        let left = Group::new(config(), start, Mono(0)).unwrap();
        assert_eq!((left.commit(), left.is_leader()), (LogIndex(1), false));
        let last = left.last_position();
        assert_eq!((last.index, last.term), (LogIndex(4), Term(1)));

        let alone = left.survivor(Term(1)).unwrap();
        let mut alone = Group::new(config(), alone, Mono(0)).unwrap();
        let mut committed = Vec::new();
        while let Some(ready) = alone.take_ready() {
            if ready.sync {
                alone.persisted(ready.number);
            }
            for entry in ready.committed {
                alone.applied(entry.index);
                committed.push((entry.index.value(), entry.data));
            }
        }
        assert!(alone.term() > Term(SURVIVOR_TERMS));
        assert!(alone.is_leader() && alone.members().0.is_sole_voter(ReplicaId(1)));
        assert!(alone.members().0.learners.is_empty());
        let nothing = Bytes::new();
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        assert_eq!(committed, [(2, a), (3, nothing.clone()), (4, b), (5, nothing)]);
    }
}

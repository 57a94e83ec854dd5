//! What the log should mean, said as simply as possible.

use crate::{HardState, Recovered, RecoveredGroup, WalRecord};
use std::collections::BTreeMap;
use tidelock_base::{GroupId, LogIndex, ReplicaId, Term};

/// A record that owns its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Entry(u64, u64, u64, Vec<u8>),
    HardState(u64, u64, u64),
    Truncated(u64, u64),
    Created(u64, u64),
    Destroyed(u64),
    Snapshot(u64, u64),
    Meta(u8, Vec<u8>),
    Members(u64, Vec<u8>),
}

impl Op {
    pub(crate) fn record(&self) -> WalRecord<'_> {
        match self {
            Self::Entry(group, index, term, data) => WalRecord::Entry {
                group: GroupId(*group),
                index: LogIndex(*index),
                term: Term(*term),
                kind: 1,
                data,
            },
            Self::HardState(group, term, commit) => WalRecord::HardState {
                group: GroupId(*group),
                term: Term(*term),
                vote: ReplicaId(9),
                commit: LogIndex(*commit),
            },
            Self::Truncated(group, index) => WalRecord::Truncated {
                group: GroupId(*group),
                index: LogIndex(*index),
                term: Term(1),
            },
            Self::Created(group, replica) => WalRecord::Created {
                group: GroupId(*group),
                replica: ReplicaId(*replica),
                blob: b"blob",
            },
            Self::Destroyed(group) => WalRecord::Destroyed {
                group: GroupId(*group),
            },
            Self::Snapshot(group, index) => WalRecord::SnapshotInstalled {
                group: GroupId(*group),
                index: LogIndex(*index),
                term: Term(1),
                blob: b"manifest",
            },
            Self::Meta(key, blob) => WalRecord::Meta { key: *key, blob },
            Self::Members(group, blob) => WalRecord::Members {
                group: GroupId(*group),
                blob,
            },
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) groups: BTreeMap<u64, ModelGroup>,
    pub(crate) meta: BTreeMap<u8, Vec<u8>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelGroup {
    pub(crate) replica: u64,
    pub(crate) hard: Option<(u64, u64)>,
    pub(crate) floor: Option<u64>,
    pub(crate) installing: Option<u64>,
    pub(crate) members: Option<Vec<u8>>,
    pub(crate) entries: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl ModelGroup {
    pub(crate) fn last(&self) -> u64 {
        self.entries
            .keys()
            .next_back()
            .copied()
            .or(self.floor)
            .unwrap_or(0)
    }
}

impl Model {
    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Meta(key, blob) => {
                self.meta.insert(*key, blob.clone());
            }
            Op::Destroyed(group) => {
                self.groups.remove(group);
            }
            Op::Created(group, replica) => {
                let group = self.groups.entry(*group).or_default();
                if group.replica != *replica {
                    *group = ModelGroup {
                        replica: *replica,
                        ..ModelGroup::default()
                    };
                }
            }
            Op::Entry(group, index, term, data) => {
                let group = self.groups.entry(*group).or_default();
                group.entries.retain(|at, _| at < index);
                group.entries.insert(*index, (*term, data.clone()));
            }
            Op::HardState(group, term, commit) => {
                self.groups.entry(*group).or_default().hard = Some((*term, *commit));
            }
            Op::Truncated(group, index) => {
                let group = self.groups.entry(*group).or_default();
                if group.floor.is_none_or(|floor| floor <= *index) {
                    group.floor = Some(*index);
                    group.installing = None;
                    group.entries.retain(|at, _| at > index);
                }
            }
            Op::Snapshot(group, index) => {
                let group = self.groups.entry(*group).or_default();
                (group.floor, group.installing) = (Some(*index), Some(*index));
                group.entries.clear();
            }
            Op::Members(group, blob) => {
                self.groups.entry(*group).or_default().members = Some(blob.clone());
            }
        }
    }

    /// What recovery found, in the words of the model.
    pub(crate) fn of(recovered: &Recovered) -> Self {
        let group = |group: &RecoveredGroup| ModelGroup {
            replica: group.replica.0,
            hard: group
                .hard_state
                .map(|HardState { term, commit, .. }| (term.0, commit.0)),
            floor: group.truncated.map(|(index, _)| index.0),
            installing: group.snapshot.as_ref().map(|snapshot| snapshot.index.0),
            members: group.members.as_ref().map(|blob| blob.to_vec()),
            entries: group
                .entries
                .iter()
                .map(|entry| (entry.index.0, (entry.term.0, entry.data.to_vec())))
                .collect(),
        };
        Self {
            groups: recovered
                .groups
                .iter()
                .map(|(id, found)| (id.0, group(found)))
                .collect(),
            meta: recovered
                .meta
                .iter()
                .map(|(key, blob)| (*key, blob.to_vec()))
                .collect(),
        }
    }
}

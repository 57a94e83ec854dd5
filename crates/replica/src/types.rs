//! Positions, entries and the stored state a group starts from.

use crate::member::{MemberChange, Members};
use bytes::Bytes;
use tidelock_base::{LogIndex, ReplicaId, Term};

/// A place in the log: an index and the term of the entry there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Index of the entry; 0 is before the first.
    pub index: LogIndex,
    /// Term in which it was proposed.
    pub term: Term,
}

/// What an entry is, as one byte in frames and in the write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// Commands of the state machine; never empty.
    Normal = 0,
    /// The first entry of a term, without data.
    TermStart = 1,
    /// A change of members and its context.
    Members = 2,
}

impl EntryKind {
    /// The byte that stands for this kind.
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        self as u8
    }

    /// The kind that `byte` stands for, if any.
    #[must_use]
    pub const fn from_u8(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Normal),
            1 => Some(Self::TermStart),
            2 => Some(Self::Members),
            _ => None,
        }
    }
}

/// One entry of the log as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its index.
    pub index: LogIndex,
    /// Its term.
    pub term: Term,
    /// What it is.
    pub kind: EntryKind,
    /// Its bytes: commands, nothing, or an encoded change of members.
    pub data: Bytes,
}

/// The state that must be durable before a vote leaves (Raft thesis, figure 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term this replica has seen.
    pub term: Term,
    /// Whom it voted for in that term; 0 for none.
    pub vote: ReplicaId,
    /// Known to be committed; may lag behind, it is written along with entries only.
    pub commit: LogIndex,
}

/// What a replica recovered from its disk, or is given at its birth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Term, vote and commit as last synced.
    pub hard: HardState,
    /// The entry before the first of `entries`: the end of the checkpointed (or founding) part of the log.
    pub base: LogPosition,
    /// The members as of `members_at`.
    pub members: Members,
    /// Index of the entry that last changed the members, or any later index up to which nothing changed them.
    pub members_at: LogIndex,
    /// Every stored entry above `base`, without gaps.
    pub entries: Vec<LogEntry>,
    /// What the state machine's checkpoint contains; entries above it are handed out again.
    pub applied: LogIndex,
}

/// Why a replica cannot start from what is stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Something synced is gone: this replica must not vote, and is replaced under a new id.
    #[error("state was lost: index {known} was durable, the log ends at {last}")]
    Lost {
        /// An index that was durable once (committed, applied or a change of members).
        known: LogIndex,
        /// Where the log ends now.
        last: LogIndex,
    },
    /// The checkpoint is older than the log's first entry, so entries between them are missing.
    #[error("entries above {applied} are missing: the log starts after {base}")]
    Gap {
        /// What the checkpoint contains.
        applied: LogIndex,
        /// The end of the part of the log that is gone.
        base: LogIndex,
    },
    /// The entries contradict themselves.
    #[error("entry {index} does not follow its predecessor")]
    Disorder {
        /// Index at which an entry was expected.
        index: LogIndex,
    },
    /// A stored change of members cannot be read.
    #[error("the change of members at {index} cannot be read")]
    BadChange {
        /// Its index.
        index: LogIndex,
    },
    /// The configuration is not usable.
    #[error("{0}")]
    Config(String),
}

impl Start {
    /// A new group whose voters are known: a synthetic snapshot at index 1, term 1. All founding replicas start alike.
    #[must_use]
    pub fn found(voters: &[ReplicaId]) -> Self {
        let base = LogPosition {
            index: LogIndex(1),
            term: Term(1),
        };
        Self {
            hard: HardState {
                term: base.term,
                vote: ReplicaId(0),
                commit: base.index,
            },
            base,
            members: Members::of_voters(voters),
            members_at: base.index,
            entries: Vec::new(),
            applied: base.index,
        }
    }

    /// A new replica of an existing group: it knows nothing and is filled by a snapshot. Changes of members cannot be
    /// replayed by a replica without members, therefore no other beginning exists.
    #[must_use]
    pub fn join() -> Self {
        Self {
            hard: HardState::default(),
            base: LogPosition::default(),
            members: Members::default(),
            members_at: LogIndex(0),
            entries: Vec::new(),
            applied: LogIndex(0),
        }
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.entries.last().map_or(self.base.index, |entry| entry.index)
    }

    /// True before the first snapshot of a replica that joins.
    pub(crate) fn is_blank(&self) -> bool {
        self.base.index == LogIndex(0) && self.entries.is_empty() && self.members.is_empty()
    }

    /// Checks what the library would panic on, and completes term and commit from the rest.
    ///
    /// A stored term below that of the last entry means that the entry was synced and the term was not. No vote was
    /// given in that term, since a vote is synced before it leaves; the term is raised with the vote open.
    pub(crate) fn check(&mut self) -> Result<(), StartError> {
        let mut last = self.base;
        for entry in &self.entries {
            if entry.index != last.index.next() || entry.term < last.term {
                return Err(StartError::Disorder {
                    index: last.index.next(),
                });
            }
            if entry.kind == EntryKind::Members && MemberChange::decode(&entry.data).is_err() {
                return Err(StartError::BadChange { index: entry.index });
            }
            last = LogPosition {
                index: entry.index,
                term: entry.term,
            };
        }
        for known in [self.hard.commit, self.applied, self.members_at] {
            if known > last.index {
                return Err(StartError::Lost {
                    known,
                    last: last.index,
                });
            }
            self.hard.commit = self.hard.commit.max(known);
        }
        self.hard.commit = self.hard.commit.max(self.base.index);
        if self.applied < self.base.index {
            return Err(StartError::Gap {
                applied: self.applied,
                base: self.base.index,
            });
        }
        if self.hard.term < last.term {
            self.hard.term = last.term;
            self.hard.vote = ReplicaId(0);
        }
        Ok(())
    }
}

//! Identifiers: one type for each number that could be mistaken for another.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The bare number, for codecs and text.
            #[must_use]
            pub const fn value(self) -> $inner {
                self.0
            }

            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// Sequence of a message in its stream; the first is 1, 0 means none.
    StreamSeq(u64)
}
number! {
    /// Sequence of a delivery in its consumer (`consumer_seq`); the first is 1, 0 means none.
    DeliverSeq(u64)
}
number! {
    /// Index of an entry in a group's log; 0 means none, 1 is the synthetic snapshot that founds the group.
    LogIndex(u64)
}
number! {
    /// Raft term; 0 means none.
    Term(u64)
}
number! {
    /// A replicated group (one stream, or the meta group). Handed out by the meta log, never reused.
    GroupId(u64)
}
number! {
    /// One replica of one group: its raft id. Handed out by the meta log, never reused (Raft thesis, section 6.1).
    ReplicaId(u64)
}
number! {
    /// One incarnation of a consumer; a consumer that is deleted and created again gets another.
    ConsumerId(u64)
}
number! {
    /// A server, by the random id of its store; names and addresses are attributes and may change.
    NodeId(u64)
}
number! {
    /// A cluster, by the random id fixed when it formed.
    ClusterId(u128)
}
number! {
    /// One start of one server: random, new at each start.
    BootId(u128)
}
number! {
    /// An account, numbered within the process in the order of the configuration.
    AccountId(u32)
}
number! {
    /// A worker thread of this server.
    WorkerId(u16)
}
number! {
    /// A client connection as operators see it (`cid`), unique within the server's life.
    ConnId(u64)
}

impl AccountId {
    /// No account of this process: that of streams whose account is not configured, or has no JetStream.
    pub const NONE: Self = Self(u32::MAX);
}

impl GroupId {
    /// The group of the cluster's own metadata.
    pub const META: Self = Self(1);
}

/// A worker of a server of the cluster: what frames and results are addressed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The server.
    pub node: NodeId,
    /// Its worker.
    pub worker: WorkerId,
}

//! What a turn leaves to be done by the shell.

use crate::cell::Cell;
use crate::interest::ConnKey;
use bytes::Bytes;
use tidelock_auth::PasswordCheck;
use tidelock_base::{GroupId, WorkerId};
use tidelock_record::IoRequest;

/// What the end of a turn asks for. The shell empties the lists; their memory is used again.
#[derive(Debug, Default)]
pub struct Output {
    /// Connections with something to write.
    pub writes: Vec<ConnKey>,
    /// Connections to close, after one more write.
    pub closes: Vec<ConnKey>,
    /// Connections that were paused and may be read again.
    pub resumed: Vec<ConnKey>,
    /// Connections to open, with `host:port`.
    pub dials: Vec<(ConnKey, String)>,
    /// Batches for other workers of this node.
    pub cells: Vec<(WorkerId, Vec<Cell>)>,
    /// Disk operations.
    pub io: Vec<IoJob>,
    /// Answers to monitoring requests.
    pub answers: Vec<(QueryId, Answer)>,
    /// Password checks that take time, to be run elsewhere; [`super::Worker::authenticated`] gets the result.
    pub checks: Vec<(ConnKey, PasswordCheck)>,
    /// The client listener is to be closed (lame duck mode).
    pub stop_listening: bool,
    /// The worker has stopped; nothing more is to be done for it.
    pub stopped: bool,
}

/// Disk operations of one owner, to be run in order.
#[derive(Debug)]
pub struct IoJob {
    /// Who gets the results.
    pub owner: IoOwner,
    /// The operations.
    pub requests: Vec<IoRequest>,
    /// Whether the worker may run them itself, at once: a lone small batch of the log.
    pub inline: bool,
}

/// Who asked for a disk operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOwner {
    /// The worker's lane of the write-ahead log.
    Log,
    /// A stream's store.
    Store(GroupId),
    /// Checkpoints and other files of the node.
    Node,
}

/// Identifies a monitoring request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// A monitoring request, as HTTP or `$SYS` brought it.
#[derive(Clone, Debug)]
pub struct Query {
    /// Endpoint: `varz`, `connz` ...
    pub endpoint: String,
    /// Options by name, as text.
    pub options: Vec<(String, String)>,
}

/// The answer to a monitoring request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Content type.
    pub content_type: &'static str,
    /// Body.
    pub body: Bytes,
}

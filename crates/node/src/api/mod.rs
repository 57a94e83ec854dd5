//! The JetStream API: from a client's request to the node that has the answer, and back.
//!
//! ```text
//!  client ─> entry ─(queue: behind the turn's publishes)─> dispatch ─┬─> leader of the stream ─> job ─> reply
//!                                                                    └─> leader of the metadata ─> job ─> reply
//!  client <─ audit, counters <─ metadata applied as far as the reply needs it <──────────────────────────┘
//! ```
//!
//! The node where a request entered remembers it until its last reply ([`entry`]); another node that does not lead
//! says so, and the request goes elsewhere, within a bound. The leader runs it as a [`Job`]: first a linearizable
//! read, then the endpoint's own steps, each of which ends in [`Core::api_done`], [`Core::meta_changed`] or a reply
//! of another leader that the job itself has asked.
//!
//! Invariants:
//! - an answer that depends on what is there leaves only after a read of the group that knows: "not found" of a
//!   stream after one of the metadata;
//! - requests of a connection run behind what it published before;
//! - a request that may have changed something is not sent a second time, unless twice comes to the same.

mod account;
mod advisories;
mod answer;
mod catalog;
mod cluster_admin;
mod consumer;
mod consumer_info;
mod control;
mod direct_get;
mod direct_rules;
mod entry;
mod jobs;
mod message_get;
mod pub_ack;
mod stream_admin;
mod stream_create;
mod stream_info;
mod stream_list;
mod stream_update;
mod subjects;
mod tracking;

pub(crate) use answer::is_between_nodes;

use crate::cell::Request;
use crate::interest::ConnKey;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidelock_base::{GroupId, Mono};
use tidelock_jetstream::meta::StreamEntry;

/// What the metadata's apply tells jobs that wait for it.
#[derive(Clone, Debug)]
pub(crate) enum MetaEvent {
    /// A stream is new or has changed.
    Stream(Box<StreamEntry>),
    /// A stream is gone.
    Removed(Box<StreamEntry>),
}

/// A request in work at a leader.
#[derive(Debug)]
pub(crate) struct Job {
    request: Request,
    /// The group that it runs on.
    group: GroupId,
    stage: Stage,
}

/// What a job waits for.
#[derive(Debug)]
enum Stage {
    /// A read; then it runs from the start.
    Read,
    /// A message of a batch that is on disk.
    Direct(Box<direct_get::Batch>),
    /// Its command.
    Command,
    /// The end of a stream, with the names of its consumers where they are known here.
    Deleting(Vec<String>),
    /// The metadata's entry of a new stream.
    Creating,
    /// The first leader of a new stream.
    Forming,
    /// The leaders of the streams of a page.
    Listing(stream_list::Page),
    /// The stream's leader, to say what the stream is.
    Describing,
    /// A step of an update.
    Updating(Box<stream_update::Update>),
    /// The change of a consumer's pause, with the time that was asked for.
    Pausing(tidelock_base::Wall),
}

/// A request that waits to be sent.
#[derive(Debug)]
struct Queued {
    origin: tracking::Origin,
    request: Request,
}

/// The state of the API on one worker.
#[derive(Debug, Default)]
pub(crate) struct Api {
    /// Requests of this turn.
    queue: VecDeque<Queued>,
    next_number: u64,
    /// Requests sent, until their last reply.
    pending: BTreeMap<u64, tracking::Pending>,
    /// When each of those must be looked at again.
    timers: BTreeSet<(Mono, u64)>,
    /// Replies that wait for the metadata.
    held: Vec<tracking::Held>,
    /// Jobs that wait until their stream has a leader.
    forming: Vec<stream_create::Forming>,
    /// Jobs that wait for the answers of several nodes.
    gathers: BTreeMap<u64, tracking::Gather>,
    /// Requests that were dropped since too many waited, and not reported yet.
    dropped: u64,
    /// When there is something to do without any input.
    wake: Option<Mono>,
    /// Body of a publish acknowledgement; its memory is used again.
    ack: Vec<u8>,
    /// Header of a message that is answered; its memory is used again.
    header: Vec<u8>,
}

/// The connection of a request, if a client made it.
pub(crate) type Asker = Option<ConnKey>;

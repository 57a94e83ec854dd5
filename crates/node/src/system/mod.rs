//! What a node says of itself: monitoring over HTTP, requests and events of the system account; and how it ends.
//!
//! Everybody who asks ends up with a [`topic::Topic`]. Figures that every worker has a share of are gathered
//! ([`gather`]), the answer is one object whoever asked ([`body`]), and goes out as HTTP or in the envelope of the
//! system account ([`answer`]). None of this is on the path of a message: what connections count for themselves is
//! added up only when somebody asks.

mod accounts;
mod answer;
mod body;
mod connections;
mod events;
mod gather;
mod groups;
mod jetstream;
mod marks;
mod options;
mod process;
mod requests;
mod server;
mod shared;
mod stop;
mod topic;
mod trace;

pub use gather::{NeedsCell, PartCell, SystemCell};
pub use process::{ProcessProbe, ProcessStats};
pub use shared::{PastTraffic, Resources, SystemShared};

pub(crate) use requests::register;
pub(crate) use trace::Traces;

use crate::interest::ConnKey;
use crate::worker::{Client, Core, Worker};
use std::collections::BTreeMap;
use tidelock_base::Mono;
use tidelock_session::Inbound;

/// A worker's part in monitoring and in the end of the node.
#[derive(Debug, Default)]
pub(crate) struct System {
    /// Requests of this turn.
    asked: Vec<requests::Asked>,
    /// What this turn brought that the system account is told.
    notices: Vec<events::Notice>,
    gathers: gather::Gathers,
    closed: connections::ClosedRing,
    /// Monitoring requests by path.
    http_requests: BTreeMap<String, u64>,
    clock: events::Clock,
    marks: marks::Marks,
    /// How the worker ends.
    pub(crate) stop: stop::Stop,
}

impl System {
    /// When the worker must look here again; now, if something waits for the end of a turn.
    pub(crate) fn next_deadline(&self, now: Mono) -> Option<Mono> {
        let waiting = (!self.asked.is_empty() || !self.notices.is_empty()).then_some(now);
        let others = [
            self.gathers.next_deadline(),
            self.clock.next_deadline(),
            self.marks.next_deadline(),
        ];
        let others = others.into_iter().chain([self.stop.next_deadline()]);
        others.flatten().chain(waiting).min()
    }
}

impl Worker {
    /// Does what is due; at the beginning of a turn.
    pub(crate) fn begin_system(&mut self) {
        self.end_gathers();
        self.system_tick();
        self.core.look_at_marks();
        self.step_stop();
    }

    /// Answers and tells what the turn brought; at its end, before interest is committed and batches leave.
    pub(crate) fn finish_system(&mut self) {
        self.answer_requests();
        self.run_notices();
    }

    /// A connection is gone and about to be forgotten.
    pub(crate) fn forget_client(&mut self, key: ConnKey) {
        self.client_gone(key);
    }

    /// Both halves of all open connections of this worker.
    fn open_connections(&self) -> impl Iterator<Item = (&Client, &Inbound)> {
        self.core
            .clients
            .iter()
            .zip(&self.inbound)
            .filter_map(|(place, inbound)| Some((place.client.as_ref()?, inbound.as_ref()?)))
    }
}

impl Core {
    /// The client behind a key, to look at.
    fn client_at(&self, key: ConnKey) -> Option<&Client> {
        let place = self.clients.get(key.index as usize)?;
        place.client.as_ref()
    }
}

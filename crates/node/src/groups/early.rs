//! Requests that have come before publishes which their connection made first.
//!
//! A connection's publishes and its requests take the same way, so a request mostly finds them here. But a forward that
//! was lost with its link is sent again later, and its connection may have asked for something meanwhile. A request
//! therefore names the last forward number of the worker where it entered, and waits until this leader has taken that
//! one (DESIGN section 4, order per connection). From there on the read that serves it takes care: it waits for
//! everything that was proposed before it.

use super::{Machine, Waiter};
use crate::cell::Request;
use crate::consumers::{AckWaiter, Entered};
use crate::worker::Core;
use std::collections::{BTreeMap, VecDeque};
use tidelock_base::GroupId;
use tidelock_jetstream::command::WindowKey;

/// Requests that wait, a group at most; the oldest are sent back for more, and come again.
const WAITING_MAX: usize = 1_024;

/// A request that is to be served behind what its connection has published before it.
pub(crate) enum Behind {
    /// One of the API.
    Api(Request),
    /// A pull request that does not wait; and where it entered, if it is not here.
    Pull(Request, Option<Entered>),
}

impl Behind {
    const fn request(&self) -> &Request {
        match self {
            Self::Api(request) | Self::Pull(request, _) => request,
        }
    }
}

/// What a leader has taken of each sender, and who waits for more.
#[derive(Default)]
pub(super) struct Early {
    taken: BTreeMap<WindowKey, u64>,
    waiting: VecDeque<Behind>,
}

impl Early {
    /// A leader has put these publishes into its log. Those behind a gap do not count: they will come again.
    pub(super) fn took(&mut self, sender: WindowKey, first: u64, count: u32, low_water: u64) {
        let taken = self.taken.entry(sender).or_default();
        if first <= (*taken).max(low_water) + 1 {
            *taken = (*taken).max(first + u64::from(count) - 1);
        }
    }

    fn has_taken(&self, sender: WindowKey, number: u64) -> bool {
        self.taken.get(&sender).is_some_and(|taken| *taken >= number)
    }

    /// Adds a request; answers one that has to leave for it.
    fn wait(&mut self, request: Behind) -> Option<Behind> {
        self.waiting.push_back(request);
        (self.waiting.len() > WAITING_MAX)
            .then(|| self.waiting.pop_front())
            .flatten()
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out all requests that wait.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Behind> {
        std::mem::take(&mut self.waiting)
    }

    /// Takes out the requests that need not wait any more.
    fn due(&mut self) -> Vec<Behind> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.waiting);
        let (due, waiting) = all
            .into_iter()
            .partition(|one: &Behind| self.has_taken(one.request().id.sender, one.request().after));
        self.waiting = waiting;
        Vec::from(due)
    }
}

impl Core {
    /// Begins a request at the leader of its group, now or once the publishes before it are here.
    pub(crate) fn begin_behind(&mut self, group: GroupId, one: Behind) {
        let held_up = self.is_held_up(group);
        let Some(slot) = self.slot_mut(group) else { return };
        // While nothing is written, the read itself refuses what it cannot see.
        if held_up || slot.has_what_came_before(one.request()) {
            return self.begin_now(group, one);
        }
        if let Some(oldest) = slot.early.wait(one) {
            self.send_away(oldest);
        }
    }

    fn begin_now(&mut self, group: GroupId, one: Behind) {
        match one {
            Behind::Api(request) => self.start_job(group, request),
            Behind::Pull(request, entered) => {
                self.read(group, Waiter::Ack(AckWaiter::Pull(Box::new(request), entered)));
            }
        }
    }

    /// It cannot wait here, and comes again.
    fn send_away(&mut self, one: Behind) {
        match one {
            Behind::Api(request) => self.send_back(&request),
            Behind::Pull(request, entered) => self.refuse_pull(request, entered),
        }
    }

    /// Publishes were taken: requests that waited for them begin.
    pub(super) fn begin_early(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group) else { return };
        for one in slot.early.due() {
            self.begin_now(group, one);
        }
    }

    /// This node does not lead any more: what waits here finds the one that does.
    pub(super) fn send_early_away(&mut self, group: GroupId) {
        let Some(slot) = self.slot_mut(group) else { return };
        for one in std::mem::take(&mut slot.early).waiting {
            self.send_away(one);
        }
    }
}

impl super::Slot {
    /// Whether all publishes that the connection made before its request are in this leader's log, or judged.
    fn has_what_came_before(&self, request: &Request) -> bool {
        let sender = request.id.sender;
        let judged = match &self.machine {
            Machine::Stream(stream) => stream.windows().position(sender),
            Machine::Meta(_) => return true,
        };
        request.after == 0
            || self.early.has_taken(sender, request.after)
            || judged.is_some_and(|(last, _)| last >= request.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tidelock_base::{AccountId, BootId, NodeId, WorkerId};

    const SENDER: WindowKey = WindowKey {
        boot: BootId(1),
        worker: WorkerId(0),
    };

    fn request(number: u64, after: u64) -> Behind {
        Behind::Api(Request {
            id: crate::cell::RequestId {
                sender: SENDER,
                number,
            },
            node: NodeId(1),
            group: Some(GroupId(2)),
            account: AccountId(0),
            subject: Bytes::new(),
            reply: Bytes::new(),
            header: Bytes::new(),
            payload: Bytes::new(),
            client: Bytes::new(),
            after,
        })
    }

    fn numbers(requests: &[Behind]) -> Vec<u64> {
        requests.iter().map(|one| one.request().id.number).collect()
    }

    #[test]
    fn a_request_waits_for_the_publish_before_it() {
        let mut early = Early::default();
        early.took(SENDER, 1, 2, 0);
        assert!(early.has_taken(SENDER, 2) && !early.has_taken(SENDER, 3));
        assert!(early.wait(request(1, 3)).is_none());
        assert!(early.wait(request(2, 5)).is_none());
        assert!(early.due().is_empty());
        early.took(SENDER, 3, 1, 0);
        assert_eq!(numbers(&early.due()), [1]);
        early.took(SENDER, 4, 2, 0);
        assert_eq!(numbers(&early.due()), [2]);
    }

    #[test]
    fn what_lies_behind_a_gap_does_not_count() {
        let mut early = Early::default();
        early.took(SENDER, 5, 2, 2);
        assert!(!early.has_taken(SENDER, 6), "3 and 4 are missing");
        early.took(SENDER, 5, 2, 4);
        assert!(early.has_taken(SENDER, 6), "the sender needs nothing up to 4");
    }

    #[test]
    fn the_oldest_leave_when_too_many_wait() {
        let mut early = Early::default();
        let sent_back: Vec<_> = (0..WAITING_MAX as u64 + 2)
            .filter_map(|number| early.wait(request(number, 9)))
            .collect();
        assert_eq!(numbers(&sent_back), [0, 1]);
    }
}

//! Pull requests: where they enter, and at the leader.
//!
//! The worker where a request entered remembers it until the leader says that it has ended, if the leader is another.
//! So the client is told when the leader is lost, whatever became of it, and a request that met a node that does not
//! lead finds the one that does:
//!
//! ```text
//!            leader known                      ended
//!  (held) ────────────────▶ with a leader ────────────────▶ (done)
//!    ▲                          │      │ leader lost, or another one leads
//!    └───── not taken ──────────┘      └──▶ 409 Leadership Change
//! ```
//! The oldest are forgotten when there are too many: their clients then find out by missing heartbeats, or when their
//! own time is over.

use super::items::Say;
use super::leading::Entered;
use super::lookup::View;
use super::subjects::AckSubject;
use crate::cell::{Cell, LaneKind, PullEnd, PullsEnded, Request, RequestId};
use crate::groups::{Behind, Machine};
use crate::interest::{ConnKey, Root};
use crate::worker::Core;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidelock_base::{API_LEVEL, GroupId, Mono, NodeId};
use tidelock_jetstream::consumer::Status;

/// Requests remembered by a worker.
const REMEMBERED_MAX: usize = 16_384;
/// A request that no leader has taken is tried again after this long.
const RETRY: Duration = Duration::from_millis(50);
/// One that no leader has taken for so long is ended.
const HOLD: Duration = Duration::from_secs(2);

/// Numbers of pull requests start here, apart from those of other requests of the worker.
const FIRST_NUMBER: u64 = 1 << 63;

/// Requests that entered here and wait at a leader elsewhere.
#[derive(Default)]
pub(super) struct Pulls {
    all: BTreeMap<u64, Pull>,
    /// Those that no leader has taken.
    held: BTreeSet<u64>,
    count: u64,
    retry_at: Option<Mono>,
}

struct Pull {
    request: Request,
    /// Where it was sent; `None` while it is held.
    with: Option<NodeId>,
    /// Where it may go next.
    next: Option<NodeId>,
    since: Mono,
}

impl Pulls {
    /// When requests that are held are to be tried again.
    pub(super) const fn deadline(&self) -> Option<Mono> {
        self.retry_at
    }

    fn add(&mut self, request: Request, now: Mono) -> u64 {
        let number = FIRST_NUMBER + self.count;
        self.count += 1;
        self.all.insert(
            number,
            Pull {
                request,
                with: None,
                next: None,
                since: now,
            },
        );
        if self.all.len() > REMEMBERED_MAX
            && let Some((oldest, _)) = self.all.pop_first()
        {
            self.held.remove(&oldest);
        }
        number
    }

    fn hold(&mut self, number: u64, now: Mono) {
        if let Some(pull) = self.all.get_mut(&number) {
            pull.with = None;
            self.held.insert(number);
            self.retry_at.get_or_insert(now + RETRY);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Pull> {
        self.held.remove(&number);
        self.all.remove(&number)
    }

    /// Takes out those that wait at a leader and meet the condition.
    fn take_where(&mut self, lost: impl Fn(GroupId, NodeId) -> bool) -> Vec<Pull> {
        let hit = |pull: &Pull| {
            pull.with
                .zip(pull.request.group)
                .is_some_and(|(node, group)| lost(group, node))
        };
        let numbers: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, pull)| hit(pull))
            .map(|(number, _)| *number)
            .collect();
        numbers
            .into_iter()
            .filter_map(|number| self.all.remove(&number))
            .collect()
    }
}

impl Core {
    /// A client of this node asks for messages (`CONSUMER.MSG.NEXT`, or an acknowledgement `+NXT`, which is told by its
    /// subject). The request names the group of its stream; its
    /// number and sender, and what its connection has published before it, are set here.
    pub(crate) fn pull_entry(&mut self, asker: Option<ConnKey>, mut request: Request) {
        let Some(group) = request.group else { return };
        request.node = self.shared.identity.node;
        request.id = RequestId {
            sender: self.own_key(),
            number: 0,
        };
        request.after = self.published_before(asker, group);
        if self.leads(group) {
            self.admit_pull(request, None);
            return;
        }
        let now = self.now.mono;
        let number = self.consumers.pulls.add(request, now);
        self.send_pull(number);
    }

    /// Sends a remembered request to the leader, or holds it until there is one.
    fn send_pull(&mut self, number: u64) {
        let now = self.now.mono;
        let Some(pull) = self.consumers.pulls.all.get_mut(&number) else {
            return;
        };
        let Some(group) = pull.request.group else { return };
        let next = pull.next.take().filter(|node| self.is_online(*node));
        let Some(node) = next.or_else(|| self.leader_elsewhere(group)) else {
            self.consumers.pulls.hold(number, now);
            return;
        };
        let Some(pull) = self.consumers.pulls.all.get_mut(&number) else {
            return;
        };
        pull.with = Some(node);
        let mut request = pull.request.clone();
        request.id.number = number;
        self.consumers.pulls.held.remove(&number);
        self.send_cell(node, LaneKind::Client, Cell::Pull(Box::new(request)));
    }

    /// A leader has something to say about requests that entered here.
    pub(crate) fn pulls_ended(&mut self, ended: &PullsEnded) {
        let now = self.now.mono;
        for number in &ended.numbers {
            match ended.end {
                PullEnd::Served => {
                    self.consumers.pulls.remove(*number);
                }
                PullEnd::LeaderLeft => {
                    if let Some(pull) = self.consumers.pulls.remove(*number) {
                        self.leadership_changed(&pull);
                    }
                }
                PullEnd::NotTaken(hint) => {
                    self.consumers.pulls.hold(*number, now);
                    let other = self.other_node(ended.group, hint);
                    if let Some(pull) = self.consumers.pulls.all.get_mut(number) {
                        pull.next = other;
                    }
                }
            }
        }
    }

    /// Another node that may lead a group: the one that was named, or any replica.
    fn other_node(&mut self, group: GroupId, hint: Option<NodeId>) -> Option<NodeId> {
        let me = self.shared.identity.node;
        let here = self.shared.worker_of(group) == self.id;
        if let Some(hint) = hint.filter(|node| !(here && *node == me)) {
            return Some(hint);
        }
        if self.slot(group).is_some() {
            return None;
        }
        let directory = self.shared.directory.load_full();
        let nodes = &directory.by_group(group)?.nodes;
        let at = self.random.below(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        nodes.get(at as usize).copied()
    }

    /// The link to a node is lost, and with it what waited there.
    pub(crate) fn pulls_node_lost(&mut self, node: NodeId) {
        for pull in self.consumers.pulls.take_where(|_, with| with == node) {
            self.leadership_changed(&pull);
        }
    }

    /// A group may have another leader: requests that wait at the old one are ended.
    pub(crate) fn pulls_leader_changed(&mut self, group: GroupId) {
        if self.consumers.pulls.all.is_empty() {
            return;
        }
        let Some(leader) = self.leader_of(group) else {
            return;
        };
        for pull in self
            .consumers
            .pulls
            .take_where(|of, with| of == group && with != leader)
        {
            self.leadership_changed(&pull);
        }
    }

    fn leadership_changed(&mut self, pull: &Pull) {
        self.send_status(
            pull.request.account,
            &pull.request.reply,
            &Status::LeadershipChange,
        );
    }

    /// Tries again what no leader has taken.
    pub(super) fn tick_pulls(&mut self) {
        let now = self.now.mono;
        if self.consumers.pulls.retry_at.is_none_or(|at| at > now) {
            return;
        }
        self.consumers.pulls.retry_at = None;
        for number in std::mem::take(&mut self.consumers.pulls.held) {
            let Some(pull) = self.consumers.pulls.all.get(&number) else {
                continue;
            };
            let leads_here = pull.request.group.is_some_and(|group| self.leads(group));
            if leads_here {
                if let Some(pull) = self.consumers.pulls.remove(number) {
                    self.admit_pull(pull.request, None);
                }
            } else if now.since(pull.since) >= HOLD {
                if let Some(pull) = self.consumers.pulls.remove(number) {
                    self.leadership_changed(&pull);
                }
            } else {
                self.send_pull(number);
            }
        }
    }

    // --- at the leader ---

    /// A pull request that entered elsewhere, or was passed on by the API.
    pub(crate) fn pull_request(&mut self, request: Request) {
        let id = request.id;
        let here = request.node == self.shared.identity.node && id.sender == self.own_key();
        let entered = (!here).then_some(Entered {
            node: request.node,
            sender: id.sender,
            number: id.number,
        });
        self.admit_pull(request, entered);
    }

    fn admit_pull(&mut self, request: Request, entered: Option<Entered>) {
        let Some(group) = request.group.filter(|group| self.leads(*group)) else {
            self.refuse_pull(request, entered);
            return;
        };
        // One that does not wait is told that there is nothing only if there is nothing of what was published before, by
        // its own connection and by others. One that waits gets what comes.
        if may_not_wait(&request.payload) {
            self.begin_behind(group, Behind::Pull(request, entered));
        } else {
            self.take_pull(request, entered);
        }
    }

    /// This node does not lead, or no more.
    pub(crate) fn refuse_pull(&mut self, request: Request, entered: Option<Entered>) {
        let Some(group) = request.group else { return };
        match entered {
            Some(from) => {
                let me = self.shared.identity.node;
                let hint = self.leader_of(group).filter(|node| *node != me);
                self.pull_ended(group, from, PullEnd::NotTaken(hint));
            }
            None => {
                let now = self.now.mono;
                let number = self.consumers.pulls.add(request, now);
                self.consumers.pulls.hold(number, now);
            }
        }
    }

    /// A pull request that does not wait, and cannot be told what there is.
    pub(super) fn pull_unanswered(&mut self, request: &Request, entered: Option<Entered>) {
        let Some(group) = request.group else { return };
        if let Some(account) = self.slot(group).map(|slot| slot.account) {
            self.answer_no_responders(account, &request.reply, &request.subject);
        }
        self.end_at_once(group, entered);
    }

    /// Gives a pull request to its consumer.
    pub(super) fn take_pull(&mut self, request: Request, entered: Option<Entered>) {
        let now = self.now.mono;
        let Some(group) = request.group.filter(|group| self.leads(*group)) else {
            self.refuse_pull(request, entered);
            return;
        };
        let Some(account) = self.slot(group).map(|slot| slot.account) else {
            return;
        };
        if wants_higher_level(&request.header) {
            self.send_status(account, &request.reply, &Status::RequiredApiLevel);
            self.end_at_once(group, entered);
            return;
        }
        let (root, _) = self.root(account);
        if !self.give_pull(group, now, &request, entered, &root) {
            self.answer_no_responders(account, &request.reply, &request.subject);
            self.end_at_once(group, entered);
        }
    }

    /// `false` if there is no such consumer; nothing was done then.
    fn give_pull(
        &mut self,
        group: GroupId,
        now: Mono,
        request: &Request,
        entered: Option<Entered>,
        root: &Root,
    ) -> bool {
        let mut notices = std::mem::take(&mut self.consumers.scratch.notices);
        let Some(slot) = self.slot_mut(group) else {
            return false;
        };
        let Machine::Stream(stream) = &slot.machine else {
            return false;
        };
        let ack = AckSubject::parse(&request.subject);
        let last = request.subject.rsplit(|byte| *byte == b'.').next();
        let name = match &ack {
            Some(ack) => ack.consumer,
            None => last
                .and_then(|name| std::str::from_utf8(name).ok())
                .unwrap_or_default(),
        };
        let Some(id) = slot.consumers.id_of(stream, name) else {
            return false;
        };
        let Some(consumer) = stream.consumer_by_id(id) else {
            return false;
        };
        let Some(one) = slot.consumers.consumers.get_mut(&id) else {
            return false;
        };
        if ack.is_some() && !one.listens_to(Say::Ack) {
            return false;
        }
        if let Some(from) = entered {
            one.enter(&request.reply, from);
        }
        let view = View::new(stream, consumer, root);
        one.leader.pull(
            now,
            request.reply.clone(),
            &request.payload,
            consumer.state(),
            &view,
            &mut notices,
        );
        one.queue(&mut notices);
        slot.consumers.touch(id);
        self.consumers.scratch.notices = notices;
        true
    }

    fn end_at_once(&mut self, group: GroupId, entered: Option<Entered>) {
        if let Some(from) = entered {
            self.pull_ended(group, from, PullEnd::Served);
        }
    }

    /// Notes that a request has ended; the place where it entered hears of it at the end of the turn.
    pub(super) fn pull_ended(&mut self, group: GroupId, from: Entered, end: PullEnd) {
        let Entered { node, sender, number } = from;
        self.consumers
            .ended
            .entry((node, sender, group, end))
            .or_default()
            .push(number);
    }

    /// Tells the places where requests entered that they have ended.
    pub(super) fn send_ended(&mut self) {
        for ((node, sender, group, end), numbers) in std::mem::take(&mut self.consumers.ended) {
            self.send_cell(
                node,
                LaneKind::Client,
                Cell::PullsEnded(PullsEnded {
                    group,
                    sender,
                    end,
                    numbers,
                }),
            );
        }
    }

    // --- each turn ---

    /// Does what is due for clients of this node.
    pub(crate) fn tick_consumer_front(&mut self) {
        self.tick_pulls();
    }

    /// Before groups run: acknowledgements leave, and push consumers learn who listens.
    pub(crate) fn consumers_before_groups(&mut self) {
        self.send_acks();
        self.look_at_interest();
    }

    /// After groups have run: places where pull requests entered learn which have ended.
    pub(crate) fn consumers_after_groups(&mut self) {
        self.send_ended();
    }
}

/// Whether the body of a pull request may ask not to wait.
fn may_not_wait(body: &[u8]) -> bool {
    const NAME: &[u8] = b"no_wait";
    body.windows(NAME.len()).any(|window| window == NAME)
}

/// Whether a request needs a later level of the API than this server has.
fn wants_higher_level(header: &[u8]) -> bool {
    tidelock_wire::header::find(header, b"Nats-Required-Api-Level").is_some_and(|value| {
        let level = std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.trim().parse::<i64>().ok());
        level.is_none_or(|level| level > i64::from(API_LEVEL))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tidelock_base::{AccountId, BootId, WorkerId};
    use tidelock_jetstream::command::WindowKey;

    fn request(group: u64) -> Request {
        let sender = WindowKey {
            boot: BootId(1),
            worker: WorkerId(0),
        };
        Request {
            id: RequestId { sender, number: 0 },
            node: NodeId(1),
            group: Some(GroupId(group)),
            account: AccountId(0),
            subject: Bytes::new(),
            reply: Bytes::new(),
            header: Bytes::new(),
            payload: Bytes::new(),
            client: Bytes::new(),
            after: 0,
        }
    }

    fn sent(pulls: &mut Pulls, group: u64, node: u64) -> u64 {
        let number = pulls.add(request(group), Mono(0));
        pulls.all.get_mut(&number).unwrap().with = Some(NodeId(node));
        number
    }

    #[test]
    fn those_at_a_lost_leader_are_taken_out() {
        let mut pulls = Pulls::default();
        let (kept, other_group) = (sent(&mut pulls, 2, 8), sent(&mut pulls, 3, 7));
        sent(&mut pulls, 2, 7);
        let held = pulls.add(request(2), Mono(0));
        pulls.hold(held, Mono(0));
        let lost = pulls.take_where(|group, node| group == GroupId(2) && node == NodeId(7));
        assert_eq!(lost.len(), 1);
        let left: Vec<u64> = pulls.all.keys().copied().collect();
        assert_eq!(left, [kept, other_group, held]);
    }

    #[test]
    fn what_is_held_is_tried_again() {
        let mut pulls = Pulls::default();
        let number = sent(&mut pulls, 2, 7);
        assert_eq!(pulls.deadline(), None);
        pulls.hold(number, Mono(5));
        pulls.hold(number, Mono(9));
        assert_eq!(pulls.deadline(), Some(Mono(5) + RETRY));
        assert!(pulls.all[&number].with.is_none());
        pulls.hold(99, Mono(9));
        assert_eq!(pulls.held.len(), 1, "one that has ended meanwhile is not held");
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut pulls = Pulls::default();
        let first = pulls.add(request(2), Mono(0));
        pulls.hold(first, Mono(0));
        for _ in 0..REMEMBERED_MAX {
            pulls.add(request(2), Mono(0));
        }
        assert_eq!(pulls.all.len(), REMEMBERED_MAX);
        assert!(!pulls.all.contains_key(&first) && pulls.held.is_empty());
    }

    #[test]
    fn requests_that_may_not_wait_are_found() {
        assert!(may_not_wait(br#"{"no_wait":true}"#));
        assert!(!may_not_wait(br#"{"batch":5}"#));
        assert!(!may_not_wait(b"5"));
    }

    #[test]
    fn a_higher_level_is_refused() {
        assert!(!wants_higher_level(b""));
        assert!(!wants_higher_level(
            b"NATS/1.0\r\nNats-Required-Api-Level: 2\r\n\r\n"
        ));
        assert!(wants_higher_level(
            b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
        ));
        assert!(wants_higher_level(
            b"NATS/1.0\r\nNats-Required-Api-Level: x\r\n\r\n"
        ));
    }
}

//! Addresses that are dialled: those of the configuration for ever, those learnt from others for a while.
//!
//! A target is dialled for client messages first, which tells which node is there; the other lanes follow. Several
//! addresses may lead to one node: the first that is open has it, a learnt one is forgotten, a configured one stands by
//! until the node is lost.
//!
//! ```text
//!   lane:  Waiting(at) ──due──► Dialling(key) ──welcome──► Open(key)
//!              ▲──────── failed or lost ────────┴─────────────┘
//! ```

use crate::cell::LaneKind;
use crate::interest::ConnKey;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{Mono, NodeId};
use tidelock_conf::RouteCredentials;

/// Time between attempts, and the longest it grows to with `connect_backoff`.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Most addresses that are learnt from others; more are not listened to.
const LEARNT_MAX: usize = 256;
/// Longest address that is learnt.
const ADDRESS_BYTES_MAX: usize = 280;

/// Identifies a target within its node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetId(u32);

impl TargetId {
    /// No target.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Waiting(Mono),
    Dialling(ConnKey),
    Open(ConnKey),
}

#[derive(Debug)]
struct Target {
    id: TargetId,
    address: Arc<str>,
    configured: bool,
    credentials: Option<RouteCredentials>,
    /// Who was there last.
    node: Option<NodeId>,
    /// By number of the lane.
    lanes: [Lane; 4],
    /// Attempts since the client lane was open last.
    attempts: u32,
    /// Whether it was ever open.
    connected: bool,
    /// The node is reached through another address.
    standby: bool,
}

const CLIENT: usize = LaneKind::Client.index() as usize;

impl Target {
    fn lane(&mut self, lane: LaneKind) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(lane.index()))
    }

    const fn is_open(&self) -> bool {
        matches!(self.lanes[CLIENT], Lane::Open(_))
    }

    /// When the next lane is due, and which.
    fn next(&self) -> Option<(Mono, LaneKind)> {
        if self.standby {
            return None;
        }
        if !self.is_open() {
            return match self.lanes[CLIENT] {
                Lane::Waiting(at) => Some((at, LaneKind::Client)),
                Lane::Dialling(_) | Lane::Open(_) => None,
            };
        }
        let waiting = LaneKind::ALL
            .iter()
            .zip(self.lanes)
            .filter_map(|(kind, lane)| match lane {
                Lane::Waiting(at) => Some((at, *kind)),
                Lane::Dialling(_) | Lane::Open(_) => None,
            });
        waiting.min()
    }
}

/// A connection to open.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) target: TargetId,
    pub(crate) lane: LaneKind,
    pub(crate) address: Arc<str>,
}

/// How attempts are paced and reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Attempts after the first one at a learnt address.
    pub(crate) retries: u32,
    /// Whether the time between attempts grows.
    pub(crate) backoff: bool,
    /// Failures are reported at the first and every so many attempts, before it was ever open.
    pub(crate) reports: u32,
    /// The same after it was.
    pub(crate) reports_again: u32,
}

/// All targets of a node.
#[derive(Debug)]
pub(crate) struct Dials {
    targets: Vec<Target>,
    next_id: u32,
    pace: Pace,
    /// Addresses that lead to the node itself.
    own: BTreeSet<Arc<str>>,
}

impl Dials {
    pub(crate) const fn new(pace: Pace) -> Self {
        Self {
            targets: Vec::new(),
            next_id: 0,
            pace,
            own: BTreeSet::new(),
        }
    }

    /// Adds an address of the configuration.
    pub(crate) fn configure(&mut self, address: Arc<str>, credentials: Option<RouteCredentials>, now: Mono) {
        if !self.targets.iter().any(|target| target.address == address) {
            self.add(address, true, credentials, now);
        }
    }

    /// Adds an address that others told, unless it is known; answers whether it is new.
    pub(crate) fn learn(&mut self, address: &Arc<str>, now: Mono) -> bool {
        let learnt = self.targets.iter().filter(|target| !target.configured).count();
        let known =
            self.targets.iter().any(|target| target.address == *address) || self.own.contains(address);
        let form = address.len() <= ADDRESS_BYTES_MAX
            && address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if known || learnt >= LEARNT_MAX || !form {
            return false;
        }
        self.add(Arc::clone(address), false, None, now);
        true
    }

    fn add(&mut self, address: Arc<str>, configured: bool, credentials: Option<RouteCredentials>, now: Mono) {
        let id = TargetId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.targets.push(Target {
            id,
            address,
            configured,
            credentials,
            node: None,
            lanes: [Lane::Waiting(now); 4],
            attempts: 0,
            connected: false,
            standby: false,
        });
    }

    fn get(&mut self, id: TargetId) -> Option<&mut Target> {
        self.targets.iter_mut().find(|target| target.id == id)
    }

    /// What to present at a target, if it has credentials of its own.
    pub(crate) fn credentials(&self, id: TargetId) -> Option<&RouteCredentials> {
        self.targets
            .iter()
            .find(|target| target.id == id)?
            .credentials
            .as_ref()
    }

    /// Whether the configuration names an address of this node.
    pub(crate) fn is_configured(&self, node: NodeId) -> bool {
        self.targets
            .iter()
            .any(|target| target.configured && target.node == Some(node))
    }

    /// How many addresses the configuration names, and how many of them have been found to be some node, this one
    /// included.
    pub(crate) fn configured(&self) -> (usize, usize) {
        let all = self.targets.iter().filter(|target| target.configured);
        all.fold((0, 0), |(all, found), target| {
            (all + 1, found + usize::from(target.node.is_some()))
        })
    }

    /// A node has opened a connection by itself: it is there, so that it need not be waited for. Which of the addresses of the
    /// configuration is its own may not be known yet, or it may have another id than before.
    pub(crate) fn is_there(&mut self, node: NodeId, now: Mono) {
        for target in &mut self.targets {
            let may_be_it = target.configured || target.node == Some(node);
            if target.standby || target.is_open() || !may_be_it {
                continue;
            }
            if let Lane::Waiting(at) = &mut target.lanes[CLIENT] {
                *at = now.min(*at);
            }
        }
    }

    /// Whether the node is about to be reached or is reached.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.targets
            .iter()
            .any(|target| target.node == Some(node) && !target.standby)
    }

    /// The next connection to open now, if any. The caller opens it and says [`Self::dialling`].
    pub(crate) fn due(&self, now: Mono) -> Option<Attempt> {
        let (target, (_, lane)) = self
            .targets
            .iter()
            .filter_map(|target| Some((target, target.next()?)))
            .find(|(_, (at, _))| *at <= now)?;
        Some(Attempt {
            target: target.id,
            lane,
            address: Arc::clone(&target.address),
        })
    }

    /// When the next connection is due.
    pub(crate) fn next_due(&self) -> Option<Mono> {
        self.targets
            .iter()
            .filter_map(|target| target.next().map(|(at, _)| at))
            .min()
    }

    /// An attempt began under this key.
    pub(crate) fn dialling(&mut self, id: TargetId, lane: LaneKind, key: ConnKey) {
        let Some(target) = self.get(id) else { return };
        if lane == LaneKind::Client {
            target.attempts = target.attempts.saturating_add(1);
        }
        if let Some(place) = target.lane(lane) {
            *place = Lane::Dialling(key);
        }
    }

    /// The other side has said who it is. `false`: the link is of no use, because the node is reached through another
    /// address, or because another node than before answers; it is to be closed in silence.
    pub(crate) fn welcomed(
        &mut self,
        id: TargetId,
        lane: LaneKind,
        key: ConnKey,
        node: NodeId,
        now: Mono,
    ) -> bool {
        let elsewhere = self
            .targets
            .iter()
            .any(|other| other.id != id && other.node == Some(node) && other.is_open());
        let Some(target) = self.get(id) else { return false };
        if lane != LaneKind::Client {
            let same = target.node == Some(node) && target.is_open();
            if same && let Some(place) = target.lane(lane) {
                *place = Lane::Open(key);
            }
            return same;
        }
        target.node = Some(node);
        target.attempts = 0;
        target.connected = true;
        if elsewhere {
            target.lanes = [Lane::Waiting(now); 4];
            target.standby = true;
            self.targets.retain(|target| target.id != id || target.configured);
            return false;
        }
        for place in &mut target.lanes {
            if let Lane::Waiting(at) = place {
                *at = now;
            }
        }
        target.lanes[CLIENT] = Lane::Open(key);
        true
    }

    /// The target is the node itself: nothing more is done about it.
    pub(crate) fn is_itself(&mut self, id: TargetId, me: NodeId) {
        if let Some(target) = self.get(id) {
            target.standby = true;
            target.node = Some(me);
            let address = Arc::clone(&target.address);
            self.own.insert(address);
        }
        self.targets.retain(|target| target.id != id || target.configured);
    }

    /// A connection could not be opened or is lost; it is tried again later. Answers the attempt's number if it is to
    /// be reported. `jitter` is below one tenth of a second.
    pub(crate) fn failed(
        &mut self,
        id: TargetId,
        lane: LaneKind,
        key: ConnKey,
        now: Mono,
        jitter: Duration,
    ) -> Option<u32> {
        let pace = self.pace;
        let target = self.get(id)?;
        let place = target.lane(lane)?;
        let was_open = match *place {
            Lane::Open(at) if at == key => true,
            Lane::Dialling(at) if at == key => false,
            Lane::Waiting(_) | Lane::Open(_) | Lane::Dialling(_) => return None,
        };
        let doublings = if pace.backoff {
            target.attempts.saturating_sub(1).min(8)
        } else {
            0
        };
        let wait = RETRY.saturating_mul(1 << doublings).min(RETRY_MAX) + jitter;
        let place = target.lane(lane)?;
        *place = Lane::Waiting(now + wait);
        if lane != LaneKind::Client {
            return None;
        }
        let node = target.node;
        let attempts = target.attempts;
        let every = if target.connected {
            pace.reports_again
        } else {
            pace.reports
        };
        let quiet = target.standby;
        let give_up = !target.configured && !was_open && attempts > pace.retries;
        self.targets.retain(|target| target.id != id || !give_up);
        if was_open {
            self.wake(node, now + wait);
            return None;
        }
        let report = attempts == 1 || (every > 0 && attempts % every == 0);
        (report && !quiet).then_some(attempts)
    }

    /// Other addresses of a node that was lost are tried again.
    fn wake(&mut self, node: Option<NodeId>, at: Mono) {
        for target in &mut self.targets {
            if target.standby && target.node == node {
                target.standby = false;
                target.lanes = [Lane::Waiting(at); 4];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        retries: 1,
        backoff: true,
        reports: 3,
        reports_again: 1,
    };
    const CALM: Duration = Duration::ZERO;

    fn key(index: u32) -> ConnKey {
        ConnKey { index, generation: 1 }
    }

    fn secs(n: u64) -> Mono {
        Mono(n * 1_000_000_000)
    }

    fn dial(dials: &mut Dials, now: Mono, index: u32) -> Option<Attempt> {
        let attempt = dials.due(now)?;
        dials.dialling(attempt.target, attempt.lane, key(index));
        Some(attempt)
    }

    #[test]
    fn a_configured_address_is_tried_for_ever_with_growing_pauses_and_few_reports() {
        let mut dials = Dials::new(PACE);
        dials.configure("a:1".into(), None, secs(0));
        let (mut now, mut log) = (secs(0), Vec::new());
        for n in 0..8 {
            let attempt = dial(&mut dials, now, n).expect("due");
            assert!(dials.due(now).is_none());
            let report = dials.failed(attempt.target, attempt.lane, key(n), now, CALM);
            let next = dials.next_due().expect("tried again");
            log.push((report, next.since(now).as_secs()));
            now = next;
        }
        let reports: Vec<_> = log.iter().filter_map(|(report, _)| *report).collect();
        assert_eq!(reports, [1, 3, 6]);
        assert_eq!(
            log.iter().map(|(_, wait)| *wait).collect::<Vec<_>>(),
            [1, 2, 4, 8, 16, 30, 30, 30]
        );
    }

    #[test]
    fn a_learnt_address_is_given_up_and_can_be_learnt_again() {
        let mut dials = Dials::new(PACE);
        assert!(dials.learn(&"b:2".into(), secs(0)) && !dials.learn(&"b:2".into(), secs(0)));
        assert!(!dials.learn(&"nonsense".into(), secs(0)) && !dials.learn(&"b:99999".into(), secs(0)));
        for n in 0..2 {
            let attempt = dial(&mut dials, secs(10 * u64::from(n)), n).expect("due");
            dials.failed(
                attempt.target,
                attempt.lane,
                key(n),
                secs(10 * u64::from(n)),
                CALM,
            );
        }
        assert_eq!(dials.next_due(), None);
        assert!(dials.learn(&"b:2".into(), secs(30)));
    }

    #[test]
    fn the_other_lanes_follow_and_a_second_address_stands_by() {
        let mut dials = Dials::new(PACE);
        dials.configure("a:1".into(), None, secs(0));
        dials.configure("alias:1".into(), None, secs(0));
        let first = dial(&mut dials, secs(0), 1).expect("first");
        let second = dial(&mut dials, secs(0), 2).expect("second");
        assert!(dials.due(secs(0)).is_none());
        assert!(dials.welcomed(first.target, first.lane, key(1), NodeId(7), secs(0)));
        assert!(!dials.welcomed(second.target, second.lane, key(2), NodeId(7), secs(0)));
        let lanes: Vec<_> = (3..6)
            .map(|n| dial(&mut dials, secs(0), n).expect("lane").lane)
            .collect();
        assert_eq!(lanes, [LaneKind::Pulse, LaneKind::Log, LaneKind::Bulk]);
        assert!(
            !dials.welcomed(first.target, LaneKind::Bulk, key(5), NodeId(8), secs(0)),
            "another node answers"
        );
        assert_eq!(
            dials.failed(first.target, LaneKind::Client, key(1), secs(5), CALM),
            None
        );
        let due: Vec<_> = (10..12)
            .map(|n| dial(&mut dials, secs(6), n).expect("both again").address)
            .collect();
        assert_eq!(due.iter().map(|a| &**a).collect::<Vec<_>>(), ["a:1", "alias:1"]);
        assert_eq!(dials.configured(), (2, 2));
    }

    #[test]
    fn a_node_that_is_there_is_not_waited_for() {
        let mut dials = Dials::new(PACE);
        dials.configure("a:1".into(), None, secs(0));
        assert!(dials.learn(&"b:2".into(), secs(0)));
        for n in 1..3 {
            let attempt = dial(&mut dials, secs(0), n).expect("due");
            dials.failed(attempt.target, attempt.lane, key(n), secs(0), CALM);
        }
        assert_eq!(dials.next_due(), Some(secs(1)));
        dials.is_there(NodeId(7), Mono(5));
        assert_eq!(dials.next_due(), Some(Mono(5)));
        let first = dial(&mut dials, Mono(5), 3).expect("now");
        assert_eq!(&*first.address, "a:1", "the other one is not known to be its own");
        assert!(dials.due(Mono(5)).is_none());
        assert!(dials.welcomed(first.target, first.lane, key(3), NodeId(7), Mono(6)));
        dials.failed(first.target, LaneKind::Client, key(3), secs(3), CALM);
        dials.is_there(NodeId(7), secs(9));
        let again = dials.due(secs(4)).map(|attempt| attempt.address);
        assert_eq!(again.as_deref(), Some("a:1"), "it never takes longer by that");
    }

    #[test]
    fn the_node_itself_is_not_dialled_again() {
        let mut dials = Dials::new(PACE);
        dials.configure("me:1".into(), None, secs(0));
        let attempt = dial(&mut dials, secs(0), 1).expect("due");
        dials.is_itself(attempt.target, NodeId(1));
        assert_eq!(
            dials.failed(attempt.target, attempt.lane, key(1), secs(0), CALM),
            None
        );
        assert!(dials.next_due().is_none() && !dials.learn(&"me:1".into(), secs(9)));
    }
}

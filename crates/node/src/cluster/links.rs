//! All links of a node, in the worker that owns them: who is at the other side, what is sent, what ends them.
//!
//! [`Links`] knows no socket: the worker opens the connections that [`Links::next_dial`] asks for, feeds in what
//! happens to them and carries out what [`Links::events`], [`Links::dirty`] and [`Links::closing`] list.

use super::dial::{Attempt, Dials, Pace};
use super::handshake::{ClusterName, Greeting, PROTOCOL};
use super::interest::OwnInterest;
use super::link::{Link, Side, Stage, Tick, Timing, Why, kind};
use super::peers::{Peer, PeerEvent};
use super::queue::Spares;
use crate::cell::{Cell, LaneKind, NodeFacts};
use crate::clock::{self, HeardTime};
use crate::interest::{Change, ConnKey};
use crate::shared::NodeShared;
use crate::worker::Random;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::{AccountId, ClusterId, Mono, NodeId, Now};
use tidelock_conf::{ClusterOptions, HostPort};

/// Addresses of routes are told to peers this often, so that nodes that lost each other meet again.
const GOSSIP_EVERY: Duration = Duration::from_secs(5);
const PING_MAX_INTERVAL: Duration = Duration::from_secs(30);
const CLIENT: usize = LaneKind::Client.index() as usize;

/// What the worker has to do or to tell.
#[derive(Debug)]
pub(crate) enum Event {
    /// Interest of a peer came or went.
    Interest(AccountId, Change),
    /// A peer came, changed or went.
    Peer(PeerEvent),
    /// A peer's queue has become long, or short again.
    Pressure(NodeId, bool),
    /// Clients are to be told the addresses of the cluster anew.
    ClientUrls,
}

/// All links of a node.
pub(crate) struct Links {
    pub(super) shared: Arc<NodeShared>,
    /// The time of this turn.
    pub(crate) now: Now,
    pub(super) options: ClusterOptions,
    pub(super) timing: Timing,
    /// What this node says of itself.
    pub(crate) me: NodeFacts,
    pub(super) cluster: ClusterName,
    /// The cluster's id, once known.
    pub(crate) cluster_id: Option<ClusterId>,
    /// By index of the connection.
    pub(super) table: Vec<Option<Box<Link>>>,
    pub(super) dials: Dials,
    pub(crate) peers: BTreeMap<NodeId, Peer>,
    pub(super) own: OwnInterest,
    pub(super) spares: Spares,
    pub(super) scratch: (Vec<u8>, Vec<Bytes>),
    random: Random,
    gossip_at: Mono,
    clock_at: Mono,
    clock_every: Duration,
    /// What the wall clocks of peers showed since that was last looked at.
    pub(crate) times: Vec<HeardTime>,
    /// When [`Self::tick`] or [`Self::next_dial`] has something to do, as far as known.
    due: Mono,
    /// Something may be due earlier than that.
    pub(super) recheck: bool,
    pub(super) view_changed: bool,
    /// The password that was verified last, where verifying is slow.
    pub(super) verified: Option<String>,
    /// Links with something to write; each is listed once.
    pub(crate) dirty: Vec<ConnKey>,
    /// Links to close, after one more write.
    pub(crate) closing: Vec<ConnKey>,
    /// What happened, in order.
    pub(crate) events: Vec<Event>,
}

impl Links {
    /// The links of a node of a cluster; `seed` feeds jitter.
    pub(crate) fn new(shared: Arc<NodeShared>, options: ClusterOptions, seed: u64) -> Self {
        let now = shared.identity.start;
        let pace = Pace {
            retries: options.connect_retries,
            backoff: options.connect_backoff,
            reports: shared.options.connect_error_reports,
            reports_again: shared.options.reconnect_error_reports,
        };
        let mut dials = Dials::new(pace);
        for route in &options.routes {
            dials.configure(
                route.address.to_string().into(),
                route.credentials.clone(),
                now.mono,
            );
        }
        let timing = Timing {
            auth: options.auth_timeout,
            ping: options.ping_interval.min(PING_MAX_INTERVAL),
            ping_max: options.ping_max,
        };
        let cluster = ClusterName {
            name: shared.cluster_name().unwrap_or_default(),
            dynamic: shared.options.cluster_name.is_none(),
        };
        Self {
            now,
            me: facts_of(&shared, &options),
            options,
            timing,
            cluster,
            cluster_id: None,
            table: Vec::new(),
            dials,
            peers: BTreeMap::new(),
            own: OwnInterest::default(),
            spares: Spares::default(),
            scratch: (Vec::new(), Vec::new()),
            random: Random::new(seed),
            gossip_at: now.mono,
            clock_at: now.mono,
            clock_every: clock::LOOK_FIRST,
            times: Vec::new(),
            due: now.mono,
            recheck: true,
            view_changed: true,
            verified: None,
            dirty: Vec::new(),
            closing: Vec::new(),
            events: Vec::new(),
            shared,
        }
    }

    /// What this side says of itself in a handshake.
    pub(super) fn greeting(&self) -> Greeting {
        Greeting {
            protocol: PROTOCOL,
            cluster: self.cluster.clone(),
            cluster_id: self.cluster_id,
            facts: self.me.clone(),
            routes: self.known_routes(),
        }
    }

    /// Where the nodes that this one has links with take routes.
    fn known_routes(&self) -> Vec<Arc<str>> {
        let reached = self.peers.values().filter(|peer| !peer.route_url.is_empty());
        reached.map(|peer| Arc::clone(&peer.route_url)).collect()
    }

    // ---- the table ------------------------------------------------------------------------------------------------

    /// The link behind a key.
    pub(crate) fn get(&mut self, key: ConnKey) -> Option<&mut Link> {
        self.table
            .get_mut(key.index as usize)?
            .as_deref_mut()
            .filter(|link| link.key == key)
    }

    /// Whether the key is that of a link.
    pub(crate) fn has(&self, key: ConnKey) -> bool {
        self.table
            .get(key.index as usize)
            .and_then(Option::as_ref)
            .is_some_and(|link| link.key == key)
    }

    /// Takes a link out, to work on it; [`Self::put`] gives it back.
    pub(crate) fn take(&mut self, key: ConnKey) -> Option<Box<Link>> {
        self.table
            .get_mut(key.index as usize)?
            .take_if(|link| link.key == key)
    }

    /// Puts a link into its place.
    pub(crate) fn put(&mut self, link: Box<Link>) {
        let index = link.key.index as usize;
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || None);
        }
        if let Some(place) = self.table.get_mut(index) {
            *place = Some(link);
        }
    }

    /// The connection of a link is closed.
    pub(crate) fn closed(&mut self, key: ConnKey) {
        drop(self.take(key));
    }

    /// The next connection to open, if one is due. The caller says [`Self::dial`] with a fresh key.
    pub(crate) fn next_dial(&self) -> Option<Attempt> {
        self.dials.due(self.now.mono)
    }

    /// A connection is being opened under this key.
    pub(crate) fn dial(&mut self, attempt: &Attempt, key: ConnKey, rid: u64) {
        tracing::debug!("Trying to connect to route on {}", attempt.address);
        self.recheck = true;
        self.dials.dialling(attempt.target, attempt.lane, key);
        self.put(Box::new(Link::dialled(
            key,
            rid,
            attempt.target,
            attempt.lane,
            &attempt.address,
            self.now,
        )));
    }

    /// Another node has opened a connection.
    pub(crate) fn accept(&mut self, key: ConnKey, rid: u64, remote: SocketAddr) {
        self.recheck = true;
        let link = Link::accepted(key, rid, remote, &self.timing, self.now);
        tracing::debug!("{} - Route connection accepted", link.label);
        self.put(Box::new(link));
    }

    /// Bytes came in on a link.
    pub(crate) fn heard(&self, link: &mut Link, bytes: usize) {
        link.heard(bytes, &self.timing, self.now.mono);
    }

    /// Writes something that is no frame, to someone who does not speak in frames.
    pub(crate) fn answer_stranger(&mut self, link: &mut Link, answer: &[u8]) {
        link.queue.copy(answer, &mut self.spares);
    }

    /// Whether the connection is still to be opened.
    pub(crate) fn is_connecting(&mut self, key: ConnKey) -> bool {
        self.get(key).is_some_and(|link| link.stage == Stage::Connecting)
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    /// When [`Self::tick`] or [`Self::next_dial`] has something to do.
    pub(crate) fn due(&self) -> Mono {
        if self.recheck {
            self.next_deadline()
        } else {
            self.due
        }
    }

    /// Looks at all deadlines again, after they changed or came.
    pub(crate) fn rearm(&mut self) {
        if std::mem::take(&mut self.recheck) {
            self.due = self.next_deadline();
        }
    }

    fn next_deadline(&self) -> Mono {
        let links = self.table.iter().flatten().map(|link| link.deadline).min();
        let peers = (!self.peers.is_empty()).then_some(self.gossip_at.min(self.clock_at));
        [links, self.dials.next_due(), peers]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Mono(u64::MAX))
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self) {
        let now = self.now;
        self.recheck = true;
        for index in 0..self.table.len() {
            let Some(key) = self
                .table
                .get(index)
                .and_then(|place| place.as_ref().map(|link| link.key))
            else {
                continue;
            };
            let timing = self.timing;
            match self.get(key).map(|link| link.tick(&timing, now.mono)) {
                None | Some(Tick::Wait) => {}
                Some(Tick::Ping) => self.write(key, kind::PING, &now.mono.0.to_le_bytes()),
                Some(Tick::End(why)) => self.end(key, &why),
            }
        }
        if self.gossip_at <= now.mono {
            self.gossip_at = now.mono + GOSSIP_EVERY;
            self.gossip();
        }
        if self.clock_at <= now.mono {
            self.clock_at = now.mono + self.clock_every;
            self.ask_clocks();
        }
    }

    /// From now on peers are asked for their wall clocks so often.
    pub(crate) fn ask_clocks_every(&mut self, every: Duration) {
        self.clock_every = every;
        let next = self.now.mono + every;
        if next < self.clock_at {
            (self.clock_at, self.recheck) = (next, true);
        }
    }

    /// Asks every peer what its wall clock shows.
    fn ask_clocks(&mut self) {
        let pulse = usize::from(LaneKind::Pulse.index());
        let peers = self.peers.values();
        let into: Vec<ConnKey> = peers.filter_map(|peer| *peer.into.get(pulse)?).collect();
        for key in into {
            self.write(key, kind::CLOCK, &self.now.mono.0.to_le_bytes());
        }
    }

    /// Tells every peer where the others take routes.
    pub(super) fn gossip(&mut self) {
        let routes = self.known_routes();
        if routes.len() > 1 {
            self.send_all(&Cell::Gossip(routes));
        }
    }

    // ---- the end of a link ----------------------------------------------------------------------------------------

    /// Ends the link behind a key.
    pub(crate) fn end(&mut self, key: ConnKey, why: &Why) {
        if let Some(mut link) = self.take(key) {
            self.end_taken(&mut link, why);
            self.put(link);
        }
    }

    /// Ends a link that is not in its place just now.
    pub(crate) fn end_taken(&mut self, link: &mut Link, why: &Why) {
        if link.stage == Stage::Closing {
            return;
        }
        let was = link.stage;
        link.stage = Stage::Closing;
        link.deadline = Mono(u64::MAX);
        self.closing.push(link.key);
        self.recheck = true;
        report(link, was, why);
        if let Side::Dialled(target) = link.side {
            let jitter = Duration::from_micros(u64::from(self.random.below(100_000)));
            let attempt = self
                .dials
                .failed(target, link.lane, link.key, self.now.mono, jitter);
            if let (Why::Dial(text), Some(attempt)) = (why, attempt) {
                tracing::error!(
                    "Error trying to connect to route (attempt {attempt}): {}",
                    dial_error(link, text)
                );
            }
        }
        if *why == Why::SlowConsumer {
            self.shared.totals.slow_routes.fetch_add(1, Ordering::Relaxed);
        }
        let Some(node) = link.node else { return };
        if let Some(peer) = self.peers.get_mut(&node) {
            for place in peer.into.iter_mut().chain(&mut peer.from) {
                if *place == Some(link.key) {
                    *place = None;
                }
            }
        }
        self.review(node);
    }

    /// Ends all links: the server stops.
    pub(crate) fn end_all(&mut self) {
        let keys: Vec<ConnKey> = self.table.iter().flatten().map(|link| link.key).collect();
        for key in keys {
            self.end(key, &Why::Shutdown);
        }
    }

    /// Looks at a peer anew after its links changed: whether it is up, whose interest counts, who can be forgotten.
    pub(super) fn review(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let up = peer.can_talk();
        if up != peer.up {
            peer.up = up;
            if up {
                self.events.extend(
                    peer.interest
                        .inserts(node)
                        .map(|(account, change)| Event::Interest(account, change)),
                );
                self.events
                    .push(Event::Peer(PeerEvent::Up(Arc::clone(&peer.facts))));
            } else {
                self.events.extend(
                    peer.interest
                        .removes(node)
                        .map(|(account, change)| Event::Interest(account, change)),
                );
                self.events.push(Event::Peer(PeerEvent::Down(node)));
            }
        }
        if peer.into[CLIENT].is_none() {
            peer.told = false;
            if std::mem::take(&mut peer.high) {
                self.events.push(Event::Pressure(node, false));
            }
        }
        if peer.from[CLIENT].is_none() {
            peer.interest.clear();
        }
        if peer.is_gone() {
            self.peers.remove(&node);
        }
        self.review_urls();
    }

    /// Looks whether clients have to be told other addresses, and notes that the table of peers has changed.
    pub(super) fn review_urls(&mut self) {
        self.view_changed = true;
        if self.options.no_advertise {
            return;
        }
        let there = self.peers.values().filter(|peer| peer.up && !peer.facts.leaving);
        let urls: Vec<Arc<str>> = there
            .flat_map(|peer| peer.facts.client_urls.iter().cloned())
            .collect();
        if **self.shared.peer_client_urls.load() != urls {
            self.shared.peer_client_urls.store(Arc::new(urls));
            self.events.push(Event::ClientUrls);
        }
    }
}

fn facts_of(shared: &NodeShared, options: &ClusterOptions) -> NodeFacts {
    let addresses = shared.addresses.load();
    let own_port = addresses.cluster_port;
    let route = options.advertise.as_ref().map_or_else(
        || HostPort::new(addresses.cluster_host.clone(), own_port),
        |advertise| HostPort::new(advertise.host.clone(), advertise.port.unwrap_or(own_port)),
    );
    NodeFacts {
        node: shared.identity.node,
        boot: shared.identity.boot,
        name: Arc::clone(&shared.identity.name),
        server_id: Arc::clone(&shared.identity.server_id),
        workers: shared.workers,
        client_urls: if options.no_advertise {
            Vec::new()
        } else {
            addresses.client_urls.clone()
        },
        route_url: route.to_string().into(),
        jetstream: shared.options.jetstream.is_some(),
        file_free: 0,
        memory_free: 0,
        tags: shared
            .options
            .server_tags
            .iter()
            .map(|tag| tag.as_str().into())
            .collect(),
        leaving: false,
        accounts: shared
            .accounts
            .iter()
            .map(|account| Arc::clone(&account.name))
            .collect(),
    }
}

/// Logs the end of a link.
fn report(link: &Link, was: Stage, why: &Why) {
    let label = &link.label;
    match why {
        Why::Useless | Why::Dial(_) => {
            tracing::debug!("{label} - Router connection closed: {}", why.text());
            return;
        }
        Why::Closed | Why::Read(_) | Why::Write(_) if was != Stage::Open => {
            tracing::debug!("{label} - Router connection closed: {}", why.text());
            return;
        }
        Why::Read(text) | Why::Write(text) => tracing::debug!("{label} - {}: {text}", why.text()),
        Why::Protocol(text) | Why::Refused(text) => tracing::error!("{label} - {text}"),
        Why::AuthTimeout => tracing::error!("{label} - Authentication Timeout"),
        Why::Stale => tracing::info!("{label} - Stale Client Connection - Closing"),
        Why::SlowConsumer => {
            tracing::info!(
                "{label} - Slow Consumer Detected: {} bytes pending",
                link.queue.pending()
            );
        }
        Why::Closed | Why::Rejected | Why::Replaced | Why::Shutdown => {}
    }
    tracing::info!("{label} - Router connection closed: {}", why.text());
}

/// A failed attempt in the words of Go's dialler.
fn dial_error(link: &Link, text: &str) -> String {
    let address = link.label.split(" - ").next().unwrap_or_default();
    if text == "no such host" {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        return format!("dial tcp: lookup {host}: {text}");
    }
    let step = if text == "i/o timeout" { "" } else { "connect: " };
    format!("dial tcp {address}: {step}{text}")
}

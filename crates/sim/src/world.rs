//! Everything but the workload: nodes, network, disks and clients under one clock, one event at a time.

use crate::client::{Client, ClientId, Heard, ReplyTo};
use crate::network::{End, Host, NetEvent, Network, Owner, Read};
use crate::node::{Effects, Helper, Input, Node, Sizes};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::{Trace, turn_of};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidelock_base::Mono;
use tidelock_node::{Listener, ReplicaView};

/// Turns of one worker in a row in which virtual time hardly moves; a worker that takes more is running in circles.
const TURNS_MAX: u32 = 20_000;

/// What is planned.
#[derive(Debug)]
enum Event {
    Net(NetEvent),
    Turn {
        node: usize,
        life: u64,
        worker: usize,
    },
    Disk {
        node: usize,
        life: u64,
        worker: usize,
        helper: Helper,
    },
    Timer {
        actor: usize,
        tag: u64,
    },
}

/// What an actor of the workload is told.
#[derive(Debug)]
pub(crate) enum Happening {
    /// One of its clients has heard something.
    Heard(usize, ClientId, Heard),
    /// The time that it wanted to be told of has come.
    Timer(usize, u64),
}

/// See the module's text.
pub(crate) struct World {
    now: Mono,
    queue: Queue<Event>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Network,
    clients: BTreeMap<ClientId, Client>,
    next_client: u64,
    happenings: VecDeque<Happening>,
    rng: Rng,
    pub(crate) trace: Trace,
    /// What went wrong inside the world: a worker that spins, a node that does not start.
    pub(crate) violations: Vec<String>,
    /// Replicas as they were before their node crashed, until somebody looks at them.
    pub(crate) crashed: Vec<ReplicaView>,
    spinning: BTreeMap<(usize, usize), (Mono, u32)>,
}

impl World {
    pub(crate) fn new(nodes: usize, rng: &mut Rng, mut trace: Trace) -> Self {
        let sizes = Sizes::choose(rng);
        trace.say(|| format!("{sizes:?}"));
        Self {
            now: Mono(1_000_000_000),
            queue: Queue::new(),
            nodes: (0..nodes)
                .map(|n| Node::new(n, nodes, sizes, rng.fork()))
                .collect(),
            net: Network::new(rng.fork()),
            clients: BTreeMap::new(),
            next_client: 0,
            happenings: VecDeque::new(),
            rng: rng.fork(),
            trace,
            violations: Vec::new(),
            crashed: Vec::new(),
            spinning: BTreeMap::new(),
        }
    }

    pub(crate) const fn now(&self) -> Mono {
        self.now
    }

    pub(crate) const fn node_count(&self) -> usize {
        self.nodes.len()
    }

    // ---- what happens ---------------------------------------------------------------------------------------------

    /// Goes on until something concerns the workload, or the time has come.
    pub(crate) fn run_until(&mut self, until: Mono) -> Option<Happening> {
        loop {
            if let Some(happening) = self.happenings.pop_front() {
                return Some(happening);
            }
            self.plan_net();
            if self.queue.next_at().is_none_or(|at| at > until) || !self.violations.is_empty() {
                self.now = self.now.max(until);
                return None;
            }
            if let Some((at, event)) = self.queue.pop() {
                self.now = self.now.max(at);
                self.happen(at, event);
            }
        }
    }

    fn plan_net(&mut self) {
        for (at, event) in self.net.take_events() {
            self.queue.push(at, Event::Net(event));
        }
    }

    fn happen(&mut self, at: Mono, event: Event) {
        match event {
            Event::Net(event) => self.net_event(event),
            Event::Turn { node, life, worker } => self.turn(at, node, life, worker),
            Event::Disk {
                node,
                life,
                worker,
                helper,
            } => {
                let Some(found) = self.nodes.get_mut(node).filter(|found| found.lives == life) else {
                    return;
                };
                let next = found.disk_ended(worker, helper, self.now);
                if let Some(at) = next {
                    self.plan_disk((node, life, worker), helper, at);
                }
                self.wake(node, worker);
            }
            Event::Timer { actor, tag } => {
                self.trace.event(self.now, 4, actor as u64, &tag.to_le_bytes());
                self.happenings.push_back(Happening::Timer(actor, tag));
            }
        }
    }

    fn net_event(&mut self, event: NetEvent) {
        match event {
            NetEvent::Arrive(end) => {
                if self.net.arrive(self.now, end) {
                    match self.net.owner(end) {
                        Owner::Worker { node, worker, key } => self.tell(node, worker, Input::Readable(key)),
                        Owner::Client(id) => self.client_reads(ClientId(id), end),
                        Owner::Nobody => {}
                    }
                }
            }
            NetEvent::Room(end) => match self.net.owner(end) {
                Owner::Worker { node, worker, key } => self.tell(node, worker, Input::Writable(key)),
                Owner::Client(id) => self.client_writes(ClientId(id)),
                Owner::Nobody => {}
            },
            NetEvent::Ask(conn) => self.asked(conn),
            NetEvent::Answer(conn) => self.answered(conn),
        }
    }

    fn asked(&mut self, conn: u64) {
        let Some(Host::Node(node)) = self.net.asked(conn) else {
            return;
        };
        let workers = self.nodes.get(node).map_or(0, Node::workers);
        if workers == 0 {
            self.net.refuse(self.now, conn);
            return;
        }
        let client = matches!(self.net.owner(End { conn, side: 0 }), Owner::Client(_));
        let (worker, listener) = if client {
            (self.rng.index(workers), Listener::Client)
        } else {
            (0, Listener::Route)
        };
        self.tell(node, worker, Input::Accept(conn, listener));
    }

    fn answered(&mut self, conn: u64) {
        let end = End { conn, side: 0 };
        match self.net.answered(conn) {
            Some((Owner::Worker { node, worker, key }, open)) => {
                self.tell(node, worker, Input::Dialled(key, open.then_some(end)));
            }
            Some((Owner::Client(id), true)) => self.client_writes(ClientId(id)),
            Some((Owner::Client(id), false)) => self.client_gone(ClientId(id)),
            Some((Owner::Nobody, _)) | None => {}
        }
    }

    /// Hands something to a worker and wakes it.
    fn tell(&mut self, node: usize, worker: usize, input: Input) {
        if let Some(found) = self.nodes.get_mut(node) {
            found.input(worker, input);
            self.wake(node, worker);
        }
    }

    fn wake(&mut self, node: usize, worker: usize) {
        let at = self.now + Duration::from_nanos(500 + self.rng.below(5_000));
        self.plan_turn(node, worker, at);
    }

    fn plan_turn(&mut self, node: usize, worker: usize, at: Mono) {
        let Some(found) = self.nodes.get_mut(node) else {
            return;
        };
        if let Some(at) = found.plan(worker, at) {
            self.queue.push(
                at,
                Event::Turn {
                    node,
                    life: found.lives,
                    worker,
                },
            );
        }
    }

    /// Plans the end of the operation that a helper of a worker, in this life of its node, has begun.
    fn plan_disk(&mut self, (node, life, worker): (usize, u64, usize), helper: Helper, at: Mono) {
        self.queue.push(
            at,
            Event::Disk {
                node,
                life,
                worker,
                helper,
            },
        );
    }

    fn turn(&mut self, at: Mono, node: usize, life: u64, worker: usize) {
        let Some(found) = self.nodes.get_mut(node).filter(|found| found.lives == life) else {
            return;
        };
        if !found.is_planned(worker, at) {
            return;
        }
        if found.paused_until > at {
            let until = found.paused_until;
            found.unplan(worker);
            self.plan_turn(node, worker, until);
            return;
        }
        self.trace.event(self.now, 5, (node * 64 + worker) as u64, &[]);
        turn_of(self.now, Some((node, worker)));
        let Effects { wake, disk } = found.turn(worker, self.now, &mut self.net, &mut self.trace);
        turn_of(self.now, None);
        let next = found.wants_turn(worker, self.now);
        for (worker, helper, at) in disk {
            self.plan_disk((node, life, worker), helper, at);
        }
        for other in wake {
            self.wake(node, other);
        }
        if let Some(next) = next {
            self.plan_turn(node, worker, next.max(self.now));
        }
        self.watch_spinning(node, worker);
    }

    fn watch_spinning(&mut self, node: usize, worker: usize) {
        let now = self.now;
        let entry = self.spinning.entry((node, worker)).or_insert((now, 0));
        if now.since(entry.0) > Duration::from_millis(500) {
            *entry = (now, 0);
        }
        entry.1 += 1;
        if entry.1 > TURNS_MAX {
            self.violations
                .push(format!("worker {worker} of node {node} runs in circles"));
        }
    }

    // ---- clients --------------------------------------------------------------------------------------------------

    /// Opens a connection of an actor to a node.
    pub(crate) fn connect(&mut self, actor: usize, node: usize) -> ClientId {
        self.next_client += 1;
        let id = ClientId(self.next_client);
        let end = self
            .net
            .dial(self.now, Host::Clients, Host::Node(node), Owner::Client(id.0));
        self.clients.insert(id, Client::new(id, actor, end));
        id
    }

    /// Publishes.
    pub(crate) fn publish(
        &mut self,
        client: ClientId,
        subject: &str,
        reply: &ReplyTo,
        headers: &[(&str, String)],
        payload: &[u8],
    ) {
        if let Some(found) = self.clients.get_mut(&client) {
            found.publish(subject, reply, headers, payload);
            self.client_writes(client);
        }
    }

    /// Subscribes.
    pub(crate) fn subscribe(&mut self, client: ClientId, subject: &str, sid: u64) {
        if let Some(found) = self.clients.get_mut(&client) {
            found.subscribe(subject, sid);
            self.client_writes(client);
        }
    }

    /// Closes a connection; its actor hears nothing more of it.
    pub(crate) fn close(&mut self, client: ClientId) {
        if let Some(found) = self.clients.remove(&client) {
            self.net.close(self.now, found.end);
        }
    }

    fn client_writes(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        while !client.output.is_empty() {
            let Ok((n, bytes)) =
                self.net
                    .write(self.now, client.end, std::iter::once(client.output.as_slice()))
            else {
                return;
            };
            self.trace.event(self.now, 6, id.0, &bytes);
            client.output.drain(..n);
        }
    }

    fn client_reads(&mut self, id: ClientId, end: End) {
        loop {
            match self.net.read(self.now, end, usize::MAX) {
                Read::Empty => break,
                Read::Ended => return self.client_gone(id),
                Read::Bytes(bytes) => {
                    self.trace.event(self.now, 7, id.0, &bytes);
                    let Some(client) = self.clients.get_mut(&id) else {
                        return;
                    };
                    let actor = client.actor;
                    let heard = client.receive(&bytes);
                    self.happenings
                        .extend(heard.into_iter().map(|heard| Happening::Heard(actor, id, heard)));
                }
            }
        }
        self.client_writes(id);
    }

    fn client_gone(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.trace.event(self.now, 8, id.0, &[]);
        self.net.close(self.now, client.end);
        self.happenings
            .push_back(Happening::Heard(client.actor, id, Heard::Closed));
    }

    /// Tells an actor when this time has passed.
    pub(crate) fn after(&mut self, actor: usize, time: Duration, tag: u64) {
        self.queue.push(self.now + time, Event::Timer { actor, tag });
    }

    // ---- faults ---------------------------------------------------------------------------------------------------

    /// Starts a node that is down, on this many workers; `false` if it cannot start now because its disk is ill.
    pub(crate) fn start(&mut self, node: usize, workers: u16) -> bool {
        let now = self.now;
        let Some(found) = self.nodes.get_mut(node).filter(|found| !found.is_running()) else {
            return true;
        };
        turn_of(now, Some((node, 0)));
        let result = found.start(now, workers);
        turn_of(now, None);
        let (life, ill) = (found.lives, found.disk_is_ill);
        self.trace.event(now, 9, node as u64, &[]);
        self.trace
            .say(|| format!("n{node} starts (life {life}, {workers} workers): {result:?}"));
        match result {
            Ok(()) => {
                (0..usize::from(workers)).for_each(|worker| self.wake(node, worker));
                true
            }
            Err(_) if ill => false,
            Err(text) => {
                self.violations
                    .push(format!("node {node} does not start: {text}"));
                true
            }
        }
    }

    /// Power of a node is lost.
    pub(crate) fn crash(&mut self, node: usize) {
        self.trace.event(self.now, 10, node as u64, &[]);
        self.trace.say(|| format!("n{node} crashes"));
        if let Some(found) = self.nodes.get_mut(node) {
            self.crashed.extend(found.replicas());
            found.crash(self.now, &mut self.net);
        }
    }

    /// Power of a node is lost, and all its files with it.
    pub(crate) fn wipe(&mut self, node: usize) {
        self.crash(node);
        self.trace.event(self.now, 11, node as u64, &[]);
        self.trace.say(|| format!("n{node} loses all its files"));
        if let Some(found) = self.nodes.get_mut(node) {
            found.wipe();
        }
    }

    /// Power of a node is lost, and something that was durable on its disk is damaged.
    pub(crate) fn damage(&mut self, node: usize) {
        self.crash(node);
        self.trace.event(self.now, 12, node as u64, &[]);
        let Some(found) = self.nodes.get_mut(node) else {
            return;
        };
        let places: Vec<String> = (0..=self.rng.below(3)).filter_map(|_| found.damage()).collect();
        self.trace.say(|| format!("n{node} is damaged at {places:?}"));
    }

    /// Files of messages of a node that is down are gone or destroyed.
    pub(crate) fn lose_blocks(&mut self, node: usize) {
        self.trace.event(self.now, 14, node as u64, &[]);
        if let Some(found) = self.nodes.get_mut(node) {
            let places = found.lose_blocks();
            self.trace.say(|| format!("n{node} loses {places:?}"));
        }
    }

    /// Bits turn over in stored messages of a node that runs.
    pub(crate) fn rot(&mut self, node: usize) {
        self.trace.event(self.now, 13, node as u64, &[]);
        if let Some(found) = self.nodes.get_mut(node) {
            let places = found.rot();
            self.trace.say(|| format!("n{node} rots at {places:?}"));
        }
    }

    /// What replicas there are on the nodes that run.
    pub(crate) fn views(&self) -> Vec<ReplicaView> {
        self.nodes.iter().flat_map(Node::replicas).collect()
    }

    /// Nothing of a node happens for a while.
    pub(crate) fn pause(&mut self, node: usize, time: Duration) {
        self.trace.say(|| format!("n{node} pauses for {time:?}"));
        if let Some(found) = self.nodes.get_mut(node) {
            found.paused_until = self.now + time;
        }
    }
}

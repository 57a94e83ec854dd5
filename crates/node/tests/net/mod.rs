//! Nodes in one process, on a clock and a network of their own.
//!
//! A [`Net`] drives the workers of its nodes as the shell does: it opens what they dial, carries bytes between the two
//! ends of each connection, hands batches from worker to worker, and moves the clock to the next deadline when nothing
//! else is to be done. Nothing happens by chance: the same calls give the same bytes ([`Net::digest`]).
//!
//! A node whose configuration has JetStream has a disk in memory, which can be held ([`Net::hold_disk`]).
//!
//! Test clients are ends of connections whose bytes are written and read by the test itself ([`Net::client`]).

pub(crate) mod log;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{BootId, GroupId, Mono, NodeId, Now, Wall, WorkerId};
use tidelock_conf::{Options, Sources};
use tidelock_node::{
    Addresses, Budgets, Cell, ConnKey, HangUp, IoOwner, LaneKind, Listener, NodeShared, Output, ReplicaView,
    ServerIdentity, Worker,
};
use tidelock_record::{Disk, IoDone, IoOp, IoRequest, IoToken, MemDisk};
use tidelock_wal::{LaneConfig, recover_all};

/// Port of every node's route listener.
pub(crate) const ROUTE_PORT: u16 = 6222;
/// Bytes that a connection holds in one direction before writers have to wait.
const WINDOW: usize = 256 << 10;
/// Bytes that a worker is shown at once.
const READ: usize = 64 << 10;

/// A configuration that is one text.
struct Text<'a>(&'a str);

impl Sources for Text<'_> {
    fn read(&self, _: &str) -> Result<Vec<u8>, String> {
        Ok(self.0.as_bytes().to_vec())
    }

    fn env(&self, _: &str) -> Option<String> {
        None
    }
}

/// Options from the text of a configuration.
pub(crate) fn options(text: &str) -> Options {
    let words = ["-c".to_owned(), "test.conf".to_owned()];
    let (flags, _) = tidelock_conf::parse_flags(&words).expect("flags");
    tidelock_conf::load(&flags, &Text(text))
        .expect("a configuration")
        .options
}

/// Which end of which connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End(usize, usize);

/// Who has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Worker {
        node: usize,
        worker: usize,
        key: ConnKey,
    },
    Test,
}

#[derive(Debug, Default)]
struct Pipe {
    /// Bytes on their way to this end.
    bytes: VecDeque<u8>,
    /// What the worker has seen and not used.
    rest: Vec<u8>,
    /// The other side has written its last byte.
    ended: bool,
    /// The end was closed by its owner.
    closed: bool,
    /// The owner of the other end waits for room.
    blocked: bool,
    /// What is left over is to be shown again.
    show_again: bool,
}

#[derive(Debug)]
struct Conn {
    owners: [Owner; 2],
    /// By end: what flows towards it.
    pipes: [Pipe; 2],
    /// Nothing flows towards these ends for now, and nothing is lost.
    stalled: [bool; 2],
}

/// One node.
pub(crate) struct Node {
    /// What its workers share.
    pub(crate) shared: Arc<NodeShared>,
    workers: Vec<Worker>,
    mail: Vec<VecDeque<(WorkerId, Vec<Cell>)>>,
    keys: BTreeMap<(usize, ConnKey), End>,
    running: bool,
    /// The disk, where the configuration has JetStream.
    pub(crate) disk: Option<Arc<MemDisk>>,
    /// By worker: operations for the disk. A turn begins with the results of all that were asked for before it.
    disk_jobs: Vec<VecDeque<(IoOwner, IoRequest)>>,
    /// By worker: the last number that an operation of a group's store had in this life.
    store_ops: Vec<BTreeMap<GroupId, IoToken>>,
    /// The disk does nothing for now.
    disk_held: bool,
    /// What was written into files of checkpoints.
    pub(crate) checkpoints: Vec<CheckpointWrite>,
}

/// A checkpoint was written, or was to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointWrite {
    /// Name of the file: the group's number.
    pub(crate) group: String,
    /// It took the place of the whole file.
    pub(crate) is_base: bool,
    pub(crate) bytes: u64,
}

/// Changes bytes that come from one node for another.
pub(crate) type Tamper = Box<dyn FnMut(usize, usize, &mut [u8]) -> bool>;

/// A connection of a test to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(usize);

/// Nodes and what is between them.
pub(crate) struct Net {
    /// The nodes, by number.
    pub(crate) nodes: Vec<Node>,
    now: Now,
    /// By how many nanoseconds the wall clock of a node is wrong, over its lives.
    pub(crate) clocks: BTreeMap<usize, i64>,
    conns: Vec<Conn>,
    /// Nothing gets from the first to the second.
    cuts: BTreeSet<(usize, usize)>,
    /// Frames of these lanes wait on their way from the first to the second.
    held: BTreeSet<(usize, usize, LaneKind)>,
    next_client: u16,
    digest: u64,
    /// Hand-overs from worker to worker, and to the disk's helper and back.
    pub(crate) hops: u64,
    /// Bytes that have left, by node and the node they are for.
    pub(crate) carried: BTreeMap<(usize, usize), u64>,
    /// Shown what comes from one node for the other; may change it, and is asked no more once it says that it has.
    pub(crate) tamper: Option<Tamper>,
    /// Told when a worker begins to work (`true`) and when it has ended.
    pub(crate) around: fn(bool),
    /// Sizes for nodes that are made from now on.
    pub(crate) budgets: Budgets,
    /// Bytes of a segment of their logs.
    pub(crate) segment_bytes: u64,
}

/// Address of a node.
pub(crate) fn host(node: usize) -> String {
    format!("10.0.0.{}", node + 1)
}

/// Where a node takes routes.
pub(crate) fn route(node: usize) -> String {
    format!("{}:{ROUTE_PORT}", host(node))
}

/// Configuration of one of so many nodes with JetStream in a cluster; `more` stands at its end.
pub(crate) fn clustered(nodes: usize, node: usize, more: &str) -> String {
    let routes: Vec<String> = (0..nodes)
        .map(|n| format!("\"nats-route://{}\"", route(n)))
        .collect();
    format!(
        "server_name: n{node}\nlisten: \"{0}:4222\"\njetstream {{ store_dir: \"/n{node}\", max_file_store: 1GB }}\n\
         cluster {{ name: c, listen: \"{0}:6222\", ping_interval: 2, routes: [{1}] }}\n{more}",
        host(node),
        routes.join(", ")
    )
}

/// The same with an account `A` for clients, which is that of who says nothing, and a system account.
pub(crate) fn clustered_for_clients(nodes: usize, node: usize) -> String {
    let accounts = "accounts { A { jetstream: enabled, users: [{user: a, password: p}] }, SYS { users: [{user: s, password: p}] } }\n\
                    system_account: SYS\nno_auth_user: a\n";
    clustered(nodes, node, accounts)
}

/// What an operation does to a file of checkpoints.
fn checkpoint_write(op: &IoOp) -> Option<CheckpointWrite> {
    let (file, is_base, bytes) = match op {
        IoOp::Replace { file, data } => (file, true, data.len()),
        IoOp::Write { file, parts, .. } => (file, false, parts.iter().map(|part| part.len()).sum()),
        _ => return None,
    };
    (file.parent().as_str() == "groups").then(|| CheckpointWrite {
        group: file.name().to_owned(),
        is_base,
        bytes: bytes as u64,
    })
}

impl Net {
    /// No nodes yet.
    pub(crate) fn new() -> Self {
        log::listen();
        let now = Now {
            mono: Mono(1_000_000_000),
            wall: Wall(1_700_000_000_000_000_000),
        };
        Self {
            nodes: Vec::new(),
            now,
            clocks: BTreeMap::new(),
            conns: Vec::new(),
            cuts: BTreeSet::new(),
            held: BTreeSet::new(),
            next_client: 40_000,
            digest: 0,
            hops: 0,
            carried: BTreeMap::new(),
            tamper: None,
            around: |_| (),
            budgets: Budgets::default(),
            segment_bytes: 1 << 20,
        }
    }

    /// Adds a node with this configuration; answers its number.
    pub(crate) fn add(&mut self, workers: u16, config: &str) -> usize {
        let number = self.nodes.len();
        let node = self
            .make(number, workers, config, 0, None)
            .expect("a readable store");
        self.nodes.push(node);
        number
    }

    fn make(
        &self,
        number: usize,
        workers: u16,
        config: &str,
        life: u64,
        disk: Option<Arc<MemDisk>>,
    ) -> Result<Node, String> {
        let options = options(config);
        let id = number as u64 + 1;
        let name = options
            .server_name
            .clone()
            .unwrap_or_else(|| format!("n{number}"));
        let identity = ServerIdentity {
            node: NodeId(id),
            boot: BootId(u128::from(id << 32 | life)),
            server_id: format!("NSERVER{number}").into(),
            name: name.into(),
            pid: 1,
            cores: usize::from(workers),
            start: self.now_at(number),
        };
        let mut shared = NodeShared::new(identity, options, workers);
        shared.budgets = self.budgets;
        let shared = Arc::new(shared);
        shared.addresses.store(Arc::new(Addresses {
            client_host: host(number),
            client_port: 4222,
            listen_port: 4222,
            client_urls: vec![format!("{}:4222", host(number)).into()],
            cluster_host: host(number),
            cluster_port: ROUTE_PORT,
            http_host: String::new(),
            http_port: 0,
        }));
        let mut workers: Vec<Worker> = (0..workers)
            .map(|n| Worker::new(Arc::clone(&shared), WorkerId(n), id * 7_919 + u64::from(n) + life))
            .collect();
        let disk = shared
            .options
            .jetstream
            .is_some()
            .then(|| disk.unwrap_or_else(|| Arc::new(MemDisk::new())));
        if let Some(disk) = &disk {
            self.start(self.now_at(number), &mut workers, disk)?;
        }
        Ok(Node {
            shared,
            mail: workers.iter().map(|_| VecDeque::new()).collect(),
            disk_jobs: workers.iter().map(|_| VecDeque::new()).collect(),
            store_ops: workers.iter().map(|_| BTreeMap::new()).collect(),
            workers,
            keys: BTreeMap::new(),
            running: true,
            disk,
            disk_held: false,
            checkpoints: Vec::new(),
        })
    }

    /// Starts JetStream on what the disk has.
    fn start(&self, now: Now, workers: &mut [Worker], disk: &Arc<MemDisk>) -> Result<(), String> {
        let config = LaneConfig {
            segment_bytes: self.segment_bytes,
            ..LaneConfig::new(7)
        };
        let count = u16::try_from(workers.len()).unwrap();
        let lanes = recover_all(&**disk, count, &config)
            .expect("a readable log")
            .lanes;
        for (worker, (lane, recovered)) in workers.iter_mut().zip(lanes) {
            worker.begin(now);
            worker.start(Some((lane, recovered)), Some(Arc::clone(disk) as _))?;
        }
        Ok(())
    }

    /// Stops the disk of a node, or lets it go on.
    pub(crate) fn hold_disk(&mut self, node: usize, held: bool) {
        self.nodes[node].disk_held = held;
    }

    /// Lets a held disk do what it was asked for so far, and no more.
    pub(crate) fn release_disk_once(&mut self, node: usize) {
        self.nodes[node].disk_held = false;
        for worker in 0..self.nodes[node].workers.len() {
            self.turn(node, worker);
        }
        self.nodes[node].disk_held = true;
        self.settle();
    }

    /// Ends a node at once: its connections are closed, nothing more of it happens.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].running = false;
        let keys: Vec<End> = self.nodes[node].keys.values().copied().collect();
        for end in keys {
            self.close_end(end);
        }
    }

    /// Starts a node again that was killed: the same store, another life.
    pub(crate) fn restart(&mut self, node: usize, workers: u16, config: &str, life: u64) {
        self.try_restart(node, workers, config, life)
            .expect("a readable store");
    }

    /// The same; what keeps it from starting is the error.
    pub(crate) fn try_restart(
        &mut self,
        node: usize,
        workers: u16,
        config: &str,
        life: u64,
    ) -> Result<(), String> {
        assert!(!self.nodes[node].running, "it runs");
        let disk = self.nodes[node].disk.clone();
        self.nodes[node] = self.make(node, workers, config, life, disk)?;
        Ok(())
    }

    /// The replicas of a node that runs.
    pub(crate) fn replicas(&self, node: usize) -> Vec<ReplicaView> {
        let node = &self.nodes[node];
        let workers = node.workers.iter().filter(|_| node.running);
        workers.flat_map(Worker::replicas).collect()
    }

    /// The replica of a stream, or of the metadata, that a node has.
    pub(crate) fn replica(&self, node: usize, name: &str) -> Option<ReplicaView> {
        self.replicas(node).into_iter().find(|view| &*view.name == name)
    }

    /// From now on nothing gets from one node to the other: bytes are lost, and what is dialled is never opened.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cuts.insert((from, to));
    }

    /// The network is whole again. Connections that have lost bytes are closed, as a reset would.
    pub(crate) fn heal(&mut self) {
        let cuts = std::mem::take(&mut self.cuts);
        for n in 0..self.conns.len() {
            let (a, b) = (self.node_of(End(n, 0)), self.node_of(End(n, 1)));
            if let (Some(a), Some(b)) = (a, b)
                && (cuts.contains(&(a, b)) || cuts.contains(&(b, a)))
            {
                self.close_end(End(n, 0));
                self.close_end(End(n, 1));
            }
        }
    }

    /// Closes all connections between two nodes.
    pub(crate) fn disconnect(&mut self, one: usize, other: usize) {
        for n in 0..self.conns.len() {
            let ends = (self.node_of(End(n, 0)), self.node_of(End(n, 1)));
            if ends == (Some(one), Some(other)) || ends == (Some(other), Some(one)) {
                self.conns[n].pipes.iter_mut().for_each(|pipe| pipe.ended = true);
            }
        }
    }

    /// Stops, or lets on, what flows from one node to the other on the connections that are open.
    pub(crate) fn stall(&mut self, from: usize, to: usize, stalled: bool) {
        for n in 0..self.conns.len() {
            for end in 0..2 {
                if self.node_of(End(n, end)) == Some(to) && self.node_of(End(n, 1 - end)) == Some(from) {
                    self.conns[n].stalled[end] = stalled;
                }
            }
        }
    }

    /// Stops, or lets on, the frames of a lane from one node to the other, also on connections that are opened later.
    pub(crate) fn hold_lane(&mut self, from: usize, to: usize, lane: LaneKind, held: bool) {
        if held {
            self.held.insert((from, to, lane));
        } else {
            self.held.remove(&(from, to, lane));
        }
    }

    /// Whether what has come for this end waits. All frames of a connection are of one lane, and say so in their sixth
    /// byte.
    fn is_stalled(&self, end: End) -> bool {
        let conn = &self.conns[end.0];
        let pipe = &conn.pipes[end.1];
        let is_held = || {
            let (from, to) = (self.node_of(End(end.0, 1 - end.1))?, self.node_of(end)?);
            let lane = LaneKind::from_index(*pipe.bytes.get(5)?)?;
            Some(pipe.rest.is_empty() && self.held.contains(&(from, to, lane)))
        };
        conn.stalled[end.1] || is_held().unwrap_or(false)
    }

    fn node_of(&self, end: End) -> Option<usize> {
        match self.conns[end.0].owners[end.1] {
            Owner::Worker { node, .. } => Some(node),
            Owner::Test => None,
        }
    }

    /// A number that depends on every byte that was carried.
    pub(crate) const fn digest(&self) -> u64 {
        self.digest
    }

    // ---- clients --------------------------------------------------------------------------------------------------

    /// Connects to a worker of a node, says CONNECT and waits until it is let in.
    pub(crate) fn client(&mut self, node: usize, worker: usize) -> Client {
        let client = self.open(node, worker, Listener::Client);
        self.say(
            client,
            "CONNECT {\"verbose\":false,\"protocol\":1,\"headers\":true,\"no_responders\":true}\r\nPING\r\n",
        );
        self.settle();
        let greeting = self.hear(client);
        assert!(
            greeting.starts_with("INFO ") && greeting.contains("PONG\r\n"),
            "{greeting}"
        );
        client
    }

    /// Opens a connection to a listener of a node, and says nothing.
    pub(crate) fn open(&mut self, node: usize, worker: usize, listener: Listener) -> Client {
        self.next_client += 1;
        let remote = SocketAddr::from(([10, 0, 9, 9], self.next_client));
        let end = self.connect(node, worker, remote, listener, Owner::Test);
        Client(end)
    }

    /// Sends text, or anything else.
    pub(crate) fn say(&mut self, client: Client, text: impl AsRef<[u8]>) {
        self.conns[client.0].pipes[1].bytes.extend(text.as_ref());
    }

    /// Sends text and lets it have its effects.
    pub(crate) fn tell(&mut self, client: Client, text: &str) {
        self.say(client, text);
        self.settle();
    }

    /// What a client has received since the last call, as text.
    pub(crate) fn hear(&mut self, client: Client) -> String {
        String::from_utf8_lossy(&self.take(client)).into_owned()
    }

    /// What a client has received since the last call.
    pub(crate) fn take(&mut self, client: Client) -> Vec<u8> {
        let bytes = self.conns[client.0].pipes[0].bytes.drain(..).collect();
        self.unblock(End(client.0, 0));
        bytes
    }

    /// Asks a node something on a connection of its own, as a user with the password `p`, and answers the line of JSON
    /// that comes within a while.
    pub(crate) fn ask_as(&mut self, user: &str, node: usize, subject: &str, body: &str) -> String {
        let client = self.open(node, 0, Listener::Client);
        let connect = format!(r#"CONNECT {{"verbose":false,"user":"{user}","pass":"p"}}"#);
        let len = body.len();
        self.tell(
            client,
            &format!("{connect}\r\nSUB in 1\r\nPUB {subject} in {len}\r\n{body}\r\n"),
        );
        for _ in 0..50 {
            let heard = self.hear(client);
            if let Some(line) = heard.lines().find(|line| line.starts_with('{')) {
                return line.to_owned();
            }
            self.run(Duration::from_millis(100));
        }
        panic!("{subject} was not answered by node {node}");
    }

    /// The same, read as JSON.
    pub(crate) fn ask_json(&mut self, user: &str, node: usize, subject: &str, body: &str) -> Value {
        serde_json::from_str(&self.ask_as(user, node, subject, body)).unwrap()
    }

    /// What `/healthz` of a node says, to a user `s` of the system account.
    pub(crate) fn health(&mut self, node: usize) -> String {
        self.nodes[node].shared.system.set_ready();
        self.ask_as("s", node, &format!("$SYS.REQ.SERVER.NSERVER{node}.HEALTHZ"), "")
    }

    /// Whether the server has closed a client's connection.
    pub(crate) fn is_closed(&self, client: Client) -> bool {
        self.conns[client.0].pipes[0].ended
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    /// Runs until nothing is left to be done now.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut any = false;
            for node in 0..self.nodes.len() {
                for worker in 0..self.nodes[node].workers.len() {
                    any |= self.nodes[node].running && self.turn(node, worker);
                }
            }
            if !any {
                return;
            }
        }
        panic!("the network never comes to rest");
    }

    /// What the clocks of a node show.
    fn now_at(&self, node: usize) -> Now {
        let off = self.clocks.get(&node).copied().unwrap_or(0);
        Now {
            mono: self.now.mono,
            wall: self.now.wall.plus_nanos(off),
        }
    }

    /// What a right wall clock shows.
    pub(crate) const fn wall(&self) -> Wall {
        self.now.wall
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now.mono + time;
        loop {
            self.settle();
            let deadlines = self
                .nodes
                .iter()
                .filter(|node| node.running)
                .flat_map(|node| &node.workers);
            let next = deadlines
                .filter_map(Worker::next_deadline)
                .min()
                .unwrap_or(end)
                .max(Mono(self.now.mono.0 + 1));
            let to = next.min(end);
            self.now.wall = self.now.wall + to.since(self.now.mono);
            self.now.mono = to;
            if next > end || to == end {
                return self.settle();
            }
        }
    }

    /// One turn of a worker; `false` if there was nothing to do.
    fn turn(&mut self, node: usize, worker: usize) -> bool {
        let readable: Vec<(ConnKey, End)> = self.nodes[node]
            .keys
            .iter()
            .filter(|((at, _), end)| *at == worker && self.is_readable(**end))
            .map(|((_, key), end)| (*key, *end))
            .collect();
        let state = &mut self.nodes[node];
        let due = state.workers[worker]
            .next_deadline()
            .is_some_and(|at| at <= self.now.mono);
        let jobs = if state.disk_held {
            0
        } else {
            state.disk_jobs[worker].len()
        };
        if readable.is_empty() && state.mail[worker].is_empty() && !due && jobs == 0 {
            return false;
        }
        let mut out = Output::default();
        let now = self.now_at(node);
        let state = &mut self.nodes[node];
        (self.around)(true);
        state.workers[worker].begin(now);
        (self.around)(false);
        for (owner, IoRequest { token, op }) in state.disk_jobs[worker].drain(..jobs) {
            state.checkpoints.extend(checkpoint_write(&op));
            let result = state.disk.as_ref().expect("only a disk gets jobs").run(&op);
            (self.around)(true);
            state.workers[worker].io_done(owner, IoDone { token, result });
            (self.around)(false);
        }
        for (from, cells) in std::mem::take(&mut state.mail[worker]) {
            state.workers[worker].receive_cells(from, cells);
        }
        for (key, end) in readable {
            self.read(node, worker, key, end);
        }
        (self.around)(true);
        self.nodes[node].workers[worker].finish(&mut out);
        (self.around)(false);
        self.carry_out(node, worker, out);
        true
    }

    fn is_readable(&self, end: End) -> bool {
        let Owner::Worker { node, worker, key } = self.conns[end.0].owners[end.1] else {
            return false;
        };
        let pipe = &self.conns[end.0].pipes[end.1];
        let there = (!pipe.bytes.is_empty() && !self.is_stalled(end)) || pipe.ended || pipe.show_again;
        !pipe.closed && there && !self.nodes[node].workers[worker].is_paused(key)
    }

    /// Shows a worker what has come for one of its connections, as the shell does.
    fn read(&mut self, node: usize, worker: usize, key: ConnKey, end: End) {
        let stalled = self.is_stalled(end);
        let from = self.node_of(End(end.0, 1 - end.1));
        let state = &mut self.nodes[node].workers[worker];
        let conn = &mut self.conns[end.0];
        let pipe = &mut conn.pipes[end.1];
        if std::mem::take(&mut pipe.show_again) {
            let rest = std::mem::take(&mut pipe.rest);
            let used = state.receive(key, &rest);
            pipe.rest.extend_from_slice(&rest[used..]);
        }
        if pipe.bytes.is_empty() || stalled {
            if pipe.ended {
                pipe.closed = true;
                state.hang_up(key, HangUp::Closed);
            }
            return;
        }
        if let Some(buffer) = state.payload_buffer(key) {
            let n = buffer.len().min(pipe.bytes.len());
            for (place, byte) in buffer.iter_mut().zip(pipe.bytes.drain(..n)) {
                *place = byte;
            }
            state.payload_filled(key, n);
        } else {
            let n = pipe.bytes.len().min(READ - pipe.rest.len());
            let mut input = std::mem::take(&mut pipe.rest);
            input.extend(pipe.bytes.drain(..n));
            if let Some(from) = from
                && let Some(mut tamper) = self.tamper.take()
                && !tamper(from, node, &mut input)
            {
                self.tamper = Some(tamper);
            }
            (self.around)(true);
            let used = state.receive(key, &input);
            (self.around)(false);
            pipe.rest.extend_from_slice(&input[used..]);
        }
        self.unblock(end);
    }

    /// There is room again: lets the owner of the other end write on.
    fn unblock(&mut self, end: End) {
        if std::mem::take(&mut self.conns[end.0].pipes[end.1].blocked)
            && let Owner::Worker { node, worker, key } = self.conns[end.0].owners[1 - end.1]
        {
            self.write(node, worker, key);
        }
    }

    fn carry_out(&mut self, node: usize, worker: usize, out: Output) {
        assert!(out.answers.is_empty(), "no monitoring here");
        assert!(
            out.io.is_empty() || self.nodes[node].disk.is_some(),
            "no disk here"
        );
        self.hops += out.cells.len() as u64 + 2 * u64::from(!out.io.is_empty());
        for job in out.io {
            if let IoOwner::Store(group) = job.owner {
                for IoRequest { token, .. } in &job.requests {
                    // Else an operation of a store that was there before could be taken for one of this store.
                    let last = self.nodes[node].store_ops[worker].insert(group, *token);
                    assert!(last < Some(*token), "{group}: {token:?} after {last:?}");
                }
            }
            let requests = job.requests.into_iter().map(|request| (job.owner, request));
            self.nodes[node].disk_jobs[worker].extend(requests);
        }
        for (key, address) in out.dials {
            self.dial(node, worker, key, &address);
        }
        for (to, cells) in out.cells {
            self.nodes[node].mail[usize::from(to.0)]
                .push_back((WorkerId(u16::try_from(worker).unwrap()), cells));
        }
        for key in out.resumed {
            if let Some(end) = self.nodes[node].keys.get(&(worker, key)) {
                self.conns[end.0].pipes[end.1].show_again = true;
            }
        }
        for key in out.writes {
            self.write(node, worker, key);
        }
        for key in out.closes {
            self.write(node, worker, key);
            self.nodes[node].workers[worker].closed(key);
            if let Some(end) = self.nodes[node].keys.remove(&(worker, key)) {
                self.close_end(end);
            }
        }
    }

    /// Opens a connection to where the address leads; at an address where nobody is, it is refused, and behind a cut it
    /// is never opened.
    fn dial(&mut self, node: usize, worker: usize, key: ConnKey, address: &str) {
        let to = (0..self.nodes.len()).find(|n| route(*n) == address && self.nodes[*n].running);
        let Some(to) = to else {
            let refused = HangUp::Refused("Connection refused (os error 111)".to_owned());
            self.nodes[node].workers[worker].hang_up(key, refused);
            return;
        };
        if self.cuts.contains(&(node, to)) || self.cuts.contains(&(to, node)) {
            return;
        }
        let local: SocketAddr = format!("{}:{}", host(node), 50_000 + key.index).parse().unwrap();
        let remote: SocketAddr = route(to).parse().unwrap();
        let conn = self.connect(to, 0, local, Listener::Route, Owner::Worker { node, worker, key });
        self.nodes[node].keys.insert((worker, key), End(conn, 0));
        self.nodes[node].workers[worker].connected(key, local, remote);
    }

    fn connect(
        &mut self,
        node: usize,
        worker: usize,
        remote: SocketAddr,
        listener: Listener,
        owner: Owner,
    ) -> usize {
        let key = self.nodes[node].workers[worker].accept(remote, listener);
        let accepted = Owner::Worker { node, worker, key };
        let conn = self.conns.len();
        self.conns.push(Conn {
            owners: [owner, accepted],
            pipes: Default::default(),
            stalled: [false; 2],
        });
        self.nodes[node].keys.insert((worker, key), End(conn, 1));
        conn
    }

    /// Moves what a worker has for a connection to the other end.
    fn write(&mut self, node: usize, worker: usize, key: ConnKey) {
        let Some(end) = self.nodes[node].keys.get(&(worker, key)).copied() else {
            return;
        };
        let other = 1 - end.1;
        let to = self.node_of(End(end.0, other));
        let lost = to.is_some_and(|to| self.cuts.contains(&(node, to)));
        let pipe = &mut self.conns[end.0].pipes[other];
        let digest = &mut self.digest;
        let mut carried = to.map(|to| self.carried.entry((node, to)).or_default());
        loop {
            let room = WINDOW.saturating_sub(pipe.bytes.len());
            let result = self.nodes[node].workers[worker].transmit(key, |slices: &[IoSlice<'_>]| {
                if room == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let bytes: Vec<u8> = slices
                    .iter()
                    .flat_map(|slice| slice.iter().copied())
                    .take(room)
                    .collect();
                for byte in &bytes {
                    *digest = (*digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
                }
                let n = bytes.len();
                if let Some(carried) = &mut carried {
                    **carried += n as u64;
                }
                if !lost && !pipe.closed {
                    pipe.bytes.extend(bytes);
                }
                Ok(n)
            });
            match result {
                None => return,
                Some(Ok(_)) => {}
                Some(Err(_)) => {
                    pipe.blocked = true;
                    return;
                }
            }
        }
    }

    /// The owner has closed an end: the other one is told, unless a cut is between them.
    fn close_end(&mut self, end: End) {
        let from = self.node_of(end);
        let to = self.node_of(End(end.0, 1 - end.1));
        self.conns[end.0].pipes[end.1].closed = true;
        let lost = from.zip(to).is_some_and(|cut| self.cuts.contains(&cut));
        if !lost {
            self.conns[end.0].pipes[1 - end.1].ended = true;
        }
    }
}

//! One server: the product's workers, its disk, its clock; and what the real shell would do around a turn.
//!
//! The shell is `tidelock-server`'s, in miniature: what it does with sockets, helper threads and mailboxes is done here
//! with the simulated network, disk and queue, in the same order.

use crate::network::{End, Host, Network, Owner, Read};
use crate::rng::Rng;
use crate::trace::Trace;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidelock_base::{BootId, GroupId, Mono, NodeId, Now, Wall, WorkerId};
use tidelock_conf::{Options, Sources};
use tidelock_node::{
    Addresses, Budgets, Cell, ConnKey, HangUp, IoJob, IoOwner, Listener, NodeShared, Output, ReplicaView,
    ServerIdentity, Worker,
};
use tidelock_record::{Disk, FilePath, IoDone, IoOp, IoRequest, IoToken, MemDisk};
use tidelock_wal::{LaneConfig, recover_all};

/// Port of clients.
const CLIENT_PORT: u16 = 4222;
/// Port of routes.
const ROUTE_PORT: u16 = 6222;
/// Bytes that a worker is shown at once.
const SCRATCH: usize = 64 << 10;
/// A disk operation usually takes up to this long.
const DISK_TIME: Duration = Duration::from_micros(400);
/// Wall clock at time zero.
const EPOCH: i64 = 1_800_000_000_000_000_000;

/// What comes to a worker from outside.
#[derive(Debug)]
pub(crate) enum Input {
    /// From another worker of the node.
    Cells(WorkerId, Vec<Cell>),
    /// A connection was accepted.
    Accept(u64, Listener),
    /// A connection that it wanted is open, or not.
    Dialled(ConnKey, Option<End>),
    /// There is something to read.
    Readable(ConnKey),
    /// There is room to write.
    Writable(ConnKey),
    /// A disk operation has ended.
    Disk(IoOwner, IoDone),
}

/// What a turn has brought about outside its worker.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Workers of the node to wake.
    pub(crate) wake: BTreeSet<usize>,
    /// Helpers that have got something to do: when the operation that they are at will end.
    pub(crate) disk: Vec<(usize, Helper, Mono)>,
}

/// A thread that runs disk operations for a worker, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Helper {
    /// For the log.
    Log,
    /// For all other files.
    Files,
}

/// An operation of a helper.
#[derive(Debug)]
struct Job {
    owner: IoOwner,
    request: IoRequest,
    /// It has run and the helper has not told of it yet.
    result: Option<IoDone>,
}

/// One worker with what the shell keeps for it.
struct Seat {
    worker: Worker,
    inputs: VecDeque<Input>,
    keys: BTreeMap<ConnKey, Line>,
    /// Connections that were not read to the end.
    readable: BTreeSet<ConnKey>,
    helpers: BTreeMap<Helper, VecDeque<Job>>,
    /// The last number that an operation of a group's store had.
    store_ops: BTreeMap<GroupId, IoToken>,
    /// When its next turn is planned.
    planned: Option<Mono>,
    busy_until: Mono,
    out: Output,
}

/// A connection as the shell keeps it.
#[derive(Debug)]
struct Line {
    end: End,
    rest: Vec<u8>,
    show_again: bool,
}

/// A server that runs.
struct Running {
    shared: Arc<NodeShared>,
    seats: Vec<Seat>,
}

/// Sizes that a whole run uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) budgets: Budgets,
    /// Bytes of a segment of the log.
    pub(crate) segment: u64,
}

impl Sizes {
    /// Those of the product, or so small ones that logs are cut, blocks are written and snapshots are sent all the
    /// time.
    pub(crate) fn choose(rng: &mut Rng) -> Self {
        if rng.per_mille(250) {
            return Self {
                budgets: Budgets::default(),
                segment: 16 << 20,
            };
        }
        let mut size = |from: u64, doublings: u64| from << rng.below(doublings);
        let segment = size(64 << 10, 5);
        let (block, tail) = (size(16 << 10, 6), size(4 << 10, 7));
        let log = segment + size(64 << 10, 6);
        Self {
            budgets: Budgets {
                log,
                log_remains: size(1 << 10, 8),
                log_held: log * (size(1, 4) / 2),
                entries: usize::try_from(size(4 << 10, 8)).unwrap_or(4 << 10),
                block,
                tail,
                backlog: tail + 3 * block + size(16 << 10, 5),
            },
            segment,
        }
    }
}

/// See the module's text.
pub(crate) struct Node {
    pub(crate) number: usize,
    options: String,
    pub(crate) disk: Arc<MemDisk>,
    running: Option<Running>,
    /// Starts so far.
    pub(crate) lives: u64,
    sizes: Sizes,
    /// How far its wall clock is off, in nanoseconds.
    pub(crate) wall_offset: i64,
    /// Nothing of it happens before this.
    pub(crate) paused_until: Mono,
    /// How long a disk operation takes at most.
    pub(crate) disk_time: Duration,
    /// Its disk is full or fails operations, so that it need not start.
    pub(crate) disk_is_ill: bool,
    /// Its power is about to fail, or has failed.
    pub(crate) is_losing_power: bool,
    /// Something durable on its disk was damaged.
    is_damaged: bool,
    /// Files of messages were lost.
    has_lost_blocks: bool,
    rng: Rng,
}

/// Address of a node.
fn host(node: usize) -> String {
    format!("10.0.0.{}", node + 1)
}

/// Configuration of one of `count` nodes.
fn configuration(node: usize, count: usize) -> String {
    let routes: Vec<String> = (0..count)
        .map(|n| format!("\"nats-route://{}:{ROUTE_PORT}\"", host(n)))
        .collect();
    format!(
        "server_name: n{node}\nlisten: \"{0}:{CLIENT_PORT}\"\njetstream {{ store_dir: \"/n{node}\", max_file_store: 10GB, \
         max_memory_store: 1GB }}\ncluster {{ name: sim, listen: \"{0}:{ROUTE_PORT}\", ping_interval: 2, \
         routes: [{1}] }}\n",
        host(node),
        routes.join(", ")
    )
}

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

fn parse(text: &str) -> Options {
    let words = ["-c".to_owned(), "sim.conf".to_owned()];
    let (flags, _) = tidelock_conf::parse_flags(&words).expect("these flags are fine");
    tidelock_conf::load(&flags, &Text(text))
        .expect("this configuration is fine")
        .options
}

/// The same files on another disk, all of them durable.
fn copy(disk: &MemDisk) -> MemDisk {
    let copy = MemDisk::new();
    for (file, len) in disk.files() {
        // A disk in memory without faults does all of it.
        if let Ok(data) = disk.read(&file, 0, len) {
            let _ = copy.run(&IoOp::Replace { file, data });
        }
    }
    copy
}

impl Node {
    /// A node of `count`, not started.
    pub(crate) fn new(number: usize, count: usize, sizes: Sizes, mut rng: Rng) -> Self {
        let skew = i64::try_from(rng.below(400_000_000)).unwrap_or(0) - 200_000_000;
        Self {
            number,
            options: configuration(number, count),
            disk: Arc::new(MemDisk::new()),
            running: None,
            lives: 0,
            sizes,
            wall_offset: skew,
            paused_until: Mono(0),
            disk_time: DISK_TIME,
            disk_is_ill: false,
            is_losing_power: false,
            is_damaged: false,
            has_lost_blocks: false,
            rng,
        }
    }

    /// The node that listens for routes at this address.
    pub(crate) fn at_address(address: &str, count: usize) -> Option<usize> {
        (0..count).find(|n| address.strip_suffix(&format!(":{ROUTE_PORT}")) == Some(host(*n).as_str()))
    }

    pub(crate) const fn id(number: usize) -> NodeId {
        NodeId(number as u64 + 1)
    }

    fn now(&self, mono: Mono) -> Now {
        let passed = i64::try_from(mono.0).unwrap_or(i64::MAX);
        Now {
            mono,
            wall: Wall(EPOCH + passed + self.wall_offset),
        }
    }

    pub(crate) const fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn workers(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.seats.len())
    }

    fn seat(&mut self, worker: usize) -> Option<&mut Seat> {
        self.running.as_mut()?.seats.get_mut(worker)
    }

    // ---- lives ----------------------------------------------------------------------------------------------------

    /// Starts the server on what its disk holds.
    ///
    /// # Errors
    /// What keeps it from starting.
    pub(crate) fn start(&mut self, mono: Mono, workers: u16) -> Result<(), String> {
        self.lives += 1;
        let id = Self::id(self.number);
        let identity = ServerIdentity {
            node: id,
            boot: BootId((u128::from(self.rng.next()) << 64) | u128::from(id.0 << 32 | self.lives)),
            server_id: format!("NSIM{}", self.number).into(),
            name: format!("n{}", self.number).into(),
            pid: 1,
            cores: usize::from(workers),
            start: self.now(mono),
        };
        let mut shared = NodeShared::new(identity, parse(&self.options), workers);
        shared.budgets = self.sizes.budgets;
        let shared = Arc::new(shared);
        shared.addresses.store(Arc::new(Addresses {
            client_host: host(self.number),
            client_port: CLIENT_PORT,
            listen_port: CLIENT_PORT,
            client_urls: vec![format!("{}:{CLIENT_PORT}", host(self.number)).into()],
            cluster_host: host(self.number),
            cluster_port: ROUTE_PORT,
            http_host: String::new(),
            http_port: 0,
        }));
        let config = LaneConfig {
            segment_bytes: self.sizes.segment,
            ..LaneConfig::new(self.rng.next())
        };
        let lanes = recover_all(&*self.disk, workers, &config).map_err(|e| e.to_string())?;
        for (_, lane) in &lanes.lanes {
            if let Some(damage) = lane.damage.first().filter(|_| !self.is_damaged) {
                return Err(format!("the log is damaged: {damage:?}"));
            }
        }
        let found = (0..).map(WorkerId).zip(&lanes.lanes);
        shared.place_groups(
            found.flat_map(|(worker, (_, lane))| lane.groups.keys().map(move |group| (*group, worker))),
        );
        let mut seats = Vec::new();
        for (number, (lane, recovered)) in (0..workers).zip(lanes.lanes) {
            let mut worker = Worker::new(Arc::clone(&shared), WorkerId(number), self.rng.next());
            worker.begin(self.now(mono));
            worker.start(Some((lane, recovered)), Some(Arc::clone(&self.disk) as _))?;
            seats.push(Seat {
                worker,
                inputs: VecDeque::new(),
                keys: BTreeMap::new(),
                readable: BTreeSet::new(),
                helpers: BTreeMap::new(),
                store_ops: BTreeMap::new(),
                planned: None,
                busy_until: mono,
                out: Output::default(),
            });
        }
        self.running = Some(Running { shared, seats });
        Ok(())
    }

    /// Power is lost: nothing of the process remains, and of the disk what the model leaves.
    pub(crate) fn crash(&mut self, now: Mono, net: &mut Network) {
        let Some(running) = self.running.take() else {
            return;
        };
        for seat in running.seats {
            for line in seat.keys.into_values() {
                net.close(now, line.end);
            }
            for input in seat.inputs {
                if let Input::Accept(conn, _) = input {
                    net.refuse(now, conn);
                }
            }
            for mut jobs in seat.helpers.into_values() {
                let Some(job) = jobs.pop_front().filter(|job| job.result.is_none()) else {
                    continue;
                };
                self.begin_write(&job.request.op);
            }
        }
        self.disk.crash(self.rng.next());
        self.paused_until = Mono(0);
        self.is_losing_power = false;
    }

    /// All files of a server that is down are gone; its id stays, as when only the volume with the streams is lost.
    pub(crate) fn wipe(&mut self) {
        if !self.is_running() {
            self.disk = Arc::new(MemDisk::new());
            self.disk_is_ill = false;
            self.is_damaged = false;
            self.has_lost_blocks = false;
        }
    }

    /// A bit of what is durable on the disk of a server that is down is not what it was: in its log, a checkpoint, or the
    /// note of its cluster. Answers where.
    ///
    /// The end of the log is left alone as far as it cannot be told from a write that was torn: no start can notice that.
    pub(crate) fn damage(&mut self) -> Option<String> {
        if self.is_running() {
            return None;
        }
        let is_hit =
            |path: &str| path.starts_with("wal/lane-") || path.starts_with("groups/") || path == "cluster";
        let files = self.disk.files();
        let files: Vec<_> = files.iter().filter(|(path, _)| is_hit(path.as_str())).collect();
        for _ in 0..10 {
            let (path, len) = files.get(self.rng.index(files.len().max(1)))?;
            let bytes = self.disk.read(path, 0, *len).ok()?;
            let used = bytes
                .iter()
                .rposition(|byte| *byte != 0)
                .map_or(0, |last| last + 1);
            let bit = self.rng.below(8 * u64::try_from(used.max(1)).unwrap_or(1));
            let damaged = copy(&self.disk);
            damaged.flip_bit(path, bit);
            if self.notices(&damaged) {
                self.disk.flip_bit(path, bit);
                self.is_damaged = true;
                return Some(format!("{path}:{}", bit / 8));
            }
        }
        None
    }

    /// Files of messages of a server that is down are deleted or destroyed. Answers which.
    pub(crate) fn lose_blocks(&mut self) -> Vec<String> {
        let mut places = Vec::new();
        self.has_lost_blocks = true;
        for _ in 0..=self.rng.below(4) {
            let files = self.blocks();
            let Some((path, len)) = files.get(self.rng.index(files.len().max(1))) else {
                break;
            };
            places.push(path.to_string());
            if self.rng.per_mille(500) {
                let file = path.clone();
                // Nothing of the disk is in the way.
                let _ = self.disk.run(&IoOp::Remove { file });
            } else {
                for byte in (0..*len).step_by(16) {
                    let _ = self.disk.flip_bit(path, 8 * byte);
                }
            }
        }
        places
    }

    fn blocks(&self) -> Vec<(FilePath, u64)> {
        let mut files = self.disk.files();
        files.retain(|(path, len)| path.as_str().ends_with(".blk") && *len > 0);
        files
    }

    /// Bits of blocks turn over on the disk of a server that runs. Answers where.
    pub(crate) fn rot(&mut self) -> Vec<String> {
        let files = self.blocks();
        let mut places = Vec::new();
        for _ in 0..=self.rng.below(8) {
            let Some((path, len)) = files.get(self.rng.index(files.len().max(1))) else {
                break;
            };
            let bit = self.rng.below(8 * len);
            if self.disk.flip_bit(path, bit) {
                places.push(format!("{path}:{}", bit / 8));
            }
        }
        places
    }

    /// Whether a start on this disk finds as much in the log as one on the disk that there is, or says that it does not.
    fn notices(&self, damaged: &MemDisk) -> bool {
        let config = LaneConfig {
            segment_bytes: self.sizes.segment,
            ..LaneConfig::new(1)
        };
        let groups = |disk: &MemDisk| {
            let lanes = recover_all(disk, 1, &config).ok()?.lanes;
            let found = lanes.into_iter().map(|(_, lane)| (lane.groups, lane.damage));
            let (groups, damage): (Vec<_>, Vec<_>) = found.unzip();
            Some((groups, damage))
        };
        match (groups(&copy(&self.disk)), groups(damaged)) {
            (Some((before, known)), Some((after, told))) => told != known || after == before,
            (_, None) | (None, _) => false,
        }
    }

    /// The power goes during a write: it may have reached the disk's cache.
    fn begin_write(&mut self, op: &IoOp) {
        if let IoOp::Write {
            file, offset, parts, ..
        } = op
            && self.rng.per_mille(500)
        {
            let (file, offset, parts) = (file.clone(), *offset, parts.clone());
            // Whatever comes of it, the crash that follows decides what is kept.
            let _ = self.disk.run(&IoOp::Write {
                file,
                offset,
                parts,
                sync: false,
            });
        }
    }

    /// Begins to start, and loses power after so many operations of the disk.
    pub(crate) fn crash_at_start(&mut self, mono: Mono, workers: u16, ops: u64) {
        if self.is_running() {
            return;
        }
        self.disk.power_off_after(ops);
        // Whether it came up before the power went makes no difference.
        let _ = self.start(mono, workers);
        self.running = None;
        self.disk.crash(self.rng.next());
    }

    /// Power fails in the middle of the operation of its disk that comes after so many others. What happens until the
    /// crash is that operations fail.
    pub(crate) fn lose_power_after(&mut self, ops: u64) {
        self.disk.power_off_after(ops);
        self.is_losing_power = true;
    }

    /// The disk is as fast as usual, has room and fails no more.
    pub(crate) fn disk_is_well(&mut self) {
        self.disk.fail_no_more();
        self.disk_time = DISK_TIME;
        self.disk_is_ill = false;
        self.disk.set_capacity(None);
    }

    // ---- turns ----------------------------------------------------------------------------------------------------

    /// Hands something to a worker, for its next turn.
    pub(crate) fn input(&mut self, worker: usize, input: Input) {
        if let Some(seat) = self.seat(worker) {
            seat.inputs.push_back(input);
        }
    }

    /// Plans a turn of a worker; answers when, unless one is planned by then.
    pub(crate) fn plan(&mut self, worker: usize, at: Mono) -> Option<Mono> {
        let paused = self.paused_until;
        let seat = self.seat(worker)?;
        let at = at.max(seat.busy_until).max(paused);
        if seat.planned.is_some_and(|planned| planned <= at) {
            return None;
        }
        seat.planned = Some(at);
        Some(at)
    }

    /// When a worker wants its next turn.
    pub(crate) fn wants_turn(&mut self, worker: usize, now: Mono) -> Option<Mono> {
        let seat = self.seat(worker)?;
        if !seat.inputs.is_empty() || !seat.readable.is_empty() {
            return Some(now);
        }
        seat.worker.next_deadline()
    }

    /// Whether a turn that was planned for this instant is still to take place then.
    pub(crate) fn is_planned(&mut self, worker: usize, at: Mono) -> bool {
        self.seat(worker).is_some_and(|seat| seat.planned == Some(at))
    }

    /// Forgets a planned turn.
    pub(crate) fn unplan(&mut self, worker: usize) {
        if let Some(seat) = self.seat(worker) {
            seat.planned = None;
        }
    }

    /// One turn of a worker.
    pub(crate) fn turn(
        &mut self,
        worker: usize,
        mono: Mono,
        net: &mut Network,
        trace: &mut Trace,
    ) -> Effects {
        let now = self.now(mono);
        let (node, busy) = (self.number, Duration::from_nanos(2_000 + self.rng.below(20_000)));
        let time = self.disk_time;
        let mut effects = Effects::default();
        let Some(seat) = self
            .running
            .as_mut()
            .and_then(|running| running.seats.get_mut(worker))
        else {
            return effects;
        };
        seat.planned = None;
        seat.busy_until = mono + busy;
        let place = Place { node, worker, mono };
        seat.worker.begin(now);
        let readable = std::mem::take(&mut seat.readable);
        while let Some(input) = seat.inputs.pop_front() {
            seat.take(place, input, net, trace, &mut self.rng);
        }
        for key in readable {
            seat.read(place, key, net, trace, &mut self.rng);
        }
        let mut out = std::mem::take(&mut seat.out);
        loop {
            seat.worker.finish(&mut out);
            for key in out.resumed.drain(..) {
                if let Some(line) = seat.keys.get_mut(&key) {
                    line.show_again = true;
                    seat.readable.insert(key);
                }
            }
            let jobs = std::mem::take(&mut out.io);
            if !seat.submit(
                worker,
                jobs,
                mono,
                (&self.disk, time, &mut self.rng),
                &mut effects,
            ) {
                break;
            }
        }
        seat.carry_out(place, &mut out, net, trace);
        for (to, cells) in out.cells.drain(..) {
            let to = usize::from(to.0);
            self.input(
                to,
                Input::Cells(WorkerId(u16::try_from(worker).unwrap_or(0)), cells),
            );
            effects.wake.insert(to);
        }
        if let Some(seat) = self.seat(worker) {
            seat.out = out;
        }
        effects
    }

    /// The operation that a helper is at has ended: tells the worker, and answers when the next one will end.
    pub(crate) fn disk_ended(&mut self, worker: usize, helper: Helper, mono: Mono) -> Option<Mono> {
        let time = self.disk_time;
        let seat = self
            .running
            .as_mut()
            .and_then(|running| running.seats.get_mut(worker))?;
        let jobs = seat.helpers.get_mut(&helper)?;
        let job = jobs.pop_front()?;
        let done = job.result.unwrap_or_else(|| run(&self.disk, job.request));
        seat.inputs.push_back(Input::Disk(job.owner, done));
        begin(jobs, &self.disk, mono, time, &mut self.rng)
    }

    // ---- what checkers see ----------------------------------------------------------------------------------------

    /// All replicas of the node.
    pub(crate) fn replicas(&self) -> Vec<ReplicaView> {
        let seats = self.running.iter().flat_map(|running| &running.seats);
        let views = seats.flat_map(|seat| seat.worker.replicas());
        // What it has lost the others may have removed by now: then it stops and is replaced, as it should.
        let is_lost =
            |why: &String| self.has_lost_blocks && why.contains("the others have not all of these messages");
        views
            .filter(|view| !view.failed.as_ref().is_some_and(is_lost))
            .collect()
    }

    /// Peers that it has links with.
    pub(crate) fn peers_up(&self) -> usize {
        let table = self
            .running
            .as_ref()
            .map(|running| running.shared.peers.load_full());
        table.map_or(0, |table| table.peers.iter().filter(|peer| peer.up).count())
    }
}

/// Where and when a turn takes place.
#[derive(Clone, Copy)]
struct Place {
    node: usize,
    worker: usize,
    mono: Mono,
}

fn run(disk: &MemDisk, request: IoRequest) -> IoDone {
    let result = disk.run(&request.op);
    IoDone {
        token: request.token,
        result,
    }
}

/// Begins the first operation of a helper: it takes effect at once or at its end, as chance will have it.
fn begin(jobs: &mut VecDeque<Job>, disk: &MemDisk, now: Mono, time: Duration, rng: &mut Rng) -> Option<Mono> {
    let job = jobs.front_mut()?;
    if rng.per_mille(500) {
        job.result = Some(run(disk, job.request.clone()));
    }
    Some(now + rng.between(time / 8, time))
}

impl Seat {
    fn take(&mut self, place: Place, input: Input, net: &mut Network, trace: &mut Trace, rng: &mut Rng) {
        match input {
            Input::Cells(from, cells) => self.worker.receive_cells(from, cells),
            Input::Accept(conn, listener) => {
                let port = 40_000 + u16::try_from(conn % 20_000).unwrap_or(0);
                let key = self
                    .worker
                    .accept(SocketAddr::from(([10, 0, 9, 9], port)), listener);
                let Place { node, worker, mono } = place;
                net.accept(mono, conn, Owner::Worker { node, worker, key });
                self.keys.insert(
                    key,
                    Line {
                        end: End { conn, side: 1 },
                        rest: Vec::new(),
                        show_again: false,
                    },
                );
            }
            Input::Dialled(key, _) if !self.keys.contains_key(&key) => {}
            Input::Dialled(key, Some(_)) => {
                let at = SocketAddr::from(([10, 0, 9, 9], ROUTE_PORT));
                self.worker.connected(key, at, at);
            }
            Input::Dialled(key, None) => {
                self.keys.remove(&key);
                self.worker.hang_up(
                    key,
                    HangUp::Refused("Connection refused (os error 111)".to_owned()),
                );
            }
            Input::Readable(key) => self.read(place, key, net, trace, rng),
            Input::Writable(key) => self.write(place, key, net, trace),
            Input::Disk(owner, done) => {
                trace.event(place.mono, 3, done.token.0, &[u8::from(done.result.is_ok())]);
                if let Err(error) = &done.result {
                    trace.say(|| format!("n{}.{} disk: {owner:?} {error}", place.node, place.worker));
                }
                self.worker.io_done(owner, done);
                self.worker.io_ahead(&mut self.out.io);
            }
        }
    }

    /// Shows the worker what has come on a connection, in pieces of any size.
    fn read(&mut self, place: Place, key: ConnKey, net: &mut Network, trace: &mut Trace, rng: &mut Rng) {
        let Some(line) = self.keys.get_mut(&key) else {
            return;
        };
        let worker = &mut self.worker;
        if std::mem::take(&mut line.show_again) && !line.rest.is_empty() && !worker.is_paused(key) {
            let rest = std::mem::take(&mut line.rest);
            let used = worker.receive(key, &rest);
            line.rest.extend_from_slice(rest.get(used..).unwrap_or_default());
        }
        if worker.is_paused(key) {
            // The worker says when it may be read again.
            line.show_again = true;
            return;
        }
        let odd = rng.per_mille(100);
        let large = worker.payload_buffer(key).map(|buffer| buffer.len());
        let room = large
            .unwrap_or_else(|| SCRATCH.saturating_sub(line.rest.len()))
            .max(1);
        let most = if odd { 1 + rng.index(room) } else { room };
        match net.read(place.mono, line.end, most) {
            Read::Empty => {}
            Read::Ended => {
                worker.hang_up(key, HangUp::Closed);
                return;
            }
            Read::Bytes(bytes) => {
                trace.event(
                    place.mono,
                    1,
                    line.end.conn * 2 + u64::from(line.end.side),
                    &bytes,
                );
                if large.is_some() {
                    if let Some(buffer) = worker.payload_buffer(key) {
                        for (place, byte) in buffer.iter_mut().zip(&bytes) {
                            *place = *byte;
                        }
                        worker.payload_filled(key, bytes.len());
                    }
                } else {
                    let mut input = std::mem::take(&mut line.rest);
                    input.extend_from_slice(&bytes);
                    let used = worker.receive(key, &input);
                    line.rest.extend_from_slice(input.get(used..).unwrap_or_default());
                }
            }
        }
        if net.is_readable(line.end) {
            self.readable.insert(key);
        }
    }

    fn write(&mut self, place: Place, key: ConnKey, net: &mut Network, trace: &mut Trace) {
        let Some(line) = self.keys.get(&key) else { return };
        let end = line.end;
        loop {
            let result = self.worker.transmit(key, |slices: &[IoSlice<'_>]| {
                let (n, bytes) = net.write(place.mono, end, slices.iter().map(|slice| &**slice))?;
                trace.event(place.mono, 2, end.conn * 2 + u64::from(end.side), &bytes);
                Ok(n)
            });
            match result {
                None => return,
                Some(Ok(_)) => {}
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => return,
                Some(Err(e)) => {
                    self.worker.hang_up(key, HangUp::Write(e.to_string()));
                    return;
                }
            }
        }
    }

    /// Gives out disk operations; `true` if something ran at once.
    fn submit(
        &mut self,
        worker: usize,
        all: Vec<IoJob>,
        now: Mono,
        (disk, time, rng): (&MemDisk, Duration, &mut Rng),
        effects: &mut Effects,
    ) -> bool {
        let mut ran = false;
        for job in all {
            if let IoOwner::Store(group) = job.owner {
                for request in &job.requests {
                    // Else the end of one could be taken for that of another.
                    let last = self.store_ops.insert(group, request.token);
                    assert!(
                        last < Some(request.token),
                        "operations of the stores of group {group} are not numbered apart"
                    );
                }
            }
            let helper = if job.owner == IoOwner::Log {
                Helper::Log
            } else {
                Helper::Files
            };
            let queue = self.helpers.entry(helper).or_default();
            if job.inline && queue.is_empty() && rng.per_mille(500) {
                for request in job.requests {
                    self.worker.io_done(job.owner, run(disk, request));
                }
                ran = true;
                continue;
            }
            let idle = queue.is_empty();
            let owner = job.owner;
            queue.extend(job.requests.into_iter().map(|request| Job {
                owner,
                request,
                result: None,
            }));
            if idle && let Some(at) = begin(queue, disk, now, time, rng) {
                effects.disk.push((worker, helper, at));
            }
        }
        ran
    }

    fn carry_out(&mut self, place: Place, out: &mut Output, net: &mut Network, trace: &mut Trace) {
        for (key, address) in out.dials.drain(..) {
            let owner = Owner::Worker {
                node: place.node,
                worker: place.worker,
                key,
            };
            if let Some(to) = Node::at_address(&address, usize::from(u8::MAX)) {
                let end = net.dial(place.mono, Host::Node(place.node), Host::Node(to), owner);
                self.keys.insert(
                    key,
                    Line {
                        end,
                        rest: Vec::new(),
                        show_again: false,
                    },
                );
            } else {
                self.worker
                    .hang_up(key, HangUp::Refused(format!("no such host: {address}")));
            }
        }
        for key in std::mem::take(&mut out.writes) {
            self.write(place, key, net, trace);
        }
        for key in out.closes.drain(..) {
            self.write(place, key, net, trace);
            self.worker.closed(key);
            self.readable.remove(&key);
            if let Some(line) = self.keys.remove(&key) {
                net.close(place.mono, line.end);
            }
        }
        out.checks.clear();
        out.answers.clear();
    }
}

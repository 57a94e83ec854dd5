//! A deterministic harness: replicas of one group, a network, disks and state machines, all driven by one seed.
//!
//! Checked at every step: at most one leader a term, one entry for each committed index (by a running digest), no
//! leader without what is committed, and no read below what was committed anywhere when it was asked.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidelock_base::{GroupId, LogIndex, Mono, ReplicaId, Term};
use tidelock_replica::{
    Committed, CommittedKind, Group, GroupConfig, HardState, Install, Limits, LogEntry, LogPosition, Members,
    Persist, ReadOutcome, ReadToken, Ready, Role, Start, StartError, StepError, Timers,
};

pub(crate) const GROUP: GroupId = GroupId(7);
/// One step of the clock.
pub(crate) const STEP: Duration = Duration::from_millis(5);

pub(crate) const fn id(n: u64) -> ReplicaId {
    ReplicaId(n)
}

/// Xorshift64*, enough to spread faults.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }

    pub(crate) const fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// Probabilities per mille; all zero is a kind world.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplicate: u64,
    pub(crate) late: u64,
    pub(crate) slow_disk: u64,
    pub(crate) slow_apply: u64,
    pub(crate) failed_install: u64,
    pub(crate) checkpoint: u64,
    /// A replica does not forget what leaves its memory as long as its disk has it.
    pub(crate) kept: u64,
    /// Entries cannot be read back.
    pub(crate) unread: u64,
}

/// The state machine: what it has applied, as a position and a digest of all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) at: LogPosition,
    digest: u64,
}

impl Machine {
    fn apply(&mut self, entry: &Committed) {
        assert_eq!(entry.index, self.at.index.next(), "entries are applied in order");
        self.at = LogPosition {
            index: entry.index,
            term: entry.term,
        };
        let mut hash = self.digest ^ entry.index.0.wrapping_mul(31) ^ (entry.term.0 << 32);
        for byte in &entry.data {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let CommittedKind::Members { change, context } = &entry.kind {
            for byte in format!("{change:?}{context:?}").bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        self.digest = hash;
    }
}

/// What survives a crash, and what is on its way there.
#[derive(Clone, Default)]
struct DiskImage {
    records: Vec<Persist>,
    checkpoint: Machine,
    members: Members,
    members_at: LogIndex,
    /// Base of the stored log: entries up to here are in the checkpoint.
    base: LogPosition,
    hard: HardState,
    /// Files of a snapshot, synced before it is installed.
    staged: Option<(Install, Machine)>,
}

struct Batch {
    done_at: Mono,
    number: u64,
    records: Vec<Persist>,
}

pub(crate) struct Replica {
    pub(crate) group: Option<Group>,
    pub(crate) machine: Machine,
    disk: DiskImage,
    /// Batches on their way to the disk, in order.
    writing: VecDeque<Batch>,
    /// Records that are written along with the next batch.
    lazy: Vec<Persist>,
    pub(crate) queue: VecDeque<Committed>,
    staging: Option<(Mono, Install)>,
    lives: u64,
    /// Every `Ready`, kept in runs without loss only.
    pub(crate) log: Vec<Ready>,
}

pub(crate) struct Flight {
    pub(crate) at: Mono,
    pub(crate) from: ReplicaId,
    pub(crate) to: ReplicaId,
    pub(crate) frame: Bytes,
}

impl Flight {
    /// The kind's byte on the wire.
    pub(crate) fn kind(&self) -> u8 {
        self.frame[1]
    }
}

pub(crate) const APPEND: u8 = 1;
pub(crate) const APPEND_ANSWER: u8 = 2;
pub(crate) const VOTE: u8 = 3;
pub(crate) const PRE_VOTE: u8 = 5;
pub(crate) const HEARTBEAT: u8 = 7;
pub(crate) const SNAPSHOT: u8 = 9;
pub(crate) const READ_ASK: u8 = 11;
pub(crate) const READ_GRANT: u8 = 12;
pub(crate) const READ_REFUSE: u8 = 13;
pub(crate) const CONFIRM: u8 = 14;
pub(crate) const CONFIRMED: u8 = 15;

pub(crate) struct Sim {
    pub(crate) now: Mono,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    pub(crate) net: Vec<Flight>,
    /// Pairs (from, to) between which nothing passes.
    pub(crate) cut: BTreeSet<(ReplicaId, ReplicaId)>,
    pub(crate) limits: Limits,
    /// Disks whose syncs do not return.
    pub(crate) hung: BTreeSet<ReplicaId>,
    /// Processes that stand still until a point in time.
    pub(crate) paused: BTreeMap<ReplicaId, Mono>,
    /// Replicas whose state machines do not move.
    pub(crate) idle: BTreeSet<ReplicaId>,
    leaders: BTreeMap<Term, ReplicaId>,
    /// Digest of everything up to a committed index, and the term of the replica that applied it first.
    committed: BTreeMap<LogIndex, (u64, Term)>,
    asked: BTreeMap<ReadToken, LogIndex>,
    pub(crate) answers: BTreeMap<ReadToken, ReadOutcome>,
    tokens: u64,
    /// A running hash of everything that was wanted done, if it is kept.
    pub(crate) trace: Option<u64>,
    /// What has happened, so that a run can be seen to have met what it is for.
    pub(crate) seen: Seen,
    seed: u64,
}

/// Counts of events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) reads: u64,
    pub(crate) dropped_reads: u64,
    pub(crate) restored: u64,
    pub(crate) joint: u64,
    pub(crate) restarts: u64,
    pub(crate) compactions: u64,
    pub(crate) read_back: u64,
}

impl Sim {
    /// A group of voters 1 to `voters`, just founded.
    pub(crate) fn new(seed: u64, voters: u64, faults: Faults) -> Self {
        let mut sim = Self {
            now: Mono(1_000_000_000),
            random: Random::new(seed),
            faults,
            replicas: BTreeMap::new(),
            net: Vec::new(),
            cut: BTreeSet::new(),
            limits: Limits {
                cache_bytes: 2_000,
                ..Limits::default()
            },
            hung: BTreeSet::new(),
            paused: BTreeMap::new(),
            idle: BTreeSet::new(),
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            asked: BTreeMap::new(),
            answers: BTreeMap::new(),
            tokens: 0,
            trace: None,
            seen: Seen::default(),
            seed,
        };
        let ids: Vec<_> = (1..=voters).map(id).collect();
        for replica in &ids {
            sim.add(*replica, Start::found(&ids));
        }
        sim
    }

    /// A group that has elected replica 1.
    pub(crate) fn led(voters: u64) -> Self {
        let mut sim = Self::new(1, voters, Faults::default());
        assert!(sim.group(1).campaign(Mono(1_000_000_000)) || voters == 1);
        sim.run_until("replica 1 leads", |sim| {
            sim.peek(1).is_leader() && sim.peek(1).has_committed_in_term()
        });
        sim.run(60);
        sim
    }

    pub(crate) fn config(&self, me: ReplicaId, life: u64) -> GroupConfig {
        GroupConfig {
            group: GROUP,
            me,
            seed: self.seed,
            life: u128::from(me.0) << 64 | u128::from(life),
            timers: Timers {
                tick: Duration::from_millis(20),
                heartbeat: Duration::from_millis(40),
                election_min: Duration::from_millis(160),
                election_max: Duration::from_millis(320),
                disk_stall: Duration::from_millis(400),
                announce_commits: false,
            },
            limits: self.limits,
        }
    }

    pub(crate) fn add(&mut self, replica: ReplicaId, start: Start) {
        let disk = DiskImage {
            checkpoint: Machine {
                at: start.base,
                digest: 0,
            },
            members: start.members.clone(),
            members_at: start.members_at,
            base: start.base,
            hard: start.hard,
            ..DiskImage::default()
        };
        let mut group = Group::new(self.config(replica, 0), start, self.now).expect("a new replica starts");
        if self.random.chance(self.faults.kept) {
            group.keep_stored();
        }
        let machine = disk.checkpoint;
        let replica_state = Replica {
            group: Some(group),
            machine,
            disk,
            writing: VecDeque::new(),
            lazy: Vec::new(),
            queue: VecDeque::new(),
            staging: None,
            lives: 1,
            log: Vec::new(),
        };
        self.replicas.insert(replica, replica_state);
    }

    pub(crate) fn replica(&mut self, n: u64) -> &mut Replica {
        self.replicas.get_mut(&id(n)).expect("the replica exists")
    }

    pub(crate) fn group(&mut self, n: u64) -> &mut Group {
        self.replica(n).group.as_mut().expect("the replica runs")
    }

    pub(crate) fn peek(&self, n: u64) -> &Group {
        self.replicas[&id(n)].group.as_ref().expect("the replica runs")
    }

    /// The leader of the highest term.
    pub(crate) fn leader(&self) -> Option<ReplicaId> {
        let leads = |(id, replica): (&ReplicaId, &Replica)| {
            let group = replica.group.as_ref()?;
            group.is_leader().then(|| (group.term(), *id))
        };
        self.replicas.iter().filter_map(leads).max().map(|(_, id)| id)
    }

    pub(crate) fn committed_index(&self) -> LogIndex {
        self.committed.keys().next_back().copied().unwrap_or(LogIndex(1))
    }

    pub(crate) fn propose(&mut self, n: u64, data: &str) -> LogIndex {
        let now = self.now;
        let data = Bytes::copy_from_slice(data.as_bytes());
        self.group(n)
            .propose(now, data)
            .expect("the leader takes a proposal")
    }

    pub(crate) fn read(&mut self, replica: ReplicaId) -> ReadToken {
        self.tokens += 1;
        let token = ReadToken(self.tokens);
        self.asked.insert(token, self.committed_index());
        let now = self.now;
        if let Some(group) = &mut self.replicas.get_mut(&replica).expect("the replica exists").group {
            group.read(now, token);
        }
        token
    }

    pub(crate) fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step();
        }
    }

    pub(crate) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never: {what}");
    }

    /// One step of the clock: disks, network, ticks, and everything that follows from them.
    pub(crate) fn step(&mut self) {
        self.now += STEP;
        self.wake();
        let mut ids: Vec<_> = self.replicas.keys().copied().collect();
        ids.retain(|replica| !self.paused.contains_key(replica));
        for replica in &ids {
            self.finish_writes(*replica);
            self.finish_staging(*replica);
        }
        self.deliver();
        for replica in ids {
            let now = self.now;
            let Some(group) = &mut self.replicas.get_mut(&replica).expect("listed").group else {
                continue;
            };
            if group.next_deadline().is_some_and(|at| at <= now) {
                group.tick(now);
            }
            self.pump(replica);
            if !self.replicas[&replica].queue.is_empty() {
                self.apply_some(replica);
                self.pump(replica);
            }
        }
    }

    /// Ends pauses. The first thing that a process does then is what it cannot know to be outdated: a read.
    fn wake(&mut self) {
        let now = self.now;
        let awake: Vec<_> = self
            .paused
            .extract_if(.., |_, until| *until <= now)
            .map(|(id, _)| id)
            .collect();
        for replica in awake {
            if self.replicas.get(&replica).is_some_and(|r| r.group.is_some()) {
                self.read(replica);
                self.pump(replica);
            }
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let paused = &self.paused;
        let due = |flight: &mut Flight| flight.at <= now && !paused.contains_key(&flight.to);
        let mut due: Vec<_> = self.net.extract_if(.., due).collect();
        due.sort_by_key(|flight| flight.at);
        for flight in due {
            self.hand(flight);
        }
    }

    /// Hands a frame to its receiver at once.
    pub(crate) fn hand(&mut self, flight: Flight) {
        let now = self.now;
        if self.cut.contains(&(flight.from, flight.to)) {
            return;
        }
        let Some(group) = self.replicas.get_mut(&flight.to).and_then(|r| r.group.as_mut()) else {
            return;
        };
        match group.step(now, flight.from, &flight.frame) {
            Ok(()) | Err(StepError::Overloaded) => {}
            Err(error) => panic!("{} -> {}: {error}", flight.from, flight.to),
        }
        assert_eq!(group.failure(), None);
        self.pump(flight.to);
    }

    /// Takes everything a group wants done and does it.
    pub(crate) fn pump(&mut self, replica: ReplicaId) {
        while let Some(ready) = self
            .replicas
            .get_mut(&replica)
            .and_then(|r| r.group.as_mut()?.take_ready())
        {
            self.carry_out(replica, ready);
        }
    }

    fn carry_out(&mut self, me: ReplicaId, ready: Ready) {
        self.note(me, &ready);
        for out in &ready.send {
            self.post(me, out.to, Bytes::from(out.frame.concat()));
        }
        let slow = self.random.chance(self.faults.slow_disk);
        let wait = if slow {
            self.random.below(300)
        } else {
            self.random.below(8)
        };
        let done_at = self.now + Duration::from_millis(wait);
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        replica.lazy.extend(ready.persist.iter().cloned());
        if ready.sync {
            let records = std::mem::take(&mut replica.lazy);
            replica.writing.push_back(Batch {
                done_at,
                number: ready.number,
                records,
            });
        }
        if let Some(restored) = &ready.snapshot.restored {
            let (install, machine) = replica
                .disk
                .staged
                .take()
                .expect("only what was staged is restored");
            assert_eq!(install.position, restored.position);
            replica.machine = machine;
            replica.disk.checkpoint = machine;
            replica.queue.clear();
        }
        replica.queue.extend(ready.committed.iter().cloned());
        if let Some(install) = &ready.snapshot.install {
            let wait = Duration::from_millis(20 + self.random.below(60));
            replica.staging = Some((self.now + wait, install.clone()));
        }
        if self.faults.loss == 0 {
            replica.log.push(ready.clone());
        }
        for to in &ready.snapshot.needed {
            self.offer(me, *to);
        }
        for first in ready.read_back {
            self.read_back(me, first);
        }
    }

    /// Gives a group a few of the entries that it wants back, as many as its disk has.
    fn read_back(&mut self, me: ReplicaId, first: LogIndex) {
        let unread = self.random.chance(self.faults.unread);
        let most = if unread { 0 } else { 1 + self.random.below(8) };
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        let stored = replica.disk.clone().recover().entries.into_iter();
        let wanted = stored.filter(|entry| entry.index >= first);
        let entries: Vec<LogEntry> = wanted.take(usize::try_from(most).expect("small")).collect();
        self.seen.read_back += u64::from(!entries.is_empty());
        if let Some(group) = &mut replica.group {
            group.entries_read(first, entries);
        }
    }

    /// Checks and traces a `Ready`.
    fn note(&mut self, me: ReplicaId, ready: &Ready) {
        if let Some(trace) = &mut self.trace {
            for byte in format!("{} {me} {ready:?}", self.now).bytes() {
                *trace = (*trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        self.seen.restored += u64::from(ready.snapshot.restored.is_some());
        if let Some(change) = ready.role.filter(|change| change.role == Role::Leader) {
            let other = self.leaders.insert(change.term, me);
            assert!(
                other.is_none_or(|other| other == me),
                "two leaders in term {}",
                change.term
            );
            let last = self.replicas[&me].group.as_ref().map(Group::last_index);
            // A leader that was elected late may lack what a later term has committed.
            let earlier = self
                .committed
                .iter()
                .rev()
                .find(|(_, (_, term))| *term < change.term);
            assert!(
                last.as_ref() >= earlier.map(|(index, _)| index),
                "a leader lacks committed entries"
            );
        }
        for result in &ready.reads {
            let floor = self.asked.remove(&result.token).expect("each read ends once");
            if let ReadOutcome::At(index) = result.outcome {
                assert!(index >= floor, "stale read at {me}: {index} below {floor}");
                self.seen.reads += 1;
            } else {
                self.seen.dropped_reads += 1;
            }
            self.answers.insert(result.token, result.outcome);
        }
    }

    fn post(&mut self, from: ReplicaId, to: ReplicaId, frame: Bytes) {
        if self.random.chance(self.faults.loss) {
            return;
        }
        let copies = 1 + u64::from(self.random.chance(self.faults.duplicate));
        for _ in 0..copies {
            let late = self.random.chance(self.faults.late);
            let wait = if late {
                self.random.below(500)
            } else {
                self.random.below(8)
            };
            let at = self.now + Duration::from_millis(1 + wait);
            self.net.push(Flight {
                at,
                from,
                to,
                frame: frame.clone(),
            });
        }
    }

    fn offer(&mut self, me: ReplicaId, to: ReplicaId) {
        let failed = self.random.chance(self.faults.failed_install);
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        let Some(group) = &mut replica.group else { return };
        let members = group.members().0.clone();
        let manifest = Bytes::copy_from_slice(&replica.machine.digest.to_le_bytes());
        if failed
            || group
                .offer_snapshot(to, replica.machine.at, &members, manifest)
                .is_err()
        {
            group.snapshot_failed(to);
        }
    }

    fn finish_staging(&mut self, me: ReplicaId) {
        let failed = self.random.chance(self.faults.failed_install);
        let now = self.now;
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        let Some((_, install)) = replica.staging.take_if(|(at, _)| *at <= now) else {
            return;
        };
        let Some(group) = &mut replica.group else { return };
        if failed {
            group.install_failed(install.position);
            return;
        }
        let digest = u64::from_le_bytes(install.manifest.as_ref().try_into().expect("eight bytes"));
        let machine = Machine {
            at: install.position,
            digest,
        };
        let position = install.position;
        replica.disk.staged = Some((install, machine));
        group.installed(position).expect("it was being staged");
        self.pump(me);
    }

    fn finish_writes(&mut self, me: ReplicaId) {
        if self.hung.contains(&me) {
            return;
        }
        let now = self.now;
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        let mut number = None;
        while let Some(batch) = replica.writing.pop_front_if(|batch| batch.done_at <= now) {
            number = Some(batch.number);
            replica.disk.records.extend(batch.records);
        }
        if let (Some(number), Some(group)) = (number, &mut replica.group) {
            group.persisted(number);
            self.pump(me);
        }
    }

    fn apply_some(&mut self, me: ReplicaId) {
        if self.idle.contains(&me) || self.random.chance(self.faults.slow_apply) {
            return;
        }
        let checkpoint = self.random.chance(self.faults.checkpoint);
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        let Some(group) = &mut replica.group else { return };
        while let Some(entry) = replica.queue.pop_front() {
            replica.machine.apply(&entry);
            let here = (replica.machine.digest, group.term());
            let (known, _) = *self.committed.entry(entry.index).or_insert(here);
            assert_eq!(
                known, replica.machine.digest,
                "replica {me} differs at {}",
                entry.index
            );
        }
        group.applied(replica.machine.at.index);
        self.seen.joint += u64::from(group.members().0.is_joint());
        if checkpoint && replica.disk.staged.is_none() {
            let (members, at) = group.members();
            replica.disk.checkpoint = replica.machine;
            (replica.disk.members, replica.disk.members_at) = (members.clone(), at);
            if self.random.chance(500) {
                replica.disk.compact();
                self.seen.compactions += 1;
                if self.random.chance(500) {
                    group.forget(replica.machine.at.index);
                }
            }
        }
    }

    /// A crash: what was not synced is gone, but for a prefix that reached the disk all the same.
    pub(crate) fn crash(&mut self, me: ReplicaId) {
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        replica.group = None;
        let mut lost: Vec<_> = replica
            .writing
            .drain(..)
            .flat_map(|batch| batch.records)
            .collect();
        let kept = self.random.below(lost.len() as u64 + 1);
        lost.truncate(usize::try_from(kept).expect("small"));
        replica.disk.records.extend(lost);
        replica.lazy.clear();
        replica.queue.clear();
        replica.staging = None;
        self.hung.remove(&me);
    }

    /// Starts a crashed replica from its disk.
    pub(crate) fn restart(&mut self, me: ReplicaId) -> Result<(), StartError> {
        let replica = self.replicas.get_mut(&me).expect("the replica exists");
        let start = replica.disk.recover();
        replica.machine = replica.disk.checkpoint;
        replica.lives += 1;
        self.seen.restarts += 1;
        let life = replica.lives;
        let config = self.config(me, life);
        let mut group = Group::new(config, start, self.now)?;
        if self.random.chance(self.faults.kept) {
            group.keep_stored();
        }
        self.replicas.get_mut(&me).expect("the replica exists").group = Some(group);
        self.pump(me);
        Ok(())
    }

    /// The log as the disk has it.
    pub(crate) fn stored(&self, n: u64) -> Start {
        self.replicas[&id(n)].disk.clone().recover()
    }

    /// Cuts or mends both directions between two replicas.
    pub(crate) fn set_cut(&mut self, a: u64, b: u64, cut: bool) {
        for pair in [(id(a), id(b)), (id(b), id(a))] {
            if cut {
                self.cut.insert(pair)
            } else {
                self.cut.remove(&pair)
            };
        }
    }

    /// Takes frames out of the network.
    pub(crate) fn catch(&mut self, kind: u8, from: u64, to: u64) -> Vec<Flight> {
        let wanted =
            |flight: &Flight| flight.kind() == kind && flight.from == id(from) && flight.to == id(to);
        let (caught, rest) = std::mem::take(&mut self.net).into_iter().partition(wanted);
        self.net = rest;
        caught
    }
}

impl DiskImage {
    /// Drops entries that the checkpoint contains.
    fn compact(&mut self) {
        let start = self.clone().recover();
        let at = self.checkpoint.at;
        if at.index <= start.base.index {
            return;
        }
        self.base = at;
        self.hard = start.hard;
        let record = |entry: LogEntry| Persist::Entry {
            index: entry.index,
            term: entry.term,
            kind: entry.kind,
            data: entry.data,
        };
        let kept = start.entries.into_iter().filter(|entry| entry.index > at.index);
        self.records = kept.map(record).collect();
        if start.members_at > self.members_at {
            self.records.push(Persist::Members {
                index: start.members_at,
                members: start.members,
            });
        }
    }

    /// Replays the records, as the write-ahead log's recovery does.
    fn recover(&mut self) -> Start {
        let mut start = Start {
            hard: self.hard,
            base: self.base,
            members: self.members.clone(),
            members_at: self.members_at,
            entries: Vec::new(),
            applied: self.checkpoint.at.index,
        };
        for record in &self.records {
            match record.clone() {
                Persist::Entry {
                    index,
                    term,
                    kind,
                    data,
                } => {
                    start.entries.retain(|entry| entry.index < index);
                    if index > start.base.index {
                        start.entries.push(LogEntry {
                            index,
                            term,
                            kind,
                            data,
                        });
                    }
                }
                Persist::HardState(hard) => start.hard = hard,
                Persist::Members { index, members } if index > start.members_at => {
                    (start.members, start.members_at) = (members, index);
                }
                Persist::Members { .. } => {}
                Persist::SnapshotInstalled {
                    position, members, ..
                } => {
                    start.base = position;
                    start.entries.clear();
                    if start.members_at <= position.index {
                        (start.members, start.members_at) = (members, position.index);
                    }
                }
            }
        }
        if let Some((install, machine)) = self.staged.take() {
            // The record is the commit point of a snapshot: without it the staged files are dropped.
            if install.position == start.base {
                self.checkpoint = machine;
            }
        }
        start.applied = start.applied.max(self.checkpoint.at.index);
        start
    }
}

//! The store against a naive model: a sorted map of messages. Files, caches, crashes and checkpoints must not show.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests panic like the tests they serve"
)]

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{StreamSeq, Wall};
use tidelock_record::{Disk, FilePath, IoDone, MemDisk, RecordRef, encode_into};
use tidelock_store::{
    CheckpointKind, Filters, Lookup, Need, OnLoss, Purge, PurgeStep, RemoveError, Store, StoreConfig,
    StoreEvent, StoreKind, Unanswered,
};

const SUBJECTS: [&str; 7] = ["a", "a.b", "a.c", "b.a.x", "b.a.y", "b.b.x", "c.1"];
const FILTERS: [&[&str]; 9] = [
    &[],
    &["a"],
    &["a.*"],
    &["b.*.x"],
    &["b.>"],
    &["c.1", "a.b"],
    &["*.*", "a.>", "a"],
    &["z"],
    &["b.a.*", "b.*.x"],
];

#[derive(Clone, Debug, PartialEq)]
struct Message {
    subject: &'static str,
    ts: i64,
    record: Bytes,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    messages: BTreeMap<u64, Message>,
    last_seq: u64,
    last_ts: i64,
}

#[derive(Clone, Debug)]
enum Change {
    Append {
        gap: u64,
        subject: usize,
        len: usize,
        headers: bool,
    },
    Skip(u64),
    /// A place in `0..=last_seq`.
    Remove(prop::sample::Index),
    RemoveSeq(u64),
    RemoveOldestOf(usize),
    Purge {
        filter: usize,
        below: Option<u64>,
        keep: u64,
        budget: u32,
    },
}

#[derive(Clone, Debug)]
enum Op {
    Change(Change),
    Burst(usize, usize),
    Trim(usize),
    Io,
    Flush,
    /// Makes a checkpoint; it becomes durable later.
    Checkpoint(CheckpointKind),
    Durable,
    Crash(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let subject = 0..SUBJECTS.len();
    prop_oneof![
        8 => (0_u64..3, subject.clone(), 0_usize..600, any::<bool>())
            .prop_map(|(gap, subject, len, headers)| Change::Append { gap, subject, len, headers }),
        1 => (0_u64..4).prop_map(Change::Skip),
        4 => any::<prop::sample::Index>().prop_map(Change::Remove),
        3 => subject.prop_map(Change::RemoveOldestOf),
        1 => (0..FILTERS.len(), prop::option::of(0_u64..120), 0_u64..20, 1_u32..9)
            .prop_map(|(filter, below, keep, budget)| Change::Purge { filter, below, keep, budget }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => change().prop_map(Op::Change),
        3 => (1_usize..40, 0_usize..SUBJECTS.len()).prop_map(|(count, subject)| Op::Burst(count, subject)),
        1 => (1_usize..40).prop_map(Op::Trim),
        4 => Just(Op::Io),
        1 => Just(Op::Flush),
        1 => Just(Op::Checkpoint(CheckpointKind::Full)),
        2 => Just(Op::Checkpoint(CheckpointKind::Delta)),
        2 => Just(Op::Durable),
        1 => any::<u64>().prop_map(Op::Crash),
    ]
}

fn record(subject: &str, len: usize, headers: bool, fill: u64) -> Bytes {
    let mut out = BytesMut::new();
    let header: &[u8] = if headers { b"NATS/1.0\r\nA: b\r\n\r\n" } else { b"" };
    let payload = vec![fill.to_le_bytes()[0]; len];
    encode_into(&mut out, subject.as_bytes(), header, &payload).unwrap();
    out.freeze()
}

fn filters(number: usize) -> Filters {
    Filters::new(FILTERS[number].iter().map(|filter| filter.parse().unwrap()))
}

fn wanted(number: usize, subject: &str) -> bool {
    let list = FILTERS[number];
    list.is_empty()
        || list
            .iter()
            .any(|filter| tidelock_subject::matches(filter.as_bytes(), subject.as_bytes()))
}

fn config(kind: StoreKind) -> StoreConfig {
    StoreConfig {
        block_bytes: 6_000,
        tail_bytes: 2_000,
        index_cache_bytes: 2_000,
        data_cache_bytes: 1_000,
        ..StoreConfig::new(kind, FilePath::new("streams/s/blocks").unwrap())
    }
}

struct Rig {
    disk: MemDisk,
    store: Store,
    model: Model,
    /// The durable checkpoints, and the state at the last one with the changes since: what a log would hold.
    saved: Vec<Vec<u8>>,
    saved_model: Model,
    log: Vec<Change>,
    pending: Option<Pending>,
}

/// A checkpoint that is not durable yet, the state it holds, and how much of the log it makes superfluous.
struct Pending {
    kind: CheckpointKind,
    number: u64,
    bytes: Vec<u8>,
    model: Model,
    logged: usize,
}

impl Rig {
    fn new(kind: StoreKind) -> Self {
        Self {
            disk: MemDisk::new(),
            store: Store::new(config(kind)),
            model: Model::default(),
            saved: Vec::new(),
            saved_model: Model::default(),
            log: Vec::new(),
            pending: None,
        }
    }

    /// Runs operations until there are none; whether anything was damaged or failed.
    fn settle(&mut self) -> Vec<StoreEvent> {
        let mut events = Vec::new();
        loop {
            let requests = self.store.take_io();
            if requests.is_empty() && !self.store.has_work() {
                return events;
            }
            for request in requests {
                let result = self.disk.run(&request.op);
                events.push(self.store.io_done(&IoDone {
                    token: request.token,
                    result,
                }));
            }
        }
    }

    fn read(&mut self, need: Need) {
        if self.store.fetch(need) {
            let events = self.settle();
            assert!(
                events
                    .iter()
                    .any(|event| matches!(event, StoreEvent::Arrived { from, upto }
                    if (*from..=*upto).contains(&need.seq))),
                "{need:?}: {events:?}"
            );
        }
    }

    fn answer<T>(&mut self, mut ask: impl FnMut(&mut Store) -> Result<T, Unanswered>) -> T {
        for _ in 0..1000 {
            match ask(&mut self.store) {
                Ok(answer) => return answer,
                Err(Unanswered::Need(need)) => self.read(need),
                Err(Unanswered::Damaged(seq)) => panic!("{seq} is damaged"),
            }
        }
        panic!("no answer after many reads");
    }

    fn change<T>(&mut self, mut ask: impl FnMut(&mut Store) -> Result<T, RemoveError>) -> Option<T> {
        let mut missing = false;
        let answer = self.answer(|store| match ask(store) {
            Ok(answer) => Ok(Some(answer)),
            Err(RemoveError::Missing) => {
                missing = true;
                Ok(None)
            }
            Err(RemoveError::Need(need)) => Err(Unanswered::Need(need)),
            Err(RemoveError::Damaged(seq)) => Err(Unanswered::Damaged(seq)),
        });
        assert_eq!(missing, answer.is_none());
        answer
    }

    fn get(&mut self, seq: u64) -> Option<(i64, Bytes)> {
        for _ in 0..100 {
            match self.store.get(StreamSeq(seq)) {
                Lookup::Found(found) => {
                    assert_eq!(found.seq, StreamSeq(seq));
                    return Some((found.ts.0, found.record));
                }
                Lookup::Missing => return None,
                Lookup::Cold(need) => self.read(need),
                Lookup::Damaged => panic!("{seq} is damaged"),
            }
        }
        panic!("no message after many reads");
    }

    /// A change of the store alone; the model has to be changed likewise.
    fn apply(&mut self, change: &Change, model: &mut Model) {
        let kind = self.store.config().kind;
        match change {
            Change::Append {
                gap,
                subject,
                len,
                headers,
            } => {
                let seq = model.last_seq + 1 + gap;
                // Times may stand still.
                let ts = model.last_ts + i64::try_from(*len).unwrap() % 3;
                let subject = SUBJECTS[*subject];
                let record = record(subject, *len, *headers, seq);
                let bytes = kind.message_bytes(&RecordRef::parse(&record).unwrap().0);
                assert_eq!(
                    self.store.append(StreamSeq(seq), Wall(ts), record.clone()),
                    Ok(bytes)
                );
                model.messages.insert(seq, Message { subject, ts, record });
                (model.last_seq, model.last_ts) = (seq, ts);
            }
            Change::Skip(n) => {
                let (seq, ts) = (model.last_seq + n, model.last_ts + 1);
                self.store.skip(StreamSeq(seq), Wall(ts));
                if *n > 0 {
                    (model.last_seq, model.last_ts) = (seq, ts);
                }
            }
            Change::Remove(place) => {
                let seq = place.index(usize::try_from(model.last_seq).unwrap() + 1) as u64;
                self.remove(model, seq);
            }
            Change::RemoveSeq(seq) => self.remove(model, *seq),
            Change::RemoveOldestOf(subject) => {
                let subject = SUBJECTS[*subject];
                let trimmed = self.change(|store| store.remove_oldest_of(subject.as_bytes()));
                let oldest = model
                    .messages
                    .iter()
                    .find(|(_, m)| m.subject == subject)
                    .map(|(seq, _)| *seq);
                assert_eq!(trimmed.map(|trimmed| trimmed.seq.value()), oldest);
                model.messages.retain(|seq, _| Some(*seq) != oldest);
            }
            Change::Purge {
                filter,
                below,
                keep,
                budget,
            } => {
                let below = below.map(|back| model.last_seq.saturating_sub(back));
                self.purge(model, *filter, below, *keep, *budget);
            }
        }
    }

    fn remove(&mut self, model: &mut Model, seq: u64) {
        let kind = self.store.config().kind;
        let removed = self.change(|store| store.remove(StreamSeq(seq)));
        let gone = model.messages.remove(&seq);
        assert_eq!(removed.is_some(), gone.is_some(), "{seq}");
        if let (Some(removed), Some(gone)) = (removed, gone) {
            let left = model
                .messages
                .values()
                .filter(|m| m.subject == gone.subject)
                .count() as u64;
            let bytes = kind.message_bytes(&RecordRef::parse(&gone.record).unwrap().0);
            assert_eq!((removed.seq, removed.bytes), (StreamSeq(seq), bytes));
            assert_eq!(
                (&*removed.subject, removed.subject_left),
                (gone.subject.as_bytes(), left)
            );
        }
    }

    fn purge(&mut self, model: &mut Model, filter: usize, below: Option<u64>, keep: u64, budget: u32) {
        let mut purge = Purge::new(filters(filter), below.map(StreamSeq), keep);
        while self.change(|store| store.purge(&mut purge, budget)) == Some(PurgeStep::More) {}
        let all = model
            .messages
            .iter()
            .filter(|(_, m)| wanted(filter, m.subject))
            .map(|(seq, _)| *seq);
        let all: Vec<u64> = all.collect();
        let old = &all[..all.len().saturating_sub(usize::try_from(keep).unwrap())];
        let doomed = old
            .iter()
            .copied()
            .filter(|seq| below.is_none_or(|below| *seq < below));
        let doomed: BTreeSet<u64> = doomed.collect();
        model.messages.retain(|seq, _| !doomed.contains(seq));
        assert_eq!(purge.purged(), doomed.len() as u64, "{filter} {below:?} {keep}");
    }

    fn logged(&mut self, change: Change) {
        let mut model = std::mem::take(&mut self.model);
        self.apply(&change, &mut model);
        self.model = model;
        self.log.push(change);
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Change(change) => self.logged(change),
            Op::Burst(count, subject) => {
                for n in 0..count {
                    self.logged(Change::Append {
                        gap: 0,
                        subject,
                        len: 100 + n,
                        headers: n % 5 == 0,
                    });
                }
            }
            Op::Trim(count) => {
                for _ in 0..count {
                    if let Some((seq, _)) = self.store.oldest() {
                        self.logged(Change::RemoveSeq(seq.value()));
                    }
                }
            }
            Op::Io => {
                for request in self.store.take_io() {
                    let result = self.disk.run(&request.op);
                    self.store.io_done(&IoDone {
                        token: request.token,
                        result,
                    });
                }
            }
            Op::Flush => {
                self.store.flush();
                self.settle();
                assert!(self.store.is_flushed());
            }
            Op::Checkpoint(kind) => self.checkpoint(kind),
            Op::Durable => self.durable(),
            Op::Crash(seed) => self.crash(seed),
        }
    }

    fn checkpoint(&mut self, kind: CheckpointKind) {
        // A delta needs the one before it.
        self.durable();
        let kind = if self.saved.is_empty() {
            CheckpointKind::Full
        } else {
            kind
        };
        let mut bytes = Vec::new();
        let number = self.store.encode_checkpoint(kind, &mut bytes);
        self.pending = Some(Pending {
            kind,
            number,
            bytes,
            model: self.model.clone(),
            logged: self.log.len(),
        });
    }

    fn durable(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        if pending.kind == CheckpointKind::Full {
            self.saved.clear();
        }
        self.saved.push(pending.bytes);
        self.store.checkpoint_durable(pending.number);
        self.saved_model = pending.model;
        self.log.drain(..pending.logged);
    }

    /// Loses what was not durable, restores, and replays the log.
    fn crash(&mut self, seed: u64) {
        self.pending = None;
        if self.saved.is_empty() {
            return;
        }
        self.disk.crash(seed);
        let saved: Vec<&[u8]> = self.saved.iter().map(Vec::as_slice).collect();
        let config = self.store.config().clone();
        self.store = Store::restore(config, &saved, &self.disk, OnLoss::Refuse).unwrap();
        if seed.is_multiple_of(2) {
            self.store.remove_orphans();
        }
        let mut model = self.saved_model.clone();
        for change in std::mem::take(&mut self.log) {
            self.apply(&change, &mut model);
            self.log.push(change);
        }
        assert_eq!(model, self.model);
    }

    fn check(&mut self) {
        let model = self.model.clone();
        self.check_totals(&model);
        for seq in 0..=model.last_seq + 1 {
            let expected = model.messages.get(&seq).map(|m| (m.ts, m.record.clone()));
            assert_eq!(self.get(seq), expected, "get {seq}");
            let outline = self.answer(|store| store.outline(StreamSeq(seq)));
            let outline = outline.map(|outline| (outline.ts.0, outline.subject, outline.content_bytes + 16));
            let expected = model
                .messages
                .get(&seq)
                .map(|m| (m.ts, Bytes::from(m.subject), m.record.len() as u64));
            assert_eq!(outline, expected, "outline {seq}");
        }
        (0..FILTERS.len()).for_each(|number| self.check_filter(&model, number));
        for ts in 0..=model.last_ts + 1 {
            let found = model
                .messages
                .iter()
                .find(|(_, m)| m.ts >= ts)
                .map_or(model.last_seq + 1, |(seq, _)| *seq);
            assert_eq!(
                self.answer(|store| store.seq_at_or_after(Wall(ts))),
                StreamSeq(found),
                "time {ts}"
            );
        }
    }

    fn check_filter(&mut self, model: &Model, number: usize) {
        let set = filters(number);
        let matching: Vec<u64> = model
            .messages
            .keys()
            .copied()
            .filter(|s| wanted(number, model.messages[s].subject))
            .collect();
        let newest = matching.last().copied().map(StreamSeq);
        assert_eq!(self.store.last_matching(&set), newest, "{:?}", FILTERS[number]);
        for from in (0..=model.last_seq + 1).step_by(3) {
            let place = matching.partition_point(|seq| *seq < from);
            let next = self.answer(|store| store.next_matching(StreamSeq(from), &set));
            assert_eq!(
                next.map(StreamSeq::value),
                matching.get(place).copied(),
                "{from} {:?}",
                FILTERS[number]
            );
            let count = self.store.count_matching(StreamSeq(from), &set);
            assert_eq!(
                count,
                (matching.len() - place) as u64,
                "{from} {:?}",
                FILTERS[number]
            );
        }
        let (from, upto) = (StreamSeq(model.last_seq / 4), StreamSeq(model.last_seq / 2));
        let mut newest = BTreeMap::new();
        for seq in matching.iter().filter(|seq| **seq <= upto.value()) {
            newest.insert(model.messages[seq].subject, *seq);
        }
        let mut newest: Vec<StreamSeq> = newest
            .into_values()
            .map(StreamSeq)
            .filter(|seq| *seq >= from)
            .collect();
        newest.sort_unstable();
        assert_eq!(
            self.store.multi_last(&set, from, upto, newest.len()),
            Ok(newest.clone())
        );
        if !newest.is_empty() {
            assert!(self.store.multi_last(&set, from, upto, newest.len() - 1).is_err());
        }
    }

    fn check_totals(&mut self, model: &Model) {
        let kind = self.store.config().kind;
        let state = self.store.state();
        let first = model.messages.first_key_value().map(|(seq, m)| (*seq, m.ts));
        let none = (
            if model.last_seq == 0 {
                0
            } else {
                model.last_seq + 1
            },
            0,
        );
        let mut gone: Vec<u64> = Vec::new();
        if let Some((first, _)) = first {
            gone.extend((first..=model.last_seq).filter(|seq| !model.messages.contains_key(seq)));
        }
        let sizes = model
            .messages
            .values()
            .map(|m| kind.message_bytes(&RecordRef::parse(&m.record).unwrap().0));
        assert_eq!(
            (state.msgs, state.bytes),
            (model.messages.len() as u64, sizes.sum())
        );
        assert_eq!((state.first_seq.value(), state.first_ts.0), first.unwrap_or(none));
        assert_eq!(
            (state.last_seq.value(), state.last_ts.0),
            (model.last_seq, model.last_ts)
        );
        assert_eq!(state.num_deleted, gone.len() as u64);
        let ranges = self
            .store
            .deleted()
            .flat_map(|(from, upto)| from.value()..=upto.value());
        assert_eq!(ranges.collect::<Vec<_>>(), gone);

        let mut subjects: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for (seq, message) in &model.messages {
            let entry = subjects.entry(message.subject).or_insert((0, *seq, *seq));
            (entry.0, entry.2) = (entry.0 + 1, *seq);
        }
        assert_eq!(state.num_subjects, subjects.len() as u64);
        let mut walk = self.store.subjects(None);
        for (subject, expected) in &subjects {
            let (name, state) = walk.next().unwrap();
            assert_eq!(name, subject.as_bytes());
            assert_eq!((state.count, state.first.value(), state.last.value()), *expected);
            assert_eq!(self.store.subject_state(subject.as_bytes()), Some(state));
            assert_eq!(self.store.last_of(subject.as_bytes()), Some(state.last));
        }
        assert!(walk.next().is_none());

        // The digest tells nothing of the way here: a memory store filled in one go has the same.
        let mut fresh = Store::new(config(StoreKind::Memory));
        for (seq, message) in &model.messages {
            fresh
                .append(StreamSeq(*seq), Wall(message.ts), message.record.clone())
                .unwrap();
        }
        fresh.skip(StreamSeq(model.last_seq), Wall(model.last_ts));
        assert_eq!(self.store.digest(), fresh.digest());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_file_store_is_a_sorted_map(ops in prop::collection::vec(op(), 1..120)) {
        let mut rig = Rig::new(StoreKind::File);
        for op in ops {
            rig.run(op);
        }
        rig.check();
        rig.settle();
        rig.check();
        rig.checkpoint(CheckpointKind::Delta);
        rig.durable();
        rig.crash(1);
        rig.check();
    }

    #[test]
    fn a_memory_store_is_a_sorted_map(ops in prop::collection::vec(op(), 1..120)) {
        let mut rig = Rig::new(StoreKind::Memory);
        for op in ops {
            rig.run(op);
        }
        rig.check();
        prop_assert!(rig.disk.files().is_empty());
    }
}

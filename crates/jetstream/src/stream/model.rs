//! Property tests: a stream against a naive one, and against itself in other steps.

use super::tests::{
    Bed, KEY, SECOND, consumer_config, header_block, open_config, outcome_text, stream_config,
};
use super::*;
use crate::command::{EntryBuilder, SetAction, WindowKey};
use crate::consumer::AckKind;
use crate::window::{PubOutcome, Refusal};
use proptest::prelude::*;
use std::collections::BTreeSet;
use tidelock_api as api;

const SUBJECTS: [&str; 4] = ["s.a", "s.b", "s.c", "t"];

/// What a test does next; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Publish(Publish),
    /// The last run once more.
    Resend,
    Wait(i64),
    Purge {
        subject: Option<usize>,
        upto: Option<u64>,
        keep: Option<u64>,
    },
    Delete(u64),
    Deliver {
        consumer: usize,
        count: usize,
    },
    Ack {
        consumer: usize,
        seq: u64,
        kind: u8,
    },
    DropConsumer(usize),
    AddConsumer {
        consumer: usize,
        filter: usize,
    },
    Checkpoint,
}

#[derive(Clone, Debug)]
struct Publish {
    subject: usize,
    id: Option<u8>,
    /// Expected last sequence of the stream: right (0) or wrong.
    expected: Option<u8>,
    /// The same for the subject.
    expected_subject: Option<u8>,
    rollup: Option<bool>,
    payload: usize,
}

fn publish() -> impl Strategy<Value = Publish> {
    let rarely = |p: f64| prop::option::weighted(p, 0u8..3);
    (
        0..4usize,
        rarely(0.2),
        rarely(0.1),
        rarely(0.2),
        prop::option::weighted(0.1, any::<bool>()),
        0..40usize,
    )
        .prop_map(
            |(subject, id, expected, expected_subject, rollup, payload)| Publish {
                subject,
                id,
                expected,
                expected_subject,
                rollup,
                payload,
            },
        )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => publish().prop_map(Op::Publish),
        1 => Just(Op::Resend),
        2 => (1..SECOND).prop_map(Op::Wait),
        1 => (prop::option::of(0..4usize), prop::option::of(1..60u64), prop::option::of(1..5u64))
            .prop_map(|(subject, upto, keep)| Op::Purge { subject, keep: keep.filter(|_| upto.is_none()), upto }),
        1 => (1..60u64).prop_map(Op::Delete),
        4 => (0..3usize, 1..6usize).prop_map(|(consumer, count)| Op::Deliver { consumer, count }),
        4 => (0..3usize, 0..60u64, 0..3u8).prop_map(|(consumer, seq, kind)| Op::Ack { consumer, seq, kind }),
        1 => (0..3usize).prop_map(Op::DropConsumer),
        1 => (0..3usize, 0..4usize).prop_map(|(consumer, filter)| Op::AddConsumer { consumer, filter }),
        1 => Just(Op::Checkpoint),
    ]
}

fn config() -> impl Strategy<Value = api::StreamConfig> {
    let limit = |max: i64| prop_oneof![Just(-1), 1..max];
    (
        limit(20),
        limit(1_500),
        limit(4),
        any::<bool>(),
        any::<bool>(),
        0..3i64,
        0..3u8,
    )
        .prop_map(|(max_msgs, max_bytes, per_subject, new, per, age, retention)| {
            let discard = if new { api::Discard::New } else { api::Discard::Old };
            api::StreamConfig {
                max_msgs,
                max_bytes,
                max_msgs_per_subject: per_subject,
                discard,
                discard_new_per_subject: new && per && per_subject > 0,
                max_age: api::Nanos(age * SECOND),
                duplicate_window: api::Nanos(SECOND),
                allow_rollup_hdrs: true,
                retention: [
                    api::Retention::Limits,
                    api::Retention::Interest,
                    api::Retention::WorkQueue,
                ][usize::from(retention)],
                ..open_config()
            }
        })
}

/// A consumer of the naive stream.
#[derive(Clone, Debug, Default)]
struct NaiveConsumer {
    filter: Option<&'static str>,
    delivered: u64,
    pending: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct NaiveMessage {
    ts: i64,
    subject: &'static str,
    size: Size,
}

/// What a message counts in bytes, and what it frees when it makes room for another one under discard new.
#[derive(Clone, Copy, Debug)]
struct Size {
    counts: u64,
    frees: u64,
}

/// The stream as plain lists, every question answered by a scan.
#[derive(Clone, Debug)]
struct Naive {
    config: StreamConfig,
    messages: BTreeMap<u64, NaiveMessage>,
    last: u64,
    ids: Vec<(u8, u64, i64)>,
    consumers: BTreeMap<usize, NaiveConsumer>,
}

impl Naive {
    fn bytes(&self) -> u64 {
        self.messages.values().map(|message| message.size.counts).sum()
    }

    fn of_subject(&self, subject: &str) -> Vec<u64> {
        self.messages
            .iter()
            .filter(|(_, message)| message.subject == subject)
            .map(|(seq, _)| *seq)
            .collect()
    }

    fn wanted(&self, seq: u64, subject: &str) -> bool {
        self.consumers.values().any(|consumer| {
            consumer.filter.is_none_or(|filter| filter == subject)
                && (seq > consumer.delivered || consumer.pending.contains(&seq))
        })
    }

    fn remove(&mut self, seq: u64) {
        self.messages.remove(&seq);
        for consumer in self.consumers.values_mut() {
            consumer.pending.remove(&seq);
        }
    }

    fn remove_oldest_while(&mut self, over: impl Fn(&Self) -> Option<u64>) {
        while let Some(seq) = over(self) {
            self.remove(seq);
        }
    }

    fn expected(&self, kind: u8, last: u64) -> u64 {
        if kind == 0 { last } else { last + u64::from(kind) }
    }

    /// What becomes of a publish, if it is neither stored nor skipped.
    fn check(&self, message: &Publish, now: i64) -> Option<PubOutcome> {
        let wrong = |seq| Some(PubOutcome::Refused(Refusal::WrongLastSeq(StreamSeq(seq))));
        let own = self
            .of_subject(SUBJECTS[message.subject])
            .last()
            .copied()
            .unwrap_or(0);
        let mut seen = self.ids.iter().rev();
        if let Some(seen) = seen.find(|seen| Some(seen.0) == message.id && seen.2 + SECOND > now) {
            return Some(PubOutcome::Duplicate {
                seq: StreamSeq(seen.1),
            });
        }
        if message
            .expected_subject
            .is_some_and(|kind| self.expected(kind, own) != own)
        {
            return wrong(own);
        }
        if message
            .expected
            .is_some_and(|kind| self.expected(kind, self.last) != self.last)
        {
            return wrong(self.last);
        }
        None
    }

    fn discard_new(&self, message: &Publish, size: Size) -> Option<Refusal> {
        let config = &self.config;
        if config.discard != api::Discard::New {
            return None;
        }
        let own = self.of_subject(SUBJECTS[message.subject]);
        let full = config
            .max_msgs_per_subject
            .is_some_and(|max| own.len() as u64 >= max);
        if full && config.discard_new_per_subject && message.rollup.is_none() {
            return Some(Refusal::MaxMsgsPerSubject);
        }
        if !full
            && config
                .max_msgs
                .is_some_and(|max| self.messages.len() as u64 >= max)
        {
            return Some(Refusal::MaxMsgs);
        }
        let freed = if full {
            self.messages[&own[0]].size.frees
        } else {
            0
        };
        let total = self.bytes() + size.counts;
        let over = config
            .max_bytes
            .is_some_and(|max| total > max && total - freed > max);
        over.then_some(Refusal::MaxBytes)
    }

    fn publish(&mut self, message: &Publish, size: Size, now: i64) -> PubOutcome {
        if let Some(outcome) = self.check(message, now) {
            return outcome;
        }
        let subject = SUBJECTS[message.subject];
        let mut filters = self.consumers.values().map(|consumer| consumer.filter);
        let interest = self.config.retention == api::Retention::Interest;
        let skipped = interest && !filters.any(|filter| filter.is_none_or(|filter| filter == subject));
        if !skipped && let Some(refusal) = self.discard_new(message, size) {
            return PubOutcome::Refused(refusal);
        }
        self.last += 1;
        let seq = self.last;
        self.ids.extend(message.id.map(|id| (id, seq, now)));
        if skipped {
            return PubOutcome::Skipped { seq: StreamSeq(seq) };
        }
        let stored = NaiveMessage {
            ts: now,
            subject,
            size,
        };
        self.messages.insert(seq, stored);
        let older = match message.rollup {
            Some(true) => self.messages.keys().copied().collect(),
            Some(false) => self.of_subject(subject),
            None => Vec::new(),
        };
        for old in older.into_iter().filter(|old| *old < seq) {
            self.remove(old);
        }
        self.limit(subject);
        PubOutcome::Stored { seq: StreamSeq(seq) }
    }

    fn limit(&mut self, subject: &str) {
        let config = self.config.clone();
        self.remove_oldest_while(|it| {
            let own = it.of_subject(subject);
            own.first().copied().filter(|_| {
                config
                    .max_msgs_per_subject
                    .is_some_and(|max| own.len() as u64 > max)
            })
        });
        self.remove_oldest_while(|it| {
            let over = config.max_msgs.is_some_and(|max| it.messages.len() as u64 > max)
                || config.max_bytes.is_some_and(|max| it.bytes() > max);
            it.messages.keys().next().copied().filter(|_| over)
        });
    }

    fn freed(&mut self, seq: u64) {
        let Some(subject) = self.messages.get(&seq).map(|message| message.subject) else {
            return;
        };
        match self.config.retention {
            api::Retention::Limits => {}
            api::Retention::WorkQueue => self.remove(seq),
            api::Retention::Interest if !self.wanted(seq, subject) => self.remove(seq),
            api::Retention::Interest => {}
        }
    }
}

/// A stream beside its naive double and a twin that works in steps of one unit.
struct Trial {
    bed: Bed,
    twin: Bed,
    naive: Naive,
    number: u64,
    last_run: Option<(Publish, u64)>,
    ids: BTreeMap<usize, ConsumerId>,
}

fn size_of(publish: &Publish, header: &str) -> Size {
    let frees = (SUBJECTS[publish.subject].len() + header.len() + publish.payload) as u64 + 30;
    let counts = frees + if header.is_empty() { 0 } else { 4 };
    Size { counts, frees }
}

impl Trial {
    fn new(form: &api::StreamConfig) -> Self {
        let bed = || Bed::new(|config| *config = form.clone());
        Self {
            bed: bed(),
            twin: bed(),
            naive: Naive {
                config: stream_config(form),
                messages: BTreeMap::new(),
                last: 0,
                ids: Vec::new(),
                consumers: BTreeMap::new(),
            },
            number: 0,
            last_run: None,
            ids: BTreeMap::new(),
        }
    }

    fn both(&mut self, build: impl FnOnce(&mut EntryBuilder)) -> String {
        let mut builder = EntryBuilder::new();
        build(&mut builder);
        let Some(entry) = builder.finish(Wall(self.bed.now)) else {
            return String::new();
        };
        let text = self.bed.apply(entry.clone(), 1_000);
        let small = self.twin.apply(entry, 1);
        assert_eq!(text, small, "the budget must not show");
        text
    }

    fn publish(&mut self, publish: &Publish) {
        let mut headers = Vec::new();
        if let Some(id) = publish.id {
            headers.push(("Nats-Msg-Id", id.to_string()));
        }
        let last = self.naive.last;
        if let Some(kind) = publish.expected {
            headers.push((
                "Nats-Expected-Last-Sequence",
                self.naive.expected(kind, last).to_string(),
            ));
        }
        if let Some(kind) = publish.expected_subject {
            let own = self
                .naive
                .of_subject(SUBJECTS[publish.subject])
                .last()
                .copied()
                .unwrap_or(0);
            let value = self.naive.expected(kind, own).to_string();
            headers.push(("Nats-Expected-Last-Subject-Sequence", value));
        }
        if let Some(all) = publish.rollup {
            headers.push(("Nats-Rollup", if all { "all" } else { "sub" }.to_owned()));
        }
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let header = header_block(&headers);
        let payload = vec![b'x'; publish.payload];
        self.number += 1;
        let (number, subject) = (self.number, SUBJECTS[publish.subject]);
        let text = self.both(|entry| {
            let parts = [subject.as_bytes(), header.as_bytes(), &payload];
            entry
                .publish_parts(KEY, number, number.saturating_sub(3), parts)
                .unwrap();
        });
        let outcome = self
            .naive
            .publish(publish, size_of(publish, &header), self.bed.now);
        let said = format!("#{number} {}", outcome_text(&outcome));
        assert_eq!(text.lines().next(), Some(said.as_str()), "{publish:?}");
        self.last_run = Some((publish.clone(), number));
    }

    fn deliver(&mut self, consumer: usize, count: usize) {
        let (Some(id), Some(naive)) = (self.ids.get(&consumer), self.naive.consumers.get_mut(&consumer))
        else {
            return;
        };
        let wanted = self.naive.messages.range(naive.delivered + 1..);
        let wanted =
            wanted.filter(|(_, message)| naive.filter.is_none_or(|filter| filter == message.subject));
        let seqs: Vec<u64> = wanted.map(|(seq, _)| *seq).take(count).collect();
        naive.delivered = seqs.last().copied().unwrap_or(naive.delivered);
        naive.pending.extend(&seqs);
        let id = *id;
        let found = self.bed.stream.consumer_by_id(id).unwrap();
        let mut next = found.state().delivered().stream_seq;
        for seq in &seqs {
            let picked = self.bed.stream.next_for(found, next.next());
            assert_eq!(picked, NextMessage::Seq(StreamSeq(*seq)));
            next = StreamSeq(*seq);
        }
        let epoch = found.state().epoch();
        self.both(|entry| {
            entry.deliver(id, epoch, seqs.iter().copied().map(StreamSeq));
        });
    }

    fn ack(&mut self, consumer: usize, seq: u64, kind: u8) {
        let Some(id) = self.ids.get(&consumer).copied() else {
            return;
        };
        let kind = [
            AckKind::Ack,
            AckKind::Term,
            AckKind::Nak {
                delay_ns: Some(9 * SECOND),
            },
        ][usize::from(kind)];
        self.both(|entry| {
            entry.acks(id, 0, kind, &[(StreamSeq(seq), StreamSeq(seq + 1))], b"");
        });
        for seq in [seq, seq + 1] {
            let pending = &mut self.naive.consumers.get_mut(&consumer).unwrap().pending;
            if !matches!(kind, AckKind::Nak { .. }) && pending.remove(&seq) {
                self.naive.freed(seq);
            }
        }
    }

    fn add_consumer(&mut self, consumer: usize, filter: usize) {
        // Filters of a work queue must not overlap, so there each consumer has its own subject.
        let work_queue = self.naive.config.retention == api::Retention::WorkQueue;
        let filter = if work_queue { consumer + 1 } else { filter };
        let filter = (filter > 0).then(|| SUBJECTS[filter]);
        if self.ids.contains_key(&consumer) {
            return;
        }
        let name = format!("c{consumer}");
        let config = consumer_config(|form| {
            form.name.clone_from(&name);
            form.filter_subject = filter.unwrap_or_default().to_owned();
        });
        self.both(|entry| {
            entry.consumer_set(SetAction::Create, 10, &name, &config.encode());
        });
        let first = self
            .naive
            .messages
            .keys()
            .next()
            .copied()
            .unwrap_or(self.naive.last + 1);
        let added = NaiveConsumer {
            filter,
            delivered: first - 1,
            ..NaiveConsumer::default()
        };
        self.naive.consumers.insert(consumer, added);
        self.ids
            .insert(consumer, self.bed.stream.consumer(&name).unwrap().id());
    }

    fn drop_consumer(&mut self, consumer: usize) {
        if self.ids.remove(&consumer).is_none() {
            return;
        }
        let name = format!("c{consumer}");
        self.both(|entry| {
            entry.consumer_delete(&name);
        });
        self.naive.consumers.remove(&consumer);
        if self.naive.config.retention == api::Retention::Interest {
            let messages = self.naive.messages.clone();
            for (seq, message) in messages {
                if !self.naive.wanted(seq, message.subject) {
                    self.naive.remove(seq);
                }
            }
        }
    }

    fn wait(&mut self, span: i64) {
        self.bed.now += span;
        let now = self.bed.now;
        let due = self.bed.stream.next_due();
        self.both(|entry| {
            entry.expire_through();
        });
        let Some(age) = self.naive.config.max_age else {
            return;
        };
        let gone: Vec<u64> = self
            .naive
            .messages
            .iter()
            .filter(|(_, message)| message.ts + ns(Some(age)) <= now)
            .map(|(seq, _)| *seq)
            .collect();
        assert!(
            gone.is_empty() || due.is_some(),
            "somebody must be told when to look"
        );
        for seq in gone {
            self.naive.remove(seq);
        }
    }

    fn purge(&mut self, subject: Option<usize>, upto: Option<u64>, keep: Option<u64>) {
        let filter = subject.map(|subject| SUBJECTS[subject]);
        let text = self.both(|entry| {
            entry.purge(filter.map(str::as_bytes), upto.map(StreamSeq), keep);
        });
        let matching: Vec<u64> = match filter {
            Some(subject) => self.naive.of_subject(subject),
            None => self.naive.messages.keys().copied().collect(),
        };
        let kept = usize::try_from(keep.unwrap_or(0)).unwrap();
        let most = matching.len().saturating_sub(kept);
        let gone: Vec<u64> = matching
            .into_iter()
            .take(most)
            .filter(|seq| upto.is_none_or(|upto| *seq < upto))
            .collect();
        assert_eq!(
            text.lines().last(),
            Some(format!("0: Purged({})", gone.len()).as_str())
        );
        for seq in gone {
            self.naive.remove(seq);
        }
        // A purge of the start moves consumers up, and one beyond the end the stream, too.
        if filter.is_none() {
            self.naive.last = self.naive.last.max(upto.map_or(0, |upto| upto - 1));
            let first = self
                .naive
                .messages
                .keys()
                .next()
                .copied()
                .unwrap_or(self.naive.last + 1);
            for consumer in self.naive.consumers.values_mut() {
                consumer.delivered = consumer.delivered.max(first - 1);
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Publish(publish) => self.publish(publish),
            Op::Resend => {
                let Some((publish, number)) = self.last_run.clone() else {
                    return;
                };
                let text = self.both(|entry| {
                    let parts = [SUBJECTS[publish.subject].as_bytes(), b"", b"again"];
                    entry.publish_parts(KEY, number, 0, parts).unwrap();
                });
                assert!(text.starts_with(&format!("#{number} ")), "{text}");
            }
            Op::Wait(ns) => self.wait(*ns),
            Op::Purge { subject, upto, keep } => self.purge(*subject, *upto, *keep),
            Op::Delete(seq) => {
                self.both(|entry| {
                    entry.msg_delete(StreamSeq(*seq));
                });
                self.naive.remove(*seq);
            }
            Op::Deliver { consumer, count } => self.deliver(*consumer, *count),
            Op::Ack { consumer, seq, kind } => self.ack(*consumer, *seq, *kind),
            Op::AddConsumer { consumer, filter } => self.add_consumer(*consumer, *filter),
            Op::DropConsumer(consumer) => self.drop_consumer(*consumer),
            // Only the twin starts anew.
            Op::Checkpoint => self.twin.stream = self.twin.restored(),
        }
    }

    fn check(&self) {
        let seqs: Vec<u64> = self.naive.messages.keys().copied().collect();
        assert_eq!(self.bed.seqs(), seqs);
        let state = self.bed.stream.state();
        assert_eq!(state.bytes, self.naive.bytes());
        assert_eq!(state.last_seq.0, self.naive.last);
        assert_eq!(self.bed.stream.digest(), self.twin.stream.digest());
        assert_eq!(self.bed.stream.next_due(), self.twin.stream.next_due());
        for (consumer, naive) in &self.naive.consumers {
            let found = self.bed.stream.consumer_by_id(self.ids[consumer]).unwrap();
            assert_eq!(
                found.state().num_ack_pending(),
                naive.pending.len(),
                "consumer {consumer}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, in whatever steps, with whatever restarts: the stream holds what the naive one holds.
    #[test]
    fn agrees_with_the_naive_stream_and_with_its_twin(form in config(), ops in prop::collection::vec(op(), 1..60)) {
        let mut trial = Trial::new(&form);
        for op in &ops {
            trial.step(op);
            trial.bed.settle();
            trial.check();
        }
    }

    /// Nothing that is read may panic: arbitrary bytes, and those of a real state with some of them changed.
    #[test]
    fn damaged_states_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..1_000usize, flips in prop::collection::vec(any::<u8>(), 1..4)) {
        crate::fuzz(&bytes);
        let mut bed = Bed::new(|config| config.duplicate_window = api::Nanos(SECOND));
        bed.run(|entry| {
            entry.consumer_set(SetAction::Create, 10, "c", &consumer_config(|_| ()).encode());
        });
        bed.publish(&[("s.a", &[("Nats-Msg-Id", "1")]), ("s.b", &[])]);
        let mut state = bed.stream.own_bytes();
        let at = at % state.len();
        for (byte, flip) in state[at..].iter_mut().zip(flips) {
            *byte ^= flip;
        }
        fuzz_restore(&state);
    }

    /// Arbitrary bytes as an entry never panic.
    #[test]
    fn arbitrary_entries_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 24..120), kind in 0u8..20, len in 0u8..100) {
        bytes[..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        bytes[16..24].copy_from_slice(&[kind, 0, 0, 0, len, 0, 0, 0]);
        let mut bed = Bed::new(|_| ());
        bed.publish(&[("s.a", &[])]);
        bed.stream.begin(LogIndex(9), Term(1), bytes.into()).unwrap();
        for _ in 0..200 {
            match bed.stream.step(100, &mut NoEffects) {
                Ok(Step::More) => {}
                Ok(Step::Done | Step::Need(_) | Step::Damaged(_)) | Err(_) => break,
            }
        }
    }
}

#[test]
fn other_windows_are_judged_apart() {
    let mut bed = Bed::new(|_| ());
    let other = WindowKey {
        worker: tidelock_base::WorkerId(1),
        ..KEY
    };
    let text = bed.run(|entry| {
        for key in [KEY, other, KEY] {
            entry.publish_parts(key, 1, 0, [b"s.a", b"", b""]).unwrap();
        }
        entry.window_close(other);
        entry.publish_parts(other, 1, 0, [b"s.a", b"", b""]).unwrap();
    });
    assert_eq!(
        text,
        "#1 stored 1\n#1 stored 2\n#1 stored 1\n3: Done\n#1 stored 3\n"
    );
}

//! Transcripts: what a stream does with one entry after the other.

mod ends;
mod numbering;
mod starts;

use super::*;
use crate::command::{EntryBuilder, SetAction, SourceBatchBuilder, WindowKey};
use crate::config::{ConsumerConfig, StreamConfig};
use crate::consumer::{AckKind, Delivered};
use crate::window::PubOutcome;
use std::fmt::Write as _;
use tidelock_api as api;
use tidelock_base::{BootId, DeliverSeq, WorkerId};
use tidelock_record::{Disk, FilePath, MemDisk};
use tidelock_store::{CheckpointKind, Lookup, OnLoss};

pub(super) const SECOND: i64 = 1_000_000_000;

pub(super) const KEY: WindowKey = WindowKey {
    boot: BootId(1),
    worker: WorkerId(0),
};

/// A configuration in wire form with nothing limited.
pub(super) fn open_config() -> api::StreamConfig {
    api::StreamConfig {
        name: "S".to_owned(),
        subjects: vec!["s.>".to_owned()],
        max_consumers: -1,
        max_msgs: -1,
        max_bytes: -1,
        max_msgs_per_subject: -1,
        max_msg_size: -1,
        num_replicas: 1,
        ..api::StreamConfig::default()
    }
}

pub(super) fn stream_config(form: &api::StreamConfig) -> StreamConfig {
    StreamConfig::decode(&api::to_json(form)).unwrap()
}

pub(super) fn store_config() -> StoreConfig {
    StoreConfig {
        block_bytes: 2_000,
        tail_bytes: 500,
        ..StoreConfig::new(StoreKind::File, FilePath::new("s").unwrap())
    }
}

pub(super) fn consumer_config(edit: impl FnOnce(&mut api::ConsumerConfig)) -> ConsumerConfig {
    let mut form = api::ConsumerConfig {
        durable_name: "c".to_owned(),
        name: "c".to_owned(),
        ack_policy: api::AckPolicy::Explicit,
        ack_wait: api::Nanos(30 * SECOND),
        max_deliver: -1,
        max_ack_pending: 1_000,
        max_waiting: 512,
        ..api::ConsumerConfig::default()
    };
    edit(&mut form);
    form.durable_name = form.name.clone();
    let mut bytes = vec![1];
    bytes.extend_from_slice(&api::to_json(&form));
    ConsumerConfig::decode(&bytes).unwrap()
}

/// Effects as lines of text.
#[derive(Default)]
pub(super) struct Lines(pub(super) String);

impl Lines {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{text}").unwrap();
    }
}

pub(super) fn outcome_text(outcome: &PubOutcome) -> String {
    match outcome {
        PubOutcome::Stored { seq } => format!("stored {seq}"),
        PubOutcome::Duplicate { seq } => format!("duplicate {seq}"),
        PubOutcome::Skipped { seq } => format!("skipped {seq}"),
        PubOutcome::Refused(refusal) => {
            let error = refusal.to_api_error();
            format!("{} {}", error.code.err_code(), error.description)
        }
    }
}

impl Effects for Lines {
    fn published(&mut self, _: WindowKey, number: u64, outcome: &PubOutcome) {
        self.line(format_args!("#{number} {}", outcome_text(outcome)));
    }
    fn removed(&mut self, seq: StreamSeq, why: Removal) {
        self.line(format_args!("removed {seq} {why:?}"));
    }
    fn removed_below(&mut self, first: StreamSeq, why: Removal) {
        self.line(format_args!("removed below {first} {why:?}"));
    }
    fn delivered(&mut self, consumer: ConsumerId, delivered: &Delivered) {
        let Delivered {
            stream_seq,
            deliver_seq,
            count,
        } = delivered;
        self.line(format_args!(
            "consumer {consumer} gets {stream_seq} as {deliver_seq}, time {count}"
        ));
    }
    fn acked(&mut self, ordinal: u32) {
        self.line(format_args!("{ordinal}: acked"));
    }
    fn replied(&mut self, ordinal: u32, outcome: &CommandOutcome) {
        match outcome {
            CommandOutcome::Refused(error) => {
                self.line(format_args!(
                    "{ordinal}: {} {}",
                    error.code.err_code(),
                    error.description
                ));
            }
            other => self.line(format_args!("{ordinal}: {other:?}")),
        }
    }
    fn advisory(&mut self, advisory: &Advisory<'_>) {
        self.line(format_args!("{advisory:?}"));
    }
    fn consumer_changed(&mut self, consumer: ConsumerId, change: ConsumerChange) {
        self.line(format_args!("consumer {consumer} {change:?}"));
    }
    fn consumer_gone(&mut self, _: ConsumerId, name: &str, why: Gone) {
        self.line(format_args!("consumer {name} gone: {why:?}"));
    }
}

/// A stream on a disk, fed one entry at a time.
pub(super) struct Bed {
    pub(super) stream: Stream,
    pub(super) disk: MemDisk,
    pub(super) now: i64,
    number: u64,
    /// A full checkpoint and the deltas after it.
    checkpoints: Vec<Vec<u8>>,
}

impl Bed {
    pub(super) fn new(edit: impl FnOnce(&mut api::StreamConfig)) -> Self {
        let mut form = open_config();
        edit(&mut form);
        let mut store = store_config();
        if form.storage == api::Storage::Memory {
            store.kind = StoreKind::Memory;
        }
        store.first_seq = StreamSeq(form.first_seq.max(1));
        Self {
            stream: Stream::create(stream_config(&form), Wall(0), store),
            disk: MemDisk::new(),
            now: SECOND,
            number: 1,
            checkpoints: Vec::new(),
        }
    }

    /// Runs the stream's disk operations to their end.
    pub(super) fn settle(&mut self) {
        loop {
            let requests = self.stream.take_io();
            if requests.is_empty() {
                return;
            }
            for request in requests {
                let result = self.disk.run(&request.op);
                self.stream.io_done(&IoDone {
                    token: request.token,
                    result,
                });
            }
        }
    }

    /// Applies an entry in steps of `budget`.
    pub(super) fn apply(&mut self, entry: Bytes, budget: u32) -> String {
        let mut lines = Lines::default();
        self.stream
            .begin(self.stream.applied().next(), Term(1), entry)
            .unwrap();
        loop {
            match self.stream.step(budget, &mut lines).unwrap() {
                Step::Done => return lines.0,
                // The disk goes on while the entry is under way.
                Step::More => self.settle(),
                Step::Need(need) => {
                    self.stream.fetch(need);
                    self.settle();
                }
                Step::Damaged(seq) => panic!("message {seq} is damaged"),
            }
        }
    }

    pub(super) fn run(&mut self, build: impl FnOnce(&mut EntryBuilder)) -> String {
        let mut builder = EntryBuilder::new();
        build(&mut builder);
        self.apply(builder.finish(Wall(self.now)).unwrap(), 1_000)
    }

    /// Publishes in one entry, `(subject, headers)` each with payload `x`.
    pub(super) fn publish(&mut self, messages: &[(&str, &[(&str, &str)])]) -> String {
        let mut number = self.number;
        let text = self.run(|entry| {
            for (subject, headers) in messages {
                let header = header_block(headers);
                let parts = [subject.as_bytes(), header.as_bytes(), b"x"];
                entry.publish_parts(KEY, number, 0, parts).unwrap();
                number += 1;
            }
        });
        self.number = number;
        text
    }

    pub(super) fn seqs(&self) -> Vec<u64> {
        let mut seqs = Vec::new();
        let mut from = StreamSeq(0);
        let all = tidelock_store::Filters::all();
        while let Some(seq) = self.stream.store().next_matching(from, &all).unwrap() {
            seqs.push(seq.0);
            from = seq.next();
        }
        seqs
    }

    /// What the checkpoints so far bring back together with one of now, which is a delta as long as there are few.
    pub(super) fn restored(&mut self) -> Stream {
        if self.checkpoints.len() > 4 {
            self.checkpoints.clear();
        }
        let kind = match self.checkpoints.as_slice() {
            [] => CheckpointKind::Full,
            _ => CheckpointKind::Delta,
        };
        let mut bytes = Vec::new();
        let number = self.stream.checkpoint(kind, &mut bytes);
        self.checkpoints.push(bytes);
        self.stream.checkpoint_durable(number);
        self.settle();
        let chain: Vec<&[u8]> = self.checkpoints.iter().map(|bytes| &bytes[..]).collect();
        Stream::restore(store_config(), &chain, &self.disk, OnLoss::Refuse).unwrap()
    }
}

pub(super) fn header_block(headers: &[(&str, &str)]) -> String {
    let mut block = String::new();
    if !headers.is_empty() {
        block.push_str("NATS/1.0\r\n");
        for (name, value) in headers {
            write!(block, "{name}: {value}\r\n").unwrap();
        }
        block.push_str("\r\n");
    }
    block
}

#[test]
fn checks_of_a_publish_in_their_order() {
    let mut bed = Bed::new(|config| {
        config.duplicate_window = api::Nanos(10 * SECOND);
        config.max_msg_size = 200;
    });
    let text = bed.publish(&[
        ("s.a", &[("Nats-Msg-Id", "one")]),
        ("s.b", &[]),
        ("s.a", &[("Nats-Msg-Id", "one")]),
        (
            "s.a",
            &[("Nats-Msg-Id", "one"), ("Nats-Expected-Last-Sequence", "1")],
        ),
        ("s.a", &[("Nats-Expected-Last-Subject-Sequence", "0")]),
        ("s.a", &[("Nats-Expected-Last-Subject-Sequence", "x")]),
        (
            "s.c",
            &[
                ("Nats-Expected-Last-Subject-Sequence", "2"),
                ("Nats-Expected-Last-Subject-Sequence-Subject", "s.*"),
            ],
        ),
        ("s.c", &[("Nats-Expected-Last-Subject-Sequence-Subject", "s.*")]),
        ("s.c", &[("Nats-Expected-Stream", "T")]),
        ("s.c", &[("Nats-Expected-Last-Msg-Id", "one")]),
        ("s.c", &[("Nats-Rollup", "sub")]),
        ("s.c", &[("Nats-TTL", "1s")]),
        ("s.c", &[("Nats-TTL", "0")]),
        ("s.c", &[("Nats-Incr", "1")]),
        ("s.c", &[("Nats-Batch-Id", "1")]),
        ("s.c", &[("Nats-Schedule", "@at x")]),
        ("s.c", &[("Nats-Stream-Source", "x")]),
        ("s.c", &[("A", &"a".repeat(200))]),
    ]);
    assert_eq!(
        text,
        "#1 stored 1\n#2 stored 2\n#3 duplicate 1\n#4 duplicate 1\n\
         #5 10071 wrong last sequence: 1\n#6 10071 wrong last sequence: 1\n#7 stored 3\n\
         #8 10193 missing sequence for expected last sequence per subject\n#9 10060 expected stream does not match\n\
         #10 10070 wrong last msg ID: \n#11 10111 rollup not permitted\n#12 10166 per-message TTL is disabled\n\
         #13 10165 invalid per-message TTL\n#14 10168 message counters is disabled\n\
         #15 10174 atomic publish is disabled\n#16 10188 message schedules is disabled\n\
         #17 10227 message stream source header is not allowed\n#18 10054 message size exceeds maximum allowed\n"
    );
    // A publish that is logged again gets the result that it had.
    let mut again = EntryBuilder::new();
    again.publish_parts(KEY, 7, 5, [b"s.c", b"", b"x"]).unwrap();
    again.publish_parts(KEY, 4, 5, [b"s.c", b"", b"x"]).unwrap();
    let text = bed.apply(again.finish(Wall(bed.now)).unwrap(), 1);
    assert_eq!(text, "#7 stored 3\n");
    // After the window the id is new.
    bed.now += 10 * SECOND;
    assert_eq!(
        bed.publish(&[("s.a", &[("Nats-Msg-Id", "one")])]),
        "#19 stored 4\n"
    );
}

/// As nats-server 2.15.1 answers where the features are off.
#[test]
fn headers_of_features_that_are_off() {
    let mut bed = Bed::new(|_| ());
    let text = bed.publish(&[
        ("s.a", &[("Nats-Incr", "x")]),
        ("s.a", &[("Nats-Incr", "-1")]),
        ("s.a", &[("Nats-Schedule-Next", "purge")]),
        ("s.a", &[("Nats-Scheduler", "s.y")]),
        (
            "s.a",
            &[("Nats-Schedule-Next", "purge"), ("Nats-Scheduler", "s.y")],
        ),
        ("s.a", &[("Nats-Schedule-Next", "x"), ("Nats-Scheduler", "s.y")]),
        ("s.a", &[("Nats-Batch-Sequence", "1")]),
        ("s.a", &[("Nats-Rollup", "")]),
        (
            "s.a",
            &[
                ("Nats-Expected-Last-Subject-Sequence", "0"),
                ("Nats-Expected-Last-Subject-Sequence-Subject", "a..b"),
            ],
        ),
    ]);
    assert_eq!(
        text,
        "#1 10171 message counter increment is invalid\n#2 10168 message counters is disabled\n\
         #3 10212 message schedules invalid scheduler\n#4 10212 message schedules invalid scheduler\n\
         #5 10188 message schedules is disabled\n#6 10212 message schedules invalid scheduler\n\
         #7 stored 1\n#8 stored 2\n#9 stored 3\n"
    );
}

#[test]
fn discard_old_makes_room_from_the_narrowest_limit_to_the_widest() {
    let mut bed = Bed::new(|config| {
        config.max_msgs = 3;
        config.max_msgs_per_subject = 2;
        config.allow_rollup_hdrs = true;
    });
    let text = bed.publish(&[
        ("s.a", &[]),
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.a", &[]),
        ("s.c", &[]),
    ]);
    assert_eq!(
        text,
        "#1 stored 1\n#2 stored 2\n#3 stored 3\n#4 stored 4\nremoved 1 Limit\n#5 stored 5\nremoved 2 Limit\n"
    );
    let text = bed.publish(&[
        ("s.a", &[("Nats-Rollup", "SUB")]),
        ("s.d", &[("Nats-Rollup", "all")]),
    ]);
    assert_eq!(
        text,
        "#6 stored 6\nremoved 4 Rollup\n#7 stored 7\nremoved below 7 Rollup\n"
    );
    let text = bed.publish(&[("s.a", &[("Nats-Rollup", "x")])]);
    assert_eq!(text, "#8 10111 rollup value invalid: \"x\"\n");
    assert_eq!(bed.seqs(), [7]);
}

#[test]
fn discard_new_refuses_unless_the_subject_makes_room() {
    let mut bed = Bed::new(|config| {
        config.max_msgs = 2;
        config.max_msgs_per_subject = 1;
        config.discard = api::Discard::New;
        config.max_bytes = 80;
    });
    // Each message counts 3 + 1 + 30 bytes.
    let text = bed.publish(&[
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.c", &[]),
        ("s.a", &[]),
        ("s.a", &[("X", "y")]),
    ]);
    assert_eq!(
        text,
        "#1 stored 1\n#2 stored 2\n#3 10077 maximum messages exceeded\n#4 stored 3\nremoved 1 Limit\n\
         #5 10077 maximum bytes exceeded\n"
    );
    let mut bed = Bed::new(|config| {
        config.max_msgs_per_subject = 1;
        config.discard = api::Discard::New;
        config.discard_new_per_subject = true;
        config.allow_rollup_hdrs = true;
    });
    let text = bed.publish(&[("s.a", &[]), ("s.a", &[]), ("s.a", &[("Nats-Rollup", "sub")])]);
    assert_eq!(
        text,
        "#1 stored 1\n#2 10077 maximum messages per subject exceeded\n#3 stored 2\nremoved 1 Rollup\n"
    );
}

/// What is said of sequences without a message: 0, before the first, between, after the last.
fn missing_by_storage() {
    for (storage, expected) in [
        (
            api::Storage::File,
            "0: 10057 no message found\n1: 10057 no message found\n2: 10043 sequence 3 not found\n\
             3: 10057 stream store EOF\n",
        ),
        (
            api::Storage::Memory,
            "0: 10043 sequence 0 not found\n1: 10043 sequence 1 not found\n2: 10043 sequence 3 not found\n\
             3: 10043 sequence 5 not found\n",
        ),
    ] {
        let mut bed = Bed::new(|config| config.storage = storage);
        bed.publish(&[("s.a", &[]), ("s.a", &[]), ("s.a", &[]), ("s.a", &[])]);
        bed.run(|entry| {
            entry.msg_delete(StreamSeq(1));
            entry.msg_delete(StreamSeq(3));
        });
        let text = bed.run(|entry| {
            for seq in [0, 1, 3, 5] {
                entry.msg_delete(StreamSeq(seq));
            }
        });
        assert_eq!(text, expected);
    }
}

#[test]
fn purge_and_delete() {
    let mut bed = Bed::new(|_| ());
    bed.publish(&[
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.a", &[]),
        ("s.b", &[]),
    ]);
    let text = bed.run(|entry| {
        entry.purge(Some(b"s.a"), Some(StreamSeq(4)), None);
        entry.purge(Some(b"s.b"), None, Some(2));
        entry.msg_delete(StreamSeq(4));
        entry.msg_delete(StreamSeq(4));
        entry.msg_delete(StreamSeq(9));
        entry.purge(None, None, Some(1));
        entry.purge(None, Some(StreamSeq(3)), None);
        entry.purge(None, None, None);
    });
    assert_eq!(
        text,
        "removed 1 Purge\nremoved 3 Purge\n0: Purged(2)\nremoved 2 Purge\n1: Purged(1)\nremoved 4 Deleted\n2: Done\n\
         3: 10057 no message found\n4: 10057 stream store EOF\nremoved below 6 Purge\n5: Purged(1)\n\
         6: Purged(0)\nremoved below 7 Purge\n7: Purged(1)\n"
    );
    let state = bed.stream.state();
    assert_eq!(
        (state.msgs, state.first_seq, state.last_seq),
        (0, StreamSeq(7), StreamSeq(6))
    );
    missing_by_storage();

    let mut sealed = open_config();
    sealed.sealed = true;
    let text = bed.run(|entry| {
        entry.stream_update(2, &stream_config(&sealed).encode());
        entry.msg_delete(StreamSeq(1));
        entry.purge(None, None, None);
        entry.stream_update(2, &stream_config(&open_config()).encode());
    });
    assert_eq!(
        text,
        "0: Updated { rev: 2 }\n1: 10109 invalid operation on sealed stream\n\
         2: 10109 invalid operation on sealed stream\n3: Updated { rev: 2 }\n"
    );
    assert_eq!(
        bed.publish(&[("s.a", &[])]),
        "#7 10109 invalid operation on sealed stream\n"
    );
}

#[test]
fn age_ttl_and_markers() {
    let mut bed = Bed::new(|config| {
        config.max_age = api::Nanos(10 * SECOND);
        config.allow_msg_ttl = true;
        config.allow_rollup_hdrs = true;
        config.subject_delete_marker_ttl = api::Nanos(5 * SECOND);
    });
    bed.publish(&[
        ("s.a", &[("Nats-TTL", "never")]),
        ("s.b", &[("Nats-TTL", "1s")]),
        ("s.c", &[("KV-Operation", "PURGE")]),
        ("s.d", &[]),
    ]);
    // A TTL below that of markers is raised to it, in the stored message too.
    let Lookup::Found(raised) = bed.stream.store().get(StreamSeq(2)) else {
        panic!("2 is in memory")
    };
    assert!(String::from_utf8_lossy(&raised.record).contains("Nats-TTL: 5\r\n"));
    assert_eq!(bed.stream.next_due(), Some(Wall(6 * SECOND)));
    let expire = |bed: &mut Bed, at: i64| {
        bed.now = at;
        bed.run(|entry| {
            entry.expire_through();
        })
    };
    assert_eq!(expire(&mut bed, 6 * SECOND - 1), "");
    assert_eq!(expire(&mut bed, 6 * SECOND), "removed 2 Ttl\n");
    let Lookup::Found(marker) = bed.stream.store().get(StreamSeq(5)) else {
        panic!("a marker is stored")
    };
    let text = String::from_utf8_lossy(&marker.record[16..]).into_owned();
    assert_eq!(
        text,
        "s.bNATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 5s\r\nNats-Rollup: sub\r\n\r\n"
    );
    // 3 ends its subject and leaves no marker, 4 leaves one; the marker 5 leaves none; 1 stays for ever.
    assert_eq!(
        expire(&mut bed, 11 * SECOND),
        "removed 5 Ttl\nremoved 3 Age\nremoved 4 Age\n"
    );
    assert_eq!(bed.seqs(), [1, 6]);
    assert_eq!(expire(&mut bed, 16 * SECOND), "removed 6 Ttl\n");
    // The time at which 6 would have been too old is looked at once more.
    assert_eq!(bed.stream.next_due(), Some(Wall(21 * SECOND)));
    assert_eq!(expire(&mut bed, 21 * SECOND), "");
    assert_eq!(bed.stream.next_due(), None);
    assert_eq!(bed.restored().digest(), bed.stream.digest());
}

#[test]
fn age_alone_removes_in_bulk_and_looks_at_most_every_250_ms() {
    let mut bed = Bed::new(|config| config.max_age = api::Nanos(SECOND));
    bed.publish(&[("s.a", &[]), ("s.a", &[])]);
    bed.now += SECOND / 10;
    bed.publish(&[("s.a", &[])]);
    assert_eq!(bed.stream.next_due(), Some(Wall(2 * SECOND)));
    bed.now = 2 * SECOND;
    let text = bed.run(|entry| {
        entry.expire_through();
    });
    assert_eq!(text, "removed below 3 Age\n");
    assert_eq!(bed.stream.next_due(), Some(Wall(2 * SECOND + SECOND / 4)));
}

/// What a delivery frees leaves before the next delivery, also if nothing makes the replica stop between them.
#[test]
fn deliveries_without_acknowledgements_free_messages_one_by_one() {
    let apply = |budget| {
        let mut bed = Bed::new(|config| config.retention = api::Retention::Interest);
        bed.run(|entry| {
            let config = consumer_config(|form| {
                form.ack_policy = api::AckPolicy::None;
                form.ack_wait = api::Nanos(0);
                form.max_ack_pending = 0;
            });
            entry.consumer_set(SetAction::Create, 10, "c", &config.encode());
        });
        bed.publish(&[("s.a", &[]), ("s.b", &[]), ("s.c", &[])]);
        let mut builder = EntryBuilder::new();
        builder.deliver(ConsumerId(1), 0, [1, 2, 1, 3].map(StreamSeq));
        let text = bed.apply(builder.finish(Wall(bed.now)).unwrap(), budget);
        (text, bed.stream.digest())
    };
    let whole = apply(1_000);
    assert_eq!(
        whole.0,
        "consumer 1 gets 1 as 1, time 1\nremoved 1 Acked\nconsumer 1 gets 2 as 2, time 1\nremoved 2 Acked\n\
         consumer 1 gets 3 as 3, time 1\nremoved 3 Acked\n"
    );
    assert_eq!(apply(1), whole);
}

#[test]
fn a_work_queue_lets_go_of_what_is_acknowledged_and_filters_never_overlap() {
    let mut bed = Bed::new(|config| config.retention = api::Retention::WorkQueue);
    let text = bed.run(|entry| {
        let all = consumer_config(|_| ());
        entry.consumer_set(SetAction::Create, 10, "c", &all.encode());
        entry.consumer_set(SetAction::CreateOrUpdate, 10, "c", &all.encode());
        let other = consumer_config(|form| form.name = "d".to_owned());
        entry.consumer_set(SetAction::Create, 10, "d", &other.encode());
        entry.consumer_set(SetAction::Update, 10, "d", &other.encode());
        let part = consumer_config(|form| {
            form.name = "e".to_owned();
            form.filter_subject = "s.a".to_owned();
        });
        entry.consumer_set(SetAction::Create, 10, "e", &part.encode());
    });
    assert_eq!(
        text,
        "consumer 1 Created\n0: Consumer { id: ConsumerId(1), created: true }\n\
         1: Consumer { id: ConsumerId(1), created: false }\n\
         2: 10099 multiple non-filtered consumers not allowed on workqueue stream\n\
         3: 10149 consumer does not exist\n\
         4: 10100 filtered consumer not unique on workqueue stream\n"
    );
    bed.publish(&[("s.a", &[]), ("s.b", &[]), ("s.c", &[])]);
    let id = ConsumerId(1);
    let text = bed.run(|entry| {
        entry.deliver(id, 0, [StreamSeq(1), StreamSeq(2), StreamSeq(3)]);
        entry.acks(
            id,
            0,
            AckKind::Ack,
            &[(StreamSeq(1), StreamSeq(2)), (StreamSeq(8), StreamSeq(9))],
            b"",
        );
        entry.acks(
            id,
            0,
            AckKind::Nak { delay_ns: None },
            &[(StreamSeq(3), StreamSeq(3))],
            b"",
        );
        entry.deliver(id, 0, [StreamSeq(3), StreamSeq(1)]);
        entry.acks(id, 0, AckKind::Term, &[(StreamSeq(3), StreamSeq(3))], b"bad");
    });
    assert_eq!(
        text,
        "consumer 1 gets 1 as 1, time 1\nconsumer 1 gets 2 as 2, time 1\nconsumer 1 gets 3 as 3, time 1\n\
         removed 1 Acked\nremoved 2 Acked\n1: acked\n\
         Naked { consumer: ConsumerId(1), seq: StreamSeq(3), deliver_seq: DeliverSeq(3), deliveries: 1 }\n\
         consumer 1 Redeliver\n2: acked\nconsumer 1 gets 3 as 4, time 2\n\
         Terminated { consumer: ConsumerId(1), seq: StreamSeq(3), deliver_seq: DeliverSeq(3), deliveries: 2, \
         reason: [98, 97, 100] }\nremoved 3 Acked\n4: acked\n"
    );
    let state = bed.stream.state();
    assert_eq!(
        (state.msgs, state.first_seq, state.last_seq),
        (0, StreamSeq(4), StreamSeq(3))
    );
}

#[test]
fn an_interest_stream_keeps_what_somebody_wants() {
    let mut bed = Bed::new(|config| config.retention = api::Retention::Interest);
    assert_eq!(bed.publish(&[("s.a", &[("Nats-Msg-Id", "i")])]), "#1 skipped 1\n");
    let config = |name: &str, filter: &str| {
        consumer_config(|form| {
            form.name = name.to_owned();
            form.filter_subject = filter.to_owned();
        })
        .encode()
    };
    bed.run(|entry| {
        entry.consumer_set(SetAction::Create, 10, "all", &config("all", ""));
        entry.consumer_set(SetAction::Create, 10, "a", &config("a", "s.a"));
    });
    bed.publish(&[("s.a", &[]), ("s.b", &[]), ("s.a", &[])]);
    let (all, a) = (ConsumerId(1), ConsumerId(2));
    let text = bed.run(|entry| {
        entry.deliver(all, 0, [2, 3, 4].map(StreamSeq));
        entry.acks(all, 0, AckKind::Ack, &[(StreamSeq(2), StreamSeq(3))], b"");
        entry.deliver(a, 0, [2, 4].map(StreamSeq));
        entry.acks(a, 0, AckKind::Ack, &[(StreamSeq(2), StreamSeq(2))], b"");
    });
    let removals: Vec<&str> = text.lines().filter(|line| line.starts_with("removed")).collect();
    assert_eq!(removals, ["removed 3 Acked", "removed 2 Acked"]);
    assert_eq!(bed.seqs(), [4]);
    // What only the consumer that is gone wanted leaves with it; without consumers nothing stays.
    bed.publish(&[("s.b", &[])]);
    let text = bed.run(|entry| {
        entry.consumer_delete("all");
        entry.consumer_delete("all");
        entry.delete_if_idle(a, 0);
        entry.delete_if_idle(a, 3);
    });
    assert_eq!(
        text,
        "consumer all gone: Deleted\n0: Done\nremoved 5 NoInterest\n1: 10014 consumer not found\n2: Stale\n\
         consumer a gone: Inactive\n3: Done\nremoved below 6 NoInterest\n"
    );
}

#[test]
fn consumers_start_where_their_policy_says() {
    let mut bed = Bed::new(|_| ());
    bed.publish(&[("s.a", &[]), ("s.b", &[])]);
    bed.now += SECOND;
    bed.publish(&[("s.a", &[]), ("s.c", &[]), ("s.c", &[])]);
    let mut expect = |name: &str, seqs: &[u64], edit: &dyn Fn(&mut api::ConsumerConfig)| {
        let config = consumer_config(|form| {
            form.name = name.to_owned();
            edit(form);
        });
        bed.run(|entry| {
            entry.consumer_set(SetAction::Create, 100, name, &config.encode());
        });
        let consumer = bed.stream.consumer(name).unwrap();
        let mut from = consumer.state().delivered().stream_seq.next();
        assert_eq!(
            bed.stream.pending_for(consumer, from),
            seqs.len() as u64,
            "{name}"
        );
        let mut found = Vec::new();
        while let NextMessage::Seq(seq) = bed.stream.next_for(consumer, from) {
            found.push(seq.0);
            from = seq.next();
        }
        assert_eq!(found, seqs, "{name}");
    };
    use api::DeliverPolicy as Policy;
    expect("all", &[1, 2, 3, 4, 5], &|_| ());
    expect("new", &[], &|form| form.deliver_policy = Policy::New);
    expect("last", &[5], &|form| form.deliver_policy = Policy::Last);
    expect("last_a", &[3], &|form| {
        form.deliver_policy = Policy::Last;
        form.filter_subject = "s.a".to_owned();
    });
    expect("seq", &[2, 3, 4, 5], &|form| {
        form.deliver_policy = Policy::ByStartSequence;
        form.opt_start_seq = 2;
    });
    expect("far", &[], &|form| {
        form.deliver_policy = Policy::ByStartSequence;
        form.opt_start_seq = 99;
    });
    expect("time", &[3, 4, 5], &|form| {
        form.deliver_policy = Policy::ByStartTime;
        form.opt_start_time = Some(api::Time(Wall(SECOND + 1)));
    });
    expect("each", &[2, 3, 5], &|form| {
        form.deliver_policy = Policy::LastPerSubject;
        form.filter_subject = ">".to_owned();
    });
    // Beyond its first round such a consumer gets everything; what is gone meanwhile is not counted.
    bed.publish(&[("s.c", &[]), ("s.c", &[])]);
    bed.run(|entry| {
        entry.msg_delete(StreamSeq(3));
    });
    bed.stream = bed.restored();
    let consumer = bed.stream.consumer("each").unwrap();
    let next = |from| bed.stream.next_for(consumer, StreamSeq(from));
    assert_eq!(bed.stream.pending_for(consumer, StreamSeq(1)), 4);
    assert_eq!(
        [next(1), next(3), next(6)],
        [2, 5, 6].map(|seq| NextMessage::Seq(StreamSeq(seq)))
    );
}

#[test]
fn epochs_keep_late_commands_out_and_deadlines_expire() {
    let mut bed = Bed::new(|_| ());
    let limited = consumer_config(|form| form.max_deliver = 1);
    bed.run(|entry| {
        entry.consumer_set(SetAction::Create, 1, "c", &limited.encode());
    });
    bed.publish(&[("s.a", &[]), ("s.a", &[])]);
    let id = ConsumerId(1);
    bed.run(|entry| {
        entry.deliver(id, 0, [StreamSeq(1), StreamSeq(2)]);
        entry.acks(id, 0, AckKind::Ack, &[(StreamSeq(2), StreamSeq(2))], b"");
    });
    assert_eq!(bed.stream.next_due(), Some(Wall(31 * SECOND)));
    bed.now = 31 * SECOND;
    let text = bed.run(|entry| {
        entry.expire_through();
        entry.consumer_reset("c", Some(StreamSeq(1)));
        entry.deliver(id, 0, [StreamSeq(1)]);
        entry.acks(id, 0, AckKind::Ack, &[(StreamSeq(1), StreamSeq(1))], b"");
        entry.deliver(id, 1, [StreamSeq(1)]);
        entry.consumer_pause("c", Some(Wall(40 * SECOND)));
        entry.consumer_reset("x", None);
        entry.progress(id, 0, StreamSeq(2), DeliverSeq(2));
        let more = consumer_config(|form| form.name = "d".to_owned());
        entry.consumer_set(SetAction::Create, 1, "d", &more.encode());
    });
    assert_eq!(
        text,
        "MaxDeliveries { consumer: ConsumerId(1), seq: StreamSeq(1), deliveries: 1 }\nconsumer 1 Reset\n\
         1: Reset { id: ConsumerId(1), seq: StreamSeq(1) }\n3: acked\nconsumer 1 gets 1 as 1, time 1\n\
         consumer 1 Paused\n5: Paused { id: ConsumerId(1), until: Some(Wall(40000000000)) }\n\
         6: 10014 consumer not found\n7: Stale\n8: 10026 maximum consumers limit reached\n"
    );
    assert_eq!(bed.stream.next_due(), Some(Wall(40 * SECOND)));
}

#[test]
fn source_batches_continue_or_do_nothing() {
    let mut bed = Bed::new(|config| {
        config.subjects.clear();
        config.sources = vec![api::StreamSource {
            name: "O".to_owned(),
            ..api::StreamSource::default()
        }];
        config.duplicate_window = api::Nanos(SECOND);
        config.max_msgs = 3;
        config.discard = api::Discard::New;
    });
    let key = source_key(&bed.stream.config().sources[0]);
    let batch = |identity: &[u8], prev: u64, seqs: &[u64], id: &str| {
        let mut batch = SourceBatchBuilder::new(&key, identity, StreamSeq(prev));
        for seq in seqs {
            let mut record = Vec::new();
            let header = header_block(&[("Nats-Msg-Id", &format!("{id}{seq}"))]);
            tidelock_record::encode_into(&mut record, b"o.x", header.as_bytes(), b"x").unwrap();
            batch.message(StreamSeq(*seq), Wall(5), &record);
        }
        batch
    };
    let text = bed.run(|entry| {
        entry.source_batch(&batch(b"A", 0, &[3, 5], "x"));
        entry.source_batch(&batch(b"A", 0, &[3, 5], "x"));
        entry.source_batch(&batch(b"A", 5, &[6], "x"));
        entry.source_batch(&batch(b"B", 0, &[3], "x"));
        entry.source_batch(&batch(b"A", 6, &[7], "x"));
        entry.source_batch(&batch(b"B", 3, &[4, 8, 9], "x"));
    });
    let outcome = |position: u64, stored: u32, duplicates: u32, refused: &str| {
        format!(
            "Source(SourceOutcome {{ position: StreamSeq({position}), stored: {stored}, duplicates: {duplicates}, \
             too_large: 0, refused: {refused} }})"
        )
    };
    let expected = [
        outcome(5, 2, 0, "None"),
        "Stale".to_owned(),
        outcome(6, 1, 0, "None"),
        outcome(3, 0, 1, "None"),
        "Stale".to_owned(),
        outcome(3, 0, 0, "Some(MaxMsgs)"),
    ];
    let expected: String = (0..)
        .zip(expected)
        .map(|(at, text)| format!("{at}: {text}\n"))
        .collect();
    assert_eq!(text, expected);
    assert_eq!(bed.restored().source(&key).unwrap().seq, StreamSeq(3));
}

#[test]
fn a_mirror_keeps_sequences_and_times_and_takes_no_publishes() {
    let mut bed = Bed::new(|config| {
        config.subjects.clear();
        config.mirror = Some(api::StreamSource {
            name: "O".to_owned(),
            ..api::StreamSource::default()
        });
    });
    let key = source_key(bed.stream.config().mirror.as_ref().unwrap());
    let mut batch = SourceBatchBuilder::new(&key, b"", StreamSeq(0));
    let mut record = Vec::new();
    tidelock_record::encode_into(&mut record, b"o.x", b"", b"x").unwrap();
    batch.message(StreamSeq(4), Wall(44), &record);
    batch.message(StreamSeq(6), Wall(66), &record);
    batch.skip_to(StreamSeq(9));
    bed.run(|entry| {
        entry.source_batch(&batch);
    });
    let state = bed.stream.state();
    assert_eq!(
        (bed.seqs(), state.first_ts, state.last_seq),
        (vec![4, 6], Wall(44), StreamSeq(9))
    );
    assert_eq!(bed.publish(&[("o.x", &[])]), "#1 10003 bad request\n");
    // Promoted, it goes on after the origin's last sequence.
    let form = open_config();
    bed.run(|entry| {
        entry.stream_update(2, &stream_config(&form).encode());
    });
    assert_eq!(bed.publish(&[("s.x", &[])]), "#2 stored 10\n");
    assert_eq!(bed.stream.sources().count(), 0);
}

#[test]
fn an_update_trims_and_refuses_what_consumers_violate() {
    let mut bed = Bed::new(|_| ());
    bed.publish(&[
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.a", &[]),
    ]);
    bed.run(|entry| {
        entry.consumer_set(SetAction::Create, 10, "c", &consumer_config(|_| ()).encode());
    });
    let mut tight = open_config();
    tight.consumer_limits.max_ack_pending = 10;
    let mut trimmed = open_config();
    trimmed.max_msgs_per_subject = 1;
    trimmed.max_msgs = 1;
    let mut interest = trimmed.clone();
    interest.retention = api::Retention::Interest;
    let text = bed.run(|entry| {
        entry.stream_update(2, &stream_config(&tight).encode());
        entry.stream_update(3, &stream_config(&trimmed).encode());
        entry.consumer_delete("c");
        entry.stream_update(4, &stream_config(&interest).encode());
    });
    assert_eq!(
        text,
        "0: 10069 change to limits violates consumers: c\n1: Updated { rev: 3 }\nremoved 1 Limit\nremoved 3 Limit\n\
         removed 2 Limit\nremoved 4 Limit\nconsumer c gone: Deleted\n2: Done\n3: Updated { rev: 4 }\n\
         removed below 6 NoInterest\n"
    );
}

#[test]
fn nothing_leaves_a_stream_that_discards_what_is_new_when_its_limits_are_lowered() {
    let mut bed = Bed::new(|config| config.discard = api::Discard::New);
    bed.publish(&[("s.a", &[]), ("s.b", &[]), ("s.a", &[])]);
    let mut form = open_config();
    (form.discard, form.max_msgs, form.max_bytes) = (api::Discard::New, 1, 1);
    let text = bed.run(|entry| {
        entry.stream_update(2, &stream_config(&form).encode());
    });
    assert_eq!(text, "0: Updated { rev: 2 }\n");
    assert_eq!(
        bed.publish(&[("s.a", &[])]),
        "#4 10077 maximum messages exceeded\n"
    );
    form.discard = api::Discard::Old;
    form.max_bytes = -1;
    let text = bed.run(|entry| {
        entry.stream_update(3, &stream_config(&form).encode());
    });
    assert_eq!(text, "0: Updated { rev: 3 }\nremoved 1 Limit\nremoved 2 Limit\n");
}

#[test]
fn what_cannot_be_decoded_stops_the_replica() {
    let mut bed = Bed::new(|_| ());
    let mut builder = EntryBuilder::new();
    builder.apply_version(APPLY_VERSION + 1);
    let entry = builder.finish(Wall(1)).unwrap();
    bed.stream.begin(LogIndex(2), Term(1), entry.clone()).unwrap();
    assert_eq!(
        bed.stream.step(1, &mut NoEffects),
        Err(ApplyError::ApplyVersion(2))
    );
    assert!(!bed.stream.is_at_boundary());
    let twice = bed.stream.begin(LogIndex(3), Term(1), entry.clone());
    assert!(matches!(twice, Err(ApplyError::OutOfOrder { .. })));

    let mut bed = Bed::new(|_| ());
    assert!(bed.stream.begin(LogIndex(1), Term(1), entry).is_err());
    assert!(
        bed.stream
            .begin(LogIndex(2), Term(1), Bytes::from_static(b"\x02"))
            .is_err()
    );
    let mut builder = EntryBuilder::new();
    builder.consumer_set(SetAction::Create, 1, "c", b"\x01{\"nonsense\":1}");
    bed.stream
        .begin(LogIndex(2), Term(1), builder.finish(Wall(1)).unwrap())
        .unwrap();
    assert!(matches!(
        bed.stream.step(9, &mut NoEffects),
        Err(ApplyError::Config(_))
    ));
}

#[test]
fn publishes_that_were_not_let_in_are_refused_once_and_for_all() {
    let mut bed = Bed::new(|_| ());
    bed.publish(&[("s.a", &[])]);
    let refuse = |entry: &mut EntryBuilder| {
        entry.refuse_many(KEY, 1, 0, 3, tidelock_base::ApiErrorCode::InsufficientResources);
    };
    let text = bed.run(refuse);
    assert_eq!(
        text,
        "#1 stored 1\n#2 10023 insufficient resources\n#3 10023 insufficient resources\n"
    );
    // Sent again, when there was room: what it was told stands.
    bed.publish(&[("s.a", &[]), ("s.a", &[])]);
    assert_eq!(bed.seqs(), [1]);
    assert_eq!(bed.publish(&[("s.a", &[])]), "#4 stored 2\n");
}

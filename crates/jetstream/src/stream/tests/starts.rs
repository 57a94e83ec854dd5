//! Where consumers and sources begin, and where sources go on.

use super::*;
use crate::stream::source::FormerSources;

fn from_seq(name: &str, seq: u64, edit: impl FnOnce(&mut api::ConsumerConfig)) -> ConsumerConfig {
    consumer_config(|form| {
        form.name = name.to_owned();
        form.deliver_policy = api::DeliverPolicy::ByStartSequence;
        form.opt_start_seq = seq;
        edit(form);
    })
}

/// Delivered, ack floor and pending messages of a consumer.
fn standing(bed: &Bed, name: &str) -> (u64, u64, u64) {
    let consumer = bed.stream.consumer(name).unwrap();
    let delivered = consumer.state().delivered().stream_seq;
    let pending = bed.stream.pending_for(consumer, delivered.next());
    (delivered.0, consumer.state().ack_floor().stream_seq.0, pending)
}

/// nats-server 2.15.1 answers so, with ten messages at first.
#[test]
fn a_start_sequence_beyond_the_end_is_waited_for() {
    let mut bed = Bed::new(|_| ());
    let messages = |count| vec![("s.a", &[] as &[(&str, &str)]); count];
    bed.publish(&messages(10));
    bed.run(|entry| {
        entry.purge(None, Some(StreamSeq(5)), None);
        let configs = [
            from_seq("low", 2, |_| ()),
            from_seq("next", 11, |_| ()),
            from_seq("far", 15, |_| ()),
            from_seq("other", 15, |form| form.filter_subject = "s.b".to_owned()),
            from_seq("none", 15, |form| form.ack_policy = api::AckPolicy::None),
            from_seq("last", u64::MAX, |_| ()),
        ];
        for config in configs {
            entry.consumer_set(SetAction::Create, 100, &config.name, &config.encode());
        }
        let config = consumer_config(|form| {
            form.name = "time".to_owned();
            form.deliver_policy = api::DeliverPolicy::ByStartTime;
            form.opt_start_time = Some(api::Time(Wall(99 * SECOND)));
        });
        entry.consumer_set(SetAction::Create, 100, "time", &config.encode());
    });
    let expect = |bed: &Bed, expected: [(&str, u64, u64); 7]| {
        for (name, delivered, pending) in expected {
            assert_eq!(standing(bed, name), (delivered, delivered, pending), "{name}");
        }
    };
    let max = u64::MAX - 1;
    expect(
        &bed,
        [
            ("low", 4, 6),
            ("next", 10, 0),
            ("far", 14, 0),
            ("other", 14, 0),
            ("none", 14, 0),
            ("last", max, 0),
            ("time", 10, 0),
        ],
    );
    bed.publish(&messages(3));
    bed.stream = bed.restored();
    bed.publish(&messages(7));
    expect(
        &bed,
        [
            ("low", 4, 16),
            ("next", 10, 10),
            ("far", 14, 6),
            ("other", 14, 0),
            ("none", 14, 6),
            ("last", max, 0),
            ("time", 10, 10),
        ],
    );
    let far = bed.stream.consumer("far").unwrap();
    let next = bed
        .stream
        .next_for(far, far.state().delivered().stream_seq.next());
    assert_eq!(next, NextMessage::Seq(StreamSeq(15)));
    let last = bed.stream.consumer("last").unwrap().clone();
    assert_eq!(bed.stream.next_for(&last, StreamSeq(u64::MAX)), NextMessage::End);
    // Neither what lies before the start, nor the end of the stream, moves such a consumer.
    bed.run(|entry| {
        entry.deliver(last.id(), 0, [StreamSeq(20)]);
        entry.acks(last.id(), 0, AckKind::Ack, &[(StreamSeq(20), StreamSeq(20))], b"");
        entry.purge(None, None, None);
    });
    assert_eq!(standing(&bed, "far"), (20, 20, 0));
    assert_eq!(standing(&bed, "last"), (max, max, 0));
}

/// As on nats-server, what such a consumer waits past is stored for it, if it matches; it goes when the consumer does.
#[test]
fn an_interest_stream_lets_go_of_what_lay_before_the_start() {
    let mut bed = Bed::new(|config| config.retention = api::Retention::Interest);
    let other = consumer_config(|form| {
        form.name = "b".to_owned();
        form.filter_subject = "s.b".to_owned();
    });
    bed.run(|entry| {
        entry.consumer_set(SetAction::Create, 9, "b", &other.encode());
        entry.consumer_set(SetAction::Create, 9, "a", &from_seq("a", 4, |_| ()).encode());
    });
    bed.publish(&[
        ("s.a", &[]),
        ("s.b", &[]),
        ("s.a", &[]),
        ("s.a", &[]),
        ("s.b", &[]),
    ]);
    assert_eq!(bed.seqs(), [1, 2, 3, 4, 5]);
    assert_eq!(standing(&bed, "a"), (3, 3, 2));
    bed.run(|entry| {
        entry.consumer_delete("a");
    });
    assert_eq!(bed.seqs(), [2, 5]);
}

fn origins(names: &[&str]) -> api::StreamConfig {
    let source = |name: &&str| api::StreamSource {
        name: (*name).to_owned(),
        ..api::StreamSource::default()
    };
    api::StreamConfig {
        sources: names.iter().map(source).collect(),
        ..open_config()
    }
}

/// Copies messages of an origin, the last one first looked at `prev`.
fn copy(bed: &mut Bed, key: &[u8], identity: &[u8], prev: u64, seqs: &[u64]) -> String {
    let mut batch = SourceBatchBuilder::new(key, identity, StreamSeq(prev));
    for seq in seqs {
        let mut record = Vec::new();
        tidelock_record::encode_into(&mut record, b"o.x", b"", b"x").unwrap();
        batch.message(StreamSeq(*seq), Wall(5), &record);
    }
    bed.run(|entry| {
        entry.source_batch(&batch);
    })
}

fn update(bed: &mut Bed, form: &api::StreamConfig) {
    let rev = bed.stream.rev() + 1;
    let text = bed.run(|entry| {
        entry.stream_update(rev, &stream_config(form).encode());
    });
    assert_eq!(text, format!("0: Updated {{ rev: {rev} }}\n"));
}

fn position(bed: &Bed, key: &[u8]) -> Option<u64> {
    bed.stream.source(key).map(|position| position.seq.0)
}

/// nats-server 2.15.1 goes on behind the last message that it has copied, even if all of them were purged meanwhile.
#[test]
fn a_source_that_comes_back_goes_on_where_it_stood() {
    let mut bed = Bed::new(|config| *config = origins(&["O", "P"]));
    copy(&mut bed, b"O", b"A", 0, &[1, 2, 5]);
    copy(&mut bed, b"P", b"B", 0, &[7]);
    let with = bed.stream.digest();
    update(&mut bed, &origins(&["P"]));
    assert_eq!((position(&bed, b"O"), position(&bed, b"P")), (None, Some(7)));
    assert_ne!(bed.stream.digest(), with);
    bed.run(|entry| {
        entry.purge(None, None, None);
    });
    let restored = bed.restored();
    assert_eq!(restored.digest(), bed.stream.digest());
    bed.stream = restored;
    // Another start makes no other source, another filter does.
    let mut form = origins(&["O", "P", "O"]);
    form.sources[0].opt_start_seq = 2;
    form.sources[2].filter_subject = "o.x".to_owned();
    update(&mut bed, &form);
    assert_eq!(
        [&b"O"[..], b"P", b"O o.x"].map(|key| position(&bed, key)),
        [Some(5), Some(7), None]
    );
    assert_eq!(copy(&mut bed, b"O", b"A", 0, &[1, 2, 5]), "0: Stale\n");
    copy(&mut bed, b"O", b"A", 5, &[6]);
    assert_eq!(position(&bed, b"O"), Some(6));

    // An origin that was made anew meanwhile has nothing to do with what was taken of the one before.
    update(&mut bed, &origins(&["P"]));
    update(&mut bed, &origins(&["O", "P"]));
    copy(&mut bed, b"O", b"C", 0, &[3]);
    assert_eq!(position(&bed, b"O"), Some(3));
    assert_eq!(bed.seqs().len(), 2);
}

#[test]
fn so_many_removed_sources_are_remembered() {
    let mut bed = Bed::new(|config| *config = origins(&[]));
    let count = FormerSources::MAX as u64 + 2;
    for at in 0..count {
        let name = format!("O{at}");
        update(&mut bed, &origins(&[&name]));
        copy(&mut bed, name.as_bytes(), b"A", 0, &[at + 1]);
    }
    // That of the present one is not among them.
    bed.stream = bed.restored();
    for (at, known) in [(0, false), (1, true), (count - 2, true)] {
        let name = format!("O{at}");
        update(&mut bed, &origins(&[&format!("O{}", count - 1), &name]));
        assert_eq!(position(&bed, name.as_bytes()), known.then_some(at + 1), "{name}");
    }
}

/// What a mirror has taken stands under the same name, and is no position of a source.
#[test]
fn a_promoted_mirror_leaves_no_position_for_a_source() {
    let mut bed = Bed::new(|config| {
        config.subjects.clear();
        config.mirror = origins(&["O"]).sources.pop();
    });
    copy(&mut bed, b"O", b"A", 0, &[1, 2]);
    update(&mut bed, &origins(&["O"]));
    assert_eq!(position(&bed, b"O"), None);
    update(&mut bed, &origins(&[]));
    update(&mut bed, &origins(&["O"]));
    assert_eq!(position(&bed, b"O"), None);
}

use super::*;
use proptest::prelude::*;
use tidelock_base::ApiErrorCode;
use tidelock_record::encode_into;

const KEY: WindowKey = WindowKey {
    boot: BootId(9),
    worker: WorkerId(2),
};

fn record(subject: &str, payload: &str) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(&mut out, subject.as_bytes(), b"", payload.as_bytes()).unwrap();
    out
}

fn all(entry: &[u8]) -> Vec<Command<'_>> {
    let (_, commands) = commands(entry).unwrap();
    commands.map(Result::unwrap).collect()
}

#[test]
fn publishes_of_one_window_share_a_run_and_others_cut_it() {
    let mut builder = EntryBuilder::new();
    assert_eq!(builder.publish(KEY, 5, 3, &record("a", "1")), 0);
    assert_eq!(builder.publish_parts(KEY, 6, 4, [b"a", b"", b"2"]), Ok(0));
    assert_eq!(builder.msg_delete(StreamSeq(1)), 1);
    assert_eq!(builder.publish(KEY, 7, 4, &record("a", "3")), 2);
    assert_eq!(builder.publish(KEY, 9, 4, &record("a", "5")), 3);
    let other = WindowKey {
        worker: WorkerId(3),
        ..KEY
    };
    assert_eq!(
        builder.publish_many(other, 10, 9, 2, &[record("b", "x"), record("b", "y")].concat()),
        4
    );
    let entry = builder.finish(Wall(77)).unwrap();
    assert!(builder.is_empty() && builder.finish(Wall(78)).is_none());

    assert_eq!(EntryHead::parse(&entry).unwrap().stamp, Wall(77));
    assert_eq!(check_records(&entry), Ok(()));
    let runs: Vec<_> = all(&entry)
        .into_iter()
        .filter_map(|command| match command {
            Command::PublishRun {
                key,
                first,
                low_water,
                count,
                records,
            } => {
                let payloads = RecordRef::parse(records.0).unwrap().0.payload().to_vec();
                Some((key.worker.0, first, low_water, count, payloads))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        runs,
        [
            (2, 5, 4, 2, b"1".to_vec()),
            (2, 7, 4, 1, b"3".to_vec()),
            (2, 9, 4, 1, b"5".to_vec()),
            (3, 10, 9, 2, b"x".to_vec()),
        ]
    );
}

#[test]
fn a_large_entry_begins_where_the_log_can_write_it_from() {
    let large = record("s", &"x".repeat(70_000));
    let mut builder = EntryBuilder::new();
    for number in 2..20 {
        builder.publish(KEY, number, 0, &large);
    }
    let first = builder.finish(Wall(1)).unwrap();
    builder.publish(KEY, 20, 0, &record("s", "the next one has as much room"));
    let second = builder.finish(Wall(2)).unwrap();
    for entry in [&first, &second] {
        assert_eq!(entry.as_ptr().align_offset(tidelock_record::ALIGNMENT), 0);
    }
    let Command::PublishRun { records, count, .. } = all(&first)[0] else {
        panic!("a run");
    };
    assert_eq!((count, records.0), (18, large.repeat(18).as_slice()));
}

/// One of every kind.
fn every_command() -> bytes::Bytes {
    let mut builder = EntryBuilder::new();
    let consumer = ConsumerId(4);
    builder.deliver(consumer, 1, [StreamSeq(3), StreamSeq(9)]);
    builder.acks(
        consumer,
        1,
        AckKind::Nak { delay_ns: Some(-5) },
        &[(StreamSeq(1), StreamSeq(3))],
        b"",
    );
    builder.acks(consumer, 2, AckKind::Term, &[], b"why");
    builder.consumer_set(SetAction::Update, 10, "c", b"{}");
    builder.consumer_delete("c");
    builder.progress(consumer, 3, StreamSeq(8), DeliverSeq(7));
    builder.delete_if_idle(consumer, 11);
    builder.consumer_reset("c", None);
    builder.consumer_reset("c", Some(StreamSeq(5)));
    builder.consumer_pause("c", Some(Wall(12)));
    builder.purge(Some(b"a.>"), None, Some(2));
    builder.stream_update(3, b"{}");
    builder.expire_through();
    let mut batch = SourceBatchBuilder::new(b"S", b"id", StreamSeq(4));
    batch.message(StreamSeq(6), Wall(1), &record("s", "m"));
    batch.skip_to(StreamSeq(8));
    builder.source_batch(&batch);
    builder.window_close(KEY);
    builder.apply_version(1);
    builder.digest_check();
    builder.refuse_many(KEY, 7, 3, 2, ApiErrorCode::InsufficientResources);
    builder.finish(Wall(1)).unwrap()
}

#[test]
fn every_command_comes_back() {
    let entry = every_command();
    assert_eq!(check_records(&entry), Ok(()));

    let text: Vec<String> = all(&entry)
        .iter()
        .map(|command| match command {
            Command::Deliver { seqs, .. } => format!("Deliver {:?}", seqs.iter().collect::<Vec<_>>()),
            Command::Acks {
                verb, ranges, reason, ..
            } => {
                format!(
                    "Acks {verb:?} {:?} {:?}",
                    ranges.at(0),
                    String::from_utf8_lossy(reason)
                )
            }
            Command::SourceBatch(batch) => {
                let (message, end) = batch.messages.message_at(0).unwrap();
                assert_eq!(end, batch.messages.0.len());
                format!(
                    "SourceBatch {} {} {} {}",
                    batch.prev_seq, batch.last_seq, batch.count, message.seq
                )
            }
            other => format!("{other:?}"),
        })
        .collect();
    let expected = [
        "Deliver [StreamSeq(3), StreamSeq(9)]",
        "Acks Nak { delay_ns: Some(-5) } Some((StreamSeq(1), StreamSeq(3))) \"\"",
        "Acks Term None \"why\"",
        "ConsumerSet { action: Update, max_consumers: 10, name: \"c\", config: [123, 125] }",
        "ConsumerDelete { name: \"c\" }",
        "Progress { consumer: ConsumerId(4), epoch: 3, stream_seq: StreamSeq(8), deliver_seq: DeliverSeq(7) }",
        "DeleteIfIdle { consumer: ConsumerId(4), activity: 11 }",
        "ConsumerReset { name: \"c\", seq: None }",
        "ConsumerReset { name: \"c\", seq: Some(StreamSeq(5)) }",
        "ConsumerPause { name: \"c\", until: Some(Wall(12)) }",
        "Purge { filter: Some([97, 46, 62]), upto: None, keep: Some(2) }",
        "StreamUpdate { rev: 3, config: [123, 125] }",
        "ExpireThrough",
        "SourceBatch 4 8 1 6",
        "WindowClose { key: WindowKey { boot: BootId(9), worker: WorkerId(2) } }",
        "ApplyVersion { version: 1 }",
        "DigestCheck",
        "RefuseRun { key: WindowKey { boot: BootId(9), worker: WorkerId(2) }, first: 7, low_water: 3, count: 2, \
         code: InsufficientResources }",
    ];
    assert_eq!(text, expected);
}

#[test]
fn what_is_unknown_or_damaged_is_refused() {
    let mut builder = EntryBuilder::new();
    builder.publish(KEY, 1, 0, &record("a", "1"));
    let entry = builder.finish(Wall(1)).unwrap().to_vec();

    let mut later = entry.clone();
    later[0] = 2;
    assert_eq!(check_records(&later), Err(CommandError::Version(2)));
    let mut unknown = entry.clone();
    unknown[ENTRY_HEAD_BYTES] = 99;
    assert_eq!(check_records(&unknown), Err(CommandError::Kind(99)));
    let mut flipped = entry;
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    assert_eq!(
        check_records(&flipped),
        Err(CommandError::Record(RecordError::Checksum))
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..20, len in 0u8..120) {
        let _ = check_records(&bytes);
        if bytes.len() > 24 {
            bytes[..8].copy_from_slice(&[ENTRY_VERSION, 0, 0, 0, 0, 0, 0, 0]);
            bytes[16..24].copy_from_slice(&[kind, 0, 0, 0, len, 0, 0, 0]);
            let _ = check_records(&bytes);
        }
    }
}

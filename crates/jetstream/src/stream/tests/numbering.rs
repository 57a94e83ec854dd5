//! Where a stream's sequences begin and end when it is empty.

use super::*;

#[test]
fn a_purge_beyond_the_end_moves_the_end() {
    let mut bed = Bed::new(|_| ());
    let positions = |bed: &Bed| {
        let state = bed.stream.state();
        (state.msgs, state.first_seq.0, state.last_seq.0)
    };
    let text = bed.run(|entry| {
        entry.purge(None, Some(StreamSeq(1)), None);
        entry.purge(None, Some(StreamSeq(2)), None);
    });
    assert_eq!(text, "0: Purged(0)\nremoved below 2 Purge\n1: Purged(0)\n");
    assert_eq!(positions(&bed), (0, 2, 1));
    bed.publish(&[("s.a", &[]), ("s.b", &[])]);
    bed.run(|entry| {
        let config = consumer_config(|_| ());
        entry.consumer_set(SetAction::Create, 10, "c", &config.encode());
    });

    let stored = bed.stream.state().last_ts;
    let text = bed.run(|entry| {
        entry.purge(Some(b"s.a"), Some(StreamSeq(50)), None);
        entry.purge(None, Some(StreamSeq(100)), None);
        entry.purge(None, Some(StreamSeq(50)), None);
        entry.purge(Some(b">"), Some(StreamSeq(101)), None);
        entry.purge(None, Some(StreamSeq(u64::MAX)), None);
    });
    assert_eq!(
        text,
        "removed 2 Purge\n0: Purged(1)\nremoved below 4 Purge\nremoved below 100 Purge\n1: Purged(1)\n\
         2: Purged(0)\nremoved below 101 Purge\n3: Purged(0)\n\
         4: 10110 sequence can not be above 9223372036854775808\n"
    );
    assert_eq!(positions(&bed), (0, 101, 100));
    assert_eq!(bed.stream.state().last_ts, stored);
    let consumer = bed.stream.consumer("c").unwrap();
    assert_eq!(consumer.state().delivered().stream_seq, StreamSeq(100));

    let restored = bed.restored();
    assert_eq!(
        (restored.state(), restored.digest()),
        (bed.stream.state(), bed.stream.digest())
    );
    bed.stream = restored;
    assert!(bed.publish(&[("s.a", &[])]).contains("101"));
    assert_eq!(positions(&bed), (1, 101, 101));
}

#[test]
fn a_stream_that_begins_at_1_by_its_configuration_says_so() {
    let first = |first_seq| {
        let bed = Bed::new(|config| config.first_seq = first_seq);
        (bed.stream.state().first_seq.0, bed.stream.state().last_seq.0)
    };
    assert_eq!((first(0), first(1)), ((0, 0), (1, 0)));
}

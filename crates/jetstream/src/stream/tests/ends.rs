//! When messages end.

use super::*;

/// What was published with an end has it in a sealed stream, too, and leaves nothing new there.
#[test]
fn a_message_with_a_ttl_ends_in_a_sealed_stream() {
    let mut bed = Bed::new(|config| {
        config.allow_msg_ttl = true;
        config.allow_rollup_hdrs = true;
        config.subject_delete_marker_ttl = api::Nanos(SECOND);
    });
    bed.publish(&[("s.a", &[("Nats-TTL", "2s")]), ("s.b", &[])]);
    let mut sealed = open_config();
    sealed.allow_msg_ttl = true;
    sealed.allow_rollup_hdrs = true;
    sealed.subject_delete_marker_ttl = api::Nanos(SECOND);
    sealed.sealed = true;
    let text = bed.run(|entry| {
        entry.stream_update(2, &stream_config(&sealed).encode());
    });
    assert_eq!(text, "0: Updated { rev: 2 }\n");
    let due = bed.stream.next_due().unwrap();
    bed.now = due.0 + SECOND;
    let text = bed.run(|entry| {
        entry.expire_through();
    });
    assert_eq!(text, "removed 1 Ttl\n");
    assert_eq!(bed.seqs(), [2]);
}

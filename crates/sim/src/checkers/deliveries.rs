//! The numbers of deliveries outlive every leader: no delivery is numbered like another, the count of a message rises from
//! one to the next, and no more than `max_ack_pending` messages are out (DESIGN section 5, "no count is lost"; ADR-13 and
//! the documentation of NATS consumers, "MaxAckPending").

use super::few;
use crate::actors::MAX_ACK_PENDING;
use crate::history::{Delivery, History};
use std::collections::BTreeMap;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let mut by_number: BTreeMap<u64, &Delivery> = BTreeMap::new();
    for delivery in &history.deliveries {
        if let Some(other) = by_number.insert(delivery.deliver_seq, delivery) {
            found.push(format!(
                "delivery {} is of {} and of {}",
                delivery.deliver_seq, other.payload, delivery.payload
            ));
        }
    }
    let mut last: BTreeMap<u64, &Delivery> = BTreeMap::new();
    for delivery in by_number.into_values() {
        let before = last.insert(delivery.stream_seq, delivery);
        if let Some(before) = before.filter(|before| delivery.count <= before.count) {
            found.push(format!(
                "{} counts {} in delivery {} and {} in delivery {}",
                delivery.payload, before.count, before.deliver_seq, delivery.count, delivery.deliver_seq
            ));
        }
    }
    let most = most_out(&history.deliveries);
    if most > MAX_ACK_PENDING {
        found.push(format!("{most} messages are out, {MAX_ACK_PENDING} may be"));
    }
    few(found)
}

/// How many messages at most were delivered and not acknowledged, as far as clients know. The server knows of later
/// acknowledgements only, so it counts no fewer.
fn most_out(deliveries: &[Delivery]) -> usize {
    let mut out: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for delivery in deliveries {
        let acked = delivery.acked.unwrap_or(u64::MAX);
        let one = out.entry(delivery.stream_seq).or_insert((delivery.at, acked));
        *one = (one.0.min(delivery.at), one.1.min(acked));
    }
    let begins = out.values().map(|(begin, _)| (*begin, true));
    let ends = out.values().map(|(_, end)| (*end, false));
    let mut changes: Vec<(u64, bool)> = begins.chain(ends).collect();
    changes.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in changes {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(deliveries: &[(u64, u64, u64)]) -> usize {
        let delivery = |(at, (stream_seq, deliver_seq, count)): (u64, &(u64, u64, u64))| Delivery {
            at,
            stream_seq: *stream_seq,
            deliver_seq: *deliver_seq,
            count: *count,
            acked: Some(at + 1),
            ..Delivery::default()
        };
        let mut history = History::default();
        history.deliveries = (1..).step_by(2).zip(deliveries).map(delivery).collect();
        check(&history).len()
    }

    #[test]
    fn a_number_that_comes_twice_and_a_count_that_falls_are_found() {
        assert_eq!(problems(&[(1, 1, 1), (2, 2, 1), (1, 3, 2)]), 0);
        assert_eq!(
            problems(&[(1, 3, 2), (1, 1, 1)]),
            0,
            "they may overtake each other"
        );
        assert_eq!(problems(&[(1, 1, 1), (2, 1, 1)]), 1);
        assert_eq!(problems(&[(1, 1, 1), (1, 2, 1)]), 1);
    }

    #[test]
    fn too_many_that_are_out_are_found() {
        let deliveries = |count: u64, acked: Option<u64>| -> Vec<Delivery> {
            let delivery = |seq| Delivery {
                at: seq,
                stream_seq: seq,
                deliver_seq: seq,
                count: 1,
                acked,
                ..Delivery::default()
            };
            (1..=count).map(delivery).collect()
        };
        let most = MAX_ACK_PENDING as u64;
        let mut history = History::default();
        history.deliveries = deliveries(most, None);
        assert_eq!(check(&history).len(), 0);
        history.deliveries = deliveries(most + 1, None);
        assert_eq!(check(&history).len(), 1);
        assert_eq!(most_out(&deliveries(3, Some(9))), 3);
    }
}

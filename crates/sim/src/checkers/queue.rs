//! A work queue delivers at least once, and an acknowledgement that was confirmed removes its message for good
//! (DESIGN section 5, "`AckSync` waits for commit"; promise P3).

use super::few;
use crate::actors::WORK;
use crate::history::{History, Outcome};
use std::collections::BTreeSet;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    let delivered: BTreeSet<&str> = history
        .deliveries
        .iter()
        .map(|delivery| delivery.payload.as_str())
        .collect();
    let confirmed = history
        .deliveries
        .iter()
        .filter(|delivery| delivery.confirmed.is_some())
        .map(|d| d.payload.as_str());
    let confirmed: BTreeSet<&str> = confirmed.collect();
    for audit in history.audits.iter().filter(|audit| audit.stream == WORK) {
        let left: BTreeSet<&str> = audit.messages.values().map(String::as_str).collect();
        for payload in left.intersection(&confirmed) {
            found.push(format!(
                "{payload} is in the work queue after its acknowledgement was confirmed"
            ));
        }
        for (payload, publish) in history
            .publishes
            .iter()
            .filter(|(_, publish)| publish.stream == WORK)
        {
            let acked = matches!(publish.outcome, Outcome::Acked(_));
            if acked && !left.contains(payload.as_str()) && !delivered.contains(payload.as_str()) {
                found.push(format!(
                    "{payload} was acknowledged, never delivered, and is not in the work queue"
                ));
            }
        }
    }
    for payload in delivered {
        if !history.publishes.contains_key(payload) {
            found.push(format!("{payload} was delivered and never published"));
        }
    }
    few(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientId;
    use crate::history::{Audit, Delivery, Publish};

    #[test]
    fn lost_and_undead_messages_are_found() {
        let mut history = History::default();
        let publish = Publish {
            stream: WORK,
            client: ClientId(1),
            number: 1,
            outcome: Outcome::Acked(1),
        };
        history.publishes.insert("a".into(), publish);
        let audit = |left: &[&str]| Audit {
            stream: WORK,
            node: 0,
            messages: (1..).zip(left.iter().map(|text| (*text).to_owned())).collect(),
        };
        history.audits = vec![audit(&["a"])];
        assert_eq!(check(&history).len(), 0);
        history.audits = vec![audit(&[])];
        assert_eq!(check(&history).len(), 1, "lost");
        history.deliveries = vec![Delivery {
            payload: "a".into(),
            at: 1,
            confirmed: Some(2),
            ..Delivery::default()
        }];
        assert_eq!(check(&history).len(), 0);
        history.audits = vec![audit(&["a"])];
        assert_eq!(check(&history).len(), 1, "undead");
    }
}

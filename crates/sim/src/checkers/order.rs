//! Publishes of one connection are stored in the order in which it sent them (DESIGN section 4, "Order per
//! connection").

use super::few;
use crate::history::History;
use std::collections::BTreeMap;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    for audit in &history.audits {
        let mut last: BTreeMap<u64, (u64, &str)> = BTreeMap::new();
        for payload in audit.messages.values() {
            let Some(publish) = history.publishes.get(payload) else {
                continue;
            };
            let before = last.insert(publish.client.0, (publish.number, payload));
            if let Some((number, earlier)) = before
                && number > publish.number
            {
                found.push(format!(
                    "{earlier} is stored before {payload}, which was published first"
                ));
            }
        }
    }
    few(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientId;
    use crate::history::{Audit, Outcome, Publish};

    #[test]
    fn order_counts_within_a_connection_only() {
        let mut history = History::default();
        for (payload, client, number) in [("a", 1, 1), ("b", 1, 2), ("c", 2, 1)] {
            let publish = Publish {
                stream: "EV",
                client: ClientId(client),
                number,
                outcome: Outcome::Unknown,
            };
            history.publishes.insert(payload.into(), publish);
        }
        for (all, problems) in [(["c", "a", "b"], 0), (["a", "b", "c"], 0), (["b", "c", "a"], 1)] {
            let messages = (1..).zip(all.iter().map(|text| (*text).to_owned())).collect();
            history.audits = vec![Audit {
                stream: "EV",
                node: 0,
                messages,
            }];
            assert_eq!(check(&history).len(), problems, "{all:?}");
        }
    }
}

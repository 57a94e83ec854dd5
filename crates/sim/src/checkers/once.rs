//! A publish is judged once, however often it travels (DESIGN section 4; Lee, Park, Kejriwal, Matsushita, Ousterhout,
//! "Implementing Linearizability at Large Scale and Low Latency", SOSP 2015): no payload is stored twice, none that was
//! refused is stored, and none that nobody published.

use super::few;
use crate::history::{History, Outcome};
use std::collections::BTreeMap;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    for audit in &history.audits {
        let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
        for (seq, payload) in &audit.messages {
            if let Some(first) = seen.insert(payload, *seq) {
                found.push(format!(
                    "{payload} is stored twice in {}: as {first} and as {seq}",
                    audit.stream
                ));
            }
            match history.publishes.get(payload) {
                None => found.push(format!(
                    "{payload} is stored in {} and was never published",
                    audit.stream
                )),
                Some(publish) => {
                    if let Outcome::Refused(why) = &publish.outcome {
                        found.push(format!("{payload} was refused ({why}) and is stored as {seq}"));
                    }
                }
            }
        }
    }
    few(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ClientId;
    use crate::history::{Audit, Publish};

    #[test]
    fn what_is_stored_twice_refused_or_unheard_of_is_found() {
        let mut history = History::default();
        for (payload, outcome) in [("a", Outcome::Unknown), ("b", Outcome::Refused("no".into()))] {
            let publish = Publish {
                stream: "EV",
                client: ClientId(1),
                number: 1,
                outcome,
            };
            history.publishes.insert(payload.into(), publish);
        }
        let audit = |all: &[&str]| Audit {
            stream: "EV",
            node: 0,
            messages: (1..).zip(all.iter().map(|text| (*text).to_owned())).collect(),
        };
        for (all, problems) in [(&["a"][..], 0), (&["a", "a"], 1), (&["b"], 1), (&["c"], 1)] {
            history.audits = vec![audit(all)];
            assert_eq!(check(&history).len(), problems, "{all:?}");
        }
    }
}

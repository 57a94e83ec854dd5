//! No acknowledged publish is lost, and none is found under another sequence (promise P3, "acknowledged means durable";
//! Raft: State Machine Safety and Leader Completeness, Ongaro and Ousterhout, "In Search of an Understandable Consensus
//! Algorithm", section 5.4). All nodes show the same content (P1).

use super::few;
use crate::actors::{EVENTS, MEMORY};
use crate::history::{History, Outcome};

pub(super) fn check(history: &History) -> Vec<String> {
    let mut found = Vec::new();
    for audit in history
        .audits
        .iter()
        .filter(|audit| audit.stream == EVENTS || audit.stream == MEMORY)
    {
        for (payload, publish) in history
            .publishes
            .iter()
            .filter(|(_, publish)| publish.stream == audit.stream)
        {
            let Outcome::Acked(seq) = publish.outcome else {
                continue;
            };
            match audit.messages.get(&seq) {
                Some(there) if there == payload => {}
                there => found.push(format!(
                    "acknowledged publish lost: {payload} was stored as {seq}, node {} has {there:?} there",
                    audit.node
                )),
            }
        }
    }
    for (one, other) in history.audits.iter().zip(history.audits.iter().skip(1)) {
        if one.stream == other.stream && one.messages != other.messages {
            let (a, b) = (one.messages.len(), other.messages.len());
            found.push(format!(
                "nodes {} and {} show different {}: {a} and {b} messages",
                one.node, other.node, one.stream
            ));
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
    fn a_lost_or_moved_message_and_different_nodes_are_found() {
        let mut history = History::default();
        let publish = Publish {
            stream: EVENTS,
            client: ClientId(1),
            number: 1,
            outcome: Outcome::Acked(1),
        };
        history.publishes.insert("a".into(), publish.clone());
        history.publishes.insert(
            "b".into(),
            Publish {
                outcome: Outcome::Unknown,
                ..publish
            },
        );
        let audit = |node, messages: &[(u64, &str)]| Audit {
            stream: EVENTS,
            node,
            messages: messages
                .iter()
                .map(|(seq, text)| (*seq, (*text).to_owned()))
                .collect(),
        };
        history.audits = vec![audit(0, &[(1, "a"), (2, "b")]), audit(1, &[(1, "a"), (2, "b")])];
        assert_eq!(check(&history), Vec::<String>::new());
        history.audits = vec![audit(0, &[(2, "a")])];
        assert_eq!(check(&history).len(), 1);
        history.audits = vec![audit(0, &[(1, "a")]), audit(1, &[(1, "a"), (2, "b")])];
        assert_eq!(check(&history).len(), 1);
    }
}

//! Which servers hold a stream's replicas. Texts of failures as in the JetStream reference, "Placement" (10005).

use super::{Meta, PlacementHint, StreamEntry, ids};
use crate::meta::StreamSpec;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{ApiError, ApiErrorCode, NodeId};

/// A server with JetStream as the leader sees it when it asks for a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// The server.
    #[serde(with = "ids::node")]
    pub node: NodeId,
    /// Whether it answers.
    pub online: bool,
    /// Bytes left for file streams: limit less the greater of what is reserved and used.
    pub file_bytes: u64,
    /// Bytes left for memory streams.
    pub memory_bytes: u64,
}

/// Why servers were passed over, for the text of the refusal.
#[derive(Debug, Default)]
struct Reasons {
    offline: bool,
    excluded: BTreeSet<String>,
    storage: bool,
    unique: bool,
    unmatched: BTreeSet<String>,
}

impl Reasons {
    fn into_error(self) -> ApiError {
        let list = |tags: &BTreeSet<String>| {
            let quoted: Vec<String> = tags.iter().map(|tag| format!("'{tag}'")).collect();
            format!("[{}]", quoted.join(", "))
        };
        let mut text = "no suitable peers for placement".to_owned();
        if self.offline {
            text.push_str(", peer offline");
        }
        if self.storage {
            text.push_str(", insufficient storage");
        }
        if self.unique {
            text.push_str(", server tag not unique");
        }
        if !self.unmatched.is_empty() {
            text.push_str(&format!(", tags not matched {}", list(&self.unmatched)));
        }
        if !self.excluded.is_empty() {
            text.push_str(&format!(", tags excluded {}", list(&self.excluded)));
        }
        ApiError::text(ApiErrorCode::ClusterNoPeers, text)
    }
}

impl Meta {
    /// Whether a further replica of a stream may be put on a server of the hint.
    #[must_use]
    pub fn may_hold(&self, stream: &StreamEntry, hint: &PlacementHint, node: NodeId) -> bool {
        let candidates = hint.candidates.iter().filter(|one| one.node == node);
        let hint = PlacementHint {
            candidates: candidates.cloned().collect(),
            ..hint.clone()
        };
        let taken: Vec<NodeId> = stream.nodes().collect();
        place(self, &stream.spec, &hint, &taken, 1).is_ok()
    }
}

/// Chooses `count` servers for a stream beside those in `taken`, the best first.
///
/// A server must be of the stream's cluster, have its tags and the room for `max_bytes`, and differ from the others
/// in the unique tag; of a server without a cluster only the room is asked. Of those, servers that answer come first,
/// then those with fewer replicas, then those with more room. Servers that do not answer are chosen only as long as
/// those that do are a majority of the whole group.
pub(super) fn place(
    meta: &Meta,
    spec: &StreamSpec,
    hint: &PlacementHint,
    taken: &[NodeId],
    count: usize,
) -> Result<Vec<NodeId>, ApiError> {
    let mut reasons = Reasons::default();
    // Alone there is nothing to choose.
    let (cluster, tags, unique_tag) = if hint.cluster.is_empty() {
        ("", &[][..], None)
    } else {
        (spec.cluster(), spec.tags(), hint.unique_tag.as_deref())
    };
    if !cluster.is_empty() && cluster != hint.cluster {
        return Err(reasons.into_error());
    }
    let load = replicas_per_node(meta);
    let mut fitting: Vec<&Candidate> = hint
        .candidates
        .iter()
        .filter(|candidate| {
            !taken.contains(&candidate.node) && fits(meta, spec, (candidate, tags), &mut reasons)
        })
        .collect();
    fitting.sort_by_key(|candidate| {
        let room = if spec.is_memory() {
            candidate.memory_bytes
        } else {
            candidate.file_bytes
        };
        let replicas = load.get(&candidate.node).copied().unwrap_or(0);
        (!candidate.online, replicas, Reverse(room), candidate.node)
    });

    // A placement tag with the prefix asks for one value of it, so it cannot also be asked to differ.
    let prefix = unique_tag.filter(|prefix| !tags.iter().any(|tag| tag.starts_with(prefix)));
    let mut values: BTreeSet<&str> = taken
        .iter()
        .filter_map(|node| unique_value(meta, *node, prefix?))
        .collect();
    let mut chosen = Vec::new();
    let mut offline = 0;
    let offline_max = (taken.len() + count).saturating_sub(1) / 2;
    for candidate in fitting {
        if chosen.len() == count {
            break;
        }
        if !candidate.online && offline == offline_max {
            reasons.offline = true;
            continue;
        }
        if let Some(prefix) = prefix
            && !unique_value(meta, candidate.node, prefix).is_some_and(|value| values.insert(value))
        {
            reasons.unique = true;
            continue;
        }
        offline += usize::from(!candidate.online);
        chosen.push(candidate.node);
    }
    if chosen.len() == count {
        Ok(chosen)
    } else {
        Err(reasons.into_error())
    }
}

fn replicas_per_node(meta: &Meta) -> BTreeMap<NodeId, usize> {
    let mut load = BTreeMap::new();
    for stream in meta.streams() {
        for replica in &stream.replicas {
            *load.entry(replica.node).or_default() += 1;
        }
    }
    load
}

fn unique_value<'a>(meta: &'a Meta, node: NodeId, prefix: &str) -> Option<&'a str> {
    let server = meta.server(node)?;
    server
        .spec
        .tags
        .iter()
        .find(|tag| tag.starts_with(prefix))
        .map(String::as_str)
}

fn fits(
    meta: &Meta,
    spec: &StreamSpec,
    (candidate, tags): (&Candidate, &[String]),
    reasons: &mut Reasons,
) -> bool {
    let Some(server) = meta.server(candidate.node) else {
        return false;
    };
    let has = |tag: &str| server.spec.tags.iter().any(|own| own.eq_ignore_ascii_case(tag));
    if has("!jetstream") {
        return false;
    }
    for tag in tags {
        match tag.strip_prefix('!') {
            Some(excluded) if has(excluded) => {
                reasons.excluded.insert(excluded.to_owned());
                return false;
            }
            None if !has(tag) => {
                reasons.unmatched.insert(tag.clone());
                return false;
            }
            Some(_) | None => {}
        }
    }
    let room = if spec.is_memory() {
        candidate.memory_bytes
    } else {
        candidate.file_bytes
    };
    if spec.max_bytes.is_some_and(|needed| needed > room) {
        reasons.storage = true;
        return false;
    }
    true
}

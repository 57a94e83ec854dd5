//! What a source or mirror copies arrives once, in the origin's order, and whole; a work queue lets go of it only after
//! the copy is committed, on no replica earlier; and what it has let go of never comes back (DESIGN section 6; jetstream
//! protocol, "Sourcing/mirroring FROM interest/workqueue" and "Sync consumer"; promise P1: every removal has a position
//! in the log).

use super::few;
use crate::copies::{Copies, CopyAudit, Copying, From, LOG, QUEUE};
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{GroupId, LogIndex, ReplicaId, StreamSeq};
use tidelock_node::ReplicaView;

// ---- while it runs ----------------------------------------------------------------------------------------------------

/// What was seen of origins and copies so far.
#[derive(Debug, Default)]
pub(crate) struct CopyWatch {
    /// How far the committed state of a copy has come with an origin, by the origin's identity.
    positions: BTreeMap<Vec<u8>, StreamSeq>,
    /// The replicas of the copy that were there last time.
    copies: BTreeSet<ReplicaId>,
    /// How many messages a work queue has let go of at an index of its log.
    removed: BTreeMap<GroupId, BTreeMap<LogIndex, u64>>,
}

impl CopyWatch {
    /// Looks at replicas; answers what is wrong with them. `crashed` are
    /// those of nodes that have crashed since, as they were: they may be all there is to see of an entry that is committed.
    pub(crate) fn look(
        &mut self,
        views: &[ReplicaView],
        crashed: &[ReplicaView],
        queue: Copying,
    ) -> Vec<String> {
        let mut found = Vec::new();
        self.look_at_copies(views, crashed, queue);
        for view in views
            .iter()
            .filter(|view| &*view.name == queue.origin && view.digest.is_some())
        {
            // Nothing else takes messages out of it.
            let removed = view.last_seq.0.saturating_sub(view.messages);
            let position = self.positions.get(view.identity.as_bytes()).copied();
            let position = position.unwrap_or_default().0;
            if removed > position {
                found.push(format!(
                    "replica {} of {} has let go of {removed} messages, the copy is committed up to {position}",
                    view.replica, view.name
                ));
            }
            let at = self.removed.entry(view.group).or_default();
            let before = at.range(..=view.applied).next_back().map_or(0, |(_, n)| *n);
            let after = at.range(view.applied..).next().map_or(u64::MAX, |(_, n)| *n);
            if removed < before || removed > after {
                found.push(format!(
                    "messages have come back in {}: replica {} has let go of {removed} at index {}, others of {before} \
                     before and {after} after it",
                    view.name, view.replica, view.applied
                ));
            }
            at.insert(view.applied, removed);
        }
        found
    }

    fn look_at_copies(&mut self, views: &[ReplicaView], crashed: &[ReplicaView], queue: Copying) {
        let named = |name| views.iter().filter(move |view| &*view.name == name);
        let crashed = || crashed.iter().filter(|view| &*view.name == queue.copy);
        for view in named(queue.copy).chain(crashed()) {
            for (identity, seq) in &view.copied {
                let known = self.positions.entry(identity.to_vec()).or_default();
                *known = (*known).max(*seq);
            }
        }
        // A replica that was deleted may have come further, unseen: as far as its origin had.
        let now: BTreeSet<ReplicaId> = named(queue.copy).map(|view| view.replica).collect();
        let gone =
            |replica: &ReplicaId| !now.contains(replica) && !crashed().any(|view| view.replica == *replica);
        if self.copies.iter().any(gone) {
            let mut seen = false;
            for view in named(queue.origin) {
                let known = self.positions.entry(view.identity.clone().into_bytes());
                let known = known.or_default();
                *known = (*known).max(view.last_seq);
                seen = true;
            }
            if !seen {
                // The origin is on nodes that are down: it is looked at when they are there again.
                self.copies.extend(now);
                return;
            }
        }
        self.copies = now;
    }
}

/// Whether all replicas of the copies have come as far as the last message of their origins.
pub(crate) fn copied(copies: &Copies, views: &[ReplicaView]) -> bool {
    let Some(plan) = copies.plan else { return true };
    plan.pairs().into_iter().all(|pair| {
        let Some(last) = copies.last.get(pair.origin) else {
            return false;
        };
        let named = |name| views.iter().filter(move |view| &*view.name == name);
        let Some(identity) = named(pair.origin).map(|view| &view.identity).next() else {
            return false;
        };
        let is_there = |view: &ReplicaView| {
            let mut at = view.copied.iter();
            at.any(|(of, seq)| **of == *identity.as_bytes() && seq.0 >= *last)
        };
        *last < pair.first() || named(pair.copy).all(is_there)
    })
}

/// Whether a work queue, as its last audits show it, still has what is to be taken from it.
pub(crate) fn is_emptied(copies: &Copies) -> bool {
    let Some(plan) = copies.plan else { return true };
    of(copies, QUEUE).all(|audit| left(copies, plan.queue, audit).is_empty())
}

// ---- at the end -------------------------------------------------------------------------------------------------------

pub(super) fn check(copies: &Copies) -> Vec<String> {
    let Some(plan) = copies.plan else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for pair in plan.pairs() {
        for audit in of(copies, pair.origin).chain(of(copies, pair.copy)) {
            if !copies.known.contains_key(&made(audit)) {
                let (name, created) = made(audit);
                found.push(format!("{name} of {created} was made by nobody"));
            }
        }
        for name in [pair.origin, pair.copy] {
            for (one, other) in of(copies, name).zip(of(copies, name).skip(1)) {
                if one.messages != other.messages || one.created != other.created {
                    let (a, b) = (one.messages.len(), other.messages.len());
                    let (n, m) = (one.node, other.node);
                    found.push(format!(
                        "nodes {n} and {m} show different {name}: {a} and {b} messages"
                    ));
                }
            }
        }
        for copy in of(copies, pair.copy) {
            once(copies, pair, copy, &mut found);
            for origin in of(copies, pair.origin).filter(|origin| origin.node == copy.node) {
                whole(copies, pair, origin, copy, &mut found);
            }
        }
    }
    for audit in of(copies, plan.log.copy) {
        mirrors(copies, plan.log, audit, &mut found);
    }
    for audit in of(copies, plan.queue.copy) {
        ordered(audit, &mut found);
    }
    for audit in of(copies, QUEUE) {
        for payload in left(copies, plan.queue, audit) {
            found.push(format!("{payload} is still in {QUEUE} on node {}", audit.node));
        }
    }
    few(found)
}

fn of<'a>(copies: &'a Copies, stream: &'static str) -> impl Iterator<Item = &'a CopyAudit> {
    copies.audits.iter().filter(move |audit| audit.stream == stream)
}

fn made(audit: &CopyAudit) -> (String, String) {
    (audit.stream.to_owned(), audit.created.clone())
}

/// What is to be taken from the work queue and is there.
fn left<'a>(copies: &Copies, queue: Copying, audit: &'a CopyAudit) -> Vec<&'a str> {
    let all = audit.messages.iter();
    let is_left = |seq: u64, payload: &str| {
        let sent = copies.sent.get(payload);
        sent.is_none_or(|sent| queue.takes(seq, &sent.subject))
    };
    all.filter(|(seq, (payload, _))| is_left(**seq, payload))
        .map(|(_, (payload, _))| payload.as_str())
        .collect()
}

/// No message is there twice, none that nobody sent, and none that the filter keeps out.
fn once(copies: &Copies, pair: Copying, copy: &CopyAudit, found: &mut Vec<String>) {
    let mut seen: BTreeMap<&str, (u64, &Option<From>)> = BTreeMap::new();
    for (seq, (payload, from)) in &copy.messages {
        if let Some((first, origin)) = seen.insert(payload, (*seq, from)) {
            found.push(format!(
                "{payload} is in {} twice: as {first} ({origin:?}) and as {seq} ({from:?})",
                pair.copy
            ));
        }
        let sent = copies.sent.get(payload).filter(|sent| sent.origin == pair.origin);
        let Some(sent) = sent else {
            found.push(format!(
                "{payload} is in {} and was never sent to {}",
                pair.copy, pair.origin
            ));
            continue;
        };
        if !pair.may_take(&sent.subject) {
            let subject = &sent.subject;
            found.push(format!(
                "{payload} of {subject} is in {} in spite of the filter",
                pair.copy
            ));
        }
    }
}

/// Within what is from one origin its order holds, and nothing comes from an origin that was replaced once its successor
/// has been taken from.
fn ordered(copy: &CopyAudit, found: &mut Vec<String>) {
    let mut over: BTreeSet<&str> = BTreeSet::new();
    let mut last: Option<(&str, u64)> = None;
    for (payload, from) in copy.messages.values() {
        let Some(from) = from else {
            found.push(format!("{payload} does not say where it is from"));
            continue;
        };
        match last {
            Some((identity, seq)) if identity == from.identity && seq >= from.seq => {
                found.push(format!(
                    "{payload} is {} of its origin and comes after {seq}",
                    from.seq
                ));
            }
            Some((identity, _)) if identity != from.identity => {
                over.insert(identity);
            }
            Some(_) | None => {}
        }
        if over.contains(from.identity.as_str()) {
            found.push(format!("{payload} is from an origin that was replaced before"));
        }
        last = Some((&from.identity, from.seq));
    }
}

/// What was first sent when both streams were there, and was acknowledged, is copied from its sequence; or stays in the
/// origin if it is not to be copied. A stream that only gives copies keeps everything.
fn whole(copies: &Copies, pair: Copying, origin: &CopyAudit, copy: &CopyAudit, found: &mut Vec<String>) {
    let known = |audit: &CopyAudit| {
        let mixed = copies.mixed.get(audit.stream).copied().unwrap_or(0);
        let known = copies.known.get(&made(audit)).copied();
        known.unwrap_or(u64::MAX).max(mixed)
    };
    let (since, both) = (known(origin), known(origin).max(known(copy)));
    let there: BTreeMap<&str, u64> = copy
        .messages
        .iter()
        .map(|(seq, (payload, from))| (payload.as_str(), from.as_ref().map_or(*seq, |from| from.seq)))
        .collect();
    for (payload, sent) in copies.sent.iter().filter(|(_, sent)| sent.origin == pair.origin) {
        let Some(seq) = sent.acked.filter(|_| sent.begin > since) else {
            continue;
        };
        let takes = pair.takes(seq, &sent.subject);
        let copied = there.get(payload.as_str());
        let kept = origin.messages.get(&seq).map(|(payload, _)| payload);
        // What the work queue has let go of may have been in a copy that was deleted.
        let stays = pair.origin == LOG
            || !pair.may_take(&sent.subject)
            || (!takes && copied.is_none() && sent.begin > both);
        if stays && kept != Some(payload) {
            found.push(format!(
                "{payload} was stored in {} as {seq} and is lost: {kept:?}",
                pair.origin
            ));
        }
        if takes && sent.begin > both && copied != Some(&seq) {
            found.push(format!(
                "{payload} was stored in {} as {seq} and is not in {} of node {}: {copied:?}",
                pair.origin, pair.copy, copy.node
            ));
        }
    }
}

/// A mirror that was made after its origin holds what that one holds.
fn mirrors(copies: &Copies, pair: Copying, copy: &CopyAudit, found: &mut Vec<String>) {
    let known = |audit| copies.known.get(&made(audit)).copied().unwrap_or(0);
    let origins = of(copies, pair.origin).filter(|origin| origin.node == copy.node);
    for origin in origins.filter(|origin| known(copy) > known(origin)) {
        for (seq, (payload, _)) in &origin.messages {
            let Some(sent) = copies.sent.get(payload) else {
                continue;
            };
            let mirrored = copy.messages.get(seq).map(|(payload, _)| payload);
            if pair.takes(*seq, &sent.subject) && mirrored != Some(payload) {
                found.push(format!(
                    "{payload} is {seq} in {}, its mirror has {mirrored:?} there",
                    pair.origin
                ));
            }
        }
        for (seq, (payload, _)) in &copy.messages {
            if !origin.messages.contains_key(seq) {
                found.push(format!(
                    "{payload} is {seq} in the mirror, and not in {}",
                    pair.origin
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests;

use super::*;
use crate::copies::{CopyPlan, LOG_COPY, QUEUE_COPY, Sent};
use crate::rng::Rng;
use std::sync::Arc;
use tidelock_base::Term;

/// A plan that takes everything.
fn plan() -> CopyPlan {
    let all = |plan: &CopyPlan| {
        plan.pairs()
            .iter()
            .all(|pair| pair.first() == 0 && pair.may_take("x"))
    };
    (0..)
        .map(|seed| CopyPlan::choose(&mut Rng::new(seed)))
        .find(all)
        .unwrap()
}

fn view(name: &str, replica: u64, applied: u64, messages: u64, copied: Option<u64>) -> ReplicaView {
    ReplicaView {
        group: GroupId(replica / 10),
        replica: ReplicaId(replica),
        name: Arc::from(name),
        term: Term(1),
        is_leader: false,
        commit: LogIndex(applied),
        floor: LogIndex(0),
        applied: LogIndex(applied),
        digest: Some(1),
        messages,
        last_seq: StreamSeq(9),
        identity: "O".to_owned(),
        copied: copied
            .map(|seq| (b"O"[..].into(), StreamSeq(seq)))
            .into_iter()
            .collect(),
        voters: Vec::new(),
        learners: Vec::new(),
        listed: Vec::new(),
        failed: None,
        is_held: false,
    }
}

#[test]
fn a_queue_that_lets_go_too_early_is_found() {
    let queue = plan().queue;
    let look = |watch: &mut CopyWatch, crashed: &[ReplicaView], views: &[ReplicaView]| {
        watch.look(views, crashed, queue).len()
    };
    let (ahead, behind) = (
        view(QUEUE_COPY, 20, 5, 0, Some(4)),
        view(QUEUE_COPY, 21, 5, 0, Some(3)),
    );
    let origin = |left| view(QUEUE, 10, 5, left, None);
    for (left, problems) in [(6, 0), (5, 0), (4, 1)] {
        let mut watch = CopyWatch::default();
        let views = [ahead.clone(), behind.clone(), origin(left)];
        assert_eq!(look(&mut watch, &[], &views), problems, "{left} are left");
        // The one that was ahead has crashed: what it has shown is committed all the same.
        let mut watch = CopyWatch::default();
        look(&mut watch, &[], &[ahead.clone(), behind.clone()]);
        let views = [behind.clone(), origin(left)];
        assert_eq!(look(&mut watch, std::slice::from_ref(&ahead), &views), problems);
    }
    let mut watch = CopyWatch::default();
    look(&mut watch, &[], &[ahead, behind.clone()]);
    let deleted = look(&mut watch, &[], &[behind, origin(0)]);
    assert_eq!(
        deleted, 0,
        "how far it had come before it was deleted is not known"
    );
}

/// The copy was deleted when its last positions had not been seen, and the origin is on a node that is down.
#[test]
fn an_origin_that_comes_back_after_its_copy_has_gone_is_believed() {
    let queue = plan().queue;
    let copy = |seq| view(QUEUE_COPY, 20, 5, 0, Some(seq));
    let origin = |left| view(QUEUE, 10, 20 - left, left, None);
    let mut watch = CopyWatch::default();
    assert_eq!(watch.look(&[copy(4), origin(5)], &[], queue).len(), 0);
    assert_eq!(watch.look(&[], &[], queue).len(), 0);
    assert_eq!(
        watch.look(&[view(QUEUE_COPY, 21, 1, 0, None)], &[], queue).len(),
        0
    );
    assert_eq!(watch.look(&[origin(3)], &[], queue).len(), 0);
}

#[test]
fn messages_that_come_back_are_found() {
    let queue = plan().queue;
    let mut watch = CopyWatch::default();
    let copy = view(QUEUE_COPY, 20, 5, 0, Some(9));
    let views = [
        copy.clone(),
        view(QUEUE, 10, 5, 0, None),
        view(QUEUE, 11, 4, 3, None),
    ];
    assert_eq!(watch.look(&views, &[], queue), Vec::<String>::new());
    let views = [copy.clone(), view(QUEUE, 10, 6, 9, None)];
    assert_eq!(watch.look(&views, &[], queue).len(), 1, "on the same replica");
    let mut watch = CopyWatch::default();
    watch.look(&[copy.clone(), view(QUEUE, 10, 5, 0, None)], &[], queue);
    let views = [copy, view(QUEUE, 12, 5, 9, None)];
    assert_eq!(watch.look(&views, &[], queue).len(), 1, "on another replica");
}

/// Payloads `q1` to `q3` were stored as 1 to 3 in the work queue, `l1` to `l3` in the other origin.
fn history() -> Copies {
    let mut copies = Copies {
        plan: Some(plan()),
        ..Copies::default()
    };
    for (name, stem, subject) in [(QUEUE, "q", "sq.a"), (LOG, "l", "sl.a")] {
        for seq in 1..=3 {
            let sent = Sent {
                origin: name,
                subject: subject.to_owned(),
                begin: 100 + seq,
                acked: Some(seq),
            };
            copies.sent.insert(format!("{stem}{seq}"), sent);
        }
    }
    let created = [(QUEUE, 1), (LOG, 2), (QUEUE_COPY, 3), (LOG_COPY, 4)];
    for (name, at) in created {
        copies.known.insert((name.to_owned(), "t".to_owned()), at);
    }
    copies
}

fn audit(stream: &'static str, node: usize, messages: &[(u64, &str, u64)]) -> CopyAudit {
    let message = |(seq, payload, from): &(u64, &str, u64)| {
        let from = (stream == QUEUE_COPY).then(|| From {
            seq: *from,
            identity: "O".to_owned(),
        });
        (*seq, ((*payload).to_owned(), from))
    };
    CopyAudit {
        stream,
        node,
        created: "t".to_owned(),
        messages: messages.iter().map(message).collect(),
    }
}

const COPIED: [(u64, &str, u64); 3] = [(1, "q1", 1), (2, "q2", 2), (3, "q3", 3)];
const KEPT: [(u64, &str, u64); 3] = [(1, "l1", 0), (2, "l2", 0), (3, "l3", 0)];

fn judge(queue: &[(u64, &str, u64)], copied: &[(u64, &str, u64)], mirrored: &[(u64, &str, u64)]) -> usize {
    let mut copies = history();
    copies.audits = vec![
        audit(QUEUE, 0, queue),
        audit(QUEUE_COPY, 0, copied),
        audit(LOG, 0, &KEPT),
        audit(LOG_COPY, 0, mirrored),
    ];
    check(&copies).len()
}

#[test]
fn what_is_whole_is_let_through_and_each_kind_of_wrong_is_found() {
    assert_eq!(judge(&[], &COPIED, &KEPT), 0);
    assert_eq!(judge(&[(3, "q3", 0)], &COPIED, &KEPT), 1, "not taken out");
    assert_eq!(judge(&[], &COPIED[..2], &KEPT), 1, "lost");
    let twice = [COPIED.as_slice(), &[(4, "q3", 4)]].concat();
    assert!(judge(&[], &twice, &KEPT) > 0, "twice");
    let order = [(1, "q2", 2), (2, "q1", 1), (3, "q3", 3)];
    assert_eq!(judge(&[], &order, &KEPT), 1, "order");
    let unheard = [COPIED.as_slice(), &[(4, "q4", 4)]].concat();
    assert_eq!(judge(&[], &unheard, &KEPT), 1, "never sent");
    assert!(judge(&[], &COPIED, &KEPT[1..]) > 0, "missing in the mirror");
    let moved = [(1, "l1", 0), (2, "l3", 0), (3, "l2", 0)];
    assert!(judge(&[], &COPIED, &moved) > 0, "under other sequences");
}

#[test]
fn nodes_that_show_different_things_and_strange_streams_are_found() {
    let mut copies = history();
    copies.audits = vec![audit(QUEUE, 0, &[]), audit(QUEUE, 1, &[])];
    assert_eq!(check(&copies), Vec::<String>::new());
    copies.audits = vec![audit(QUEUE_COPY, 0, &COPIED), audit(QUEUE_COPY, 1, &COPIED[..2])];
    assert_eq!(check(&copies).len(), 1);
    copies.known.clear();
    copies.audits = vec![audit(QUEUE, 0, &[])];
    assert_eq!(check(&copies).len(), 1);
}

#[test]
fn an_origin_that_was_replaced_is_not_gone_back_to() {
    let mut copy = audit(QUEUE_COPY, 0, &COPIED);
    let mut found = Vec::new();
    ordered(&copy, &mut found);
    assert_eq!(found, Vec::<String>::new());
    if let Some((_, Some(from))) = copy.messages.get_mut(&2) {
        from.identity = "N".to_owned();
    }
    ordered(&copy, &mut found);
    assert_eq!(found.len(), 1);
}

use super::*;
use crate::digest::Running;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const SECOND: i64 = 1_000_000_000;

/// A configuration from the fields of its wire form.
fn config(fields: &str) -> ConsumerConfig {
    let bytes = [b"\x01{\"name\":\"C\",", fields.as_bytes(), b"}"].concat();
    ConsumerConfig::decode(&bytes).unwrap()
}

fn consumer(fields: &str) -> ConsumerState {
    ConsumerState::new(ConsumerId(1), 1, config(fields), Wall(0), StreamSeq(1))
}

/// A consumer and a transcript of what happens to it. Times are in seconds.
struct Script {
    state: ConsumerState,
    log: String,
}

impl Script {
    fn new(fields: &str) -> Self {
        Self {
            state: consumer(fields),
            log: String::new(),
        }
    }

    fn deliver(&mut self, at: i64, seqs: &[u64]) -> &mut Self {
        let log = &mut self.log;
        self.state.deliver(
            seqs.iter().map(|seq| StreamSeq(*seq)),
            Wall(at * SECOND),
            &mut |d| {
                let _ = write!(log, "{}#{}x{} ", d.stream_seq, d.deliver_seq, d.count);
            },
        );
        self.line("deliver")
    }

    fn ack(&mut self, at: i64, seq: u64, kind: AckKind) -> &mut Self {
        let log = &mut self.log;
        let outcome = self
            .state
            .ack(StreamSeq(seq), kind, Wall(at * SECOND), &mut |seq| {
                let _ = write!(log, "free {seq} ");
            });
        let _ = write!(self.log, "{outcome:?} ");
        self.line("ack")
    }

    fn expire(&mut self, at: i64) -> &mut Self {
        let log = &mut self.log;
        self.state.expire(Wall(at * SECOND), &mut |e| {
            let _ = write!(
                log,
                "{}x{}{} ",
                e.seq,
                e.count,
                if e.exhausted { "!" } else { "" }
            );
        });
        self.line("expire")
    }

    fn line(&mut self, what: &str) -> &mut Self {
        let start = self.log.rfind('\n').map_or(0, |at| at + 1);
        self.log.insert_str(start, &format!("{what}: "));
        let floor = self.state.ack_floor();
        let queue: Vec<u64> = self.state.redelivery_queue().iter().map(|seq| seq.0).collect();
        let due = self.state.next_due().map_or(-1, |due| due.0 / SECOND);
        let pending = self.state.num_ack_pending();
        let _ = writeln!(
            self.log,
            "| floor {}/{} pending {pending} queue {queue:?} due {due}",
            floor.stream_seq, floor.deliver_seq
        );
        self
    }

    fn check(&self, expected: &str) {
        let expected: Vec<&str> = expected
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty())
            .collect();
        let found: Vec<&str> = self.log.lines().map(str::trim).collect();
        assert_eq!(found, expected, "\n{}", self.log);
    }
}

const EXPLICIT: &str = r#""ack_policy":"explicit","ack_wait":30000000000"#;

#[test]
fn an_acknowledgement_frees_one_message_and_moves_the_floor() {
    let mut script = Script::new(EXPLICIT);
    script
        .deliver(1, &[1, 2, 5])
        .ack(2, 2, AckKind::Ack)
        .ack(2, 2, AckKind::Ack)
        .ack(2, 9, AckKind::Ack)
        .ack(3, 1, AckKind::Term)
        .ack(3, 3, AckKind::Ack)
        .ack(3, 5, AckKind::Ack)
        .check(
            "deliver: 1#1x1 2#2x1 5#3x1 | floor 0/0 pending 3 queue [] due 31
             ack: free 2 Done { deliver_seq: DeliverSeq(2), count: 1 } | floor 0/0 pending 2 queue [] due 31
             ack: Ignored | floor 0/0 pending 2 queue [] due 31
             ack: Ignored | floor 0/0 pending 2 queue [] due 31
             ack: free 1 Done { deliver_seq: DeliverSeq(1), count: 1 } | floor 4/2 pending 1 queue [] due 31
             ack: Ignored | floor 4/2 pending 1 queue [] due 31
             ack: free 5 Done { deliver_seq: DeliverSeq(3), count: 1 } | floor 5/3 pending 0 queue [] due -1",
        );
}

#[test]
fn what_is_not_acknowledged_in_time_is_delivered_again() {
    let mut script = Script::new(EXPLICIT);
    script
        .deliver(1, &[1, 2])
        .deliver(5, &[3])
        .expire(30)
        .expire(31)
        .deliver(32, &[1, 4, 3])
        .ack(33, 2, AckKind::Progress)
        .ack(34, 1, AckKind::Progress)
        .expire(35)
        .ack(36, 1, AckKind::Ack)
        .check(
            "deliver: 1#1x1 2#2x1 | floor 0/0 pending 2 queue [] due 31
             deliver: 3#3x1 | floor 0/0 pending 3 queue [] due 31
             expire: | floor 0/0 pending 3 queue [] due 31
             expire: 1x1 2x1 | floor 0/0 pending 3 queue [1, 2] due 35
             deliver: 1#4x2 4#5x1 | floor 0/0 pending 4 queue [2] due 35
             ack: Ignored | floor 0/0 pending 4 queue [2] due 35
             ack: Extended | floor 0/0 pending 4 queue [2] due 35
             expire: 3x1 | floor 0/0 pending 4 queue [2, 3] due 62
             ack: free 1 Done { deliver_seq: DeliverSeq(1), count: 2 } | floor 1/1 pending 3 queue [2, 3] due 62",
        );
}

#[test]
fn a_nak_queues_the_message_at_once_or_after_its_delay() {
    let mut script = Script::new(EXPLICIT);
    script
        .deliver(1, &[1, 2])
        .ack(2, 2, AckKind::Nak { delay_ns: None })
        .ack(2, 1, AckKind::Nak { delay_ns: Some(3 * SECOND) })
        .expire(4)
        .expire(5)
        .ack(6, 7, AckKind::Nak { delay_ns: None })
        .check(
            "deliver: 1#1x1 2#2x1 | floor 0/0 pending 2 queue [] due 31
             ack: Naked { deliver_seq: DeliverSeq(2), count: 1, exhausted: false } | floor 0/0 pending 2 queue [2] due 31
             ack: Naked { deliver_seq: DeliverSeq(1), count: 1, exhausted: false } | floor 0/0 pending 2 queue [2] due 5
             expire: | floor 0/0 pending 2 queue [2] due 5
             expire: 1x1 | floor 0/0 pending 2 queue [1, 2] due -1
             ack: Ignored | floor 0/0 pending 2 queue [1, 2] due -1",
        );
}

#[test]
fn the_last_delivery_is_the_last_but_a_late_acknowledgement_counts() {
    let mut script = Script::new(&format!(r#"{EXPLICIT},"max_deliver":2"#));
    script
        .deliver(1, &[1, 2, 3])
        .expire(31)
        .deliver(31, &[1, 2])
        .expire(61)
        .ack(62, 1, AckKind::Ack)
        .ack(62, 1, AckKind::Ack)
        .ack(62, 2, AckKind::Nak { delay_ns: None })
        .deliver(63, &[3])
        .ack(64, 3, AckKind::Nak { delay_ns: None });
    script.check(
        "deliver: 1#1x1 2#2x1 3#3x1 | floor 0/0 pending 3 queue [] due 31
         expire: 1x1 2x1 3x1 | floor 0/0 pending 3 queue [1, 2, 3] due -1
         deliver: 1#4x2 2#5x2 | floor 0/0 pending 3 queue [3] due 61
         expire: 1x2! 2x2! | floor 0/0 pending 1 queue [3] due -1
         ack: free 1 DoneLate | floor 0/0 pending 1 queue [3] due -1
         ack: Ignored | floor 0/0 pending 1 queue [3] due -1
         ack: Ignored | floor 0/0 pending 1 queue [3] due -1
         deliver: 3#6x2 | floor 0/0 pending 1 queue [] due 93
         ack: Naked { deliver_seq: DeliverSeq(3), count: 2, exhausted: true } | floor 0/0 pending 0 queue [] due -1",
    );
    assert_eq!(script.state.num_redelivered(), 2);
    let wants = [1, 2, 3, 4].map(|seq| script.state.still_wants(StreamSeq(seq)));
    assert_eq!(wants, [false, true, true, true]);
    script.state.stream_removed(StreamSeq(2));
    assert!(!script.state.still_wants(StreamSeq(2)));
}

/// nats-server 2.15.1 reports these floors; what it resets a consumer to passes over messages that were given up.
#[test]
fn a_message_given_up_holds_the_floor_until_what_came_later_is_done() {
    let once = &format!(r#"{EXPLICIT},"max_deliver":1"#);
    let nak = AckKind::Nak { delay_ns: None };
    let run = |fields: &str, naks: &[u64], rest: &dyn Fn(&mut ConsumerState)| {
        let mut state = consumer(fields);
        state.deliver((1..=5).map(StreamSeq), Wall(1), &mut |_| {});
        for seq in naks {
            state.ack(StreamSeq(*seq), nak, Wall(2), &mut |_| {});
        }
        rest(&mut state);
        let floors = [state.ack_floor(), state.done_floor()];
        let mut bytes = Vec::new();
        state.encode(&mut bytes);
        let restored = ConsumerState::decode(&bytes, state.config().clone()).unwrap();
        assert_eq!(restored.ack_floor(), state.ack_floor());
        floors.map(|floor| floor.stream_seq.0)
    };
    let ack = |state: &mut ConsumerState, seqs: &[u64]| {
        for seq in seqs {
            state.ack(StreamSeq(*seq), AckKind::Ack, Wall(3), &mut |_| {});
        }
    };
    assert_eq!(run(once, &[1], &|state| ack(state, &[2, 1, 3])), [0, 3]);
    assert_eq!(run(once, &[1, 2], &|state| ack(state, &[3, 4, 5])), [5, 5]);
    assert_eq!(run(once, &[1, 2, 3, 4, 5], &|state| ack(state, &[3, 1])), [0, 5]);
    // The message below it is still pending when the second is given up, and takes the floor along.
    assert_eq!(run(once, &[2], &|state| ack(state, &[1])), [2, 2]);
    assert_eq!(run(once, &[2], &|state| ack(state, &[1, 4])), [2, 2]);
    let removed = |state: &mut ConsumerState, seqs: &[u64]| {
        for seq in seqs {
            state.stream_removed(StreamSeq(*seq));
        }
    };
    assert_eq!(run(once, &[1, 2], &|state| removed(state, &[1, 3])), [0, 3]);
    assert_eq!(run(once, &[1, 2], &|state| removed(state, &[3, 4, 5])), [5, 5]);
    assert_eq!(
        run(once, &[1], &|state| state.stream_purged(StreamSeq(2))),
        [1, 1]
    );
    assert_eq!(
        run(once, &[1], &|state| state.stream_pruned(&mut |_| false)),
        [5, 5]
    );
    assert_eq!(run(once, &[1], &|state| state.reset(StreamSeq(4))), [3, 3]);
    let all = r#""ack_policy":"all","ack_wait":30000000000,"max_deliver":1"#;
    assert_eq!(run(all, &[1, 2], &|_| ()), [0, 2]);
    assert_eq!(run(all, &[1, 2], &|state| ack(state, &[2])), [0, 2]);
    assert_eq!(run(all, &[1, 2], &|state| ack(state, &[3])), [3, 3]);
}

#[test]
fn a_state_without_a_held_floor_is_read() {
    let mut state = consumer(EXPLICIT);
    state.deliver((1..=3).map(StreamSeq), Wall(1), &mut |_| {});
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    bytes.pop();
    assert!(ConsumerState::decode(&bytes, state.config().clone()).is_err());
    bytes[0] = 1;
    let restored = ConsumerState::decode(&bytes, state.config().clone()).unwrap();
    assert_eq!(restored.num_ack_pending(), 3);
}

#[test]
fn backoff_sets_the_wait_of_each_delivery() {
    let mut script =
        Script::new(r#""ack_policy":"explicit","ack_wait":1000000000,"backoff":[1000000000,5000000000]"#);
    script
        .deliver(0, &[1])
        .expire(1)
        .deliver(1, &[1])
        .expire(6)
        .deliver(6, &[1])
        .check(
            "deliver: 1#1x1 | floor 0/0 pending 1 queue [] due 1
             expire: 1x1 | floor 0/0 pending 1 queue [1] due -1
             deliver: 1#2x2 | floor 0/0 pending 1 queue [] due 6
             expire: 1x2 | floor 0/0 pending 1 queue [1] due -1
             deliver: 1#3x3 | floor 0/0 pending 1 queue [] due 11",
        );
}

#[test]
fn ack_all_covers_what_came_before() {
    let mut script = Script::new(r#""ack_policy":"all","ack_wait":30000000000"#);
    script
        .deliver(1, &[1, 2, 4, 6])
        .ack(2, 4, AckKind::Ack)
        .ack(2, 3, AckKind::Ack)
        .ack(2, 5, AckKind::Ack)
        .ack(2, 7, AckKind::Ack)
        .check(
            "deliver: 1#1x1 2#2x1 4#3x1 6#4x1 | floor 0/0 pending 4 queue [] due 31
             ack: free 1 free 2 free 4 Done { deliver_seq: DeliverSeq(3), count: 1 } | floor 5/3 pending 1 queue [] due 31
             ack: Ignored | floor 5/3 pending 1 queue [] due 31
             ack: Ignored | floor 5/3 pending 1 queue [] due 31
             ack: Ignored | floor 5/3 pending 1 queue [] due 31",
        );
}

#[test]
fn without_acknowledgements_nothing_is_pending() {
    let mut script = Script::new(r#""ack_policy":"none""#);
    script.deliver(1, &[1, 2]).ack(2, 1, AckKind::Ack).check(
        "deliver: 1#1x1 2#2x1 | floor 2/2 pending 0 queue [] due -1
         ack: Ignored | floor 2/2 pending 0 queue [] due -1",
    );
    let at = |stream, deliver| Position {
        stream_seq: StreamSeq(stream),
        deliver_seq: DeliverSeq(deliver),
    };
    assert_eq!(script.state.progress(at(9, 7), Wall(3)), at(2, 2));
    assert_eq!(script.state.progress(at(5, 5), Wall(4)), at(9, 7));
    assert_eq!(
        (script.state.delivered(), script.state.last_delivered()),
        (at(9, 7), Wall(3))
    );
}

#[test]
fn flow_control_waits_for_ever() {
    let mut script = Script::new(r#""ack_policy":"flow_control","max_ack_pending":10"#);
    script
        .state
        .deliver([1, 3].map(StreamSeq).into_iter(), Wall(1), &mut |_| {});
    assert_eq!(
        (script.state.next_due(), script.state.num_ack_pending()),
        (None, 2)
    );
    script.expire(1_000_000);
    let mut freed = Vec::new();
    script
        .state
        .ack(StreamSeq(3), AckKind::Ack, Wall(2), &mut |seq| freed.push(seq.0));
    assert_eq!(freed, [1, 3]);
}

#[test]
fn edits_keep_what_is_pending_and_resets_forget_it() {
    let mut state = consumer(EXPLICIT);
    state.deliver((1..=5).map(StreamSeq), Wall(1), &mut |_| {});
    state.ack(
        StreamSeq(2),
        AckKind::Nak { delay_ns: None },
        Wall(1),
        &mut |_| {},
    );
    let mut gone = Vec::new();
    state.update(config(&format!(r#"{EXPLICIT},"max_deliver":1"#)), &mut |e| {
        gone.push(e.seq.0)
    });
    assert_eq!((gone, state.num_ack_pending(), state.epoch()), (vec![2], 4, 2));
    assert!(state.accepts_ack(1) && state.accepts_ack(2) && !state.accepts_ack(3));
    assert!(!state.accepts_deliver(1) && state.accepts_deliver(2));

    state.ack(StreamSeq(1), AckKind::Ack, Wall(2), &mut |_| {});
    assert_eq!(state.last_ack(), Wall(2));

    state.reset(StreamSeq(3));
    let floor = Position {
        stream_seq: StreamSeq(2),
        deliver_seq: DeliverSeq(0),
    };
    assert_eq!(
        (state.delivered(), state.ack_floor(), state.num_ack_pending()),
        (floor, floor, 0)
    );
    // As of a consumer that has delivered nothing: times would be of deliveries and acknowledgements that are void.
    assert_eq!(
        (state.last_delivered(), state.last_ack()),
        (Wall::ZERO, Wall::ZERO)
    );
    assert!(!state.accepts_ack(2) && state.accepts_ack(3));
    let mut delivered = Vec::new();
    state.deliver([StreamSeq(3)].into_iter(), Wall(2), &mut |d| delivered.push(d));
    let first = Delivered {
        stream_seq: StreamSeq(3),
        deliver_seq: DeliverSeq(1),
        count: 1,
    };
    assert_eq!(delivered, [first]);
}

#[test]
fn a_new_deliver_subject_gets_all_that_is_pending() {
    let push = |subject: &str| format!(r#"{EXPLICIT},"deliver_subject":"{subject}""#);
    let mut state = consumer(&push("a"));
    state.deliver((1..=3).map(StreamSeq), Wall(0), &mut |_| {});
    state.update(config(&push("a")), &mut |_| {});
    assert!(state.redelivery_queue().is_empty());
    state.update(config(&push("b")), &mut |_| {});
    assert_eq!(state.redelivery_queue().len(), 3);
}

#[test]
fn another_ack_wait_holds_for_what_is_pending_too() {
    const SECOND: i64 = 1_000_000_000;
    let wait = |seconds: i64| format!(r#""ack_policy":"explicit","ack_wait":{}"#, seconds * SECOND);
    let mut state = consumer(&wait(30));
    state.deliver([StreamSeq(1)].into_iter(), Wall(5 * SECOND), &mut |_| {});
    state.deliver([StreamSeq(2)].into_iter(), Wall(7 * SECOND), &mut |_| {});
    assert_eq!(state.next_due(), Some(Wall(35 * SECOND)));
    state.update(config(&wait(1)), &mut |_| {});
    assert_eq!(state.next_due(), Some(Wall(6 * SECOND)));
    state.expire(Wall(6 * SECOND), &mut |_| {});
    assert_eq!(
        state.redelivery_queue().len(),
        1,
        "the second one was delivered later"
    );
    state.update(config(&wait(60)), &mut |_| {});
    assert_eq!(
        (state.next_due(), state.redelivery_queue().len()),
        (Some(Wall(67 * SECOND)), 1)
    );
    let backoff = format!(
        r#""ack_policy":"explicit","backoff":[{},{}]"#,
        2 * SECOND,
        9 * SECOND
    );
    state.update(config(&backoff), &mut |_| {});
    assert_eq!(state.next_due(), Some(Wall(9 * SECOND)));
}

#[test]
fn a_pause_ends_by_the_log() {
    let mut state = consumer(EXPLICIT);
    state.pause(Wall(50), Wall(10));
    assert!(state.is_paused(Wall(49)) && !state.is_paused(Wall(50)));
    assert_eq!(state.next_due(), Some(Wall(50)));
    assert!(!state.expire(Wall(49), &mut |_| {}) && state.expire(Wall(50), &mut |_| {}));
    assert_eq!((state.next_due(), state.paused_until()), (None, Wall::ZERO));
    state.pause(Wall(90), Wall(60));
    state.pause(Wall::ZERO, Wall(61));
    assert!(!state.is_paused(Wall(62)));
}

#[test]
fn memory_follows_what_is_pending() {
    let mut state = consumer(r#""ack_policy":"explicit","ack_wait":30000000000,"max_ack_pending":-1"#);
    for seq in 1..=100_000 {
        state.deliver([StreamSeq(seq)].into_iter(), Wall(1), &mut |_| {});
        if seq > 1 {
            state.ack(StreamSeq(seq), AckKind::Ack, Wall(1), &mut |_| {});
        }
    }
    assert_eq!(
        (state.num_ack_pending(), state.ack_floor().stream_seq),
        (1, StreamSeq(0))
    );
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    assert!(bytes.len() < 200);
    assert!(state.pending.slots() < 200, "acknowledged messages are swept");
}

#[test]
fn damaged_bytes_are_refused() {
    let mut state = consumer(&format!(r#"{EXPLICIT},"max_deliver":1"#));
    state.deliver((1..=5).map(StreamSeq), Wall(1), &mut |_| {});
    state.expire(Wall(31 * SECOND), &mut |_| {});
    state.deliver((6..=8).map(StreamSeq), Wall(2), &mut |_| {});
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    let decode = |bytes: &[u8]| ConsumerState::decode(bytes, state.config().clone());
    assert!(decode(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "cut to {len}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(decode(&longer).is_err());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        // It may be another state, but it is one, or it is refused.
        if let Ok(mut state) = decode(&damaged) {
            state.expire(Wall(i64::MAX - 1), &mut |_| {});
            state.ack(StreamSeq(7), AckKind::Ack, Wall(3), &mut |_| {});
        }
    }
}

/// The definition of a consumer, one map of what is pending.
#[derive(Clone, Debug, Default)]
struct Model {
    delivered: u64,
    deliver_seq: u64,
    pending: BTreeMap<u64, ModelEntry>,
    exhausted: BTreeSet<u64>,
    held: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelEntry {
    deliver_seq: u64,
    count: u32,
    /// `None` while queued.
    deadline: Option<i64>,
}

const MODEL_WAIT: [i64; 2] = [10, 25];
const MODEL_MAX_DELIVER: u32 = 3;

impl Model {
    fn wait(count: u32) -> i64 {
        MODEL_WAIT[usize::try_from(count - 1).unwrap().min(1)]
    }

    fn deliver(&mut self, seq: u64, now: i64) -> Option<(u64, u32)> {
        let count = if seq > self.delivered {
            self.delivered = seq;
            let entry = ModelEntry {
                deliver_seq: self.deliver_seq + 1,
                count: 1,
                deadline: Some(now + Self::wait(1)),
            };
            self.pending.insert(seq, entry);
            1
        } else {
            let entry = self.pending.get_mut(&seq).filter(|e| e.deadline.is_none())?;
            entry.count += 1;
            entry.deadline = Some(now + Self::wait(entry.count));
            entry.count
        };
        self.deliver_seq += 1;
        Some((self.deliver_seq, count))
    }

    fn ack(&mut self, seq: u64, all: bool) -> Vec<u64> {
        let covered = |s: &u64| if all { *s <= seq } else { *s == seq };
        if seq > self.delivered {
            return Vec::new();
        }
        let mut freed: Vec<u64> = self.pending.keys().copied().filter(covered).collect();
        if !freed.is_empty() && (all || freed.len() == self.pending.len()) {
            self.held = None;
        }
        freed.extend(self.exhausted.iter().copied().filter(covered));
        self.pending.retain(|s, _| !covered(s));
        self.exhausted.retain(|s| !covered(s));
        freed
    }

    fn nak(&mut self, seq: u64, delay: Option<i64>, now: i64) {
        let Some(entry) = self.pending.get_mut(&seq) else {
            return;
        };
        entry.deadline = delay.map(|delay| now + delay);
        if delay.is_none() && entry.count >= MODEL_MAX_DELIVER {
            self.exhaust(seq);
        }
    }

    fn exhaust(&mut self, seq: u64) {
        if self.pending.keys().next() == Some(&seq) {
            self.held = Some(self.floor());
        }
        self.pending.remove(&seq);
        self.exhausted.insert(seq);
    }

    fn floor(&self) -> (u64, u64) {
        let first = self.pending.first_key_value();
        let done = first.map_or((self.delivered, self.deliver_seq), |(s, e)| {
            (s - 1, e.deliver_seq - 1)
        });
        self.held.unwrap_or(done)
    }

    /// The stream lets go of messages.
    fn gone(&mut self, is_gone: impl Fn(u64) -> bool) {
        let before = self.pending.len();
        self.pending.retain(|s, _| !is_gone(*s));
        self.exhausted.retain(|s| !is_gone(*s));
        if before > 0 && self.pending.is_empty() {
            self.held = None;
        }
    }

    fn progress(&mut self, seq: u64, now: i64) {
        if let Some(entry) = self.pending.get_mut(&seq)
            && entry.deadline.is_some()
        {
            entry.deadline = Some(now + Self::wait(entry.count));
        }
    }

    fn expire(&mut self, now: i64) -> Vec<(u64, bool)> {
        let mut out = Vec::new();
        for (seq, entry) in &mut self.pending {
            if entry.deadline.is_some_and(|due| due <= now) {
                entry.deadline = None;
                out.push((*seq, entry.count >= MODEL_MAX_DELIVER));
            }
        }
        for (seq, exhausted) in &out {
            if *exhausted {
                self.exhaust(*seq);
            }
        }
        out
    }

    fn check(&self, state: &ConsumerState) {
        let found: Vec<_> = state
            .pending
            .iter()
            .map(|e| {
                let deadline = (!e.is_queued()).then_some(e.deadline.0);
                (
                    e.seq.0,
                    ModelEntry {
                        deliver_seq: e.deliver_seq.0,
                        count: e.count,
                        deadline,
                    },
                )
            })
            .collect();
        assert_eq!(
            found,
            self.pending.iter().map(|(s, e)| (*s, *e)).collect::<Vec<_>>()
        );
        assert_eq!(state.num_ack_pending(), self.pending.len());
        assert_eq!(
            state.num_redelivered(),
            (self.pending.values().filter(|e| e.count > 1).count() + self.exhausted.len()) as u64
        );
        let queue: Vec<u64> = state.redelivery_queue().iter().map(|s| s.0).collect();
        let queued = self.pending.iter().filter(|(_, e)| e.deadline.is_none());
        assert_eq!(queue, queued.map(|(s, _)| *s).collect::<Vec<_>>());
        assert_eq!(
            state.next_due().map(|d| d.0),
            self.pending.values().filter_map(|e| e.deadline).min()
        );
        assert!(state.exhausted.iter().eq(self.exhausted.iter().copied()));
        let found = state.ack_floor();
        assert_eq!((found.stream_seq.0, found.deliver_seq.0), self.floor());
        assert_eq!(state.delivered().stream_seq.0, self.delivered);
        for seq in 1..=self.delivered + 1 {
            let wants =
                seq > self.delivered || self.pending.contains_key(&seq) || self.exhausted.contains(&seq);
            assert_eq!(state.still_wants(StreamSeq(seq)), wants, "{seq}");
        }
    }
}

/// One step; sequences and times are taken relative to the present ones.
#[derive(Clone, Debug)]
enum Step {
    DeliverNew { count: u8, gap: u64 },
    Redeliver,
    Deliver(u64),
    Ack(u64),
    Nak(u64, Option<i64>),
    Progress(u64),
    Wait(i64),
    Remove(u64),
    Purge(u64),
    Prune(u64),
    Skip,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let back = 0u64..40;
    prop_oneof![
        4 => (1u8..12, 1u64..4).prop_map(|(count, gap)| Step::DeliverNew { count, gap }),
        3 => Just(Step::Redeliver),
        1 => back.clone().prop_map(Step::Deliver),
        8 => back.clone().prop_map(Step::Ack),
        3 => (back.clone(), prop::option::of(1i64..30)).prop_map(|(seq, delay)| Step::Nak(seq, delay)),
        2 => back.clone().prop_map(Step::Progress),
        4 => (1i64..15).prop_map(Step::Wait),
        1 => back.clone().prop_map(Step::Remove),
        1 => (15u64..60).prop_map(Step::Purge),
        1 => (2u64..5).prop_map(Step::Prune),
        1 => Just(Step::Skip),
        1 => Just(Step::Restart),
    ]
}

struct Run {
    state: ConsumerState,
    model: Model,
    now: i64,
    all: bool,
}

impl Run {
    fn deliver(&mut self, seqs: Vec<u64>) {
        let mut found = Vec::new();
        self.state
            .deliver(seqs.iter().map(|s| StreamSeq(*s)), Wall(self.now), &mut |d| {
                found.push((d.stream_seq.0, d.deliver_seq.0, d.count));
            });
        let expected = seqs
            .into_iter()
            .filter_map(|s| self.model.deliver(s, self.now).map(|(d, c)| (s, d, c)));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }

    fn ack(&mut self, seq: u64, kind: AckKind) -> Vec<u64> {
        let mut freed = Vec::new();
        self.state
            .ack(StreamSeq(seq), kind, Wall(self.now), &mut |s| freed.push(s.0));
        freed.sort_unstable();
        freed
    }

    fn step(&mut self, step: &Step) {
        let back = |by: u64| (self.model.delivered + 3).saturating_sub(by).max(1);
        match *step {
            Step::DeliverNew { count, gap } => {
                let from = self.model.delivered;
                self.deliver((1..=u64::from(count)).map(|i| from + i * gap).collect());
            }
            Step::Redeliver => self.deliver(self.state.redelivery_queue().iter().map(|s| s.0).collect()),
            Step::Deliver(by) => self.deliver(vec![back(by)]),
            Step::Ack(by) => {
                let seq = back(by);
                let mut expected = self.model.ack(seq, self.all);
                expected.sort_unstable();
                assert_eq!(self.ack(seq, AckKind::Ack), expected);
            }
            Step::Nak(by, delay_ns) => {
                let seq = back(by);
                assert!(self.ack(seq, AckKind::Nak { delay_ns }).is_empty());
                self.model.nak(seq, delay_ns, self.now);
            }
            Step::Progress(by) => {
                let seq = back(by);
                assert!(self.ack(seq, AckKind::Progress).is_empty());
                self.model.progress(seq, self.now);
            }
            Step::Wait(by) => {
                self.now += by;
                let mut found = Vec::new();
                self.state
                    .expire(Wall(self.now), &mut |e| found.push((e.seq.0, e.exhausted)));
                assert_eq!(found, self.model.expire(self.now));
            }
            Step::Remove(by) => {
                let seq = back(by);
                let was = self.model.pending.contains_key(&seq);
                self.model.gone(|s| s == seq);
                assert_eq!(self.state.stream_removed(StreamSeq(seq)), was);
            }
            Step::Purge(by) => {
                let first = back(by);
                self.state.stream_purged(StreamSeq(first));
                self.model.gone(|s| s < first);
                if self.model.held.is_some_and(|(floor, _)| floor < first - 1) {
                    self.model.held = None;
                }
                self.model.delivered = self.model.delivered.max(first - 1);
            }
            Step::Prune(every) => {
                self.state.stream_pruned(&mut |s| s.0 % every != 0);
                self.model.gone(|s| s % every == 0);
            }
            Step::Skip => {
                self.model.delivered += 2;
                self.state.skip_to(StreamSeq(self.model.delivered));
            }
            Step::Restart => {
                let mut bytes = Vec::new();
                self.state.encode(&mut bytes);
                let restored = ConsumerState::decode(&bytes, self.state.config().clone()).unwrap();
                let (mut before, mut after) = (Running::default(), Running::default());
                self.state.digest(&mut before);
                restored.digest(&mut after);
                assert_eq!(before, after);
                self.state = restored;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn behaves_like_the_model(steps in prop::collection::vec(step(), 1..120), all in any::<bool>()) {
        let policy = if all { "all" } else { "explicit" };
        let fields = format!(
            r#""ack_policy":"{policy}","ack_wait":10,"backoff":[10,25],"max_deliver":{MODEL_MAX_DELIVER}"#
        );
        let mut run = Run { state: consumer(&fields), model: Model::default(), now: 100, all };
        for step in steps {
            run.step(&step);
            run.model.check(&run.state);
        }
    }
}

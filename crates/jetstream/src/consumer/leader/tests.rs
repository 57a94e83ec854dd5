use super::*;
use crate::consumer::AckKind;
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use tidelock_base::{ConsumerId, Wall};

const SECOND: u64 = 1_000_000_000;

/// A stream of which every message matches.
#[derive(Default)]
struct Stream {
    messages: BTreeMap<u64, u32>,
    last: u64,
    deaf: BTreeSet<Vec<u8>>,
    cold: Cell<bool>,
}

impl Stream {
    fn store(&mut self, count: u64, bytes: u32) {
        for _ in 0..count {
            self.last += 1;
            self.messages.insert(self.last, bytes);
        }
    }
}

impl Lookup for Stream {
    fn next_match(&self, from: StreamSeq) -> Next {
        if self.cold.get() {
            return Next::Cold;
        }
        let next = self.messages.range(from.0..).next();
        next.map_or(Next::End, |(seq, bytes)| Next::Seq(StreamSeq(*seq), *bytes))
    }

    fn message(&self, seq: StreamSeq) -> Next {
        self.messages
            .get(&seq.0)
            .map_or(Next::End, |bytes| Next::Seq(seq, *bytes))
    }

    fn last_seq(&self) -> StreamSeq {
        StreamSeq(self.last)
    }

    fn num_pending(&self, from: StreamSeq) -> u64 {
        u64::try_from(self.messages.range(from.0..).count()).unwrap()
    }

    fn is_listening(&self, subject: &[u8]) -> bool {
        !self.deaf.contains(subject)
    }
}

/// A consumer, its leader and its stream; what leaves is written down in the order in which it leaves.
struct World {
    stream: Stream,
    state: ConsumerState,
    leader: ConsumerLeader,
    now: u64,
    log: Vec<String>,
}

impl World {
    fn new(fields: &str) -> Self {
        let config = config(fields);
        let state = ConsumerState::new(ConsumerId(1), 1, config, Wall(0), StreamSeq(1));
        let names = Names {
            ack_prefix: Bytes::from_static(b"$JS.ACK.S.C."),
            flow_prefix: Bytes::from_static(b"$JS.FC.S.C."),
        };
        let leader = ConsumerLeader::new(Mono(0), &state, names);
        Self {
            stream: Stream::default(),
            state,
            leader,
            now: 0,
            log: Vec::new(),
        }
    }

    fn mono(&self) -> Mono {
        Mono(self.now)
    }

    fn wall(&self) -> Wall {
        Wall(i64::try_from(self.now).unwrap())
    }

    fn store(&mut self, count: u64, bytes: u32) {
        for _ in 0..count {
            self.stream.store(1, bytes);
            self.leader.stored(StreamSeq(self.stream.last));
        }
    }

    fn pull(&mut self, inbox: &'static str, body: &str) {
        let reply = Bytes::from_static(inbox.as_bytes());
        let mut notices = Vec::new();
        self.leader.pull(
            self.mono(),
            reply,
            body.as_bytes(),
            &self.state,
            &self.stream,
            &mut notices,
        );
        self.note(notices);
    }

    fn note(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            self.log.push(match notice {
                Notice::Ended { to } => format!("{} ended", text(&to)),
                Notice::Status { to, reply, status } => {
                    let mut out = Vec::new();
                    status.render(&mut out);
                    let lines: Vec<String> = text(&out).split("\r\n").map(str::to_owned).collect();
                    let headers = lines[1..].iter().filter(|l| !l.is_empty());
                    let headers: Vec<&str> = headers
                        .filter_map(|l| l.split_once(": ").map(|(_, v)| v))
                        .collect();
                    let reply = reply.map(|r| format!(" [{}]", text(&r))).unwrap_or_default();
                    let headers = if headers.is_empty() {
                        String::new()
                    } else {
                        format!(" {}", headers.join(","))
                    };
                    format!("{} {}{headers}{reply}", text(&to), &lines[0][9..])
                }
            });
        }
    }

    fn send(&mut self, outgoing: &Outgoing) {
        let Delivered {
            stream_seq,
            deliver_seq,
            count,
        } = outgoing.delivered;
        let line = format!(
            "{} msg {stream_seq} {deliver_seq} x{count} left {}",
            text(&outgoing.to),
            outgoing.num_pending
        );
        self.log.push(line);
    }

    fn pick(&mut self, budget: usize) -> (Vec<Pick>, Stop) {
        let (mut picks, mut notices) = (Vec::new(), Vec::new());
        let now = Now {
            mono: self.mono(),
            wall: self.wall(),
        };
        let stop = self
            .leader
            .pick(now, &self.state, &self.stream, budget, &mut picks, &mut notices);
        for outgoing in picks.iter().filter_map(|pick| pick.now.clone()) {
            self.send(&outgoing);
        }
        self.note(notices);
        (picks, stop)
    }

    /// Applies a Deliver command of these picks, as the stream would.
    fn apply(&mut self, picks: &[Pick]) {
        let seqs = picks
            .iter()
            .map(|p| p.seq)
            .filter(|seq| self.stream.messages.contains_key(&seq.0));
        let mut delivered = Vec::new();
        self.state.deliver(seqs, self.wall(), &mut |d| delivered.push(d));
        for d in delivered {
            let mut notices = Vec::new();
            if let Some(outgoing) = self.leader.on_delivered(self.mono(), &d, &mut notices) {
                self.send(&outgoing);
            }
            self.note(notices);
        }
        if let Some(last) = picks.last() {
            let mut notices = Vec::new();
            self.leader.applied(last.ticket, &mut notices);
            self.note(notices);
        }
    }

    fn run(&mut self) -> Stop {
        let (picks, stop) = self.pick(100);
        self.apply(&picks);
        stop
    }

    fn tick(&mut self, after: u64) {
        self.now += after;
        let mut notices = Vec::new();
        self.leader.tick(self.mono(), &mut notices);
        self.note(notices);
    }

    fn ack(&mut self, seq: u64) {
        self.state
            .ack(StreamSeq(seq), AckKind::Ack, self.wall(), &mut |_| {});
    }

    #[track_caller]
    fn expect(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.log), expected);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn config(fields: &str) -> ConsumerConfig {
    ConsumerConfig::decode(&[b"\x01{\"name\":\"C\",", fields.as_bytes(), b"}"].concat()).unwrap()
}

const PULL: &str =
    r#""ack_policy":"explicit","ack_wait":30000000000,"max_waiting":512,"max_ack_pending":1000"#;

#[test]
fn requests_are_served_in_turn() {
    let mut world = World::new(PULL);
    world.pull("a", "3");
    world.pull("b", "2");
    world.store(4, 10);
    assert_eq!(world.run(), Stop::End);
    world.expect(&[
        "a msg 1 1 x1 left 3",
        "b msg 2 2 x1 left 2",
        "a msg 3 3 x1 left 1",
        "b msg 4 4 x1 left 0",
        "b ended",
    ]);
    assert_eq!(world.leader.num_waiting(), 1);
    world.store(1, 10);
    assert_eq!(world.run(), Stop::NoDemand);
    world.expect(&["a msg 5 5 x1 left 0", "a ended"]);
}

#[test]
fn nothing_is_picked_twice_while_a_pick_is_on_its_way() {
    let mut world = World::new(PULL);
    world.store(3, 10);
    world.pull("a", "10");
    let (first, _) = world.pick(2);
    let (second, stop) = world.pick(10);
    assert_eq!((first.len(), second.len(), stop), (2, 1, Stop::End));
    world.expect(&[]);
    world.apply(&first);
    world.apply(&second);
    world.expect(&[
        "a msg 1 1 x1 left 2",
        "a msg 2 2 x1 left 1",
        "a msg 3 3 x1 left 0",
    ]);
    // A redelivery is picked once as well.
    world.state.ack(
        StreamSeq(2),
        AckKind::Nak { delay_ns: None },
        Wall(1),
        &mut |_| {},
    );
    let (again, _) = world.pick(10);
    assert_eq!(again.len(), 1);
    assert!(world.pick(10).0.is_empty());
    world.apply(&again);
    world.expect(&["a msg 2 4 x2 left 0"]);
}

#[test]
fn redeliveries_come_first_in_the_order_of_the_stream() {
    let mut world = World::new(PULL);
    world.store(5, 10);
    world.pull("a", "3");
    world.run();
    for seq in [3, 1] {
        world.state.ack(
            StreamSeq(seq),
            AckKind::Nak { delay_ns: None },
            Wall(1),
            &mut |_| {},
        );
    }
    world.log.clear();
    world.pull("b", "3");
    world.run();
    world.expect(&[
        "b msg 1 4 x2 left 2",
        "b msg 3 5 x2 left 2",
        "b msg 4 6 x1 left 1",
        "b ended",
    ]);
}

#[test]
fn a_pick_without_effect_is_given_back() {
    let mut world = World::new(PULL);
    world.store(3, 10);
    world.pull("a", r#"{"batch":2,"max_bytes":1000}"#);
    let (picks, stop) = world.pick(10);
    assert_eq!(
        (picks.len(), stop, world.leader.num_waiting()),
        (2, Stop::NoDemand, 0)
    );
    // The first message leaves the stream before the command is applied.
    world.stream.messages.remove(&1);
    world.apply(&picks);
    world.expect(&["a msg 2 1 x1 left 1"]);
    assert_eq!((world.leader.num_waiting(), world.leader.num_in_flight()), (1, 0));
    world.run();
    // 1000 less, twice, 10 bytes of message and 39 of ack subject.
    world.expect(&["a msg 3 2 x1 left 0", "a 409 Batch Completed 0,902", "a ended"]);
}

#[test]
fn max_ack_pending_counts_what_is_on_its_way() {
    let mut world =
        World::new(r#""ack_policy":"explicit","ack_wait":30000000000,"max_waiting":512,"max_ack_pending":2"#);
    world.store(5, 10);
    world.pull("a", "10");
    let (picks, stop) = world.pick(10);
    assert_eq!((picks.len(), stop), (2, Stop::MaxAckPending));
    assert_eq!(world.pick(10).1, Stop::MaxAckPending);
    world.apply(&picks);
    world.ack(1);
    world.state.ack(
        StreamSeq(2),
        AckKind::Nak { delay_ns: None },
        Wall(1),
        &mut |_| {},
    );
    world.log.clear();
    // The redelivery does not need room, and leaves room for one new message.
    assert_eq!(world.run(), Stop::MaxAckPending);
    world.expect(&["a msg 2 3 x2 left 3", "a msg 3 4 x1 left 2"]);
}

#[test]
fn requests_that_do_not_wait_end_with_the_stream() {
    let mut world = World::new(PULL);
    world.pull("a", r#"{"batch":2,"no_wait":true}"#);
    world.expect(&["a 404 No Messages", "a ended"]);
    world.store(1, 10);
    world.pull("b", r#"{"batch":2,"no_wait":true}"#);
    world.pull("c", r#"{"batch":2,"no_wait":true}"#);
    world.expect(&["c 408 Requests Pending", "c ended"]);
    world.run();
    world.expect(&["b msg 1 1 x1 left 0", "b 404 No Messages", "b ended"]);
    // With time to spare it waits for its first message.
    world.pull("d", r#"{"batch":3,"no_wait":true,"expires":5000000000}"#);
    world.run();
    world.expect(&[]);
    world.store(1, 10);
    world.run();
    world.expect(&["d msg 2 2 x1 left 0", "d 404 No Messages", "d ended"]);
    world.pull("e", r#"{"batch":3,"no_wait":true,"expires":5000000000}"#);
    world.tick(5 * SECOND);
    world.expect(&["e 408 Request Timeout 3,0", "e ended"]);
}

#[test]
fn time_ends_requests_and_heartbeats_bridge_it() {
    let mut world = World::new(PULL);
    world.pull(
        "a",
        r#"{"batch":3,"expires":5000000000,"idle_heartbeat":2000000000}"#,
    );
    assert_eq!(world.leader.next_deadline(), Some(Mono(2 * SECOND)));
    world.tick(2 * SECOND);
    world.expect(&["a 100 Idle Heartbeat 0,0"]);
    world.tick(SECOND);
    world.store(1, 10);
    world.run();
    world.expect(&["a msg 1 1 x1 left 0"]);
    // The delivery put the heartbeat off to the fifth second, where the request ends.
    world.tick(SECOND);
    world.expect(&[]);
    world.tick(SECOND);
    world.expect(&["a 408 Request Timeout 2,0", "a ended"]);
    assert_eq!(world.leader.next_deadline(), None);
}

#[test]
fn the_last_status_follows_messages_on_their_way() {
    let mut world = World::new(PULL);
    world.store(1, 10);
    world.pull("a", r#"{"batch":3,"expires":5000000000}"#);
    let (picks, _) = world.pick(10);
    world.tick(6 * SECOND);
    world.expect(&[]);
    world.apply(&picks);
    world.expect(&["a msg 1 1 x1 left 0", "a 408 Request Timeout 2,0", "a ended"]);
}

#[test]
fn bytes_are_counted() {
    let mut world = World::new(PULL);
    world.store(3, 13);
    // 13 bytes of subject and payload, 39 of ack subject each, as nats-server counts them.
    world.pull("a", r#"{"batch":2,"max_bytes":1000,"expires":500000000}"#);
    world.run();
    world.expect(&[
        "a msg 1 1 x1 left 2",
        "a msg 2 2 x1 left 1",
        "a 409 Batch Completed 0,896",
        "a ended",
    ]);
    world.pull("b", r#"{"batch":2,"max_bytes":10}"#);
    world.pull("c", "1");
    world.run();
    world.expect(&[
        "b 409 Message Size Exceeds MaxBytes 2,10",
        "b ended",
        "c msg 3 3 x1 left 0",
        "c ended",
    ]);
}

#[test]
fn requests_are_refused_as_nats_server_refuses_them() {
    let limits =
        r#""max_batch":5,"max_expires":90000000000,"max_bytes":50,"ack_policy":"explicit","max_waiting":2"#;
    let mut world = World::new(limits);
    for (body, status) in [
        (r#"{"batch":6}"#, "409 Exceeded MaxRequestBatch of 5"),
        (
            r#"{"batch":1,"expires":91500000000}"#,
            "409 Exceeded MaxRequestExpires of 1m30s",
        ),
        (
            r#"{"batch":1,"max_bytes":51}"#,
            "409 Exceeded MaxRequestMaxBytes of 50",
        ),
        (
            r#"{"batch":1,"idle_heartbeat":1000000000}"#,
            "400 Bad Request - heartbeat value too large",
        ),
        (
            r#"{"batch":1,"min_pending":3}"#,
            "400 Bad Request - Not a Overflow Priority consumer",
        ),
        (
            r#"{"batch":1,"id":"x"}"#,
            "400 Bad Request - Not a Pinned Client Priority consumer",
        ),
        (
            r#"{"batch":1,"priority":11}"#,
            "400 Bad Request - Priority must be between 0 and 9",
        ),
        (r#"{"batch":1,"no_wait":true}"#, "404 No Messages"),
    ] {
        world.pull("a", body);
        world.expect(&[&format!("a {status}"), "a ended"]);
    }
    world.pull("a", "{bad");
    assert!(
        world.log[0].starts_with("a 400 Bad Request - "),
        "{:?}",
        world.log
    );
    world.log.clear();

    for body in ["", "[1]"] {
        world.pull("a", body);
        world.expect(&[]);
    }
    world.pull("b", "1");
    world.pull(
        "c",
        r#"{"batch":1,"expires":9000000000,"idle_heartbeat":1000000000}"#,
    );
    world.expect(&["b 409 Exceeded MaxWaiting", "b ended", "c ended"]);
    world.store(3, 1);
    world.run();
    world.expect(&["a msg 1 1 x1 left 2", "a ended", "a msg 2 2 x1 left 1", "a ended"]);

    let mut push = World::new(r#""ack_policy":"none","deliver_subject":"d""#);
    push.pull("a", "1");
    push.expect(&["a 409 Consumer is push based", "a ended"]);
}

#[test]
fn a_request_whose_client_has_gone_is_passed_over() {
    let mut world = World::new(PULL);
    world.pull("a", "1");
    world.pull("b", "1");
    world.stream.deaf.insert(b"a".to_vec());
    world.store(1, 10);
    world.run();
    world.expect(&["a ended", "b msg 1 1 x1 left 0", "b ended"]);
}

#[test]
fn a_pause_and_a_cold_message_hold_delivery_back() {
    let mut world = World::new(PULL);
    world.pull("a", "1");
    world.store(1, 10);
    world.state.pause(Wall(1000), Wall(1));
    assert_eq!(world.run(), Stop::Paused);
    world.now = 1000;
    world.stream.cold.set(true);
    assert_eq!(world.run(), Stop::Cold);
    world.stream.cold.set(false);
    assert_eq!(world.run(), Stop::NoDemand);
    world.expect(&["a msg 1 1 x1 left 0", "a ended"]);
}

/// Who does not wait is told so while delivery is paused, and gets nothing when it goes on.
#[test]
fn requests_that_do_not_wait_do_not_wait_for_the_end_of_a_pause() {
    let mut world = World::new(PULL);
    world.store(1, 10);
    world.state.pause(Wall(1000), Wall(1));
    world.pull("a", r#"{"batch":1,"no_wait":true}"#);
    world.pull("b", r#"{"batch":1,"no_wait":true,"expires":5000000000}"#);
    assert_eq!(world.run(), Stop::Paused);
    world.expect(&["a 404 No Messages", "a ended"]);
    world.now = 1000;
    world.run();
    world.expect(&["b msg 1 1 x1 left 0", "b ended"]);
}

#[test]
fn closing_tells_everyone_who_waits() {
    let mut world = World::new(PULL);
    world.pull("a", "2");
    world.pull("b", "3");
    let mut notices = Vec::new();
    world.leader.close(|_| Status::ConsumerDeleted, &mut notices);
    world.note(notices);
    world.expect(&[
        "a 409 Consumer Deleted",
        "a ended",
        "b 409 Consumer Deleted",
        "b ended",
    ]);
    world.pull("c", "1");
    let mut notices = Vec::new();
    world.leader.close(Status::ServerShutdown, &mut notices);
    world.note(notices);
    world.expect(&["c 409 Server Shutdown 1,0", "c ended"]);
}

#[test]
fn without_acknowledgements_messages_leave_at_once() {
    let mut world = World::new(r#""ack_policy":"none","max_waiting":512"#);
    world.store(3, 10);
    world.pull("a", "2");
    let (picks, _) = world.pick(10);
    assert!(picks.iter().all(|pick| pick.now.is_some()));
    world.expect(&["a msg 1 1 x1 left 2", "a msg 2 2 x1 left 1", "a ended"]);
    let sent = world.leader.progress(&world.state).unwrap();
    assert_eq!((sent.stream_seq.0, sent.deliver_seq.0), (2, 2));
    // An edit that is applied before the progress does not make them leave again; a reset does.
    let mut notices = Vec::new();
    world.state.update(world.state.config().clone(), &mut |_| {});
    world.leader.sync(Mono(0), &world.state, &mut notices);
    world.pull("b", "1");
    world.run();
    world.expect(&["b msg 3 3 x1 left 0", "b ended"]);
    world.state.progress(world.leader.sent(), Wall(1));
    assert_eq!(world.leader.progress(&world.state), None);
    world.state.reset(StreamSeq(2));
    world.leader.sync(Mono(0), &world.state, &mut notices);
    world.pull("c", "1");
    world.run();
    world.expect(&["c msg 2 1 x1 left 1", "c ended"]);
}

#[test]
fn an_edit_gives_back_what_is_on_its_way() {
    let mut world = World::new(PULL);
    world.store(2, 10);
    world.pull("a", "2");
    let (picks, _) = world.pick(10);
    world
        .state
        .update(config(&format!("{PULL},\"description\":\"x\"")), &mut |_| {});
    let mut notices = Vec::new();
    world.leader.sync(Mono(0), &world.state, &mut notices);
    // The command of the old epoch has no effect.
    world.leader.applied(picks[1].ticket, &mut notices);
    assert!(notices.is_empty());
    world.run();
    world.expect(&["a msg 1 1 x1 left 1", "a msg 2 2 x1 left 0", "a ended"]);
}

#[test]
fn a_push_consumer_delivers_while_somebody_listens() {
    let mut world =
        World::new(r#""ack_policy":"explicit","deliver_subject":"d","idle_heartbeat":5000000000"#);
    world.store(2, 10);
    assert_eq!(world.run(), Stop::NoDemand);
    world.tick(9 * SECOND);
    world.expect(&[]);
    world.leader.set_interest(world.mono(), true);
    assert!(world.leader.is_push_bound());
    assert_eq!(world.run(), Stop::End);
    world.expect(&["d msg 1 1 x1 left 1", "d msg 2 2 x1 left 0"]);
    world.tick(4 * SECOND);
    world.expect(&[]);
    world.tick(SECOND);
    world.expect(&["d 100 Idle Heartbeat 2,2"]);
    world.leader.set_interest(world.mono(), false);
    assert_eq!(world.leader.next_deadline(), None);
}

#[test]
fn flow_control_grows_with_each_answer_and_stops_without_one() {
    let fields =
        r#""ack_policy":"none","deliver_subject":"d","idle_heartbeat":5000000000,"flow_control":true"#;
    let mut world = World::new(fields);
    world.leader.set_interest(Mono(0), true);
    let mib = 1024 * 1024;
    world.store(20, mib);
    // The window is 2 MiB: past 1 MiB comes the request, past 2 MiB nothing.
    assert_eq!(world.pick(100).1, Stop::FlowControl);
    world.expect(&[
        "d msg 1 1 x1 left 19",
        "d msg 2 2 x1 left 18",
        "d 100 FlowControl Request [$JS.FC.S.C.0000]",
    ]);
    world.tick(5 * SECOND);
    world.expect(&["d 100 Idle Heartbeat 2,2,$JS.FC.S.C.0000"]);
    assert!(!world.leader.flow_answered(b"$JS.FC.S.C.0009"));
    assert!(world.leader.flow_answered(b"$JS.FC.S.C.0000"));
    assert!(
        !world.leader.flow_answered(b"$JS.FC.S.C.0000"),
        "each request is answered once"
    );
    // The answer covered the first message, the window is 4 MiB now.
    assert_eq!(world.pick(100).1, Stop::FlowControl);
    let messages = world.log.iter().filter(|line| line.contains("msg")).count();
    assert_eq!(
        (messages, world.log.last().unwrap().as_str()),
        (3, "d 100 FlowControl Request [$JS.FC.S.C.0001]")
    );
}

#[test]
fn idleness_is_told_from_use() {
    let mut world = World::new(&format!(r#"{PULL},"inactive_threshold":5000000000"#));
    assert_eq!(world.leader.idle_at(&world.state), Some(Mono(5 * SECOND)));
    world.now = SECOND;
    world.pull("a", "1");
    assert_eq!(world.leader.idle_at(&world.state), None, "a request waits");
    world.store(1, 1);
    world.run();
    assert_eq!(
        world.leader.idle_at(&world.state),
        Some(Mono(36 * SECOND)),
        "an acknowledgement may come"
    );
    world.now = 3 * SECOND;
    world.ack(1);
    world.leader.touched(world.mono());
    assert_eq!(world.leader.idle_at(&world.state), Some(Mono(8 * SECOND)));
}

#[test]
fn the_number_of_pending_messages_is_kept() {
    let mut world = World::new(PULL);
    world.store(5, 10);
    assert_eq!(world.leader.num_pending(&world.state, &world.stream), 5);
    world.store(2, 10);
    world.stream.messages.remove(&4);
    world.leader.removed(StreamSeq(4));
    assert_eq!(world.leader.num_pending(&world.state, &world.stream), 6);
    world.pull("a", "2");
    world.run();
    assert_eq!(world.leader.num_pending(&world.state, &world.stream), 4);
    world.state.ack(
        StreamSeq(1),
        AckKind::Nak { delay_ns: None },
        Wall(1),
        &mut |_| {},
    );
    assert_eq!(world.leader.num_pending(&world.state, &world.stream), 5);
    world.stream.messages.clear();
    world.state.stream_removed(StreamSeq(1));
    world.leader.recount();
    assert_eq!(world.leader.num_pending(&world.state, &world.stream), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Store(u64),
    Pull { batch: u8, kind: u8 },
    Pick(usize),
    Apply,
    Ack(u64),
    Nak(u64),
    Wait(u64),
    Remove(u64),
    Edit,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u64..6).prop_map(Step::Store),
        4 => (1u8..6, 0u8..5).prop_map(|(batch, kind)| Step::Pull { batch, kind }),
        6 => (1usize..8).prop_map(Step::Pick),
        5 => Just(Step::Apply),
        4 => (0u64..20).prop_map(Step::Ack),
        2 => (0u64..20).prop_map(Step::Nak),
        2 => (1u64..4).prop_map(Step::Wait),
        1 => (0u64..20).prop_map(Step::Remove),
        1 => Just(Step::Edit),
    ]
}

/// Requests by their inboxes, each used once: messages wanted, messages got, and whether it has ended.
type Requests = BTreeMap<String, (u64, u64, bool)>;

/// Reads what has left: a request gets no more than it asked for, nothing after it has ended, and ends once; a message
/// is never delivered again without having been queued for it.
fn audit(world: &mut World, requests: &mut Requests, counts: &mut BTreeMap<u64, u64>) {
    for line in std::mem::take(&mut world.log) {
        let words: Vec<&str> = line.split(' ').collect();
        let request = requests.get_mut(words[0]).unwrap();
        assert!(!request.2, "after the end: {line}");
        if words[1] == "msg" {
            request.1 += 1;
            assert!(request.1 <= request.0, "too many: {line}");
            let count = counts.entry(words[2].parse().unwrap()).or_default();
            *count += 1;
            assert_eq!(format!("x{count}"), words[4], "{line}");
        }
        request.2 = words[1] == "ended";
    }
}

fn inbox(number: usize) -> &'static str {
    Box::leak(format!("i{number}").into_boxed_str())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_request_is_served_and_ends_once(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new(
            r#""ack_policy":"explicit","ack_wait":3000000000,"max_waiting":8,"max_ack_pending":6"#,
        );
        let (mut requests, mut counts, mut commands) = (Requests::new(), BTreeMap::new(), VecDeque::new());
        for step in steps {
            let picked = world.state.delivered().stream_seq.0;
            match step {
                Step::Store(count) => world.store(count, 10),
                Step::Pull { batch, kind } => {
                    let name = inbox(requests.len());
                    requests.insert(name.to_owned(), (batch.into(), 0, false));
                    let rest = match kind {
                        0 => r#","no_wait":true"#,
                        1 => r#","expires":2000000000"#,
                        2 => r#","expires":2000000000,"no_wait":true"#,
                        3 => r#","max_bytes":120"#,
                        _ => "",
                    };
                    world.pull(name, &format!(r#"{{"batch":{batch}{rest}}}"#));
                }
                Step::Pick(budget) => {
                    let (picks, _) = world.pick(budget);
                    commands.push_back((world.state.epoch(), picks));
                }
                Step::Apply => {
                    if let Some((epoch, picks)) = commands.pop_front() {
                        let picks: Vec<Pick> = picks;
                        if world.state.accepts_deliver(epoch) {
                            world.apply(&picks);
                        } else if let Some(last) = picks.last() {
                            let mut notices = Vec::new();
                            world.leader.applied(last.ticket, &mut notices);
                            world.note(notices);
                        }
                    }
                }
                Step::Ack(back) => world.ack(picked.saturating_sub(back)),
                Step::Nak(back) => {
                    let seq = StreamSeq(picked.saturating_sub(back));
                    world.state.ack(seq, AckKind::Nak { delay_ns: None }, world.wall(), &mut |_| {});
                }
                Step::Wait(seconds) => {
                    world.tick(seconds * SECOND);
                    world.state.expire(world.wall(), &mut |_| {});
                }
                Step::Remove(back) => {
                    let seq = StreamSeq((picked + 4).saturating_sub(back));
                    if world.stream.messages.remove(&seq.0).is_some() {
                        world.state.stream_removed(seq);
                        world.leader.removed(seq);
                    }
                }
                Step::Edit => {
                    world.state.update(world.state.config().clone(), &mut |_| {});
                    let mut notices = Vec::new();
                    world.leader.sync(world.mono(), &world.state, &mut notices);
                    world.note(notices);
                }
            }
            audit(&mut world, &mut requests, &mut counts);
            let pending = world.state.num_ack_pending();
            prop_assert!(pending <= 6, "{pending} acknowledgements are pending");
            let counted = world.leader.num_pending;
            if let Some(counted) = counted {
                prop_assert_eq!(counted, world.stream.num_pending(world.leader.next_seq));
            }
        }
        // In the end everything that is on its way arrives, and everything is delivered to who keeps asking.
        while let Some((epoch, picks)) = commands.pop_front() {
            if world.state.accepts_deliver(epoch) {
                world.apply(&picks);
            }
        }
        for _ in 0..100 {
            world.now += 4 * SECOND;
            world.tick(0);
            world.state.expire(world.wall(), &mut |_| {});
            let name = inbox(requests.len());
            requests.insert(name.to_owned(), (9, 0, false));
            world.pull(name, "9");
            world.run();
            audit(&mut world, &mut requests, &mut counts);
            for seq in 1..=world.state.delivered().stream_seq.0 {
                world.ack(seq);
            }
        }
        prop_assert_eq!(world.leader.num_in_flight(), 0);
        prop_assert_eq!(world.leader.num_pending(&world.state, &world.stream), 0);
        prop_assert_eq!(world.state.num_ack_pending(), 0);
        let open = requests.values().filter(|(_, _, ended)| !ended).count();
        prop_assert_eq!(open, world.leader.num_waiting());
    }
}

//! Entries of a stream's log, applied by two replicas that stop at different places.

use std::sync::OnceLock;

use bytes::Bytes;
use tidelock_api::{ConsumerConfig as ConsumerRequest, StreamConfig as StreamRequest, decode_strict};
use tidelock_base::{BootId, ConsumerId, LogIndex, StreamSeq, Term, Wall, WorkerId};
use tidelock_jetstream::command::{EntryBuilder, SetAction, WindowKey};
use tidelock_jetstream::config::{
    ConfigLimits, ConsumerContext, StreamConfig, StreamMap, validate_consumer, validate_stream,
};
use tidelock_jetstream::consumer::AckKind;
use tidelock_jetstream::stream::{NoEffects, Step, Stream};
use tidelock_record::FilePath;
use tidelock_store::{StoreConfig, StoreKind};

const SECOND: i64 = 1_000_000_000;
const KEY: WindowKey = WindowKey {
    boot: BootId(1),
    worker: WorkerId(0),
};
/// Configurations of the stream, chosen by the first byte.
const STREAMS: [&str; 4] = [
    r#"{"name":"S","subjects":["a.>"],"storage":"memory","allow_rollup_hdrs":true,"allow_msg_ttl":true,"max_age":60000000000}"#,
    r#"{"name":"S","subjects":["a.>"],"storage":"memory","retention":"workqueue","max_msgs":9}"#,
    r#"{"name":"S","subjects":["a.>"],"storage":"memory","retention":"interest","max_msgs_per_subject":2,"discard":"new"}"#,
    r#"{"name":"S","subjects":["a.>"],"storage":"memory","max_bytes":900,"duplicate_window":1000000000,"max_msgs":5}"#,
];
const CONSUMERS: [&str; 4] = [
    r#"{"durable_name":"c","ack_policy":"explicit","filter_subject":"a.1","max_deliver":2}"#,
    r#"{"durable_name":"c","ack_policy":"explicit","backoff":[1000000000,2000000000],"max_deliver":3}"#,
    r#"{"durable_name":"c","ack_policy":"all","max_ack_pending":3}"#,
    r#"{"durable_name":"c","ack_policy":"none","deliver_policy":"last"}"#,
];
const HEADERS: [&[u8]; 8] = [
    b"",
    b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Sequence: 2\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: all\r\nNats-Msg-Id: 2\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: 2s\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: never\r\nNats-Expected-Last-Msg-Id: 1\r\n\r\n",
];

/// The first byte chooses the stream, and whether what follows is taken as the commands of one entry as they are, or
/// as small commands of four bytes each.
pub fn stream(data: &[u8]) {
    let Some((&mode, rest)) = data.split_first() else {
        return;
    };
    let mut twins = [create(mode), create(mode)];
    let mut bed = Bed {
        entry: EntryBuilder::new(),
        now: SECOND,
        index: 1,
        number: 0,
    };
    if mode & 4 != 0 {
        let mut entry = vec![1, 0, 0, 0, 0, 0, 0, 0];
        entry.extend_from_slice(&SECOND.to_le_bytes());
        entry.extend_from_slice(rest);
        bed.apply(&mut twins, Bytes::from(entry));
        return;
    }
    for four in rest.chunks_exact(4) {
        let [kind, a, b, c] = *four.first_chunk().unwrap_or(&[0; 4]);
        bed.command(kind, a, b, c);
        if kind & 128 == 0
            && let Some(entry) = bed.entry.finish(Wall(bed.now))
            && !bed.apply(&mut twins, entry)
        {
            return;
        }
    }
}

/// What is chosen from, checked and encoded once.
struct Configs {
    streams: Vec<StreamConfig>,
    consumers: Vec<Vec<u8>>,
}

fn configs() -> &'static Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let limits = ConfigLimits::default();
        let streams = STREAMS.map(|text| {
            let request: StreamRequest = decode_strict(text.as_bytes(), true).expect("it is written above");
            validate_stream(&request, &limits, &StreamMap::default(), false).expect("it is written above")
        });
        let [stream, ..] = &streams;
        let context = ConsumerContext {
            stream,
            limits: &limits,
            now: Wall(0),
            auto_name: "AbCdEf01",
        };
        let consumers = CONSUMERS.map(|text| {
            let request: ConsumerRequest = decode_strict(text.as_bytes(), true).expect("it is written above");
            let valid = validate_consumer(&request, &context, false);
            valid.expect("it is written above").encode()
        });
        Configs {
            streams: streams.to_vec(),
            consumers: consumers.to_vec(),
        }
    })
}

fn create(choice: u8) -> Stream {
    let config = configs().streams.get(usize::from(choice % 4));
    let files = FilePath::new("s").expect("a valid path");
    let store = StoreConfig::new(StoreKind::Memory, files);
    Stream::create(config.expect("one of four").clone(), Wall(0), store)
}

/// The log under way.
struct Bed {
    entry: EntryBuilder,
    now: i64,
    index: u64,
    number: u64,
}

impl Bed {
    /// Adds one command with small numbers.
    fn command(&mut self, kind: u8, a: u8, b: u8, c: u8) {
        let (consumer, epoch) = (ConsumerId(u64::from(a % 4)), u32::from(a >> 6));
        let seq = |n: u8| StreamSeq(u64::from(n % 32));
        let name = ["c", "d"].get(usize::from(a % 2)).copied().unwrap_or_default();
        let entry = &mut self.entry;
        match kind % 12 {
            0..=3 => {
                self.number += 1;
                let subject = [b'a', b'.', b'0' + a % 4];
                let header = HEADERS.get(usize::from(b % 8)).copied().unwrap_or_default();
                let body = vec![0; usize::from(c)];
                let _ = entry.publish_parts(KEY, self.number, self.number / 2, [&subject, header, &body]);
            }
            4 => _ = entry.deliver(consumer, epoch, [seq(b), seq(c)]),
            5 => {
                let verbs = [
                    AckKind::Ack,
                    AckKind::Nak { delay_ns: None },
                    AckKind::Nak {
                        delay_ns: Some(SECOND),
                    },
                    AckKind::Term,
                    AckKind::Progress,
                ];
                let verb = verbs
                    .get(usize::from(a >> 2) % 5)
                    .copied()
                    .unwrap_or(AckKind::Ack);
                _ = entry.acks(consumer, epoch, verb, &[(seq(b), seq(c))], b"");
            }
            6 => {
                let action = [SetAction::Create, SetAction::Update, SetAction::CreateOrUpdate];
                let action = action
                    .get(usize::from(c % 3))
                    .copied()
                    .unwrap_or(SetAction::Create);
                let config = configs()
                    .consumers
                    .get(usize::from(b % 4))
                    .map_or(&b""[..], Vec::as_slice);
                _ = entry.consumer_set(action, 3, name, config);
            }
            7 => _ = entry.consumer_delete(name),
            8 => {
                _ = entry.purge(
                    (a & 1 != 0).then_some(b"a.1"),
                    (b != 0).then(|| seq(b)),
                    (c > 200).then_some(1),
                )
            }
            9 => _ = entry.msg_delete(seq(b)),
            10 => {
                self.now += i64::from(a) * SECOND / 8;
                _ = entry.expire_through();
            }
            _ => _ = entry.consumer_reset(name, (b != 0).then(|| seq(b))),
        }
    }

    /// Applies an entry at both, the one in the smallest steps; they must agree about it, and afterwards.
    fn apply(&mut self, twins: &mut [Stream; 2], entry: Bytes) -> bool {
        self.index += 1;
        let [one, other] = twins;
        let results = [(one, 1), (other, 1000)].map(|(stream, budget)| {
            if let Err(error) = stream.begin(LogIndex(self.index), Term(1), entry.clone()) {
                return Err(error.to_string());
            }
            loop {
                match stream.step(budget, &mut NoEffects) {
                    Ok(Step::More) => {}
                    Ok(Step::Done) => return Ok(stream.digest()),
                    Ok(Step::Need(_) | Step::Damaged(_)) => panic!("everything is in memory"),
                    Err(error) => return Err(error.to_string()),
                }
            }
        });
        let [one, other] = results;
        assert_eq!(one, other, "replicas agree, however often they stop");
        one.is_ok()
    }
}

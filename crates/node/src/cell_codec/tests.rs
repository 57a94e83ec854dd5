use super::*;
use crate::deliver_batch::{Message, Receivers};
use proptest::prelude::*;
use tidelock_base::ApiErrorCode;
use tidelock_base::limits::COPY_BYTES_MAX;

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn texts() -> impl Strategy<Value = Vec<Arc<str>>> {
    prop::collection::vec("[a-z.:]{0,8}".prop_map(Arc::from), 0..4)
}

fn sender() -> impl Strategy<Value = WindowKey> {
    (any::<u128>(), any::<u16>()).prop_map(|(boot, worker)| WindowKey {
        boot: BootId(boot),
        worker: WorkerId(worker),
    })
}

fn outcome() -> impl Strategy<Value = PubOutcome> {
    let seq = (0_u64..6).prop_map(StreamSeq);
    let refusal = prop_oneof![
        Just(Refusal::Code(ApiErrorCode::StreamWrongLastSequence)),
        seq.clone().prop_map(Refusal::WrongLastSeq),
        bytes().prop_map(|id| Refusal::WrongLastMsgId(id[..].into())),
        bytes().prop_map(|value| Refusal::RollupValue(value[..].into())),
        Just(Refusal::RollupNotPermitted),
        Just(Refusal::MaxMsgs),
        Just(Refusal::MaxBytes),
        Just(Refusal::MaxMsgsPerSubject),
    ];
    prop_oneof![
        6 => seq.clone().prop_map(|seq| PubOutcome::Stored { seq }),
        1 => seq.clone().prop_map(|seq| PubOutcome::Duplicate { seq }),
        1 => seq.prop_map(|seq| PubOutcome::Skipped { seq }),
        2 => refusal.prop_map(PubOutcome::Refused),
    ]
}

fn stream_cells() -> impl Strategy<Value = Cell> {
    let forward = (
        any::<u64>(),
        sender(),
        any::<u64>(),
        any::<u32>(),
        any::<u64>(),
        bytes(),
    );
    let forward = forward.prop_map(|(group, sender, first, count, low_water, records)| {
        Cell::Forward(Forward {
            group: GroupId(group),
            sender,
            first,
            count,
            low_water,
            records,
        })
    });
    let outcomes = (
        any::<u64>(),
        sender(),
        any::<u64>(),
        prop::collection::vec(outcome(), 0..12),
    );
    let outcomes = outcomes.prop_map(|(group, sender, first, list)| {
        Cell::Outcomes(Outcomes {
            group: GroupId(group),
            sender,
            first,
            list,
        })
    });
    let not_leader = (
        any::<u64>(),
        sender(),
        prop::option::of(any::<u64>().prop_map(NodeId)),
    );
    let not_leader = not_leader.prop_map(|(group, sender, hint)| Cell::NotLeader {
        group: GroupId(group),
        sender,
        hint,
    });
    let raft = (any::<u64>(), any::<u64>(), any::<u64>(), bytes()).prop_map(|(group, from, to, part)| {
        let (group, from, to) = (GroupId(group), ReplicaId(from), ReplicaId(to));
        Cell::Raft(RaftFrame {
            group,
            from,
            to,
            lane: LaneKind::Log,
            parts: vec![part],
        })
    });
    let digest =
        (any::<[u64; 4]>(), any::<bool>()).prop_map(|([group, replica, index, digest], is_verdict)| {
            Cell::Digest(Digest {
                group: GroupId(group),
                replica: ReplicaId(replica),
                index: LogIndex(index),
                digest,
                is_verdict,
            })
        });
    prop_oneof![forward, outcomes, not_leader, raft, digest]
}

fn request_id() -> impl Strategy<Value = RequestId> {
    (sender(), any::<u64>()).prop_map(|(sender, number)| RequestId { sender, number })
}

fn requests() -> impl Strategy<Value = Cell> {
    let parts = prop::array::uniform5(bytes());
    (
        request_id(),
        any::<u64>(),
        prop::option::of(any::<u64>()),
        any::<u32>(),
        any::<u64>(),
        parts,
    )
        .prop_map(
            |(id, node, group, account, after, [subject, reply, header, payload, client])| {
                let (node, group, account) = (NodeId(node), group.map(GroupId), AccountId(account));
                Cell::Request(Box::new(Request {
                    id,
                    node,
                    group,
                    account,
                    subject,
                    reply,
                    header,
                    payload,
                    client,
                    after,
                }))
            },
        )
}

fn request_cells() -> impl Strategy<Value = Cell> {
    let (id, request) = (request_id, requests().boxed());
    let reply = (id(), bytes(), bytes(), any::<bool>(), any::<u64>()).prop_map(
        |(id, header, payload, last, meta)| {
            Cell::Reply(Box::new(Reply {
                id,
                header,
                payload,
                last,
                after_meta: LogIndex(meta),
            }))
        },
    );
    let end = prop_oneof![
        Just(PullEnd::Served),
        Just(PullEnd::LeaderLeft),
        prop::option::of(any::<u64>().prop_map(NodeId)).prop_map(PullEnd::NotTaken),
    ];
    let ended = (
        any::<u64>(),
        sender(),
        end,
        prop::collection::vec(any::<u64>(), 0..6),
    );
    let ended = ended.prop_map(|(group, sender, end, numbers)| {
        Cell::PullsEnded(PullsEnded {
            group: GroupId(group),
            sender,
            end,
            numbers,
        })
    });
    let acks = (any::<u64>(), any::<u8>(), bytes());
    let acks = acks.prop_map(|(group, hops, items)| {
        Cell::Acks(Acks {
            group: GroupId(group),
            hops,
            items,
        })
    });
    let pull = request.clone().prop_map(|cell| match cell {
        Cell::Request(request) => Cell::Pull(request),
        other => other,
    });
    prop_oneof![request, reply, pull, ended, acks]
}

fn node_cells() -> impl Strategy<Value = Cell> {
    let queue = prop::option::of(bytes().prop_map(|q| Arc::from(&q[..])));
    let entry =
        ("[a-c]", bytes(), queue, any::<u32>()).prop_map(|(account, filter, queue, weight)| InterestEntry {
            account: account.into(),
            filter: filter[..].into(),
            queue,
            weight,
        });
    let interest = (any::<bool>(), prop::collection::vec(entry, 0..6))
        .prop_map(|(reset, entries)| Cell::Interest(InterestUpdate { reset, entries }));
    let numbers = (
        any::<u64>(),
        any::<u128>(),
        any::<u16>(),
        any::<u64>(),
        any::<u64>(),
        any::<(bool, bool)>(),
    );
    let facts = (numbers, "[a-z]{0,9}", texts(), texts(), texts()).prop_map(
        |(
            (node, boot, workers, file_free, memory_free, (jetstream, leaving)),
            name,
            client_urls,
            tags,
            accounts,
        )| {
            Cell::NodeFacts(Box::new(NodeFacts {
                node: NodeId(node),
                boot: BootId(boot),
                server_id: format!("N{name}").into(),
                route_url: format!("{name}:1").into(),
                name: name.into(),
                workers,
                client_urls,
                jetstream,
                file_free,
                memory_free,
                tags,
                leaving,
                accounts,
            }))
        },
    );
    prop_oneof![interest, facts, texts().prop_map(Cell::Gossip)]
}

fn deliver_cells() -> impl Strategy<Value = Cell> {
    prop::collection::vec((bytes(), any::<bool>(), any::<bool>()), 0..4).prop_map(|messages| {
        let mut batch = DeliverBatch::default();
        for (payload, large, plain) in messages {
            let large = large.then(|| Bytes::from(vec![u8::from(plain); COPY_BYTES_MAX + 1 + payload.len()]));
            let payload = large.as_ref().unwrap_or(&payload);
            let (subject, reply) = (&b"a.b"[..], &b"r"[..]);
            let message = Message {
                subject,
                target: subject,
                reply,
                header: b"",
                payload,
                shared: large.as_ref(),
            };
            batch.push(
                AccountId(3),
                &message,
                &Receivers {
                    plain,
                    picks: &[],
                    queues: &[b"q"],
                },
            );
        }
        Cell::Deliver(batch)
    })
}

fn cells() -> impl Strategy<Value = Cell> {
    prop_oneof![stream_cells(), request_cells(), node_cells(), deliver_cells()]
}

fn body(cell: &Cell) -> (u8, Bytes) {
    let (mut fields, mut parts) = (Vec::new(), Vec::new());
    let kind = encode(cell, &mut fields, &mut parts).expect("it leaves the node");
    for part in parts {
        fields.extend_from_slice(&part);
    }
    (kind, Bytes::from(fields))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A cell comes out as it went in; a body that is cut is malformed or another cell, and never a panic.
    #[test]
    fn cells_come_back_as_they_went_in(cell in cells(), cut in any::<prop::sample::Index>()) {
        let (kind, body) = body(&cell);
        let back = decode(kind, LaneKind::Log, body.clone()).expect("it was encoded");
        prop_assert_eq!(format!("{back:?}"), format!("{cell:?}"));
        if let (Cell::Deliver(batch), Some(place)) = (&cell, deliver_in_place(&body)) {
            prop_assert_eq!(place.bytes, &batch.bytes[..]);
        }
        let _ = decode(kind, LaneKind::Log, body.slice(..cut.index(body.len() + 1)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(data in prop::collection::vec(any::<u8>(), 0..120)) {
        fuzz(&data);
    }
}

#[test]
fn runs_of_stored_messages_are_one_item_and_bounded() {
    let sender = WindowKey {
        boot: BootId(1),
        worker: WorkerId(0),
    };
    let list = (5..1005)
        .map(|seq| PubOutcome::Stored { seq: StreamSeq(seq) })
        .collect();
    let (kind, short) = body(&Cell::Outcomes(Outcomes {
        group: GroupId(2),
        sender,
        first: 9,
        list,
    }));
    assert_eq!(short.len(), 8 + 18 + 8 + 13);
    assert!(decode(kind, LaneKind::Client, short.clone()).is_ok());
    let mut long = short.to_vec();
    long.truncate(long.len() - 4);
    long.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        decode(kind, LaneKind::Client, Bytes::from(long)).err(),
        Some(Malformed("run of outcomes"))
    );
}

#[test]
fn what_stays_in_a_node_is_not_encoded() {
    assert_eq!(encode(&Cell::ClientUrls, &mut Vec::new(), &mut Vec::new()), None);
}

//! Cells as frames between nodes: a kind, and a body of little-endian fields followed by the large parts.
//!
//! Texts and byte strings stand behind their length as `u32`. Decoding copies nothing large: byte strings of a cell
//! are slices of the received frame. Every count is checked against the bytes that are left before room is made for
//! it; what does not decode ends the link.

use crate::cell::{
    Acks, Cell, Digest, Forward, InterestEntry, InterestUpdate, LaneKind, NodeFacts, Outcomes, PullEnd,
    PullsEnded, RaftFrame, Reply, Request, RequestId,
};
use crate::deliver_batch::{BatchRef, DeliverBatch};
use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use std::sync::Arc;
use tidelock_base::{AccountId, BootId, GroupId, LogIndex, NodeId, ReplicaId, StreamSeq, WorkerId};
use tidelock_jetstream::command::WindowKey;
use tidelock_jetstream::window::{PubOutcome, Refusal, WINDOW_RESULTS_MAX};

/// Kinds of frames that carry cells; those below 16 belong to the link itself.
pub(crate) mod kind {
    /// [`super::Cell::Deliver`]
    pub(crate) const DELIVER: u8 = 16;
    pub(super) const FORWARD: u8 = 17;
    pub(super) const OUTCOMES: u8 = 18;
    pub(super) const NOT_LEADER: u8 = 19;
    pub(super) const RAFT: u8 = 20;
    pub(super) const REQUEST: u8 = 21;
    pub(super) const REPLY: u8 = 22;
    pub(super) const INTEREST: u8 = 23;
    pub(super) const NODE_FACTS: u8 = 24;
    pub(super) const GOSSIP: u8 = 25;
    pub(super) const PULL: u8 = 26;
    pub(super) const PULLS_ENDED: u8 = 27;
    pub(super) const ACKS: u8 = 28;
    pub(super) const DIGEST: u8 = 29;
}

/// Stands for no queue group.
const NONE: u32 = u32::MAX;

/// A body that is not what its kind says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub struct Malformed(&'static str);

/// Writes the body of a cell's frame: `fields`, then `parts`. Answers the kind; `None` for a cell that never leaves
/// its node. [`Cell::Deliver`] has a way of its own, [`deliver_head`].
pub(crate) fn encode(cell: &Cell, fields: &mut Vec<u8>, parts: &mut Vec<Bytes>) -> Option<u8> {
    Some(match cell {
        Cell::Deliver(batch) => {
            deliver_head(batch, fields);
            fields.extend_from_slice(&batch.bytes);
            parts.extend(batch.shared.iter().cloned());
            kind::DELIVER
        }
        Cell::Forward(forward) => encode_forward(forward, fields, parts),
        Cell::Outcomes(outcomes) => encode_outcomes(outcomes, fields),
        Cell::NotLeader { group, sender, hint } => {
            put_u64(fields, group.0);
            put_sender(fields, *sender);
            fields.push(u8::from(hint.is_some()));
            put_u64(fields, hint.unwrap_or_default().0);
            kind::NOT_LEADER
        }
        Cell::Raft(frame) => {
            put_u64(fields, frame.group.0);
            put_u64(fields, frame.from.0);
            put_u64(fields, frame.to.0);
            parts.extend(frame.parts.iter().cloned());
            kind::RAFT
        }
        Cell::Digest(digest) => {
            put_u64(fields, digest.group.0);
            put_u64(fields, digest.replica.0);
            put_u64(fields, digest.index.0);
            put_u64(fields, digest.digest);
            fields.push(u8::from(digest.is_verdict));
            kind::DIGEST
        }
        Cell::Request(request) => {
            encode_request(request, fields, parts);
            kind::REQUEST
        }
        Cell::Pull(request) => {
            encode_request(request, fields, parts);
            kind::PULL
        }
        Cell::PullsEnded(ended) => encode_pulls_ended(ended, fields),
        Cell::Acks(acks) => {
            put_u64(fields, acks.group.0);
            fields.push(acks.hops);
            parts.push(acks.items.clone());
            kind::ACKS
        }
        Cell::Reply(reply) => encode_reply(reply, fields, parts),
        Cell::Interest(update) => encode_interest(update, fields),
        Cell::NodeFacts(facts) => encode_facts(facts, fields),
        Cell::Gossip(urls) => {
            put_texts(fields, urls);
            kind::GOSSIP
        }
        Cell::Pass { .. }
        | Cell::Arrived { .. }
        | Cell::OwnInterest(_)
        | Cell::Peer(_)
        | Cell::Pressure { .. }
        | Cell::Leads { .. }
        | Cell::Meta(_)
        | Cell::Sourced(_)
        | Cell::ClientUrls
        | Cell::System(_) => return None,
    })
}

/// Reads a frame's body.
///
/// # Errors
/// [`Malformed`] if the body is not what `kind` says.
pub(crate) fn decode(kind: u8, lane: LaneKind, body: Bytes) -> Result<Cell, Malformed> {
    let mut body = Cursor(body);
    let cell = match kind {
        kind::DELIVER => {
            let (items, shared, messages) = decode_deliver(body.0)?;
            return Ok(Cell::Deliver(DeliverBatch {
                bytes: items.to_vec(),
                shared: shared.into_vec(),
                messages,
            }));
        }
        kind::FORWARD => Cell::Forward(decode_forward(&mut body)?),
        kind::OUTCOMES => Cell::Outcomes(decode_outcomes(&mut body)?),
        kind::NOT_LEADER => {
            let (group, sender) = (GroupId(body.u64()?), body.sender()?);
            let (some, node) = (body.bool()?, NodeId(body.u64()?));
            Cell::NotLeader {
                group,
                sender,
                hint: some.then_some(node),
            }
        }
        kind::DIGEST => Cell::Digest(Digest {
            group: GroupId(body.u64()?),
            replica: ReplicaId(body.u64()?),
            index: LogIndex(body.u64()?),
            digest: body.u64()?,
            is_verdict: body.bool()?,
        }),
        kind::RAFT => {
            let (group, from, to) = (
                GroupId(body.u64()?),
                ReplicaId(body.u64()?),
                ReplicaId(body.u64()?),
            );
            return Ok(Cell::Raft(RaftFrame {
                group,
                from,
                to,
                lane,
                parts: vec![body.0],
            }));
        }
        kind::REQUEST => Cell::Request(Box::new(decode_request(&mut body)?)),
        kind::PULL => Cell::Pull(Box::new(decode_request(&mut body)?)),
        kind::PULLS_ENDED => Cell::PullsEnded(decode_pulls_ended(&mut body)?),
        kind::ACKS => {
            let (group, hops) = (GroupId(body.u64()?), body.u8()?);
            return Ok(Cell::Acks(Acks {
                group,
                hops,
                items: body.0,
            }));
        }
        kind::REPLY => Cell::Reply(Box::new(decode_reply(&mut body)?)),
        kind::INTEREST => Cell::Interest(decode_interest(&mut body)?),
        kind::NODE_FACTS => Cell::NodeFacts(Box::new(decode_facts(&mut body)?)),
        kind::GOSSIP => Cell::Gossip(body.texts()?),
        _ => return Err(Malformed("kind")),
    };
    if body.0.is_empty() {
        Ok(cell)
    } else {
        Err(Malformed("longer than it says"))
    }
}

/// Reads arbitrary bytes as the body of each kind of frame. Whatever they are, it must return.
pub fn fuzz(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    if let Some(borrowed) = deliver_in_place(body) {
        borrowed.items().for_each(drop);
    }
    let kind = kind::DELIVER + kind % (kind::GOSSIP - kind::DELIVER + 1);
    if let Ok(cell) = decode(kind, LaneKind::Client, Bytes::copy_from_slice(body)) {
        if let Cell::Deliver(batch) = &cell {
            batch
                .borrowed()
                .items()
                .for_each(|item| item.queues().for_each(drop));
        }
        let (mut fields, mut parts) = (Vec::new(), Vec::new());
        encode(&cell, &mut fields, &mut parts);
    }
}

/// Writes what stands before the items of a batch: `messages u32 | shared parts u32 | length of the items u32 | length
/// of each shared part u32`. The items follow, then the shared parts.
pub(crate) fn deliver_head(batch: &DeliverBatch, out: &mut Vec<u8>) {
    put_u32(out, batch.messages);
    put_len(out, batch.shared.len());
    put_len(out, batch.bytes.len());
    for part in &batch.shared {
        put_len(out, part.len());
    }
}

/// A batch without shared parts, where it was received; `None` if it has some, or is malformed.
pub(crate) fn deliver_in_place(body: &[u8]) -> Option<BatchRef<'_>> {
    let (head, bytes) = body.split_first_chunk::<12>()?;
    let [_, _, _, _, a, b, c, d, w, x, y, z] = *head;
    let whole = u32::from_le_bytes([w, x, y, z]) as usize == bytes.len();
    (u32::from_le_bytes([a, b, c, d]) == 0 && whole).then_some(BatchRef { bytes, shared: &[] })
}

/// Shared parts of a batch.
pub(crate) type SharedParts = SmallVec<[Bytes; 4]>;

/// A batch: its items, its shared parts, how many messages it is.
///
/// # Errors
/// [`Malformed`] if the lengths do not add up.
pub(crate) fn decode_deliver(body: Bytes) -> Result<(Bytes, SharedParts, u32), Malformed> {
    let mut body = Cursor(body);
    let (messages, parts, items) = (body.u32()?, body.u32()? as usize, body.u32()? as usize);
    let mut lengths = Cursor(body.take(parts.checked_mul(4).ok_or(Malformed("parts"))?)?);
    let items = body.take(items)?;
    let mut shared = SharedParts::new();
    while !lengths.0.is_empty() {
        let len = lengths.u32()? as usize;
        shared.push(body.take(len)?);
    }
    Ok((items, shared, messages))
}

fn encode_forward(forward: &Forward, fields: &mut Vec<u8>, parts: &mut Vec<Bytes>) -> u8 {
    put_u64(fields, forward.group.0);
    put_sender(fields, forward.sender);
    put_u64(fields, forward.first);
    put_u32(fields, forward.count);
    put_u64(fields, forward.low_water);
    put_len(fields, forward.records.len());
    parts.push(forward.records.clone());
    kind::FORWARD
}

fn decode_forward(body: &mut Cursor) -> Result<Forward, Malformed> {
    Ok(Forward {
        group: GroupId(body.u64()?),
        sender: body.sender()?,
        first: body.u64()?,
        count: body.u32()?,
        low_water: body.u64()?,
        records: body.sized()?,
    })
}

/// Outcomes: runs of messages stored under consecutive sequences are one item.
mod outcome {
    pub(super) const STORED_RUN: u8 = 0;
    pub(super) const DUPLICATE: u8 = 1;
    pub(super) const SKIPPED: u8 = 2;
    pub(super) const CODE: u8 = 3;
    pub(super) const LAST_SEQ: u8 = 4;
    pub(super) const LAST_ID: u8 = 5;
    pub(super) const ROLLUP_VALUE: u8 = 6;
    pub(super) const ROLLUP_PERMIT: u8 = 7;
    pub(super) const MAX_MSGS: u8 = 8;
    pub(super) const MAX_BYTES: u8 = 9;
    pub(super) const MAX_PER_SUBJECT: u8 = 10;
}

fn encode_outcomes(outcomes: &Outcomes, out: &mut Vec<u8>) -> u8 {
    put_u64(out, outcomes.group.0);
    put_sender(out, outcomes.sender);
    put_u64(out, outcomes.first);
    let mut rest = outcomes.list.as_slice();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let PubOutcome::Stored { seq } = first else {
            encode_outcome(first, out);
            continue;
        };
        let mut run = 1_u32;
        while let Some((PubOutcome::Stored { seq: next }, after)) = rest.split_first()
            && Some(next.0) == seq.0.checked_add(u64::from(run))
        {
            run += 1;
            rest = after;
        }
        encode_run(seq.0, run, out);
    }
    kind::OUTCOMES
}

fn encode_run(first: u64, count: u32, out: &mut Vec<u8>) {
    out.push(outcome::STORED_RUN);
    put_u64(out, first);
    put_u32(out, count);
}

fn encode_outcome(one: &PubOutcome, out: &mut Vec<u8>) {
    let (tag, number, bytes): (u8, u64, Option<&[u8]>) = match one {
        PubOutcome::Stored { seq } => {
            encode_run(seq.0, 1, out);
            return;
        }
        PubOutcome::Duplicate { seq } => (outcome::DUPLICATE, seq.0, None),
        PubOutcome::Skipped { seq } => (outcome::SKIPPED, seq.0, None),
        PubOutcome::Refused(refusal) => match refusal {
            Refusal::Code(code) => (outcome::CODE, u64::from(code.err_code()), None),
            Refusal::WrongLastSeq(seq) => (outcome::LAST_SEQ, seq.0, None),
            Refusal::WrongLastMsgId(id) => (outcome::LAST_ID, 0, Some(id)),
            Refusal::RollupValue(value) => (outcome::ROLLUP_VALUE, 0, Some(value)),
            Refusal::RollupNotPermitted => (outcome::ROLLUP_PERMIT, 0, None),
            Refusal::MaxMsgs => (outcome::MAX_MSGS, 0, None),
            Refusal::MaxBytes => (outcome::MAX_BYTES, 0, None),
            Refusal::MaxMsgsPerSubject => (outcome::MAX_PER_SUBJECT, 0, None),
        },
    };
    out.push(tag);
    put_u64(out, number);
    if let Some(bytes) = bytes {
        put_sized(out, bytes);
    }
}

fn decode_outcomes(body: &mut Cursor) -> Result<Outcomes, Malformed> {
    let (group, sender, first) = (GroupId(body.u64()?), body.sender()?, body.u64()?);
    let mut list = Vec::new();
    while !body.0.is_empty() {
        let (tag, number) = (body.u8()?, body.u64()?);
        if tag == outcome::STORED_RUN {
            let run = u64::from(body.u32()?);
            if run == 0 || list.len() as u64 + run > WINDOW_RESULTS_MAX || number.checked_add(run).is_none() {
                return Err(Malformed("run of outcomes"));
            }
            list.extend((number..number + run).map(|seq| PubOutcome::Stored { seq: StreamSeq(seq) }));
        } else {
            list.push(decode_outcome(tag, number, body)?);
        }
    }
    Ok(Outcomes {
        group,
        sender,
        first,
        list,
    })
}

fn decode_outcome(tag: u8, number: u64, body: &mut Cursor) -> Result<PubOutcome, Malformed> {
    let seq = StreamSeq(number);
    Ok(PubOutcome::Refused(match tag {
        outcome::DUPLICATE => return Ok(PubOutcome::Duplicate { seq }),
        outcome::SKIPPED => return Ok(PubOutcome::Skipped { seq }),
        outcome::CODE => {
            let code = u16::try_from(number)
                .ok()
                .and_then(tidelock_base::api_error_by_code);
            Refusal::Code(code.ok_or(Malformed("error code"))?)
        }
        outcome::LAST_SEQ => Refusal::WrongLastSeq(seq),
        outcome::LAST_ID => Refusal::WrongLastMsgId(body.sized()?[..].into()),
        outcome::ROLLUP_VALUE => Refusal::RollupValue(body.sized()?[..].into()),
        outcome::ROLLUP_PERMIT => Refusal::RollupNotPermitted,
        outcome::MAX_MSGS => Refusal::MaxMsgs,
        outcome::MAX_BYTES => Refusal::MaxBytes,
        outcome::MAX_PER_SUBJECT => Refusal::MaxMsgsPerSubject,
        _ => return Err(Malformed("outcome")),
    }))
}

fn encode_request(request: &Request, fields: &mut Vec<u8>, parts: &mut Vec<Bytes>) {
    put_sender(fields, request.id.sender);
    put_u64(fields, request.id.number);
    put_u64(fields, request.node.0);
    fields.push(u8::from(request.group.is_some()));
    put_u64(fields, request.group.unwrap_or_default().0);
    put_u32(fields, request.account.0);
    put_u64(fields, request.after);
    let all = [
        &request.subject,
        &request.reply,
        &request.header,
        &request.client,
        &request.payload,
    ];
    put_parts(fields, parts, &all);
}

fn decode_request(body: &mut Cursor) -> Result<Request, Malformed> {
    let id = RequestId {
        sender: body.sender()?,
        number: body.u64()?,
    };
    let node = NodeId(body.u64()?);
    let (some, group) = (body.bool()?, GroupId(body.u64()?));
    let account = AccountId(body.u32()?);
    let after = body.u64()?;
    let [subject, reply, header, client, payload] = body.parts()?;
    let group = some.then_some(group);
    Ok(Request {
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
    })
}

fn encode_pulls_ended(ended: &PullsEnded, fields: &mut Vec<u8>) -> u8 {
    put_u64(fields, ended.group.0);
    put_sender(fields, ended.sender);
    let (end, hint) = match ended.end {
        PullEnd::Served => (0, NodeId(0)),
        PullEnd::LeaderLeft => (1, NodeId(0)),
        PullEnd::NotTaken(None) => (2, NodeId(0)),
        PullEnd::NotTaken(Some(hint)) => (3, hint),
    };
    fields.push(end);
    put_u64(fields, hint.0);
    for number in &ended.numbers {
        put_u64(fields, *number);
    }
    kind::PULLS_ENDED
}

fn decode_pulls_ended(body: &mut Cursor) -> Result<PullsEnded, Malformed> {
    let (group, sender) = (GroupId(body.u64()?), body.sender()?);
    let (end, hint) = (body.u8()?, NodeId(body.u64()?));
    let end = match end {
        0 => PullEnd::Served,
        1 => PullEnd::LeaderLeft,
        2 => PullEnd::NotTaken(None),
        3 => PullEnd::NotTaken(Some(hint)),
        _ => return Err(Malformed("end of pull requests")),
    };
    let count = body.0.len() / 8;
    let numbers = (0..count).map(|_| body.u64()).collect::<Result<_, _>>()?;
    Ok(PullsEnded {
        group,
        sender,
        end,
        numbers,
    })
}

fn encode_reply(reply: &Reply, fields: &mut Vec<u8>, parts: &mut Vec<Bytes>) -> u8 {
    put_sender(fields, reply.id.sender);
    put_u64(fields, reply.id.number);
    fields.push(u8::from(reply.last));
    put_u64(fields, reply.after_meta.0);
    put_parts(fields, parts, &[&reply.header, &reply.payload]);
    kind::REPLY
}

fn decode_reply(body: &mut Cursor) -> Result<Reply, Malformed> {
    let id = RequestId {
        sender: body.sender()?,
        number: body.u64()?,
    };
    let (last, after_meta) = (body.bool()?, LogIndex(body.u64()?));
    let [header, payload] = body.parts()?;
    Ok(Reply {
        id,
        header,
        payload,
        last,
        after_meta,
    })
}

/// Accounts stand once in front; an entry names its account by the place there.
fn encode_interest(update: &InterestUpdate, out: &mut Vec<u8>) -> u8 {
    let mut accounts: Vec<Arc<str>> = Vec::new();
    let mut entries = Vec::new();
    for entry in &update.entries {
        let place = accounts
            .iter()
            .position(|account| *account == entry.account)
            .unwrap_or(accounts.len());
        if place == accounts.len() {
            accounts.push(Arc::clone(&entry.account));
        }
        put_len(&mut entries, place);
        put_u32(&mut entries, entry.weight);
        put_sized(&mut entries, &entry.filter);
        match &entry.queue {
            Some(queue) => put_sized(&mut entries, queue),
            None => put_u32(&mut entries, NONE),
        }
    }
    out.push(u8::from(update.reset));
    put_texts(out, &accounts);
    out.extend_from_slice(&entries);
    kind::INTEREST
}

fn decode_interest(body: &mut Cursor) -> Result<InterestUpdate, Malformed> {
    let (reset, accounts) = (body.bool()?, body.texts()?);
    let mut entries = Vec::new();
    while !body.0.is_empty() {
        let account = accounts.get(body.u32()? as usize).ok_or(Malformed("account"))?;
        let weight = body.u32()?;
        let filter = body.sized()?[..].into();
        let queue = match body.u32()? {
            NONE => None,
            len => Some(Arc::from(&body.take(len as usize)?[..])),
        };
        entries.push(InterestEntry {
            account: Arc::clone(account),
            filter,
            queue,
            weight,
        });
    }
    Ok(InterestUpdate { reset, entries })
}

fn encode_facts(facts: &NodeFacts, out: &mut Vec<u8>) -> u8 {
    put_u64(out, facts.node.0);
    out.extend_from_slice(&facts.boot.0.to_le_bytes());
    for text in [&facts.name, &facts.server_id, &facts.route_url] {
        put_sized(out, text.as_bytes());
    }
    out.extend_from_slice(&facts.workers.to_le_bytes());
    put_u64(out, facts.file_free);
    put_u64(out, facts.memory_free);
    out.push(u8::from(facts.jetstream));
    out.push(u8::from(facts.leaving));
    for list in [&facts.client_urls, &facts.tags, &facts.accounts] {
        put_texts(out, list);
    }
    kind::NODE_FACTS
}

fn decode_facts(body: &mut Cursor) -> Result<NodeFacts, Malformed> {
    Ok(NodeFacts {
        node: NodeId(body.u64()?),
        boot: BootId(body.u128()?),
        name: body.text()?,
        server_id: body.text()?,
        route_url: body.text()?,
        workers: body.u16()?,
        file_free: body.u64()?,
        memory_free: body.u64()?,
        jetstream: body.bool()?,
        leaving: body.bool()?,
        client_urls: body.texts()?,
        tags: body.texts()?,
        accounts: body.texts()?,
    })
}

fn put_u32(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(&n.to_le_bytes());
}

/// A length. Nothing in a cell comes near 4 GiB: messages are bounded far below, and so are counts of them.
fn put_len(out: &mut Vec<u8>, n: usize) {
    put_u32(out, u32::try_from(n).unwrap_or(u32::MAX));
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_texts(out: &mut Vec<u8>, texts: &[Arc<str>]) {
    put_len(out, texts.len());
    for text in texts {
        put_sized(out, text.as_bytes());
    }
}

fn put_sender(out: &mut Vec<u8>, key: WindowKey) {
    out.extend_from_slice(&key.boot.0.to_le_bytes());
    out.extend_from_slice(&key.worker.0.to_le_bytes());
}

/// The lengths of parts among the fields, and the parts behind them.
fn put_parts(fields: &mut Vec<u8>, parts: &mut Vec<Bytes>, all: &[&Bytes]) {
    for part in all {
        put_len(fields, part.len());
    }
    parts.extend(all.iter().copied().cloned());
}

/// Reads fields off the front of a body.
struct Cursor(Bytes);

impl Cursor {
    fn take(&mut self, n: usize) -> Result<Bytes, Malformed> {
        if n > self.0.len() {
            return Err(Malformed("too short"));
        }
        Ok(self.0.split_to(n))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.0.try_get_u8().map_err(|_| Malformed("too short"))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.0.try_get_u16_le().map_err(|_| Malformed("too short"))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.0.try_get_u32_le().map_err(|_| Malformed("too short"))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.0.try_get_u64_le().map_err(|_| Malformed("too short"))
    }

    fn u128(&mut self) -> Result<u128, Malformed> {
        self.0.try_get_u128_le().map_err(|_| Malformed("too short"))
    }

    fn bool(&mut self) -> Result<bool, Malformed> {
        Ok(self.u8()? != 0)
    }

    fn sized(&mut self) -> Result<Bytes, Malformed> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn text(&mut self) -> Result<Arc<str>, Malformed> {
        let bytes = self.sized()?;
        std::str::from_utf8(&bytes)
            .map(Arc::from)
            .map_err(|_| Malformed("text"))
    }

    fn texts(&mut self) -> Result<Vec<Arc<str>>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.0.len() / 4 {
            return Err(Malformed("count"));
        }
        (0..count).map(|_| self.text()).collect()
    }

    fn sender(&mut self) -> Result<WindowKey, Malformed> {
        Ok(WindowKey {
            boot: BootId(self.u128()?),
            worker: WorkerId(self.u16()?),
        })
    }

    /// Parts whose lengths come first.
    fn parts<const N: usize>(&mut self) -> Result<[Bytes; N], Malformed> {
        let mut lengths = [0; N];
        for len in &mut lengths {
            *len = self.u32()? as usize;
        }
        let mut parts = std::array::from_fn(|_| Bytes::new());
        for (part, len) in parts.iter_mut().zip(lengths) {
            *part = self.take(len)?;
        }
        Ok(parts)
    }
}

#[cfg(test)]
#[path = "cell_codec/tests.rs"]
mod tests;

//! What a peer sends to one replica of a group.

use std::sync::Once;

use bytes::Bytes;
use tidelock_base::{GroupId, Mono, ReplicaId};
use tidelock_replica::{Group, GroupConfig, Limits, Start, Timers};

const HEAD_BYTES: usize = 72;
const GROUP: u64 = 7;
const PEER: ReplicaId = ReplicaId(2);

/// Frames from a peer to one of three voters, sixteen bytes of the input each and a body that the first of them gives
/// the length of: mostly sound, with small numbers. A peer that contradicts itself may end this replica, and no more.
pub fn replica(data: &[u8]) {
    static QUIET: Once = Once::new();
    // The library asserts by panicking and the group catches that; a panic that leaves the group still ends the run.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    let config = GroupConfig {
        group: GroupId(GROUP),
        me: ReplicaId(1),
        seed: 1,
        life: 1,
        timers: Timers::default(),
        limits: Limits {
            entry_bytes_max: 1 << 16,
            ..Limits::default()
        },
    };
    let start = Start::found(&[ReplicaId(1), PEER, ReplicaId(3)]);
    let Ok(mut group) = Group::new(config, start, Mono(0)) else {
        return;
    };
    let mut now = Mono(0);
    let mut rest = data;
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let (body, behind) = behind.split_at(usize::from(head[0] % 64).min(behind.len()));
        rest = behind;
        let frame = Bytes::from(frame(head, body));
        let _ = group.step(now, PEER, &frame);
        settle(&mut group);
        now = Mono(now.0 + u64::from(head[15]) * 10_000_000);
        group.tick(now);
        settle(&mut group);
    }
}

fn frame(head: &[u8; 16], body: &[u8]) -> Vec<u8> {
    let [
        _,
        kind,
        flags,
        count,
        group,
        to,
        term,
        index,
        log_term,
        commit,
        aux,
        odd,
        ..,
    ] = *head;
    let mut out = Vec::with_capacity(HEAD_BYTES + body.len());
    // A kind or a version that is none, now and then.
    out.extend_from_slice(&[1 + u8::from(odd == 255), kind % 17, flags, 0]);
    out.extend_from_slice(&u32::from(count % 8).to_le_bytes());
    let number = |byte: u8| {
        if byte == 255 {
            u64::MAX >> (odd % 8)
        } else {
            u64::from(byte)
        }
    };
    let group = if group == 0 { GROUP } else { u64::from(group) };
    let to = if to == 0 { 1 } else { u64::from(to) };
    for value in [
        group,
        PEER.value(),
        to,
        number(term),
        number(index),
        number(log_term),
        number(commit),
        number(aux),
    ] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(body);
    out
}

/// Does at once whatever the replica asks for.
fn settle(group: &mut Group) {
    for _ in 0..64 {
        let Some(ready) = group.take_ready() else { return };
        if let Some(install) = &ready.snapshot.install {
            let _ = group.installed(install.position);
        }
        if ready.sync {
            group.persisted(ready.number);
        }
        if let Some(last) = ready.committed.last() {
            group.applied(last.index);
        }
    }
}

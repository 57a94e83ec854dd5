//! What leaves on the links, within their bounds.

use super::link::{Link, Why};
use super::links::{Event, Links};
use super::peers::LinkStats;
use crate::cell::{Cell, LaneKind};
use crate::cell_codec;
use crate::deliver_batch::DeliverBatch;
use crate::interest::ConnKey;
use bytes::Bytes;
use std::sync::atomic::Ordering;
use tidelock_base::NodeId;
use tidelock_wire::link::FrameHead;

/// Bytes that may wait on a lane of heartbeats, and on any other. Beyond, frames of heartbeats, log and bulk traffic
/// are dropped, since their senders repeat themselves; on the client lane the link is cut.
const PULSE_BYTES_MAX: usize = 1 << 20;
const LANE_BYTES_MAX: usize = 64 << 20;
/// Bytes waiting on a client lane above which those who publish to the node are paused; below half of it they go on.
pub(super) const HIGH_BYTES: usize = 2 << 20;
/// The same while large payloads flow, and from which size on (on average) they are large.
const HIGH_BYTES_LARGE: usize = 8 << 20;
const LARGE: usize = 32 << 10;

impl Links {
    /// Sends a cell to another node. It is dropped if there is no link, or if too much waits on a lane whose senders
    /// repeat themselves.
    pub(crate) fn send(&mut self, node: NodeId, lane: LaneKind, cell: Cell) {
        let Some(key) = self.peers.get(&node).and_then(|peer| peer.lane(lane)) else {
            return;
        };
        if let Cell::Deliver(batch) = cell {
            self.send_batch(node, batch);
            return;
        }
        let (mut fields, mut parts) = std::mem::take(&mut self.scratch);
        if let Some(kind) = cell_codec::encode(&cell, &mut fields, &mut parts) {
            self.push(key, kind, &fields, &parts);
        }
        fields.clear();
        parts.clear();
        self.scratch = (fields, parts);
        self.look_at_pressure(node, key, lane);
    }

    /// Sends a cell to all peers, on the client lane.
    pub(super) fn send_all(&mut self, cell: &Cell) {
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.send(node, LaneKind::Client, cell.clone());
        }
    }

    /// Appends a frame to a link's queue.
    fn push(&mut self, key: ConnKey, kind: u8, fields: &[u8], parts: &[Bytes]) {
        let Some(link) = self
            .table
            .get_mut(key.index as usize)
            .and_then(Option::as_deref_mut)
        else {
            return;
        };
        let len = fields.len() + parts.iter().map(Bytes::len).sum::<usize>();
        let max = if link.lane == LaneKind::Pulse {
            PULSE_BYTES_MAX
        } else {
            LANE_BYTES_MAX
        };
        if link.queue.pending() + len > max && link.queue.pending() > 0 {
            if link.lane == LaneKind::Client {
                self.end(key, &Why::SlowConsumer);
            }
            return;
        }
        let head = FrameHead {
            kind,
            lane: link.lane.index(),
            dest: 0,
        };
        if !link.queue.frame(head, fields, parts, &mut self.spares) {
            tracing::error!("{} - a frame of {len} bytes cannot be sent", link.label);
            return;
        }
        sent(link, len, &mut self.dirty);
    }

    /// Writes a small frame that belongs to the link itself.
    pub(super) fn write(&mut self, key: ConnKey, kind: u8, body: &[u8]) {
        if let Some(mut link) = self.take(key) {
            self.write_taken(&mut link, kind, body);
            self.put(link);
        }
    }

    /// The same for a link that is not in its place just now.
    pub(super) fn write_taken(&mut self, link: &mut Link, kind: u8, body: &[u8]) {
        let head = FrameHead {
            kind,
            lane: link.lane.index(),
            dest: 0,
        };
        if link.queue.frame(head, body, &[], &mut self.spares) {
            sent(link, body.len(), &mut self.dirty);
        }
    }

    /// Sends client messages to a node: what is large leaves without being copied.
    pub(crate) fn send_batch(&mut self, node: NodeId, batch: DeliverBatch) {
        let lane = LaneKind::Client;
        let Some(key) = self.peers.get(&node).and_then(|peer| peer.lane(lane)) else {
            return;
        };
        let Some(link) = self
            .table
            .get_mut(key.index as usize)
            .and_then(Option::as_deref_mut)
        else {
            return;
        };
        let shared: usize = batch.shared.iter().map(Bytes::len).sum();
        if link.queue.pending() + batch.bytes.len() + shared > LANE_BYTES_MAX && link.queue.pending() > 0 {
            self.end(key, &Why::SlowConsumer);
            return;
        }
        let mut fields = std::mem::take(&mut self.scratch.0);
        cell_codec::deliver_head(&batch, &mut fields);
        let len = fields.len() + batch.bytes.len() + shared;
        let head = FrameHead {
            kind: cell_codec::kind::DELIVER,
            lane: lane.index(),
            dest: 0,
        };
        if let Ok(head) = tidelock_wire::link::encode_head(head, len) {
            LinkStats::add(&link.stats.messages, batch.messages as usize);
            link.queue.copy(&head, &mut self.spares);
            link.queue.copy(&fields, &mut self.spares);
            link.queue.chunk(batch.bytes, &mut self.spares);
            for part in &batch.shared {
                link.queue.share(part, &mut self.spares);
            }
            sent(link, len, &mut self.dirty);
        }
        fields.clear();
        self.scratch.0 = fields;
        if let Some(peer) = self.peers.get_mut(&node) {
            let large = len / (batch.messages as usize).max(1) >= LARGE;
            peer.high_at = if large { HIGH_BYTES_LARGE } else { HIGH_BYTES };
        }
        self.look_at_pressure(node, key, lane);
    }

    /// A batch to fill, with a buffer that was used before.
    pub(crate) fn spare_batch(&mut self) -> DeliverBatch {
        DeliverBatch {
            bytes: self.spares.take(),
            ..DeliverBatch::default()
        }
    }

    /// Looks whether a client lane has become long, or short again.
    fn look_at_pressure(&mut self, node: NodeId, key: ConnKey, lane: LaneKind) {
        if lane != LaneKind::Client {
            return;
        }
        let Some(pending) = self.get(key).map(|link| link.queue.pending()) else {
            return;
        };
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let limit = if peer.high { peer.high_at / 2 } else { peer.high_at };
        let high = pending > limit;
        if high != peer.high {
            peer.high = high;
            self.events.push(Event::Pressure(node, high));
        }
    }

    /// The socket took `n` bytes of what a link holds.
    pub(crate) fn transmitted(&mut self, key: ConnKey, n: usize) {
        let Some(link) = self
            .table
            .get_mut(key.index as usize)
            .and_then(Option::as_deref_mut)
        else {
            return;
        };
        link.queue.advance(n, &mut self.spares);
        link.stats
            .pending
            .store(link.queue.pending() as u64, Ordering::Relaxed);
        let (node, lane) = (link.node, link.lane);
        if let Some(node) = node
            && self
                .peers
                .get(&node)
                .is_some_and(|peer| peer.high && peer.lane(LaneKind::Client) == Some(key))
        {
            self.look_at_pressure(node, key, lane);
        }
    }
}

/// Counts a frame and lists its link as one with something to write.
fn sent(link: &mut Link, body: usize, dirty: &mut Vec<ConnKey>) {
    LinkStats::add(&link.stats.bytes, body);
    link.stats
        .pending
        .store(link.queue.pending() as u64, Ordering::Relaxed);
    if !link.dirty {
        link.dirty = true;
        dirty.push(link.key);
    }
}

//! Connections to other nodes: from the socket to [`Links`] and back.

use super::route_message::Origin;
use super::{HangUp, Worker};
use crate::cell::{Cell, LaneKind};
use crate::cell_codec;
use crate::cluster::link::{Link, Why, plain_text};
use crate::cluster::{Body, Links};
use crate::deliver_batch::BatchRef;
use crate::interest::ConnKey;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use tidelock_base::NodeId;
use tidelock_wire::link::FrameHead;

/// Slices of one vectored write.
const SLICES: usize = 64;
/// Kinds of frames from here on are cells.
const FIRST_CELL: u8 = cell_codec::kind::DELIVER;
/// What a client sends first that has mistaken the port, and what it is told.
const CLIENT_START: &[u8] = b"CONNECT ";
const CLIENT_ANSWER: &[u8] = b"-ERR 'attempted to connect to route port'\r\n";
/// What a server of another make sends first.
const SERVER_START: &[u8] = b"INFO ";

impl Worker {
    pub(super) fn is_route(&self, key: ConnKey) -> bool {
        self.core.cluster.is_link(key)
    }

    fn links(&mut self) -> Option<&mut Links> {
        self.core.cluster.links.as_deref_mut()
    }

    pub(super) fn accept_route(&mut self, remote: SocketAddr) -> ConnKey {
        let key = self.core.new_key();
        let rid = self.core.shared.next_cid();
        if let Some(links) = self.links() {
            links.accept(key, rid, remote);
        }
        key
    }

    /// Whether a connection that the worker asked for is still wanted. What asked for it may have been given up while
    /// its name was looked up, and then the key may be another's by now.
    #[must_use]
    pub fn wants_dial(&mut self, key: ConnKey) -> bool {
        self.links().is_some_and(|links| links.is_connecting(key))
    }

    pub(super) fn route_connected(&mut self, key: ConnKey, peer: SocketAddr) {
        if let Some(links) = self.links() {
            links.connected(key, peer);
        }
    }

    pub(super) fn receive_route(&mut self, key: ConnKey, input: &[u8]) -> usize {
        let Some(mut link) = self.links().and_then(|links| links.take(key)) else {
            return input.len();
        };
        if let Some(links) = self.links() {
            links.heard(&mut link, input.len());
        }
        let mut assembler = std::mem::take(&mut link.input);
        let mut rest = input;
        let end = loop {
            if link.is_closing() {
                break None;
            }
            match assembler.next(&mut rest, link.body_max()) {
                Ok(Some((head, body))) => {
                    if let Err(why) = self.frame(&mut link, head, body) {
                        break Some(why);
                    }
                }
                Ok(None) => break None,
                Err(e) => break Some(self.stranger(&mut link, assembler.started_with(), &e.to_string())),
            }
        };
        link.input = assembler;
        if let Some(links) = self.links() {
            if let Some(why) = end {
                links.end_taken(&mut link, &why);
            }
            links.put(link);
        }
        self.core.link_events();
        input.len()
    }

    /// Tells those who have mistaken the port by how they begin.
    fn stranger(&mut self, link: &mut Link, start: &[u8], error: &str) -> Why {
        if start.starts_with(CLIENT_START)
            && let Some(links) = self.links()
        {
            links.answer_stranger(link, CLIENT_ANSWER);
            return Why::Protocol("attempted to connect to route port".to_owned());
        }
        if start.starts_with(SERVER_START) {
            return Why::Protocol(
                "the other side is not a server of this kind, and cannot be in its cluster".to_owned(),
            );
        }
        Why::Protocol(error.to_owned())
    }

    /// One frame of a link.
    fn frame(&mut self, link: &mut Link, head: FrameHead, body: Body<'_>) -> Result<(), Why> {
        if head.kind < FIRST_CELL {
            let Some(links) = self.links() else { return Ok(()) };
            return links.control(link, head.kind, body.as_slice());
        }
        let Some(node) = link.node.filter(|_| link.takes_cells()) else {
            return Err(Why::Protocol("a frame before the handshake".to_owned()));
        };
        if head.kind == cell_codec::kind::DELIVER {
            return self.messages(link, node, body);
        }
        let lane = LaneKind::from_index(head.lane).ok_or_else(|| Why::Protocol("unknown lane".to_owned()))?;
        let cell = cell_codec::decode(head.kind, lane, body.into_bytes())
            .map_err(|e| Why::Protocol(e.to_string()))?;
        self.cell_from_link(node, cell);
        Ok(())
    }

    /// Client messages from another node. Without large payloads they are read where they were received.
    fn messages(&mut self, link: &mut Link, node: NodeId, body: Body<'_>) -> Result<(), Why> {
        let accounts = self
            .links()
            .and_then(|links| links.peers.get(&node))
            .map(|peer| Arc::clone(&peer.accounts));
        let Some(accounts) = accounts else { return Ok(()) };
        let known = |account: tidelock_base::AccountId| accounts.get(account.0 as usize).copied().flatten();
        let count = if let Some(batch) = cell_codec::deliver_in_place(body.as_slice()) {
            self.core.deliver_batch(batch, Origin::Node, known)
        } else {
            let (items, shared, _) =
                cell_codec::decode_deliver(body.into_bytes()).map_err(|e| Why::Protocol(e.to_string()))?;
            self.core.deliver_batch(
                BatchRef {
                    bytes: &items,
                    shared: &shared,
                },
                Origin::Node,
                known,
            )
        };
        link.count_messages(count);
        Ok(())
    }

    /// A cell that came over a link.
    fn cell_from_link(&mut self, node: NodeId, cell: Cell) {
        match cell {
            Cell::Interest(update) => {
                if let Some(links) = self.links() {
                    links.peer_interest(node, update);
                }
                // What the same node says next may be answered at once, to where this interest leads.
                self.core.link_events();
            }
            Cell::NodeFacts(facts) => {
                if let Some(links) = self.links() {
                    links.peer_facts(node, *facts);
                }
            }
            Cell::Gossip(urls) => {
                if let Some(links) = self.links() {
                    urls.iter().for_each(|url| links.learn(url));
                }
            }
            cell => {
                let to = self.core.place_of(&cell);
                if to == self.core.id {
                    self.handle_cell(node, cell);
                } else {
                    // Client messages that came before it must not come after it.
                    self.core.flush_worker(to);
                    self.core.out.cells.push_back((
                        to,
                        Cell::Arrived {
                            node,
                            cell: Box::new(cell),
                        },
                    ));
                }
            }
        }
    }

    /// Room for the rest of a large frame, to be read straight into.
    pub(super) fn route_buffer(&mut self, key: ConnKey) -> Option<&mut [u8]> {
        let room = self.links()?.get(key)?.input.room();
        if room.is_empty() { None } else { Some(room) }
    }

    /// The first `n` bytes of that room were filled.
    pub(super) fn route_filled(&mut self, key: ConnKey, n: usize) {
        if let Some(links) = self.links()
            && let Some(mut link) = links.take(key)
        {
            link.input.filled(n);
            links.heard(&mut link, n);
            links.put(link);
        }
        self.receive_route(key, &[]);
    }

    pub(super) fn route_hung_up(&mut self, key: ConnKey, why: &HangUp) {
        let why = match why {
            HangUp::Closed => Why::Closed,
            HangUp::Read(text) => Why::Read(plain_text(text)),
            HangUp::Write(text) => Why::Write(plain_text(text)),
            HangUp::Refused(text) => Why::Dial(plain_text(text)),
        };
        if let Some(links) = self.links() {
            links.end(key, &why);
        }
        self.core.link_events();
    }

    pub(super) fn route_closed(&mut self, key: ConnKey) {
        if let Some(links) = self.links() {
            // A socket may also be closed by the shell itself.
            links.end(key, &Why::Closed);
            links.closed(key);
        }
        self.core.free_key(key);
        self.core.link_events();
    }

    pub(super) fn transmit_route(
        &mut self,
        key: ConnKey,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let links = self.core.cluster.links.as_deref_mut()?;
        let link = links.get(key)?;
        if link.queue.pending() == 0 {
            return None;
        }
        let mut slices: SmallVec<[IoSlice<'_>; SLICES]> = SmallVec::new();
        link.queue.slices(SLICES, &mut slices);
        let result = write(&slices);
        drop(slices);
        if let Ok(n) = &result {
            links.transmitted(key, *n);
            self.core.link_events();
        }
        Some(result)
    }

    /// Does what is due on links, and opens those that are due.
    pub(super) fn tick_links(&mut self) {
        let now = self.core.now;
        let Some(links) = self.links() else { return };
        links.now = now;
        if links.due() > now.mono {
            return;
        }
        links.tick();
        while let Some(attempt) = self.links().and_then(|links| links.next_dial()) {
            let key = self.core.new_key();
            let rid = self.core.shared.next_cid();
            if let Some(links) = self.links() {
                links.dial(&attempt, key, rid);
            }
            self.core.out.dials.push((key, attempt.address.to_string()));
        }
        self.core.link_events();
    }

    /// Tells clients that take it the addresses of the cluster.
    pub(super) fn tell_client_urls(&mut self) {
        let keys: Vec<ConnKey> = self.core.client_keys().collect();
        for key in keys {
            let inbound = self.inbound.get(key.index as usize).and_then(Option::as_ref);
            if !inbound.is_some_and(tidelock_session::Inbound::takes_async_info) {
                continue;
            }
            let info = self.core.client_info(key, false);
            let pool = &mut self.core.pool;
            if let Some(client) = self
                .core
                .clients
                .get_mut(key.index as usize)
                .and_then(|place| place.client.as_mut())
            {
                client.outbound.info(&info, pool);
            }
            self.core.mark_dirty(key);
        }
    }
}

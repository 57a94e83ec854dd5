//! Connections to other nodes.

use super::{HangUp, Worker};
use crate::interest::ConnKey;
use std::io::{self, IoSlice};
use std::net::SocketAddr;

impl Worker {
    pub(super) fn is_route(&self, _key: ConnKey) -> bool {
        false
    }
    pub(super) fn accept_route(&mut self, remote: SocketAddr) -> ConnKey {
        self.core.add_client(remote)
    }
    pub(super) fn route_connected(&mut self, _key: ConnKey, _local: SocketAddr, _peer: SocketAddr) {}
    pub(super) fn receive_route(&mut self, _key: ConnKey, input: &[u8]) -> usize {
        input.len()
    }
    pub(super) fn route_hung_up(&mut self, _key: ConnKey, _why: &HangUp) {}
    pub(super) fn route_closed(&mut self, _key: ConnKey) {}
    pub(super) fn tick_route(&mut self, _key: ConnKey) {}
    pub(super) fn transmit_route(
        &mut self,
        _key: ConnKey,
        _write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        None
    }
}

//! What the shell feeds into a turn, and the turn's end.

use super::clients::ClientHost;
use super::{HangUp, Listener, Output, Worker};
use crate::cell::Cell;
use crate::interest::ConnKey;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidelock_auth::Identity;
use tidelock_base::{AccountId, Now, WorkerId};
use tidelock_record::IoDone;
use tidelock_session::{Authentication, CloseReason, Inbound, Outbound, Received, Want};

use super::{IoJob, IoOwner};

/// Slices of one vectored write.
const SLICES: usize = 64;

impl Worker {
    /// Starts a turn: what is due is done first.
    pub fn begin(&mut self, now: Now) {
        self.core.now = now;
        for n in 0..self.core.roots.len() {
            self.core
                .reload_root(AccountId(u32::try_from(n).unwrap_or(u32::MAX)));
        }
        while let Some(key) = self.core.timers.pop_due(now.mono) {
            self.core.disarmed(key);
            self.tick(key);
        }
        self.tick_links();
        self.begin_system();
        self.core.tick_clock();
        self.core.tick_groups();
        self.core.tick_consumer_front();
        self.core.tick_senders();
        self.core.api_tick();
    }

    /// A connection was accepted.
    pub fn accept(&mut self, remote: SocketAddr, listener: Listener) -> ConnKey {
        match listener {
            Listener::Client => self.accept_client(remote),
            Listener::Route => self.accept_route(remote),
        }
    }

    fn accept_client(&mut self, remote: SocketAddr) -> ConnKey {
        let key = self.core.add_client(remote);
        let settings = Arc::clone(&self.core.settings);
        let jitter = u32::try_from(self.core.random.next() >> 32).unwrap_or(0);
        let inbound = Inbound::new(settings, self.core.now.mono, jitter);
        let index = key.index as usize;
        if self.inbound.len() <= index {
            self.inbound.resize_with(index + 1, || None);
        }
        if let Some(place) = self.inbound.get_mut(index) {
            *place = Some(inbound);
        }
        let info = self.core.client_info(key, true);
        let max = self.core.shared.options.limits.max_connections;
        let too_many =
            max.is_some_and(|max| self.core.shared.totals.connections.load(Ordering::Relaxed) > max);
        if let Some(client) = self
            .core
            .clients
            .get_mut(index)
            .and_then(|place| place.client.as_mut())
        {
            client.outbound.info(&info, &mut self.core.pool);
            if too_many {
                client
                    .outbound
                    .err(format_args!("maximum connections exceeded"), &mut self.core.pool);
            }
        }
        self.core.mark_dirty(key);
        if too_many {
            self.core.close(key, CloseReason::MaxConnectionsExceeded);
        }
        self.arm(key);
        key
    }

    /// A connection that the worker asked for is open.
    pub fn connected(&mut self, key: ConnKey, _local: SocketAddr, peer: SocketAddr) {
        self.route_connected(key, peer);
    }

    /// Takes what was read, behind what was left over before; answers how much is done with. The rest is to be shown
    /// again.
    pub fn receive(&mut self, key: ConnKey, input: &[u8]) -> usize {
        if self.is_route(key) {
            return self.receive_route(key, input);
        }
        let now = self.core.now;
        self.core.note_reader(key);
        let Some(received) = self.with_host(key, |inbound, host| inbound.receive(now.mono, input, host))
        else {
            return input.len();
        };
        if let Some(client) = self.core.client(key) {
            client.last_activity = now;
            if client.trace.is_some() {
                self.core
                    .trace_input(key, input.get(..received.consumed).unwrap_or(input));
            }
        }
        self.received(key, received);
        received.consumed
    }

    fn received(&mut self, key: ConnKey, received: Received) {
        self.core.mark_dirty(key);
        if let Some(reason) = received.close {
            self.core.close(key, reason);
        }
        if let Some(client) = self.core.client(key) {
            client.asking = received.want == Want::Authentication;
        }
        self.arm(key);
    }

    fn with_host<T>(
        &mut self,
        key: ConnKey,
        f: impl FnOnce(&mut Inbound, &mut ClientHost<'_>) -> T,
    ) -> Option<T> {
        let inbound = self.inbound.get_mut(key.index as usize)?.as_mut()?;
        self.core.client(key)?;
        let mut host = ClientHost {
            core: &mut self.core,
            key,
            slow_check: None,
            nobody: &mut self.nobody,
        };
        let result = f(inbound, &mut host);
        if let Some(check) = host.slow_check.take() {
            self.core.out.checks.push((key, check));
        }
        Some(result)
    }

    /// A password check that the shell ran has ended: with who the client is, or with nothing if it was wrong.
    pub fn authenticated(&mut self, key: ConnKey, identity: Option<&Identity>) {
        let answer = match identity.map(|identity| self.core.admit(key, identity)) {
            Some(Authentication::Accepted(identity)) => Ok(identity),
            Some(Authentication::Refused(failure)) => Err(failure),
            Some(Authentication::Pending) | None => Err(tidelock_session::AuthFailure::Violation),
        };
        let close = self
            .with_host(key, |inbound, host| inbound.authenticated(answer, host))
            .flatten();
        self.core.mark_dirty(key);
        if let Some(reason) = close {
            self.core.close(key, reason);
        }
        if let Some(client) = self.core.client(key) {
            client.asking = false;
            self.core.out.resumed.push(key);
        }
        self.arm(key);
    }

    /// Room for the rest of a large payload, to be read straight into; `None` if none is being read.
    pub fn payload_buffer(&mut self, key: ConnKey) -> Option<&mut [u8]> {
        if self.core.client(key).is_none() {
            return self.route_buffer(key);
        }
        let inbound = self.inbound.get_mut(key.index as usize)?.as_mut()?;
        let buffer = inbound.payload_buffer();
        if buffer.is_empty() { None } else { Some(buffer) }
    }

    /// The first `n` bytes of the payload buffer were filled.
    pub fn payload_filled(&mut self, key: ConnKey, n: usize) {
        if self.is_route(key) {
            self.route_filled(key, n);
            return;
        }
        let now = self.core.now.mono;
        let received = self.with_host(key, |inbound, host| {
            if let Some(filled) = inbound.payload_buffer().get(..n) {
                host.core.trace_input(key, filled);
            }
            inbound.payload_filled(n);
            inbound.receive(now, &[], host)
        });
        if let Some(received) = received {
            self.received(key, received);
        }
    }

    /// Whether nothing is to be read from a connection for now.
    #[must_use]
    pub fn is_paused(&self, key: ConnKey) -> bool {
        let place = self
            .core
            .clients
            .get(key.index as usize)
            .and_then(|place| place.client.as_ref());
        self.core.system.stop.is_deaf()
            || place.is_some_and(|c| c.paused_until.is_some() || c.asking || c.closing.is_some())
    }

    /// The socket has ended.
    pub fn hang_up(&mut self, key: ConnKey, why: HangUp) {
        if self.is_route(key) {
            self.route_hung_up(key, &why);
            return;
        }
        let reason = match why {
            HangUp::Closed => CloseReason::ClientClosed,
            HangUp::Read(_) => CloseReason::ReadError,
            HangUp::Write(_) | HangUp::Refused(_) => CloseReason::WriteError,
        };
        self.core.close(key, reason);
    }

    /// The socket is closed; the key is free for another.
    pub fn closed(&mut self, key: ConnKey) {
        if self.is_route(key) {
            self.route_closed(key);
            return;
        }
        if self.core.client(key).is_none() {
            return;
        }
        self.forget_client(key);
        self.core.withdraw_all(key);
        self.core.release_waiters(key);
        if let Some(place) = self.inbound.get_mut(key.index as usize) {
            *place = None;
        }
        let shared = Arc::clone(&self.core.shared);
        if let Some(client) = self
            .core
            .clients
            .get_mut(key.index as usize)
            .and_then(|place| place.client.as_mut())
        {
            client.outbound.discard(&mut self.core.pool);
            if let Some(account) = client.account().and_then(|id| shared.account(id)) {
                account.connections.fetch_sub(1, Ordering::Relaxed);
            }
            tracing::debug!(
                "{} - Client connection closed: {}",
                client.label,
                client.closing.map_or("", |r| r.text())
            );
        }
        shared.totals.connections.fetch_sub(1, Ordering::Relaxed);
        self.core.free_key(key);
    }

    /// Writes what a connection holds: `write` gets the slices and answers what the socket took. `None` if there is
    /// nothing to write.
    pub fn transmit(
        &mut self,
        key: ConnKey,
        write: impl FnOnce(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        if self.is_route(key) {
            return self.transmit_route(key, write);
        }
        let now = self.core.now;
        let pool = &mut self.core.pool;
        let place = self.core.clients.get_mut(key.index as usize)?;
        let client = place
            .client
            .as_mut()
            .filter(|_| place.generation == key.generation)?;
        if client.outbound.pending() == 0 {
            return None;
        }
        let mut slices: SmallVec<[IoSlice<'_>; SLICES]> = SmallVec::new();
        client.outbound.chunks(&mut slices);
        let result = write(&slices);
        drop(slices);
        match &result {
            Ok(n) => {
                client.trace_output(*n, &self.core.shared.options.log);
                client.outbound.advance(*n, pool);
                client.last_activity = now;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => client.outbound.stalled(now.mono),
            Err(_) => {}
        }
        let caught_up = !client.waiters.is_empty() && client.outbound.pending() < super::Core::RESUME_BELOW;
        if caught_up {
            self.core.release_waiters(key);
        }
        if result.is_err() {
            self.arm(key);
        }
        Some(result)
    }

    fn tick(&mut self, key: ConnKey) {
        let now = self.core.now.mono;
        let Some(client) = self
            .core
            .clients
            .get_mut(key.index as usize)
            .and_then(|place| place.client.as_mut())
        else {
            return;
        };
        if client.paused_until.is_some_and(|until| until <= now) {
            client.paused_until = None;
            self.core.out.resumed.push(key);
        }
        let inbound = self.inbound.get_mut(key.index as usize).and_then(Option::as_mut);
        let close = inbound.and_then(|inbound| inbound.tick(now, &mut client.outbound, &mut self.core.pool));
        let pending = client.outbound.pending();
        self.core.mark_dirty(key);
        if let Some(reason) = close {
            if reason == CloseReason::SlowConsumerWriteDeadline {
                self.core.log_write_deadline(key, pending);
            }
            self.core.close(key, reason);
        }
        self.arm(key);
    }

    /// Arms the timer of a connection for its next deadline.
    fn arm(&mut self, key: ConnKey) {
        let Some(inbound) = self.inbound.get(key.index as usize).and_then(Option::as_ref) else {
            return;
        };
        let Some(client) = self.core.client(key) else {
            return;
        };
        let next = inbound.next_deadline(&client.outbound);
        let next = [next, client.paused_until].into_iter().flatten().min();
        if let Some(next) = next {
            self.core.arm(next, key);
        }
    }

    /// Cells from another worker of this node.
    pub fn receive_cells(&mut self, from: WorkerId, cells: Vec<Cell>) {
        for cell in cells {
            self.receive_cell(from, cell);
        }
    }

    /// A disk operation has ended.
    pub fn io_done(&mut self, owner: IoOwner, done: IoDone) {
        self.core.groups_io_done(owner, &done);
    }

    /// After [`Worker::io_done`]: what the disk may have at once, ahead of the end of the turn.
    pub fn io_ahead(&mut self, out: &mut Vec<IoJob>) {
        self.core.cut_lane_ahead();
        out.append(&mut self.core.out.io);
    }

    /// Ends the turn: makes interest visible, sends what was decided, lists what is to be written.
    pub fn finish(&mut self, out: &mut Output) {
        self.core.flush_senders();
        self.drain_inbox();
        self.core.run_requests();
        self.core.consumers_before_groups();
        self.core.run_groups();
        self.core.flush_senders();
        self.drain_inbox();
        self.core.run_groups();
        self.core.arm_senders();
        self.core.consumers_after_groups();
        self.finish_system();
        self.core.commit_all_interest();
        self.core.flush_batches();
        self.core.flush_nodes();
        // What ended a link just now took interest with it.
        self.core.commit_all_interest();
        self.core.list_links(out);
        let pending = &mut self.core.out;
        out.resumed.append(&mut pending.resumed);
        out.dials.append(&mut pending.dials);
        out.answers.append(&mut pending.answers);
        out.io.append(&mut pending.io);
        out.checks.append(&mut pending.checks);
        for (to, cell) in pending.cells.drain(..) {
            match out.cells.iter_mut().find(|(worker, _)| *worker == to) {
                Some((_, cells)) => cells.push(cell),
                None => out.cells.push((to, vec![cell])),
            }
        }
        for key in std::mem::take(&mut pending.dirty) {
            if let Some(client) = self.core.client(key) {
                client.dirty = false;
                out.writes.push(key);
            }
        }
        for (key, _) in std::mem::take(&mut self.core.out.closing) {
            out.closes.push(key);
        }
        out.stop_listening |= std::mem::take(&mut self.core.out.stop_listening);
        out.stopped |= self.core.system.stop.is_over();
    }
}

/// An output that nobody reads, for a connection that is gone.
pub(super) fn nobody(settings: &tidelock_session::Settings) -> Outbound {
    let mut outbound = Outbound::new(settings);
    outbound.close();
    outbound
}

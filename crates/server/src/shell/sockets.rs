//! One socket of a worker's loop: reading into the worker, writing what the worker holds for it.

use mio::net::TcpStream;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use tidelock_node::{ConnKey, Worker};

/// A link on which nothing gets through for so long is given up, and made anew.
///
/// After each loss the system waits twice as long as before with what it sends again: half a minute and more when a way
/// was cut a few times in a row. The way may be well again long before, and other links to the same node show it.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// Lets the system give up a link to another node after [`DEAD_AFTER`]. Where it cannot, the link's pings find out.
pub(super) fn give_up_dead_ways(stream: &TcpStream) {
    let milliseconds = u32::try_from(DEAD_AFTER.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds);
}

/// A connected (or connecting) socket.
pub(super) struct Socket {
    pub(super) key: ConnKey,
    pub(super) stream: TcpStream,
    pub(super) connecting: bool,
    /// The other side has sent its last byte: a short read does not mean that there is nothing more to learn.
    pub(super) half_closed: bool,
    /// What is left over was not looked at to the end, because the worker had to wait for something.
    pub(super) show_again: bool,
    /// What the last read left unconsumed: the start of a command.
    rest: Vec<u8>,
}

/// Why reading ended for this turn.
pub(super) enum ReadEnd {
    /// Nothing more is there.
    Empty,
    /// The worker takes no more from this connection for now.
    Paused,
    /// More may be there, but others come first.
    Budget,
    /// The other side has closed.
    Closed,
    /// The socket failed.
    Failed(io::Error),
}

impl Socket {
    pub(super) const fn new(key: ConnKey, stream: TcpStream, connecting: bool) -> Self {
        Self {
            key,
            stream,
            connecting,
            half_closed: false,
            show_again: false,
            rest: Vec::new(),
        }
    }

    /// How a connection attempt ended; `None` while it goes on.
    pub(super) fn connected(&mut self) -> Option<io::Result<(SocketAddr, SocketAddr)>> {
        match self.stream.take_error() {
            Ok(Some(e)) | Err(e) => return Some(Err(e)),
            Ok(None) => {}
        }
        match (self.stream.local_addr(), self.stream.peer_addr()) {
            (Ok(local), Ok(peer)) => {
                self.connecting = false;
                Some(Ok((local, peer)))
            }
            _ => None,
        }
    }

    /// Reads until nothing is left, the budget is used up or the worker wants no more.
    pub(super) fn read(
        &mut self,
        worker: &mut Worker,
        scratch: &mut [u8],
        budget: usize,
        budget_large: usize,
    ) -> ReadEnd {
        if self.connecting {
            return ReadEnd::Empty;
        }
        if std::mem::take(&mut self.show_again) && !self.rest.is_empty() && !worker.is_paused(self.key) {
            let rest = std::mem::take(&mut self.rest);
            let consumed = worker.receive(self.key, &rest);
            self.rest
                .extend_from_slice(rest.get(consumed..).unwrap_or_default());
        }
        let mut taken = 0;
        let mut budget = budget;
        loop {
            if worker.is_paused(self.key) {
                return ReadEnd::Paused;
            }
            let (result, room) = if let Some(buffer) = worker.payload_buffer(self.key) {
                budget = budget_large;
                let room = buffer.len();
                let result = self.stream.read(buffer);
                if let Ok(n) = result
                    && n > 0
                {
                    worker.payload_filled(self.key, n);
                }
                (result, room)
            } else {
                self.read_commands(worker, scratch)
            };
            match result {
                Ok(0) => return ReadEnd::Closed,
                Ok(n) => {
                    taken += n;
                    if n < room && !self.half_closed {
                        return ReadEnd::Empty;
                    }
                    if taken >= budget {
                        return ReadEnd::Budget;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return ReadEnd::Empty,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return ReadEnd::Failed(e),
            }
        }
    }

    /// One read into the scratch buffer, behind what was left over; answers what was read and how much there was
    /// room for.
    fn read_commands(&mut self, worker: &mut Worker, scratch: &mut [u8]) -> (io::Result<usize>, usize) {
        let kept = self.rest.len();
        let Some((front, back)) = scratch.split_at_mut_checked(kept) else {
            // More is left over than the scratch holds, which the worker's limits exclude.
            return (Err(io::ErrorKind::InvalidData.into()), 0);
        };
        front.copy_from_slice(&self.rest);
        let room = back.len();
        let result = self.stream.read(back);
        if let Ok(n) = result
            && n > 0
        {
            let input = scratch.get(..kept + n).unwrap_or_default();
            let consumed = worker.receive(self.key, input);
            self.rest.clear();
            self.rest
                .extend_from_slice(input.get(consumed..).unwrap_or_default());
        }
        (result, room)
    }

    /// Writes until the worker has nothing more or the socket takes no more.
    pub(super) fn write(&mut self, worker: &mut Worker) -> io::Result<()> {
        if self.connecting {
            return Ok(());
        }
        loop {
            match worker.transmit(self.key, |slices| self.stream.write_vectored(slices)) {
                None => return Ok(()),
                Some(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Some(Ok(_)) => {}
                Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(e)) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_given_up_by_the_system_itself() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stream = TcpStream::connect(address).expect("a connection");
        let timeout = |stream: &TcpStream| rustix::net::sockopt::tcp_user_timeout(stream);
        assert_eq!(timeout(&stream), Ok(0));
        give_up_dead_ways(&stream);
        assert_eq!(timeout(&stream), Ok(5_000));
    }
}

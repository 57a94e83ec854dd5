//! The loop around one worker: sockets in, [`Worker`] turn, sockets out.
//!
//! All decisions are the worker's; this loop reads ready sockets into the worker, hands over what other threads sent,
//! runs the end of the turn and writes what it produced. One thread, one `mio` poll, no locks.

mod again;
mod sockets;

use crate::clock::Clock;
use crate::helpers::{DiskHelpers, HelperInput};
use again::ReadAgain;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use sockets::{ReadEnd, Socket};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;
use tidelock_base::WorkerId;
use tidelock_node::{Cell, ConnKey, HangUp, Listener, Output, Query, QueryId, Worker};
use tokio::sync::mpsc::UnboundedSender;

const WAKER: Token = Token(0);
const CLIENTS: Token = Token(1);
const ROUTES: Token = Token(2);
/// Tokens of connections start here.
const FIRST_CONNECTION: usize = 16;
/// Bytes that one connection may have read in a turn; the rest waits for the next turn, so that a flooding client
/// cannot starve a quiet one (DESIGN section 3). Several reads: with one a turn, what a turn costs beside reading takes a
/// tenth of a flood's time.
const READ_BUDGET: usize = 256 * 1024;
/// The same while a large payload is read to its exact size.
const READ_BUDGET_LARGE: usize = 1024 * 1024;
/// One read buffer a worker; what is left of a read is kept by its connection.
const SCRATCH: usize = 64 * 1024;

/// What other threads send to a worker's loop.
pub(crate) enum Input {
    /// A client connection that another worker's loop accepted.
    Client(std::net::TcpStream, SocketAddr),
    /// Cells from another worker of this node.
    Cells(WorkerId, Vec<Cell>),
    /// A disk operation ended.
    Disk(HelperInput),
    /// A name was resolved, or not, for a connection that the worker wants to open.
    Resolved(ConnKey, Option<SocketAddr>),
    /// A password check ended: with who the client is, or with nothing.
    Checked(ConnKey, Option<Box<tidelock_auth::Identity>>),
    /// A monitoring request.
    Query(QueryId, Query),
    /// The operator wants something.
    Command(Command),
}

/// What an operator may ask of a running server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Stop in good order.
    Stop,
    /// Lame duck mode.
    LameDuck,
}

/// How to reach a worker's loop from another thread.
#[derive(Clone)]
pub(crate) struct Mailbox {
    sender: Sender<Input>,
    waker: Arc<Waker>,
}

impl Mailbox {
    /// Sends; a loop that has ended swallows it.
    pub(crate) fn send(&self, input: Input) {
        if self.sender.send(input).is_ok() {
            // A waker fails only when its poll is gone, and then nobody waits.
            let _ = self.waker.wake();
        }
    }
}

/// Everything a loop needs before its worker exists.
pub(crate) struct Seat {
    poll: Poll,
    receiver: Receiver<Input>,
    mailbox: Mailbox,
}

impl Seat {
    pub(crate) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (sender, receiver) = std::sync::mpsc::channel();
        Ok(Self {
            poll,
            receiver,
            mailbox: Mailbox { sender, waker },
        })
    }

    pub(crate) fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }
}

/// The loop of one worker.
pub(crate) struct Shell {
    worker: Worker,
    clock: Clock,
    poll: Poll,
    receiver: Receiver<Input>,
    mailbox: Mailbox,
    peers: Vec<Mailbox>,
    next_peer: usize,
    clients: Option<TcpListener>,
    routes: Option<TcpListener>,
    sockets: Vec<Option<Socket>>,
    again: ReadAgain,
    scratch: Vec<u8>,
    disk: DiskHelpers,
    answers: UnboundedSender<(QueryId, tidelock_node::Answer)>,
    out: Output,
}

/// What a [`Shell`] is made of besides its worker.
pub(crate) struct Parts {
    pub(crate) seat: Seat,
    pub(crate) clock: Clock,
    pub(crate) peers: Vec<Mailbox>,
    pub(crate) clients: Option<TcpListener>,
    pub(crate) routes: Option<TcpListener>,
    pub(crate) disk: DiskHelpers,
    pub(crate) answers: UnboundedSender<(QueryId, tidelock_node::Answer)>,
}

impl Shell {
    pub(crate) fn new(worker: Worker, parts: Parts) -> io::Result<Self> {
        let Parts {
            seat,
            clock,
            peers,
            mut clients,
            mut routes,
            disk,
            answers,
        } = parts;
        let registry = seat.poll.registry();
        if let Some(listener) = &mut clients {
            registry.register(listener, CLIENTS, Interest::READABLE)?;
        }
        if let Some(listener) = &mut routes {
            registry.register(listener, ROUTES, Interest::READABLE)?;
        }
        Ok(Self {
            worker,
            clock,
            poll: seat.poll,
            receiver: seat.receiver,
            mailbox: seat.mailbox,
            peers,
            next_peer: 0,
            clients,
            routes,
            sockets: Vec::new(),
            again: ReadAgain::default(),
            scratch: vec![0; SCRATCH],
            disk,
            answers,
            out: Output::default(),
        })
    }

    /// Runs until the worker has stopped.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, self.wait()) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            self.worker.begin(self.clock.now());
            let again = self.again.take();
            for event in &events {
                match event.token() {
                    WAKER => self.drain_mailbox(),
                    CLIENTS => self.accept(Listener::Client),
                    ROUTES => self.accept(Listener::Route),
                    Token(n) => self.ready(n - FIRST_CONNECTION, event),
                }
            }
            for key in again {
                self.again.begin(key);
                self.read(key);
            }
            if !self.end_turn() {
                return Ok(());
            }
        }
    }

    fn wait(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline = self.worker.next_deadline()?;
        Some(deadline.since(self.clock.mono()))
    }

    /// Ends the turn and carries out what it asked for; `false` once the worker has stopped.
    fn end_turn(&mut self) -> bool {
        let mut out = std::mem::take(&mut self.out);
        loop {
            self.worker.finish(&mut out);
            for key in out.resumed.drain(..) {
                if let Some(Some(socket)) = self.sockets.get_mut(key.index as usize) {
                    socket.show_again = true;
                }
                self.again.add(key);
            }
            if !self.disk.submit(&mut out.io, &self.mailbox, &mut self.worker) {
                break;
            }
        }
        for (key, address) in out.dials.drain(..) {
            self.dial(key, &address);
        }
        for (to, cells) in out.cells.drain(..) {
            if let Some(peer) = self.peers.get(usize::from(to.0)) {
                peer.send(Input::Cells(self.worker.id(), cells));
            }
        }
        for (key, check) in out.checks.drain(..) {
            crate::helpers::check_password(key, check, self.mailbox.clone());
        }
        for (id, answer) in out.answers.drain(..) {
            let _ = self.answers.send((id, answer));
        }
        for key in out.writes.drain(..) {
            self.write(key);
        }
        for key in out.closes.drain(..) {
            self.close(key);
        }
        if out.stop_listening {
            self.clients = None;
        }
        let go_on = !out.stopped;
        self.out = out;
        go_on
    }

    fn drain_mailbox(&mut self) {
        while let Ok(input) = self.receiver.try_recv() {
            match input {
                Input::Client(stream, address) => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.admit(mio::net::TcpStream::from_std(stream), address, Listener::Client);
                    }
                }
                Input::Cells(from, cells) => self.worker.receive_cells(from, cells),
                Input::Disk(done) => {
                    self.disk.ended(done, &mut self.worker);
                    self.worker.io_ahead(&mut self.out.io);
                    self.disk
                        .submit(&mut self.out.io, &self.mailbox, &mut self.worker);
                }
                // The worker may have given the attempt up meanwhile, and the key be another connection's.
                Input::Resolved(key, _) if !self.worker.wants_dial(key) => {}
                Input::Resolved(key, Some(address)) => self.connect(key, address),
                Input::Resolved(key, None) => {
                    self.worker.hang_up(key, HangUp::Refused("no such host".into()))
                }
                Input::Checked(key, identity) => self.worker.authenticated(key, identity.as_deref()),
                Input::Query(id, query) => self.worker.query(id, &query),
                Input::Command(Command::Stop) => self.worker.stop(),
                Input::Command(Command::LameDuck) => self.worker.lame_duck(),
            }
        }
    }

    fn accept(&mut self, listener: Listener) {
        loop {
            let from = match listener {
                Listener::Client => self.clients.as_ref(),
                Listener::Route => self.routes.as_ref(),
            };
            let Some(from) = from else { return };
            match from.accept() {
                Ok((stream, address)) => self.place(stream, address, listener),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The connection died between its arrival and now, or the process is out of descriptors: the
                // listener itself is well.
                Err(e) => {
                    tracing::warn!(error = %e, "Error accepting a connection");
                    return;
                }
            }
        }
    }

    /// Gives a client connection to the next worker in turn; route connections stay here.
    fn place(&mut self, stream: mio::net::TcpStream, address: SocketAddr, listener: Listener) {
        self.next_peer = (self.next_peer + 1) % self.peers.len().max(1);
        if listener == Listener::Client && self.next_peer != usize::from(self.worker.id().0) {
            if let Some(peer) = self.peers.get(self.next_peer) {
                peer.send(Input::Client(stream.into(), address));
            }
        } else {
            self.admit(stream, address, listener);
        }
    }

    fn admit(&mut self, stream: mio::net::TcpStream, address: SocketAddr, listener: Listener) {
        if listener == Listener::Route {
            sockets::give_up_dead_ways(&stream);
        }
        let key = self.worker.accept(address, listener);
        self.register(key, stream, false);
        self.read(key);
    }

    fn register(&mut self, key: ConnKey, mut stream: mio::net::TcpStream, connecting: bool) {
        let _ = stream.set_nodelay(true);
        let index = key.index as usize;
        let token = Token(FIRST_CONNECTION + index);
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(e) = self.poll.registry().register(&mut stream, token, both) {
            self.worker.hang_up(key, HangUp::Read(e.to_string()));
            return;
        }
        if self.sockets.len() <= index {
            self.sockets.resize_with(index + 1, || None);
        }
        if let Some(place) = self.sockets.get_mut(index) {
            *place = Some(Socket::new(key, stream, connecting));
        }
    }

    fn dial(&mut self, key: ConnKey, address: &str) {
        if let Ok(address) = address.parse() {
            self.connect(key, address);
        } else {
            crate::helpers::resolve(key, address.to_owned(), self.mailbox.clone());
        }
    }

    fn connect(&mut self, key: ConnKey, address: SocketAddr) {
        match mio::net::TcpStream::connect(address) {
            Ok(stream) => {
                sockets::give_up_dead_ways(&stream);
                self.register(key, stream, true);
            }
            Err(e) => self.worker.hang_up(key, HangUp::Refused(e.to_string())),
        }
    }

    fn ready(&mut self, index: usize, event: &mio::event::Event) {
        let Some(Some(socket)) = self.sockets.get_mut(index) else {
            return;
        };
        let key = socket.key;
        if socket.connecting && (event.is_writable() || event.is_error()) {
            match socket.connected() {
                Some(Ok((local, peer))) => self.worker.connected(key, local, peer),
                Some(Err(e)) => {
                    self.worker.hang_up(key, HangUp::Refused(e.to_string()));
                    self.forget(index);
                    return;
                }
                None => return,
            }
        }
        if event.is_writable() {
            self.write(key);
        }
        if event.is_read_closed()
            && let Some(socket) = self.socket(key)
        {
            socket.half_closed = true;
        }
        let is_due = event.is_readable() || event.is_read_closed() || event.is_error();
        if is_due && !self.again.contains(key) {
            self.read(key);
        }
    }

    fn socket(&mut self, key: ConnKey) -> Option<&mut Socket> {
        self.sockets
            .get_mut(key.index as usize)?
            .as_mut()
            .filter(|socket| socket.key == key)
    }

    fn read(&mut self, key: ConnKey) {
        let Some(place) = self.sockets.get_mut(key.index as usize) else {
            return;
        };
        let Some(socket) = place.as_mut().filter(|socket| socket.key == key) else {
            return;
        };
        match socket.read(
            &mut self.worker,
            &mut self.scratch,
            READ_BUDGET,
            READ_BUDGET_LARGE,
        ) {
            ReadEnd::Empty | ReadEnd::Paused => {}
            ReadEnd::Budget => self.again.add(key),
            ReadEnd::Closed => self.worker.hang_up(key, HangUp::Closed),
            ReadEnd::Failed(e) => self.worker.hang_up(key, HangUp::Read(e.to_string())),
        }
    }

    fn write(&mut self, key: ConnKey) {
        let Some(place) = self.sockets.get_mut(key.index as usize) else {
            return;
        };
        let Some(socket) = place.as_mut().filter(|socket| socket.key == key) else {
            return;
        };
        if let Err(e) = socket.write(&mut self.worker) {
            self.worker.hang_up(key, HangUp::Write(e.to_string()));
        }
    }

    /// Closes after one more try to send what is pending.
    fn close(&mut self, key: ConnKey) {
        if self.socket(key).is_some() {
            self.write(key);
        }
        self.worker.closed(key);
        self.forget(key.index as usize);
    }

    fn forget(&mut self, index: usize) {
        if let Some(place) = self.sockets.get_mut(index)
            && let Some(mut socket) = place.take()
        {
            let _ = self.poll.registry().deregister(&mut socket.stream);
        }
    }
}

//! The network: connections that carry bytes in order, with delays, between hosts that can be parted.
//!
//! A way from one host to another is open, held or cut. Held, it keeps what is sent and delivers it later, as TCP does
//! across a short outage. Cut, it loses everything, what is in flight too; a connection that has lost bytes can never
//! go on, so when the way opens again both of its ends are told that it has ended (a reset). Until then nobody is told
//! anything: the ends find out by their own clocks.
//!
//! Nothing here knows what the bytes mean. Events come back through [`Network::take_events`].

use crate::rng::Rng;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;
use tidelock_base::Mono;
use tidelock_node::ConnKey;

/// Bytes that a connection holds in one direction before its writer has to wait.
const WINDOW: usize = 256 << 10;
/// Most delays lie below this.
const DELAY_USUAL: Duration = Duration::from_micros(250);
/// One packet in so many is late.
const LATE_PER_MILLE: u64 = 10;
/// By up to so much.
const DELAY_LATE: Duration = Duration::from_millis(8);

/// Where an end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    /// A node.
    Node(usize),
    /// Where the clients are.
    Clients,
}

/// Who has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A worker of a node.
    Worker {
        node: usize,
        worker: usize,
        key: ConnKey,
    },
    /// A client.
    Client(u64),
    /// Nobody yet, or nobody any more.
    Nobody,
}

/// The end of a connection: 0 is the side that dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End {
    pub(crate) conn: u64,
    pub(crate) side: u8,
}

impl End {
    pub(crate) const fn other(self) -> Self {
        Self {
            conn: self.conn,
            side: 1 - self.side,
        }
    }
}

/// What the network wants to be reminded of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetEvent {
    /// Something reaches this end.
    Arrive(End),
    /// The request for a connection reaches the other host.
    Ask(u64),
    /// The answer to it reaches the host that dialled.
    Answer(u64),
    /// There is room again for what this end's owner wants to write.
    Room(End),
}

/// A way from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything arrives.
    #[default]
    Open,
    /// Everything waits.
    Held,
    /// Everything is lost.
    Cut,
}

#[derive(Debug)]
struct Flying {
    at: Mono,
    /// `None` is the end of the stream.
    bytes: Option<Bytes>,
}

/// What flows towards one end.
#[derive(Debug, Default)]
struct Pipe {
    flying: VecDeque<Flying>,
    flying_bytes: usize,
    inbox: VecDeque<u8>,
    /// The other side has written its last byte, and it has arrived.
    ended: bool,
    /// The owner of this end has closed it.
    closed: bool,
    /// The owner of the other end waits for room.
    blocked: bool,
}

#[derive(Debug)]
struct Conn {
    hosts: [Host; 2],
    owners: [Owner; 2],
    pipes: [Pipe; 2],
    /// Bytes were lost: it cannot go on.
    broken: bool,
    /// It was accepted.
    open: bool,
}

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Bytes.
    Bytes(Vec<u8>),
    /// Nothing for now.
    Empty,
    /// The other side has closed.
    Ended,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Network {
    conns: BTreeMap<u64, Conn>,
    ways: BTreeMap<(Host, Host), Way>,
    slow: BTreeMap<(Host, Host), Duration>,
    next: u64,
    rng: Rng,
    events: Vec<(Mono, NetEvent)>,
}

impl Conn {
    const fn pipe(&mut self, side: u8) -> &mut Pipe {
        let [dialled, accepted] = &mut self.pipes;
        if side == 0 { dialled } else { accepted }
    }

    const fn owner(&mut self, side: u8) -> &mut Owner {
        let [dialled, accepted] = &mut self.owners;
        if side == 0 { dialled } else { accepted }
    }

    /// From whom to whom flows what reaches this end.
    const fn way(&self, side: u8) -> (Host, Host) {
        let [dialled, accepted] = self.hosts;
        if side == 0 {
            (accepted, dialled)
        } else {
            (dialled, accepted)
        }
    }
}

impl Network {
    pub(crate) const fn new(rng: Rng) -> Self {
        Self {
            conns: BTreeMap::new(),
            ways: BTreeMap::new(),
            slow: BTreeMap::new(),
            next: 0,
            rng,
            events: Vec::new(),
        }
    }

    /// Events that were planned since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<(Mono, NetEvent)> {
        std::mem::take(&mut self.events)
    }

    fn delay(&mut self, way: (Host, Host)) -> Duration {
        let slow = self.slow.get(&way).copied().unwrap_or_default();
        let most = if self.rng.per_mille(LATE_PER_MILLE) {
            DELAY_LATE
        } else {
            DELAY_USUAL
        };
        slow + self.rng.between(Duration::from_micros(15), most)
    }

    fn way(&self, way: (Host, Host)) -> Way {
        self.ways.get(&way).copied().unwrap_or_default()
    }

    // ---- connections ----------------------------------------------------------------------------------------------

    /// Starts to open a connection. Through a cut nothing comes of it, and nobody is told.
    pub(crate) fn dial(&mut self, now: Mono, from: Host, to: Host, owner: Owner) -> End {
        self.next += 1;
        let conn = self.next;
        let hosts = [from, to];
        let owners = [owner, Owner::Nobody];
        self.conns.insert(
            conn,
            Conn {
                hosts,
                owners,
                pipes: Default::default(),
                broken: false,
                open: false,
            },
        );
        let at = now + self.delay((from, to));
        self.events.push((at, NetEvent::Ask(conn)));
        End { conn, side: 0 }
    }

    /// A request for a connection reaches its host: which one that is, if it does.
    pub(crate) fn asked(&self, conn: u64) -> Option<Host> {
        let found = self.conns.get(&conn)?;
        let [from, to] = found.hosts;
        (self.way((from, to)) == Way::Open && self.way((to, from)) != Way::Cut).then_some(to)
    }

    /// The host has accepted; its end belongs to `owner` from now on.
    pub(crate) fn accept(&mut self, now: Mono, conn: u64, owner: Owner) {
        let Some(found) = self.conns.get_mut(&conn) else {
            return;
        };
        *found.owner(1) = owner;
        found.open = true;
        let way = found.way(0);
        let at = now + self.delay(way);
        self.events.push((at, NetEvent::Answer(conn)));
    }

    /// Nobody is there who would accept.
    pub(crate) fn refuse(&mut self, now: Mono, conn: u64) {
        let Some(way) = self.conns.get(&conn).map(|found| found.way(0)) else {
            return;
        };
        let at = now + self.delay(way);
        self.events.push((at, NetEvent::Answer(conn)));
    }

    /// The answer has come: who had dialled, and whether the connection is open.
    pub(crate) fn answered(&mut self, conn: u64) -> Option<(Owner, bool)> {
        let found = self.conns.get_mut(&conn)?;
        let answer = (*found.owner(0), found.open);
        if !found.open {
            self.conns.remove(&conn);
        }
        Some(answer)
    }

    pub(crate) fn owner(&self, end: End) -> Owner {
        let side = usize::from(end.side);
        self.conns
            .get(&end.conn)
            .and_then(|conn| conn.owners.get(side))
            .copied()
            .unwrap_or(Owner::Nobody)
    }

    /// The owner of an end closes it; the other end is told, if the way is open.
    pub(crate) fn close(&mut self, now: Mono, end: End) {
        let Some(conn) = self.conns.get_mut(&end.conn) else {
            return;
        };
        *conn.owner(end.side) = Owner::Nobody;
        let pipe = conn.pipe(end.side);
        pipe.closed = true;
        pipe.inbox.clear();
        let open = conn.open;
        if conn.pipes.iter().all(|pipe| pipe.closed) || !open {
            self.conns.remove(&end.conn);
        } else {
            self.push(now, end.other(), None);
        }
    }

    // ---- bytes ----------------------------------------------------------------------------------------------------

    /// Sends what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room: [`NetEvent::Room`] will tell. `BrokenPipe` if there is no such connection.
    pub(crate) fn write<'a>(
        &mut self,
        now: Mono,
        end: End,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<(usize, Bytes)> {
        let conn = self.conns.get_mut(&end.conn).ok_or(io::ErrorKind::BrokenPipe)?;
        let pipe = conn.pipe(end.other().side);
        let room = WINDOW.saturating_sub(pipe.inbox.len() + pipe.flying_bytes);
        if room == 0 {
            pipe.blocked = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = Vec::new();
        for slice in slices {
            let take = slice.len().min(room - bytes.len());
            bytes.extend_from_slice(slice.get(..take).unwrap_or_default());
        }
        let bytes = Bytes::from(bytes);
        self.push(now, end.other(), Some(bytes.clone()));
        Ok((bytes.len(), bytes))
    }

    fn push(&mut self, now: Mono, to: End, bytes: Option<Bytes>) {
        let Some(way) = self.conns.get(&to.conn).map(|conn| conn.way(to.side)) else {
            return;
        };
        let at = now + self.delay(way);
        let state = self.way(way);
        let Some(conn) = self.conns.get_mut(&to.conn) else {
            return;
        };
        if state == Way::Cut || conn.broken {
            conn.broken = true;
            return;
        }
        let pipe = conn.pipe(to.side);
        let at = pipe.flying.back().map_or(at, |last| at.max(last.at));
        pipe.flying_bytes += bytes.as_ref().map_or(0, Bytes::len);
        pipe.flying.push_back(Flying { at, bytes });
        self.events.push((at, NetEvent::Arrive(to)));
    }

    /// Something should arrive now: whether there is something to read.
    pub(crate) fn arrive(&mut self, now: Mono, end: End) -> bool {
        let Some(way) = self.conns.get(&end.conn).map(|conn| conn.way(end.side)) else {
            return false;
        };
        let state = self.way(way);
        let Some(conn) = self.conns.get_mut(&end.conn) else {
            return false;
        };
        let broken = conn.broken;
        let pipe = conn.pipe(end.side);
        if state == Way::Held || pipe.flying.front().is_none_or(|first| first.at > now) {
            return false;
        }
        let Some(first) = pipe.flying.pop_front() else {
            return false;
        };
        pipe.flying_bytes -= first.bytes.as_ref().map_or(0, Bytes::len);
        if state == Way::Cut && !broken {
            conn.broken = true;
            return false;
        }
        match first.bytes {
            // A reset gets through although bytes were lost before it.
            None => pipe.ended = true,
            Some(_) if broken || pipe.closed => return false,
            Some(bytes) => pipe.inbox.extend(bytes),
        }
        !pipe.closed
    }

    /// Takes up to `most` bytes that have arrived.
    pub(crate) fn read(&mut self, now: Mono, end: End, most: usize) -> Read {
        let Some(conn) = self.conns.get_mut(&end.conn) else {
            return Read::Ended;
        };
        let pipe = conn.pipe(end.side);
        if pipe.inbox.is_empty() {
            return if pipe.ended { Read::Ended } else { Read::Empty };
        }
        let n = most.min(pipe.inbox.len());
        let bytes = pipe.inbox.drain(..n).collect();
        if std::mem::take(&mut pipe.blocked) {
            let way = conn.way(end.other().side);
            let at = now + self.delay(way);
            self.events.push((at, NetEvent::Room(end.other())));
        }
        Read::Bytes(bytes)
    }

    /// Whether a read would find something.
    pub(crate) fn is_readable(&self, end: End) -> bool {
        let pipe = self
            .conns
            .get(&end.conn)
            .and_then(|conn| conn.pipes.get(usize::from(end.side)));
        pipe.is_some_and(|pipe| !pipe.inbox.is_empty() || pipe.ended)
    }

    // ---- faults ---------------------------------------------------------------------------------------------------

    /// Changes a way. What a cut way has lost ends its connections once both of their ways are open.
    pub(crate) fn set_way(&mut self, now: Mono, from: Host, to: Host, state: Way) {
        let before = self.ways.insert((from, to), state).unwrap_or_default();
        if before == Way::Held {
            self.release(now, (from, to));
        }
        if state == Way::Open && before == Way::Cut {
            let broken: Vec<u64> = self
                .conns
                .iter()
                .filter(|(_, conn)| conn.broken && conn.open)
                .map(|(id, _)| *id)
                .collect();
            for conn in broken {
                self.reset_if_open(now, conn);
            }
        }
    }

    fn reset_if_open(&mut self, now: Mono, conn: u64) {
        let Some(found) = self.conns.get(&conn) else {
            return;
        };
        if [0, 1].iter().all(|side| self.way(found.way(*side)) == Way::Open) {
            self.reset(now, conn);
        }
    }

    fn release(&mut self, now: Mono, way: (Host, Host)) {
        for (id, conn) in &mut self.conns {
            for side in [0, 1] {
                if conn.way(side) != way {
                    continue;
                }
                for flying in &mut conn.pipe(side).flying {
                    flying.at = flying.at.max(now + DELAY_USUAL);
                    self.events
                        .push((flying.at, NetEvent::Arrive(End { conn: *id, side })));
                }
            }
        }
    }

    /// Ends a connection as a reset does: what is in flight is lost, both ends are told.
    fn reset(&mut self, now: Mono, conn: u64) {
        for side in [0, 1] {
            let Some(found) = self.conns.get_mut(&conn) else {
                return;
            };
            found.broken = true;
            let pipe = found.pipe(side);
            pipe.flying.clear();
            pipe.flying_bytes = 0;
            let way = found.way(side);
            let at = now + self.delay(way);
            if let Some(found) = self.conns.get_mut(&conn) {
                found.pipe(side).flying.push_back(Flying { at, bytes: None });
                self.events.push((at, NetEvent::Arrive(End { conn, side })));
            }
        }
    }

    /// Resets all open connections between two hosts, or a part of them.
    pub(crate) fn reset_between(&mut self, now: Mono, one: Host, other: Host, per_mille: u64) {
        let found = |conn: &Conn| conn.open && (conn.hosts == [one, other] || conn.hosts == [other, one]);
        let all: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| found(conn))
            .map(|(id, _)| *id)
            .collect();
        for conn in all {
            if self.rng.per_mille(per_mille) {
                self.reset(now, conn);
            }
        }
    }

    /// Everything from one host to another takes longer by this.
    pub(crate) fn set_slow(&mut self, from: Host, to: Host, by: Duration) {
        self.slow.insert((from, to), by);
    }

    /// All ways are open and fast again.
    pub(crate) fn heal(&mut self, now: Mono) {
        self.slow.clear();
        let ways: Vec<(Host, Host)> = self.ways.keys().copied().collect();
        for (from, to) in ways {
            self.set_way(now, from, to, Way::Open);
        }
        self.ways.clear();
    }
}

#[cfg(test)]
mod tests;

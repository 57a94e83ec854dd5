//! One connection to another node. Links are simplex: who dials sends, who accepts receives and writes nothing but its
//! half of the handshake and answers to pings.
//!
//! ```text
//!   dialled:   Connecting ── connected ──► Greeting ── welcome ──► Open ──► Closing
//!   accepted:                              Greeting ── hello ──► Greeted ── first ping ──► Open ──► Closing
//! ```

use super::dial::TargetId;
use super::handshake::{GREETING_BYTES_MAX, Greeting};
use super::peers::LinkStats;
use super::queue::{Assembler, LinkQueue};
use crate::cell::LaneKind;
use crate::interest::ConnKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_base::{Mono, NodeId, Now};

/// How long opening a connection may take, the look-up of its name included.
const DIAL_MAX: Duration = Duration::from_secs(2);
/// Longest body of a frame on an open link: a run of the largest messages.
const BODY_MAX: usize = 80 << 20;

/// Kinds of frames that are not cells; those of cells start at 16.
pub(crate) mod kind {
    /// The dialling side introduces itself.
    pub(crate) const HELLO: u8 = 1;
    /// The accepting side lets it in.
    pub(crate) const WELCOME: u8 = 2;
    /// The accepting side does not let it in.
    pub(crate) const REFUSED: u8 = 3;
    /// Is somebody there? Carries a number.
    pub(crate) const PING: u8 = 4;
    /// Yes; the same number.
    pub(crate) const PONG: u8 = 5;
    /// What does your wall clock show? Carries a number.
    pub(crate) const CLOCK: u8 = 6;
    /// The same number, and that.
    pub(crate) const TIME: u8 = 7;
}

/// Who opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// This node, for this target.
    Dialled(TargetId),
    /// The other node.
    Accepted,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The connection is being opened.
    Connecting,
    /// The other side has not said who it is.
    Greeting,
    /// The other side was let in and has not come in.
    Greeted,
    /// In use.
    Open,
    /// At its end.
    Closing,
}

/// Why a link ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The other side closed it.
    Closed,
    /// Reading failed.
    Read(String),
    /// Writing failed.
    Write(String),
    /// It could not be opened.
    Dial(String),
    /// Pings were not answered, or did not come.
    Stale,
    /// The handshake took too long.
    AuthTimeout,
    /// This side refused.
    Rejected,
    /// The other side refused.
    Refused(String),
    /// The other side does not keep to the protocol.
    Protocol(String),
    /// Too much waits to be sent.
    SlowConsumer,
    /// A newer link takes its place.
    Replaced,
    /// It leads where another link leads, or back to this node.
    Useless,
    /// This server stops.
    Shutdown,
}

impl Why {
    /// The reason in nats-server's words, for the log.
    pub(crate) const fn text(&self) -> &'static str {
        match self {
            Self::Closed => "Client Closed",
            Self::Read(_) => "Read Error",
            Self::Write(_) => "Write Error",
            Self::Dial(_) => "Connection Refused",
            Self::Stale => "Stale Connection",
            Self::AuthTimeout => "Authentication Timeout",
            Self::Rejected | Self::Refused(_) => "Authentication Failure",
            Self::Protocol(_) => "Protocol Violation",
            Self::SlowConsumer => "Slow Consumer (Pending Bytes)",
            Self::Replaced | Self::Useless => "Duplicate Route",
            Self::Shutdown => "Server Shutdown",
        }
    }
}

/// What a tick asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    /// Nothing.
    Wait,
    /// A ping is to be sent.
    Ping,
    /// It is to be closed.
    End(Why),
}

/// Times of the links of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How long a handshake may take.
    pub(crate) auth: Duration,
    /// Time between pings.
    pub(crate) ping: Duration,
    /// Pings that may stay unanswered.
    pub(crate) ping_max: u32,
}

/// One connection to another node.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) key: ConnKey,
    pub(crate) rid: u64,
    /// `ip:port - rid:N`, for log lines.
    pub(crate) label: String,
    pub(crate) side: Side,
    pub(crate) lane: LaneKind,
    pub(crate) stage: Stage,
    /// Who is at the other side, once known.
    pub(crate) node: Option<NodeId>,
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) start: Now,
    pub(crate) queue: LinkQueue,
    pub(crate) input: Assembler,
    /// Listed as having something to write.
    pub(crate) dirty: bool,
    /// When [`Link::tick`] has something to do.
    pub(crate) deadline: Mono,
    /// What the other side said of itself, until it comes in.
    pub(crate) greeting: Option<Box<Greeting>>,
    /// Time between pings, own or expected.
    pub(super) ping: Duration,
    pings_out: u32,
    pub(crate) stats: Arc<LinkStats>,
}

impl Link {
    /// A connection that is being opened to `address`.
    pub(crate) fn dialled(
        key: ConnKey,
        rid: u64,
        target: TargetId,
        lane: LaneKind,
        address: &str,
        now: Now,
    ) -> Self {
        Self {
            key,
            rid,
            label: format!("{address} - rid:{rid}"),
            side: Side::Dialled(target),
            lane,
            stage: Stage::Connecting,
            node: None,
            remote: None,
            start: now,
            queue: LinkQueue::default(),
            input: Assembler::default(),
            dirty: false,
            deadline: now.mono + DIAL_MAX,
            greeting: None,
            ping: Duration::ZERO,
            pings_out: 0,
            stats: Arc::default(),
        }
    }

    /// A connection that another node has opened.
    pub(crate) fn accepted(key: ConnKey, rid: u64, remote: SocketAddr, timing: &Timing, now: Now) -> Self {
        Self {
            label: format!("{remote} - rid:{rid}"),
            side: Side::Accepted,
            stage: Stage::Greeting,
            remote: Some(remote),
            deadline: now.mono + timing.auth,
            ..Self::dialled(key, rid, TargetId::NONE, LaneKind::Client, "", now)
        }
    }

    /// The connection is open; the handshake begins.
    pub(crate) fn connected(&mut self, remote: SocketAddr, timing: &Timing, now: Now) {
        self.label = format!("{remote} - rid:{}", self.rid);
        self.remote = Some(remote);
        self.stage = Stage::Greeting;
        self.start = now;
        self.deadline = now.mono + timing.auth;
    }

    /// The handshake is done. `ping` is the time between pings. The dialling side sends the first at once, before
    /// anything else: it says that it stays.
    pub(crate) fn open(&mut self, ping: Duration, timing: &Timing, now: Mono) {
        self.stage = Stage::Open;
        self.ping = ping;
        self.deadline = match self.side {
            Side::Dialled(_) => {
                self.pings_out = 1;
                now + ping
            }
            Side::Accepted => now + self.silence(timing),
        };
    }

    /// How long nothing may come before an accepted link is taken for dead.
    fn silence(&self, timing: &Timing) -> Duration {
        self.ping.saturating_mul(timing.ping_max.saturating_add(2))
    }

    /// Longest body of a frame at this stage.
    pub(crate) const fn body_max(&self) -> usize {
        match self.stage {
            Stage::Open => BODY_MAX,
            Stage::Connecting | Stage::Greeting | Stage::Greeted | Stage::Closing => GREETING_BYTES_MAX,
        }
    }

    /// Whether it is at its end.
    pub(crate) fn is_closing(&self) -> bool {
        self.stage == Stage::Closing
    }

    /// Whether cells may come on it.
    pub(crate) fn takes_cells(&self) -> bool {
        self.side == Side::Accepted && self.stage == Stage::Open
    }

    /// So many client messages came.
    pub(crate) fn count_messages(&self, count: usize) {
        LinkStats::add(&self.stats.messages, count);
    }

    /// Something came.
    pub(crate) fn heard(&mut self, bytes: usize, timing: &Timing, now: Mono) {
        LinkStats::add(&self.stats.bytes, bytes);
        self.stats.last_activity_ns.store(now.0, Ordering::Relaxed);
        if self.side == Side::Accepted && self.stage == Stage::Open {
            self.deadline = now + self.silence(timing);
        }
    }

    /// A ping was answered.
    pub(crate) fn pong(&mut self, sent: Mono, now: Mono) {
        self.pings_out = 0;
        if sent <= now {
            self.stats.rtt_ns.store(now.0 - sent.0, Ordering::Relaxed);
        }
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, timing: &Timing, now: Mono) -> Tick {
        if now < self.deadline {
            return Tick::Wait;
        }
        match (self.stage, self.side) {
            (Stage::Connecting, _) => Tick::End(Why::Dial("i/o timeout".to_owned())),
            (Stage::Greeting | Stage::Greeted, _) => Tick::End(Why::AuthTimeout),
            (Stage::Open, Side::Accepted) => Tick::End(Why::Stale),
            (Stage::Open, Side::Dialled(_)) if self.pings_out >= timing.ping_max.max(1) => {
                Tick::End(Why::Stale)
            }
            (Stage::Open, Side::Dialled(_)) => {
                self.pings_out += 1;
                self.deadline = now + self.ping;
                Tick::Ping
            }
            (Stage::Closing, _) => {
                self.deadline = Mono(u64::MAX);
                Tick::Wait
            }
        }
    }
}

/// The system's text of an error without the number that is appended to it, in Go's lower case.
pub(crate) fn plain_text(error: &str) -> String {
    let text = error.split(" (os error").next().unwrap_or(error);
    let mut chars = text.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: Timing = Timing {
        auth: Duration::from_secs(2),
        ping: Duration::from_secs(10),
        ping_max: 2,
    };

    fn at(secs: u64) -> Now {
        Now {
            mono: Mono(secs * 1_000_000_000),
            ..Now::default()
        }
    }

    fn dialled() -> Link {
        let key = ConnKey {
            index: 0,
            generation: 1,
        };
        Link::dialled(key, 5, TargetId::NONE, LaneKind::Log, "a:1", at(0))
    }

    #[test]
    fn a_dialled_link_pings_and_is_stale_without_answers() {
        let mut link = dialled();
        let remote = "10.0.0.1:6222".parse().expect("an address");
        link.connected(remote, &TIMING, at(0));
        assert_eq!(link.label, "10.0.0.1:6222 - rid:5");
        link.open(TIMING.ping, &TIMING, at(0).mono);
        assert_eq!(link.tick(&TIMING, at(9).mono), Tick::Wait);
        link.pong(at(0).mono, at(1).mono);
        assert_eq!(link.stats.rtt_ns.load(Ordering::Relaxed), 1_000_000_000);
        assert_eq!(link.tick(&TIMING, at(10).mono), Tick::Ping);
        assert_eq!(link.tick(&TIMING, at(20).mono), Tick::Ping);
        assert_eq!(link.tick(&TIMING, at(30).mono), Tick::End(Why::Stale));
    }

    #[test]
    fn opening_handshake_and_silence_have_their_time() {
        assert_eq!(
            dialled().tick(&TIMING, at(2).mono),
            Tick::End(Why::Dial("i/o timeout".to_owned()))
        );
        let remote = "10.0.0.1:6222".parse().expect("an address");
        let key = ConnKey {
            index: 0,
            generation: 1,
        };
        let mut link = Link::accepted(key, 6, remote, &TIMING, at(0));
        assert_eq!(link.tick(&TIMING, at(1).mono), Tick::Wait);
        assert_eq!(link.tick(&TIMING, at(2).mono), Tick::End(Why::AuthTimeout));
        link.open(TIMING.ping, &TIMING, at(2).mono);
        link.heard(1, &TIMING, at(30).mono);
        assert_eq!(link.tick(&TIMING, at(69).mono), Tick::Wait);
        assert_eq!(link.tick(&TIMING, at(70).mono), Tick::End(Why::Stale));
    }

    #[test]
    fn texts_of_the_system_become_those_of_go() {
        assert_eq!(
            plain_text("Connection refused (os error 111)"),
            "connection refused"
        );
        assert_eq!(plain_text("no such host"), "no such host");
    }
}

//! Deadlines of a connection: CONNECT, PING and a blocked write.

use std::time::Duration;

use tidelock_base::Mono;

use super::Inbound;
use crate::close::CloseReason;
use crate::outbound::Outbound;
use crate::pool::ChunkPool;
use crate::settings::Settings;

/// The first PING after CONNECT comes this soon, so that the round trip is known early.
const FIRST_PING: Duration = Duration::from_secs(2);
/// A round trip older than this is measured again, whatever the traffic.
const RTT_VALID: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Timers {
    /// CONNECT must have come; `None` once it has, or where nothing waits for it.
    auth: Option<Mono>,
    ping: Mono,
    ping_interval: Duration,
    /// A random share of one fifth, added to the first PING after CONNECT.
    jitter: u32,
    pings_out: u32,
    ping_sent: Option<Mono>,
    begun: Mono,
    rtt: Option<Duration>,
    /// When the last PING was sent.
    rtt_measured: Option<Mono>,
    last_activity: Mono,
}

impl Timers {
    pub(super) fn new(settings: &Settings, now: Mono, jitter: u32) -> Self {
        Self {
            auth: settings.auth_required.then(|| now + settings.auth_timeout),
            ping: now + settings.ping_interval,
            ping_interval: settings.ping_interval,
            jitter,
            pings_out: 0,
            ping_sent: None,
            begun: now,
            rtt: None,
            rtt_measured: None,
            last_activity: now,
        }
    }

    #[inline]
    pub(super) const fn active(&mut self, now: Mono) {
        self.last_activity = now;
    }

    pub(super) const fn authenticated(&mut self) {
        self.auth = None;
    }

    /// CONNECT came for the first time: the next PING comes soon. Until it is answered, the time since the connection
    /// was made stands for a round trip, as nats-server has it.
    pub(super) fn connected(&mut self, now: Mono) {
        self.rtt = Some(now.since(self.begun));
        let delay = self.ping_interval.min(FIRST_PING);
        let share = f64::from(self.jitter) / f64::from(u32::MAX);
        self.ping = now + delay + (delay / 5).mul_f64(share);
    }

    fn send_ping(&mut self, now: Mono, out: &mut Outbound, pool: &mut ChunkPool) {
        self.pings_out += 1;
        self.ping_sent = Some(now);
        self.rtt_measured = Some(now);
        out.ping(pool);
    }

    pub(super) const fn pong(&mut self, now: Mono) {
        self.pings_out = 0;
        if let Some(sent) = self.ping_sent.take() {
            self.rtt = Some(now.since(sent));
        }
    }

    pub(super) const fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    pub(super) const fn last_activity(&self) -> Mono {
        self.last_activity
    }

    /// Whether a PING is due, as opposed to one that traffic makes needless.
    fn wants_ping(&self, now: Mono) -> bool {
        let stale_rtt = self.rtt_measured.is_none_or(|at| now.since(at) > RTT_VALID);
        stale_rtt || now.since(self.last_activity) >= self.ping_interval
    }
}

impl Inbound {
    /// Does what is due at or before `now`.
    pub fn tick(&mut self, now: Mono, out: &mut Outbound, pool: &mut ChunkPool) -> Option<CloseReason> {
        if self.closed.is_some() {
            return self.closed;
        }
        let reason = self.due(now, out, pool)?;
        self.close(reason);
        Some(reason)
    }

    fn due(&mut self, now: Mono, out: &mut Outbound, pool: &mut ChunkPool) -> Option<CloseReason> {
        if out.is_slow() {
            return Some(CloseReason::SlowConsumerPendingBytes);
        }
        if self.write_deadline(out).is_some_and(|at| at <= now) {
            return Some(CloseReason::SlowConsumerWriteDeadline);
        }
        if self.timers.auth.is_some_and(|at| at <= now) {
            out.err(format_args!("Authentication Timeout"), pool);
            return Some(CloseReason::AuthenticationTimeout);
        }
        if self.timers.ping > now {
            return None;
        }
        let timers = &mut self.timers;
        if timers.wants_ping(now) {
            if timers.pings_out + 1 > self.settings.ping_max {
                out.err(format_args!("Stale Connection"), pool);
                return Some(CloseReason::StaleConnection);
            }
            timers.send_ping(now, out, pool);
        }
        timers.ping = now + timers.ping_interval;
        None
    }

    /// When [`Self::tick`] has something to do, if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self, out: &Outbound) -> Option<Mono> {
        if self.closed.is_some() {
            return None;
        }
        let deadlines = [self.timers.auth, self.write_deadline(out), Some(self.timers.ping)];
        deadlines.into_iter().flatten().min()
    }

    fn write_deadline(&self, out: &Outbound) -> Option<Mono> {
        out.stalled_since()
            .map(|since| since + self.settings.write_deadline)
    }
}

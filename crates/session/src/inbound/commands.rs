//! Everything that a client sends but publishes: CONNECT, SUB, UNSUB, PING and the rest.

use std::fmt;
use std::sync::Arc;

use tidelock_auth::SubscribeCheck;
use tidelock_base::Mono;
use tidelock_wire::{Connect, Event, Quoted, is_json};

use super::{Inbound, Phase};
use crate::close::CloseReason;
use crate::host::{AuthFailure, Authentication, Host, Identity, LogLevel};
use crate::settings::Settings;
use crate::subscription::{SUBSCRIPTIONS_MAX, SubSlot};

/// The queue group that servers use among themselves.
const SYSTEM_QUEUE: &[u8] = b"_sys_";

impl Inbound {
    pub(super) fn command<H: Host>(
        &mut self,
        now: Mono,
        event: &Event<'_>,
        host: &mut H,
    ) -> Result<(), CloseReason> {
        match event {
            Event::Connect(json) => self.process_connect(now, json, host),
            Event::Sub { subject, queue, sid } => {
                self.timers.active(now);
                self.subscribe(subject, *queue, sid, host);
                Ok(())
            }
            Event::Unsub { sid, max } => {
                self.timers.active(now);
                self.unsubscribe(sid, *max, host);
                Ok(())
            }
            Event::Ping => {
                self.timers.active(now);
                self.process_ping(host);
                Ok(())
            }
            Event::Pong => {
                self.timers.pong(now);
                Ok(())
            }
            Event::Err(text) => {
                host.log(
                    LogLevel::Error,
                    format_args!("Client Error {}", String::from_utf8_lossy(text)),
                );
                Err(CloseReason::ParseError)
            }
            Event::Info(json) if is_json(json) => Ok(()),
            Event::Info(_) => {
                host.log(LogLevel::Error, format_args!("INFO holds no valid JSON"));
                Err(CloseReason::ProtocolViolation)
            }
            // Publishes have a path of their own.
            Event::Ok | Event::Publish { .. } => Ok(()),
        }
    }

    /// Looks at the front of the input of a client that is not let in yet, and says whether it may be parsed: it may
    /// if it looks like CONNECT, or if the client is let in without.
    #[cold]
    pub(super) fn start<H: Host>(&mut self, rest: &[u8], host: &mut H) -> Result<bool, CloseReason> {
        if self.phase == Phase::Asking {
            return Ok(false);
        }
        let Some(first) = rest.first() else {
            return Ok(false);
        };
        if first.eq_ignore_ascii_case(&b'C') {
            return Ok(true);
        }
        if !self.settings.connect_optional {
            return Err(self.reject(AuthFailure::Violation, host));
        }
        self.ask(host)?;
        Ok(self.phase == Phase::Ready)
    }

    fn process_connect<H: Host>(&mut self, now: Mono, json: &[u8], host: &mut H) -> Result<(), CloseReason> {
        if let Err(error) = self.connect.update(json) {
            host.log(LogLevel::Error, format_args!("{error}"));
            return Err(CloseReason::ProtocolViolation);
        }
        // A first CONNECT keeps what was subscribed before it, unless that was under another user.
        if self.connect_received || self.settings.auth_required {
            drop_subscriptions(host);
        }
        if !self.connect_received {
            self.connect_received = true;
            self.timers.connected(now);
        }
        if !self.connect.account.is_empty() || self.connect.new_account {
            return Err(self.reject(AuthFailure::Violation, host));
        }
        self.ask(host)
    }

    fn ask<H: Host>(&mut self, host: &mut H) -> Result<(), CloseReason> {
        self.phase = Phase::Asking;
        match host.authenticate(&self.connect) {
            Authentication::Accepted(identity) => self.accept(identity, host),
            Authentication::Refused(failure) => Err(self.reject(failure, host)),
            Authentication::Pending => Ok(()),
        }
    }

    /// The answer to [`Authentication::Pending`]. If the connection stays open, [`Self::receive`] goes on with the
    /// input that was left.
    pub fn authenticated<H: Host>(
        &mut self,
        answer: Result<Identity, AuthFailure>,
        host: &mut H,
    ) -> Option<CloseReason> {
        if self.phase != Phase::Asking || self.closed.is_some() {
            return self.closed;
        }
        let outcome = match answer {
            Ok(identity) => self.accept(identity, host),
            Err(failure) => Err(self.reject(failure, host)),
        };
        let reason = outcome.err()?;
        self.close(reason);
        Some(reason)
    }

    fn accept<H: Host>(&mut self, identity: Identity, host: &mut H) -> Result<(), CloseReason> {
        self.phase = Phase::Ready;
        self.timers.authenticated();
        self.headers = self.settings.headers && self.connect.headers;
        self.permissions = identity.permissions.clone().filter(|p| !p.is_unrestricted());
        self.cache.clear();
        self.identity = Some(identity);
        self.apply_limits();
        let (out, _) = host.outbound();
        out.configure(&self.connect, self.headers, self.permissions.as_ref());
        if !self.connect_received {
            return Ok(());
        }
        if !(0..=1).contains(&self.connect.protocol) {
            return Err(fatal(
                CloseReason::BadClientProtocolVersion,
                "invalid client protocol",
                host,
            ));
        }
        if self.connect.no_responders && !self.headers {
            let text = "no responders requires headers support";
            return Err(fatal(CloseReason::NoRespondersRequiresHeaders, text, host));
        }
        self.confirm(host);
        Ok(())
    }

    /// The lower of the server's and the identity's limits.
    fn apply_limits(&mut self) {
        let Settings {
            max_control_line,
            max_payload,
            max_subscriptions,
            ..
        } = *self.settings;
        let identity = self.identity.as_ref();
        self.limits.control_line = max_control_line;
        self.limits.payload = identity
            .and_then(|i| i.max_payload)
            .map_or(max_payload, |own| own.min(max_payload));
        let own = identity.and_then(|i| i.max_subscriptions).unwrap_or(0);
        self.max_subscriptions = match (max_subscriptions, own) {
            (0, 0) => SUBSCRIPTIONS_MAX,
            (0, limit) | (limit, 0) => limit,
            (a, b) => a.min(b),
        };
    }

    /// Takes over settings that were changed by a reload.
    pub fn reload(&mut self, settings: &Arc<Settings>, out: &mut crate::Outbound) {
        self.settings = Arc::clone(settings);
        self.apply_limits();
        out.reconfigure(settings);
    }

    fn reject<H: Host>(&mut self, failure: AuthFailure, host: &mut H) -> CloseReason {
        let (out, pool) = host.outbound();
        out.err(format_args!("{}", failure.text()), pool);
        match failure {
            AuthFailure::Violation | AuthFailure::AccountRegistration => {
                let who = Who(&self.connect);
                host.log(LogLevel::Error, format_args!("authentication error{who}"));
                CloseReason::AuthenticationFailure
            }
            AuthFailure::AccountConnectionsExceeded => {
                host.log(LogLevel::Error, format_args!("{}", failure.text()));
                CloseReason::MaxAccountConnectionsExceeded
            }
        }
    }

    fn subscribe<H: Host>(&mut self, subject: &[u8], queue: Option<&[u8]>, sid: &[u8], host: &mut H) {
        let check = match &self.permissions {
            _ if queue == Some(SYSTEM_QUEUE) => SubscribeCheck::Denied,
            None => SubscribeCheck::Allowed,
            Some(permissions) => permissions.can_subscribe(subject, queue),
        };
        if check == SubscribeCheck::Denied {
            return deny_subscription(subject, queue, sid, host);
        }
        let tokens_max = self.settings.max_subscription_tokens;
        if tokens_max > 0 && subject.split(|b| *b == b'.').count() > tokens_max {
            return too_many_tokens(subject, sid, host);
        }
        let (out, _) = host.outbound();
        if out.sub_count() >= self.max_subscriptions {
            return self.too_many_subscriptions(host);
        }
        if out.subscriptions().find(sid).is_none() {
            if !tidelock_subject::is_valid_filter(subject) {
                let (out, pool) = host.outbound();
                return out.err(format_args!("Invalid Subject"), pool);
            }
            let filter = check == SubscribeCheck::AllowedWithDenyFilter;
            let Some(slot) = out.subscriptions().insert(subject, queue, sid, filter) else {
                return self.too_many_subscriptions(host);
            };
            host.subscribed(slot);
        }
        self.confirm(host);
    }

    fn too_many_subscriptions<H: Host>(&mut self, host: &mut H) {
        let text = "maximum subscriptions exceeded";
        let (out, pool) = host.outbound();
        out.err(format_args!("{text}"), pool);
        // A client that goes on asking would fill the log.
        if !std::mem::replace(&mut self.subscription_limit_logged, true) {
            host.log(LogLevel::Error, format_args!("{text}"));
        }
    }

    fn unsubscribe<H: Host>(&self, sid: &[u8], max: u64, host: &mut H) {
        let (out, _) = host.outbound();
        if let Some(slot) = out.subscriptions().find(sid) {
            let over = out.subscriptions().get_mut(slot).is_none_or(|sub| {
                if max > sub.delivered {
                    sub.max = max;
                }
                max <= sub.delivered
            });
            if over {
                host.unsubscribed(slot);
                host.outbound().0.remove(slot);
            }
        }
        self.confirm(host);
    }

    fn process_ping<H: Host>(&mut self, host: &mut H) {
        let (out, pool) = host.outbound();
        out.pong(pool);
        if self.connect_received && !self.first_pong_sent {
            self.first_pong_sent = true;
            if self.connect.protocol >= 1
                && let Some(info) = host.first_pong()
            {
                let (out, pool) = host.outbound();
                out.info(&info, pool);
            }
        }
    }

    /// `+OK` where the client wants it.
    fn confirm<H: Host>(&self, host: &mut H) {
        if self.connect.verbose {
            let (out, pool) = host.outbound();
            out.ok(pool);
        }
    }
}

/// A client that connects again starts without subscriptions.
fn drop_subscriptions<H: Host>(host: &mut H) {
    let slots: Vec<SubSlot> = host.outbound().0.subs().map(|(slot, _)| slot).collect();
    for slot in slots {
        host.unsubscribed(slot);
        host.outbound().0.remove(slot);
    }
}

fn fatal<H: Host>(reason: CloseReason, text: &str, host: &mut H) -> CloseReason {
    let (out, pool) = host.outbound();
    out.err(format_args!("{text}"), pool);
    host.log(LogLevel::Error, format_args!("{text}"));
    reason
}

fn deny_subscription<H: Host>(subject: &[u8], queue: Option<&[u8]>, sid: &[u8], host: &mut H) {
    let (subject, sid) = (Quoted(subject), String::from_utf8_lossy(sid));
    let (out, pool) = host.outbound();
    if let Some(queue) = queue.map(Quoted) {
        out.err(
            format_args!("Permissions Violation for Subscription to {subject} using queue {queue}"),
            pool,
        );
        let text = format_args!("Subscription Violation - Subject {subject}, Queue: {queue}, SID {sid}");
        host.log(LogLevel::Error, text);
    } else {
        out.err(
            format_args!("Permissions Violation for Subscription to {subject}"),
            pool,
        );
        host.log(
            LogLevel::Error,
            format_args!("Subscription Violation - Subject {subject}, SID {sid}"),
        );
    }
}

fn too_many_tokens<H: Host>(subject: &[u8], sid: &[u8], host: &mut H) {
    let (subject, sid) = (Quoted(subject), String::from_utf8_lossy(sid));
    let (out, pool) = host.outbound();
    out.err(
        format_args!("Permissions Violation for Subscription to {subject}, too many tokens"),
        pool,
    );
    let text = format_args!("Subscription Violation Too Many Tokens - Subject {subject}, SID {sid}");
    host.log(LogLevel::Error, text);
}

/// Who failed to log in, as the log names it: never with a secret.
struct Who<'a>(&'a Connect);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = self.0;
        if !c.nkey.is_empty() {
            write!(f, " - Nkey {}", Quoted(c.nkey.as_bytes()))
        } else if !c.auth_token.is_empty() {
            f.write_str(" - Token \"[REDACTED]\"")
        } else if !c.user.is_empty() {
            write!(f, " - User {}", Quoted(c.user.as_bytes()))
        } else {
            Ok(())
        }
    }
}

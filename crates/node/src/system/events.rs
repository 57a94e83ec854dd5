//! What the system account is told unasked: connections that come and go, failed logins, periodic figures, the end
//! of the server. All of it only while somebody listens.

use super::connections::Record;
use super::gather::Part;
use super::requests::Asker;
use super::topic::Topic;
use crate::deliver_batch::Message;
use crate::interest::ConnKey;
use crate::worker::{Client, Core, Worker};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidelock_api::event::{self, ClientConnect, ClientDisconnect, ClientInfo, EventKind, Traffic};
use tidelock_api::monitor::StatsReply;
use tidelock_api::{Nanos, Time, to_json};
use tidelock_base::{AccountId, Mono, WorkerId};
use tidelock_session::CloseReason;
use tidelock_wire::Connect;

/// The periodic figures come this soon after the start, then after twice as long each time, up to [`STATS_EVERY`].
const STATS_FIRST: Duration = Duration::from_millis(250);
const STATS_EVERY: Duration = Duration::from_secs(10);
/// Connections of accounts that have some are told this often even if none came or went.
const CONNS_EVERY: Duration = Duration::from_secs(30);
/// Events of one turn that are kept; those beyond are lost, as events may be.
const NOTICES_MAX: usize = 4096;
/// Account of clients that were not let in.
const GLOBAL: &str = "$G";

/// Something that the system account may be told at the end of the turn.
#[derive(Debug)]
pub(super) enum Notice {
    /// A client was let in.
    Connected(ConnKey),
    /// A connection is gone.
    Disconnected(Box<Gone>),
}

/// A connection that is gone.
#[derive(Debug)]
pub(super) struct Gone {
    client: ClientInfo,
    /// Its account; `None` if it was not let in.
    account: Option<AccountId>,
    sent: Traffic,
    received: Traffic,
    reason: CloseReason,
}

/// When the system account is told something by the clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    stats_at: Option<Mono>,
    stats_every: Duration,
    conns_at: Option<Mono>,
}

impl Clock {
    pub(super) fn next_deadline(&self) -> Option<Mono> {
        [self.stats_at, self.conns_at].into_iter().flatten().min()
    }
}

impl Core {
    /// Notes something for the system account.
    pub(super) fn notice(&mut self, notice: Notice) {
        let events = self.shared.options.system_events;
        if events && self.system.notices.len() < NOTICES_MAX {
            self.system.notices.push(notice);
        }
    }

    /// A client was let in.
    pub(crate) fn client_connected(&mut self, key: ConnKey) {
        self.notice(Notice::Connected(key));
    }

    /// A fresh id of an event: 22 characters.
    pub(super) fn event_id(&mut self) -> String {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let digit = |core: &mut Self| {
            let n = core.random.below(62) as usize;
            DIGITS.get(n).map_or('0', |digit| char::from(*digit))
        };
        (0..22).map(|_| digit(self)).collect()
    }

    /// Whether anybody in the cluster listens to a subject of the system account.
    fn is_system_heard(&mut self, subject: &str) -> bool {
        let Some(account) = self.shared.system_account().map(|account| account.id) else {
            return false;
        };
        self.root(account).0.tree.has_match(subject.as_bytes())
    }

    fn publish_system(&mut self, subject: &str, body: &[u8]) {
        let Some(account) = self.shared.system_account().map(|account| account.id) else {
            return;
        };
        let target = subject.as_bytes();
        let message = Message {
            subject: target,
            target,
            reply: b"",
            header: b"",
            payload: body,
            shared: None,
        };
        self.publish_made(account, &message);
    }

    /// Publishes what the server says of itself once: `SHUTDOWN`, `LAMEDUCK`.
    pub(super) fn publish_state(&mut self, what: &str) {
        let subject = format!("$SYS.SERVER.{}.{what}", self.shared.identity.server_id);
        if self.shared.options.system_events && self.is_system_heard(&subject) {
            let body = to_json(&self.shared.server_info(self.now.wall));
            self.publish_system(&subject, &body);
        }
    }

    fn stats_subject(&self) -> String {
        format!("$SYS.SERVER.{}.STATSZ", self.shared.identity.server_id)
    }

    pub(super) fn publish_statsz(&mut self, part: &Part) {
        let server = self.shared.server_info(self.now.wall);
        let statsz = self.statsz(part);
        let body = to_json(&StatsReply {
            server: &server,
            statsz: &statsz,
        });
        let subject = self.stats_subject();
        self.publish_system(&subject, &body);
    }

    /// Connections of an account, on both subjects.
    pub(super) fn publish_account(&mut self, account: AccountId, part: &Part) {
        for subject in self.conns_subjects(account) {
            if self.is_system_heard(&subject) {
                let body = self.account_event(account, part);
                self.publish_system(&subject, &body);
            }
        }
    }

    fn conns_subjects(&self, account: AccountId) -> [String; 2] {
        let name = self.shared.account(account).map_or("", |account| &*account.name);
        [
            format!("$SYS.SERVER.ACCOUNT.{name}.CONNS"),
            format!("$SYS.ACCOUNT.{name}.SERVER.CONNS"),
        ]
    }

    fn publish_connected(&mut self, key: ConnKey) {
        let Some(name) = self
            .client(key)
            .and_then(|c| c.identity.as_ref().map(|i| Arc::clone(&i.account_name)))
        else {
            return;
        };
        let subject = format!("$SYS.ACCOUNT.{name}.CONNECT");
        if !self.is_system_heard(&subject) {
            return;
        }
        let Some(client) = self.client(key).map(|client| client_info(client, None)) else {
            return;
        };
        let server = self.shared.server_info(self.now.wall);
        let body = ClientConnect {
            server: &server,
            client: &client,
        };
        let id = self.event_id();
        let body = event::event(EventKind::ClientConnect, &id, Time(self.now.wall), &body);
        self.publish_system(&subject, &body);
    }

    fn publish_disconnected(&mut self, gone: &Gone) {
        if gone.reason == CloseReason::AuthenticationFailure {
            let subject = format!("$SYS.SERVER.{}.CLIENT.AUTH.ERR", self.shared.identity.server_id);
            self.publish_gone(&subject, gone);
        }
        let name = self
            .shared
            .account(gone.account.unwrap_or_default())
            .map_or(GLOBAL, |account| &*account.name);
        let subject = format!("$SYS.ACCOUNT.{name}.DISCONNECT");
        self.publish_gone(&subject, gone);
    }

    fn publish_gone(&mut self, subject: &str, gone: &Gone) {
        if !self.is_system_heard(subject) {
            return;
        }
        let server = self.shared.server_info(self.now.wall);
        let body = ClientDisconnect {
            server: &server,
            client: &gone.client,
            sent: gone.sent,
            received: gone.received,
            reason: gone.reason.text(),
        };
        let id = self.event_id();
        let body = event::event(EventKind::ClientDisconnect, &id, Time(self.now.wall), &body);
        self.publish_system(subject, &body);
    }
}

impl Worker {
    /// Tells the system account what this turn brought.
    pub(super) fn run_notices(&mut self) {
        let mut changed = BTreeSet::new();
        for notice in std::mem::take(&mut self.core.system.notices) {
            match notice {
                Notice::Connected(key) => {
                    changed.extend(self.core.client(key).and_then(|client| client.account()));
                    self.core.publish_connected(key);
                }
                Notice::Disconnected(gone) => {
                    changed.extend(gone.account);
                    self.core.publish_disconnected(&gone);
                }
            }
        }
        for account in changed {
            self.tell_connections(account);
        }
    }

    /// Tells how many connections an account has, if somebody wants to know. Not for the account of those who are
    /// not asked who they are.
    fn tell_connections(&mut self, account: AccountId) {
        let global = self
            .core
            .shared
            .account(account)
            .is_none_or(|account| &*account.name == GLOBAL);
        let subjects = self.core.conns_subjects(account);
        if !global && subjects.iter().any(|subject| self.core.is_system_heard(subject)) {
            let name = self
                .core
                .shared
                .account(account)
                .map(|account| account.name.to_string())
                .unwrap_or_default();
            self.ask(Topic::AccountConns(name), Asker::ConnsEvent(account));
        }
    }

    /// A connection is gone: it is remembered, and the system account is told.
    pub(super) fn client_gone(&mut self, key: ConnKey) {
        let now = self.core.now.wall;
        let shared = Arc::clone(&self.core.shared);
        let Core { clients, system, .. } = &mut self.core;
        let Some(client) = clients
            .get(key.index as usize)
            .and_then(|place| place.client.as_ref())
        else {
            return;
        };
        let Some(inbound) = self.inbound.get(key.index as usize).and_then(Option::as_ref) else {
            return;
        };
        let reason = client.closing.unwrap_or(CloseReason::ClientClosed);
        let max = usize::try_from(shared.options.limits.max_closed_clients).unwrap_or(usize::MAX);
        let max = max.div_ceil(usize::from(shared.workers.max(1)));
        let traffic = super::connections::traffic(client, inbound);
        let account = client.account();
        let slow = matches!(
            reason,
            CloseReason::SlowConsumerPendingBytes | CloseReason::SlowConsumerWriteDeadline
        );
        if slow {
            shared.totals.slow_consumers.fetch_add(1, Ordering::Relaxed);
        }
        if reason == CloseReason::StaleConnection {
            shared.totals.stale_connections.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(account) = account.and_then(|id| shared.account(id)) {
            account.past.add(&traffic);
            account
                .past
                .slow_consumers
                .fetch_add(u64::from(slow), Ordering::Relaxed);
        }
        let rtt = super::connections::rtt_ns(inbound);
        let mut info = client_info(client, i64::try_from(rtt).ok());
        info.stop = Some(Time(now));
        let _: Option<&Record> = system.closed.push(max, client, inbound, reason, now);
        let gone = Gone {
            client: info,
            account,
            sent: Traffic {
                msgs: traffic.in_msgs,
                bytes: traffic.in_bytes,
            },
            received: Traffic {
                msgs: traffic.out_msgs,
                bytes: traffic.out_bytes,
            },
            reason,
        };
        self.core.notice(Notice::Disconnected(Box::new(gone)));
    }

    /// Does what is due by the clock; worker 0 speaks for the node.
    pub(super) fn system_tick(&mut self) {
        let now = self.core.now.mono;
        if self.core.id != WorkerId(0) || !self.core.shared.options.system_events {
            return;
        }
        let clock = &mut self.core.system.clock;
        if clock.conns_at.is_none() {
            clock.conns_at = Some(now + CONNS_EVERY);
            clock.stats_at = Some(now + STATS_FIRST);
            clock.stats_every = STATS_FIRST;
        }
        if clock.stats_at.is_some_and(|at| at <= now) {
            clock.stats_every = (clock.stats_every * 2).min(STATS_EVERY);
            clock.stats_at = Some(now + clock.stats_every);
            let subject = self.core.stats_subject();
            if self.core.is_system_heard(&subject) {
                self.ask(Topic::Statsz, Asker::StatsEvent);
            }
        }
        if self.core.system.clock.conns_at.is_some_and(|at| at <= now) {
            self.core.system.clock.conns_at = Some(now + CONNS_EVERY);
            let accounts: Vec<AccountId> = self
                .core
                .shared
                .accounts
                .iter()
                .filter(|account| account.connections.load(Ordering::Relaxed) > 0)
                .map(|account| account.id)
                .collect();
            for account in accounts {
                self.tell_connections(account);
            }
        }
    }
}

/// A client as events show it; the round trip time in nanoseconds.
fn client_info(client: &Client, rtt: Option<i64>) -> ClientInfo {
    let Connect {
        name,
        lang,
        version,
        user,
        auth_token,
        ..
    } = &client.connect;
    let identity = client.identity.as_ref();
    let account = identity.map_or(GLOBAL, |identity| &*identity.account_name);
    let user = match identity {
        _ if !auth_token.is_empty() => "[REDACTED]",
        Some(identity) => &*identity.user,
        None => user.as_str(),
    };
    ClientInfo {
        start: Some(Time(client.start.wall)),
        host: client.remote.ip().to_string(),
        id: client.cid.0,
        account: account.to_owned(),
        user: user.to_owned(),
        name: name.clone(),
        lang: lang.clone(),
        ver: version.clone(),
        rtt: Nanos(rtt.unwrap_or(0)),
        name_tag: account.to_owned(),
        kind: "Client".to_owned(),
        client_type: "nats".to_owned(),
        ..ClientInfo::default()
    }
}
